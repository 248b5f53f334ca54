"""Choice of the vertices that move between neighbouring parts, from each rank's rows of the graph.   (pure)

A rank is the home of its vertices, which stay there until a round of rebalancing ends; during the round, they get labels:
the ranks that will own them.  A vertex moves to a neighbour of its home at most, so all of its edges are at hand:

    zone       each of two neighbours: its vertices near their border, with the edges between the two parts
    settle     one of them gets the other's zone, and corrects in it what the other knew of its vertices
    join       it makes one graph of both zones, with a fixed vertex on each side for the rest of the part
    two_way    it lets work change sides, then makes the cut lighter, on coarse graphs of the zones first: groups of vertices
               change sides, which a search by single ones (Fiduccia & Mattheyses 1982) would not find

The rank that sends its zone calls `ask`, the one that chooses calls `answer`; each sends one message.

Two pairs of ranks that share none don't affect each other (`lb_mpi.rebalancing.pairs`).
A vertex is tied to its home by an edge of weight `stay` times its cost: the cut and the moved work are minimised together
(Schloegel, Karypis & Kumar, "Multilevel diffusion schemes for repartitioning of adaptive meshes", 1997).

The search and the flow between two sides are those of `lb_mpi.partitioning`, with k = 2.
"""

# Compiled functions accept NamedTuples of arrays as arguments.

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lb_mpi.distributing.halo import GraphPart
from lb_mpi.graph import Floats, Ints
from lb_mpi.kernels import constant, inlined, njit
from lb_mpi.partitioning.coarsen import SHRINK, Csr, Flags, cluster, contract
from lb_mpi.partitioning.compiled import State, copy_to, make_heap, pop, put
from lb_mpi.partitioning.flow import refine_by_flow
from lb_mpi.partitioning.refine import LATEST, find_connections, find_parts, move, refine

# --- A rank's rows ----------------------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A rank's rows of a graph.  Ghosts are behind the owned vertices, and have no rows."""

    graph: Csr  # (n_local + n_ghosts,) vertices
    n_local: int
    outer: Flags  # (n_local,) True for those with a ghost as a neighbour
    numbers: Ints  # (n_local + n_ghosts,) of the vertices, the same on all ranks
    send: dict[int, Ints]  # by rank: the owned vertices that it has as ghosts
    ghosts: dict[int, slice]  # by rank: its vertices among the ghosts, in the order of its `send`


def shard_of(part: GraphPart, costs: Floats) -> Shard:
    """Return the rows of a part; costs (n_local,) of its vertices, >= 0."""
    none = np.zeros(part.n_ghosts)
    indptr = np.concatenate([part.indptr, np.full(part.n_ghosts, part.indptr[-1])])
    graph = Csr(indptr, part.indices.copy(), part.weights.copy(), np.concatenate([costs, none]))
    sent, received = part.send_indptr.tolist(), (part.n_local + part.receive_indptr).tolist()
    send = {other: part.send[sent[k] : sent[k + 1]] for k, other in enumerate(part.ranks.tolist())}
    ghosts = {other: slice(received[k], received[k + 1]) for k, other in enumerate(part.ranks.tolist())}
    outer = np.zeros(part.n_local, dtype=bool)
    outer[part.send] = True
    return Shard(graph, part.n_local, outer, np.concatenate([part.vertices, part.ghosts]), send, ghosts)


# --- Two parts --------------------------------------------------------------------------------------------------------

# The other end of an edge of a zone: on side 0 or 1, where it stays; in this zone; a vertex of the other home on side 0 or
# 1; one of the other home in a third part.
INSIDE, OTHER, ELSEWHERE = 2, 3, 5


class Zone(NamedTuple):
    """The vertices of one home near the border between two parts, as it sends them to the other rank of the pair."""

    numbers: Ints  # (m,) ascending
    sides: Ints  # (m,) 0: labelled the lower rank; 1: the higher one
    costs: Floats  # (m,)
    indptr: Ints  # (m + 1,) where each vertex's edges to vertices of the two parts, or of the other home, begin
    heads: Ints  # (nnz,) the other ends: numbers, or indices in this zone if INSIDE
    kinds: Ints  # (nnz,) 0, 1, INSIDE, OTHER, OTHER + 1, ELSEWHERE
    weights: Floats  # (nnz,)


