"""Choice of the vertices that move between neighbouring parts, from each rank's rows of the graph.   (pure)

A rank is the home of its vertices, which stay there until a round of rebalancing ends; during the round, they get labels:
the ranks that will own them.  A vertex moves to a neighbour of its home at most, so all of its edges are at hand:

    zone       each of two neighbours: its vertices near their border, with the edges between the two parts
    settle     one of them, which gets the other's zone: what is known there of its own vertices may be old
    join       and there: both zones as one graph, with a fixed vertex on each side for the rest of the part
    two_way    and there: let work change sides, then make the cut lighter (Fiduccia & Mattheyses 1982)

Two pairs of ranks that share none don't affect each other (`lb_mpi.rebalancing.pairs`).
A vertex is tied to its home by an edge of weight `stay` times its cost: the cut and the moved work are minimised together
(Schloegel, Karypis & Kumar, "Multilevel diffusion schemes for repartitioning of adaptive meshes", 1997).

The search and the flow between two sides are those of `lb_mpi.partitioning`, with k = 2.
"""

# Compiled functions accept NamedTuples of arrays as arguments.

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lb_mpi.distributing.halo import GraphPart
from lb_mpi.graph import Floats, Ints
from lb_mpi.kernels import inlined, njit
from lb_mpi.partitioning.coarsen import SHRINK, Csr, Flags, cluster, contract
from lb_mpi.partitioning.compiled import make_heap, pop, put, random_state
from lb_mpi.partitioning.flow import refine_by_flow
from lb_mpi.partitioning.refine import LATEST, find_connections, find_parts, move, refine

# --- A rank's rows ----------------------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A rank's rows of a graph, or of a coarser one.  Ghosts are behind the owned vertices, and have no rows."""

    graph: Csr  # (n_local + n_ghosts,) vertices
    n_local: int
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
    return Shard(graph, part.n_local, np.concatenate([part.vertices, part.ghosts]), send, ghosts)


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
    heads: Ints  # (nnz,) the other ends: numbers, or places in this zone if INSIDE
    kinds: Ints  # (nnz,) 0, 1, INSIDE, OTHER, OTHER + 1, ELSEWHERE
    weights: Floats  # (nnz,)


def zone(shard: Shard, labels: Ints, rank: int, other: int, layers: int, work: float = 0.0) -> tuple[Ints, Zone]:
    """Return the vertices of `rank`, the home, near the border of its part with the other rank's: local numbers, and rows.

    labels (n_local + n_ghosts,) : the ranks that will own the vertices.  layers : edges from the border, at least as many as
    vertices with this `work` need; if there is some, but no border, the zone begins at the vertex with the fewest edges.
    One vertex that stays at home is left out, so that a rank keeps its place between its neighbours.
    """
    low, high = min(rank, other), max(rank, other)
    found = near_border(shard.graph, shard.n_local, labels, rank, other, layers, work)
    theirs = shard.ghosts.get(other, slice(0, 0))
    rows = rows_between(shard.graph, shard.n_local, shard.numbers, labels, low, high, theirs.start, theirs.stop, found)
    return found, rows


@njit(cache=True)
def rows_between(
    graph: Csr, n_local: int, numbers: Ints, labels: Ints, low: int, high: int, start: int, stop: int, found: Ints
) -> Zone:
    """Return the rows of the vertices `found`, without those in third parts; start, stop: the other home's ghosts."""
    place = np.full(n_local, -1)
    most = 0
    for k in range(len(found)):
        place[found[k]] = k
        most += graph.indptr[found[k] + 1] - graph.indptr[found[k]]
    indptr, sides = np.zeros(len(found) + 1, np.int64), np.empty(len(found), np.int64)
    heads, kinds, weights = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    end = 0
    for k in range(len(found)):
        sides[k] = labels[found[k]] == high
        for e in range(graph.indptr[found[k]], graph.indptr[found[k] + 1]):
            u = graph.indices[e]
            within = labels[u] == low or labels[u] == high
            if u < n_local and place[u] >= 0:
                heads[end], kinds[end] = place[u], INSIDE
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
    return Zone(numbers[found], sides, costs, indptr, heads[:end].copy(), kinds[:end].copy(), weights[:end].copy())


