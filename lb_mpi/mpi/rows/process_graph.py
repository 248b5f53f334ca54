"""The process graph of a communicator: its choice, and ranks reordered to fit it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from lb_mpi import checks
from lb_mpi.graph import Graph, cube, grid, host_graph, mesh, most_square_mesh
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_speeds, usual_arithmetic
from lb_mpi.mpi.common.collective import agree, agree_on, opened
from lb_mpi.mpi.common.communicator import blocking, wait


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


def fingerprint(graph: Graph) -> int:
    """Return a checksum of the edges of `graph`, to compare it between ranks."""
    return zlib.crc32(graph.indices.tobytes(), zlib.crc32(graph.indptr.tobytes()))


@usual_arithmetic
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

    def arranged() -> NDArray[np.int64]:
        from lb_mpi.arranging.arrange import arrange  # imports numba: here, so that its failure is one of all ranks

        return arrange(layout, checked, **options).vertices

    with opened(comm, "lb_mpi.reorder_ranks") as own:
        layout, checked, number = agree(
            own, lambda: (graph_of_ranks(graph, own.size), check_speeds(speeds, own.size), checks.seed(seed))
        )
        options: dict[str, Any] = {"objective": objective, "method": method, "seed": number}
        agree_on(own, graph=fingerprint(layout), speeds=checked.tolist(), **options)
        on_root = own.rank == 0
        found = agree(own, lambda: arranged() if on_root else None)
        positions = np.empty(own.size, dtype=np.int64) if found is None else found
        wait(own, own.Ibcast(positions), positions)
        with blocking(own):
            return MPI.Intracomm(own.Split(0, int(positions[own.rank])))
