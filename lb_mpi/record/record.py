"""The record of one rank, as large after a week as after a minute.   (pure)

    record.enter(phase, at)         # from now on the rank is in this phase, until it enters another one
    record.move(move)               # work has moved
    record.step(step)               # a call of a driver is over
    record.mark(mark)               # something was saved

Beside that it holds what `advise` needs to replay a run, and what a page shows of its domain:

    record.settings                 # how each driver was called
    record.costs                    # of the rows of this rank, in units of work; of many, means of neighbours
    record.tasks                    # seconds of the tasks of the last map that ran here
    record.map                      # which places of the domain this rank computed
    record.edges                    # of the process graph, on the rank that knows it
    record.under_way, record.of     # units that are done in the call that has not ended, and units dealt to this rank
    record.progress                 # of the program's own steps

Law.  Each second since the beginning lies in one phase.  Sums are exact whatever the resolution is: of phases, of work that
has moved, of steps, of tasks.

The bound: time is divided into BINS bins at most.  When they are full, each two become one, and bins are twice as wide.
Steps beyond STEPS are added up by twos, then by fours; of tasks beyond TASKS, neighbours become one.  Of moves beyond MOVES
every second one is kept, then every fourth; all of them are in the sums by rank.  Marks beyond MARKS are thinned out
likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lb_mpi.record.events import FLOW, MARK, MOVE, STEP, TASK, Clock, Mark, Move, Phase, Progress, Step, merged

BINS, FIRST_WIDTH_S = 1024, 50e-6
STEPS, MOVES, MARKS, TASKS = 512, 1024, 128, 1024
COSTS, COSTS_EVERY_S = 256, 1.0
MAP, EDGES = 128, 512  # most rows and columns of a map; most edges of a process graph
REASONS, REASON_LETTERS = 32, 200
N_PHASES = len(Phase)

Rows = NDArray[np.void]  # of one of the dtypes of `events`


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class Record:
    """What a rank has done since `began`; `on_bin(now)` is called whenever a bin is full, to write the record."""

    def __init__(self, began: float, on_bin: Callable[[float], None] = _nothing) -> None:
        self.phase = Phase.OUTSIDE
        self.line = _Line(began)
        self.steps = _Steps()
        self.moves = _Kept(MOVES, MOVE)
        self.marks = _Kept(MARKS, MARK)
        self.reasons: list[str] = []
        self.clocks: list[Clock] = []  # the first look, and the last
        self.settings: dict[str, dict[str, Any]] = {}
        self.costs: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self.map: NDArray[np.uint8] = np.zeros((0, 0), dtype=np.uint8)  # in 255ths
        self.edges: NDArray[np.int32] = np.zeros((0, 2), dtype=np.int32)
        self.under_way = self.of = 0.0
        self.progress = Progress()
        self._flows: dict[tuple[int, int], list[float]] = {}  # by way and other: n, amount, bytes
        self._tasks: list[tuple[int, int, float]] = []
        self._costs_at = began
        self._on_bin = on_bin
        self._open = self.line.open
        self._since, self._until = began, self.line.until

    def enter(self, phase: Phase, at: float) -> None:
        """The rank is in `phase` from `at` on; times that go back count as the latest one."""
        if at < self._until:
            if at > self._since:
                self._open[self.phase] += at - self._since
                self._since = at
        else:
            self.line.add(self.phase, self._since, at)
            self._open, self._since, self._until = self.line.open, at, self.line.until
            self._on_bin(at)
        self.phase = phase

    def seconds(self) -> list[float]:
        """Sum up the seconds in each phase so far."""
        return [float(total) for total in self.line.bins[: self.line.n].sum(axis=0) + np.array(self._open)]

    def step(self, step: Step) -> None:
        """A call of a driver is over."""
        self.steps.add(step)
        self.doing(0.0)

    def move(self, move: Move) -> None:
        """Work has moved to or from another rank, or was asked for."""
        sums = self._flows.setdefault((move.way, move.other), [0.0, 0.0, 0.0])
        for k, more in enumerate((1.0, move.amount, move.bytes)):
            sums[k] += more
        self.moves.add(move)

    def mark(self, mark: Mark) -> None:
        """Something was saved."""
        self.marks.add(mark)

    def reason(self, words: str) -> int:
        """Return the index of a reason, for a Step; -1 when there are too many."""
        words = words[:REASON_LETTERS]
        if words not in self.reasons:
            if len(self.reasons) == REASONS:
                return -1
            self.reasons.append(words)
        return self.reasons.index(words)

    def clock(self, clock: Clock) -> None:
        """Keep how this rank's clock stands to another's."""
        self.clocks[1:] = [clock]

    def use(self, driver: str, settings: Mapping[str, Any]) -> None:
        """A driver is called with `settings`: plain numbers, words, and lists of them."""
        self.settings[driver] = dict(settings)

    def know(self, at: float, costs: Callable[[], NDArray[np.float64]]) -> None:
        """Keep what the rows of this rank cost, asked for once a second."""
        if at < self._costs_at:
            return
        self._costs_at = at + COSTS_EVERY_S
        given = costs()
        if len(given) > COSTS:
            edges = np.linspace(0, len(given), COSTS + 1).astype(np.int64)
            given = np.add.reduceat(given, edges[:-1]) / np.diff(edges)
        self.costs = given.astype(np.float32)

    def begin_tasks(self) -> None:
        """A map begins: the tasks of the one before are forgotten."""
        self._tasks.clear()

    def task(self, first: int, n: int, seconds: float) -> None:
        """The `n` tasks from position `first` on took `seconds` together, in the rank's own time."""
        self._tasks.append((first, n, seconds))
        if len(self._tasks) == TASKS:
            self._tasks.sort()
            pairs = zip(self._tasks[0::2], self._tasks[1::2], strict=True)
            self._tasks[:] = [(one[0], one[1] + other[1], one[2] + other[2]) for one, other in pairs]

    def doing(self, units: float, of: float = 0.0) -> None:
        """In the call under way this rank has done `units` of the `of` that were dealt to it; 0: not known."""
        self.under_way, self.of = units, of

    def stepped(self, at: float, done: int, of: int) -> None:
        """The program has done `done` of its own `of` steps."""
        began, first = (at, done) if not self.progress.of else (self.progress.began, self.progress.first)
        self.progress = Progress(began, first, at, done, of)

    def draw(self, shares: NDArray[np.float64]) -> None:
        """Keep the part of each place of the domain, (h, w) from 0 to 1, that this rank computed; see `record.maps`."""
        self.map = np.rint(255.0 * np.clip(shares, 0.0, 1.0)).astype(np.uint8)[:MAP, :MAP]

    def graph(self, tails: ArrayLike, heads: ArrayLike) -> None:
        """Keep the edges of the process graph, (E,) ranks of COMM_WORLD; not those of a large one."""
        edges = np.stack([np.asarray(tails), np.asarray(heads)], axis=1)
        if len(edges) <= EDGES:
            self.edges = edges.astype(np.int32)

    @property
    def flows(self) -> Rows:
        """Sums of all moves by way and rank."""
        return np.array([(*pair, *sums) for pair, sums in sorted(self._flows.items())], dtype=FLOW)

    @property
    def tasks(self) -> Rows:
        """Tasks of the last map, by position."""
        return np.array(sorted(self._tasks), dtype=TASK)


