"""The multilevel partitioner."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.partitioning.bisect import bisect_recursively
from lb_mpi.partitioning.coarsen import Csr, coarsen, csr, random_state
from lb_mpi.partitioning.grow import cut_and_excess
from lb_mpi.partitioning.refine_fm import refine
from lb_mpi.partitioning.refine_flow import refine_by_flow


class Effort(NamedTuple):
    tries: int
    cycles: int
    rounds: int
    patience: float
    seeds_at_once: int
    flow: int = 0
    layers: int = 8
    starts: int = 1
    coarse: int = 60
    bisect_flow: int = 0


EFFORTS = {
    "fast": Effort(8, 0, 2, 0.3, 10, 1, 4, 2, 40, 0),
    "good": Effort(8, 2, 3, 0.3, 10, 1, 6, 6, 60, 0),
    "best": Effort(16, 10, 5, 1.0, 5, 3, 10, 10, 60, 0),
}


def cycle(fine: Csr, targets: Floats, bounds: Floats, part: Ints | None, effort: Effort, state) -> Ints:
    k = len(targets)
    total = float(fine.vertex_weights.sum())
    coarsest = max(effort.coarse * k, 200)
    levels = coarsen(fine, coarsest, 1.5 * total / coarsest, state, part)
    finer = [fine, *(level.csr for level in levels)]
    if part is None:
        best = (np.inf, np.inf)
        for _ in range(effort.starts):
            candidate = bisect_recursively(finer[-1], targets, bounds, effort.tries, state, effort.bisect_flow)
            refine(*finer[-1], candidate, bounds, effort.rounds, effort.patience, effort.seeds_at_once, state)
            if effort.flow:
                refine_by_flow(*finer[-1], candidate, bounds, effort.flow, effort.layers, state)
            cut, excess = cut_and_excess(*finer[-1], candidate, bounds)
            if (excess, cut) < best:
                best, part = (excess, cut), candidate
    else:
        for level in levels:
            coarse = np.zeros(level.csr.n, np.int64)
            coarse[level.group] = part
            part = coarse
    refine(*finer[-1], part, bounds, effort.rounds, effort.patience, effort.seeds_at_once, state)
    for level, csr_ in zip(reversed(levels), reversed(finer[:-1]), strict=True):
        part = part[level.group]
        refine(*csr_, part, bounds, effort.rounds, effort.patience, effort.seeds_at_once, state)
        if effort.flow:
            refine_by_flow(*csr_, part, bounds, effort.flow, effort.layers, state)
    return part


def multilevel(graph: Graph, targets: Floats, imbalance: float, effort: str, seed: int) -> Ints:
    """(n,) part of each vertex, 0..k-1."""
    state = random_state(seed)
    fine = csr(graph)
    total = float(fine.vertex_weights.sum())
    bounds = (1 + imbalance) * targets * total * (1 + 1e-12)
    settings = EFFORTS[effort]
    part = cycle(fine, targets, bounds, None, settings, state)
    for _ in range(settings.cycles):
        part = cycle(fine, targets, bounds, part, settings, state)
    return part
