"""The ranks' part of `benchmarks.pool`; run by it, under mpiexec.  Each case prints one JSON object on rank 0."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

import lb_mpi
from benchmarks.pool import costs, nap, nothing, spin, timed
from lb_mpi.checks import comma_list
from lb_mpi.mpi.common.collective import barrier

COMM = MPI.COMM_WORLD
PLAIN: dict[str, Callable[[float], Any]] = {"spin": spin, "nap": nap}
MAPS = 200  # of a few tasks each
Answer = dict[str, Any]

# --- who competes: each runs function(item) for all items and has the results on rank 0 -------------------------------
#
# A contestant is called on all ranks of its communicator as run(comm, function, items, ranking), is warmed with the
# first items, and returns the seconds of the rest on rank 0, None elsewhere.  `ranking` are the items' numbers, the
# largest first, for who can use them.

Function = Callable[[Any], Any]
WARM = 2  # items


def pool(comm: MPI.Intracomm, function: Function, items: Sequence[Any], _: Sequence[int]) -> float | None:
    """lb_mpi.Pool, of which only the root goes on: the function has to travel, as with the others."""
    with lb_mpi.Pool(comm, root=0) as pool:
        if pool is None:
            return None
        pool.map(function, items[:WARM])
        return timed(lambda: pool.map(function, items))


def executor(kind: Callable[..., Any], chunksize: int) -> Callable[..., float | None]:
    """lb_mpi.Executor, or mpi4py's MPICommExecutor, of which rank 0 only manages."""

    def run(comm: MPI.Intracomm, function: Function, items: Sequence[Any], _: Sequence[int]) -> float | None:
        executor: Any
        with kind(comm) as executor:
            return None if executor is None else timed_map(executor, function, items, chunksize)

    return run


def timed_map(executor: Any, function: Function, items: Sequence[Any], chunksize: int) -> float:
    """Seconds of an executor's map."""
    list(executor.map(function, items[:WARM], chunksize=1))
    return timed(lambda: list(executor.map(function, items, chunksize=chunksize)))


def submitted(comm: MPI.Intracomm, function: Function, items: Sequence[Any], _: Sequence[int]) -> float | None:
    """lb_mpi.Executor, each item by `submit`."""
    with lb_mpi.Executor(comm) as executor:
        if executor is None:
            return None
        list(executor.map(function, items[:WARM]))
        return timed(lambda: [future.result() for future in [executor.submit(function, item) for item in items]])


def schwimmbad(comm: MPI.Intracomm, function: Function, items: Sequence[Any], _: Sequence[int]) -> float | None:
    """Its MPIPool, of which rank 0 only manages."""
    try:
        pool = importlib.import_module("schwimmbad").MPIPool(comm)
    except SystemExit:  # how the other ranks leave it
        return None
    pool.map(function, items[:WARM])
    seconds = timed(lambda: pool.map(function, items))
    pool.close()
    pool.workers.clear()  # it closes again at the end of the program, by messages that nobody would receive
    return seconds


def counter(*, sort: bool) -> Callable[..., float | None]:
    """A number in a window that each rank counts up; function and items are everywhere before the clock starts."""

    def run(comm: MPI.Intracomm, function: Function, items: Sequence[Any], ranking: Sequence[int]) -> float | None:
        function, items = comm.bcast((function, items))
        order = ranking if sort else range(len(items))
        window = MPI.Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
        one, found, mine = np.ones(1, np.int64), np.zeros(1, np.int64), []
        window.Lock_all(MPI.MODE_NOCHECK)
        if comm.rank == 0:
            window.Put(found, 0)
            window.Flush(0)
        barrier(comm)

        def work() -> None:
            while True:
                window.Fetch_and_op(one, found, 0)
                window.Flush(0)
                if (number := int(found[0])) >= len(order):
                    break
                mine.append((order[number], function(items[order[number]])))
            barrier(comm)  # who waits in gather would take a core from who works
            comm.gather(mine)

        seconds = timed(work)
        window.Unlock_all()
        window.Free()
        return seconds if comm.rank == 0 else None

    return run


CONTESTANTS: dict[str, Callable[..., float | None]] = {
    "pool": pool,
    "counter": counter(sort=False),
    "counter, largest first": counter(sort=True),
    "Executor 1": executor(lb_mpi.Executor, 1),
    "Executor 16": executor(lb_mpi.Executor, 16),
    "Executor.submit": submitted,
    "MPICommExecutor 1": executor(MPICommExecutor, 1),
    "MPICommExecutor 16": executor(MPICommExecutor, 16),
    "schwimmbad": schwimmbad,
}
ONE_MORE = " + 1"  # behind a contestant's name: it gets one more rank, which manages


# --- the cases ---------------------------------------------------------------------------------------------------------


