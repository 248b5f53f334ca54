"""A pool of 2,000 tasks with a log, for `benchmarks.campaign`: python -m benchmarks.campaign_tasks LOG"""

from __future__ import annotations

import json
import sys

from mpi4py import MPI

import lb_mpi

N_TASKS = 2000


def task(number: int) -> int:
    """Some hundred microseconds of work, whose result depends on all of it."""
    value = number
    for _ in range(4000):
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
    return value >> 32


def main(log: str) -> None:
    """Map them all, and print the results' sum, and that of each with its place."""
    with lb_mpi.Pool(MPI.COMM_WORLD) as pool:
        results = pool.map(task, N_TASKS, log=log)
    if results is not None:
        told = [len(results), sum(results), sum(place * result for place, result in enumerate(results)) % 2**64]
        print(json.dumps({"results": told}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
