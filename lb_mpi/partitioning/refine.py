"""Refinement of a partition: bring parts within their bounds, then reduce the cut by local searches.   (pure)

The bound of part j is (1 + imbalance) * targets[j] * total weight.  A packing, heaviest vertex first (Graham 1969, for
unequal parts), shows whether vertices are too heavy or too few for that.  Then a part that consists of a single vertex
heavier than its bound may have that weight, and the others share the rest by their targets.  If that is not enough, because
weights are coarse, one factor raises the bounds of these others as far as the packing needs.

A search (k-way Fiduccia & Mattheyses, with rollback) starts at some vertices of the boundary.  It moves the one of highest
gain, even if negative, to the part with the strongest connection, adds its neighbours, and stops when an improvement has
become unlikely (Osipov & Sanders, "n-level graph partitioning", ESA 2010).  Then all moves after its best point are undone.
Many searches that start from few vertices each find more than one that starts from all (Sanders & Schulz, "Engineering
multilevel graph partitioning algorithms", ESA 2011, "multi-try FM").  A vertex moves once in a round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Ints
from lb_mpi.kernels import ZERO, borrowing, inlined, njit
from lb_mpi.partitioning.coarsen import Csr
from lb_mpi.partitioning.compiled import DONE, Heap, State, clear, make_heap, put, remove, shuffle

# --- The strength of each vertex's connection to each part, updated while vertices move -------------------------------
#
# It is stored in lists as long as the vertex's degree (Karypis & Kumar 1998), so memory is O(n + E).


class Parts(NamedTuple):
    """A partition into k parts, to be improved."""

    of: Ints  # (n,) the part of each vertex
    weights: Floats  # (k,) of the parts
    bounds: Floats  # (k,) their largest allowed weights


class Connections(NamedTuple):
    """The weights of the edges between each vertex and each part.

    Vertex v is connected to the other parts part[i] with weight[i], i from indptr[v] on, n_others[v] of them.
    """

    part: Ints  # (2E,)
    weight: Floats  # (2E,)
    n_others: Ints  # (n,)
    inner: Floats  # (n,) to its own part


@njit(cache=True)
def find_parts(graph: Csr, part: Ints, bounds: Floats) -> Parts:
    """Compute the weights of the parts; part (n,) is not copied."""
    weights = np.zeros(len(bounds))
    for v in range(len(part)):
        weights[part[v]] += graph.vertex_weights[v]
    return Parts(part, weights, bounds)


@njit(cache=True)
def find_connections(graph: Csr, part: Ints, k: int) -> Connections:
    """Add up the connections of all vertices; part (n,) in 0..k-1."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    n = len(part)
    other = np.empty(len(indices), np.int64)
    weight = np.empty(len(indices))
    count = np.zeros(n, np.int64)
    inner = np.zeros(n)
    slot = np.full(k, -1)
    for v in range(n):
        start = end = indptr[v]
        for e in range(indptr[v], indptr[v + 1]):
            p = part[indices[e]]
            if p == part[v]:
                inner[v] += weights[e]
            elif slot[p] < start:
                slot[p] = end
                other[end] = p
                weight[end] = weights[e]
                end += 1
            else:
                weight[slot[p]] += weights[e]
        count[v] = end - start
    return Connections(other, weight, count, inner)


@inlined
def strongest(graph: Csr, connections: Connections, v: int, least: float) -> float:
    """Return the weight of v's strongest connection to another part; `least` if none is above that."""
    best = least
    for i in range(graph.indptr[v], graph.indptr[v] + connections.n_others[v]):
        best = max(best, connections.weight[i])
    return best


@inlined
def move(graph: Csr, parts: Parts, connections: Connections, v: int, target: int) -> None:
    """Move v to part `target`: update its part, both parts' weights, and the connections of v and its neighbours."""
    source = parts.of[v]
    turn_round(graph, connections, v, source, target)
    parts.of[v] = target
    parts.weights[source] -= graph.vertex_weights[v]
    parts.weights[target] += graph.vertex_weights[v]
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        u, weight = graph.indices[e], graph.weights[e]
        if parts.of[u] == source:
            connections.inner[u] -= weight
        else:
            connect(graph, connections, u, source, weight, -1.0)
        if parts.of[u] == target:
            connections.inner[u] += weight
        else:
            connect(graph, connections, u, target, weight, 1.0)


@inlined
def turn_round(graph: Csr, connections: Connections, v: int, source: int, target: int) -> None:
    """Update v's own connections as it moves: inner becomes outer, and vice versa."""
    start, end = graph.indptr[v], graph.indptr[v] + connections.n_others[v]
    to_source = connections.inner[v]
    connections.inner[v] = 0.0
    for i in range(start, end):
        if connections.part[i] == target:
            connections.inner[v] = connections.weight[i]
            if to_source > 0:
                connections.part[i] = source
                connections.weight[i] = to_source
            else:
                drop(connections, v, i, end - 1)
            return
    if to_source > 0:
        connect(graph, connections, v, source, to_source, 1.0)


