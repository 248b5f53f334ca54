"""Learning while tasks run: speeds within a map, when to leave the last tasks to faster ranks, and costs.   (pure)

Nothing is known of a task before it has run.  Three things are learned from the seconds of each chunk of tasks:

- Speeds.  In a pool on one host, each rank publishes how many tasks it has run, and in which time, where the others read
  it.  The first map therefore steals by measured speeds, too.
- The end of a map.  A long task that a slow rank begins late is what all others wait for.  So a rank that is slower than
  most leaves the remaining tasks to the others, as soon as they need less time for all of them than it would lose by one
  long task (`Ending.leaves`).  It waits for a limited time only, since the others may be stuck.
- Costs.  A map of the same items by the same function is dealt by the costs of the map before, largest first (`Memory`),
  unless these were nearly equal.  Then the tasks are dealt by their number, and tell speeds as tasks of known costs do.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lb_mpi.pooling.deal import Floats

# --- the end of a map -------------------------------------------------------------------------------------------------

PRIOR, NOISE = 4.0, 8.0  # tasks assumed to have run before; as many more for each unit of variation
TAIL = 5 / 6  # the longest task under way is 1 + TAIL * log2(ranks) * variation times as long as an average one
NEAR = 16  # a rank with more tasks of its own is not near the end
LONG_S = 1e-3  # shorter tasks cost nothing at the end
LEAST_S, SLOWEST = 1e-9, 1e-9  # seconds of work, and a speed, below which nothing is estimated


class Timing(NamedTuple):
    """The tasks that a rank has run in a map."""

    epoch: int = -1  # of the map
    n: float = 0
    seconds: float = 0.0
    squares: float = 0.0  # sum of the squares of the seconds of each

    def added(self, seconds: float, n: float = 1) -> Timing:
        """Return the timing with another task, or with `n` equal ones that took `seconds` together."""
        return Timing(self.epoch, self.n + n, self.seconds + seconds, self.squares + seconds * seconds / n)


T_co = TypeVar("T_co", covariant=True)


class ByRank(Protocol[T_co]):
    """A container with one value per rank, such as a dict or a list."""

    def __getitem__(self, rank: int, /) -> T_co: ...


class Timings(Protocol):
    """A container of the timings of the ranks on a host, which all of them read, and each writes for itself."""

    def __getitem__(self, rank: int, /) -> Timing: ...
    def __setitem__(self, rank: int, timing: Timing, /) -> None: ...


class Estimate(NamedTuple):
    """The speeds and the tasks of a host, in the middle of a map."""

    speeds: dict[int, float]
    typical: float  # speed at which an average piece of work is done
    task_s: float  # of an average task at speed 1
    variation: float  # of tasks at speed 1: variance / mean**2


def estimate(timings: dict[int, Timing], believed: ByRank[float]) -> Estimate | None:
    """Estimate speeds and tasks from what ran so far, and speeds `believed` before; None: too few tasks to tell.

    Each rank is assumed to have run some tasks before at the speed believed: more of them if tasks differ much, since long
    ones may have met a rank by chance.
    """
    n, work_s, squares = _at_speed_1(timings, believed)
    if n < len(timings) or not work_s > LEAST_S:
        return None
    task_s, prior = work_s / n, PRIOR + NOISE * max(0.0, n * squares / work_s**2 - 1.0)
    speeds = {
        rank: max(SLOWEST, (timing.n + prior) * task_s / (timing.seconds + prior * task_s / believed[rank]))
        for rank, timing in timings.items()
    }
    typical = sum([speed * speed for speed in speeds.values()]) / sum(speeds.values())
    _, work_s, squares = _at_speed_1(timings, speeds)
    return Estimate(speeds, typical, work_s / n, max(0.0, n * squares / work_s**2 - 1.0))


def _at_speed_1(timings: dict[int, Timing], speeds: ByRank[float]) -> tuple[float, float, float]:
    """Return the number of tasks, their seconds at speed 1, and the sum of the squares of these."""
    n = seconds = squares = 0.0
    for rank, timing in timings.items():  # one loop, not three sums: a rank estimates after each chunk
        speed = speeds[rank]
        n += timing.n
        seconds += timing.seconds * speed
        squares += timing.squares * speed * speed
    return n, max(LEAST_S, seconds), squares


class Ending:
    """The end of a map for one rank: its estimate of the ranks on its host, and whether it leaves tasks to them.

    `host`: all ranks; none if there are several hosts, since what is left on one of them tells little of the others.
    """

    def __init__(self, rank: int, host: Sequence[int], timings: Timings, believed: ByRank[float]) -> None:
        self.rank, self._host, self._timings, self._believed = rank, host, timings, believed
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

    def estimate(self) -> Estimate | None:
        """Return what is known of the ranks on this host; None: nothing beyond what was believed before."""
        if not self._learns:
            return None
        timings = {rank: timing for rank in self._host if (timing := self._timings[rank]).epoch == self._mine.epoch}
        return estimate(timings, self._believed)

    def leaves(self, now: float, tasks: Callable[[], float]) -> bool:
        """Return whether this rank, which could begin one of the `tasks()` not begun on its host, leaves them to others.

        The others need tasks / (sum of the speeds) times an average task for all of them.  If this rank begins a long
        one instead, all wait for it: tail / speed, where a typical rank would need tail / typical.
        """
        if not self._decided:
            self.until, self._decided = now + self._wait_s(tasks), True
        return now < self.until

    def _wait_s(self, tasks: Callable[[], float]) -> float:
        if not self._mine.seconds > LONG_S * self._mine.n or (known := self.estimate()) is None:
            return 0.0
        return wait_s(known, self.rank, tasks())


def wait_s(known: Estimate, rank: int, tasks: float, longest: float = 1.0) -> float:
    """Return for how many seconds a rank leaves the `tasks` not yet begun to the others; 0: it begins one now.

    `longest`: expected length of the next task, in average ones.  See `Ending.leaves`.
    """
    speed = known.speeds[rank]
    tail = longest * (1.0 + TAIL * math.log2(len(known.speeds)) * known.variation)
    rest = tasks / sum(known.speeds.values())
    if rest >= tail * (1.0 / speed - 1.0 / known.typical):
        return 0.0
    return (2.0 * rest + tail / known.typical) * known.task_s


# --- costs ------------------------------------------------------------------------------------------------------------

KEPT = 4  # functions
ALIKE = 0.7  # correlation of costs from which on one map predicts the next
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


def sums_by_rank(values: NDArray[np.floating[Any]], by: NDArray[np.integer[Any]], size: int) -> Floats:
    """Return (size,) the sums of the values of each rank; `by`: the rank of each value."""
    sums: Floats = np.bincount(by, values, size).astype(np.float64)  # with no values at all, numpy returns integers
    return sums


def costs_at_speed_1(
    seconds: NDArray[np.floating[Any]], by: NDArray[np.integer[Any]], busy_s: Floats, speeds: Floats
) -> Floats:
    """Return the costs (n,) at speed 1 of tasks that took `seconds` on the ranks `by`; 0 s: not run, of average cost.

    busy_s, speeds : (P,) seconds of each rank in its tasks, including what its tasks do not see, and its speed.
    """
    sums = sums_by_rank(seconds, by, len(busy_s))
    factors = speeds * busy_s / np.where(sums > 0.0, sums, 1.0)
    costs: Floats = seconds * factors[by]
    ran = seconds > 0.0
    return np.where(ran, costs, costs[ran].mean() if ran.any() else 0.0)
