"""The multilevel partitioner: coarsen, bisect the coarsest graph recursively, restore and refine each level.   (pure)

Targets may be unequal at every step.  Further cycles coarsen without mixing the parts, start from the current partition, and
end with one that is not worse ("iterated multilevel", Walshaw 2004).  A cycle that mixes vertices only where two partitions
agree combines them: the parts common to both stay, and the refinement starts from the better one where they differ (Sanders
& Schulz, "Distributed evolutionary graph partitioning", ALENEX 2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.kernels import ZERO, check_interrupt, constant, inlined, njit
from lb_mpi.partitioning.coarsen import Csr, coarsen, csr, go_through, restore
from lb_mpi.partitioning.compiled import DONE, OUT, Heap, State, make_heap, next_random, pop, put, random_state
from lb_mpi.partitioning.flow import refine_by_flow
from lb_mpi.partitioning.refine import find_bounds, refine
from lb_mpi.partitioning.spectral import adjacency, connected, fiedler, of_matrix, split

# --- Bisections of a small graph: grown from random vertices, refined at once, the best of many -----------------------
#
# One side grows from a random vertex, adding the vertex that makes the cut lightest, until it has its target weight (greedy
# graph growing, Karypis & Kumar 1998).

ROUNDS, PATIENCE = constant(3), 1.0  # of the refinement of a bisection; searches start from the whole boundary at once


@njit(cache=True)
def excess_and_cut(graph: Csr, part: Ints, bounds: Floats) -> tuple[float, float]:
    """Return the sum of the parts' excesses above their bounds (k,), and the weight of the cut: less is better."""
    cut, excess = 0.0, 0.0
    part_weights = np.zeros(len(bounds))
    for v in range(len(part)):
        part_weights[part[v]] += graph.vertex_weights[v]
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            if part[graph.indices[e]] != part[v]:
                cut += graph.weights[e]
    for p in range(len(bounds)):
        excess += max(0.0, part_weights[p] - bounds[p])
    return excess, cut / 2


@njit(cache=True)
def grow(graph: Csr, start: int, target: float, state: State) -> Ints:
    """Return (n,) 0 for a side of about weight `target` grown from `start`, without vertices too heavy for it, else 1."""
    n = len(graph.vertex_weights)
    part = np.ones(n, np.int64)
    heap = make_heap(n)
    weight, candidate = 0.0, next_random(state, n)
    v = start
    while True:
        if weight + graph.vertex_weights[v] / 2 <= target:
            part[v] = 0
            heap.position[v] = DONE
            weight += graph.vertex_weights[v]
            reach_out(graph, part, heap, v)
        elif heap.size[0] == 0:
            return part
        if heap.size[0] > 0:
            v = pop(heap)
        else:  # the graph is not connected: continue anywhere
            candidate = next_out(heap, candidate)
            v = candidate
            if heap.position[v] != OUT:
                return part
        heap.position[v] = DONE


@inlined
def reach_out(graph: Csr, part: Ints, heap: Heap, v: int) -> None:
    """Put the neighbours of v, new on side 0, into the heap, keyed by how much lighter they would make the cut."""
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        u = graph.indices[e]
        if heap.position[u] == OUT:
            key = 0.0
            for f in range(graph.indptr[u], graph.indptr[u + 1]):
                key += graph.weights[f] if part[graph.indices[f]] == 0 else -graph.weights[f]
            put(heap, u, key)
        elif heap.position[u] >= 0:
            put(heap, u, heap.key[u] + 2 * graph.weights[e])


@inlined
def next_out(heap: Heap, v: int) -> int:
    """Return the next vertex after v, cyclically, that has never been in the heap; any if there is none."""
    for _ in range(len(heap.position)):
        v = (v + 1) % len(heap.position)
        if heap.position[v] == OUT:
            break
    return v


@njit(cache=True)
def best_grown(graph: Csr, target: float, bounds: Floats, first: Ints, tries: int, state: State) -> Ints:
    """Return the best of `tries` grown bisections and `first`, each refined: (n,) 0 or 1, least excess, then least cut.

    target : the weight of side 0; bounds (2,) : the largest weights of both sides; first (n,), or (0,) if there is none.
    """
    n = len(graph.vertex_weights)
    best = np.ones(n, np.int64)
    least = (np.inf, np.inf)
    for i in range(tries + 1):
        if i < tries:
            part = grow(graph, next_random(state, n), target, state)
        elif len(first) == n:
            part = first.copy()
        else:
            break
        refine(graph, part, bounds, ROUNDS, PATIENCE, ZERO, state)
        found = excess_and_cut(graph, part, bounds)
        if found < least:
            best, least = part, found
    return best


# --- Recursive bisection ----------------------------------------------------------------------------------------------

