"""Coarsening: strongly connected vertices are merged, level by level, until the graph is small.   (pure)

An edge is rated by weight^2 / (product of its ends' vertex weights), "expansion^2" of Holtgrewe, Sanders & Schulz,
"Engineering a scalable high quality graph partitioner" (IPDPS 2010): heavy edges between light vertices come first, so that
coarse vertices have similar weights.  In random order, each single vertex joins the adjacent group with the best rating, the
sum over all edges to it (Heuer & Schlag, "Improving coarsening schemes for hypergraph partitioning by exploiting community
structure", SEA 2017).  Leaves of stars and isolated vertices, which remain single, are paired with others adjacent to the
same vertex ("two-hop matching", LaSalle et al. 2015).  Groups respect a largest weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.kernels import check_interrupt, njit
from lb_mpi.partitioning.compiled import State, next_random, shuffle

Flags = NDArray[np.bool_]

FASTEST = 0.4  # least fraction of vertices that a level keeps: more levels refine more
SHRINK = 0.95  # if a level would keep a larger fraction of its vertices, coarsening has stalled


class Csr(NamedTuple):
    """The arrays of a `Graph` for the kernels, writeable and unchecked.  Neighbours are in any order."""

    indptr: Ints  # (n+1,)
    indices: Ints  # (2E,)
    weights: Floats  # (2E,)
    vertex_weights: Floats  # (n,)

    @property
    def n(self) -> int:
        """The number of vertices."""
        return len(self.vertex_weights)


def csr(graph: Graph | Csr) -> Csr:
    """Return copies of the arrays of `graph`: numba compiles anew for read-only arrays."""
    return Csr(graph.indptr.copy(), graph.indices.copy(), graph.weights.copy(), graph.vertex_weights.copy())


class Level(NamedTuple):
    """A graph of the hierarchy, and the mapping from the finer one."""

    csr: Csr
    group: Ints  # (n of the finer graph,) vertex of this graph


@njit(cache=True)
def cluster(graph: Csr, largest: float, block: Ints, state: State, matching: bool) -> tuple[Ints, int]:
    """Group the vertices: return (n,) each vertex's group, and the number of groups.

    No group is heavier than `largest`, or contains two blocks; block (n,) is any labelling of the vertices.  `matching`:
    nor has it more than two vertices.
    """
    n = len(graph.vertex_weights)
    group = np.arange(n)
    weight = graph.vertex_weights.copy()
    alone = np.ones(n, np.bool_)
    order = np.arange(n)
    shuffle(order, n, state)
    count = join_neighbours(graph, largest, block, order, group, weight, alone, state, matching)
    if count > 0.7 * n:
        pair_leaves(graph, largest, block, order, group, weight, alone)
    return renumber(group)


@njit(cache=True)
def join_neighbours(
    graph: Csr, largest: float, block: Ints, order: Ints, group: Ints, weight: Floats, alone: Flags, state: State,
    matching: bool,
) -> int:  # fmt: skip
    """Let each single vertex join the adjacent group with the best rating; return the number of groups left.

    Changes group (n,), weight (n,) of the groups, alone (n,).  `matching`: only another single vertex.
    """
    n = len(order)
    least = 1e-6 * graph.vertex_weights.sum() / n + 1e-300  # avoids divisions by weights of 0
    shared = np.zeros(n)  # weight of the edges between v and each group
    groups = np.empty(n, np.int64)
    count = n
    for v in order:
        if not alone[v]:
            continue
        size = 0
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if block[u] == block[v]:
                g = group[u]
                if shared[g] == 0.0:
                    groups[size] = g
                    size += 1
                shared[g] += graph.weights[e]
        best, best_rating, equal = -1, 0.0, 1
        for g in groups[:size]:
            if weight[g] + graph.vertex_weights[v] <= largest and g != v and (alone[g] or not matching):
                rating = shared[g] * shared[g] / (weight[g] + least)
                if rating > best_rating:
                    best, best_rating, equal = g, rating, 1
                elif rating == best_rating:
                    equal += 1
                    if next_random(state, equal) == 0:
                        best = g
            shared[g] = 0.0
        if best >= 0:
            group[v] = best
            weight[best] += graph.vertex_weights[v]
            alone[v] = alone[best] = False
            count -= 1
            if count < FASTEST * n:
                break
    return count


@njit(cache=True)
def pair_leaves(
    graph: Csr, largest: float, block: Ints, order: Ints, group: Ints, weight: Floats, alone: Flags
) -> None:
    """Pair vertices that are still single and have their heaviest edge to the same vertex, or no edges at all.

    Changes group (n,), alone (n,).
    """
    n = len(order)
    waiting = np.full(n + 1, -1)  # at each vertex: the single one attached to it; at n: the one without edges
    for v in order:
        if not alone[v]:
            continue
        hub, heaviest = n, -1.0
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            if graph.weights[e] > heaviest:
                hub, heaviest = graph.indices[e], graph.weights[e]
        other = waiting[hub]
        if other < 0 or block[other] != block[v] or weight[other] + graph.vertex_weights[v] > largest:
            waiting[hub] = v
        else:
            group[v] = other
            alone[v] = alone[other] = False
            waiting[hub] = -1


@njit(cache=True)
def renumber(group: Ints) -> tuple[Ints, int]:
    """Number the groups 0, 1, ... in the order of their first vertices, so that neighbours stay close in memory."""
    number = np.full(len(group), -1)
    numbered = np.empty(len(group), np.int64)
    count = 0
    for v in range(len(group)):
        g = group[v]
        if number[g] < 0:
            number[g] = count
            count += 1
        numbered[v] = number[g]
    return numbered, count


@njit(cache=True)
def contract(graph: Csr, group: Ints, count: int) -> Csr:
    """Return the graph of the groups: weights add up, parallel edges merge, edges within a group vanish."""
    first, members = members_of(group, count)
    vertex_weights = np.zeros(count)
    indptr = np.zeros(count + 1, np.int64)
    indices = np.empty(len(graph.indices), np.int64)
    weights = np.empty(len(graph.indices))
    edge = np.full(count, -1)
    end = 0
    for g in range(count):
        start = end
        for v in members[first[g] : first[g + 1]]:
            vertex_weights[g] += graph.vertex_weights[v]
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                h = group[graph.indices[e]]
                if h == g:
                    continue
                if edge[h] < start:
                    edge[h] = end
                    indices[end] = h
                    weights[end] = graph.weights[e]
                    end += 1
                else:
                    weights[edge[h]] += graph.weights[e]
        indptr[g + 1] = end
    return Csr(indptr, indices[:end].copy(), weights[:end].copy(), vertex_weights)


@njit(cache=True)
def members_of(group: Ints, count: int) -> tuple[Ints, Ints]:
    """Return (count + 1,) the start of each group's members, and (n,) the members by group, ascending in each."""
    first = np.zeros(count + 2, np.int64)
    for g in group:
        first[g + 2] += 1
    for g in range(count):
        first[g + 2] += first[g + 1]
    members = np.empty(len(group), np.int64)
    for v in range(len(group)):
        members[first[group[v] + 1]] = v
        first[group[v] + 1] += 1
    return first[:-1], members


