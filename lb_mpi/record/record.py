"""The record of one rank, with a size independent of the duration of the run.   (pure)

    record.enter(phase, at)         # the rank is in this phase until it enters another one
    record.move(way, other, amount) # work has moved to or from another rank
    record.step(step)               # a call of a driver is over

It also contains the data that `report` needs to replay a run, and that show its progress:

    record.settings                 # the options of each driver
    record.costs                    # of the rows of this rank, in units of work; of many, means of neighbours
    record.tasks                    # seconds of the tasks of the last map that ran here
    record.under_way, record.of     # units done in the current call, and units dealt to this rank
    record.progress                 # of the program's own steps

Law.  Each second since the beginning belongs to one phase.  Sums are exact at any resolution: of phases, moved work, steps
and tasks.

The size bound: time is divided into at most BINS bins.  When they are full, pairs of bins are merged, and bins become twice
as wide.  Steps beyond STEPS are added up by twos, then by fours; beyond TASKS, neighbouring tasks are merged.  Moved work is
added up by rank.

Its file:

    header:    8 bytes of magic with the version, then a frame with facts about the rank (`About`)
    snapshots: two slots of `slot_bytes` each, from byte HEADER_BYTES on; each holds a frame with the whole record

The slots are written in turn, and the start of a frame last, over zeros.  So a rank that dies during a write leaves zeros
there, and the previous snapshot counts; a slot with another start and a wrong checksum is damaged, and no snapshot counts.
A file never grows beyond HEADER_BYTES + 2 slot_bytes(size): 4 KiB + 2 (128 KiB + 128 bytes per rank).  Payloads
are MessagePack; tables are arrays of the dtypes of `events`.  Nothing is unpickled.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.files import FRAME_BYTES, frame, read_frame
from lb_mpi.record.events import FLOW, STEP, TASK, Clock, Driver, Phase, Progress, Step, Way, merged

BINS, FIRST_WIDTH_S = 1024, 50e-6
STEPS, TASKS = 512, 1024
COSTS, COSTS_EVERY_S = 256, 1.0
REASONS, REASON_LETTERS = 32, 200
N_PHASES = len(Phase)

Rows = NDArray[np.void]  # of one of the dtypes of `events`


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class Record:
    """The record of a rank since `began`; `on_bin(now)` is called whenever a bin is full, to write it to disk."""

    def __init__(self, began: float, on_bin: Callable[[float], None] = _nothing) -> None:
        self.phase = Phase.OUTSIDE
        self.line = _Line(began)
        self.steps = _Steps()
        self.reasons: list[str] = []
        self.clocks: list[Clock] = []  # the first comparison, and the last
        self.settings: dict[str, dict[str, Any]] = {}
        self.costs: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self.under_way = self.of = 0.0
        self.best, self.open = math.nan, 0.0  # of a branch and bound
        self.progress = Progress()
        self._flows: dict[tuple[Way, int], float] = {}  # amount by way and other
        self._tasks: list[tuple[int, int, float]] = []
        self._costs_at = began
        self._on_bin = on_bin
        self._lock, self._held = threading.RLock(), False
        self._since = began

    def enter(self, phase: Phase, at: float) -> None:
        """Enter `phase` at the time `at`; earlier times count as the latest one."""
        with self._lock:
            if not self._held:
                self._enter(phase, at)

    def pin(self, phase: Phase, at: float) -> None:
        """Enter a phase that lasts until `release`, whatever other threads of the rank enter meanwhile."""
        with self._lock:
            self._enter(phase, at)
            self._held = True

    def release(self, phase: Phase, at: float) -> None:
        """Enter a phase after `pin`."""
        with self._lock:
            self._enter(phase, at)
            self._held = False

    def _enter(self, phase: Phase, at: float) -> None:
        if at < self.line.until:
            if at > self._since:
                self.line.open[self.phase] += at - self._since
                self._since = at
        else:
            self.line.add(self.phase, self._since, at)
            self._since = at
            self._on_bin(at)
        self.phase = phase

    def seconds(self) -> list[float]:
        """Sum up the seconds in each phase so far."""
        return [float(total) for total in self.line.bins[: self.line.n].sum(axis=0) + np.array(self.line.open)]

    def step(self, step: Step) -> None:
        """Add a finished call of a driver."""
        self.steps.add(step)
        self.doing(0.0)

    def move(self, way: Way, other: int, amount: float) -> None:
        """Add work that moved to or from the rank `other`: parts, rows or tasks."""
        self._flows[way, other] = self._flows.get((way, other), 0.0) + amount

    def reason(self, words: str) -> int:
        """Return the index of a reason's text, for a Step; -1 if there are too many."""
        words = words[:REASON_LETTERS]
        if words not in self.reasons:
            if len(self.reasons) == REASONS:
                return -1
            self.reasons.append(words)
        return self.reasons.index(words)

    def clock(self, clock: Clock) -> None:
        """Add a comparison of this rank's clock with another's."""
        self.clocks[1:] = [clock]

    def use(self, driver: str, settings: Mapping[str, Any]) -> None:
        """Record the settings of a driver: plain numbers, strings, lists and dictionaries of them."""
        self.settings[driver] = dict(settings)

    def know(self, at: float, costs: Callable[[], NDArray[np.float64]]) -> None:
        """Record the costs of this rank's rows, computed by `costs` at most once a second."""
        if at < self._costs_at:
            return
        self._costs_at = at + COSTS_EVERY_S
        given = costs()
        if len(given) > COSTS:
            edges = np.linspace(0, len(given), COSTS + 1).astype(np.int64)
            given = np.add.reduceat(given, edges[:-1]) / np.diff(edges)
        self.costs = given.astype(np.float32)

    def begin_tasks(self) -> None:
        """Begin a map: forget the tasks of the previous one."""
        self._tasks.clear()

    def task(self, first: int, n: int, seconds: float) -> None:
        """Record that the `n` tasks from position `first` on took `seconds` together, in the rank's own time."""
        self._tasks.append((first, n, seconds))
        if len(self._tasks) == TASKS:
            self._tasks.sort()
            pairs = zip(self._tasks[0::2], self._tasks[1::2], strict=True)
            self._tasks[:] = [(one[0], one[1] + other[1], one[2] + other[2]) for one, other in pairs]

    def doing(self, units: float, of: float = 0.0) -> None:
        """Record that in the current call this rank has done `units` of the `of` dealt to it (0: unknown)."""
        self.under_way, self.of = units, of

    def bounded(self, best: float, open_work: float) -> None:
        """Record the best value of a branch and bound that this rank knows, and its load."""
        self.best, self.open = best, open_work

    def stepped(self, at: float, done: int, of: int) -> None:
        """Record that the program has done `done` of its own `of` steps."""
        began, first = (at, done) if not self.progress.of else (self.progress.began, self.progress.first)
        self.progress = Progress(began, first, at, done, of)

    @property
    def flows(self) -> Rows:
        """Return the sums of all moves by way and rank."""
        return np.array([(*pair, amount) for pair, amount in sorted(self._flows.items())], dtype=FLOW)

    @property
    def tasks(self) -> Rows:
        """Return the tasks of the last map, by position."""
        return np.array(sorted(self._tasks), dtype=TASK)


