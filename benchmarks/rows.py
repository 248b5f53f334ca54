"""Compare the simulator of rows with real ranks.  mpiexec -n 4 python -m benchmarks.rows [--case drawn|root|sleep]

`Balancer.map_rows` computes rows of random costs (CPU time in a loop) on ranks that emulate these speeds, and
`lb_mpi.cli.simulate.rows` simulates the same rows on virtual ranks of the same speeds.  Prints the seconds of each call,
and predicted / measured time of all calls.  The machine must have as many cores as the sum of the speeds.

    drawn   the same number of rows on each rank
    root    all rows are on rank 0, with heavy-tailed costs: the time of the first call, in which nothing is known
    sleep   all rows are on rank 0, with heavy-tailed costs, and sleep instead of using the CPU, on equal ranks: an emulation
            of rows that wait for files, subprocesses or GPUs; the bound is the requested sleep / ranks
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import lb_mpi
from benchmarks.measuring import command, known, of_ranks, spin, words
from lb_mpi.checks import comma_list
from lb_mpi.cli.simulate.rows import ROWS, Cluster, row_costs, simulate
from lb_mpi.graph import Floats, mesh, most_square_mesh
from lb_mpi.mpi.common.collective import barrier
from lb_mpi.virtual import Network
from tools.others import Watch

WANTED = 0.10
LATENCY_S, BANDWIDTH = 20e-6, 2e9  # of messages between oversubscribed ranks of one machine


def compute(rows: Floats) -> Floats:
    """Use as much CPU time as the rows say."""
    spin(float(rows.sum()))
    return rows


def sleep(rows: Floats) -> Floats:
    """Wait as long as the rows say, one by one."""
    for seconds in rows.tolist():
        time.sleep(seconds)
    return rows


def draw(case: str, kind: str, rows: int, row_s: float, calls: int) -> list[list[Floats]]:
    """Seconds of all ranks' rows in each call."""
    size = MPI.COMM_WORLD.size
    if case == "drawn":
        costs = row_costs(kind, size, rows, spread=0.5, period=2 * calls)
        return [[row_s * mine for mine in costs(call)] for call in range(calls)]
    heavy = row_costs("lognormal", 1, rows * size, spread=1.0)(0)[0]
    return [[row_s / heavy.mean() * heavy, *[np.zeros(0)] * (size - 1)]] * calls


def real(comm: MPI.Intracomm, costs: list[list[Floats]], speed: float, function: Callable[[Floats], Floats]) -> list[float]:
    """Seconds of each call on the slowest rank."""
    seconds = []
    with lb_mpi.Balancer(comm, emulated_speed=speed) as balancer:
        for call in costs:
            barrier(comm)
            began = time.perf_counter()
            balancer.map_rows(function, call[comm.rank])
            seconds.append(comm.allreduce(time.perf_counter() - began, MPI.MAX))
    return seconds


def main() -> None:
    """Measure, simulate, print on rank 0."""
    comm = MPI.COMM_WORLD
    parser = command("rows", __doc__)
    parser.add_argument("--case", choices=("drawn", "root", "sleep"), default="drawn", help="see above (%(default)s)")
    parser.add_argument("--speeds", default="0.8,0.4,0.2,0.2", help="speeds of the ranks; case sleep: all 1 (%(default)s)")
    parser.add_argument("--costs", choices=ROWS, default="lognormal", help="costs of the rows in case drawn (%(default)s)")
    parser.add_argument("--rows", type=int, default=200, help="number of rows on each rank (%(default)s)")
    parser.add_argument("--row-s", type=float, default=4e-4, help="mean seconds of a row (%(default)s)")
    parser.add_argument("--calls", type=int, default=40, help="number of calls of map_rows (%(default)s)")
    options = parser.parse_args()
    sleeps = options.case == "sleep"
    speeds = np.ones(comm.size) if sleeps else np.array(comma_list("--speeds", options.speeds, comm.size))
    costs = draw(options.case, options.costs, options.rows, options.row_s, options.calls)
    watch = Watch(of_ranks(comm))
    measured = real(comm, costs, float(speeds[comm.rank]), sleep if sleeps else compute)
    others = watch.others()
    if comm.rank:
        return
    network = Network((LATENCY_S, LATENCY_S), bytes_per_s=BANDWIDTH)
    cluster = Cluster(mesh(*most_square_mesh(comm.size)), speeds, network=network)
    predicted = simulate(cluster, lambda call: costs[call], options.calls)
    bound = statistics.median(call.bound_s for call in predicted)
    totals = sum(call.seconds for call in predicted), sum(measured)
    ratio = totals[0] / totals[1]
    of_bound = [seconds / call.bound_s for call, seconds in zip(predicted, measured, strict=True)]
    if options.json:
        print(
            json.dumps(
                {
                    "ranks": comm.size,
                    "predicted_s": totals[0],
                    "measured_s": totals[1],
                    "ratio": ratio,
                    "of_bound": of_bound,
                    "others": known(others),
                }
            )
        )
        return
    print(" call  predicted / bound  measured / bound")
    for k, (call, seconds) in enumerate(zip(predicted, measured, strict=True)):
        if k < 5 or k % 5 == 0:
            print(f"{k + 1:5d} {call.seconds / call.bound_s:18.3f} {seconds / call.bound_s:17.3f}")
    alone = sum(call.alone_s for call in predicted)
    print(f"{options.calls} calls with a bound of {bound:.4f} s (median), without balancing {alone:.2f} s in all")
    print(f"predicted {totals[0]:.3f} s, measured {totals[1]:.3f} s: ratio {ratio:.3f} (wanted: within {WANTED:.0%})")
    middle, low, high = statistics.median(of_bound), min(of_bound), max(of_bound)
    print(f"measured / bound of a call: {middle:.3f} ({low:.3f} to {high:.3f}); {words(others)}")


if __name__ == "__main__":
    main()