SMALL = 150  # vertices: smaller graphs are bisected many times, not coarsened further


class Starts(NamedTuple):
    """The initial bisections that are tried."""

    tries: int  # bisections grown from random vertices
    spectral: int  # number of uppermost levels of the recursion with spectral bisections
    matching: bool = False  # coarsen by matchings, not by groups


def bisect(graph: Csr, share: float, bounds: Floats, starts: Starts, state: State) -> Ints:
    """Return (n,) 0 or 1: a light cut, side 0 with `share` of the weight, both within bounds (2,) if possible."""
    check_interrupt()
    total = float(graph.vertex_weights.sum())
    levels = coarsen(graph, SMALL, 1.5 * total / SMALL, state, matching=starts.matching)
    coarsest = levels[-1].csr if levels else graph
    first = np.zeros(0, np.int64)
    if starts.spectral > 0 and (coarsest.n <= 4 * SMALL or starts.tries == 0):  # larger: coarsening has stalled
        first = split(-fiedler(coarsest).vector, coarsest.vertex_weights, share)
    part = best_grown(coarsest, share * total, bounds, first, starts.tries, state)

    def improve(fine: Csr, part: Ints) -> None:
        refine(fine, part, bounds, ROUNDS, PATIENCE, 0, state)

    return restore(graph, levels, part, improve)


def bisect_recursively(graph: Csr, targets: Floats, bounds: Floats, starts: Starts, state: State) -> Ints:
    """Return (n,) part of each vertex, 0..k-1; targets (k,) fractions, bounds (k,) the largest weights of the parts.

    Virtual edges connect a disconnected side while it is bisected itself.
    """
    k = len(targets)
    if k == 1 or graph.n <= 1:
        return np.full(graph.n, targets.argmax(), dtype=np.int64)
    half = k // 2
    total = float(graph.vertex_weights.sum())
    share = float(targets[:half].sum() / targets.sum())
    limits = bounds
    if k > 2:  # share the slack evenly among the remaining bisections
        slack = max(1.0, float(bounds.sum()) / total if total else 1.0) ** (1 / math.ceil(math.log2(k)))
        limits = np.array([share, 1 - share]) * total * slack
    part = bisect(connected(graph), share, limits, starts, state)
    if k == 2:
        return part
    result = np.empty(graph.n, np.int64)
    below = starts._replace(spectral=starts.spectral - 1)
    for side, chosen, offset in ((0, slice(0, half), 0), (1, slice(half, k), half)):
        vertices = np.flatnonzero(part == side)
        if len(vertices):
            piece = of_matrix(adjacency(graph)[vertices][:, vertices], graph.vertex_weights[vertices])
            result[vertices] = offset + bisect_recursively(piece, targets[chosen], bounds[chosen], below, state)
    return result


# --- Cycles: down to the coarsest graph and up again ------------------------------------------------------------------


class Effort(NamedTuple):
    """The effort spent on a partition."""

    coarsest: int  # vertices for each part in the coarsest graph
    first: int  # number of partitions of the coarsest graph; the best is restored
    starts: Starts  # of each of their bisections
    rounds: int  # of searches (see `refine`), at most, on each level
    patience: float  # of a search (see `refine.is_hopeless`)
    flow_rounds: int
    flow_layers: int  # the width of a corridor (see `flow`) on each side, in vertices
    cycles: int  # after the first one
    population: int  # number of partitions created so
    combinations: int  # number of combinations of two of them


EFFORTS = {
    "fast": Effort(40, 2, Starts(4, 0), 2, 0.3, 1, 4, 0, 1, 0),
    "good": Effort(60, 6, Starts(8, 2), 3, 0.3, 1, 5, 2, 1, 0),
    "best": Effort(60, 6, Starts(8, 9), 3, 0.3, 2, 10, 2, 4, 8),
}
SEEDS_AT_ONCE = 10  # of a search: fewer find no more, and are slower
FEWEST = 200  # vertices of a coarsest graph


def multilevel(graph: Graph, targets: Floats, imbalance: float, effort: str, seed: int) -> Ints:
    """Return (n,) part of each vertex, 0..k-1.

    targets (k,) : positive fractions that add up to 1.  No part weighs more than (1 + imbalance) * its target * total
    weight, as far as the weights of the vertices allow it (see `refine`); if all weights are 0, vertices count 1 each.
    effort : a key of `EFFORTS`.  The same arguments give the same partition.
    """
    return _within_bounds(partial(_evolve, effort=EFFORTS[effort]), graph, targets, imbalance, seed)


