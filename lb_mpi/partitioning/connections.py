"""What each vertex has to do with each part, kept up to date while vertices move; and heaps of vertices.   (pure)

It is kept in lists as long as the vertex' degree (Karypis & Kumar 1998), so memory is O(n + m):
`tie_part[indptr[v] : indptr[v] + n_ties[v]]` are the parts beside its own, `tie[...]` the weights of the edges to
them, `own[v]` that of the edges to its own part.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def find_ties(indptr, indices, weights, part, k):  # type: ignore[no-untyped-def]
    """The ties of all vertices: tie_part (2E,), tie (2E,), n_ties (n,), own (n,); part (n,) in 0..k-1."""
    n = len(indptr) - 1
    tie_part = np.empty(len(indices), np.int64)
    tie = np.empty(len(indices))
    n_ties = np.zeros(n, np.int64)
    own = np.zeros(n)
    place = np.full(k, -1)
    for v in range(n):
        start = end = indptr[v]
        for e in range(indptr[v], indptr[v + 1]):
            p = part[indices[e]]
            if p == part[v]:
                own[v] += weights[e]
            elif place[p] < start:
                place[p] = end
                tie_part[end] = p
                tie[end] = weights[e]
                end += 1
            else:
                tie[place[p]] += weights[e]
        n_ties[v] = end - start
    return tie_part, tie, n_ties, own


@njit(cache=True)
def move_tie(v, weight, source, target, part, indptr, tie_part, tie, n_ties, own):  # type: ignore[no-untyped-def]
    """A neighbour of v, tied to it with `weight`, has moved from part `source` to `target`: bring v's ties up to date."""
    start = indptr[v]
    if part[v] == source:
        own[v] -= weight
    else:
        for e in range(start, start + n_ties[v]):
            if tie_part[e] == source:
                tie[e] -= weight
                if tie[e] <= 1e-12 * weight:
                    n_ties[v] -= 1
                    last = start + n_ties[v]
                    tie_part[e] = tie_part[last]
                    tie[e] = tie[last]
                break
    if part[v] == target:
        own[v] += weight
    else:
        end = start + n_ties[v]
        for e in range(start, end):
            if tie_part[e] == target:
                tie[e] += weight
                return
        if end < indptr[v + 1]:  # always, but for rounding errors
            tie_part[end] = target
            tie[end] = weight
            n_ties[v] += 1


@njit(cache=True)
def move_vertex(v, target, part, part_weights, vertex_weights, indptr, indices, weights, tie_part, tie, n_ties, own):  # type: ignore[no-untyped-def]
    """Move v to part `target`, and bring its own ties up to date; not those of its neighbours (`move_tie`)."""
    source = part[v]
    start, end = indptr[v], indptr[v] + n_ties[v]
    to_source = own[v]
    own[v] = 0.0
    found = False
    for e in range(start, end):
        if tie_part[e] == target:
            own[v] = tie[e]
            found = True
            if to_source > 0:
                tie_part[e] = source
                tie[e] = to_source
            else:
                n_ties[v] -= 1
                tie_part[e] = tie_part[end - 1]
                tie[e] = tie[end - 1]
            break
    if not found and to_source > 0 and end < indptr[v + 1]:
        tie_part[end] = source
        tie[end] = to_source
        n_ties[v] += 1
    part[v] = target
    part_weights[source] -= vertex_weights[v]
    part_weights[target] += vertex_weights[v]


@njit(cache=True)
def sift_up(i, heap, place, key):  # type: ignore[no-untyped-def]
    """Restore the heap of vertices (largest key first) after the i-th one's key has risen."""
    v = heap[i]
    while i > 0:
        above = (i - 1) >> 1
        if key[heap[above]] >= key[v]:
            break
        heap[i] = heap[above]
        place[heap[i]] = i
        i = above
    heap[i] = v
    place[v] = i


@njit(cache=True)
def sift_down(i, size, heap, place, key):  # type: ignore[no-untyped-def]
    """Restore the heap of `size` vertices after the i-th one's key has fallen."""
    v = heap[i]
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        if below + 1 < size and key[heap[below + 1]] > key[heap[below]]:
            below += 1
        if key[heap[below]] <= key[v]:
            break
        heap[i] = heap[below]
        place[heap[i]] = i
        i = below
    heap[i] = v
    place[v] = i