NO_GHOSTS = slice(0, 0)


class Home(NamedTuple):
    """One rank of a pair, with its shard."""

    graph: Csr
    outer: Flags
    numbers: Ints
    labels: Ints  # (n_local + n_ghosts,) the ranks that will own the vertices
    rank: int
    other: int
    start: int  # of the other's vertices among the ghosts
    stop: int
    sent: Ints  # the vertices that the other has as ghosts


def home_of(shard: Shard, labels: Ints, rank: int, other: int) -> Home:
    """Return a rank, with its shard, as one of a pair."""
    theirs, sent = shard.ghosts.get(other, NO_GHOSTS), shard.send.get(other, labels[:0])
    return Home(shard.graph, shard.outer, shard.numbers, labels, rank, other, theirs.start, theirs.stop, sent)


@njit(cache=True)
def zone(home: Home, layers: int, work: float) -> tuple[Ints, Zone]:
    """Return the vertices of a home near the border of its part with the other rank's: local numbers, and rows.

    layers : width of the zone, in edges from the border; it is wider if vertices with this `work` need more.  If there is
    work but no border, the zone begins at the vertex with the fewest edges.  The zone never has
    all vertices that stay at home, so that a rank stays between its neighbours.
    """
    graph, outer, numbers, labels, rank, other, start, stop, _ = home
    n_local = len(outer)
    seen = near_border(graph, outer, labels, rank, other, layers, work)
    found = np.nonzero(seen)[0]
    high = max(rank, other)
    index = np.empty(n_local, np.int64)  # of the vertices found
    most = 0
    for k in range(len(found)):
        index[found[k]] = k
        most += graph.indptr[found[k] + 1] - graph.indptr[found[k]]
    indptr, sides = np.zeros(len(found) + 1, np.int64), np.empty(len(found), np.int64)
    heads, kinds, weights = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    end = 0
    for k in range(len(found)):
        sides[k] = labels[found[k]] == high
        for e in range(graph.indptr[found[k]], graph.indptr[found[k] + 1]):
            u = graph.indices[e]
            within = labels[u] == rank or labels[u] == other
            if u < n_local and seen[u]:
                heads[end], kinds[end] = index[u], INSIDE
            elif start <= u < stop:
                heads[end], kinds[end] = numbers[u], OTHER + (labels[u] == high) if within else ELSEWHERE
            elif within:
                heads[end], kinds[end] = numbers[u], labels[u] == high
            else:
                continue
            weights[end] = graph.weights[e]
            end += 1
        indptr[k + 1] = end
    costs = graph.vertex_weights[found]
    rows = Zone(numbers[found], sides, costs, indptr, heads[:end].copy(), kinds[:end].copy(), weights[:end].copy())
    return found, rows


@njit(cache=True)
def near_border(graph: Csr, outer: Flags, labels: Ints, rank: int, other: int, layers: int, work: float) -> Flags:
    """Return (n_local,) True for the owned vertices of a zone; see `zone`."""
    n_local = len(outer)
    seen = np.zeros(n_local, np.bool_)
    n_home = 0
    for v in range(n_local):  # an edge between the two parts has a ghost at one end, or a vertex that leaves its home
        if labels[v] == rank:
            n_home += 1
            if outer[v]:
                for e in range(graph.indptr[v], graph.indptr[v + 1]):
                    if labels[graph.indices[e]] == other:
                        seen[v] = True
                        break
        elif labels[v] == other:
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                u = graph.indices[e]
                if labels[u] == rank:
                    seen[v] = True
                    if u < n_local:
                        seen[u] = True
    queue, depth = np.empty(n_local, np.int64), np.empty(n_local, np.int64)
    head = end = unseen = n_found = 0
    for v in range(n_local):
        if seen[v]:
            queue[end], depth[end] = v, 0
            end += 1
    if end == 0 and work > 0.0 and n_home > 0:
        outermost = -1
        for v in range(n_local):
            degree = graph.indptr[v + 1] - graph.indptr[v]
            if labels[v] == rank and (outermost < 0 or degree < graph.indptr[outermost + 1] - graph.indptr[outermost]):
                outermost = v
        seen[outermost] = True
        queue[0], depth[0] = outermost, 0
        end = 1
    last, found = -1, 0.0
    while head < end:
        v, layer = queue[head], depth[head]
        if layer >= layers and found >= work:
            break
        head += 1
        if labels[v] == rank:
            last = v
            n_found += 1
            found += graph.vertex_weights[v]
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if u < n_local and not seen[u] and (labels[u] == rank or labels[u] == other):
                seen[u] = True
                queue[end], depth[end] = u, layer + 1
                end += 1
        while head == end and found < work and unseen < n_local:  # another piece of the part
            if not seen[unseen] and labels[unseen] == rank:
                seen[unseen] = True
                queue[end], depth[end] = unseen, 0
                end += 1
            unseen += 1
    for v in queue[head:end]:
        if labels[v] == rank:
            last = v
            n_found += 1
    if n_found == n_home and last >= 0:
        seen[last] = False
    return seen


