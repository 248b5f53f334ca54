"""The plan of a map: what its tasks are expected to cost, and which rank owns which.   (pure)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from lb_mpi.knowledge import RankKnowledge
from lb_mpi.metrics import usual_arithmetic
from lb_mpi.pooling.deal import Floats, deal, shares
from lb_mpi.pooling.learning import LONG_S, Memory, are_equal, timings_of


class ChunkRun(NamedTuple):
    """A chunk of a map, which has been run."""

    lo: int  # positions lo..hi-1
    hi: int
    seconds: float  # of its tasks together, the rank's own
    rank: int  # that has run it


@dataclass(frozen=True, eq=False)
class MapPlan:
    """Position k of a map is task order[k]; rank r owns the positions bounds[r]..bounds[r + 1] - 1."""

    n: int  # items
    function: Hashable  # of whose last map the costs are remembered
    costs: Floats | None  # (n,); None: unknown
    given: bool  # the costs, by the user
    order: Sequence[int]  # (tasks,)
    bounds: list[int]  # (ranks + 1,)
    digest: Callable[[], bytes]  # of the items

    @classmethod
    def of(
        cls, function: Hashable, n: int, given: Floats | None, done: Collection[int], knowledge: RankKnowledge,
        memory: Memory, digest: Callable[[], bytes],
    ) -> MapPlan:  # fmt: skip
        """Plan those of `n` tasks that are not `done`, by the `given` costs of all items, or by those of the map before.

        digest : called where the costs of the map before may be those of the same items.
        """
        digest = cache(digest)
        costs = memory.predict(function, digest, n) if given is None else given
        tasks: Sequence[int] = [task for task in range(n) if task not in done] if done else range(n)
        knowledge.begin(function, with_costs=costs is not None)
        order, bounds = tasks, shares(len(tasks), knowledge.hopes)
        if costs is not None:
            numbers = np.array(tasks, dtype=np.int64)
            order, bounds = (array.tolist() for array in deal(numbers, knowledge.speeds, costs[numbers]))
        return cls(n, function, costs, given is not None, order, bounds, digest)

    def learn(self, runs: Sequence[ChunkRun], knowledge: RankKnowledge, memory: Memory) -> None:
        """Learn the speeds of the ranks, and what the tasks cost: nothing of a part of the tasks, or of a single rank."""
        if not runs:
            return
        lengths, size = np.array([run.hi - run.lo for run in runs]), len(self.bounds) - 1
        seconds, by = np.array([run.seconds for run in runs]), np.array([run.rank for run in runs], dtype=np.int64)
        n = int(lengths.sum())
        complete, short = n == self.n, seconds.sum() <= LONG_S * self.n
        if self.costs is None:
            knowledge.observe(self.function, timings_of(lengths, n, seconds, by, size))
            if short or not complete:
                if complete:
                    memory.forget(self.function)
                return
        done = np.array([task for run in runs for task in self.order[run.lo : run.hi]], dtype=np.int64)
        if self.costs is not None:
            costs = np.add.reduceat(self.costs[done], np.cumsum(lengths) - lengths)
            timings = usual_arithmetic(timings_of)(costs, n, seconds, by, size)
            knowledge.observe(self.function, timings, with_costs=True)
        if not complete or self.given:
            return
        found = seconds / lengths * np.array(knowledge.speeds)[by]
        if are_equal(found, lengths.tolist()):
            memory.forget(self.function)
        elif size > 1 and (sample := self.digest()):
            costs = np.empty(self.n)
            costs[done] = np.repeat(found, lengths)
            memory.observe(self.function, sample, costs)
