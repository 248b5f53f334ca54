"""Learning while tasks run: speeds within a map, when to leave the last tasks to faster ranks, and costs.   (pure)

Nothing is known of a task before it has run.  Three things are learned from the seconds of each chunk of tasks:

- Speeds.  In a pool on one host, each rank publishes how many tasks it has run, and in which time, where the others read
  it.  The first map therefore steals by measured speeds, too.
- The end of a map.  A long task that a slow rank begins late is what all others wait for.  So a rank that is slower than
  most leaves the remaining tasks to the others, as soon as they need less time for all of them than it would lose by one
  long task (`MapTail.leaves`).  It waits for a limited time only, since the others may be stuck.
- Costs.  A map of the same items by the same function is dealt by the costs of the map before, largest first (`Memory`),
  unless these were nearly equal.  Then the tasks are dealt by their number, and tell speeds as tasks of known costs do.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lb_mpi.knowledge import Estimate, RankKnowledge, Timing
from lb_mpi.pooling.deal import Floats

# --- the end of a map -------------------------------------------------------------------------------------------------

TAIL = 5 / 6  # the longest task under way is 1 + TAIL * log2(ranks) * variation times as long as an average one
NEAR = 16  # a rank with more tasks of its own is not near the end
LONG_S = 1e-3  # shorter tasks cost nothing at the end


T_co = TypeVar("T_co", covariant=True)


class ByRank(Protocol[T_co]):
    """A container with one value per rank, such as a dict or a list."""

    def __getitem__(self, rank: int, /) -> T_co: ...


class Timings(Protocol):
    """A container of the timings of the ranks on a host, which all of them read, and each writes for itself."""

    def __getitem__(self, rank: int, /) -> Timing: ...
    def __setitem__(self, rank: int, timing: Timing, /) -> None: ...


class MapTail:
    """The end of a map for one rank: its estimate of the ranks on its host, and whether it leaves tasks to them.

    `host`: all ranks; none if there are several hosts, since what is left on one of them tells little of the others.
    """

    def __init__(self, rank: int, host: Sequence[int], timings: Timings, knowledge: RankKnowledge) -> None:
        self.rank, self._host, self._timings, self._knowledge = rank, host, timings, knowledge
        self._learns = False
        self._mine = Timing()
        self.until = 0.0  # it leaves tasks until then
        self._decided = False  # since its last chunk

    def begin(self, epoch: int, *, learns: bool) -> None:
        """Begin a map; not `learns`: the costs are known, so that long tasks come first."""
        self._learns = learns and len(self._host) > 1
        self._mine = Timing(epoch)
        self.until, self._decided = 0.0, False
        if self._learns:
            self._timings[self.rank] = self._mine

    def observe(self, n: int, seconds: float) -> None:
        """Publish a chunk of n tasks."""
        self.until, self._decided = 0.0, False
        if self._learns:
            self._mine = self._timings[self.rank] = self._mine.added(seconds, n)

    @property
    def has_run(self) -> bool:
        """True if this rank has run tasks of this map."""
        return self._mine.n > 0

    def estimate(self) -> Estimate | None:
        """Return what is known of the ranks on this host; None: nothing of how long the tasks are."""
        if not self._learns:
            return None
        timings = {rank: timing for rank in self._host if (timing := self._timings[rank]).epoch == self._mine.epoch}
        return self._knowledge.estimate(self._host, timings)

    def leaves(self, now: float, tasks: Callable[[], float]) -> bool:
        """Return whether this rank, which could begin one of the `tasks()` not begun on its host, leaves them to others.

        The others need tasks / (sum of the speeds) times an average task for all of them.  If this rank begins a long
        one instead, all wait for it: tail / speed, where a typical rank would need tail / typical.
        """
        if not self._decided:
            self.until, self._decided = now + self._wait_s(tasks), True
        return now < self.until

    def _wait_s(self, tasks: Callable[[], float]) -> float:
        if self._mine.seconds <= LONG_S * self._mine.n and self._mine.n:
            return 0.0
        known = self.estimate()
        if known is None or known.task_s < LONG_S * known.speeds[self.rank]:
            return 0.0
        return wait_s(known, self.rank, tasks())


def wait_s(
    known: Estimate, rank: int, tasks: float, longest: float = 1.0, under_way: Mapping[int, float] | None = None
) -> float:
    """Return for how many seconds a rank leaves the `tasks` not yet begun to faster ones; 0: it begins one now.

    longest : expected length of the next task, in average ones.  under_way : by rank, what is left of the tasks that it has
    begun, in average ones; None: half a task.  See `MapTail.leaves`.
    """
    speed = known.hopes[rank]
    faster = {one: its for one, its in known.speeds.items() if its > speed}
    if not faster:
        return 0.0
    tail = longest * (1.0 + TAIL * math.log2(len(known.speeds)) * known.variation)
    behind = sum([0.5 if under_way is None else under_way.get(one, 0.0) for one in faster])
    rest = (tasks + behind + 0.5 * tail * len(faster)) / sum(faster.values())
    return 2.0 * rest * known.task_s if rest < tail / speed else 0.0


# --- costs ------------------------------------------------------------------------------------------------------------

KEPT = 4  # functions
ALIKE = 0.7  # correlation of costs from which on one map predicts the next
LEAST_COST = 1e-9  # of a chunk, in the largest ones
EQUAL = 1.5  # tasks none of which costs more than so many average ones are dealt by their number


class Remembered(NamedTuple):
    """The costs in the last map of a function."""

    items: bytes  # a digest of the items
    costs: Floats  # (n,) seconds at speed 1
    alike: bool | None  # as those of the map before; None: it had other items, so that this tells nothing


class Memory:
    """Costs of tasks by function, from its last map.

    They predict the next map if it has the same items, or if the last one had as many items and was predicted well.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Remembered] = OrderedDict()  # by function

    def has(self, function: Hashable, n: int) -> bool:
        """Return whether the last map of a function had n items, whose costs are known."""
        return function in self._kept and len(self._kept[function].costs) == n

    def forget(self, function: Hashable) -> None:
        """Forget a function, whose tasks are too short to matter."""
        self._kept.pop(function, None)

    def predict(self, function: Hashable, items: bytes, n: int) -> Floats | None:
        """Return the expected costs of n items; None: unknown."""
        last = self._kept.get(function)
        if last is None or len(last.costs) != n:
            return None
        trusted = last.items == items if last.alike is None else last.alike
        return last.costs if trusted else None

    def observe(self, function: Hashable, items: bytes, costs: Floats) -> None:
        """Keep the costs of a map, unless its tasks are too short to matter."""
        last = self._kept.pop(function, None)
        if not costs.sum() > LONG_S * len(costs):
            return
        alike = None
        if last is not None and len(last.costs) == len(costs):
            alike = correlation(last.costs, costs) > ALIKE or (False if last.items == items else None)
        self._kept[function] = Remembered(items, costs, alike)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def are_equal(costs: Floats, n: Sequence[int]) -> bool:
    """Return whether tasks cost about the same: `n[k]` of them `costs[k]` each."""
    return bool(costs.max() * sum(n) <= EQUAL * (costs @ n))