def multilevel_spectral(graph: Graph, targets: Floats, imbalance: float, seed: int, coarsening: str = "groups") -> Ints:
    """Return (n,) part of each vertex by textbook multilevel spectral bisection; arguments as above.

    coarsening : "groups" of vertices, or "matching" (see `coarsen`).

    Recursively, by unequal shares if targets require it: coarsen, split the coarsest graph at the weighted quantile of its
    Fiedler vector, restore level by level, and refine the bisection on each.  Hendrickson & Leland, "A multilevel algorithm
    for partitioning graphs" (SC 1995).  No other starts, no cycles, no refinement between k parts.
    """
    return _within_bounds(partial(_bisect, matching=coarsening == "matching"), graph, targets, imbalance, seed)


def _within_bounds(
    method: Callable[[Csr, Floats, Floats, State], Ints], graph: Graph, targets: Floats, imbalance: float, seed: int
) -> Ints:
    """Return the partition by `method`, or a refined packing if heavy vertices exceed the bounds."""
    state = random_state(seed)
    fine = csr(graph)
    if not fine.vertex_weights.any():
        fine = fine._replace(vertex_weights=np.ones(fine.n))
    bounds, targets, packing = find_bounds(fine.vertex_weights, targets, imbalance)
    if len(targets) == 1:
        return np.zeros(fine.n, dtype=np.int64)
    part = method(fine, targets, bounds, state)
    if packing is not None and excess_and_cut(fine, part, bounds)[0] > 0:  # heavy vertices: balance comes first
        part = packing
        refine(fine, part, bounds, 10, 1.0, SEEDS_AT_ONCE, state)
    fill(fine, part, bounds)
    return part


def fill(graph: Csr, part: Ints, bounds: Floats) -> None:
    """Give a vertex to each part without weight, as far as that is possible within bounds (k,), cheapest in cut first.

    A part that gives one away keeps another, so no part gets above its bound and none gets empty.
    """
    weights = graph.vertex_weights
    counts = np.bincount(part[weights > 0], minlength=len(bounds))
    empty = [p for p in np.argsort(bounds).tolist() if not counts[p]]  # the one with the largest bound last
    if not empty:
        return
    tails = np.repeat(np.arange(graph.n), np.diff(graph.indptr))
    inner = part[tails] == part[graph.indices]
    cost = np.bincount(tails[inner], graph.weights[inner], minlength=graph.n)
    for v in np.argsort(cost, kind="stable").tolist():
        if empty and 0 < weights[v] <= bounds[empty[-1]] and counts[part[v]] > 1:
            counts[part[v]] -= 1
            part[v] = empty.pop()


def _bisect(fine: Csr, targets: Floats, bounds: Floats, state: State, matching: bool) -> Ints:
    part = bisect_recursively(fine, targets, bounds, Starts(0, len(targets), matching), state)
    refine(fine, part, bounds, 0, 1.0, SEEDS_AT_ONCE, state)  # only balances, if bisections could not
    return part


def _evolve(fine: Csr, targets: Floats, bounds: Floats, state: State, effort: Effort) -> Ints:
    population = []
    for _ in range(effort.population):
        part = _cycle(fine, targets, bounds, effort, state)
        for _ in range(effort.cycles):
            part = _cycle(fine, targets, bounds, effort, state, part)
        population.append((excess_and_cut(fine, part, bounds), part))
    k = len(targets)
    draw = np.random.default_rng(int(state[0]))
    for _ in range(effort.combinations):
        population.sort(key=lambda member: member[0])
        one, other = sorted(draw.choice(len(population), 2, replace=False))
        part = population[one][1]
        part = _cycle(fine, targets, bounds, effort, state, part, part * k + population[other][1])
        part = _cycle(fine, targets, bounds, effort, state, part)
        population[other] = (excess_and_cut(fine, part, bounds), part)
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
    """Run one cycle from `part` (n,), if given, without mixing vertices of two blocks (n,) (None: of two parts)."""

    def improve(graph: Csr, part: Ints) -> None:
        refine(graph, part, bounds, effort.rounds, effort.patience, SEEDS_AT_ONCE, state)
        check_interrupt()
        refine_by_flow(graph, part, bounds, effort.flow_rounds, effort.flow_layers, state)

    coarsest = max(effort.coarsest * len(targets), FEWEST)
    largest = 1.5 * float(fine.vertex_weights.sum()) / coarsest
    levels = coarsen(fine, coarsest, largest, state, part if block is None else block)

    if part is not None:
        return go_through(fine, levels, part, improve)
    graph = levels[-1].csr if levels else fine
    candidates = []
    for attempt in range(effort.first):  # the spectral bisections of a second one would be the same again
        starts = effort.starts if attempt == 0 else effort.starts._replace(spectral=0)
        first = bisect_recursively(graph, targets, bounds, starts, state)
        improve(graph, first)
        candidates.append((excess_and_cut(graph, first, bounds), first))
    return restore(fine, levels, min(candidates, key=lambda candidate: candidate[0])[1], improve)
