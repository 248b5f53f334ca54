"""Ways of doing the same step, measured in turn on all ranks of a communicator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from mpi4py import MPI

from lb_mpi.mpi.common.collective import barrier

Way = Callable[[], object]


def in_turn(
    comm: MPI.Intracomm, ways: Mapping[str, Way], rounds: int, steps: int = 1, warm: int = 0
) -> dict[str, list[float]]:
    """Seconds of a step on the slowest rank, by way and round; collective.

    In each round, each way does `warm` steps, waits for all ranks, and does `steps` steps by the clock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            for _ in range(warm):
                step()
            barrier(comm)
            began = time.perf_counter()
            for _ in range(steps):
                step()
            seconds[name].append(comm.allreduce((time.perf_counter() - began) / steps, MPI.MAX))
    return seconds
