"""Who competes in `benchmarks.pool`: each runs function(item) for all items and has the results on rank 0.

A contestant is called on all ranks of its communicator as run(comm, function, items, ranking), is warmed with the
first items, and returns the seconds of the rest on rank 0, None elsewhere.  `ranking` are the items' numbers, the
largest first, for who can use them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

import lb_mpi
from lb_mpi.mpi.collective import barrier

Function = Callable[[Any], Any]
WARM = 2  # items


def timed(run: Callable[[], Any]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def pool(comm: MPI.Intracomm, function: Function, items: Sequence[Any], _: Sequence[int]) -> float | None:
    """lb_mpi.Pool, of which only the root goes on: the function has to travel, as with the others."""
    with lb_mpi.Pool(comm, root=0) as pool:
        if pool is None:
            return None
        pool.map(function, items[:WARM])
        return timed(lambda: pool.map(function, items))


def executor(chunksize: int) -> Callable[..., float | None]:
    """mpi4py's own, of which rank 0 only manages."""

    def run(comm: MPI.Intracomm, function: Function, items: Sequence[Any], _: Sequence[int]) -> float | None:
        executor: Any
        with MPICommExecutor(comm, root=0) as executor:
            if executor is None:
                return None
            list(executor.map(function, items[:WARM], chunksize=1))
            return timed(lambda: list(executor.map(function, items, chunksize=chunksize)))

    return run


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
    "executor 1": executor(1),
    "executor 16": executor(16),
    "schwimmbad": schwimmbad,
}
ONE_MORE = " + 1"  # behind a contestant's name: it gets one more rank, which manages
