"""Bisections of a small graph: grown from random vertices, refined at once, the best of many.   (pure)

One side grows from a random vertex, taking in the vertex that makes the cut lightest, until it has its target weight
(greedy graph growing, Karypis & Kumar 1998).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.chance import State, next_random
from lb_mpi.partitioning.coarsen import Csr
from lb_mpi.partitioning.compiled import inlined
from lb_mpi.partitioning.heap import DONE, OUT, Heap, make_heap, pop, put
from lb_mpi.partitioning.refine_fm import refine

ROUNDS, PATIENCE = 3, 1.0  # of the refinement of a bisection; searches start from the whole boundary at once


@njit(cache=True)
def cut_and_excess(graph: Csr, part: Ints, bounds: Floats) -> tuple[float, float]:
    """The weight of the cut, and by how much the parts are above their bounds (k,), added up."""
    cut, excess = 0.0, 0.0
    part_weights = np.zeros(len(bounds))
    for v in range(len(part)):
        part_weights[part[v]] += graph.vertex_weights[v]
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            if part[graph.indices[e]] != part[v]:
                cut += graph.weights[e]
    for p in range(len(bounds)):
        excess += max(0.0, part_weights[p] - bounds[p])
    return cut / 2, excess


@njit(cache=True)
def grow(graph: Csr, start: int, target: float, state: State) -> Ints:
    """(n,) 0 for a side of about weight `target` grown from vertex `start`, 1 for the others.

    A vertex that is too heavy for what is left of the target is passed over.
    """
    n = len(graph.vertex_weights)
    part = np.ones(n, np.int64)
    heap = make_heap(n)
    weight, looked = 0.0, next_random(state, n)
    v = start
    while True:
        if weight + graph.vertex_weights[v] / 2 <= target:
            part[v] = 0
            heap.place[v] = DONE
            weight += graph.vertex_weights[v]
            reach_out(graph, part, heap, v)
        elif heap.size[0] == 0:
            return part
        if heap.size[0] > 0:
            v = pop(heap)
        else:  # the graph is not connected: go on anywhere
            looked = next_out(heap, looked)
            v = looked
            if heap.place[v] != OUT:
                return part
        heap.place[v] = DONE


@inlined
def reach_out(graph: Csr, part: Ints, heap: Heap, v: int) -> None:
    """Bring the neighbours of v, new on side 0, into the heap: by how much lighter they'd make the cut."""
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        u = graph.indices[e]
        if heap.place[u] == OUT:
            key = 0.0
            for f in range(graph.indptr[u], graph.indptr[u + 1]):
                key += graph.weights[f] if part[graph.indices[f]] == 0 else -graph.weights[f]
            put(heap, u, key)
        elif heap.place[u] >= 0:
            put(heap, u, heap.key[u] + 2 * graph.weights[e])


@inlined
def next_out(heap: Heap, v: int) -> int:
    """The next vertex after v, round the end, that has never been in the heap; any if there is none."""
    for _ in range(len(heap.place)):
        v = (v + 1) % len(heap.place)
        if heap.place[v] == OUT:
            break
    return v


@njit(cache=True)
def best_grown(graph: Csr, target: float, bounds: Floats, first: Ints, tries: int, state: State) -> Ints:
    """The best of `tries` grown bisections and of `first`, each refined: (n,) 0 or 1, least excess, then least cut.

    target : the weight of side 0; bounds (2,) : the largest weights of both sides; first (n,), or (0,) if there is none.
    """
    n = len(graph.vertex_weights)
    best = np.ones(n, np.int64)
    best_cut = best_excess = np.inf
    for i in range(tries + 1):
        if i < tries:
            part = grow(graph, next_random(state, n), target, state)
        elif len(first) == n:
            part = first.copy()
        else:
            break
        refine(graph, part, bounds, ROUNDS, PATIENCE, 0, state)
        cut, excess = cut_and_excess(graph, part, bounds)
        if excess < best_excess or (excess == best_excess and cut < best_cut):
            best, best_cut, best_excess = part, cut, excess
    return best
