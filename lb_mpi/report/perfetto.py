"""The trace of a run in Perfetto's own format, for https://ui.perfetto.dev; needs the package `perfetto`.   (pure)

One track per rank, grouped by host: slices are the phases, an arrow is work that moved.  A record has bins of time: a slice
is the longest phase of its bins.  Of arrows a record keeps some, and two times of each: a draft begins when it was sent and
ends when the work arrived, a loan begins when the rows were lent and ends when their results were back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.record.events import Phase, Way
from lb_mpi.record.record import Stored
from lb_mpi.report.run import NAMES, SAVE, Run

SEQUENCE = 1  # of packets: all are written by one
ARROWS = {
    Way.DRAFT: ("drafted by rank {}", "a part of rank {}'s work"),
    Way.LOAN: ("{n:.0f} rows lent to rank {}", "{n:.0f} rows back to rank {}"),
    Way.STEAL: ("{n:.0f} tasks stolen by rank {}", "{n:.0f} tasks of rank {}"),
    Way.GIFT: ("{n:.0f} rows given to rank {}", "{n:.0f} rows of rank {}"),
}  # at the begin of an arrow, on the giver, and at its end, on the receiver; the other rank, and how many


class _Slice(NamedTuple):
    """A phase of a rank, in seconds."""

    phase: int
    began: float
    ended: float


def trace(run: Run) -> bytes:
    """Write the trace; ValueError without the package."""
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as error:
        raise ValueError(f"--perfetto needs the package perfetto (pip install 'lb_mpi[perfetto]'): {error}") from None
    builder = TraceProtoBuilder()
    tracks = _describe(builder, run)
    events = sorted(_events(run, tracks, TrackEvent), key=lambda event: event[0])
    for at, track, kind, name, flow in events:
        packet = builder.add_packet()
        packet.timestamp = max(0, round(1e9 * at))
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        if name:
            packet.track_event.name = name
        if flow:
            packet.track_event.flow_ids.append(flow)
    return bytes(builder.serialize())


def slices(one: Stored) -> Iterator[_Slice]:
    """Join bins in a row with the same longest phase; times are those of the rank's own clock."""
    if not len(one.seconds):
        return
    most = one.seconds.argmax(axis=1)
    firsts = np.flatnonzero(np.diff(most, prepend=-1))
    ends = np.append(firsts[1:], len(most)) * one.width_s
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        began = one.about.clock_s + first * one.width_s
        yield _Slice(int(most[first]), began, max(began, min(one.about.clock_s + end, one.until)))


def _describe(builder: Any, run: Run) -> dict[int, int]:
    """Write a track for each host and, within it, for each of its ranks; the track of each rank."""
    for k, host in enumerate(run.hosts):
        packet = builder.add_packet()
        packet.track_descriptor.uuid = 1 + k
        packet.track_descriptor.process.pid = 1 + k
        packet.track_descriptor.process.process_name = host
    tracks = {}
    for k, one in enumerate(run.ranks):
        tracks[one.about.rank] = 1 + len(run.hosts) + k
        packet = builder.add_packet()
        packet.track_descriptor.uuid = tracks[one.about.rank]
        packet.track_descriptor.parent_uuid = 1 + run.hosts.index(one.about.host)
        packet.track_descriptor.name = f"rank {one.about.rank}"
        packet.track_descriptor.sibling_order_rank = k
    return tracks


_Event = tuple[float, int, int, str, int]  # seconds, track, type, name, flow (0: none)


def _events(run: Run, tracks: dict[int, int], kinds: Any) -> Iterator[_Event]:
    flow = 0
    for one, offset_s in zip(run.ranks, run.offsets_s, strict=True):
        track = tracks[one.about.rank]
        for phase, began, ended in slices(one):
            yield began + offset_s, track, kinds.TYPE_SLICE_BEGIN, NAMES[Phase(phase)], 0
            yield ended + offset_s, track, kinds.TYPE_SLICE_END, "", 0
        for move in one.moves:
            other = int(move["other"])
            if other in tracks and move["amount"] > 0.0 and np.isfinite(move["ended"]):
                flow += 1
                ends = (one.about.rank, other) if move["way"] in (Way.LOAN, Way.GIFT) else (other, one.about.rank)
                times = move["began"] + offset_s, move["ended"] + offset_s
                names = ARROWS[Way(int(move["way"]))]
                for at, rank, name, peer in zip(times, ends, names, ends[::-1], strict=True):
                    yield at, tracks[rank], kinds.TYPE_INSTANT, name.format(peer, n=move["amount"]), flow
    first = next(iter(tracks.values()))
    for it in run.happened:
        at = it.ended_s if it.what == SAVE else it.began_s
        yield at, tracks.get(it.rank, first), kinds.TYPE_INSTANT, f"{it.what}: {it.words}", 0
