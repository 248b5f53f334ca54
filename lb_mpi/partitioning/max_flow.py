"""Maximum flow between two sides of a corridor of a graph, by Dinic's layers (1970).   (pure)"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def reverse_arcs(indptr, indices):  # type: ignore[no-untyped-def]
    """(2E,) for each arc u-v where v-u is."""
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
    place = np.empty(n, np.int64)
    reverse = np.empty(len(indices), np.int64)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            place[indices[e]] = e
        for i in range(indptr[v], indptr[v + 1]):
            reverse[arriving[i]] = place[tail[i]]
    return reverse


@njit(cache=True)
def push_flow(indptr, indices, reverse, room, corridor, depth, arc, side, queue, path, tiny):  # type: ignore[no-untyped-def]
    """Push a maximum flow from the vertices of side 1 to those of side 2: how much more has passed.

    room (2E,) : what each arc has left; depth (n,) -2 outside of the corridor; side (n,) 1: source, 2: sink.
    """
    pushed = 0.0
    while True:
        for i in range(len(corridor)):
            depth[corridor[i]] = -1
            arc[corridor[i]] = indptr[corridor[i]]
        head, end = 0, 0
        for i in range(len(corridor)):
            v = corridor[i]
            if side[v] == 2:
                depth[v] = 0
                queue[end] = v
                end += 1
        reached = -1
        while head < end:  # the way to the nearest sink
            v = queue[head]
            head += 1
            if reached >= 0 and depth[v] >= reached:
                break
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if depth[u] == -1 and room[reverse[e]] > tiny:
                    depth[u] = depth[v] + 1
                    if side[u] == 1:
                        if reached < 0:
                            reached = depth[u]
                    else:
                        queue[end] = u
                        end += 1
        if reached < 0:
            return pushed
        for i in range(len(corridor)):
            start = corridor[i]
            if side[start] != 1 or depth[start] <= 0:
                continue
            length = 0
            v = start
            while True:
                if side[v] == 2:
                    least = np.inf
                    for j in range(length):
                        least = min(least, room[path[j]])
                    keep = length
                    for j in range(length - 1, -1, -1):
                        room[path[j]] -= least
                        room[reverse[path[j]]] += least
                        if room[path[j]] <= tiny:
                            keep = j
                    pushed += least
                    v = indices[reverse[path[keep]]]
                    length = keep
                    continue
                found = False
                while arc[v] < indptr[v + 1]:
                    e = arc[v]
                    u = indices[e]
                    if depth[u] == depth[v] - 1 and room[e] > tiny and side[u] != 1:
                        found = True
                        break
                    arc[v] += 1
                if found:
                    path[length] = arc[v]
                    length += 1
                    v = indices[arc[v]]
                elif length == 0:
                    break
                else:
                    length -= 1
                    v = indices[reverse[path[length]]]
                    arc[v] += 1
