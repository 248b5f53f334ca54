"""Rounds of few tasks on unequal ranks, as those of optimizers and samplers, in virtual time.

Nothing is known before the first round, and the tasks of each round are new.  Their length is 50 ms at speed 1, equal
(lognormal with a spread of 0.01), or lognormal with a greater spread.
"""

import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lb_mpi.cli.simulate.tasks import SimulatedPool
from lb_mpi.graph import Floats
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.pooling.scheduler import BATCH_S, Scheduler, Task, TaskQueue

TASK_S, EQUAL = 0.05, 0.01
MOST = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
SETTLED = 5  # rounds after which all is known


def drawn(size: int) -> list[float]:
    """Return speeds between 0.1 and 1, log-uniform."""
    rng = np.random.default_rng(size)
    return [10.0 ** rng.uniform(-1.0, 0.0) for _ in range(size)]


MACHINES = {
    ".8 .4 .2 .2": [0.8, 0.4, 0.2, 0.2],
    "1 .1 .1 .1": [1.0, 0.1, 0.1, 0.1],
    "1 1 .5 .5 .25 .25 .1 .1": [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.1, 0.1],
    "4 equal": [1.0] * 4,
    "16 drawn": drawn(16),
    "64 drawn": drawn(64),
}


class Round(NamedTuple):
    """Tasks, and the speeds of the ranks meanwhile."""

    costs: Floats
    speeds: Floats


def map_s(rounds: Sequence[Round], seed: int) -> list[float]:
    """Seconds of each round as a map of a pool."""
    pool, found = SimulatedPool([len(rounds[0].speeds)], rounds[0].speeds, seed=seed), []
    for costs, speeds in rounds:
        pool.speeds = speeds
        found.append(pool.map(costs).seconds)
    return found


def scheduled_s(
    rounds: Sequence[Round], *, costs: bool = False, scheduler_class: type[Scheduler] = Scheduler
) -> list[float]:
    """Seconds of each round of an executor; messages take no time.  `costs`: known, and tasks are sorted by them."""
    size = len(rounds[0].speeds)
    now, found, numbers = 0.0, list[float](), itertools.count()
    scheduler, queue = scheduler_class(size, 0, RankKnowledge(size)), TaskQueue([0] * size, range(size), 0, lambda _: True)
    for tasks, speeds in rounds:
        if queue not in scheduler.queues:
            scheduler.queues.append(queue)
        began, left, busy, mean_s = now, len(tasks), set[int](), tasks.mean()
        for one in (-np.sort(-tasks) if costs else tasks).tolist():
            queue.add(Task(one, cost=one / mean_s if costs else 1.0))
        ends: list[tuple[float, int, int, int, float]] = []  # time, number, rank, tasks, seconds
        while left:
            scheduler.batches(now)
            for rank, at in scheduler.at.items():
                if at and rank not in busy:
                    took = [*itertools.accumulate(task.payload / speeds[rank] for task in at[0].tasks)]
                    n = next((n for n, s in enumerate(took, 1) if s > BATCH_S), len(took))
                    busy.add(rank)
                    heapq.heappush(ends, (now + took[n - 1], next(numbers), rank, n, took[n - 1]))
            if ends and ends[0][0] <= scheduler.wake_at:
                now, _, rank, n, took_s = heapq.heappop(ends)
                scheduler.finish(rank, n, took_s)
                busy.remove(rank)
                left -= n
            else:
                now = scheduler.wake_at
                assert now < np.inf, "nothing happens any more"
        scheduler.batches(now)
        found.append(now - began)
    return found


def list_s(costs: Floats, speeds: Floats) -> float:
    """Return the makespan if each task, in turn, goes to the rank that finishes it first."""
    free_at = np.zeros(len(speeds))
    for cost in costs.tolist():
        ends = free_at + cost / speeds
        rank = int(ends.argmin())
        free_at[rank] = ends[rank]
    return float(free_at.max())


def stopping_s(costs: Floats, speeds: Floats, most: float) -> float:
    """Return the makespan if an idle rank begins no task near the end.

    It begins one unless the faster ranks need less time for all that are left than `most` times what an average task takes
    longer on it.
    """
    leaves = most * costs.mean() * (1.0 / speeds - 1.0 / speeds.max())
    left_s = (len(costs) - np.arange(len(costs))) * costs.mean() / speeds.sum()
    free, end = [(0.0, rank) for rank in range(len(speeds))], 0.0
    for cost, left in zip(costs.tolist(), left_s.tolist(), strict=True):
        at, rank = heapq.heappop(free)
        while left < leaves[rank]:
            at, rank = heapq.heappop(free)
        end = max(end, at + cost / speeds[rank])
        heapq.heappush(free, (at + cost / speeds[rank], rank))
    return end


def draw(speeds: Sequence[float], n: int, spread: float, n_rounds: int, seed: int, *, changed: bool) -> list[Round]:
    """Return rounds of `n` tasks."""
    rng = np.random.default_rng(seed)
    before = rng.permutation(speeds) if changed else np.array(speeds)
    after = rng.permutation(speeds) if changed else before
    return [
        Round(TASK_S * rng.lognormal(-0.5 * spread**2, spread, n), before if k < n_rounds // 2 else after)
        for k in range(n_rounds)
    ]


def ratios(
    speeds: Sequence[float], n: int, spread: float, *, n_rounds: int, seeds: int, changed: bool
) -> tuple[float, float]:
    """Time of a map, and of an executor, / that of the best list schedule of ranks whose speeds are known.

    Equal tasks go, in turn, to the rank that finishes them first; otherwise slow ranks stop early, see `stopping_s`, by the
    best `most` for all seeds together.  `changed`: the speeds go to other ranks after half of the rounds.
    """
    half = n_rounds // 2
    counted = [k for k in range(n_rounds) if k >= SETTLED and not (changed and half <= k < half + SETTLED)]
    all_rounds = [draw(speeds, n, spread, n_rounds, seed, changed=changed) for seed in range(seeds)]
    rounds = [some[k] for some in all_rounds for k in counted]
    if spread <= EQUAL:
        best = sum(list_s(*one) for one in rounds)
    else:
        fast_first = [Round(one.costs, -np.sort(-one.speeds)) for one in rounds]
        best = min(sum(stopping_s(*one, most) for one in fast_first) for most in MOST)
    by_map, by_executor = (
        sum(seconds[k] for seconds in some for k in counted) / best
        for some in (
            [map_s(some, seed) for seed, some in enumerate(all_rounds)],
            [scheduled_s(some) for some in all_rounds],
        )
    )
    return by_map, by_executor