@njit(cache=True)
def near_border(graph: Csr, n_local: int, labels: Ints, rank: int, other: int, layers: int, work: float) -> Ints:
    """Return the owned vertices of a zone, ascending; see `zone`."""
    seen = np.zeros(n_local, np.bool_)
    queue, depth = np.empty(n_local, np.int64), np.zeros(n_local, np.int64)
    end, n_home, outermost = 0, 0, -1
    for v in range(n_local):
        n_home += labels[v] == rank
        if labels[v] == rank or labels[v] == other:
            opposite = rank + other - labels[v]
            for e in range(graph.indptr[v], graph.indptr[v + 1]):
                if labels[graph.indices[e]] == opposite:
                    seen[v] = True
                    queue[end] = v
                    end += 1
                    break
            degree = graph.indptr[v + 1] - graph.indptr[v]
            if labels[v] == rank and (outermost < 0 or degree < graph.indptr[outermost + 1] - graph.indptr[outermost]):
                outermost = v
    if end == 0 and work > 0.0 and outermost >= 0:
        seen[outermost] = True
        queue[0] = outermost
        end = 1
    head, last, found, n_found, unseen = 0, -1, 0.0, 0, 0
    while head < end:
        v = queue[head]
        if depth[v] >= layers and found >= work:
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
                depth[u] = depth[v] + 1
                queue[end] = u
                end += 1
        while head == end and found < work and unseen < n_local:  # another piece of the part
            if not seen[unseen] and labels[unseen] == rank:
                seen[unseen] = True
                queue[end] = unseen
                end += 1
            unseen += 1
    for v in queue[head:end]:
        if labels[v] == rank:
            last = v
            n_found += 1
    if n_found == n_home and last >= 0:
        seen[last] = False
    return np.nonzero(seen)[0]


@njit(cache=True)
def settle(theirs: Zone, numbers: Ints, labels: Ints, low: int, high: int) -> Ints:
    """Return the right kinds of the edges of the other home's zone; numbers (n_local,) and labels are those of this home."""
    kinds = theirs.kinds.copy()
    for e in range(len(theirs.heads)):
        if kinds[e] >= OTHER:
            label = labels[find(numbers, theirs.heads[e])]
            kinds[e] = OTHER + (label == high) if label in (low, high) else ELSEWHERE
    return kinds


class Pair(NamedTuple):
    """The graph of two zones.  Vertices 0 and 1 are fixed: what else the two parts have."""

    indptr: Ints  # (2 + m + 1,)
    indices: Ints
    weights: Floats
    costs: Floats  # (2 + m,)
    side: Ints  # (2 + m,)
    fixed: Flags  # (2 + m,)


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
                    place = find(another.numbers, one.heads[e])
                    if place >= 0:
                        u = other_begin + place
                    else:
                        rest[v, kind - OTHER] += one.weights[e]
                elif kind < INSIDE:
                    rest[v, kind] += one.weights[e]
                inner[first + e] = u
                n_edges += u >= 0
            n_rest += (rest[v, 0] > 0.0) + (rest[v, 1] > 0.0)
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
    return Pair(indptr, heads, weights, costs, side, np.arange(m + 2) < 2)