@inlined
def connect(graph: Csr, connections: Connections, u: int, part: int, weight: float, sign: float) -> None:
    """Add sign * weight to u's connection to another part; it may be new, and vanishes if a rounding error is left of it."""
    start, end = graph.indptr[u], graph.indptr[u] + connections.n_others[u]
    for i in range(start, end):
        if connections.part[i] == part:
            connections.weight[i] += sign * weight
            if sign < 0 and connections.weight[i] <= 1e-12 * weight:
                drop(connections, u, i, end - 1)
            return
    if sign > 0 and end < graph.indptr[u + 1]:  # always, except for rounding errors
        connections.part[end] = part
        connections.weight[end] = weight
        connections.n_others[u] += 1


@inlined
def drop(connections: Connections, v: int, i: int, last: int) -> None:
    """Remove v's i-th connection; `last` is the index of its last one."""
    connections.part[i] = connections.part[last]
    connections.weight[i] = connections.weight[last]
    connections.n_others[v] -= 1


# --- The bounds, and bringing parts within them -----------------------------------------------------------------------

ROUNDING = 1.0 + 1e-12  # of bounds: sums of weights are not exact


class Bounds(NamedTuple):
    """The allowed and the desired weights of the parts."""

    upper: Floats  # (k,) the largest allowed weights
    targets: Floats  # (k,) fractions that add up to 1; as requested, except for parts filled by a heavy vertex
    packing: Ints | None  # (n,) a partition within `upper`; None: there always is one


def find_bounds(weights: Floats, targets: Floats, imbalance: float) -> Bounds:
    """Return the bounds for vertices of `weights` (n,) and targets (k,), fractions that add up to 1."""
    total = float(weights.sum())
    shares = targets * total
    with np.errstate(over="ignore"):  # infinite: no bound
        upper = (1.0 + imbalance) * shares * ROUNDING
    if float(weights.max()) <= float((upper - shares).min()):
        return Bounds(upper, targets, None)  # any remaining vertex fits into a part below its share
    k = len(targets)
    packing = pack(weights, np.argsort(-weights, kind="stable"), shares)
    loads = np.bincount(packing, weights, minlength=k)
    filled = (loads > upper) & (np.bincount(packing[weights > 0], minlength=k) == 1)
    upper = np.where(filled, loads * ROUNDING, upper)
    if not filled.all():
        needed = float((loads / shares)[~filled].max())
        upper = np.where(filled, upper, np.maximum(upper, needed * shares * ROUNDING))
        rest = max(total - float(loads[filled].sum()), 1e-9 * total)
        targets = np.where(filled, loads / total, targets / targets[~filled].sum() * rest / total)
        targets = targets / targets.sum()
    return Bounds(upper, targets, packing)


@njit(cache=True)
def pack(weights: Floats, order: Ints, shares: Floats) -> Ints:
    """Return (n,) part of each vertex: in `order`, each goes roughly where weight / share is least afterwards."""
    k = len(shares)
    part = np.zeros(len(weights), np.int64)
    loads, heap = np.zeros(k), make_heap(k)
    unit = np.inf
    for v in order:
        if weights[v] < 0.99 * unit:  # the keys assume a vertex of this weight
            unit = weights[v]
            clear(heap)
            for p in range(k):
                put(heap, p, -(loads[p] + unit) / shares[p])
        p = heap.items[0]
        part[v] = p
        loads[p] += weights[v]
        put(heap, p, -(loads[p] + unit) / shares[p])
    return part


@borrowing
def rebalance(graph: Csr, parts: Parts, connections: Connections) -> None:
    """Move vertices out of parts above their bound into parts with room, cheapest in cut first."""
    n = len(parts.of)
    heap = make_heap(n)
    for v in range(n):
        if parts.weights[parts.of[v]] > parts.bounds[parts.of[v]] and graph.vertex_weights[v] > 0:
            put(heap, v, strongest(graph, connections, v, 0.0) - connections.inner[v])
    while heap.size[0] > 0:
        v = heap.items[0]
        target, gain = way_out(graph, parts, connections, v)
        if target >= 0 and gain < heap.key[v]:
            put(heap, v, gain)
            if heap.items[0] != v:
                continue
        remove(heap, v)
        if target < 0:
            continue
        move(graph, parts, connections, v, target)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if heap.position[u] >= 0:
                put(heap, u, strongest(graph, connections, u, 0.0) - connections.inner[u])


