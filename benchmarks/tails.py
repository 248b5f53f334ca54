"""Compare maps of tasks of unknown cost with the lower bound.  python -m benchmarks.tails

The tasks of `benchmarks.scale`: 40 heavy-tailed tasks per rank, 64 ranks of speeds 1, 0.5, 0.25, 0.25; virtual time, over
seeds.  Time / bound of

    counter           each rank that is idle begins the next task, at no cost
    stopping          the same, but a rank stops when all the remaining tasks need less time than `most` times what an
                      average task takes longer on it than on the fastest rank; true speeds and the true mean are given,
                      and `most` is the best for all seeds together
    hindsight         the same, but with the best `most` of each seed, known after the map: no such rule does better
    largest first     costs and speeds are known before (LPT)
    pool, first map   ours: nothing is known
    pool, other items a later map: speeds are known from a map of other items
    pool, same items  the map after it, of the same items: their costs are known

A scheduler that knows no costs, and cannot move a task that has begun, can only decide when a slow rank stops taking tasks.
So "stopping" and "hindsight" show what a map of unknown costs can reach, and "largest first" one of known costs.
"""

from __future__ import annotations

import heapq
import json

import numpy as np

from benchmarks.measuring import command
from benchmarks.scale import SPREAD, TASK_S, TASKS, rank_speeds
from lb_mpi.graph import Floats
from lb_mpi.pooling.deal import deal
from lb_mpi.pooling.simulate import SimulatedPool, bound_s, counter_s, task_costs

MOST = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


def stopping_s(costs: Floats, speeds: Floats, most: float) -> float:
    """Return the makespan if a rank begins no task near the end, see above."""
    leaves = most * costs.mean() * (1.0 / speeds - 1.0 / speeds.max())
    left_s = (len(costs) - np.arange(len(costs))) * costs.mean() / speeds.sum()
    free = [(0.0, rank) for rank in range(len(speeds))]
    end = 0.0
    for cost, left in zip(costs.tolist(), left_s.tolist(), strict=True):
        at, rank = heapq.heappop(free)
        while left < leaves[rank]:
            at, rank = heapq.heappop(free)
        end = max(end, at + cost / speeds[rank])
        heapq.heappush(free, (at + cost / speeds[rank], rank))
    return end


def largest_first_s(costs: Floats, speeds: Floats) -> float:
    """Return the makespan of LPT on ranks of known speeds."""
    order, bounds = deal(np.arange(len(costs)), speeds.tolist(), costs)
    sums = np.concatenate([[0.0], np.cumsum(costs[order])])
    return float((np.diff(sums[bounds]) / speeds).max())


def ratios(seed: int, ranks: int) -> dict[str, Floats]:
    """Return time / bound of each row; of "stopping", one for each of `MOST`."""
    speeds = rank_speeds(ranks)
    first, second = (
        task_costs("lognormal", TASKS * ranks, TASK_S, spread=SPREAD, seed=2 * seed + k) for k in range(2)
    )
    bound = bound_s(second, speeds)
    pool = SimulatedPool([ranks], speeds, seed=seed)
    pool.map(first)
    return {
        "counter": np.array(counter_s(second, speeds) / bound),
        "stopping": np.array([stopping_s(second, speeds, most) for most in MOST]) / bound,
        "largest first": np.array(largest_first_s(second, speeds) / bound),
        "pool, first map": np.array(SimulatedPool([ranks], speeds, seed=seed).map(second).ratio),
        "pool, other items": np.array(pool.map(second, items=b"second").ratio),
        "pool, same items": np.array(pool.map(second, items=b"second").ratio),
    }


def main() -> None:
    """Simulate, print."""
    parser = command("tails", __doc__)
    parser.add_argument("--ranks", type=int, default=64, help="%(default)s")
    parser.add_argument("--seeds", type=int, default=40, help="%(default)s")
    options = parser.parse_args()
    found = [ratios(seed, options.ranks) for seed in range(options.seeds)]
    rows = {name: np.array([one[name] for one in found]) for name in found[0]}
    stopping = rows.pop("stopping")
    best = int(stopping.mean(axis=0).argmin())
    rows = {"counter": rows.pop("counter"), f"stopping, most = {MOST[best]:g}": stopping[:, best],
            "hindsight": stopping.min(axis=1), **rows}  # fmt: skip
    figures = {
        name: {"mean": values.mean(), "median": np.median(values), "low": values.min(), "high": values.max()}
        for name, values in rows.items()
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"time / bound, {options.ranks} ranks, {options.seeds} seeds")
    print(f"{'':24} {'mean':>8} {'median':>8} {'low':>8} {'high':>8}")
    for name, each in figures.items():
        print(f"{name:24} " + " ".join(f"{value:8.3f}" for value in each.values()))


if __name__ == "__main__":
    main()
