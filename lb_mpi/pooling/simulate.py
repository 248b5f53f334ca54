"""A pool on a virtual clock: the very objects that run on MPI, with as many ranks and hosts as you like.   (pure)

Maps follow each other as on MPI: the root deals, hears of results in batches, and tells all when the map is over, while some
of them are still about to steal.  One seed gives one run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import choice, integer, number, virtual_s
from lb_mpi.checks import seed as check_seed
from lb_mpi.metrics import check_speeds
from lb_mpi.pooling.collect import RankTasks
from lb_mpi.pooling.deal import Floats, Speeds, deal
from lb_mpi.pooling.worker import Worker
from lb_mpi.pooling.world import Costs, Tasks, World
from lb_mpi.record.record import Record
from lb_mpi.virtual import Network

NETWORK = Network((2e-6, 2e-6), (50e-6, 50e-6))  # within a host, and between two
MOST_RANKS = 10_000  # of which each looks at all words of its host
MOST_SPREAD = 10.0  # standard deviation of a logarithm: beyond, all but a few of the drawn costs are 0
TASKS = ("constant", "lognormal")  # kinds of costs


class MapRun(NamedTuple):
    """What one map did; seconds are virtual."""

    seconds: float  # until the root has all results, or has heard that a task has raised
    bound_s: float  # all work / sum of the speeds, and not less than the largest task on the fastest rank
    dealt_s: float  # if each rank ran what it was dealt, and nothing was stolen
    counter_s: float  # if each rank took the next task from a counter, at no cost
    tasks: list[int]  # by rank, done
    busy_s: list[float]  # by rank, in tasks
    steals: int
    messages: int
    raised: bool

    @property
    def ratio(self) -> float:
        """Time / bound."""
        return self.seconds / self.bound_s if self.bound_s else 1.0


class Pool:
    """A pool from map to map: hosts[k]: how many ranks there are on host k; `speeds` (ranks,), of work per second.

    The pool measures speeds, or is told them (`speeds_known`).
    """

    def __init__(
        self,
        hosts: Sequence[int],
        speeds: Sequence[float] | Floats | None = None,
        *,
        speeds_known: bool = False,
        network: Network = NETWORK,
        expenses: Costs | None = None,
        first_epoch: int = 1,
        seed: int = 0,
        worker_class: type[Worker] = Worker,
        world_class: type[World] = World,
        records: Sequence[Record] | None = None,
    ) -> None:
        counts = [integer("hosts", n_ranks, 1, unit="ranks of a host") for n_ranks in hosts]
        size = integer("hosts", sum(counts), 1, unit="ranks in all")
        true = check_speeds([1.0] * size if speeds is None else speeds, size)
        ends = np.cumsum(counts).tolist()
        ranks = [range(end - n, end) for end, n in zip(ends, counts, strict=True)]
        self.world = world_class(
            ranks, true, network.checked(), (expenses or Costs()).checked(),
            seed=check_seed(seed), worker_class=worker_class, records=records,
        )  # fmt: skip
        self.learned = Speeds(size, true.tolist() if speeds_known else None)
        self.epoch = first_epoch

    def map(
        self,
        costs: NDArray[np.float64],
        *,
        costs_known: bool = False,
        raising: Collection[int] = (),
        on_step: Callable[[World], None] | None = None,
    ) -> MapRun:
        """Map tasks of these costs (seconds on a rank of speed 1), of which those in `raising` raise an error.

        `on_step` is called after each event.  ProtocolError when the map never ends.
        """
        world, speeds = self.world, self.learned.values.copy()
        order, bounds = deal(np.arange(len(costs)), speeds.tolist(), costs if costs_known else None)
        dealt = costs[order]
        sums = np.concatenate([[0.0], np.cumsum(dealt)])
        wrong = frozenset(np.flatnonzero(np.isin(order, list(raising))).tolist())
        how = {"costs": costs_known, "chunksize": 0, "speeds": speeds.tolist()}
        world.members[0].steals.record.use("pool", how)
        began, n_messages = world.now, sum(world.sent)
        world.open(self.epoch, bounds.tolist(), Tasks(sums, wrong), speeds)
        self.epoch += 1
        while not world.over:
            world.step()
            if on_step is not None:
                on_step(world)
        seconds = world.now - began
        for rank, (member, speed) in enumerate(zip(world.members, world.speeds.tolist(), strict=True)):
            tasks_s = world.tasks_s[rank]
            done = RankTasks(world.n_tasks[rank], tasks_s, tasks_s * speed, member.worker.steals)
            member.steals.end(world.now, done, speed)
        world.close()
        n, busy_s = np.array(world.n_tasks, dtype=np.float64), np.array(world.tasks_s)
        work = busy_s * world.speeds if costs_known else None
        if not world.raised:
            self.learned.observe(n, work, busy_s)
        return MapRun(
            seconds,
            bound_s(costs, world.speeds),
            float((np.diff(sums[bounds]) / world.speeds).max()),
            counter_s(-np.sort(-costs) if costs_known else costs, world.speeds),
            n.astype(int).tolist(),
            busy_s.tolist(),
            sum(member.worker.steals for member in world.members),
            sum(world.sent) - n_messages,
            world.raised,
        )


def bound_s(costs: Floats, speeds: Floats) -> float:
    """All work / sum of the speeds, and not less than the largest task on the fastest rank."""
    return max(float(costs.sum() / speeds.sum()), float(costs.max(initial=0.0) / speeds.max()))


def counter_s(costs: Floats, speeds: Floats) -> float:
    """Seconds until all is done if each rank takes the next task when it is through with one (list scheduling)."""
    free = [(0.0, rank) for rank in range(len(speeds))]
    for cost in costs.tolist():
        at, rank = free[0]
        heapq.heapreplace(free, (at + cost / float(speeds[rank]), rank))
    return max(at for at, _ in free) if len(costs) else 0.0


def task_costs(kind: str, n: int, mean_s: float, *, spread: float = 1.0, seed: int = 0) -> Floats:
    """(n,) costs of tasks with the mean `mean_s`: "constant", or "lognormal": heavy-tailed.

    `spread` is the standard deviation of their logarithms.  ValueError for other words.
    """
    choice("tasks", kind, TASKS)
    n, mean_s = integer("n", n, 0), virtual_s("task_s", mean_s)
    width = number("spread", spread, least=0.0, most=MOST_SPREAD)
    if kind == "constant":
        return np.full(n, mean_s)
    return mean_s * np.random.default_rng(check_seed(seed)).lognormal(-0.5 * width**2, width, n)
