"""The record of one rank, as large after a week as after a minute.   (pure)

    record.enter(phase, at)         # from now on the rank is in this phase, until it enters another one
    record.move(move)               # work has moved
    record.step(step)               # a call of a driver is over
    record.mark(mark)               # something was saved

Law.  Each second since the beginning lies in one phase.  Sums are exact whatever the resolution is: of phases, of work that
has moved, of steps.

The bound: time is divided into BINS bins at most.  When they are full, each two become one, and bins are twice as wide.
Steps beyond STEPS are added up by twos, then by fours.  Of moves beyond MOVES every second one is kept, then every fourth;
all of them are in the sums by rank.  Marks beyond MARKS are thinned out likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lb_mpi.record.events import FLOW, MARK, MOVE, STEP, Clock, Mark, Move, Phase, Step
from lb_mpi.record.known import Known, Unknown

BINS, FIRST_WIDTH_S = 1024, 50e-6
STEPS, MOVES, MARKS = 512, 1024, 128
REASONS, REASON_LETTERS = 32, 200
N_PHASES = len(Phase)

Table = NDArray[np.void]


def _nothing(_now: float) -> None:
    pass


class Record:
    """What a rank has done since `began`; `on_bin(now)` is called whenever a bin is full, for who writes the record."""

    def __init__(self, began: float, on_bin: Callable[[float], None] = _nothing) -> None:
        self.phase = Phase.OUTSIDE
        self.line = _Line(began)
        self.steps = _Steps()
        self.moves = _Moves()
        self.marks = _Kept(MARKS, MARK)
        self.reasons: list[str] = []
        self.known = Known(began)
        self.clocks: list[Clock] = []  # the first look, and the last
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
            self._fill(at)
            self._on_bin(at)
        self.phase = phase

    def seconds(self) -> list[float]:
        """Sum up the seconds in each phase so far."""
        return [float(total) for total in self.line.bins[: self.line.n].sum(axis=0) + np.array(self._open)]

    def step(self, step: Step) -> None:
        """A call of a driver is over."""
        self.steps.add(step)
        self.known.doing(0.0)

    def move(self, move: Move) -> None:
        """Work has moved to or from another rank, or somebody was asked for some."""
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
        """Keep how the clock goes."""
        self.clocks[1:] = [clock]

    def _fill(self, at: float) -> None:
        """Close all bins that end by `at`."""
        self.line.add(self.phase, self._since, at)
        self._open, self._since, self._until = self.line.open, at, self.line.until


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
        self.table: Table = np.zeros(STEPS, dtype=STEP)
        self.n = 0
        self.each = 1  # calls in an entry
        self._sum: Step | None = None  # of the entry that isn't full

    @property
    def all(self) -> Table:
        """All entries so far."""
        last = [] if self._sum is None else [self._sum]
        return np.concatenate([self.table[: self.n], np.array(last, dtype=STEP)])

    def add(self, step: Step) -> None:
        """One more."""
        self._sum = step if self._sum is None else merged(self._sum, step)
        if self._sum.n < self.each:
            return
        self.table[self.n] = self._sum
        self._sum = None
        self.n += 1
        if self.n == STEPS:
            entries = [Step(*entry) for entry in self.table.tolist()]
            both = [merged(one, other) for one, other in zip(entries[0::2], entries[1::2], strict=True)]
            self.table[: STEPS // 2] = np.array(both, dtype=STEP)
            self.n, self.each = STEPS // 2, 2 * self.each


class _Kept:
    """Entries one after the other, thinned out when there are too many."""

    def __init__(self, most: int, dtype: np.dtype[np.void]) -> None:
        self.table: Table = np.zeros(most, dtype=dtype)
        self.n = 0
        self.each = 1  # one of so many is kept
        self._seen = 0

    @property
    def all(self) -> Table:
        """All that are kept."""
        return self.table[: self.n]

    def add(self, entry: Mark | Move) -> None:
        """One more."""
        if self._seen % self.each == 0:
            self.table[self.n] = entry
            self.n += 1
            if self.n == (most := len(self.table)):
                self.table[: most // 2] = self.table[0::2].copy()
                self.n, self.each = most // 2, 2 * self.each
        self._seen += 1


class _Moves:
    """Moves one after the other, some of them; and the sums of all by rank."""

    def __init__(self) -> None:
        self.kept = _Kept(MOVES, MOVE)
        self._sums: dict[tuple[int, int], list[float]] = {}  # by way and other: n, amount, bytes

    @property
    def flows(self) -> Table:
        """The sums."""
        return np.array([(*pair, *sums) for pair, sums in sorted(self._sums.items())], dtype=FLOW)

    def add(self, move: Move) -> None:
        """One more."""
        sums = self._sums.setdefault((move.way, move.other), [0.0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += move.amount
        sums[2] += move.bytes
        self.kept.add(move)


def merged(one: Step, other: Step) -> Step:
    """Add up calls in a row; the imbalance and the speed are means, the reason is that of the last change, if any."""
    n = one.n + other.n
    kept = one if one.acted and not other.acted else other
    sums: dict[str, Any] = {
        name: getattr(one, name) + getattr(other, name) for name in ("useful_s", "units", "moved", "acted")
    }
    means: dict[str, Any] = {name: _mean(one, other, name) for name in ("before", "after", "speed")}
    return one._replace(ended=other.ended, reason=kept.reason, n=n, **sums, **means)


def _mean(one: Step, other: Step, name: str) -> float:
    a, b = getattr(one, name), getattr(other, name)
    if math.isnan(a) or math.isnan(b):
        return float(b if math.isnan(a) else a)
    return float((a * one.n + b * other.n) / (one.n + other.n))


class Off(Record):
    """The record of a run that isn't recorded."""

    def __init__(self, began: float) -> None:
        super().__init__(began)
        self.known = Unknown(began)

    def enter(self, phase: Phase, at: float) -> None:
        """Do nothing."""

    def step(self, step: Step) -> None:
        """Do nothing."""

    def move(self, move: Move) -> None:
        """Do nothing."""

    def mark(self, mark: Mark) -> None:
        """Do nothing."""

    def clock(self, clock: Clock) -> None:
        """Do nothing."""


OFF = Off(0.0)
