"""The ranks' part of `benchmarks.pool`; run by it, under mpiexec.  Each case prints one JSON object on rank 0."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

import lb_mpi
from benchmarks.pool import FEW, MANY, MAPS, TASK_S, costs, nap, nothing, spin, timed, worked
from lb_mpi.checks import comma_list
from lb_mpi.mpi.common.collective import barrier

COMM = MPI.COMM_WORLD
PLAIN: dict[str, Callable[[float], Any]] = {"spin": spin, "nap": nap}
Answer = dict[str, Any]

# --- the contestants: each runs function(item) for all items and has the results on rank 0 -------------------------------
#
# A contestant is called on all ranks of its communicator as run(comm, function, items, case), is warmed with the first
# items, and returns the seconds of all maps on rank 0, None elsewhere.

Function = Callable[[Any], Any]
WARM = 2  # items


class Case(NamedTuple):
    """The arguments of all contestants."""

    ranking: Sequence[int]  # the items' numbers, the largest first
    maps: int = 1  # number of times that all items are mapped


def pool(comm: MPI.Intracomm, function: Function, items: Sequence[Any], case: Case) -> float | None:
    """lb_mpi.Pool, of which only the root goes on: the function has to travel, as with the others."""
    with lb_mpi.Pool(comm, root=0) as pool:
        if pool is None:
            return None
        pool.map(function, items[:WARM])
        return timed(lambda: pool.map(function, items), case.maps)


def executor(kind: Callable[..., Any], chunksize: int) -> Callable[..., float | None]:
    """lb_mpi.Executor, or mpi4py's MPICommExecutor, of which rank 0 only manages."""

    def run(comm: MPI.Intracomm, function: Function, items: Sequence[Any], case: Case) -> float | None:
        executor: Any
        with kind(comm) as executor:
            return None if executor is None else timed_map(executor, function, items, chunksize, case.maps)

    return run


def timed_map(executor: Any, function: Function, items: Sequence[Any], chunksize: int, maps: int = 1) -> float:
    """Seconds of an executor's maps."""
    list(executor.map(function, items[:WARM], chunksize=1))
    return timed(lambda: list(executor.map(function, items, chunksize=chunksize)), maps)


def submitted(comm: MPI.Intracomm, function: Function, items: Sequence[Any], case: Case) -> float | None:
    """lb_mpi.Executor, each item by `submit`."""
    with lb_mpi.Executor(comm) as executor:
        if executor is None:
            return None
        list(executor.map(function, items[:WARM]))
        return timed(
            lambda: [future.result() for future in [executor.submit(function, item) for item in items]], case.maps
        )


def schwimmbad(comm: MPI.Intracomm, function: Function, items: Sequence[Any], case: Case) -> float | None:
    """Its MPIPool, of which rank 0 only manages."""
    try:
        pool = importlib.import_module("schwimmbad").MPIPool(comm)
    except SystemExit:  # how the other ranks leave it
        return None
    pool.map(function, items[:WARM])
    seconds = timed(lambda: pool.map(function, items), case.maps)
    pool.close()
    pool.workers.clear()  # it closes again at the end of the program, by messages that nobody would receive
    return seconds


def counter(*, sort: bool) -> Callable[..., float | None]:
    """A number in a window that each rank counts up; function and items are everywhere before the clock starts."""

    def run(comm: MPI.Intracomm, function: Function, items: Sequence[Any], case: Case) -> float | None:
        function, items = comm.bcast((function, items))
        order = case.ranking if sort else range(len(items))
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
            barrier(comm)  # a rank that waits in gather would take a core from a working one
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
    case = Case(np.argsort(-np.array(items), kind="stable").tolist(), options.maps)
    function = PLAIN[options.work]
    fewer = COMM.Split(0 if COMM.rank < options.ranks else MPI.UNDEFINED, COMM.rank)
    seconds: dict[str, list[float]] = {name: [] for name in options.contestants}
    for _ in range(options.repeat):
        for name in rng.sample(options.contestants, len(options.contestants)):
            comm = COMM if name.endswith(ONE_MORE) else fewer
            barrier(COMM)
            took = None
            if comm != MPI.COMM_NULL:
                took = CONTESTANTS[name.removesuffix(ONE_MORE)](comm, function, items, case)
            if took is not None:
                seconds[name].append(took)
    barrier(COMM)
    return {"seconds": seconds, "useful_s": options.maps * sum(items)}


def pool_executor(options: argparse.Namespace) -> Answer:
    """Seconds of MPIPoolExecutor in each round; started by python -m mpi4py.futures, so that rank 0 manages the others."""
    items = costs(options.kind, options.tasks, options.task_s, options.seed)
    with MPIPoolExecutor() as executor:
        return {"seconds": [timed_map(executor, PLAIN[options.work], items, 1) for _ in range(options.repeat)]}


def of_root(pool: lb_mpi.Pool, tasks: int, task_s: float, maps: int) -> float:
    """CPU seconds of rank 0 in a map, without what it used in tasks."""
    barrier(COMM)
    began = time.process_time()
    results = [pool.map(worked, [task_s] * tasks) for _ in range(maps)]
    used_s = time.process_time() - began
    barrier(COMM)
    return (used_s - sum(cpu_s for one in results for pid, cpu_s in one or () if pid == os.getpid())) / maps


def overhead(options: argparse.Namespace) -> Answer:
    """CPU seconds of all ranks for a task that does nothing, and of the root beside the tasks.

    For the root: for a map of a few tasks, and for each of many tasks, of a millisecond.
    """
    pool = lb_mpi.Pool(COMM)
    a_task, a_map, of_many = [], [], []
    with pool:
        pool.map(nothing, options.tasks)
        for _ in range(options.repeat):
            barrier(COMM)
            began = time.process_time()
            pool.map(nothing, options.tasks)
            a_task.append(COMM.allreduce(time.process_time() - began) / options.tasks)
            a_map.append(of_root(pool, FEW, TASK_S, MAPS))
            of_many.append(of_root(pool, MANY, TASK_S, 1) / MANY)
    return {"task_s": a_task, "map_s": a_map, "of_many_s": of_many}


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
    parser.add_argument(
        "--ranks", type=int, default=COMM.size, help="number of ranks of the contestants that need no additional one"
    )
    parser.add_argument("--work", choices=PLAIN, default="spin")
    parser.add_argument("--kind", choices=("constant", "heavy"), default="constant")
    parser.add_argument("--task-s", type=float, default=1e-3, help="mean seconds of a task")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--maps", type=int, default=1, help="number of maps of these tasks; not with counters")
    parser.add_argument("--costs", action="store_true", help="pass the costs to the pool")
    parser.add_argument("--speeds", default=",".join(["1"] * COMM.size))
    parser.add_argument(
        "--hosts-are-slow", action="store_true", help="the hosts have these --speeds: do not emulate them"
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contestants", nargs="+", default=["pool"])
    options = parser.parse_args(argv)
    answer = cases[options.case](options)
    if COMM.rank == 0:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