@inlined
def find(numbers: Ints, number: int) -> int:
    """Return the place of a number among ascending ones, or -1."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(numbers) and numbers[low] == number else -1


ROUNDS, PATIENCE, SEEDS_AT_ONCE = 3, 0.3, 10  # of searches, as for a partition (see `multilevel`)
FLOW_ROUNDS, FLOW_LAYERS = 1, 5
FLOW_VERTICES = 1_000  # of a pair, at most: beyond, a flow takes most of the time, and coarser graphs have had theirs


def two_way(
    indptr: Ints, indices: Ints, edge_weights: Floats, costs: Floats, side: Ints, fixed: Flags, give: float, *,
    slack: tuple[float, float] = (0.0, 0.0), seed: int = 0,
) -> Ints:  # fmt: skip
    """Move work between the two sides of a graph, with a light cut; return the (n,) new side of each vertex, 0 or 1.

    Parameters
    ----------
    indptr, indices, edge_weights : the graph of n vertices in rows, each edge at both ends; parallel edges add up.
    costs : (n,) work of the vertices, >= 0.
    side, fixed : (n,) the side of each vertex, 0 or 1, and True for those that keep it.
    give : work that is to get from side 0 to side 1; < 0: from side 1 to side 0.
    slack : by how much sides 0 and 1 may be heavier afterwards, >= 0, if that makes the cut lighter.
    seed : of the random numbers; the same arguments give the same sides.

    First, vertices at the border change sides, cheapest in cut first, until the work is right up to half a vertex; without a
    border, from the vertex with the weakest edges on.  Then local searches with rollback and flows make the cut lighter (see
    `lb_mpi.partitioning.refine` and `.flow`).
    """
    free = np.flatnonzero(~fixed)
    group = np.asarray(side).copy()
    group[free] = 2 + np.arange(len(free))
    graph = contract(Csr(indptr, indices, edge_weights, costs), group, 2 + len(free))
    work = np.bincount(side, costs, minlength=2)
    heavy = float(costs.sum()) + abs(give) + 1.0  # no bound has room for a fixed vertex
    graph.vertex_weights[:2] += heavy
    bounds = work + heavy - [give, -give]
    part = np.concatenate([[0, 1], side[free]])
    give_work(graph, part, bounds)
    bounds = np.maximum(bounds + slack, np.bincount(part, graph.vertex_weights, minlength=2))
    state = random_state(seed)
    refine(graph, part, bounds, ROUNDS, PATIENCE, SEEDS_AT_ONCE, state)
    if len(part) <= FLOW_VERTICES:
        refine_by_flow(graph, part, bounds, FLOW_ROUNDS, FLOW_LAYERS, state)
    new = np.asarray(side).copy()
    new[free] = part[2:]
    return new


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
    connections = find_connections(graph, part, 2)
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
    at, to = piece[tails[away]], owners_of_ghosts(shard)[graph.indices[away] - n]
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


# --- Coarsening inside the parts --------------------------------------------------------------------------------------

COARSEST = 30  # vertices of a part in its coarsest graph


def multilevel_within(shard: Shard, labels: Ints, seed: int) -> tuple[Ints, int]:
    """Group the owned vertices: return (n_local,) the group of each one, and their number.

    labels (n_local + n_ghosts,) : a group has a single label, so that coarser graphs keep the parts.  The groups are the
    vertices of the next level, as `coarser` builds it; if they are as many as the vertices, this is the coarsest one.

    A pass of `two_way` over all pairs on each level, from the coarsest to the finest, moves whole groups, which a search by
    single vertices can't.  That keeps the cut near that of a fresh partition over many events.
    """
    graph, n = shard.graph, shard.n_local
    if n <= COARSEST:
        return np.arange(n), n
    inner = graph.indices < n
    indptr = np.concatenate([[0], np.cumsum(inner)])[graph.indptr[: n + 1]]
    own = Csr(indptr, graph.indices[inner], graph.weights[inner], graph.vertex_weights[:n].copy())
    largest = 1.5 * float(own.vertex_weights.sum()) / COARSEST
    group, count = cluster(own, largest, labels[:n].copy(), random_state(seed), False)
    return (group, count) if count <= SHRINK * n else (np.arange(n), n)


def coarser(shard: Shard, group: Ints, count: int, rank: int, ghost_groups: Ints) -> tuple[Shard, Ints]:
    """Return the shard of the groups, and (n_local + n_ghosts,) its vertex or ghost for each one here.

    group, count : of the owned vertices.  rank : that owns them.  ghost_groups (n_ghosts,) : the groups of the ghosts on
    their own ranks.
    """
    numbers, ghosts = np.unique(group_numbers(owners_of_ghosts(shard), ghost_groups), return_inverse=True)
    both = np.concatenate([group, count + ghosts])
    graph = contract(shard.graph, both, count + len(numbers))
    send = {other: np.unique(group[index]) for other, index in shard.send.items()}
    begin = (count + np.searchsorted(numbers, group_numbers(np.array([*shard.ghosts, MOST_RANKS]), 0))).tolist()
    of_ranks = {other: slice(begin[k], begin[k + 1]) for k, other in enumerate(shard.ghosts)}
    return Shard(graph, count, np.concatenate([group_numbers(rank, np.arange(count)), numbers]), send, of_ranks), both


def owners_of_ghosts(shard: Shard) -> Ints:
    """Return (n_ghosts,) the homes of the ghosts."""
    return np.repeat(np.array([*shard.ghosts], dtype=np.int64), [one.stop - one.start for one in shard.ghosts.values()])


MOST_RANKS = 1 << 22


def group_numbers(rank: int | Ints, group: int | Ints) -> Ints:
    """Return the numbers of groups on a rank: different on all ranks, ascending by rank."""
    return np.asarray((rank << 40) + group)