def correlation(one: Floats, other: Floats) -> float:
    """Return the correlation coefficient of two arrays (n,); 0.0 if one of them is constant."""
    one, other = one - one.mean(), other - other.mean()
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale > 0.0 else 0.0


def _sums_by_rank(values: NDArray[np.floating[Any]], by: NDArray[np.integer[Any]], size: int) -> Floats:
    """Return (size,) the sums of the values of each rank; `by`: the rank of each value."""
    sums: Floats = np.bincount(by, values, size).astype(np.float64)  # with no values at all, numpy returns integers
    return sums


def timings_of(
    costs: NDArray[np.number[Any]], n: int, seconds: Floats, by: NDArray[np.integer[Any]], size: int
) -> dict[int, Timing]:
    """Return the timing of each rank; nothing if all costs are 0.

    Chunks of `n` tasks in all, of these costs, took `seconds` on the ranks `by`.
    """
    largest = costs.max(initial=0)
    if not largest > 0:
        return {}
    units = np.maximum(costs / largest, LEAST_COST)
    units = units * (n / units.sum())
    sums = (_sums_by_rank(values, by, size).tolist() for values in (units, seconds, seconds * seconds / units))
    return {rank: Timing(0, *one) for rank, one in enumerate(zip(*sums, strict=True)) if one[0] > 0.0}
