"""Microseconds of the neighbour exchange.  mpiexec -n 8 python -m benchmarks.exchange

Each rank sends one number to each neighbour in the most square mesh of all ranks: by `exchange_rows`, Jin and Wang's
exchange, and by Irecv, Isend and Waitall of mpi4py on buffers built beforehand, in turn (A B A B ...).  The table has the
medians over the rounds of the slowest rank's microseconds, and the ratio to Irecv, Isend and Waitall.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from apps.diffusion import exchange_rows
from benchmarks.measuring import command, known, of_ranks, ratio, words
from benchmarks.turns import in_turn
from lb_mpi.graph import Floats, Graph, mesh, most_square_mesh
from lb_mpi.mpi.common.communicator import duplicate, presence_of
from tools.others import Watch

Exchange = Callable[[float], Floats]


def by_hand(comm: MPI.Intracomm, graph: Graph) -> Exchange:
    """Exchange as a careful user of mpi4py would write it."""
    neighbours = graph.neighbours(comm.rank).tolist()
    mine, theirs = np.zeros(1), np.zeros(len(neighbours))
    send = [mine, 1, MPI.DOUBLE]
    receives = [([theirs[k : k + 1], 1, MPI.DOUBLE], rank) for k, rank in enumerate(neighbours)]

    def exchange(value: float) -> Floats:
        mine[0] = value
        requests = [comm.Irecv(receive, rank) for receive, rank in receives]
        requests += [comm.Isend(send, rank) for rank in neighbours]
        MPI.Request.Waitall(requests)
        return theirs

    return exchange


def main() -> None:
    """Measure, print the table (or JSON) on rank 0."""
    comm = MPI.COMM_WORLD
    parser = command("exchange", __doc__, rounds=(25, "of each way"), exchanges=(400, "in each round"))
    options = parser.parse_args()
    rows, columns = most_square_mesh(comm.size)
    graph = mesh(rows, columns)
    presence, neighbours = presence_of(duplicate(comm)), graph.neighbours(comm.rank).tolist()
    ways: dict[str, Exchange] = {
        "by hand": by_hand(comm, graph),
        "lb_mpi": lambda value: exchange_rows(presence, neighbours, np.array([value])),
    }
    watch = Watch(of_ranks(comm))
    steps = {name: functools.partial(exchange, 1.0) for name, exchange in ways.items()}
    seconds = in_turn(comm, steps, options.rounds, options.exchanges, warm=10)
    us = {name: [1e6 * value for value in values] for name, values in seconds.items()}
    others = watch.others()
    presence.close()
    if comm.rank:
        return
    medians = {name: statistics.median(values) for name, values in us.items()}
    ratios = {name: ratio(us[name], us["by hand"]) for name in ways}
    library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    if options.json:
        told = {"ranks": comm.size, "library": library, "microseconds": medians, "others": known(others)}
        print(json.dumps({**told, "ratio": ratios["lb_mpi"].median}))
        return
    print(f"{comm.size} ranks as {rows}x{columns}, {library}")
    for name, median in medians.items():
        low, high = min(us[name]), max(us[name])
        one = ratios[name]
        of_it = f"{one.median:6.2f} ({one.low:.2f} to {one.high:.2f})"
        print(f"{name:15} {median:9.1f} us ({low:.1f} to {high:.1f})  {of_it}")
    print(words(others))


if __name__ == "__main__":
    main()
