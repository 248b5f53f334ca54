"""Connectivity: virtual edges between the components of a graph that is to be bisected.   (pure)"""

from __future__ import annotations

import numpy as np
from numba import njit

from lb_mpi.graph import Ints
from lb_mpi.partitioning.coarsen import Csr

FAINT = 0.1  # the weight of all virtual edges together, in lightest real ones: no real edge is cut to spare them


@njit(cache=True)
def first_of_components(indptr: Ints, indices: Ints) -> Ints:
    """(components,) the first vertex of each connected component, ascending."""
    n = len(indptr) - 1
    seen = np.zeros(n, np.bool_)
    stack = np.empty(n, np.int64)
    firsts = np.empty(n, np.int64)
    count = 0
    for start in range(n):
        if seen[start]:
            continue
        firsts[count] = start
        count += 1
        seen[start] = True
        stack[0] = start
        size = 1
        while size > 0:
            size -= 1
            v = stack[size]
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if not seen[u]:
                    seen[u] = True
                    stack[size] = u
                    size += 1
    return firsts[:count].copy()


@njit(cache=True)
def chain(graph: Csr, vertices: Ints, weight: float) -> Csr:
    """The graph with an edge of `weight` between each two vertices that follow each other in `vertices`, ascending."""
    n, more = len(graph.vertex_weights), 2 * (len(vertices) - 1)
    indptr = np.zeros(n + 1, np.int64)
    indices = np.empty(len(graph.indices) + more, np.int64)
    weights = np.empty(len(indices))
    end, at = 0, 0
    for v in range(n):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            indices[end] = graph.indices[e]
            weights[end] = graph.weights[e]
            end += 1
        if at < len(vertices) and vertices[at] == v:
            for other in (at - 1, at + 1):
                if 0 <= other < len(vertices):
                    indices[end] = vertices[other]
                    weights[end] = weight
                    end += 1
            at += 1
        indptr[v + 1] = end
    return Csr(indptr, indices, weights, graph.vertex_weights)


def connected(graph: Csr) -> Csr:
    """`graph` itself if it is connected, else a graph whose components are joined, one by one, by faint virtual edges."""
    firsts = first_of_components(graph.indptr, graph.indices)
    if len(firsts) <= 1:
        return graph
    real = graph.weights[graph.weights > 0]
    weight = FAINT * float(real.min()) / len(firsts) if len(real) else 1.0
    joined: Csr = chain(graph, firsts, weight)
    return joined
