"""Refinement: the lightest cut between two neighbouring parts, by maximum flow in a corridor along it.   (pure)

Around the cut between parts a and b a corridor is grown.  Its vertices that touch the rest of a are sources, those that
touch the rest of b sinks; a maximum flow (Dinic 1970) gives the lightest cut in the corridor.  If one side is then
too heavy, the other one is made greater, step by step: all that it can reach becomes terminals, and one more vertex
beside them does, if possible one that lets no more flow through (Hamann & Strasser, "Graph bisection with
Pareto-optimization", 2018; Heuer, Sanders & Schlag, "Network flow-based refinement for multilevel hypergraph
partitioning", 2019).  That ends when both are within their bounds, or the cut is no better than before.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lb_mpi.partitioning.chance import shuffle
from lb_mpi.partitioning.max_flow import push_flow, reverse_arcs

CORRIDOR = 16.0  # how many times wider than the slack of the balance


@njit(cache=True)
def spread(  # type: ignore[no-untyped-def]
    mark, end, indptr, indices, reverse, room, depth, side, reach, queue, vertex_weights, candidates, n_candidates, tiny
):
    """Set reach to `mark` (1 or 2) wherever flow from queue[:end], or to these, can get, and note what lies beside.

    Returns the weight of what is newly reached, queue[:end] included, and the number of candidates for the next step.
    """
    weight = 0.0
    for i in range(end):
        reach[queue[i]] = mark
    head = 0
    while head < end:
        v = queue[head]
        head += 1
        weight += vertex_weights[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if depth[u] == -2 or reach[u] == mark:
                continue
            if reach[u] == 0 and side[u] == 0 and room[e if mark == 1 else reverse[e]] > tiny:
                reach[u] = mark
                queue[end] = u
                end += 1
            elif side[u] == 0 and n_candidates < len(candidates):
                candidates[n_candidates] = u
                n_candidates += 1
    return weight, n_candidates


@njit(cache=True)
def flow_pair(  # type: ignore[no-untyped-def]
    a, b, seeds, indptr, indices, weights, vertex_weights, reverse, part, part_weights, bounds,
    room, depth, arc, side, reach, queue, path, distance, layers, tiny,
):  # fmt: skip
    """Make the cut between parts a and b lighter; seeds: vertices at this cut.  How much lighter it has become.

    The arrays after `bounds` are scratch memory, the same in every call: room (2E,), the others (n,), path (n + 1,).
    On entry and on return depth is -2, side and reach are 0 everywhere.
    """
    slack = (bounds[a] + bounds[b] - part_weights[a] - part_weights[b]) / 2
    corridor = np.empty(0, np.int64)
    end = 0
    cut = 0.0
    before_a = 0
    outside = np.zeros(2)
    # The corridor is laid out with side a first, each by breadth first search from the cut.
    for which in range(2):
        own, other = (a, b) if which == 0 else (b, a)
        begin = end
        weight = 0.0
        limit = min(0.4 * part_weights[own], max(CORRIDOR * slack, 0.05 * part_weights[own]))
        for i in range(len(seeds)):
            v = seeds[i]
            if part[v] != own or depth[v] != -2:
                continue
            touches = False
            for e in range(indptr[v], indptr[v + 1]):
                if part[indices[e]] == other:
                    touches = True
                    break
            if touches:
                depth[v] = 0
                arc[v] = 0
                queue[end] = v
                end += 1
                weight += vertex_weights[v]
        head = begin
        while head < end:
            v = queue[head]
            head += 1
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if part[u] == own and depth[u] == -2 and arc[v] < layers and weight + vertex_weights[u] <= limit:
                    depth[u] = 0
                    arc[u] = arc[v] + 1  # distance from the cut, for now
                    queue[end] = u
                    end += 1
                    weight += vertex_weights[u]
        outside[which] = part_weights[own] - weight
        if which == 0:
            before_a = end
    corridor = queue[:end].copy()
    n_terminals = np.zeros(2, np.int64)
    for i in range(end):
        v = corridor[i]
        distance[v] = arc[v] if i < before_a else -1 - arc[v]  # positive on a's side
        own = part[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            room[e] = weights[e]
            if i < before_a and part[u] == b and depth[u] != -2:
                cut += weights[e]
            if part[u] == own and depth[u] == -2:
                side[v] = 1 if own == a else 2
        if side[v]:
            n_terminals[side[v] - 1] += 1
    gain = 0.0
    if 0 < before_a < end and cut > tiny:
        if n_terminals[0] == 0:
            side[corridor[before_a - 1]] = 1
        if n_terminals[1] == 0:
            side[corridor[end - 1]] = 2
        total = part_weights[a] + part_weights[b]
        flow, chosen, steps = 0.0, 0, 0
        reached = np.zeros(2)
        candidates = np.empty((2, 4 * end + 64), np.int64)
        n_candidates = np.zeros(2, np.int64)
        pierced = np.empty(end, np.int64)
        n_pierced = 0
        mark = 0
        augment = True
        while True:
            if augment:
                flow += push_flow(indptr, indices, reverse, room, corridor, depth, arc, side, queue, path, tiny)
                if flow > cut + tiny:
                    break
            for m in range(1, 3):
                if m == mark:  # it grows from the new terminals
                    queue[:n_pierced] = pierced[:n_pierced]
                    start = n_pierced
                elif augment:  # it starts anew
                    start = 0
                    reached[m - 1] = 0.0
                    n_candidates[m - 1] = 0
                    for i in range(end):
                        v = corridor[i]
                        if side[v] == m:
                            queue[start] = v
                            start += 1
                        elif reach[v] == m:
                            reach[v] = 0
                else:
                    continue
                more, n_candidates[m - 1] = spread(
                    m, start, indptr, indices, reverse, room, depth, side, reach, queue, vertex_weights,
                    candidates[m - 1], n_candidates[m - 1], tiny,
                )  # fmt: skip
                reached[m - 1] += more
            weight_a = outside[0] + reached[0]  # if all that the sources reach, and no more, is a
            weight_b = outside[1] + reached[1]
            fits_a = weight_a <= bounds[a] and total - weight_a <= bounds[b]
            fits_b = weight_b <= bounds[b] and total - weight_b <= bounds[a]
            if fits_a or fits_b:
                chosen = 1 if fits_a else 2
                if fits_a and fits_b:
                    worst_a = max(weight_a / bounds[a], (total - weight_a) / bounds[b])
                    worst_b = max(weight_b / bounds[b], (total - weight_b) / bounds[a])
                    chosen = 1 if worst_a <= worst_b else 2
                break
            if flow >= cut - tiny or steps > 200:
                break
            mark = 1 if weight_a * bounds[b] <= weight_b * bounds[a] else 2
            sign = 1 if mark == 1 else -1
            for i in range(end):
                if reach[corridor[i]] == mark:
                    side[corridor[i]] = mark
            augment = False
            n_pierced = 0
            beside = candidates[mark - 1]
            for _ in range(1 << max(0, steps // 16 - 1)):
                best, best_score, kept = -1, -(1 << 60), 0
                for i in range(n_candidates[mark - 1]):
                    v = beside[i]
                    if side[v] != 0 or reach[v] == mark:
                        continue
                    beside[kept] = v
                    kept += 1
                    score = sign * distance[v]
                    if reach[v] == 3 - mark:
                        score -= 1 << 40
                    if score > best_score:
                        best, best_score = v, score
                n_candidates[mark - 1] = kept
                if best < 0:
                    break
                side[best] = mark
                if reach[best] == 3 - mark:
                    augment = True
                reach[best] = mark
                pierced[n_pierced] = best
                n_pierced += 1
            if n_pierced == 0:
                break
            steps += 1
        if chosen and flow <= cut + tiny:
            new_a = outside[0] + reached[0] if chosen == 1 else total - outside[1] - reached[1]
            worst = max(part_weights[a] / bounds[a], part_weights[b] / bounds[b])
            new_worst = max(new_a / bounds[a], (total - new_a) / bounds[b])
            for i in range(end):  # from here on `side` says where v goes
                v = corridor[i]
                side[v] = 0 if (reach[v] == 1 if chosen == 1 else reach[v] != 2) else 1
            for i in range(end):
                v = corridor[i]
                for e in range(indptr[v], indptr[v + 1]):
                    u = indices[e]
                    if part[u] == a or part[u] == b:
                        if depth[u] != -2:
                            gain += 0.5 * weights[e] * (int(part[u] != part[v]) - int(side[u] != side[v]))
                        else:
                            to = a if side[v] == 0 else b
                            gain += weights[e] * (int(part[u] != part[v]) - int(part[u] != to))
            if gain > tiny or (gain >= -tiny and new_worst < worst):
                for i in range(end):
                    v = corridor[i]
                    to = a if side[v] == 0 else b
                    if part[v] != to:
                        part_weights[part[v]] -= vertex_weights[v]
                        part_weights[to] += vertex_weights[v]
                        part[v] = to
            else:
                gain = 0.0
    for i in range(end):
        v = corridor[i]
        depth[v] = -2
        side[v] = 0
        reach[v] = 0
    return gain


@njit(cache=True)
def refine_by_flow(indptr, indices, weights, vertex_weights, part, bounds, rounds, layers, state):  # type: ignore[no-untyped-def]
    """Improve part (n,), in place, pair by pair in random order: how much lighter the cut has become.

    A second and later round takes the pairs of which one part has become better in the round before.
    """
    n, k = len(vertex_weights), len(bounds)
    part_weights = np.zeros(k)
    tiny = 0.0
    for v in range(n):
        part_weights[part[v]] += vertex_weights[v]
    for e in range(len(weights)):
        tiny = max(tiny, weights[e])
    tiny *= 1e-9
    reverse = reverse_arcs(indptr, indices)
    room = np.empty(len(indices))
    depth = np.full(n, -2)
    arc, queue, distance = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    side, reach = np.zeros(n, np.int64), np.zeros(n, np.int64)
    path = np.empty(n + 1, np.int64)
    active = np.ones(k, np.bool_)
    gained = 0.0
    for _ in range(rounds):
        crossing = 0
        for v in range(n):
            for e in range(indptr[v], indptr[v + 1]):
                if part[indices[e]] != part[v]:
                    crossing += 1
        pairs, ends = np.empty(crossing, np.int64), np.empty(crossing, np.int64)
        crossing = 0
        for v in range(n):
            for e in range(indptr[v], indptr[v + 1]):
                p, q = part[v], part[indices[e]]
                if p != q and (active[p] or active[q]):
                    pairs[crossing] = min(p, q) * k + max(p, q)
                    ends[crossing] = v
                    crossing += 1
        order = np.argsort(pairs[:crossing], kind="mergesort")
        starts = np.empty(crossing + 1, np.int64)
        n_pairs = 0
        for i in range(crossing):
            if i == 0 or pairs[order[i]] != pairs[order[i - 1]]:
                starts[n_pairs] = i
                n_pairs += 1
        starts[n_pairs] = crossing
        turn = np.arange(n_pairs)
        shuffle(turn, n_pairs, state)
        active[:] = False
        for i in range(n_pairs):
            seeds = ends[order[starts[turn[i]] : starts[turn[i] + 1]]]
            pair = pairs[order[starts[turn[i]]]]
            a, b = pair // k, pair % k
            gain = flow_pair(
                a, b, seeds, indptr, indices, weights, vertex_weights, reverse, part, part_weights, bounds,
                room, depth, arc, side, reach, queue, path, distance, layers, tiny,
            )  # fmt: skip
            if gain > tiny:
                active[a] = active[b] = True
                gained += gain
        if not np.any(active):
            break
    return gained