class Off(Record):
    """The record of a run without recording: it stores nothing."""

    def __init__(self) -> None:
        self.phase = Phase.OUTSIDE

    def reason(self, _words: str) -> int:
        """Return -1: no reasons are kept."""
        return -1

    enter = pin = release = step = move = clock = use = know = _nothing
    begin_tasks = task = doing = bounded = stepped = _nothing


class _Line:
    """The seconds by bin and phase."""

    def __init__(self, began: float) -> None:
        self.began, self.width_s = began, FIRST_WIDTH_S
        self.bins: NDArray[np.float64] = np.zeros((BINS, N_PHASES))
        self.n = 0  # number of full bins
        self.open = [0.0] * N_PHASES  # seconds in the current bin
        self.until = began + FIRST_WIDTH_S

    def add(self, phase: int, since: float, at: float) -> None:
        """Add the time in `phase` from `since`, in the current bin, until `at`."""
        while at >= self.until:
            self.open[phase] += self.until - since
            since = self.until
            self.bins[self.n] = self.open
            self.open[:] = [0.0] * N_PHASES
            self.n += 1
            if self.n == BINS:
                self.bins[: BINS // 2] = self.bins[0::2] + self.bins[1::2]
                self.bins[BINS // 2 :] = 0.0
                self.n, self.width_s = BINS // 2, 2.0 * self.width_s
            self.until = self.began + (self.n + 1) * self.width_s
        self.open[phase] += at - since


class _Steps:
    """Consecutive calls, merged in pairs when there are too many."""

    def __init__(self) -> None:
        self.n = 0
        self.each = 1  # calls in an entry
        self._table: Rows = np.zeros(STEPS, dtype=STEP)
        self._sum: Step | None = None  # of the incomplete entry

    @property
    def all(self) -> Rows:
        """Return all entries so far."""
        last = [] if self._sum is None else [self._sum]
        return np.concatenate([self._table[: self.n], np.array(last, dtype=STEP)])

    def add(self, step: Step) -> None:
        """Add a call."""
        self._sum = step if self._sum is None else merged(self._sum, step)
        if self._sum.n < self.each:
            return
        self._table[self.n] = self._sum
        self._sum = None
        self.n += 1
        if self.n == STEPS:
            self.n, self.each = STEPS // 2, 2 * self.each
            self._table[: self.n] = coarser(self._table, self.each)


def coarser(table: Rows, each: int) -> Rows:
    """Merge entries until each has `each` calls, except the last."""
    if (table["n"][:-1] >= each).all():
        return table
    made: list[Step] = []
    for entry in table.tolist():
        step = Step(*entry)
        if made and made[-1].n < each:
            made[-1] = merged(made[-1], step)
        else:
            made.append(step)
    return np.array(made, dtype=STEP)


OFF = Off()


# --- store ------------------------------------------------------------------------------------------------------------


MAGIC, VERSION = b"lb_rec", 7
HEADER_BYTES = 4096
MOST_RANKS, MOST = 2**20, 1e15  # of a run; of seconds, units of work, bytes
MAYBE_UNKNOWN = ("before", "after", "home_s")  # fields of a Step that may be NaN
SLOT_BYTES, RANK_BYTES = 128 << 10, 128
_START = struct.Struct("<6sH")  # magic, version
_TEXT_BYTES = 256  # characters of a text in the header
_TABLES = {"steps": STEP, "flows": FLOW, "tasks": TASK}


class About(NamedTuple):
    """Facts about a rank."""

    rank: int  # of COMM_WORLD
    size: int  # ranks of COMM_WORLD
    host: str
    process: int  # process number on the host
    clock_s: float  # `perf_counter` at the start of the record
    wall_s: float  # seconds since 1970 at the same time
    versions: str  # of Python, mpi4py, the MPI library and lb_mpi
    program: str  # its command line
    virtual: bool = False  # simulated: times are by a virtual clock
    process_s: float = 0.0  # seconds since 1970 at the start of the process; 0: unknown


class Stored(NamedTuple):
    """The content of one rank's file; see `Record`."""

    about: About
    until: float  # last recorded second
    ended: bool  # by itself (False: killed, or still running)
    width_s: float  # of a bin
    seconds: NDArray[np.float64]  # (bins, phases), from `about.clock_s` on
    steps: Rows  # of events.STEP
    flows: Rows  # of events.FLOW
    tasks: Rows  # of events.TASK, by position
    reasons: list[str]  # texts, by the index in steps
    clocks: list[Clock]
    settings: dict[str, dict[str, Any]]  # options of each driver
    costs: NDArray[np.float64]
    under_way: float  # units done in the current call
    of: float  # units dealt to this rank in it; 0: unknown
    progress: Progress  # of the program's own steps
    best: float  # value of a branch and bound; NaN: there is none
    open: float  # this rank's load in it


def slot_bytes(size: int) -> int:
    """Return the bytes of a slot in a run of `size` ranks."""
    return SLOT_BYTES + RANK_BYTES * size


def header(about: About) -> bytes:
    """Return the start of a file: HEADER_BYTES bytes."""
    texts = {name: _writable(value) for name, value in about._asdict().items() if isinstance(value, str)}
    packed: bytes = msgpack.packb({**about._asdict(), **texts})
    return (_START.pack(MAGIC, VERSION) + frame(packed)).ljust(HEADER_BYTES, b"\0")


def snapshot(record: Record, now: float, number: int, *, ended: bool = False) -> bytes:
    """Return the record at `now` as a frame; snapshot `number` belongs in slot number % 2."""
    record.enter(record.phase, now)
    line = record.line
    seconds = np.concatenate([line.bins[: line.n], [line.open]]).astype(np.float32)
    payload: bytes = msgpack.packb({
        "number": number, "until": now, "ended": ended, "width_s": line.width_s, "seconds": seconds.tobytes(),
        "steps": record.steps.all.tobytes(), "flows": record.flows.tobytes(),
        "tasks": record.tasks.tobytes(), "reasons": record.reasons,
        "clocks": [list(clock) for clock in record.clocks], "settings": record.settings, "costs": record.costs.tobytes(),
        "under_way": [record.under_way, record.of], "bounded": [record.best, record.open], "progress": list(record.progress),
    })  # fmt: skip
    return frame(payload)


def snapshot_offset(number: int, size: int) -> int:
    """Return the byte offset of snapshot `number` in a run of `size` ranks."""
    return HEADER_BYTES + number % 2 * slot_bytes(size)


def file_name(rank: int) -> str:
    """Return the name of a rank's file in its folder."""
    return f"rank{rank:06d}.lbrec"


def virtual_files(
    records: Sequence[Record], now: float, hosts: Sequence[str], program: str
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each virtual rank's file; `hosts` (ranks,), and `program` in words."""
    size = len(records)
    for rank, record in enumerate(records):
        about = About(rank, size, hosts[rank], rank, 0.0, 0.0, "simulated", program, virtual=True)
        data = header(about).ljust(snapshot_offset(0, size), b"\0") + snapshot(record, now, 0, ended=True)
        yield file_name(rank), data


def read(data: bytes | memoryview) -> Stored:
    """Read a file; ValueError, in words, for other files, other versions, or files without a complete snapshot."""
    view = memoryview(data)
    about = _about(view)
    best: dict[str, Any] | None = None
    for number in range(2):
        at = snapshot_offset(number, about.size)
        payload, _ = read_frame(view, at) if at < len(view) else (None, at)
        found = None if payload is None else _unpacked(payload)
        if found is None and any(view[at : at + FRAME_BYTES]):
            raise ValueError("a snapshot is damaged: expected the checksum that the rank has written")
        if found is not None and (best is None or found["number"] > best["number"]):
            best = found
    if best is None:
        raise ValueError("contains no complete snapshot: expected at least one")
    return _stored(about, best)


def _writable(text: str) -> str:
    """Return the start of a text; arguments can be any bytes, so invalid Unicode is written with backslashes."""
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
    kinds = (int, int, str, int, float, float, str, str, bool, float)
    if about is None or not all(type(value) is kind for value, kind in zip(about, kinds, strict=True)):
        raise ValueError("header truncated or corrupt: expected a description of the rank")
    if not _plausible(about.clock_s, about.wall_s, about.process_s):
        raise ValueError(f"times {about.clock_s}, {about.wall_s}: expected finite seconds")
    if not 0 <= about.rank < about.size <= MOST_RANKS:
        raise ValueError(f"rank {about.rank} of {about.size}: expected 0 to {min(about.size, MOST_RANKS) - 1}")
    return about


def _plausible(*numbers: Any) -> bool:
    """Tell whether all numbers, also those in arrays, are finite and no larger than a run can make them."""
    return all(np.all(np.abs(one) < MOST) for one in numbers)


def _unpacked(payload: bytes | memoryview) -> dict[str, Any] | None:
    try:
        found = msgpack.unpackb(payload)
    except Exception:  # a matching CRC, but no MessagePack: its content can be anything
        return None
    return found if isinstance(found, dict) else None


def _stored(about: About, found: Mapping[str, Any]) -> Stored:
    try:
        tables = {name: np.frombuffer(found[name], dtype) for name, dtype in _TABLES.items()}
        began, first, at, done, of = found["progress"]
        best, open_work = found.get("bounded", (math.nan, 0.0))  # as records of earlier versions lack it
        settings = found["settings"]
        if not isinstance(settings, dict) or not all(isinstance(one, dict) for one in settings.values()):
            raise ValueError("settings")
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
            under_way=float(found["under_way"][0]),
            of=float(found["under_way"][1]),
            progress=Progress(float(began), int(first), float(at), int(done), int(of)),
            best=float(best),
            open=float(open_work),
            **tables,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"invalid snapshot ({error}): expected what this lb_mpi writes") from None
    of_steps = (stored.steps[name] for name in STEP.names or () if name not in MAYBE_UNKNOWN)
    others = stored.flows["amount"], stored.tasks["seconds"], stored.costs, stored.under_way, stored.of
    clocks = [number for clock in stored.clocks for number in clock]
    numbers = stored.until, stored.width_s, stored.seconds, *of_steps, *others, *clocks, *stored.progress
    if not (stored.width_s > 0.0 and math.isfinite(stored.open) and _plausible(*numbers)):
        raise ValueError("invalid snapshot (numbers): expected finite seconds and amounts")
    if (stored.steps["driver"] >= len(Driver)).any():
        raise ValueError(f"invalid snapshot (driver): expected 0 to {len(Driver) - 1}")
    return stored
