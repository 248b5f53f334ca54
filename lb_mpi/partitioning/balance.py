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
from lb_mpi.partitioning.connections import move_tie, move_vertex, sift_down, sift_up

ROUNDING = 1.0 + 1e-12  # of bounds: sums of weights are not exact


class Bounds(NamedTuple):
    """What the parts may weigh, and what they should."""

    upper: Floats  # (k,) the largest weights
    targets: Floats  # (k,) fractions that add up to 1; those asked for, but for parts that a heavy vertex fills
    packing: Ints | None  # (n,) a partition that keeps to `upper`; None: it is a matter of course that there are some


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
def pack(weights, order, shares):  # type: ignore[no-untyped-def]
    """(n,) part of each vertex: each, in `order`, goes about where weight / share is least afterwards."""
    k = len(shares)
    part = np.zeros(len(weights), np.int64)
    loads, key, heap, place = np.zeros(k), np.empty(k), np.arange(k), np.arange(k)
    unit = np.inf
    for v in order:
        if weights[v] < 0.99 * unit:  # the keys count in a vertex of this weight
            unit = weights[v]
            for p in range(k):
                heap[p] = p
                key[p] = -(loads[p] + unit) / shares[p]
                sift_up(p, heap, place, key)
        p = heap[0]
        part[v] = p
        loads[p] += weights[v]
        key[p] = -(loads[p] + unit) / shares[p]
        sift_down(0, k, heap, place, key)
    return part


@njit(cache=True)
def rebalance(  # type: ignore[no-untyped-def]
    indptr, indices, weights, vertex_weights, part, part_weights, bounds, tie_part, tie, n_ties, own
):
    """Move vertices out of parts above their bound into parts with room, those first that cost the least cut."""
    n, k = len(vertex_weights), len(bounds)
    key = np.zeros(n)
    heap = np.empty(n, np.int64)
    place = np.full(n, -1)
    size = 0
    for v in range(n):
        if part_weights[part[v]] > bounds[part[v]] and vertex_weights[v] > 0:
            best = 0.0
            for e in range(indptr[v], indptr[v] + n_ties[v]):
                best = max(best, tie[e])
            key[v] = best - own[v]
            heap[size] = v
            size += 1
            sift_up(size - 1, heap, place, key)
    while size > 0:
        v = heap[0]
        source, target, best = part[v], -1, -np.inf
        if part_weights[source] > bounds[source]:
            for e in range(indptr[v], indptr[v] + n_ties[v]):
                p = tie_part[e]
                if tie[e] > best and part_weights[p] + vertex_weights[v] <= bounds[p]:
                    target, best = p, tie[e]
            if target < 0:
                room = -np.inf
                for p in range(k):
                    if bounds[p] - part_weights[p] > room and p != source:
                        target, room = p, bounds[p] - part_weights[p]
                best = 0.0
                if room < vertex_weights[v]:
                    target = -1
            best -= own[v]
            if target >= 0 and best < key[v]:
                key[v] = best
                sift_down(0, size, heap, place, key)
                if heap[0] != v:
                    continue
        size -= 1
        place[v] = -1
        if size > 0:
            heap[0] = heap[size]
            place[heap[0]] = 0
            sift_down(0, size, heap, place, key)
        if target < 0:
            continue
        move_vertex(v, target, part, part_weights, vertex_weights, indptr, indices, weights, tie_part, tie, n_ties, own)
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            move_tie(u, weights[e], source, target, part, indptr, tie_part, tie, n_ties, own)
            if place[u] >= 0:
                best = 0.0
                for f in range(indptr[u], indptr[u] + n_ties[u]):
                    best = max(best, tie[f])
                best -= own[u]
                if best > key[u]:
                    key[u] = best
                    sift_up(place[u], heap, place, key)
                elif best < key[u]:
                    key[u] = best
                    sift_down(place[u], size, heap, place, key)
