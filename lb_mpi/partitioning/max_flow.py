"""Maximum flow between two sides of a corridor of a graph, by Dinic's layers (1970).   (pure)"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.coarsen import Csr
from lb_mpi.partitioning.compiled import borrowing, inlined

SOURCE, SINK = 1, 2  # sides: of terminals, and of what is on their side of the cut; 0 is neither
OUTSIDE, FAR = -2, -1  # depths: not in the corridor; not reached (yet)


class Network(NamedTuple):
    """A flow in a corridor of a graph, and room to work in; made once for all corridors.

    Between two uses depth is OUTSIDE, side and reach are 0 everywhere.
    """

    reverse: Ints  # (2E,) for each arc u-v where v-u is
    room: Floats  # (2E,) what each arc may carry more
    depth: Ints  # (n,) arcs to the nearest sink
    arc: Ints  # (n,) the first arc that may lead on
    side: Ints  # (n,) SOURCE, SINK, or 0: no terminal
    reach: Ints  # (n,) SOURCE: flow from the sources gets there; SINK: flow from there gets to the sinks
    distance: Ints  # (n,) from the cut that the corridor was laid along; negative beyond it
    queue: Ints  # (n,)
    path: Ints  # (n + 1,) arcs
    tiny: float  # room that is a rounding error


@njit(cache=True)
def make_network(graph: Csr) -> Network:
    """Return the network of a graph, without any corridor."""
    n, n_arcs = len(graph.vertex_weights), len(graph.indices)
    heaviest = graph.weights.max() if n_arcs else 0.0
    return Network(
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
    """Find for each arc u-v where v-u is: (2E,)."""
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


@borrowing
def push_flow(graph: Csr, net: Network, corridor: Ints) -> float:
    """Push a maximum flow through the corridor from its sources to its sinks: how much more has passed."""
    pushed = 0.0
    while find_depths(graph, net, corridor):
        for v in corridor:
            if net.side[v] == SOURCE and net.depth[v] > 0:
                pushed += push_from(graph, net, v)
    return pushed


@borrowing
def find_depths(graph: Csr, net: Network, corridor: Ints) -> bool:
    """Find the depths of all vertices up to those of the nearest sources; True if there is a way from one."""
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
def push_from(graph: Csr, net: Network, start: int) -> float:
    """Push from this source whatever gets to a sink by a shortest way: how much that is."""
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
def push_along(net: Network, length: int) -> tuple[float, int]:
    """Push along the first arcs of the path: how much, and how many arcs still have room."""
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
