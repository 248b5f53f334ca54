"""Refinement: the lightest cut between two neighbouring parts, by maximum flow in a corridor along it.   (pure)

A corridor is grown around the cut between parts a and b.  Its vertices adjacent to the rest of a are sources, those adjacent
to the rest of b sinks; a maximum flow (Dinic 1970) gives the lightest cut in the corridor.  If one side is then too heavy,
the other one is enlarged, step by step: all vertices that it reaches become terminals, and one more beside them, if possible
one that does not increase the flow (Hamann & Strasser, "Graph bisection with Pareto-optimization", 2018; Heuer, Sanders &
Schlag, "Network flow-based refinement for multilevel hypergraph partitioning", 2019).  That ends when both sides are within
their bounds, or the cut is no lighter than before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Ints
from lb_mpi.kernels import ZERO, borrowing, inlined, njit
from lb_mpi.partitioning.coarsen import Csr, Flags
from lb_mpi.partitioning.compiled import State, copy_to, shuffle
from lb_mpi.partitioning.refine import Parts, find_parts

# --- Maximum flow between two sides of a corridor of a graph, by Dinic's layers (1970) --------------------------------

SOURCE, SINK = 1, 2  # sides: of terminals, and of the vertices on their side of the cut; 0: neither
OUTSIDE, FAR = -2, -1  # depths: not in the corridor; not reached (yet)


class FlowNetwork(NamedTuple):
    """A flow in a corridor of a graph, with working memory; created once for all corridors.

    Between two uses depth is OUTSIDE, side and reach are 0 everywhere.
    """

    reverse: Ints  # (2E,) position of arc v-u for each arc u-v
    room: Floats  # (2E,) residual capacity of each arc
    depth: Ints  # (n,) arcs to the nearest sink
    arc: Ints  # (n,) the first arc that may lead further
    side: Ints  # (n,) SOURCE, SINK, or 0: no terminal
    reach: Ints  # (n,) SOURCE: reachable by flow from the sources; SINK: flow from it reaches the sinks
    distance: Ints  # (n,) from the cut at the middle of the corridor; negative beyond it
    queue: Ints  # (n,)
    path: Ints  # (n + 1,) arcs
    tiny: float  # residual capacities up to here are rounding errors


@njit(cache=True)
def make_network(graph: Csr) -> FlowNetwork:
    """Return the network of a graph, without a corridor."""
    n, n_arcs = len(graph.vertex_weights), len(graph.indices)
    heaviest = graph.weights.max() if n_arcs else 0.0
    return FlowNetwork(
        reverse_arcs(graph.indptr, graph.indices),
        np.empty(n_arcs),
        np.full(n, OUTSIDE),
        np.empty(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n + 1, np.int64),
        1e-9 * heaviest,
    )


@njit(cache=True)
def reverse_arcs(indptr: Ints, indices: Ints) -> Ints:
    """Return the position of arc v-u for each arc u-v: (2E,)."""
    n = len(indptr) - 1
    first = indptr.copy()
    arriving = np.empty(len(indices), np.int64)
    tail = np.empty(len(indices), np.int64)
    for u in range(n):
        for e in range(indptr[u], indptr[u + 1]):
            v = indices[e]
            arriving[first[v]] = e
            tail[first[v]] = u
            first[v] += 1
    edge = np.empty(n, np.int64)
    reverse = np.empty(len(indices), np.int64)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            edge[indices[e]] = e
        for i in range(indptr[v], indptr[v + 1]):
            reverse[arriving[i]] = edge[tail[i]]
    return reverse


@borrowing
def push_flow(graph: Csr, net: FlowNetwork, corridor: Ints) -> float:
    """Push a maximum flow through the corridor from its sources to its sinks; return the additional flow."""
    pushed = 0.0
    while find_depths(graph, net, corridor):
        for v in corridor:
            if net.side[v] == SOURCE and net.depth[v] > 0:
                pushed += push_from(graph, net, v)
    return pushed


@borrowing
def find_depths(graph: Csr, net: FlowNetwork, corridor: Ints) -> bool:
    """Find the depths of all vertices up to those of the nearest sources; return True if a source reaches a sink."""
    indptr, indices, depth = graph.indptr, graph.indices, net.depth
    head, end = 0, 0
    for v in corridor:
        depth[v] = FAR
        net.arc[v] = indptr[v]
        if net.side[v] == SINK:
            depth[v] = 0
            net.queue[end] = v
            end += 1
    reached = -1
    while head < end:
        v = net.queue[head]
        head += 1
        if reached >= 0 and depth[v] >= reached:
            break
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if depth[u] == FAR and net.room[net.reverse[e]] > net.tiny:
                depth[u] = depth[v] + 1
                if net.side[u] == SOURCE:
                    reached = depth[u]
                else:
                    net.queue[end] = u
                    end += 1
    return reached >= 0


@inlined
def push_from(graph: Csr, net: FlowNetwork, start: int) -> float:
    """Push flow from this source along shortest paths to sinks; return its amount."""
    indptr, indices, arc, path = graph.indptr, graph.indices, net.arc, net.path
    pushed = 0.0
    length = 0
    v = start
    while True:
        if net.side[v] == SINK:
            more, length = push_along(net, length)
            pushed += more
            v = indices[net.reverse[path[length]]]
            continue
        while arc[v] < indptr[v + 1]:
            u = indices[arc[v]]
            if net.depth[u] == net.depth[v] - 1 and net.room[arc[v]] > net.tiny and net.side[u] != SOURCE:
                break
            arc[v] += 1
        if arc[v] < indptr[v + 1]:
            path[length] = arc[v]
            length += 1
            v = indices[arc[v]]
        elif length == 0:
            return pushed
        else:
            length -= 1
            v = indices[net.reverse[path[length]]]
            arc[v] += 1


@inlined
def push_along(net: FlowNetwork, length: int) -> tuple[float, int]:
    """Push flow along the first arcs of the path; return its amount, and the number of arcs with capacity left."""
    least = np.inf
    for e in net.path[:length]:
        least = min(least, net.room[e])
    keep = length
    for i in range(length - 1, -1, -1):
        e = net.path[i]
        net.room[e] -= least
        net.room[net.reverse[e]] += least
        if net.room[e] <= net.tiny:
            keep = i
    return least, keep


# --- The corridor between two parts, and its lightest cut -------------------------------------------------------------

WIDTH = 16.0  # of a corridor, in multiples of the balance's slack
STEPS = 200  # at most, in which one side is enlarged; from the 32nd on by increasing numbers of vertices


class Corridor(NamedTuple):
    """The vertices around the cut between parts a and b."""

    a: int
    b: int
    vertices: Ints  # (size,) those of a first; on each side by increasing distance from the cut
    n_a: int  # the number of those in a
    outside: Floats  # (2,) the weights of the rest of a and of the rest of b
    cut: float  # weight of the edges between a and b


class Front(NamedTuple):
    """The vertices reached by the two sides in a corridor; row 0: from the sources, row 1: to the sinks."""

    weight: Floats  # (2,) of the reached vertices
    beside: Ints  # (2, room) vertices next to them, some of which are reached by now
    size: Ints  # (2,) the number of these


@njit(cache=True)
def refine_by_flow(graph: Csr, part: Ints, bounds: Floats, rounds: int, layers: int, state: State) -> float:
    """Improve part (n,), in place, pair by pair in random order; return the decrease of the cut.

    layers : the width of a corridor on each side of the cut, in vertices.  Later rounds only process pairs with a part that
    improved in the previous round.
    """
    k = len(bounds)
    parts = find_parts(graph, part, bounds)
    net = make_network(graph)
    active = np.ones(k, np.bool_)
    gained = 0.0
    for _ in range(rounds):
        pairs, starts, ends = find_pairs(graph, part, active)
        turn = np.arange(len(pairs))
        shuffle(turn, len(pairs), state)
        active[:] = False
        for i in turn:
            a, b = pairs[i] // k, pairs[i] % k
            gain = improve_pair(graph, parts, net, a, b, ends[starts[i] : starts[i + 1]], layers)
            if gain > net.tiny:
                active[a] = active[b] = True
                gained += gain
        if not np.any(active):
            break
    return gained


@njit(cache=True)
def find_pairs(graph: Csr, part: Ints, active: Flags) -> tuple[Ints, Ints, Ints]:
    """Return the pairs a * k + b, a < b, of adjacent parts, at least one of them active; and the ends of their cuts' edges.

    Shapes (pairs,), (pairs + 1,) first positions in (ends,): a vertex occurs once per cut edge.
    """
    k = len(active)
    crossing = 0
    for v in range(len(part)):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            crossing += part[graph.indices[e]] != part[v]
    pair_of, ends = np.empty(crossing, np.int64), np.empty(crossing, np.int64)
    crossing = 0
    for v in range(len(part)):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            p, q = part[v], part[graph.indices[e]]
            if p != q and (active[p] or active[q]):
                pair_of[crossing] = min(p, q) * k + max(p, q)
                ends[crossing] = v
                crossing += 1
    order = np.argsort(pair_of[:crossing], kind="mergesort")
    pairs, starts = np.empty(crossing, np.int64), np.empty(crossing + 1, np.int64)
    n_pairs = 0
    for i in range(crossing):
        if i == 0 or pair_of[order[i]] != pair_of[order[i - 1]]:
            pairs[n_pairs] = pair_of[order[i]]
            starts[n_pairs] = i
            n_pairs += 1
    starts[n_pairs] = crossing
    return pairs[:n_pairs], starts, ends[order]


@njit(cache=True)
def improve_pair(graph: Csr, parts: Parts, net: FlowNetwork, a: int, b: int, seeds: Ints, layers: int) -> float:
    """Make the cut between parts a and b lighter, and return by how much; seeds: vertices at this cut."""
    corridor = lay_corridor(graph, parts, net, a, b, seeds, layers)
    gain = 0.0
    if 0 < corridor.n_a < len(corridor.vertices) and corridor.cut > net.tiny:
        chosen = find_cut(graph, parts, net, corridor)
        if chosen:
            gain = adopt(graph, parts, net, corridor, chosen)
    for v in corridor.vertices:
        net.depth[v] = OUTSIDE
        net.side[v] = 0
        net.reach[v] = 0
    return gain


@njit(cache=True)
def lay_corridor(graph: Csr, parts: Parts, net: FlowNetwork, a: int, b: int, seeds: Ints, layers: int) -> Corridor:
    """Create a corridor along the cut, with terminals where it is adjacent to the rest of a and b."""
    n_a, weight_a = lay_side(graph, parts, net, a, b, seeds, layers, ZERO)
    end, weight_b = lay_side(graph, parts, net, b, a, seeds, layers, n_a)
    vertices = net.queue[:end].copy()
    cut = 0.0
    n_sources, n_sinks = 0, 0
    for v in vertices:
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            net.room[e] = graph.weights[e]
            if net.depth[u] != OUTSIDE:
                cut += graph.weights[e] * (parts.of[v] == a and parts.of[u] == b)
            elif parts.of[u] == parts.of[v]:
                net.side[v] = SOURCE if parts.of[v] == a else SINK
        n_sources += net.side[v] == SOURCE
        n_sinks += net.side[v] == SINK
    for v in vertices[n_a:]:
        net.distance[v] = -1 - net.distance[v]
    if n_a > 0 and n_sources == 0:  # all of a is in the corridor
        net.side[vertices[n_a - 1]] = SOURCE
    if end > n_a and n_sinks == 0:
        net.side[vertices[end - 1]] = SINK
    outside = np.array([parts.weights[a] - weight_a, parts.weights[b] - weight_b])
    return Corridor(a, b, vertices, n_a, outside, cut)


@borrowing
def lay_side(
    graph: Csr, parts: Parts, net: FlowNetwork, own: int, other: int, seeds: Ints, layers: int, end: int
) -> tuple[int, float]:
    """Queue part `own`'s side of the corridor, breadth first from the cut to part `other`; return its end and weight."""
    slack = (parts.bounds[own] + parts.bounds[other] - parts.weights[own] - parts.weights[other]) / 2
    limit = min(0.4 * parts.weights[own], max(WIDTH * slack, 0.05 * parts.weights[own]))
    weight = 0.0
    head = end
    for v in seeds:
        if parts.of[v] == own and net.depth[v] == OUTSIDE and touches(graph, parts, v, other):
            net.depth[v] = 0
            net.distance[v] = 0
            net.queue[end] = v
            end += 1
            weight += graph.vertex_weights[v]
    while head < end:
        v = net.queue[head]
        head += 1
        if net.distance[v] >= layers:
            break
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if parts.of[u] == own and net.depth[u] == OUTSIDE and weight + graph.vertex_weights[u] <= limit:
                net.depth[u] = 0
                net.distance[u] = net.distance[v] + 1
                net.queue[end] = u
                end += 1
                weight += graph.vertex_weights[u]
    return end, weight


