"""How strongly each vertex is connected to each part, kept up to date while vertices move.   (pure)

It is kept in lists as long as the vertex's degree (Karypis & Kumar 1998), so memory is O(n + E).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.coarsen import Csr
from lb_mpi.partitioning.compiled import inlined


class Parts(NamedTuple):
    """A partition into k parts that is being improved."""

    of: Ints  # (n,) the part of each vertex
    weights: Floats  # (k,) of the parts
    bounds: Floats  # (k,) the largest weights that they may have


class Connections(NamedTuple):
    """The weights of the edges between each vertex and each part.

    Vertex v is connected to the other parts part[i] with weight[i], i from indptr[v] on, n_others[v] of them.
    """

    part: Ints  # (2E,)
    weight: Floats  # (2E,)
    n_others: Ints  # (n,)
    inner: Floats  # (n,) to its own part


@njit(cache=True)
def find_parts(graph: Csr, part: Ints, bounds: Floats) -> Parts:
    """Weigh the parts; part (n,) is not copied."""
    weights = np.zeros(len(bounds))
    for v in range(len(part)):
        weights[part[v]] += graph.vertex_weights[v]
    return Parts(part, weights, bounds)


@njit(cache=True)
def find_connections(graph: Csr, part: Ints, k: int) -> Connections:
    """Add up the connections of all vertices; part (n,) in 0..k-1."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    n = len(part)
    other = np.empty(len(indices), np.int64)
    weight = np.empty(len(indices))
    count = np.zeros(n, np.int64)
    inner = np.zeros(n)
    place = np.full(k, -1)
    for v in range(n):
        start = end = indptr[v]
        for e in range(indptr[v], indptr[v + 1]):
            p = part[indices[e]]
            if p == part[v]:
                inner[v] += weights[e]
            elif place[p] < start:
                place[p] = end
                other[end] = p
                weight[end] = weights[e]
                end += 1
            else:
                weight[place[p]] += weights[e]
        count[v] = end - start
    return Connections(other, weight, count, inner)


@inlined
def strongest(graph: Csr, connections: Connections, v: int, least: float) -> float:
    """The weight of v's strongest connection to another part; `least` if none is above that."""
    best = least
    for i in range(graph.indptr[v], graph.indptr[v] + connections.n_others[v]):
        best = max(best, connections.weight[i])
    return best


@inlined
def move(graph: Csr, parts: Parts, connections: Connections, v: int, target: int) -> None:
    """Move v to part `target`: its part, the weights of both parts, its connections and its neighbours'."""
    source = parts.of[v]
    turn_round(graph, connections, v, source, target)
    parts.of[v] = target
    parts.weights[source] -= graph.vertex_weights[v]
    parts.weights[target] += graph.vertex_weights[v]
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        u, weight = graph.indices[e], graph.weights[e]
        if parts.of[u] == source:
            connections.inner[u] -= weight
        else:
            weaken(graph, connections, u, source, weight)
        if parts.of[u] == target:
            connections.inner[u] += weight
        else:
            strengthen(graph, connections, u, target, weight)


@inlined
def turn_round(graph: Csr, connections: Connections, v: int, source: int, target: int) -> None:
    """Bring v's own connections up to date as it moves: what was inner is outer now, and the other way round."""
    start, end = graph.indptr[v], graph.indptr[v] + connections.n_others[v]
    to_source = connections.inner[v]
    connections.inner[v] = 0.0
    for i in range(start, end):
        if connections.part[i] == target:
            connections.inner[v] = connections.weight[i]
            if to_source > 0:
                connections.part[i] = source
                connections.weight[i] = to_source
            else:
                drop(connections, v, i, end - 1)
            return
    if to_source > 0 and end < graph.indptr[v + 1]:
        connections.part[end] = source
        connections.weight[end] = to_source
        connections.n_others[v] += 1


@inlined
def weaken(graph: Csr, connections: Connections, u: int, part: int, weight: float) -> None:
    """Take `weight` off u's connection to another part; a connection of nothing, but for rounding, is no more."""
    start, end = graph.indptr[u], graph.indptr[u] + connections.n_others[u]
    for i in range(start, end):
        if connections.part[i] == part:
            connections.weight[i] -= weight
            if connections.weight[i] <= 1e-12 * weight:
                drop(connections, u, i, end - 1)
            return


@inlined
def strengthen(graph: Csr, connections: Connections, u: int, part: int, weight: float) -> None:
    """Add `weight` to u's connection to another part, which may be new."""
    start, end = graph.indptr[u], graph.indptr[u] + connections.n_others[u]
    for i in range(start, end):
        if connections.part[i] == part:
            connections.weight[i] += weight
            return
    if end < graph.indptr[u + 1]:  # always, but for rounding errors
        connections.part[end] = part
        connections.weight[end] = weight
        connections.n_others[u] += 1


@inlined
def drop(connections: Connections, v: int, i: int, last: int) -> None:
    """Forget v's i-th connection, of which `last` is the last."""
    connections.part[i] = connections.part[last]
    connections.weight[i] = connections.weight[last]
    connections.n_others[v] -= 1
