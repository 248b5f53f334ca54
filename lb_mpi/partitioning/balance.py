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
from lb_mpi.partitioning.compiled import borrowing, inlined
from lb_mpi.partitioning.connections import Connections, Parts, move, strongest
from lb_mpi.partitioning.heap import clear, make_heap, put, remove

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
    """(n,) part of each vertex: each, in `order`, goes about where weight / share is least afterwards."""
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
