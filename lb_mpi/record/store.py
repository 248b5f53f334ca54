"""The file of one rank's record, as bytes.   (pure)

    header:    8 bytes of magic with the version, then a frame with what the rank is (`About`)
    snapshots: two slots of `slot_bytes` each, from byte HEADER_BYTES on; each holds a frame with the whole record

The slots are written in turn, so that a rank that dies in the middle of a write leaves the snapshot before it: the newest
complete one counts.  So a file never grows beyond HEADER_BYTES + 2 slot_bytes(size): 4 KiB + 2 (160 KiB + 128 bytes for
each rank).  Payloads are MessagePack; tables are arrays of the dtypes of `events`.  Nothing is unpickled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.frames import frame, read_frame
from lb_mpi.record.events import FLOW, MARK, MOVE, STEP, TASK, Clock, Progress
from lb_mpi.record.record import MAP, N_PHASES, Record, Rows

MAGIC, VERSION = b"lb_rec", 5
HEADER_BYTES = 4096
SLOT_BYTES, RANK_BYTES = 160 << 10, 128
_START = struct.Struct("<6sH")  # magic, version
_TEXT_BYTES = 256  # characters of a text in the header
_TABLES = {"steps": STEP, "moves": MOVE, "flows": FLOW, "marks": MARK, "tasks": TASK}


class About(NamedTuple):
    """What a rank is."""

    rank: int  # of COMM_WORLD
    size: int  # ranks of COMM_WORLD
    host: str
    process: int  # its number on the host
    clock_s: float  # `perf_counter` when the record was begun
    wall_s: float  # seconds since 1970 at the same time
    versions: str  # of Python, mpi4py, the MPI library and lb_mpi
    program: str  # as it was started
    virtual: bool = False  # simulated: times are those of a virtual clock


class Stored(NamedTuple):
    """What the file of one rank holds; see `Record`."""

    about: About
    until: float  # seconds: what came later isn't known
    ended: bool  # by itself (False: killed, or still running)
    width_s: float  # of a bin
    seconds: NDArray[np.float64]  # (bins, phases), from `about.clock_s` on
    steps: Rows  # of events.STEP
    moves: Rows  # of events.MOVE
    flows: Rows  # of events.FLOW
    marks: Rows  # of events.MARK
    tasks: Rows  # of events.TASK, by position
    reasons: list[str]  # that steps name by index
    clocks: list[Clock]
    settings: dict[str, dict[str, Any]]  # of each driver: how it was called
    costs: NDArray[np.float64]
    map: NDArray[np.uint8]  # (h, w) the part of each place that this rank computed, in 255ths
    edges: NDArray[np.int32]  # (E, 2) of the process graph, ranks of COMM_WORLD
    under_way: float  # units done in the call that has not ended
    of: float  # units that this rank was dealt in it; 0: not known
    progress: Progress  # of the program's own steps


def slot_bytes(size: int) -> int:
    """Bytes of a slot, in a run of `size` ranks."""
    return SLOT_BYTES + RANK_BYTES * size


def header(about: About) -> bytes:
    """The begin of a file: HEADER_BYTES bytes."""
    texts = {name: _writable(value) for name, value in about._asdict().items() if isinstance(value, str)}
    packed: bytes = msgpack.packb({**about._asdict(), **texts})
    return (_START.pack(MAGIC, VERSION) + frame(packed)).ljust(HEADER_BYTES, b"\0")


def snapshot(record: Record, now: float, number: int, *, ended: bool = False) -> bytes:
    """All that is known at `now`, as a frame; snapshot `number` belongs into slot number % 2."""
    record.enter(record.phase, now)
    line = record.line
    seconds = np.concatenate([line.bins[: line.n], [line.open]]).astype(np.float32)
    payload: bytes = msgpack.packb({
        "number": number, "until": now, "ended": ended, "width_s": line.width_s, "seconds": seconds.tobytes(),
        "steps": record.steps.all.tobytes(), "moves": record.moves.all.tobytes(), "flows": record.flows.tobytes(),
        "marks": record.marks.all.tobytes(), "tasks": record.tasks.tobytes(), "reasons": record.reasons,
        "clocks": [list(clock) for clock in record.clocks], "settings": record.settings, "costs": record.costs.tobytes(),
        "map": [*record.map.shape, record.map.tobytes()], "edges": record.edges.tobytes(),
        "under_way": [record.under_way, record.of], "progress": list(record.progress),
    })  # fmt: skip
    return frame(payload)


def place(number: int, size: int) -> int:
    """The byte at which snapshot `number` belongs, in a run of `size` ranks."""
    return HEADER_BYTES + number % 2 * slot_bytes(size)


def file_name(rank: int) -> str:
    """Name the file of a rank in its folder."""
    return f"rank{rank:06d}.lbrec"


def virtual_files(
    records: Sequence[Record], now: float, hosts: Sequence[str], program: str
) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the file of each virtual rank; `hosts` (ranks,), and `program` in words."""
    size = len(records)
    for rank, record in enumerate(records):
        about = About(rank, size, hosts[rank], rank, 0.0, 0.0, "simulated", program, virtual=True)
        data = header(about).ljust(place(0, size), b"\0") + snapshot(record, now, 0, ended=True)
        yield file_name(rank), data


