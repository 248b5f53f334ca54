"""Refinement: localized k-way Fiduccia-Mattheyses search with rollback.   (pure)

A search starts at some vertices of the boundary, moves the vertex of highest gain to the part it is tied to most,
whether that helps or not, takes up its neighbours, and goes on until the chance to find anything better has become
small (Osipov & Sanders, "n-level graph partitioning", ESA 2010).  Then everything after its best point is taken back.
Many searches that start from few vertices each find more than one that starts from all (Sanders & Schulz,
"Engineering multilevel graph partitioning algorithms", ESA 2011, "multi-try FM").  A vertex moves once in a round.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lb_mpi.partitioning.balance import rebalance
from lb_mpi.partitioning.chance import shuffle
from lb_mpi.partitioning.connections import find_ties, move_tie, move_vertex, sift_down, sift_up

LATEST = 1e-7  # of the heaviest edge: of equal gains the one that was found last goes first, which keeps a search local


@njit(cache=True)
def search(  # type: ignore[no-untyped-def]
    indptr, indices, weights, vertex_weights, part, part_weights, bounds,
    tie_part, tie, n_ties, own, seeds, seeds_at_once, patience, state,
):  # fmt: skip
    """One round of searches from seeds (any number,), `seeds_at_once` of them each: how much lighter the cut is.

    Changes `part` (n,), part_weights (k,) and the ties.  A part that is within its bound (k,) stays so; the cut does
    not grow.  Returns the gain and the vertices that have moved.
    """
    n = len(vertex_weights)
    key = np.zeros(n)
    exact = np.zeros(n)
    tick = 0.0
    step = LATEST * weights.max() if len(weights) else 0.0
    heap = np.empty(n, np.int64)
    place = np.full(n, -1)  # in the heap; -1: not in it, -2: has moved in this round
    moved = np.empty(n, np.int64)
    came_from = np.empty(n, np.int64)
    shuffle(seeds, len(seeds), state)
    total_gain = 0.0
    kept = 0  # moved[:kept] stay where they are
    at = 0
    scale = 0.0
    while at < len(seeds):
        size = 0
        while at < len(seeds) and size < seeds_at_once:
            v = seeds[at]
            at += 1
            if place[v] == -1 and n_ties[v] > 0:
                best = -np.inf
                for e in range(indptr[v], indptr[v] + n_ties[v]):
                    best = max(best, tie[e])
                exact[v] = best - own[v]
                tick += step
                key[v] = exact[v] + tick
                heap[size] = v
                place[v] = size
                size += 1
                sift_up(size - 1, heap, place, key)
        count = kept
        gain, best_gain, best_count = 0.0, 0.0, kept
        since, sum_gain, sum_square = 0, 0.0, 0.0
        while size > 0:
            v = heap[0]
            target, best = -1, -np.inf
            for e in range(indptr[v], indptr[v] + n_ties[v]):
                p = tie_part[e]
                if tie[e] < best or part_weights[p] + vertex_weights[v] > bounds[p]:
                    continue
                # Of parts it is tied to equally: the emptier one.
                if tie[e] > best or part_weights[p] * bounds[target] < part_weights[target] * bounds[p]:
                    target, best = p, tie[e]
            best -= own[v]
            if target >= 0 and best < exact[v]:  # its best part is full
                exact[v] = best
                key[v] = best + tick
                sift_down(0, size, heap, place, key)
                if heap[0] != v:
                    continue
            size -= 1
            place[v] = -1
            if size > 0:
                heap[0] = heap[size]
                place[heap[0]] = 0
                sift_down(0, size, heap, place, key)
            if target < 0:
                continue
            source = part[v]
            move_vertex(
                v, target, part, part_weights, vertex_weights, indptr, indices, weights, tie_part, tie, n_ties, own
            )
            place[v] = -2
            moved[count] = v
            came_from[count] = source
            count += 1
            gain += best
            scale = max(scale, abs(gain))
            since += 1
            sum_gain += best
            sum_square += best * best
            if gain >= best_gain - 1e-12 * scale:
                if gain > best_gain + 1e-12 * scale:
                    since, sum_gain, sum_square = 0, 0.0, 0.0
                best_gain, best_count = gain, count
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                move_tie(u, weights[e], source, target, part, indptr, tie_part, tie, n_ties, own)
                if place[u] == -2:
                    continue
                if n_ties[u] == 0:
                    if place[u] >= 0:  # nothing to gain any more
                        i = place[u]
                        place[u] = -1
                        size -= 1
                        if i < size:
                            last = heap[size]
                            heap[i] = last
                            place[last] = i
                            sift_up(i, heap, place, key)
                            sift_down(place[last], size, heap, place, key)
                    continue
                best = -np.inf
                for f in range(indptr[u], indptr[u] + n_ties[u]):
                    best = max(best, tie[f])
                best -= own[u]
                tick += step
                old = key[u]
                exact[u] = best
                key[u] = best + tick
                if place[u] < 0:
                    heap[size] = u
                    size += 1
                    sift_up(size - 1, heap, place, key)
                elif key[u] > old:
                    sift_up(place[u], heap, place, key)
                elif key[u] < old:
                    sift_down(place[u], size, heap, place, key)
            if since > 2:
                mean = sum_gain / since
                spread = sum_square / since - mean * mean
                if mean <= 0 and since > 10 * patience and since * mean * mean > patience * spread:
                    break
            if since > 350 * patience:
                break
        for i in range(size):
            place[heap[i]] = -1
        while count > best_count:
            count -= 1
            v = moved[count]
            target, source = came_from[count], part[v]
            move_vertex(
                v, target, part, part_weights, vertex_weights, indptr, indices, weights, tie_part, tie, n_ties, own
            )
            for e in range(indptr[v], indptr[v + 1]):
                move_tie(indices[e], weights[e], source, target, part, indptr, tie_part, tie, n_ties, own)
        kept = best_count
        total_gain += best_gain
    return total_gain, moved[:kept].copy()


@njit(cache=True)
def refine(  # type: ignore[no-untyped-def]
    indptr, indices, weights, vertex_weights, part, bounds, rounds, patience, seeds_at_once, state
):
    """Rebalance part (n,), in place, if a bound (k,) is broken, then search in up to `rounds` rounds.

    The first round starts from the whole boundary, the others from where the last one has moved vertices.  Returns by
    how much the searches have made the cut lighter; seeds_at_once <= 0 means the whole boundary at once.
    """
    n, k = len(vertex_weights), len(bounds)
    part_weights = np.zeros(k)
    for v in range(n):
        part_weights[part[v]] += vertex_weights[v]
    tie_part, tie, n_ties, own = find_ties(indptr, indices, weights, part, k)
    if np.any(part_weights > bounds):
        rebalance(indptr, indices, weights, vertex_weights, part, part_weights, bounds, tie_part, tie, n_ties, own)
    seeds = np.nonzero(n_ties)[0]
    gained = 0.0
    marked = np.zeros(n, np.bool_)
    for _ in range(rounds):
        at_once = seeds_at_once if seeds_at_once > 0 else len(seeds)
        gain, moved = search(
            indptr, indices, weights, vertex_weights, part, part_weights, bounds,
            tie_part, tie, n_ties, own, seeds, at_once, patience, state,
        )  # fmt: skip
        if gain <= 0:
            break
        gained += gain
        count = 0
        seeds = np.empty(n, np.int64)
        for v in moved:
            if not marked[v] and n_ties[v] > 0:
                marked[v] = True
                seeds[count] = v
                count += 1
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if not marked[u] and n_ties[u] > 0:
                    marked[u] = True
                    seeds[count] = u
                    count += 1
        seeds = seeds[:count]
        marked[seeds] = False
    return gained
