"""The tasks of each rank, and the size of its chunks: by speed, and largest first if costs are known.   (pure)

At the start of a map each rank owns a number of tasks proportional to its speed, in their order.  With costs: LPT, longest
processing time first (Graham 1969), on unequal machines: each large task, from the largest on, goes to the rank that would
finish it first; small ones fill the ranks up.  A rank's own tasks are adjacent in the order of a map, largest first, so that
thieves take small ones from the back.

A rank begins a chunk of tasks between two looks at its messages.  A chunk is a part of what the rank owns (guided
self-scheduling, Polychronopoulos and Kuck 1987): long ones cost less, but what has begun can't be stolen.  It should last
for at least `SHORTEST_S`, which is long compared with the cost of taking it, and at most `LONGEST_S`, since a rank answers
no messages meanwhile.  Wall-clock time counts, since a task may also sleep, or wait for a file or a GPU.  But a lost time
slice can make a chunk look a hundred times longer, so the time of a task is believed to be at most twice as long as before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGE = 32  # the largest tasks, so many per rank, are dealt one by one; the others fill up the ranks


class Deal(NamedTuple):
    """Position k of a map is task order[k]; rank r owns the positions bounds[r]..bounds[r + 1] - 1."""

    order: NDArray[np.int64]  # shape (tasks,)
    bounds: NDArray[np.int64]  # shape (ranks + 1,)


def shares(n: int, speeds: Sequence[float]) -> list[int]:
    """Return the bounds (ranks + 1,) of n tasks of unknown costs, of which the last one should end soonest.

    Plain Python, since a map of a few must be cheap.
    """
    a_task = n / math.fsum(speeds)
    counts = [int(a_task * speed * (1.0 - 1e-9)) for speed in speeds]
    ends = [((count + 1) / speed, rank) for rank, (count, speed) in enumerate(zip(counts, speeds, strict=True))]
    heapq.heapify(ends)
    for _ in range(n - sum(counts)):
        _, rank = ends[0]
        counts[rank] += 1
        heapq.heapreplace(ends, ((counts[rank] + 1) / speeds[rank], rank))
    return [0, *accumulate(counts)]


def deal(tasks: NDArray[np.int64], speeds: Sequence[float], costs: NDArray[np.float64] | None = None) -> Deal:
    """Deal task numbers to ranks of these speeds; `costs` (of the tasks, in their order) are optional."""
    if costs is None:
        return Deal(tasks, np.array(shares(len(tasks), speeds)))
    speed, free_at = np.asarray(speeds, dtype=np.float64), np.zeros(len(speeds))
    owner = np.zeros(len(tasks), dtype=np.int64)
    by_cost = np.argsort(-costs, kind="stable")
    for place in by_cost[: LARGE * len(speeds)].tolist():
        ends = free_at + costs[place] / speed
        owner[place] = rank = int(ends.argmin())
        free_at[rank] = ends[rank]
    if len(small := np.sort(by_cost[LARGE * len(speeds) :])):
        owner[small] = _filled(costs[small], free_at, speed)
    order = np.lexsort((-costs, owner))
    return Deal(tasks[order], np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(speeds)))]))


def _filled(costs: Floats, free_at: Floats, speed: Floats) -> NDArray[np.int64]:
    """Return the ranks that get tasks of these costs, in their order, so that all ranks end at about the same time."""
    costs = costs + 1e-6 * (costs.max() or 1.0)  # many tasks that cost nothing are shared, too
    ends = np.cumsum(costs)
    end_s = (ends[-1] + free_at @ speed) / speed.sum()
    room = np.cumsum(np.maximum(1e-9 * end_s, end_s - free_at) * speed)
    return np.minimum(np.searchsorted(room * (ends[-1] / room[-1]), ends - costs / 2), len(speed) - 1)


SHORTEST_S, LONGEST_S = 1e-3, 8e-3  # of a chunk
PART = 3  # of the tasks that a rank owns, it begins one in so many together


class Pace:
    """The length of the next chunk, from the time of the last one; always `fixed` if that is not 0."""

    def __init__(self, fixed: int = 0) -> None:
        self._fixed = fixed
        self._task_s = math.inf  # of a task
        self._most = 1  # twice as many as the longest chunk had

    def n(self, owned: int) -> int:
        """Return how many of the tasks that a rank owns are its next chunk."""
        if self._fixed:
            return min(self._fixed, owned)
        fitting = min(max(SHORTEST_S / self._task_s, owned // PART), LONGEST_S / self._task_s)
        return min(max(1, int(fitting)), self._most, owned)

    def observe(self, n: int, seconds: float) -> None:
        """Observe a chunk of n tasks."""
        self._task_s = max(1e-9, min(seconds / n, 2 * self._task_s))
        self._most = max(self._most, 2 * n)


def share(n: int, mine: float, theirs: float) -> int:
    """Return how many of a victim's n tasks not begun a thief takes: both should finish at about the same time.

    The victim is assumed to be in the middle of a task.  `mine` and `theirs` are the speeds of thief and victim.  A slow
    thief leaves the last task to a fast victim.
    """
    even = (n + 0.5) * mine / (mine + theirs)
    fewer, more = math.floor(even), min(n, math.ceil(even))

    def end(taken: int) -> float:
        return max(taken / mine, (n - taken + 0.5) / theirs)

    return more if end(more) <= end(fewer) else fewer