@njit(cache=True)
def settle(theirs: Zone, numbers: Ints, labels: Ints, low: int, high: int) -> None:
    """Correct the kinds of the edges of the other home's zone; numbers (n_local,) and labels are those of this home."""
    for e in range(len(theirs.heads)):
        if theirs.kinds[e] >= OTHER:
            label = labels[find(numbers, theirs.heads[e])]
            theirs.kinds[e] = OTHER + (label == high) if label in (low, high) else ELSEWHERE


class Pair(NamedTuple):
    """The graph of two zones.  Vertices 0 and 1 are fixed: what else the two parts have."""

    indptr: Ints  # (2 + m + 1,)
    indices: Ints
    weights: Floats
    costs: Floats  # (2 + m,)
    side: Ints  # (2 + m,) 0 or 1
    tied: Flags  # (2 + m,) True for those whose only edge to a fixed vertex is the tie to their home


@njit(cache=True)
def join(low: Zone, high: Zone, stay: float) -> Pair:
    """Return the graph of the zones of both homes, with m vertices: those of the lower home first.

    stay : weight of the tie between a vertex and its home, per unit of cost.
    """
    n_low = len(low.numbers)
    m = n_low + len(high.numbers)
    costs, side = np.zeros(m + 2), np.ones(m + 2, np.int64)
    side[0] = 0
    rest = np.zeros((m + 2, 2))  # weight of the edges to what else each part has
    tied = np.arange(m + 2) >= 2
    inner = np.empty(len(low.heads) + len(high.heads), np.int64)  # the other end, if it is in a zone; or -1
    n_edges = n_rest = 0
    first = 0
    for home in range(2):
        one, another = (low, high) if home == 0 else (high, low)
        begin, other_begin = (2, n_low + 2) if home == 0 else (n_low + 2, 2)
        for k in range(len(one.numbers)):
            v = begin + k
            costs[v], side[v] = one.costs[k], one.sides[k]
            rest[v, home] += stay * one.costs[k]
            for e in range(one.indptr[k], one.indptr[k + 1]):
                kind, u = one.kinds[e], -1
                if kind == INSIDE:
                    u = begin + one.heads[e]
                elif kind == OTHER or kind == OTHER + 1:
                    index = find(another.numbers, one.heads[e])
                    if index >= 0:
                        u = other_begin + index
                    else:
                        rest[v, kind - OTHER] += one.weights[e]
                        tied[v] = False
                elif kind < INSIDE:
                    rest[v, kind] += one.weights[e]
                    tied[v] = False
                inner[first + e] = u
                n_edges += u >= 0
            n_rest += int(rest[v, 0] > 0.0) + int(rest[v, 1] > 0.0)
        first += len(one.heads)
    heads, weights = np.empty(n_edges + 2 * n_rest, np.int64), np.empty(n_edges + 2 * n_rest)
    indptr = np.zeros(m + 3, np.int64)
    end = 0
    for k in range(2):
        for v in range(2, m + 2):
            if rest[v, k] > 0.0:
                heads[end], weights[end] = v, rest[v, k]
                end += 1
        indptr[k + 1] = end
    first = 0
    for home in range(2):
        one, begin = (low, 2) if home == 0 else (high, n_low + 2)
        for k in range(len(one.numbers)):
            v = begin + k
            for p in range(2):
                if rest[v, p] > 0.0:
                    heads[end], weights[end] = p, rest[v, p]
                    end += 1
            for e in range(one.indptr[k], one.indptr[k + 1]):
                if inner[first + e] >= 0:
                    heads[end], weights[end] = inner[first + e], one.weights[e]
                    end += 1
            indptr[v + 1] = end
        first += len(one.heads)
    return Pair(indptr, heads, weights, costs, side, tied)


