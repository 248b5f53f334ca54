"""The CPU time that a short map costs the root of a pool, beyond its tasks.

    mpiexec -n 2 python -m benchmarks.map_cpu

Prints the median of several rounds of maps of 16 tasks and of 200 tasks of no work, in milliseconds of process_time, for
`map`, `imap` of a list and `imap` of an iterator.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from mpi4py import MPI

import lb_mpi

ROUNDS, MAPS = 15, 50


def nothing(k: int) -> int:
    """Return k."""
    return k


def cpu_ms(call: Callable[[], object]) -> float:
    """Return the median over rounds of the CPU milliseconds of a call."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(MAPS):
            call()
        found.append((time.process_time() - began) / MAPS)
    return 1e3 * statistics.median(found)


def main() -> None:
    """Print a table on the root."""
    with lb_mpi.Pool(MPI.COMM_WORLD, root=0) as pool:
        if pool:
            print(f"{pool.size} ranks, CPU of the root in ms a map")
            for n in (16, 200):
                items = list(range(n))
                ways: dict[str, Callable[[], object]] = {
                    "map": lambda items=items: pool.map(nothing, items),  # type: ignore[misc]
                    "imap, list": lambda items=items: list(pool.imap(nothing, items)),  # type: ignore[misc]
                    "imap, iterator": lambda items=items: list(pool.imap(nothing, iter(items))),  # type: ignore[misc]
                }
                for name, call in ways.items():
                    call()
                    print(f"{n:4} tasks  {name:14}  {cpu_ms(call):6.3f}", flush=True)


if __name__ == "__main__":
    main()
