"""Recursive multilevel bisection with unequal targets: the first partition of a coarse graph.   (pure)"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.chance import State
from lb_mpi.partitioning.coarsen import Csr, coarsen
from lb_mpi.partitioning.connect import connected
from lb_mpi.partitioning.grow import PATIENCE, ROUNDS, best_grown
from lb_mpi.partitioning.refine_fm import refine
from lb_mpi.partitioning.spectral_bisection import fiedler_of, split

SMALL = 150  # vertices: bisected many times, not coarsened further


class Starts(NamedTuple):
    """How hard a bisection is tried."""

    tries: int  # bisections grown from random vertices
    spectral: int  # spectral bisections, too, in so many uppermost levels of the recursion


def bisect(graph: Csr, share: float, bounds: Floats, starts: Starts, state: State) -> Ints:
    """Return (n,) 0 or 1: a light cut, side 0 with `share` of the weight, both within bounds (2,) if that can be."""
    total = float(graph.vertex_weights.sum())
    levels = coarsen(graph, SMALL, 1.5 * total / SMALL, state)
    finer = [graph, *(level.csr for level in levels)]
    coarsest = finer[-1]
    first = np.zeros(0, np.int64)
    if starts.spectral > 0 and (coarsest.n <= 4 * SMALL or starts.tries == 0):  # larger: coarsening has stalled
        first = split(-fiedler_of(coarsest).vector, coarsest.vertex_weights, share)
    part: Ints = best_grown(coarsest, share * total, bounds, first, starts.tries, state)
    for level, fine in zip(reversed(levels), reversed(finer[:-1]), strict=True):
        part = part[level.group]
        refine(fine, part, bounds, ROUNDS, PATIENCE, 0, state)
    return part


def bisect_recursively(graph: Csr, targets: Floats, bounds: Floats, starts: Starts, state: State) -> Ints:
    """Return (n,) part of each vertex, 0..k-1; targets (k,) fractions, bounds (k,) the largest weights of the parts.

    Where a side is not connected, virtual edges hold it together while it is bisected itself.
    """
    k = len(targets)
    if k == 1 or graph.n <= 1:
        return np.full(graph.n, targets.argmax(), dtype=np.int64)
    half = k // 2
    total = float(graph.vertex_weights.sum())
    share = float(targets[:half].sum() / targets.sum())
    limits = bounds
    if k > 2:  # the slack is shared evenly among the bisections still to come
        slack = max(1.0, float(bounds.sum()) / total if total else 1.0) ** (1 / math.ceil(math.log2(k)))
        limits = np.array([share, 1 - share]) * total * slack
    part = bisect(connected(graph), share, limits, starts, state)
    if k == 2:
        return part
    result = np.empty(graph.n, np.int64)
    below = starts._replace(spectral=starts.spectral - 1)
    for side, chosen, offset in ((0, slice(0, half), 0), (1, slice(half, k), half)):
        piece, vertices = side_of(graph, part, side)
        if len(vertices):
            result[vertices] = offset + bisect_recursively(piece, targets[chosen], bounds[chosen], below, state)
    return result


@njit(cache=True)
def side_of(graph: Csr, part: Ints, side: int) -> tuple[Csr, Ints]:
    """The subgraph of the vertices with part[v] == side, and these vertices, ascending."""
    n = len(part)
    number = np.full(n, -1)
    count, size = 0, 0
    for v in range(n):
        if part[v] == side:
            number[v] = count
            count += 1
            size += graph.indptr[v + 1] - graph.indptr[v]
    vertices = np.empty(count, np.int64)
    indptr = np.zeros(count + 1, np.int64)
    indices = np.empty(size, np.int64)
    weights = np.empty(size)
    end = 0
    for v in range(n):
        if number[v] >= 0:
            vertices[number[v]] = v
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                if number[graph.indices[e]] >= 0:
                    indices[end] = number[graph.indices[e]]
                    weights[end] = graph.weights[e]
                    end += 1
            indptr[number[v] + 1] = end
    return Csr(indptr, indices[:end].copy(), weights[:end].copy(), graph.vertex_weights[vertices]), vertices
