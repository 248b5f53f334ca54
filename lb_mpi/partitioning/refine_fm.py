"""Refinement: localized k-way Fiduccia-Mattheyses search with rollback.   (pure)

A search starts at some vertices of the boundary, moves the vertex of highest gain to the part it is connected to most,
be that a gain or a loss, takes up its neighbours, and goes on until it has become unlikely to find anything better
(Osipov & Sanders, "n-level graph partitioning", ESA 2010).  Then everything after its best point is taken back.
Many searches that start from few vertices each find more than one that starts from all (Sanders & Schulz,
"Engineering multilevel graph partitioning algorithms", ESA 2011, "multi-try FM").  A vertex moves once in a round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.balance import Connections, Parts, find_connections, find_parts, move, rebalance, strongest
from lb_mpi.partitioning.coarsen import Csr
from lb_mpi.partitioning.compiled import DONE, Heap, State, borrowing, clear, inlined, make_heap, put, remove, shuffle

LATEST = 1e-7  # of the heaviest edge: of equal gains the one that was found last goes first, which keeps a search local
SMALLEST = 1e-12  # of the largest gain so far: less is a rounding error


class Round(NamedTuple):
    """What the searches of one round have in common."""

    heap: Heap  # the vertices taken up, by gain and `bonus`; DONE: has moved in this round
    gain: Floats  # (n,) what the best move of a vertex in the heap gains
    bonus: Floats  # (2,) of the latest vertex, and by how much it rises each time
    moved: Ints  # (n,) the vertices that have moved, in order
    source: Ints  # (n,) beside `moved`: from which parts


@njit(cache=True)
def begin_round(graph: Csr) -> Round:
    """Return an empty round."""
    n = len(graph.vertex_weights)
    step = LATEST * graph.weights.max() if len(graph.weights) else 0.0
    bonus = np.array([0.0, step])
    return Round(make_heap(n), np.zeros(n), bonus, np.empty(n, np.int64), np.empty(n, np.int64))


@inlined
def take_up(graph: Csr, connections: Connections, this: Round, v: int) -> None:
    """Put v into the heap, or bring its key up to date; out of it, if v is connected to its own part only."""
    if this.heap.place[v] == DONE:
        return
    if connections.n_others[v] == 0:
        remove(this.heap, v)
        return
    this.gain[v] = strongest(graph, connections, v, -np.inf) - connections.inner[v]
    this.bonus[0] += this.bonus[1]
    put(this.heap, v, this.gain[v] + this.bonus[0])


@inlined
def best_move(graph: Csr, parts: Parts, connections: Connections, v: int) -> tuple[int, float]:
    """The part with room for v that it is connected to most, of equal ones the emptier, and the gain; -1, -inf: none."""
    weights, bounds = parts.weights, parts.bounds
    target, best = -1, -np.inf
    for i in range(graph.indptr[v], graph.indptr[v] + connections.n_others[v]):
        p, weight = connections.part[i], connections.weight[i]
        if weight < best or weights[p] + graph.vertex_weights[v] > bounds[p]:
            continue
        if weight > best or weights[p] * bounds[target] < weights[target] * bounds[p]:
            target, best = p, weight
    return target, best - connections.inner[v]


@inlined
def is_hopeless(steps: int, total: float, squares: float, patience: float) -> bool:
    """Tell from the gains of so many steps, their sum and sum of squares, that nothing better is likely to come."""
    if steps > 350 * patience:
        return True
    if steps <= 2 or steps <= 10 * patience:
        return False
    mean = total / steps
    return mean <= 0 and steps * mean * mean > patience * (squares / steps - mean * mean)


@borrowing
def search(
    graph: Csr, parts: Parts, connections: Connections, this: Round, kept: int, patience: float
) -> tuple[float, int]:
    """Search from the vertices in the heap, and go back to the best point: the gain, and how many stay moved in all.

    kept : how many of this.moved earlier searches have left.
    """
    heap = this.heap
    count = best_count = kept
    gain, best_gain, largest = 0.0, 0.0, 0.0
    steps, total, squares = 0, 0.0, 0.0  # since the best point
    while heap.size[0] > 0 and not is_hopeless(steps, total, squares, patience):
        v = heap.items[0]
        target, step = best_move(graph, parts, connections, v)
        if target >= 0 and step < this.gain[v]:  # its best part is full
            this.gain[v] = step
            put(heap, v, step + this.bonus[0])
            if heap.items[0] != v:
                continue
        remove(heap, v)
        if target < 0:
            continue
        heap.place[v] = DONE
        this.moved[count], this.source[count] = v, parts.of[v]
        count += 1
        move(graph, parts, connections, v, target)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            take_up(graph, connections, this, graph.indices[e])
        gain += step
        largest = max(largest, abs(gain))
        steps, total, squares = steps + 1, total + step, squares + step * step
        if gain >= best_gain - SMALLEST * largest:
            if gain > best_gain + SMALLEST * largest:
                steps, total, squares = 0, 0.0, 0.0
            best_gain, best_count = gain, count
    clear(heap)
    for i in range(count - 1, best_count - 1, -1):
        move(graph, parts, connections, this.moved[i], this.source[i])
    return best_gain, best_count


@njit(cache=True)
def search_all(
    graph: Csr, parts: Parts, connections: Connections, seeds: Ints, at_once: int, patience: float, state: State
) -> tuple[float, Ints]:
    """One round of searches from seeds (any number,), `at_once` of them each: the gain, and the vertices that have moved.

    A part that is within its bound stays so; the cut does not grow.
    """
    this = begin_round(graph)
    shuffle(seeds, len(seeds), state)
    gained, kept, i = 0.0, 0, 0
    while i < len(seeds):
        while i < len(seeds) and this.heap.size[0] < at_once:
            take_up(graph, connections, this, seeds[i])
            i += 1
        gain, kept = search(graph, parts, connections, this, kept, patience)
        gained += gain
    return gained, this.moved[:kept].copy()


@njit(cache=True)
def boundary_near(graph: Csr, connections: Connections, vertices: Ints) -> Ints:
    """Those of `vertices` and their neighbours that are at the boundary of their parts, each once."""
    marked = np.zeros(len(graph.vertex_weights), np.bool_)
    found = np.empty(len(marked), np.int64)
    size = 0
    for v in vertices:
        if not marked[v] and connections.n_others[v] > 0:
            marked[v] = True
            found[size] = v
            size += 1
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if not marked[u] and connections.n_others[u] > 0:
                marked[u] = True
                found[size] = u
                size += 1
    return found[:size]


@njit(cache=True)
def refine(
    graph: Csr, part: Ints, bounds: Floats, rounds: int, patience: float, seeds_at_once: int, state: State
) -> float:
    """Rebalance part (n,), in place, if a bound (k,) is broken, then search in up to `rounds` rounds.

    The first round starts from the whole boundary, the others from where the last one has moved vertices.  Returns by
    how much the searches have made the cut lighter; seeds_at_once <= 0 means the whole boundary at once.
    """
    parts = find_parts(graph, part, bounds)
    connections = find_connections(graph, part, len(bounds))
    if np.any(parts.weights > bounds):
        rebalance(graph, parts, connections)
    seeds = np.nonzero(connections.n_others)[0]
    gained = 0.0
    for _ in range(rounds):
        at_once = seeds_at_once if seeds_at_once > 0 else len(seeds)
        gain, moved = search_all(graph, parts, connections, seeds, at_once, patience, state)
        if gain <= 0:
            break
        gained += gain
        seeds = boundary_near(graph, connections, moved)
    return gained
