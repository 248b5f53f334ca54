"""The vertices that a rank gives to its neighbours: at the boundary, those that cut the fewest edges first.   (pure)

Each rank chooses among its own vertices alone, for all of its neighbours at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from lb_mpi.distributing.halo import GraphPart
from lb_mpi.graph import Floats, Ints
from lb_mpi.kernels import njit


def give(part: GraphPart, costs: Floats, flows: Mapping[int, float], rank: int) -> Ints:
    """Return (n_local,) the new owner of each vertex, when work flows to some neighbours.

    `costs` (n_local,) is the work of each vertex, `flows` the work for each rank; negative numbers are not this rank's to
    give.  The last vertex stays, so that a rank keeps its place between its neighbours.
    """
    owners = np.concatenate([np.full(part.n_local, rank), np.repeat(part.ranks, np.diff(part.receive_indptr))])
    to = np.array([other for other, flow in flows.items() if flow > 0.0], dtype=np.int64)
    left = np.array([flow for flow in flows.values() if flow > 0.0])
    if len(to) and part.n_local > 1:
        degrees = np.diff(part.indptr)
        _give(part.indptr, part.indices, part.weights, costs, owners, rank, to, left, int(np.argmin(degrees)))
    return owners[: part.n_local]


@njit(cache=True)
def _give(
    indptr: Ints, indices: Ints, weights: Floats, costs: Floats, owners: Ints, rank: int, to: Ints, left: Floats, first: int
) -> None:
    """Change `owners` (n_local + n_ghosts,); `first` begins where two parts do not touch."""
    n_left = len(costs)
    heap = [(0.0, 0, 0)]  # minus gain, vertex, place in `to`
    heap.pop()
    for k in range(len(to)):
        beside = False
        for vertex in range(len(costs)):
            for entry in range(indptr[vertex], indptr[vertex + 1]):
                if owners[indices[entry]] == to[k]:
                    beside = True
                    heap.append((-_gain(indptr, indices, weights, owners, vertex, rank, to[k]), vertex, k))
                    break
        if not beside:
            heap.append((0.0, first, k))
    heapq.heapify(heap)
    while len(heap) > 0 and n_left > 1:
        before, vertex, k = heapq.heappop(heap)
        if owners[vertex] != rank or left[k] <= 0.0 or costs[vertex] > 2.0 * left[k]:
            continue
        now = -_gain(indptr, indices, weights, owners, vertex, rank, to[k])
        if now > before:
            heapq.heappush(heap, (now, vertex, k))
            continue
        owners[vertex] = to[k]
        left[k] -= costs[vertex]
        n_left -= 1
        for entry in range(indptr[vertex], indptr[vertex + 1]):
            other = indices[entry]
            if other < len(costs) and owners[other] == rank:
                heapq.heappush(heap, (-_gain(indptr, indices, weights, owners, other, rank, to[k]), other, k))


@njit(cache=True)
def _gain(indptr: Ints, indices: Ints, weights: Floats, owners: Ints, vertex: int, rank: int, to: int) -> float:
    """Return by how much the cut falls if the vertex moves."""
    gain = 0.0
    for entry in range(indptr[vertex], indptr[vertex + 1]):
        owner = owners[indices[entry]]
        if owner == to:
            gain += weights[entry]
        elif owner == rank:
            gain -= weights[entry]
    return gain


def compile_kernels() -> None:
    """Compile the choice of vertices, or load it from the cache."""
    none, two = np.zeros(0, dtype=np.int64), np.zeros(2, dtype=np.int64)
    _give(two, none, np.zeros(0), np.zeros(1), two[:1].copy(), 0, none, np.zeros(0), 0)
