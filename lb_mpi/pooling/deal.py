"""The tasks that each rank owns at the start of a map: by speed, and largest first if costs are known.   (pure)

At the start of a map each rank owns a number of tasks proportional to its speed, in their order.  With costs: LPT, longest
processing time first (Graham 1969), on unequal machines: each large task, from the largest on, goes to the rank that would
finish it first; small ones fill the ranks up.  A rank's own tasks are adjacent in the order of a map, largest first, so that
thieves take small ones from the back.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.metrics import usual_arithmetic

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


@usual_arithmetic
def deal(tasks: NDArray[np.int64], speeds: Sequence[float], costs: NDArray[np.float64] | None = None) -> Deal:
    """Deal task numbers to ranks of these speeds; `costs` (of the tasks, in their order) are optional."""
    if costs is None:
        return Deal(tasks, np.array(shares(len(tasks), speeds)))
    speed, free_at = np.asarray(speeds, dtype=np.float64), np.zeros(len(speeds))
    owner = np.zeros(len(tasks), dtype=np.int64)
    by_cost = np.argsort(-costs, kind="stable")
    for k in by_cost[: LARGE * len(speeds)].tolist():
        ends = free_at + costs[k] / speed
        owner[k] = rank = int(ends.argmin())
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
