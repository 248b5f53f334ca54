"""Coarsening: vertices that are strongly tied become one, level by level, until the graph is small.   (pure)

An edge is rated by weight^2 / (product of its ends' vertex weights), "expansion^2" of Holtgrewe, Sanders & Schulz,
"Engineering a scalable high quality graph partitioner" (IPDPS 2010): heavy edges between light vertices go first, so
that the coarse vertices stay alike.  Each vertex that is still alone, in random order, joins the group beside it of
the best rating, all edges to it added up (Heuer & Schlag, "Improving coarsening schemes for hypergraph partitioning by
exploiting community structure", SEA 2017).  Leaves of stars and isolated vertices, whom this leaves alone, are paired
with others that hang on the same vertex ("two-hop matching", LaSalle et al. 2015).  Groups respect a largest weight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.partitioning.chance import next_random, shuffle

FASTEST = 0.4  # of its vertices, at least, a level keeps: more levels refine more
SHRINK = 0.95  # a level that keeps more of its vertices than this is not worth while: coarsening has stalled


class Csr(NamedTuple):
    """The arrays of a `Graph`, writeable and unchecked: what the kernels work on.  Neighbours are in any order."""

    indptr: Ints  # (n+1,)
    indices: Ints  # (2E,)
    weights: Floats  # (2E,)
    vertex_weights: Floats  # (n,)

    @property
    def n(self) -> int:
        """The number of vertices."""
        return len(self.vertex_weights)


def csr(graph: Graph) -> Csr:
    """The arrays of `graph`, copied: numba compiles anew for arrays that can't be written to."""
    return Csr(graph.indptr.copy(), graph.indices.copy(), graph.weights.copy(), graph.vertex_weights.copy())


class Level(NamedTuple):
    """A graph of the hierarchy and where the vertices of the finer one went."""

    csr: Csr
    group: Ints  # (n of the finer graph,) vertex of this graph


@njit(cache=True)
def cluster(indptr, indices, weights, vertex_weights, largest, block, state):  # type: ignore[no-untyped-def]
    """Group the vertices: (n,) number of each vertex's group, and the number of groups.

    No group is heavier than `largest`, or crosses two blocks; block (n,) is any labelling of the vertices.
    """
    n = len(vertex_weights)
    group = np.arange(n)
    weight = vertex_weights.copy()
    least = 1e-6 * vertex_weights.sum() / n + 1e-300  # so that weights of 0 can be divided by
    alone = np.ones(n, np.bool_)
    tied = np.zeros(n)  # to each group
    groups = np.empty(n, np.int64)
    order = np.arange(n)
    shuffle(order, n, state)
    count = n
    for i in range(n):
        v = order[i]
        if not alone[v]:
            continue
        size = 0
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if block[u] == block[v]:
                g = group[u]
                if tied[g] == 0.0:
                    groups[size] = g
                    size += 1
                tied[g] += weights[e]
        best, best_rating, equal = -1, 0.0, 1
        for j in range(size):
            g = groups[j]
            if weight[g] + vertex_weights[v] <= largest and g != v:
                rating = tied[g] * tied[g] / (weight[g] + least)
                if rating > best_rating:
                    best, best_rating, equal = g, rating, 1
                elif rating == best_rating:
                    equal += 1
                    if next_random(state, equal) == 0:
                        best = g
            tied[g] = 0.0
        if best >= 0:
            group[v] = best
            weight[best] += vertex_weights[v]
            alone[v] = alone[best] = False
            count -= 1
            if count < FASTEST * n:
                break
    if count > 0.7 * n:
        waiting = np.full(n + 1, -1)  # at each vertex: who hangs on it and is alone; at n: who hangs on none
        for i in range(n):
            v = order[i]
            if not alone[v]:
                continue
            hub, heaviest = n, -1.0
            for e in range(indptr[v], indptr[v + 1]):
                if weights[e] > heaviest:
                    hub, heaviest = indices[e], weights[e]
            other = waiting[hub]
            if other < 0 or block[other] != block[v] or weight[other] + vertex_weights[v] > largest:
                waiting[hub] = v
            else:
                group[v] = other
                alone[v] = alone[other] = False
                waiting[hub] = -1
    number = np.full(n, -1)
    count = 0
    for v in range(n):  # in the order of the vertices: neighbours stay near to each other in memory
        g = group[v]
        if number[g] < 0:
            number[g] = count
            count += 1
        group[v] = number[g]
    return group, count


@njit(cache=True)
def contract(indptr, indices, weights, vertex_weights, group, count):  # type: ignore[no-untyped-def]
    """The graph whose vertices are the groups: weights add up, parallel edges merge, edges within a group vanish."""
    n = len(vertex_weights)
    first = np.zeros(count + 1, np.int64)
    new_vertex_weights = np.zeros(count)
    for v in range(n):
        first[group[v] + 1] += 1
        new_vertex_weights[group[v]] += vertex_weights[v]
    for g in range(count):
        first[g + 1] += first[g]
    members = np.empty(n, np.int64)
    filled = first[:-1].copy()
    for v in range(n):
        members[filled[group[v]]] = v
        filled[group[v]] += 1
    new_indptr = np.zeros(count + 1, np.int64)
    new_indices = np.empty(len(indices), np.int64)
    new_weights = np.empty(len(indices))
    place = np.full(count, -1)
    end = 0
    for g in range(count):
        start = end
        for m in range(first[g], first[g + 1]):
            v = members[m]
            for e in range(indptr[v], indptr[v + 1]):
                h = group[indices[e]]
                if h == g:
                    continue
                if place[h] < start:
                    place[h] = end
                    new_indices[end] = h
                    new_weights[end] = weights[e]
                    end += 1
                else:
                    new_weights[place[h]] += weights[e]
        new_indptr[g + 1] = end
    return new_indptr, new_indices[:end].copy(), new_weights[:end].copy(), new_vertex_weights


def coarsen(fine: Csr, until: int, largest: float, state: Any, block: Ints | None = None) -> list[Level]:
    """The levels from the first coarser than `fine` to the coarsest, of at most `until` vertices if that can be.

    `largest` : the largest weight of a coarse vertex; heavier fine ones stay alone.  `block` (n,): a labelling whose
    blocks are not mixed, for instance a partition.
    """
    levels: list[Level] = []
    blocks = np.zeros(fine.n, np.int64) if block is None else block
    while fine.n > until:
        group, count = cluster(*fine, largest, blocks, state)
        if count > SHRINK * fine.n:
            break
        next_blocks = np.zeros(count, np.int64)
        next_blocks[group] = blocks
        fine, blocks = Csr(*contract(*fine, group, count)), next_blocks
        levels.append(Level(fine, group))
    return levels
