"""Rounds of few tasks on unequal ranks, as those of optimizers and samplers.  python -m benchmarks.few

P to 16P tasks in each round, on P ranks in virtual time.  Nothing is known before the first round, and the tasks of each
round are new.  Their length is 50 ms at speed 1, equal (lognormal with a spread of 0.01), or lognormal with a spread of 0.5.
Time of all rounds from the sixth to the last, divided by that of the best list schedule of ranks whose speeds are known:

    equal       each task, in turn, goes to the rank that finishes it first
    lognormal   an idle rank begins the next task, unless the faster ranks need less time for all that are left than `most`
                times what an average task takes longer on it than on the fastest; the best `most` for all seeds together

    map         Pool.map
    executor    Executor.map
    stream      Pool.imap of a generator

"changed": the speeds go to other ranks, in random order, after half of the rounds; the next five are left out, too.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.measuring import command
from lb_mpi.cli.simulate.tasks import SimulatedPool, bound_s, counter_s
from lb_mpi.graph import Floats
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.pooling.scheduler import BATCH_S, Scheduler, Task, TaskQueue

TASK_S, SPREADS = 0.05, (0.01, 0.5)
MOST = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
SETTLED = 5  # rounds after which all is known
ROOM = 32  # of a stream: items read ahead, for each rank


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
    """Return the virtual seconds of each round as a map of a pool."""
    pool, found = SimulatedPool([len(rounds[0].speeds)], rounds[0].speeds, seed=seed), []
    for costs, speeds in rounds:
        pool.speeds = speeds
        found.append(pool.map(costs).seconds)
    return found


def scheduled_s(
    rounds: Sequence[Round], *, stream: bool = False, costs: bool = False, scheduler_class: type[Scheduler] = Scheduler
) -> list[float]:
    """Return the virtual seconds of each round of an executor, or as the streams of a pool; messages take no time.

    `costs`: they are known, and the tasks are sorted by them.
    """
    size = len(rounds[0].speeds)
    knowledge, now, found, numbers = RankKnowledge(size), 0.0, list[float](), itertools.count()
    scheduler = scheduler_class(size, 0, knowledge, blocks=stream)
    queue = TaskQueue([0] * size, range(size), 0, lambda _: True, more=stream)
    for tasks, speeds in rounds:
        if stream:
            scheduler = scheduler_class(size, 0, knowledge, blocks=True)
            queue = TaskQueue([0] * size, range(size), 0, lambda _: True, more=True)
        if queue not in scheduler.queues:
            scheduler.queues.append(queue)
        began, left, busy, mean_s = now, len(tasks), set[int](), tasks.mean()
        order = -np.sort(-tasks) if costs else tasks
        items = iter([Task(one, cost=one / mean_s if costs else 1.0) for one in order.tolist()])
        ends: list[tuple[float, int, int, int, float]] = []  # time, number, rank, tasks, seconds
        n_read = 0
        while left:
            if not stream:
                for task in items:
                    queue.add(task)
            elif 0 not in busy:  # the root is there to read
                while queue.more and (n := scheduler.wants(queue, ROOM * size - n_read + len(tasks) - left)):
                    more = [*itertools.islice(items, n)]
                    n_read += len(more)
                    for task in more:
                        queue.add(task)
                    if len(more) < n:
                        queue.end()
                    scheduler.batches(now)
            if not stream or 0 not in busy:
                scheduler.batches(now)
            for rank, at in scheduler.at.items():
                if at and rank not in busy:
                    took = [*itertools.accumulate(task.payload / speeds[rank] for task in at[0].tasks)]
                    n = next((n for n, s in enumerate(took, 1) if s > BATCH_S), len(took))
                    busy.add(rank)
                    heapq.heappush(ends, (now + took[n - 1], next(numbers), rank, n, took[n - 1]))
            wake_at = math.inf if stream and 0 in busy else scheduler.wake_at
            if ends and ends[0][0] <= wake_at:
                now, _, rank, n, took_s = heapq.heappop(ends)
                scheduler.finish(rank, n, took_s)
                busy.remove(rank)
                left -= n
            else:
                now = wake_at
                assert now < math.inf, "nothing happens any more"
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
    """Return the makespan if an idle rank begins no task near the end, see above."""
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


WAYS: dict[str, Callable[[Sequence[Round], int], list[float]]] = {
    "map": map_s,
    "executor": lambda rounds, _seed: scheduled_s(rounds),
    "stream": lambda rounds, _seed: scheduled_s(rounds, stream=True),
}


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
    speeds: Sequence[float], n: int, spread: float, ways: Sequence[str], *, n_rounds: int, seeds: int, changed: bool
) -> dict[str, float]:
    """Return time / that of the best list schedule, and / bound, of each way."""
    half = n_rounds // 2
    counted = [k for k in range(n_rounds) if k >= SETTLED and not (changed and half <= k < half + SETTLED)]
    all_rounds = [draw(speeds, n, spread, n_rounds, seed, changed=changed) for seed in range(seeds)]
    rounds = [some[k] for some in all_rounds for k in counted]
    if spread <= min(SPREADS):
        best = sum(list_s(*one) for one in rounds)
    else:
        fast_first = [Round(one.costs, -np.sort(-one.speeds)) for one in rounds]
        best = min(sum(stopping_s(*one, most) for one in fast_first) for most in MOST)
    found = {"counter": sum(counter_s(*one) for one in rounds) / best}
    for way in ways:
        seconds = [WAYS[way](some, seed) for seed, some in enumerate(all_rounds)]
        found[way] = sum(one[k] for one in seconds for k in counted) / best
    return {**found, "list / bound": best / sum(bound_s(*one) for one in rounds)}


def main() -> None:
    """Simulate, print."""
    parser = command("few", __doc__, rounds=(30, "of each machine"), seeds=(3, "of the tasks"))
    parser.add_argument("--changed", action="store_true", help="the speeds change after half of the rounds")
    options = parser.parse_args()
    answer = []
    for name, speeds in MACHINES.items():
        for factor, spread in itertools.product((1, 2, 4, 16), SPREADS):
            found = ratios(
                speeds, factor * len(speeds), spread, [*WAYS], n_rounds=options.rounds, seeds=options.seeds,
                changed=options.changed,
            )  # fmt: skip
            answer.append({"machine": name, "factor": factor, "spread": spread, **found})
            if not options.json:
                if len(answer) == 1:
                    print(f"{'':24} {'tasks':>6} {'spread':>7} " + " ".join(f"{one:>12}" for one in found))
                print(
                    f"{name:24} {factor:5}P {spread:7g} " + " ".join(f"{one:12.3f}" for one in found.values()), flush=True
                )
    if options.json:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