class Off(Record):
    """The record of a run that isn't recorded."""

    enter = step = move = mark = clock = use = know = _nothing
    begin_tasks = task = doing = stepped = draw = graph = _nothing



class _Line:
    """Seconds by bin and phase."""

    def __init__(self, began: float) -> None:
        self.began, self.width_s = began, FIRST_WIDTH_S
        self.bins: NDArray[np.float64] = np.zeros((BINS, N_PHASES))
        self.n = 0  # bins that are full
        self.open = [0.0] * N_PHASES  # of the bin that is not
        self.until = began + FIRST_WIDTH_S

    def add(self, phase: int, since: float, at: float) -> None:
        """The rank was in `phase` from `since`, which is in the open bin, until `at`."""
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
    """Calls one after the other, each two of them added up when there are too many."""

    def __init__(self) -> None:
        self.n = 0
        self.each = 1  # calls in an entry
        self._table: Rows = np.zeros(STEPS, dtype=STEP)
        self._sum: Step | None = None  # of the entry that isn't full

    @property
    def all(self) -> Rows:
        """All entries so far."""
        last = [] if self._sum is None else [self._sum]
        return np.concatenate([self._table[: self.n], np.array(last, dtype=STEP)])

    def add(self, step: Step) -> None:
        """One more."""
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
    """Add up entries until each has `each` calls, but for the last."""
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


class _Kept:
    """Entries one after the other, thinned out when there are too many."""

    def __init__(self, most: int, dtype: np.dtype[np.void]) -> None:
        self.n = 0
        self.each = 1  # every how many-th is kept
        self._table: Rows = np.zeros(most, dtype=dtype)
        self._seen = 0

    @property
    def all(self) -> Rows:
        """All that are kept."""
        return self._table[: self.n]

    def add(self, entry: Mark | Move) -> None:
        """One more."""
        if self._seen % self.each == 0:
            self._table[self.n] = entry
            self.n += 1
            if self.n == (most := len(self._table)):
                self._table[: most // 2] = self._table[0::2].copy()
                self.n, self.each = most // 2, 2 * self.each
        self._seen += 1


OFF = Off(0.0)