def coarsen(
    fine: Csr, until: int, largest: float, state: State, block: Ints | None = None, *, matching: bool = False
) -> list[Level]:
    """Return the levels from the first coarser than `fine` to the coarsest, of at most `until` vertices if possible.

    `largest` : the largest weight of a coarse vertex; heavier fine ones stay single.  `block` (n,): a labelling whose blocks
    are not mixed, for instance a partition.  `matching`: pairs of vertices are merged, joined by heavy edges.
    """
    levels: list[Level] = []
    blocks = np.zeros(fine.n, np.int64) if block is None else block
    while fine.n > until:
        check_interrupt()
        group, count = cluster(fine, largest, blocks, state, matching)
        if count > SHRINK * fine.n:
            break
        next_blocks = np.zeros(count, np.int64)
        next_blocks[group] = blocks
        fine, blocks = contract(fine, group, count), next_blocks
        levels.append(Level(fine, group))
    return levels


def restore(fine: Csr, levels: list[Level], part: Ints, improve: Callable[[Csr, Ints], None]) -> Ints:
    """Return the part of each vertex of `fine`, from those of the coarsest graph, improved in place on each finer level."""
    graphs = [fine, *(level.csr for level in levels)]
    for level, graph in zip(reversed(levels), reversed(graphs[:-1]), strict=True):
        check_interrupt()
        part = part[level.group]
        improve(graph, part)
    return part


def go_through(fine: Csr, levels: list[Level], part: Ints, improve: Callable[[Csr, Ints], None]) -> Ints:
    """Return the given parts of `fine`, which the levels don't mix, improved from the coarsest graph up."""
    for level in levels:
        coarse = np.empty(level.csr.n, dtype=np.int64)
        coarse[level.group] = part
        part = coarse
    part = part.copy()
    improve(levels[-1].csr if levels else fine, part)
    return restore(fine, levels, part, improve)
