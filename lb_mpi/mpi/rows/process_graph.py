"""The process graph of a communicator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.graph import Graph, host_graph, mesh, most_square_mesh
from lb_mpi.graph_files import as_graph


def graph_of_ranks(graph: Any, size: int) -> Graph:
    """The graph, in any shape that `lb_mpi.as_graph` takes; ValueError unless it has a vertex for each rank."""
    layout = as_graph(graph)
    if layout.n != size:
        raise ValueError(f"graph of {layout.n} vertices: expected {size}, one for each rank")
    return layout


def process_graph(comm: MPI.Intracomm, graph: Any, hosts: Sequence[str]) -> Graph:
    """The graph of all ranks, which are on these (P,) hosts, by name.

    For None: one that follows the hosts where some of several have more than one rank, so that work goes to a rank of the
    same host first; otherwise that of a Cartesian communicator; otherwise the most square mesh.
    """
    if graph is not None:
        return graph_of_ranks(graph, comm.size)
    if 1 < len(set(hosts)) < len(hosts):
        return host_graph(hosts)
    if isinstance(comm, MPI.Cartcomm) and comm.dim > 0:
        return grid(comm.dims, comm.periods)
    return mesh(*most_square_mesh(comm.size))


def grid(dims: Sequence[int], periods: Sequence[int]) -> Graph:
    """The process graph of a Cartesian communicator; ranks in row-major order, as the MPI has them."""
    ranks = np.arange(math.prod(dims)).reshape(dims)
    tails, heads = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for axis, (length, periodic) in enumerate(zip(dims, periods, strict=True)):
        along = np.moveaxis(ranks, axis, 0)
        tails.append(along[:-1].ravel())
        heads.append(along[1:].ravel())
        if periodic and length > 2:
            tails.append(along[-1].ravel())
            heads.append(along[0].ravel())
    return Graph.from_edges(ranks.size, np.concatenate(tails), np.concatenate(heads))