def read(data: bytes | memoryview) -> Stored:
    """Read a file; ValueError, in words, for what is no record, of another version, or without a complete snapshot."""
    view = memoryview(data)
    about = _about(view)
    best: dict[str, Any] | None = None
    for number in range(2):
        at = place(number, about.size)
        payload, _ = read_frame(view, at) if at < len(view) else (None, at)
        found = None if payload is None else _unpacked(payload)
        if found is not None and (best is None or found["number"] > best["number"]):
            best = found
    if best is None:
        raise ValueError("no complete snapshot in it: expected at least one")
    return _stored(about, best)


def _writable(text: str) -> str:
    """The begin of a text; what is no Unicode in it (arguments are any bytes) as backslashes and digits."""
    return text[:_TEXT_BYTES].encode("utf-8", "backslashreplace").decode("utf-8")


def _about(view: memoryview) -> About:
    start = bytes(view[: _START.size])
    if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
        raise ValueError(f"begins with {show(start)}: expected the record of a rank, {MAGIC!r}")
    if (version := _START.unpack(start)[1]) != VERSION:
        raise ValueError(f"format version {version}: expected {VERSION}; record the run again with this lb_mpi")
    payload, _ = read_frame(view, _START.size)
    found = None if payload is None else _unpacked(payload)
    about: About | None
    try:
        about = About(**(found or {}))
    except TypeError:
        about = None
    kinds = (int, int, str, int, float, float, str, str, bool)
    if about is None or not all(isinstance(value, kind) for value, kind in zip(about, kinds, strict=True)):
        raise ValueError("header truncated or corrupt: expected a description of the rank")
    if not 0 <= about.rank < about.size:
        raise ValueError(f"rank {about.rank} of {about.size}: expected 0 to {about.size - 1}")
    return about


def _unpacked(payload: bytes | memoryview) -> dict[str, Any] | None:
    try:
        found = msgpack.unpackb(payload)
    except Exception:  # a fitting CRC, but no MessagePack: anything may be wrong with it
        return None
    return found if isinstance(found, dict) else None


def _stored(about: About, found: Mapping[str, Any]) -> Stored:
    try:
        tables = {name: np.frombuffer(found[name], dtype) for name, dtype in _TABLES.items()}
        height, width, shares = found["map"]
        began, first, at, done, of = found["progress"]
        settings = found["settings"]
        if not isinstance(settings, dict) or not all(isinstance(one, dict) for one in settings.values()):
            raise ValueError("settings")
        if not 0 <= height <= MAP or not 0 <= width <= MAP:
            raise ValueError(f"a map of {show(height)} x {show(width)}")
        stored = Stored(
            about=about,
            until=float(found["until"]),
            ended=bool(found["ended"]),
            width_s=float(found["width_s"]),
            seconds=np.frombuffer(found["seconds"], np.float32).reshape(-1, N_PHASES).astype(np.float64),
            reasons=[str(words) for words in found["reasons"]],
            clocks=[
                Clock(float(at), int(rank), float(offset), float(error)) for at, rank, offset, error in found["clocks"]
            ],
            settings=settings,
            costs=np.frombuffer(found["costs"], np.float32).astype(np.float64),
            map=np.frombuffer(shares, np.uint8).reshape(height, width),
            edges=np.frombuffer(found["edges"], np.int32).reshape(-1, 2),
            under_way=float(found["under_way"][0]),
            of=float(found["under_way"][1]),
            progress=Progress(float(began), int(first), float(at), int(done), int(of)),
            **tables,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"its snapshot makes no sense ({error}): expected what this lb_mpi writes") from None
    if not (stored.width_s > 0.0 and math.isfinite(stored.until) and np.isfinite(stored.seconds).all()):
        raise ValueError("its snapshot makes no sense (times): expected finite seconds")
    return stored