@inlined
def way_out(graph: Csr, parts: Parts, connections: Connections, v: int) -> tuple[int, float]:
    """Return the best-connected part with room for v, else that with most room, and the gain; -1: none, or v can stay."""
    source, room_needed = parts.of[v], graph.vertex_weights[v]
    target, best = -1, -np.inf
    if parts.weights[source] <= parts.bounds[source]:
        return target, best
    for i in range(graph.indptr[v], graph.indptr[v] + connections.n_others[v]):
        p, weight = connections.part[i], connections.weight[i]
        if weight > best and parts.weights[p] + room_needed <= parts.bounds[p]:
            target, best = p, weight
    if target < 0:
        best, room = 0.0, -np.inf
        for p in range(len(parts.bounds)):
            if parts.bounds[p] - parts.weights[p] > room and p != source:
                target, room = p, parts.bounds[p] - parts.weights[p]
        if room < room_needed:
            target = -1
    return target, best - connections.inner[v]


# --- Local searches ---------------------------------------------------------------------------------------------------

LATEST = 1e-7  # of the heaviest edge: breaks ties in favour of the latest vertex, which keeps a search local
SMALLEST = 1e-12  # of the largest gain so far: smaller gains are rounding errors


class SearchRound(NamedTuple):
    """The state shared by the searches of one round."""

    heap: Heap  # the candidate vertices, by gain and `bonus`; DONE: has moved in this round
    gain: Floats  # (n,) gain of the best move of a vertex in the heap
    bonus: Floats  # (2,) of the latest vertex, and its increment
    moved: Ints  # (n,) the moved vertices, in order
    source: Ints  # (n,) their previous parts


@njit(cache=True)
def begin_round(graph: Csr) -> SearchRound:
    """Return the state of an empty round."""
    n = len(graph.vertex_weights)
    step = LATEST * graph.weights.max() if len(graph.weights) else 0.0
    bonus = np.array([0.0, step])
    return SearchRound(make_heap(n), np.zeros(n), bonus, np.empty(n, np.int64), np.empty(n, np.int64))


@inlined
def enqueue(graph: Csr, connections: Connections, this: SearchRound, v: int) -> None:
    """Put v into the heap, or update its key; remove it if v is connected to its own part only."""
    if this.heap.position[v] == DONE:
        return
    if connections.n_others[v] == 0:
        remove(this.heap, v)
        return
    this.gain[v] = strongest(graph, connections, v, -np.inf) - connections.inner[v]
    this.bonus[0] += this.bonus[1]
    put(this.heap, v, this.gain[v] + this.bonus[0])


@inlined
def best_move(graph: Csr, parts: Parts, connections: Connections, v: int) -> tuple[int, float]:
    """Return the part with room and the strongest connection to v (of equals the emptier), and the gain; -1, -inf: none."""
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
    """Return whether an improvement is unlikely, from the number of steps, and the sum and sum of squares of their gains."""
    if steps > 350 * patience:
        return True
    if steps <= 2 or steps <= 10 * patience:
        return False
    mean = total / steps
    return mean <= 0 and steps * mean * mean > patience * (squares / steps - mean * mean)


@borrowing
def search(
    graph: Csr, parts: Parts, connections: Connections, this: SearchRound, kept: int, patience: float
) -> tuple[float, int]:
    """Search from the vertices in the heap, and return to the best point: return the gain, and the total of moved vertices.

    kept : number of this.moved from earlier searches.
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
        heap.position[v] = DONE
        this.moved[count], this.source[count] = v, parts.of[v]
        count += 1
        move(graph, parts, connections, v, target)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            enqueue(graph, connections, this, graph.indices[e])
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
    """Run a round of searches from seeds (any number,), `at_once` of them each; return the gain and the moved vertices.

    A part within its bound stays so; the cut does not grow.
    """
    this = begin_round(graph)
    shuffle(seeds, len(seeds), state)
    gained, kept, i = 0.0, ZERO, 0
    while i < len(seeds):
        while i < len(seeds) and this.heap.size[0] < at_once:
            enqueue(graph, connections, this, seeds[i])
            i += 1
        gain, kept = search(graph, parts, connections, this, kept, patience)
        gained += gain
    return gained, this.moved[:kept].copy()


@njit(cache=True)
def boundary_near(graph: Csr, connections: Connections, vertices: Ints) -> Ints:
    """Return those of `vertices` and their neighbours that are at the boundary of their parts, each once."""
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
    """Rebalance part (n,), in place, if a bound (k,) is exceeded, then search in up to `rounds` rounds.

    The first round starts from the whole boundary, later ones from vertices near the last moves.  Return the decrease of the
    cut by the searches; seeds_at_once <= 0 means the whole boundary at once.
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
