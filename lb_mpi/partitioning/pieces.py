"""Parts in one piece: what lies apart joins its neighbours, and moves that would split a part are not made.   (pure)

A vertex may leave its part when its neighbours in the part are connected without it.  A walk from one of them, through the
part, looks for the others; one that has come too far gives up, and the vertex stays.

Balance comes first: what is brought down is the cut plus mu times the sum over parts of weight^2 / target, with a rising mu,
until every part is within its bound.  Unlike a bound, that sum lets weight flow through parts that are full themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.partitioning.balance import Connections, Parts, find_bounds, find_connections, find_parts, move
from lb_mpi.partitioning.bisect import cut_and_excess
from lb_mpi.partitioning.coarsen import Csr, coarsen, contract, csr, go_through
from lb_mpi.partitioning.compiled import State, borrowing, random_state, shuffle

FARTHEST = 1000  # vertices that a walk looks at
ROUNDS = 10  # sweeps over the boundary, for each mu
DOUBLINGS = 16  # of mu
LEAST = 1e-9  # of the mean edge weight: less is no gain
CYCLES = 3
COARSEST, FEWEST = 20, 200  # vertices of the coarsest graph: for each part, and at least


class Walk(NamedTuple):
    """Room for walks through a part."""

    seen: Ints  # (n,) stamps: the latest walk that was to look for a vertex, or (one more) has come to it
    queue: Ints  # (n,)
    stamp: Ints  # (1,) rises by 2 with each walk


@njit(cache=True)
def make_walk(n: int) -> Walk:
    """Return room for n vertices."""
    return Walk(np.zeros(n, np.int64), np.empty(n, np.int64), np.ones(1, np.int64))


@borrowing
def can_leave(graph: Csr, part: Ints, v: int, walk: Walk) -> bool:
    """Tell if v's part, in one piece, surely stays so without v; False if it would be empty."""
    seen, queue, stamp = walk.seen, walk.queue, walk.stamp[0]
    walk.stamp[0] += 2
    wanted, first = 0, -1
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        if part[graph.indices[e]] == part[v]:
            first = graph.indices[e]
            seen[first] = stamp
            wanted += 1
    if wanted <= 1:
        return wanted == 1
    seen[v] = seen[first] = stamp + 1
    queue[0] = first
    found, head, end = 1, 0, 1
    while head < end and head < FARTHEST:
        for e in range(graph.indptr[queue[head]], graph.indptr[queue[head] + 1]):
            u = graph.indices[e]
            if part[u] != part[v] or seen[u] == stamp + 1:
                continue
            if seen[u] == stamp:
                found += 1
                if found == wanted:
                    return True
            seen[u] = stamp + 1
            queue[end] = u
            end += 1
        head += 1
    return False


@njit(cache=True)
def pieces_of(graph: Csr, part: Ints) -> tuple[Ints, int]:
    """Number the pieces of all parts: (n,) number of each vertex's piece, and how many there are."""
    n = len(part)
    piece = np.full(n, -1)
    stack = np.empty(n, np.int64)
    count = 0
    for start in range(n):
        if piece[start] >= 0:
            continue
        piece[start] = count
        stack[0], size = start, 1
        while size > 0:
            size -= 1
            v = stack[size]
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                u = graph.indices[e]
                if piece[u] < 0 and part[u] == part[v]:
                    piece[u] = count
                    stack[size] = u
                    size += 1
        count += 1
    return piece, count


def join_pieces(graph: Csr, part: Ints, k: int) -> None:
    """Leave each part its heaviest piece; the others, in place, go to the parts that they are connected to most.

    In a graph that is not connected: its heaviest in each component of the graph.
    """
    piece, count = pieces_of(graph, part)
    component, _ = pieces_of(graph, np.zeros_like(part))
    small = contract(graph, piece, count)
    _, first = np.unique(piece, return_index=True)
    owner, within = part[first], component[first]
    order = np.lexsort((-small.vertex_weights, within, owner))
    same = (np.diff(owner[order]) == 0) & (np.diff(within[order]) == 0)
    if same.any():
        owner[order[1:][same]] = -1
        give_away(small, owner, k)
        part[:] = owner[piece]


