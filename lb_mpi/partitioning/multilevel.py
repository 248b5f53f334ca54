"""The multilevel partitioner."""

from __future__ import annotations

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.partitioning.bisect import bisect_recursively
from lb_mpi.partitioning.coarsen import coarsen, csr, random_state
from lb_mpi.partitioning.refine_fm import refine


def multilevel(graph: Graph, targets: Floats, imbalance: float, effort: str, seed: int) -> Ints:
    """(n,) part of each vertex, 0..k-1."""
    k = len(targets)
    state = random_state(seed)
    fine = csr(graph)
    total = float(fine.vertex_weights.sum())
    bounds = (1 + imbalance) * targets * total * (1 + 1e-12)
    coarsest = max(20 * k, 100)
    levels = coarsen(fine, coarsest, 1.5 * total / coarsest, state)
    finer = [fine, *(level.csr for level in levels)]
    part = bisect_recursively(finer[-1], targets, bounds, 8, state)
    refine(*finer[-1], part, bounds, 3, 1.0, 1, state)
    for level, csr_ in zip(reversed(levels), reversed(finer[:-1]), strict=True):
        part = part[level.group]
        refine(*csr_, part, bounds, 3, 1.0, 1, state)
    return part