@inlined
def find(numbers: Ints, number: int) -> int:
    """Return the index of a number among ascending ones, or -1."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(numbers) and numbers[low] == number else -1


LAYERS = 5  # width of a zone, at least
AHEAD = 2.0  # times the flow: the work of a zone, at least
COARSEST, LARGEST = 20, 1.5  # vertices of the coarsest graph, and the largest one's part of the mean work there
ROUNDS, PATIENCE, SEEDS_AT_ONCE = constant(3), 0.3, constant(10)  # of searches, as for a partition (see `multilevel`)
FLOW_ROUNDS, FLOW_LAYERS = constant(1), constant(5)
SIDES, WITHOUT_MATCHING = constant(2), constant(False)
FLOW_VERTICES = 1_000  # of a graph, at most: beyond, a flow takes most of the time, and coarser ones have had theirs


@njit(cache=True)
def two_way(pair: Pair, give: float, slack: Floats, state: State) -> Ints:
    """Move work between the two sides of a pair, with a light cut; return the (2 + m,) new side of each vertex, 0 or 1.

    give : work that is to get from side 0 to side 1; < 0: from side 1 to side 0.
    slack : (2,) by how much the sides may be heavier afterwards, >= 0, if that makes the cut lighter.
    state : of the random numbers; the same arguments give the same sides.

    First, vertices at the border change sides, cheapest in cut first, until the work is right up to half a vertex; without a
    border, from the vertex with the weakest edges on.  Then local searches with rollback and flows make the cut lighter (see
    `lb_mpi.partitioning.refine` and `.flow`), on coarse graphs first.
    """
    side, costs = pair.side.copy(), pair.costs.copy()
    graph, bounds = Csr(pair.indptr, pair.indices, pair.weights, costs), np.zeros(2)
    heavy = 2.0 * (costs.sum() + abs(give) + slack.sum())  # no bound has room for a fixed vertex
    for v in range(len(side)):
        bounds[side[v]] += costs[v]
    costs[0], costs[1] = costs[0] + heavy, costs[1] + heavy
    bounds[0] += heavy - give
    bounds[1] += heavy + give
    give_work(graph, side, bounds)
    bounds = np.maximum(bounds + slack, find_parts(graph, side, bounds).weights)
    return lightened(graph, side, pair.tied, bounds, state)


@njit(cache=True)
def lightened(graph: Csr, side: Ints, tied: Flags, bounds: Floats, state: State) -> Ints:
    """Return new sides with a lighter cut, from coarse graphs, whose groups keep to one side, to the finest.

    tied (2 + m,) : as in `Pair`.  bounds (2,) : of the sides' weights.
    """
    graphs, groups, ties = [graph], [side], [tied]  # groups: of the finer graph's vertices
    largest = LARGEST * graph.vertex_weights[2:].sum() / COARSEST
    while len(side) > COARSEST:
        block = side.copy()
        block[0], block[1] = 2, 3  # the fixed vertices stay alone, and the first two
        group, count = cluster(graphs[-1], largest, block, state, WITHOUT_MATCHING)
        if count > SHRINK * len(side):
            break
        coarse_side, coarse_tied = np.empty(count, np.int64), np.ones(count, np.bool_)
        for v in range(len(group)):
            coarse_side[group[v]] = side[v]
            coarse_tied[group[v]] &= ties[-1][v]
        side = coarse_side
        graphs.append(contract(graphs[-1], group, count))
        groups.append(group)
        ties.append(coarse_tied)
    for level in range(len(graphs) - 1, -1, -1):
        refine(graphs[level], side, bounds, ROUNDS, PATIENCE, SEEDS_AT_ONCE, state)
        if len(side) <= FLOW_VERTICES:
            refine_by_flow(without_ties(graphs[level], ties[level]), side, bounds, FLOW_ROUNDS, FLOW_LAYERS, state)
        if level > 0:
            side = side[groups[level]]
    return side


@njit(cache=True)
def without_ties(graph: Csr, tied: Flags) -> Csr:
    """Return the graph of a pair without ties to homes: to a flow, a vertex beside a fixed one is fixed itself."""
    indptr, indices, weights = graph.indptr.copy(), graph.indices.copy(), graph.weights.copy()
    end = 0
    for v in range(len(tied)):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if not ((u < 2 and tied[v]) or (v < 2 and tied[u])):
                indices[end], weights[end] = u, weights[e]
                end += 1
        indptr[v + 1] = end
    return Csr(indptr, indices[:end].copy(), weights[:end].copy(), graph.vertex_weights)


@njit(cache=True)
def ask(home: Home, layers: int, work: float, room: float) -> tuple[Ints, Ints]:
    """Return the vertices of this rank's zone, and the message by which the other rank is asked to choose.

    layers, work : see `zone`.  room : by how much this rank may be heavier afterwards.
    Message: the number of `sent`, that of the zone's vertices, the room; labels of `sent`; the arrays of the zone.
    """
    found, rows = zone(home, layers, work)
    sent, m, nnz = home.sent, len(found), len(rows.heads)
    message = np.empty(3 + len(sent) + 4 * m + 1 + 3 * nnz, np.int64)
    message[0], message[1] = len(sent), m
    message[2:3].view(np.float64)[0] = room
    copy_to(message, 3, home.labels[sent])
    at = 3 + len(sent)
    for whole in (rows.numbers, rows.sides, rows.indptr, rows.heads, rows.kinds):
        copy_to(message, at, whole)
        at += len(whole)
    for real in (rows.costs, rows.weights):
        copy_to(message[at : at + len(real)].view(np.float64), 0, real)
        at += len(real)
    return found, message


@njit(cache=True)
def zone_in(message: Ints) -> Zone:
    """Return the zone in a message of `ask`."""
    at, m = 3 + message[0], message[1]
    nnz = (len(message) - at - 4 * m - 1) // 3
    numbers, sides, indptr = message[at : at + m], message[at + m : at + 2 * m], message[at + 2 * m : at + 3 * m + 1]
    at += 3 * m + 1
    heads, kinds = message[at : at + nnz], message[at + nnz : at + 2 * nnz]
    at += 2 * nnz
    costs, weights = message[at : at + m].view(np.float64), message[at + m :].view(np.float64)
    return Zone(numbers, sides, costs, indptr, heads, kinds, weights)


@njit(cache=True)
def answer(
    home: Home, message: Ints, layers: int, stay: float, give: float, room: float, state: State
) -> tuple[Ints, float, float]:
    """Choose for both ranks; return the answer to the other one, the work given to it, and that still to be given.

    message : of `ask`, whose kinds are changed.  stay : see `join`.  give : work for the other rank; < 0: from it.  layers,
    room : as in `ask`.  Changes the labels of this rank's vertices and ghosts.
    Answer: work that the other one has given, work that it has still to give; new labels of its zone; labels of `sent`.
    """
    _, outer, numbers, labels, rank, other, start, stop, sent = home
    low, high = min(rank, other), max(rank, other)
    copy_to(labels, start, message[3 : 3 + message[0]])
    found, mine = zone(home, layers, AHEAD * give)
    theirs = zone_in(message)
    settle(theirs, numbers[: len(outer)], labels, low, high)
    sign = 1.0 if rank == low else -1.0
    pair = join(mine, theirs, stay) if rank == low else join(theirs, mine, stay)
    first, second = (2, 2 + len(found)) if rank == low else (2 + len(theirs.numbers), 2)
    rooms = np.array([max(0.0, room), max(0.0, message[2:3].view(np.float64)[0])])
    side = pair.side
    if np.any(pair.costs > 0.0):
        side = two_way(pair, sign * give, rooms if rank == low else rooms[::-1].copy(), state)
    given = 0.0
    for v in range(2, len(side)):
        given += sign * pair.costs[v] * (side[v] - pair.side[v])
    left = math.copysign(max(0.0, abs(give) - math.copysign(1.0, give) * given - rooms[int(give < 0.0)]), give)
    m = len(theirs.numbers)
    reply = np.empty(2 + m + len(sent), np.int64)
    amounts = reply[:2].view(np.float64)
    amounts[0], amounts[1] = -given, -left
    for k in range(len(found)):
        labels[found[k]] = high if side[first + k] else low
    for k in range(m):
        reply[2 + k] = high if side[second + k] else low
        index = find(numbers[start:stop], theirs.numbers[k])
        if index >= 0:
            labels[start + index] = reply[2 + k]
    copy_to(reply, 2 + m, labels[sent])
    return reply, given, left


@njit(cache=True)
def give_work(graph: Csr, part: Ints, bounds: Floats) -> None:
    """Move vertices at the border out of the side above its bound (2,): cheapest in cut first, of equals the earliest.

    A vertex that would bring the side farther below its bound than it is above stays.  When a piece of the side has left,
    the others follow, from the vertices with the weakest edges on.
    """
    parts = find_parts(graph, part, bounds)
    source = 0 if parts.weights[0] - bounds[0] > parts.weights[1] - bounds[1] else 1
    if parts.weights[source] <= bounds[source]:
        return
    connections = find_connections(graph, part, SIDES)
    heap = make_heap(len(part))
    step, bonus = LATEST * graph.weights.max() if len(graph.weights) else 0.0, 0.0
    weakest = -1
    for v in range(2, len(part)):
        if part[v] == source:
            if connections.n_others[v] > 0:
                bonus -= step
                put(heap, v, connections.weight[graph.indptr[v]] - connections.inner[v] + bonus)
            elif weakest < 0 or connections.inner[v] < connections.inner[weakest]:
                weakest = v
    if heap.size[0] == 0 and weakest >= 0:
        put(heap, weakest, 0.0)
    last_piece = False
    tried = np.zeros(len(part), np.bool_)
    while parts.weights[source] > bounds[source]:
        if heap.size[0] == 0:
            if last_piece:
                break
            last_piece = True
            for v in range(2, len(part)):
                if part[v] == source and not tried[v]:
                    put(heap, v, -connections.inner[v])
            continue
        v = pop(heap)
        tried[v] = True
        if graph.vertex_weights[v] > 2.0 * (parts.weights[source] - bounds[source]):
            continue
        move(graph, parts, connections, v, 1 - source)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            if u >= 2 and part[u] == source:
                bonus -= step
                put(heap, u, connections.weight[graph.indptr[u]] - connections.inner[u] + bonus)


# --- Pieces that do not hang together with the rest of their part -----------------------------------------------------

LARGE = 0.2  # of a part's work: a piece that has more stays


def stray(shard: Shard, rank: int) -> Ints:
    """Return (n_local,) labels that give small pieces of a rank's part away, each to the rank with the strongest connection.

    The piece with most work stays.
    """
    graph, n = shard.graph, shard.n_local
    labels = np.full(n, rank)
    piece, count = pieces(graph, n)
    if count <= 1:
        return labels
    work = np.bincount(piece, graph.vertex_weights[:n], minlength=count)
    tails = np.repeat(np.arange(n), np.diff(graph.indptr[: n + 1]))
    away = graph.indices >= n
    owners = np.repeat(np.array([*shard.ghosts], dtype=np.int64), [one.stop - one.start for one in shard.ghosts.values()])
    at, to = piece[tails[away]], owners[graph.indices[away] - n]
    for one in np.flatnonzero(work <= LARGE * work.sum()).tolist():
        weights = np.bincount(to[at == one], graph.weights[away][at == one])
        if one != int(work.argmax()) and len(weights) and weights.max() > 0.0:
            labels[piece == one] = weights.argmax()
    return labels


@njit(cache=True)
def pieces(graph: Csr, n_local: int) -> tuple[Ints, int]:
    """Return the connected piece of each of the first n_local vertices, among these only, and the number of pieces."""
    piece = np.full(n_local, -1)
    queue = np.empty(n_local, np.int64)
    count = 0
    for start in range(n_local):
        if piece[start] >= 0:
            continue
        piece[start] = count
        queue[0] = start
        head, end = 0, 1
        while head < end:
            v = queue[head]
            head += 1
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                u = graph.indices[e]
                if u < n_local and piece[u] < 0:
                    piece[u] = count
                    queue[end] = u
                    end += 1
        count += 1
    return piece, count