@inlined
def touches(graph: Csr, parts: Parts, v: int, other: int) -> bool:
    """Return whether v has a neighbour in part `other`."""
    for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]:  # noqa: SIM110 (numba has no generators)
        if parts.of[u] == other:
            return True
    return False


@njit(cache=True)
def find_cut(graph: Csr, parts: Parts, net: FlowNetwork, corridor: Corridor) -> int:
    """Find a cut within the bounds that is no heavier than the present one.

    SOURCE: it surrounds the vertices reached from the sources; SINK: those that reach the sinks; 0: there is none.
    """
    size = len(corridor.vertices)
    front = Front(np.zeros(2), np.empty((2, 4 * size + 64), np.int64), np.zeros(2, np.int64))
    pierced = np.empty(size, np.int64)
    flow, grown, n_pierced, joined = 0.0, 0, ZERO, True
    for step in range(STEPS + 2):
        if joined:
            flow += push_flow(graph, net, corridor.vertices)
            if flow > corridor.cut + net.tiny:
                return 0
        for mark in (SOURCE, SINK):
            if mark == grown:
                copy_to(net.queue, 0, pierced[:n_pierced])
                spread(graph, net, front, mark, n_pierced)
            elif joined:
                spread(graph, net, front, mark, start_anew(net, front, corridor.vertices, mark))
        chosen = side_that_fits(parts, corridor, front)
        if chosen or flow >= corridor.cut - net.tiny or step > STEPS:
            return chosen
        weight_a, weight_b = corridor.outside + front.weight
        grown = SOURCE if weight_a * parts.bounds[corridor.b] <= weight_b * parts.bounds[corridor.a] else SINK
        for v in corridor.vertices:
            if net.reach[v] == grown:
                net.side[v] = grown
        n_pierced, joined = pierce(net, front, grown, 1 << max(0, step // 16 - 1), pierced)
        if n_pierced == 0:
            return 0
    return 0


@borrowing
def start_anew(net: FlowNetwork, front: Front, vertices: Ints, mark: int) -> int:
    """Forget the vertices reached by side `mark`, and queue its terminals; return their number."""
    front.weight[mark - 1] = 0.0
    front.size[mark - 1] = 0
    end = 0
    for v in vertices:
        if net.side[v] == mark:
            net.queue[end] = v
            end += 1
        elif net.reach[v] == mark:
            net.reach[v] = 0
    return end


@borrowing
def spread(graph: Csr, net: FlowNetwork, front: Front, mark: int, end: int) -> None:
    """Set reach to `mark` for all vertices reachable from queue[:end] (SOURCE), or reaching it (SINK); update `front`."""
    side, reach, queue = net.side, net.reach, net.queue
    beside, count = front.beside[mark - 1], front.size[mark - 1]
    for v in queue[:end]:
        reach[v] = mark
    head = 0
    while head < end:
        v = queue[head]
        head += 1
        front.weight[mark - 1] += graph.vertex_weights[v]
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if net.depth[u] == OUTSIDE or reach[u] == mark or side[u] != 0:
                continue
            if reach[u] == 0 and net.room[e if mark == SOURCE else net.reverse[e]] > net.tiny:
                reach[u] = mark
                queue[end] = u
                end += 1
            elif count < len(beside):
                beside[count] = u
                count += 1
    front.size[mark - 1] = count


@borrowing
def side_that_fits(parts: Parts, corridor: Corridor, front: Front) -> int:
    """Return the side around which a cut would be within the bounds, of two the better balanced; 0 if there is none."""
    a, b, bounds = corridor.a, corridor.b, parts.bounds
    total = parts.weights[a] + parts.weights[b]
    weight_a, weight_b = corridor.outside[0] + front.weight[0], corridor.outside[1] + front.weight[1]
    fits_a = weight_a <= bounds[a] and total - weight_a <= bounds[b]
    fits_b = weight_b <= bounds[b] and total - weight_b <= bounds[a]
    if not (fits_a and fits_b):
        return SOURCE if fits_a else SINK if fits_b else 0
    worst_a = max(weight_a / bounds[a], (total - weight_a) / bounds[b])
    worst_b = max(weight_b / bounds[b], (total - weight_b) / bounds[a])
    return SOURCE if worst_a <= worst_b else SINK


@borrowing
def pierce(net: FlowNetwork, front: Front, mark: int, wanted: int, pierced: Ints) -> tuple[int, bool]:
    """Make up to `wanted` vertices beside side `mark` its terminals; return their number, and if one joins both reaches.

    Vertices that the other side doesn't reach come first, since they add no flow; of these, the vertices farthest on
    `mark`'s own side of the corridor's original cut.
    """
    beside = front.beside[mark - 1]
    other = SOURCE + SINK - mark
    sign = 1 if mark == SOURCE else -1
    joined = False
    for i in range(wanted):
        best, best_score, kept = -1, -(1 << 60), 0
        for u in beside[: front.size[mark - 1]]:
            if net.side[u] != 0 or net.reach[u] == mark:
                continue
            beside[kept] = u
            kept += 1
            score = sign * net.distance[u] - (1 << 40) * (net.reach[u] == other)
            if score > best_score:
                best, best_score = u, score
        front.size[mark - 1] = kept
        if best < 0:
            return i, joined
        joined |= net.reach[best] == other
        net.side[best] = net.reach[best] = mark
        pierced[i] = best
    return wanted, joined


@borrowing
def adopt(graph: Csr, parts: Parts, net: FlowNetwork, corridor: Corridor, chosen: int) -> float:
    """Move the vertices to the sides of the new cut if it is lighter, or as light and better balanced.

    Return how much lighter it is.  Changes net.side: 1 for vertices that move to a, 0 for those that move to b.
    """
    a, b, bounds = corridor.a, corridor.b, parts.bounds
    weight_a, gain = corridor.outside[0], 0.0
    for v in corridor.vertices:
        net.side[v] = net.reach[v] == SOURCE if chosen == SOURCE else net.reach[v] != SINK
        weight_a += net.side[v] * graph.vertex_weights[v]
    for v in corridor.vertices:
        to = a if net.side[v] else b
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if net.depth[u] == OUTSIDE:
                gain += graph.weights[e] * (int(parts.of[u] != parts.of[v]) - int(parts.of[u] != to))
            else:  # this edge is visited from both ends
                gain += 0.5 * graph.weights[e] * (int(parts.of[u] != parts.of[v]) - int(net.side[u] != net.side[v]))
    before = max(parts.weights[a] / bounds[a], parts.weights[b] / bounds[b])
    weight_b = parts.weights[a] + parts.weights[b] - weight_a
    after = max(weight_a / bounds[a], weight_b / bounds[b])
    if not (gain > net.tiny or (gain >= -net.tiny and after < before)):
        return 0.0
    for v in corridor.vertices:
        to = a if net.side[v] else b
        if parts.of[v] != to:
            parts.weights[parts.of[v]] -= graph.vertex_weights[v]
            parts.weights[to] += graph.vertex_weights[v]
            parts.of[v] = to
    return gain
