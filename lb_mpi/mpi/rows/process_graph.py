"""The process graph of a communicator: its choice, exchanges along its edges, and ranks reordered to fit it.

In a neighbour exchange every rank sends its neighbours one number, and receives theirs.  Method "paper" is Jin and
Wang's: a non-blocking send to each neighbour, then a receive from each.  "neighbourhood" is one neighbourhood
collective, with MPI 4 a persistent one, which needs half the time (an allgather: all neighbours get the same).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.graph import Floats, Graph, cube, grid, host_graph, mesh, most_square_mesh
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_speeds
from lb_mpi.mpi.common.collective import agree, agree_on, opened, wait
from lb_mpi.mpi.common.presence import Presence, Tag, presence_of


def graph_of_ranks(graph: Any, size: int) -> Graph:
    """Return the graph, in any form that `lb_mpi.as_graph` accepts; ValueError unless it has a vertex for each rank."""
    layout = as_graph(graph)
    if layout.n != size:
        raise ValueError(f"graph of {layout.n} vertices: expected {size}, one for each rank")
    return layout


def process_graph(comm: MPI.Intracomm, graph: Any, hosts: Sequence[str], *, short: bool = False) -> Graph:
    """Return the graph of all ranks, which run on these (P,) hosts, by name.

    None: if there are several hosts and some have several ranks, a graph that follows the hosts, so that work first
    goes to a rank on the same host; otherwise that of a Cartesian communicator, or else the most square mesh.  None and
    `short`: a hypercube of all ranks, which diffusion levels in about log2 P steps; those of a host are neighbours first.
    """
    if graph is not None:
        return graph_of_ranks(graph, comm.size)
    if short:
        first = {host: rank for rank, host in reversed([*enumerate(hosts)])}
        order = np.array(sorted(range(comm.size), key=lambda rank: first[hosts[rank]]))
        tails, heads = cube(comm.size).edges()
        return Graph.from_edges(comm.size, order[tails], order[heads])
    if 1 < len(set(hosts)) < len(hosts):
        return host_graph(hosts)
    if isinstance(comm, MPI.Cartcomm) and comm.dim > 0:
        return grid(comm.dims, comm.periods)
    return mesh(*most_square_mesh(comm.size))


METHODS = ("neighbourhood", "paper")


class NeighbourExchange:
    """Exchanges of one number between neighbours in `graph`; vertex k is rank k of `comm`, a duplicate of the user's.

        theirs = exchange.exchange(mine)            # (deg,), in the order of graph.neighbours(comm.rank)

    All methods are collective; `method` is one of METHODS.
    """

    def __init__(self, comm: MPI.Intracomm, graph: Graph, method: str = METHODS[0]) -> None:
        neighbours, self._presence = graph.neighbours(comm.rank).tolist(), presence_of(comm)
        self._mine, self._theirs = np.zeros(1), np.zeros(len(neighbours))
        self._topology: MPI.Distgraphcomm | None = None
        self._request: MPI.Prequest | None = None
        self._run: Callable[[], None]
        if method == "paper":
            self._run = lambda: np.copyto(self._theirs, exchange_rows(self._presence, neighbours, self._mine)[:, 0])
        else:  # collective: all ranks take part
            self._topology = comm.Create_dist_graph_adjacent(neighbours, neighbours)
            self._run = self._neighbourhood(self._topology)

    def exchange(self, value: float) -> Floats:
        """Send `value` to all neighbours; return (deg,) theirs, which the next exchange overwrites."""
        self._mine[0] = value
        self._run()
        return self._theirs

    def close(self) -> None:
        """Free the MPI resources, but not `comm`."""
        for made in (self._request, self._topology):
            if made is not None:
                made.Free()

    def _neighbourhood(self, comm: MPI.Distgraphcomm) -> Callable[[], None]:
        mine, theirs, wait = self._mine, self._theirs, self._presence.wait
        try:
            request = comm.Neighbor_allgather_init(mine, theirs)
        except NotImplementedError:  # with an MPI older than MPI 4
            return lambda: wait(comm.Ineighbor_allgather(mine, theirs).Test, self)
        start, done = request.Start, request.Test
        self._request = request

        def run() -> None:
            start()
            wait(done, self)

        return run


def exchange_rows(presence: Presence, neighbours: Sequence[int], mine: Floats) -> Floats:
    """Send (n,) numbers, or row k of (deg, n), to neighbour k; return (deg, n), row k from neighbour k.

    Jin and Wang's exchange: a non-blocking send to each neighbour, then a receive from each.
    """
    comm, wait, tag = presence.comm, presence.wait, int(Tag.NEIGHBOUR)
    rows = np.array(np.broadcast_to(mine, (len(neighbours), mine.shape[-1])), order="C")
    theirs = np.empty_like(rows)
    sends = [comm.Isend(rows[k], rank, tag) for k, rank in enumerate(neighbours)]
    for k, rank in enumerate(neighbours):
        wait(comm.Irecv(theirs[k], rank, tag).Test, (theirs, rows, sends))
    wait(lambda: MPI.Request.Testall(sends), (rows, sends))
    return theirs


def fingerprint(graph: Graph) -> int:
    """Return a checksum of the edges of `graph`, to compare it between ranks."""
    return zlib.crc32(graph.indices.tobytes(), zlib.crc32(graph.indptr.tobytes()))


def reorder_ranks(
    comm: MPI.Intracomm,
    graph: Any,
    speeds: ArrayLike,
    *,
    objective: str = "uniform",
    method: str = "swap",
    seed: int = 0,
) -> MPI.Intracomm:
    """Return a new communicator of the same processes, with the ranks renumbered so that diffusion converges fastest.

    Rank k of the new communicator is the process that should be at vertex k of `graph`, as `lb_mpi.arrange` finds it.

        placed = lb_mpi.reorder_ranks(comm, graph, comm.allgather(my_speed))
        balancer = lb_mpi.Balancer(placed, ...)

    Parameters
    ----------
    comm : an mpi4py intracommunicator of P ranks; it is not changed.
    graph : the process graph of P vertices, in any form that `lb_mpi.as_graph` accepts.
    speeds : (P,) speeds of the ranks of `comm`, above 0, in any unit.

    The other parameters are those of `lb_mpi.arrange`.

    Collective.  Rank 0 computes the new order and sends it to the others.  Free the new communicator when it is no
    longer needed.

    Raises ValueError or TypeError on every rank if an argument is wrong on any rank, or differs between ranks.
    """
    from lb_mpi.arranging.arrange import arrange  # imports numba, which a Balancer does not need

    with opened(comm, "lb_mpi.reorder_ranks") as own:
        layout, checked, number = agree(
            own, lambda: (graph_of_ranks(graph, own.size), check_speeds(speeds, own.size), checks.seed(seed))
        )
        options: dict[str, Any] = {"objective": objective, "method": method, "seed": number}
        agree_on(own, graph=fingerprint(layout), speeds=checked.tolist(), **options)
        on_root = own.rank == 0
        found = agree(own, lambda: arrange(layout, checked, **options).vertices if on_root else None)
        places = np.empty(own.size, dtype=np.int64) if found is None else found
        wait(own, own.Ibcast(places), places)
        return MPI.Intracomm(own.Split(0, int(places[own.rank])))  # collective: all ranks take part
