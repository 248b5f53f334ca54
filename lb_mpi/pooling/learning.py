"""Learning while tasks run: when to leave the last tasks to faster ranks, and what tasks cost.   (pure)

Nothing is known of a task before it has run.  From the seconds of tasks two things follow:

- The end of a map.  A long task that a slow rank begins late is what all others wait for.  So a rank that is slower than
  most leaves the remaining tasks to the others, as soon as they need less time for all of them than it would lose by one
  long task (`wait_s`).  It waits for a limited time only, since the others may be stuck.
- Costs.  A map of the same items by the same function is dealt by the costs of the map before, largest first (`Memory`),
  unless these were nearly equal.  Then the tasks are dealt by their number, and tell speeds as tasks of known costs do.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.knowledge import Estimate, Timing
from lb_mpi.pooling.deal import Floats

# --- the end of a map -------------------------------------------------------------------------------------------------

TAIL = 5 / 6  # the longest task under way is 1 + TAIL * log2(ranks) * variation times as long as an average one
LONG_S = 1e-3  # shorter tasks cost nothing at the end


def wait_s(
    known: Estimate, rank: int, tasks: float, longest: float = 1.0, under_way: Mapping[int, float] | None = None
) -> float:
    """Return for how many seconds a rank leaves the `tasks` not yet begun to faster ones; 0: it begins one now.

    longest : expected length of the next task, in average ones.  under_way : by rank, what is left of the tasks that it has
    begun, in average ones; None: half a task.

    The others need tasks / (sum of the speeds) times an average task for all of them.  If this rank begins a long one
    instead, all wait for it: tail / speed.
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

    def forget(self, function: Hashable) -> None:
        """Forget a function, whose tasks are too short to matter."""
        self._kept.pop(function, None)

    def predict(self, function: Hashable, digest: Callable[[], bytes], n: int) -> Floats | None:
        """Return the expected costs of n items, whose `digest` may be needed; None: unknown."""
        last = self._kept.get(function)
        if last is None or len(last.costs) != n:
            return None
        same = digest() == last.items
        return last.costs if (same if last.alike is None else last.alike) else None

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
