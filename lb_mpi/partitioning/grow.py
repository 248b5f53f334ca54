"""Bisections of a small graph: grown from random vertices, refined at once, the best of many.   (pure)

One side grows from a random vertex, taking in the vertex that makes the cut lightest, until it has its target weight
(greedy graph growing, Karypis & Kumar 1998).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lb_mpi.partitioning.chance import next_random
from lb_mpi.partitioning.connections import sift_down, sift_up
from lb_mpi.partitioning.refine_fm import refine


@njit(cache=True)
def cut_and_excess(indptr, indices, weights, vertex_weights, part, bounds):  # type: ignore[no-untyped-def]
    """The weight of the cut, and by how much the parts are above their bounds (k,), added up."""
    cut, excess = 0.0, 0.0
    part_weights = np.zeros(len(bounds))
    for v in range(len(vertex_weights)):
        part_weights[part[v]] += vertex_weights[v]
        for e in range(indptr[v], indptr[v + 1]):
            if part[indices[e]] != part[v]:
                cut += weights[e]
    for p in range(len(bounds)):
        excess += max(0.0, part_weights[p] - bounds[p])
    return cut / 2, excess


@njit(cache=True)
def grow(indptr, indices, weights, vertex_weights, start, target, state):  # type: ignore[no-untyped-def]
    """(n,) 0 for a side of about weight `target` grown from vertex `start`, 1 for the others."""
    n = len(vertex_weights)
    part = np.ones(n, np.int64)
    key = np.zeros(n)
    heap = np.empty(n, np.int64)
    place = np.full(n, -1)
    size, weight, looked = 0, 0.0, next_random(state, n)
    v = start
    while True:
        if weight + vertex_weights[v] / 2 > target:
            if size == 0:
                break
        else:
            part[v] = 0
            place[v] = -2
            weight += vertex_weights[v]
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if place[u] == -1:
                    key[u] = 0.0
                    for f in range(indptr[u], indptr[u + 1]):
                        key[u] += weights[f] if part[indices[f]] == 0 else -weights[f]
                    heap[size] = u
                    size += 1
                    sift_up(size - 1, heap, place, key)
                elif place[u] >= 0:
                    key[u] += 2 * weights[e]
                    sift_up(place[u], heap, place, key)
        if size > 0:
            v = heap[0]
            size -= 1
            place[v] = -2
            if size > 0:
                heap[0] = heap[size]
                place[heap[0]] = 0
                sift_down(0, size, heap, place, key)
        else:  # the graph is not connected: go on anywhere
            for _ in range(n):
                looked = (looked + 1) % n
                if place[looked] == -1:
                    break
            v = looked
            if place[v] != -1:
                break
            place[v] = -2
    return part


@njit(cache=True)
def best_grown(  # type: ignore[no-untyped-def]
    indptr, indices, weights, vertex_weights, target, bounds, first, tries, rounds, patience, state
):
    """The best of `tries` grown bisections and of `first`, each refined: (n,) 0 or 1, least excess, then least cut.

    target : the weight of side 0; bounds (2,) : the largest weights of both sides; first (n,), or (0,) if there is none.
    """
    n = len(vertex_weights)
    best = np.ones(n, np.int64)
    best_cut = best_excess = np.inf
    for i in range(tries + 1):
        if i < tries:
            part = grow(indptr, indices, weights, vertex_weights, next_random(state, n), target, state)
        elif len(first) == n:
            part = first.copy()
        else:
            break
        refine(indptr, indices, weights, vertex_weights, part, bounds, rounds, patience, 0, state)
        cut, excess = cut_and_excess(indptr, indices, weights, vertex_weights, part, bounds)
        if excess < best_excess or (excess == best_excess and cut < best_cut):
            best, best_cut, best_excess = part, cut, excess
    return best
