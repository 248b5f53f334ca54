"""The multilevel partitioner: coarsen, partition the coarsest graph, restore level by level and refine.   (pure)

A second and later cycle coarsens without mixing the parts, starts from the partition that is there, and ends with one
that is not worse ("iterated multilevel", Walshaw 2004).  Two partitions are combined by a cycle that mixes vertices
only where both agree: what is right in both of them stays, and the refinement finds where the better of the two
differs to its disadvantage (Sanders & Schulz, "Distributed evolutionary graph partitioning", ALENEX 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.partitioning.balance import find_bounds
from lb_mpi.partitioning.bisect import Starts, bisect_recursively, cut_and_excess
from lb_mpi.partitioning.coarsen import Csr, coarsen, csr, go_through, restore
from lb_mpi.partitioning.compiled import State, random_state
from lb_mpi.partitioning.refine_flow import refine_by_flow
from lb_mpi.partitioning.refine_fm import refine


class Effort(NamedTuple):
    """How much is tried."""

    coarsest: int  # vertices for each part in the coarsest graph
    first: int  # partitions of the coarsest graph, of which the best is restored
    starts: Starts  # of each of their bisections
    fm_rounds: int  # at most, on each level
    patience: float  # of a search (see `refine_fm.is_hopeless`)
    flow_rounds: int
    flow_layers: int  # the width of a corridor (see `refine_flow`) on each side, in vertices
    cycles: int  # after the first one
    population: int  # partitions made in this way
    combinations: int  # of two of them


EFFORTS = {
    "fast": Effort(40, 2, Starts(4, 0), 2, 0.3, 1, 4, 0, 1, 0),
    "good": Effort(60, 6, Starts(8, 2), 3, 0.3, 1, 5, 2, 1, 0),
    "best": Effort(60, 6, Starts(8, 9), 3, 0.3, 2, 10, 2, 4, 8),
}
SEEDS_AT_ONCE = 10  # of a search: fewer find no more, and take longer
FEWEST = 200  # vertices of a coarsest graph


def multilevel(graph: Graph, targets: Floats, imbalance: float, effort: str, seed: int) -> Ints:
    """Return (n,) part of each vertex, 0..k-1.

    targets (k,) : positive fractions that add up to 1.  No part weighs more than (1 + imbalance) * its target * total
    weight, as far as the weights of the vertices allow it (see `balance`); if all weights are 0, vertices count 1 each.
    effort : a key of `EFFORTS`.  The same arguments give the same partition.
    """

    def evolve(fine: Csr, targets: Floats, bounds: Floats, state: State) -> Ints:
        return _evolve(fine, targets, bounds, EFFORTS[effort], state)

    return _within_bounds(evolve, graph, targets, imbalance, seed)


def multilevel_spectral(graph: Graph, targets: Floats, imbalance: float, seed: int) -> Ints:
    """Return (n,) part of each vertex by multilevel spectral bisection as textbooks have it; arguments as above.

    Recursively, by unequal shares where the targets ask for it: coarsen, split the coarsest graph at the weighted quantile
    of its Fiedler vector, restore level by level, and refine the bisection on each.  Hendrickson & Leland, "A multilevel
    algorithm for partitioning graphs" (SC 1995).  No other starts, no cycles, no refinement between k parts.
    """

    def bisected(fine: Csr, targets: Floats, bounds: Floats, state: State) -> Ints:
        part = bisect_recursively(fine, targets, bounds, Starts(0, len(targets)), state)
        refine(fine, part, bounds, 0, 1.0, SEEDS_AT_ONCE, state)  # only balances, where bisections could not
        return part

    return _within_bounds(bisected, graph, targets, imbalance, seed)


def _within_bounds(
    method: Callable[[Csr, Floats, Floats, State], Ints], graph: Graph, targets: Floats, imbalance: float, seed: int
) -> Ints:
    """The partition by `method`, or where heavy vertices bring it above the bounds, a packing, refined."""
    state = random_state(seed)
    fine = csr(graph)
    if not fine.vertex_weights.any():
        fine = fine._replace(vertex_weights=np.ones(fine.n))
    bounds, targets, packing = find_bounds(fine.vertex_weights, targets, imbalance)
    if len(targets) == 1:
        return np.zeros(fine.n, dtype=np.int64)
    part = method(fine, targets, bounds, state)
    if packing is not None and _worth(fine, part, bounds)[0] > 0:  # heavy vertices: balance comes first
        part = packing
        refine(fine, part, bounds, 10, 1.0, SEEDS_AT_ONCE, state)
    return part


def _evolve(fine: Csr, targets: Floats, bounds: Floats, effort: Effort, state: State) -> Ints:
    population = []
    for _ in range(effort.population):
        part = _cycle(fine, targets, bounds, effort, state)
        for _ in range(effort.cycles):
            part = _cycle(fine, targets, bounds, effort, state, part)
        population.append((_worth(fine, part, bounds), part))
    k = len(targets)
    draw = np.random.default_rng(int(state[0]))
    for _ in range(effort.combinations):
        population.sort(key=lambda member: member[0])
        one, other = sorted(draw.choice(len(population), 2, replace=False))
        part = population[one][1]
        part = _cycle(fine, targets, bounds, effort, state, part, part * k + population[other][1])
        part = _cycle(fine, targets, bounds, effort, state, part)
        population[other] = (_worth(fine, part, bounds), part)
    return min(population, key=lambda member: member[0])[1]


def _cycle(
    fine: Csr,
    targets: Floats,
    bounds: Floats,
    effort: Effort,
    state: State,
    part: Ints | None = None,
    block: Ints | None = None,
) -> Ints:
    """One way down and up; from `part` (n,), if given, with no vertices of two blocks (n,) mixed (None: of two parts)."""
    coarsest = max(effort.coarsest * len(targets), FEWEST)
    largest = 1.5 * float(fine.vertex_weights.sum()) / coarsest
    levels = coarsen(fine, coarsest, largest, state, part if block is None else block)

    def improve(graph: Csr, part: Ints) -> None:
        _improve(graph, part, bounds, effort, state)

    if part is not None:
        return go_through(fine, levels, part, improve)
    first = _first(levels[-1].csr if levels else fine, targets, bounds, effort, state)
    return restore(fine, levels, first, improve)


def _first(graph: Csr, targets: Floats, bounds: Floats, effort: Effort, state: State) -> Ints:
    starts = effort.starts
    candidates = []
    for _ in range(effort.first):
        part = bisect_recursively(graph, targets, bounds, starts, state)
        _improve(graph, part, bounds, effort, state)
        candidates.append((_worth(graph, part, bounds), part))
        starts = starts._replace(spectral=0)  # it would find the same again
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _improve(graph: Csr, part: Ints, bounds: Floats, effort: Effort, state: State) -> None:
    refine(graph, part, bounds, effort.fm_rounds, effort.patience, SEEDS_AT_ONCE, state)
    refine_by_flow(graph, part, bounds, effort.flow_rounds, effort.flow_layers, state)


def _worth(graph: Csr, part: Ints, bounds: Floats) -> tuple[float, float]:
    cut, excess = cut_and_excess(graph, part, bounds)
    return excess, cut
