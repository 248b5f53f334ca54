"""Recursive multilevel bisection with unequal targets: the first partition of a coarse graph.   (pure)"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.coarsen import Csr, coarsen
from lb_mpi.partitioning.grow import best_grown
from lb_mpi.partitioning.refine_fm import refine
from lb_mpi.partitioning.refine_flow import refine_by_flow

SMALL = 150  # vertices: grown and refined many times, not coarsened further


@njit(cache=True)
def side_of(indptr, indices, weights, vertex_weights, part, side):  # type: ignore[no-untyped-def]
    """The subgraph of the vertices with part[v] == side, and their numbers."""
    n = len(vertex_weights)
    number = np.full(n, -1)
    count, size = 0, 0
    for v in range(n):
        if part[v] == side:
            number[v] = count
            count += 1
            size += indptr[v + 1] - indptr[v]
    vertices = np.empty(count, np.int64)
    new_indptr = np.zeros(count + 1, np.int64)
    new_indices = np.empty(size, np.int64)
    new_weights = np.empty(size)
    end = 0
    for v in range(n):
        if number[v] >= 0:
            vertices[number[v]] = v
            for e in range(indptr[v], indptr[v + 1]):
                if number[indices[e]] >= 0:
                    new_indices[end] = number[indices[e]]
                    new_weights[end] = weights[e]
                    end += 1
            new_indptr[number[v] + 1] = end
    return new_indptr, new_indices[:end].copy(), new_weights[:end].copy(), vertex_weights[vertices], vertices


def bisect(graph: Csr, target: float, bounds: Floats, tries: int, state: np.ndarray, flow: int = 0) -> Ints:  # type: ignore[type-arg]
    """(n,) 0 or 1: a light cut with side 0 of weight near `target` and both within bounds (2,), if that can be."""
    levels = coarsen(graph, SMALL, 1.5 * float(graph.vertex_weights.sum()) / SMALL, state)
    finer = [graph, *(level.csr for level in levels)]
    part = np.ones(finer[-1].n, np.int64)
    part = best_grown(*finer[-1], target, bounds, part, tries, 3, 1.0, state)
    for level, fine in zip(reversed(levels), reversed(finer[:-1]), strict=True):
        part = part[level.group]
        refine(*fine, part, bounds, 3, 1.0, 0, state)
        if flow:
            refine_by_flow(*fine, part, bounds, flow, 8, state)
    return part


def bisect_recursively(graph: Csr, targets: Floats, bounds: Floats, tries: int, state: np.ndarray, flow: int = 0) -> Ints:  # type: ignore[type-arg]
    """(n,) part of each vertex, 0..k-1; targets (k,) fractions, bounds (k,) the largest weights of the parts."""
    k = len(targets)
    part = np.zeros(graph.n, np.int64)
    if k == 1:
        return part
    half = k // 2
    total = float(graph.vertex_weights.sum())
    share = float(targets[:half].sum() / targets.sum())
    # What may be too much in the end is shared among the bisections still to come.
    slack = max(1.0, float(bounds.sum()) / total if total else 1.0) ** (1 / math.ceil(math.log2(k)))
    limits = np.array([share, 1 - share]) * total * slack
    if k == 2:
        limits = bounds
    part = bisect(graph, share * total, limits, tries, state, flow)
    if k == 2:
        return part
    result = np.empty(graph.n, np.int64)
    for side, chosen, offset in ((0, slice(0, half), 0), (1, slice(half, k), half)):
        *arrays, vertices = side_of(*graph, part, side)
        if len(vertices):
            result[vertices] = offset + bisect_recursively(Csr(*arrays), targets[chosen], bounds[chosen], tries, state, flow)
    return result
