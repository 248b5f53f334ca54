"""Measure the cost of the Balancer when there is nothing to balance.  mpiexec -n 2 python -m benchmarks.overhead

Equal rows on equal ranks, with the physics of apps/weather under one sun: `physics(rows)` and a barrier are compared with
`balancer.map_rows(physics, rows)`, in turn (A B A B ...).  Prints the medians of the seconds of a step on the slowest rank,
and their ratio.  Use no more ranks than cores.
"""

from __future__ import annotations

import json
import statistics

import numpy as np
from mpi4py import MPI

import lb_mpi
from apps.weather_physics import Floats, compile_kernels, physics
from benchmarks.measuring import command, known, of_ranks, ratio, words
from benchmarks.turns import Way, in_turn
from lb_mpi.mpi.common.collective import barrier
from tools.others import Watch

WANTED = 1.02
LEVELS = 32


def compute(rows: Floats, sun: Floats, storm: Floats) -> Floats:
    """New rows from the old; the old ones stay as they are."""
    after: Floats = physics(rows, sun, storm)
    return after


def main() -> None:
    """Measure, print the table (or JSON) on rank 0."""
    comm = MPI.COMM_WORLD
    parser = command("overhead", __doc__, rows=(16384, "on each rank"), steps=(40, "by each way"))
    options = parser.parse_args()
    compile_kernels()
    rows: Floats = np.tile(250.0 + np.arange(LEVELS), (options.rows, 1))
    sun, storm = np.ones(options.rows), np.zeros(options.rows)
    with lb_mpi.Balancer(comm) as balancer:

        def alone() -> None:
            compute(rows, sun, storm)
            barrier(comm)

        ways: dict[str, Way] = {
            "without": alone,
            "with": lambda: balancer.map_rows(compute, rows, sun, storm),
        }
        in_turn(comm, ways, 5)  # to get to know rows and ranks
        watch = Watch(of_ranks(comm))
        seconds = in_turn(comm, ways, options.steps)
        others = watch.others()
    if comm.rank:
        return
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    found = ratio(seconds["with"], seconds["without"])
    if options.json:
        print(json.dumps({"ranks": comm.size, "seconds": medians, "ratio": found.median, "others": known(others)}))
        return
    print(f"{comm.size} ranks, {options.rows:,} equal rows on each")
    for name, median in medians.items():
        print(f"{name:8} {1e3 * median:9.2f} ms a step ({1e3 * min(seconds[name]):.2f} at least)")
    print(f"ratio    {found.median:9.3f} ({found.low:.3f} to {found.high:.3f})  <= {WANTED}")
    print(words(others))


if __name__ == "__main__":
    main()