@njit(cache=True)
def give_away(graph: Csr, owner: Ints, k: int) -> None:
    """Give each vertex without an owner (-1), in place, that which it is connected to most, beginning next to owned ones."""
    shared = np.zeros(k)
    left = True
    while left:
        left = False
        for v in range(len(owner)):
            if owner[v] >= 0:
                continue
            best = -1
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                p = owner[graph.indices[e]]
                if p >= 0:
                    shared[p] += graph.weights[e]
                    if best < 0 or shared[p] > shared[best]:
                        best = p
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                shared[max(0, owner[graph.indices[e]])] = 0.0
            if best >= 0:
                owner[v] = best
                left = True


@borrowing
def sweep(graph: Csr, parts: Parts, others: Connections, shares: Floats, mu: float, order: Ints, walk: Walk) -> int:
    """Move each vertex, in `order`, to where it gains most, if anywhere, and its part holds together: how many have moved.

    mu = 0: only the cut counts, within the bounds.
    """
    moved, unit = 0, graph.weights.mean()
    for v in order:
        source, work = parts.of[v], graph.vertex_weights[v]
        leaving = (2.0 * parts.weights[source] - work) / shares[source]
        best, to = LEAST * unit, -1
        for i in range(graph.indptr[v], graph.indptr[v] + others.n_others[v]):
            p = others.part[i]
            gain = others.weight[i] - others.inner[v]
            if mu > 0.0:
                gain += mu * work * (leaving - (2.0 * parts.weights[p] + work) / shares[p])
            elif parts.weights[p] + work > parts.bounds[p]:
                continue
            if gain > best:
                best, to = gain, p
        if to >= 0 and can_leave(graph, parts.of, v, walk):
            move(graph, parts, others, v, to)
            moved += 1
    return moved


@njit(cache=True)
def refine_whole(graph: Csr, part: Ints, bounds: Floats, shares: Floats, state: State) -> None:
    """Bring parts (n,), in place, each in one piece, within their bounds (k,) as far as that goes, and the cut down.

    shares (k,) : the target weights.
    """
    parts = find_parts(graph, part, bounds)
    others = find_connections(graph, part, len(bounds))
    walk = make_walk(len(part))
    if len(graph.weights) == 0:
        return
    mu = graph.weights.mean() / graph.vertex_weights.mean()
    for _ in range(DOUBLINGS):
        if np.all(parts.weights <= bounds):
            break
        for _ in range(ROUNDS):
            order = np.nonzero(others.n_others)[0]
            shuffle(order, len(order), state)
            if sweep(graph, parts, others, shares, mu, order, walk) == 0 or np.all(parts.weights <= bounds):
                break
        mu *= 2.0
    for _ in range(ROUNDS):
        order = np.nonzero(others.n_others)[0]
        shuffle(order, len(order), state)
        if sweep(graph, parts, others, shares, 0.0, order, walk) == 0:
            break


def in_one_piece(graph: Graph, attempts: Iterable[Ints], targets: Floats, imbalance: float, seed: int) -> Ints:
    """Return (n,) the best of the `attempts`, made such that in each component of the graph each part is in one piece.

    The lightest cut of those within the bounds of the targets (k,), fractions (see `balance`); where all are above, because
    pieces can't be dealt out so, the one that is least.  Attempts after one that had to be changed in nothing are not asked
    for.
    """
    fine, state, k = csr(graph), random_state(seed), len(targets)
    if not fine.vertex_weights.any():
        fine = fine._replace(vertex_weights=np.ones(fine.n))
    bounds, targets, _ = find_bounds(fine.vertex_weights, targets, imbalance)
    shares = targets * float(fine.vertex_weights.sum())
    found = []
    for attempt in attempts:
        part = attempt.copy()
        join_pieces(fine, part, k)
        whole = np.array_equal(part, attempt)
        if not whole:
            part = _cycles(fine, part, bounds, shares, state)
        cut, excess = cut_and_excess(fine, part, bounds)
        found.append(((excess, cut), part))
        if whole:
            break
    return min(found, key=lambda one: one[0])[1]


def _cycles(fine: Csr, part: Ints, bounds: Floats, shares: Floats, state: State) -> Ints:
    """Balance and refine on all levels, some times over."""
    coarsest = max(COARSEST * len(bounds), FEWEST)
    largest = 1.5 * float(fine.vertex_weights.sum()) / coarsest

    def improve(graph: Csr, part: Ints) -> None:
        join_pieces(graph, part, len(bounds))  # a coarse vertex need not be in one piece
        refine_whole(graph, part, bounds, shares, state)

    for _ in range(CYCLES):
        levels = coarsen(fine, coarsest, largest, state, part)
        part = go_through(fine, levels, part, improve)
    return part
