"""The vertices that a rank gives to its neighbours: at the boundary, those that cut the fewest edges first.   (pure)"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from lb_mpi.distributing.halo import GraphPart
from lb_mpi.graph import Floats, Ints


def give(part: GraphPart, costs: Floats, flows: Mapping[int, float], rank: int) -> Ints:
    """Return (n_local,) the new owner of each vertex, when work flows to some neighbours.

    `costs` (n_local,) is the work of each vertex, `flows` the work for each rank; negative numbers are not this rank's to
    give.  The last vertex stays, so that a rank keeps its place between its neighbours.
    """
    labels = np.full(part.n_local, rank, dtype=np.int64)
    owner = np.concatenate([labels, np.repeat(part.ranks, np.diff(part.receive_indptr))])
    left = {other: flow for other, flow in flows.items() if flow > 0.0}
    indptr, indices, weights = part.indptr, part.indices, part.weights

    def gain(vertex: int, to: int) -> float:
        """Return by how much the cut falls if the vertex moves."""
        row = slice(indptr[vertex], indptr[vertex + 1])
        owners = owner[indices[row]]
        return float(weights[row][owners == to].sum() - weights[row][owners == rank].sum())

    heap: list[tuple[float, int, int]] = []  # minus gain, vertex, new owner
    for to in left:
        beside = np.unique(np.repeat(np.arange(part.n_local), np.diff(indptr))[owner[indices] == to])
        if not len(beside) and part.n_local:  # the parts do not touch: begin anywhere
            beside = np.argmin(np.diff(indptr), keepdims=True)
        heap += [(-gain(vertex, to), vertex, to) for vertex in beside.tolist()]
    heapq.heapify(heap)
    n_left = part.n_local
    while heap and n_left > 1:
        before, vertex, to = heapq.heappop(heap)
        cost = float(costs[vertex])
        if owner[vertex] != rank or cost > 2.0 * left[to]:
            continue
        now = -gain(vertex, to)
        if now > before:
            heapq.heappush(heap, (now, vertex, to))
            continue
        owner[vertex] = labels[vertex] = to
        left[to] -= cost
        n_left -= 1
        if left[to] > 0.0:
            for other in indices[indptr[vertex] : indptr[vertex + 1]].tolist():
                if other < part.n_local and owner[other] == rank:
                    heapq.heappush(heap, (-gain(other, to), other, to))
    return labels
