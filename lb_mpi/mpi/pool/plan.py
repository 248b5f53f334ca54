"""The plan of a map: its items, what they are expected to cost, and which rank owns which."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lb_mpi.mpi.pool.arguments import check_costs, sample_of
from lb_mpi.pooling.deal import Floats, Speeds, deal
from lb_mpi.pooling.learning import Memory, costs_at_speed_1, sums_by_rank


@dataclass(frozen=True, eq=False)
class MapPlan:
    """Position k of a map is task order[k]; rank r owns the positions bounds[r]..bounds[r + 1] - 1."""

    items: Any  # a range, an array or a list
    sample: bytes  # of the items, by which their costs are remembered; b"": they are not
    costs: Floats | None  # (items,); None: unknown
    order: NDArray[np.int64]  # (tasks,)
    bounds: NDArray[np.int64]  # (ranks + 1,)

    @classmethod
    def of(
        cls, function: Hashable, items: Any, given: Any, done: Collection[int], speeds: Sequence[float], memory: Memory
    ) -> MapPlan:
        """Plan the tasks that are not `done`, by the `given` costs of all items, or else by those of the map before.

        ValueError for wrong costs.
        """
        n, sample = len(items), b""
        costs = check_costs(given, n)
        if costs is None and len(speeds) > 1:
            sample = sample_of(items)
            costs = memory.predict(function, sample, n)
        tasks = np.arange(n, dtype=np.int64)
        if done:
            tasks = np.array([task for task in range(n) if task not in done], dtype=np.int64)
        return cls(items, sample, costs, *deal(tasks, speeds, None if costs is None else costs[tasks]))

    def learn(
        self, function: Hashable, seconds: NDArray[np.float32], by: NDArray[np.int32], n: Floats, busy_s: Floats,
        speeds: Speeds, memory: Memory,
    ) -> None:  # fmt: skip
        """Learn the speeds of the ranks, and what the tasks cost: nothing of a part of the tasks, or of a single rank.

        seconds, by : of each position, seconds and the rank that has run it; -1: none.
        n, busy_s : (ranks,) tasks of each rank, and its seconds in them.
        """
        done, costs_done = by >= 0, None
        if self.costs is not None:
            costs_done = sums_by_rank(self.costs[self.order][done], by[done], len(n))
        speeds.observe(n, costs_done, busy_s)
        if self.sample and done.all() and len(self.order) == len(self.items):
            costs = np.empty(len(self.items))
            costs[self.order] = costs_at_speed_1(seconds, by, busy_s, speeds.values)
            memory.observe(function, self.sample, costs)
