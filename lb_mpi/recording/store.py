"""The file of one rank's record, as bytes.   (pure)

    header:    8 bytes of magic with the version, then a frame with what the rank is (`About`)
    snapshots: two slots of `slot_bytes` each, from byte HEADER_BYTES on; each holds a frame with the whole record

The slots are written in turn, so that a rank that dies in the middle of a write leaves the snapshot before it: the newest
one that is whole counts.  So a file never grows beyond HEADER_BYTES + 2 slot_bytes(size): 4 KiB + 2 (160 KiB + 128 bytes for
each rank).  Payloads are MessagePack; tables are arrays of the dtypes of `events`.  Nothing is unpickled.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.frames import frame, read_frame
from lb_mpi.recording.events import FLOW, MARK, MOVE, STEP, Clock
from lb_mpi.recording.known import StoredWork, unpack
from lb_mpi.recording.record import N_PHASES, Record, Table

MAGIC, VERSION = b"lb_rec", 3
HEADER_BYTES = 4096
SLOT_BYTES, RANK_BYTES = 160 << 10, 128
_START = struct.Struct("<6sH")  # magic, version
_TEXT_BYTES = 256  # characters of a text in the header
_TABLES = {"steps": STEP, "moves": MOVE, "flows": FLOW, "marks": MARK}


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
    """What the file of one rank holds."""

    about: About
    until: float  # seconds: what came later isn't known
    ended: bool  # by itself (False: killed, or still running)
    width_s: float  # of a bin
    seconds: NDArray[np.float64]  # (bins, phases), from `about.clock_s` on
    steps: Table  # of events.STEP
    moves: Table  # of events.MOVE
    flows: Table  # of events.FLOW
    marks: Table  # of events.MARK
    reasons: list[str]  # that steps name by index
    known: StoredWork
    clocks: list[Clock]

    @property
    def costs(self) -> NDArray[np.float64]:
        """Of rows of this rank, binned when there are many."""
        return self.known.costs


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
    line, moves = record.line, record.moves
    seconds = np.concatenate([line.bins[: line.n], [line.open]]).astype(np.float32)
    payload: bytes = msgpack.packb({
        "number": number, "until": now, "ended": ended, "width_s": line.width_s, "seconds": seconds.tobytes(),
        "steps": record.steps.all.tobytes(), "moves": moves.kept.all.tobytes(), "flows": moves.flows.tobytes(),
        "marks": record.marks.all.tobytes(), "reasons": record.reasons, "known": record.known.pack(),
        "clocks": [list(clock) for clock in record.clocks],
    })  # fmt: skip
    return frame(payload)


def place(number: int, size: int) -> int:
    """The byte at which snapshot `number` belongs, in a run of `size` ranks."""
    return HEADER_BYTES + number % 2 * slot_bytes(size)


def read(data: bytes | memoryview) -> Stored:
    """Read a file; ValueError, in words, for what is no record, of another version, or has no snapshot that is whole."""
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
        raise ValueError("no snapshot in it is whole: expected one at least")
    return _stored(about, best)


def _writable(text: str) -> str:
    """The begin of a text; what is no Unicode in it (arguments are any bytes) as backslashes and digits."""
    return text[:_TEXT_BYTES].encode("utf-8", "backslashreplace").decode("utf-8")


def _about(view: memoryview) -> About:
    start = bytes(view[: _START.size])
    if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
        raise ValueError(f"begins with {show(start)}: expected the record of a rank, {MAGIC!r}")
    if (version := _START.unpack(start)[1]) != VERSION:
        raise ValueError(f"is a record of version {version}: expected {VERSION}, that of this lb_mpi")
    payload, _ = read_frame(view, _START.size)
    found = None if payload is None else _unpacked(payload)
    about: About | None
    try:
        about = About(**(found or {}))
    except TypeError:
        about = None
    kinds = (int, int, str, int, float, float, str, str, bool)
    if about is None or not all(isinstance(value, kind) for value, kind in zip(about, kinds, strict=True)):
        raise ValueError("its header is torn or flipped: expected what rank it is of")
    if not 0 <= about.rank < about.size:
        raise ValueError(f"is of rank {about.rank} of {about.size}: expected 0 to {about.size - 1}")
    return about


def _unpacked(payload: bytes | memoryview) -> dict[str, Any] | None:
    try:
        found = msgpack.unpackb(payload)
    except Exception:  # a fitting CRC, but no MessagePack: anything may be wrong with it
        return None
    return found if isinstance(found, dict) else None


def _stored(about: About, found: dict[str, Any]) -> Stored:
    try:
        tables = {name: np.frombuffer(found[name], dtype) for name, dtype in _TABLES.items()}
        stored = Stored(
            about=about,
            until=float(found["until"]),
            ended=bool(found["ended"]),
            width_s=float(found["width_s"]),
            seconds=np.frombuffer(found["seconds"], np.float32).reshape(-1, N_PHASES).astype(np.float64),
            reasons=[str(words) for words in found["reasons"]],
            known=unpack(found["known"]),
            clocks=[
                Clock(float(at), int(rank), float(offset), float(error)) for at, rank, offset, error in found["clocks"]
            ],
            **tables,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its snapshot makes no sense ({error}): expected what this lb_mpi writes") from None
    if not (stored.width_s > 0.0 and math.isfinite(stored.until) and np.isfinite(stored.seconds).all()):
        raise ValueError("its snapshot makes no sense (times): expected finite seconds")
    return stored
