"""The plan of a map: its items, what they are expected to cost, and which rank owns which."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.mpi.pool.arguments import check_costs, sample_of
from lb_mpi.pooling.deal import Floats, Speeds, deal, shares
from lb_mpi.pooling.learning import LONG_S, Memory, are_equal, costs_at_speed_1, sums_by_rank


class ChunkRun(NamedTuple):
    """A chunk of a map, which has been run."""

    lo: int  # positions lo..hi-1
    hi: int
    seconds: float  # of its tasks together
    rank: int  # that has run it


@dataclass(frozen=True, eq=False)
class MapPlan:
    """Position k of a map is task order[k]; rank r owns the positions bounds[r]..bounds[r + 1] - 1."""

    items: Any  # a range, an array or a list
    function: Hashable  # of whose last map the costs are remembered
    costs: Floats | None  # (items,); None: unknown
    given: bool  # the costs, by the user
    order: Sequence[int]  # (tasks,)
    bounds: list[int]  # (ranks + 1,)
    sample: bytes = b""  # a digest of the items; b"": not needed so far

    @classmethod
    def of(
        cls, function: Hashable, items: Any, given: Any, done: Collection[int], speeds: Sequence[float], memory: Memory
    ) -> MapPlan:
        """Plan the tasks that are not `done`, by the `given` costs of all items, or else by those of the map before.

        ValueError for wrong costs.
        """
        n, costs, sample = len(items), check_costs(given, len(items)), b""
        if costs is None and memory.has(function, n):
            sample = sample_of(items)
            costs = memory.predict(function, sample, n)
        tasks: Sequence[int] = [task for task in range(n) if task not in done] if done else range(n)
        order, bounds = tasks, shares(len(tasks), speeds)
        if costs is not None:
            places = np.array(tasks, dtype=np.int64)
            order, bounds = (array.tolist() for array in deal(places, speeds, costs[places]))
        return cls(items, function, costs, given is not None, order, bounds, sample)

    def learn(self, runs: Sequence[ChunkRun], n: Floats, busy_s: Floats, speeds: Speeds, memory: Memory) -> None:
        """Learn the speeds of the ranks, and what the tasks cost: nothing of a part of the tasks, or of a single rank.

        n, busy_s : (ranks,) tasks of each rank, and its seconds in them.
        """
        lengths, total_s = [run.hi - run.lo for run in runs], sum([run.seconds for run in runs])
        complete, short = sum(lengths) == len(self.items), total_s <= LONG_S * len(self.items)
        if self.costs is None and (short or not complete):
            speeds.observe(n, None, busy_s)
            if complete:
                memory.forget(self.function)
            return
        by = np.array([run.rank for run in runs], dtype=np.int64)
        seconds = np.array([run.seconds for run in runs]) / lengths
        if complete and not self.given and are_equal(seconds * speeds.values[by], lengths):
            speeds.observe(n, n, busy_s)
            memory.forget(self.function)
            return
        by, seconds = np.repeat(by, lengths), np.repeat(seconds, lengths)
        done = np.array([task for run in runs for task in self.order[run.lo : run.hi]], dtype=np.int64)
        speeds.observe(n, None if self.costs is None else sums_by_rank(self.costs[done], by, len(n)), busy_s)
        if complete and not self.given and len(n) > 1 and (sample := self.sample or sample_of(self.items)):
            costs = np.empty(len(self.items))
            costs[done] = costs_at_speed_1(seconds, by, busy_s, speeds.values)
            memory.observe(self.function, sample, costs)