def compete(options: argparse.Namespace) -> Answer:
    """Seconds of each contestant in each round, in an order that is drawn anew; the last rank is for `ONE_MORE`."""
    rng = random.Random(options.seed)
    items = costs(options.kind, options.tasks, options.task_s, options.seed)
    ranking = np.argsort(-np.array(items), kind="stable").tolist()
    function = PLAIN[options.work]
    fewer = COMM.Split(0 if COMM.rank < options.ranks else MPI.UNDEFINED, COMM.rank)
    seconds: dict[str, list[float]] = {name: [] for name in options.contestants}
    for _ in range(options.repeat):
        for name in rng.sample(options.contestants, len(options.contestants)):
            comm = COMM if name.endswith(ONE_MORE) else fewer
            barrier(COMM)
            took = None
            if comm != MPI.COMM_NULL:
                took = CONTESTANTS[name.removesuffix(ONE_MORE)](comm, function, items, ranking)
            if took is not None:
                seconds[name].append(took)
    barrier(COMM)
    return {"seconds": seconds, "useful_s": sum(items)}


def pool_executor(options: argparse.Namespace) -> Answer:
    """Seconds of MPIPoolExecutor in each round; started by python -m mpi4py.futures, so that rank 0 manages the others."""
    items = costs(options.kind, options.tasks, options.task_s, options.seed)
    with MPIPoolExecutor() as executor:
        return {"seconds": [timed_map(executor, PLAIN[options.work], items, 1) for _ in range(options.repeat)]}


def cpu_of(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of all ranks, and of rank 0, in a call on each."""
    barrier(COMM)
    began = time.process_time()
    run()
    mine = time.process_time() - began
    everyone = COMM.allgather(mine)
    return sum(everyone), everyone[0]


def overhead(options: argparse.Namespace) -> Answer:
    """CPU seconds of a task that does nothing, and of a map on the root."""
    pool = lb_mpi.Pool(COMM)
    with pool:
        pool.map(nothing, options.tasks)
        a_task, a_map = [], []
        for _ in range(options.repeat):
            together_s, _ = cpu_of(lambda: pool.map(nothing, options.tasks))
            _, root_s = cpu_of(lambda: [pool.map(nothing, COMM.size) for _ in range(MAPS)])
            a_task.append(together_s / options.tasks)
            a_map.append(root_s / MAPS)
    return {"task_s": a_task, "map_s": a_map}


def pool_bound(options: argparse.Namespace) -> Answer:
    """Time of a map / its lower bound, on ranks that emulate speeds; from the second map of a pool on.

    A task that waits takes longer on a slow rank by itself: no core is needed for it, and no rest afterwards.  What counts
    is how long it took: a busy system wakes it late.  Where the hosts are slow, tasks that compute are so by themselves.
    """
    speeds = comma_list("--speeds", options.speeds, COMM.size)
    mine, waits = speeds[COMM.rank], options.work == "nap"
    ratios = []

    def slow_nap(seconds: float) -> float:
        return mine * nap(seconds / mine)

    function = slow_nap if waits else PLAIN[options.work]
    pool = lb_mpi.Pool(COMM, emulated_speed=1.0 if waits or options.hosts_are_slow else mine)
    with pool:
        for k in range(options.repeat + 1):
            items = costs(options.kind, options.tasks, options.task_s, options.seed + k)
            results = pool.map(function, items, costs=items if options.costs else None)
            if (report := pool.report()) is not None:
                assert results is not None
                assert np.allclose(results, items, rtol=1e-12, atol=0.0)
                done = report.ranks
                work_s = (
                    sum(rank.busy_s * speed for rank, speed in zip(done, speeds, strict=True)) if waits else sum(items)
                )
                bound_s = max(work_s / sum(speeds), max(items) / max(speeds))
                ratios.append(report.seconds / bound_s)
    return {"ratios": ratios[1:]}


CASES = (compete, pool_executor, overhead, pool_bound)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one case."""
    cases = {case.__name__: case for case in CASES}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pool_ranks", description=__doc__)
    parser.add_argument("case", choices=cases)
    parser.add_argument("--ranks", type=int, default=COMM.size,
        help="number of ranks of the contestants that need no additional one")
    parser.add_argument("--work", choices=PLAIN, default="spin")
    parser.add_argument("--kind", choices=("constant", "heavy"), default="constant")
    parser.add_argument("--task-s", type=float, default=1e-3, help="mean seconds of a task")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--costs", action="store_true", help="pass the costs to the pool")
    parser.add_argument("--speeds", default=",".join(["1"] * COMM.size))
    parser.add_argument("--hosts-are-slow", action="store_true", help="the hosts have these --speeds: do not emulate them")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contestants", nargs="+", default=["pool"])
    options = parser.parse_args(argv)
    answer = cases[options.case](options)
    if COMM.rank == 0:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
