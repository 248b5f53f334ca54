"""Balance: the largest weight that each part may have, and how parts get below it.   (pure)

The bound of part j is (1 + imbalance) * targets[j] * total weight.  Where vertices are too heavy or too few for that,
as shown by a packing of the heaviest first (Graham 1969, for unequal parts), a part that holds nothing but a vertex
heavier than its bound may weigh as much as that vertex, and the others take their shares of the rest.  If that is not
enough, because weights come in lumps, the bounds of these are raised by one factor, to what the packing needs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.coarsen import Csr
from lb_mpi.partitioning.compiled import borrowing, clear, inlined, make_heap, put, remove

# --- How strongly each vertex is connected to each part, kept up to date while vertices move --------------------------
#
# It is kept in lists as long as the vertex's degree (Karypis & Kumar 1998), so memory is O(n + E).


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


# --- The bounds, and how parts get below them -------------------------------------------------------------------------

ROUNDING = 1.0 + 1e-12  # of bounds: sums of weights are not exact


class Bounds(NamedTuple):
    """What the parts may weigh, and what they should."""

    upper: Floats  # (k,) the largest weights
    targets: Floats  # (k,) fractions that add up to 1; those asked for, but for parts that a heavy vertex fills
    packing: Ints | None  # (n,) a partition that keeps to `upper`; None: there always are some


def find_bounds(weights: Floats, targets: Floats, imbalance: float) -> Bounds:
    """The bounds for vertices of `weights` (n,) and targets (k,), fractions that add up to 1."""
    total = float(weights.sum())
    shares = targets * total
    upper = (1.0 + imbalance) * shares * ROUNDING
    if float(weights.max()) <= float((upper - shares).min()):
        return Bounds(upper, targets, None)  # any vertex left over fits into a part that is below its share
    k = len(targets)
    packing = pack(weights, np.argsort(-weights, kind="stable"), shares)
    loads = np.bincount(packing, weights, minlength=k)
    filled = (loads > upper) & (np.bincount(packing[weights > 0], minlength=k) == 1)
    upper = np.where(filled, loads * ROUNDING, upper)
    if not filled.all():
        needed = float((loads / shares)[~filled].max())
        upper = np.where(filled, upper, np.maximum(upper, needed * shares * ROUNDING))
        rest = max(total - float(loads[filled].sum()), 1e-9 * total)
        targets = np.where(filled, loads / total, targets / targets[~filled].sum() * rest / total)
        targets = targets / targets.sum()
    return Bounds(upper, targets, packing)


@njit(cache=True)
def pack(weights: Floats, order: Ints, shares: Floats) -> Ints:
    """Return (n,) part of each vertex: each, in `order`, goes about where weight / share is least afterwards."""
    k = len(shares)
    part = np.zeros(len(weights), np.int64)
    loads, heap = np.zeros(k), make_heap(k)
    unit = np.inf
    for v in order:
        if weights[v] < 0.99 * unit:  # the keys count in a vertex of this weight
            unit = weights[v]
            clear(heap)
            for p in range(k):
                put(heap, p, -(loads[p] + unit) / shares[p])
        p = heap.items[0]
        part[v] = p
        loads[p] += weights[v]
        put(heap, p, -(loads[p] + unit) / shares[p])
    return part


@borrowing
def rebalance(graph: Csr, parts: Parts, connections: Connections) -> None:
    """Move vertices out of parts above their bound into parts with room, those first that cost the least cut."""
    n = len(parts.of)
    heap = make_heap(n)
    for v in range(n):
        if parts.weights[parts.of[v]] > parts.bounds[parts.of[v]] and graph.vertex_weights[v] > 0:
            put(heap, v, strongest(graph, connections, v, 0.0) - connections.inner[v])
    while heap.size[0] > 0:
        v = heap.items[0]
        target, gain = way_out(graph, parts, connections, v)
        if target >= 0 and gain < heap.key[v]:
            put(heap, v, gain)
            if heap.items[0] != v:
                continue
        remove(heap, v)
        if target < 0:
            continue
        move(graph, parts, connections, v, target)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if heap.place[u] >= 0:
                put(heap, u, strongest(graph, connections, u, 0.0) - connections.inner[u])


@inlined
def way_out(graph: Csr, parts: Parts, connections: Connections, v: int) -> tuple[int, float]:
    """The part with room for v that it is connected to most, else the one with most room, and the gain; -1: none.

    None, too, if v's part is within its bound.
    """
    source, room_needed = parts.of[v], graph.vertex_weights[v]
    target, best = -1, -np.inf
    if parts.weights[source] <= parts.bounds[source]:
        return target, best
    for i in range(graph.indptr[v], graph.indptr[v] + connections.n_others[v]):
        p, weight = connections.part[i], connections.weight[i]
        if weight > best and parts.weights[p] + room_needed <= parts.bounds[p]:
            target, best = p, weight
    if target < 0:
        best, room = 0.0, -np.inf
        for p in range(len(parts.bounds)):
            if parts.bounds[p] - parts.weights[p] > room and p != source:
                target, room = p, parts.bounds[p] - parts.weights[p]
        if room < room_needed:
            target = -1
    return target, best - connections.inner[v]
