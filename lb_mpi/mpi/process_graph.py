"""The process graph of a communicator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from lb_mpi.checks import show
from lb_mpi.graph import Graph, from_edges, mesh, most_square_mesh


def process_graph(comm: MPI.Intracomm, graph: Graph | None) -> Graph:
    """`graph`, if it is one of all ranks; for None: that of a Cartesian communicator, otherwise the most square mesh."""
    if graph is None:
        if isinstance(comm, MPI.Cartcomm) and comm.dim > 0:
            return grid(comm.dims, comm.periods)
        return mesh(*most_square_mesh(comm.size))
    if not isinstance(graph, Graph):
        raise TypeError(f"graph = {show(graph)}: expected an lb_mpi.graph.Graph")
    if graph.n != comm.size:
        raise ValueError(f"graph of {graph.n} vertices: expected {comm.size}, one for each rank")
    return graph


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
    return from_edges(ranks.size, np.concatenate(tails), np.concatenate(heads))
