"""The graph of the arrangement paper's column 8, whose list of neighbours is lost: which graphs could it be?

All 7,654 connected graphs of nine vertices and 8 to 12 edges are built, trees first and then edge by edge.  Those on which
the greedy has the printed p are few, and of them those whose greatest p is the printed one are fewer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numba import njit

from benchmarks.papers.ratio import ratios_of
from lb_mpi.arranging.objectives import TIE
from lb_mpi.graph import Floats, Ints

N = 9
MOST_EDGES = 12
KNOWN = (47, 240, 797, 2075, 4495)  # connected graphs of nine vertices with 8, 9, ... edges, as they are tabulated
STARTS = 20
AROUND = 5.0  # how far around the printed number the density of greatest p is taken


class Search(NamedTuple):
    """The graphs whose greedy is printed as wanted."""

    counts: tuple[int, ...]  # graphs by number of edges, from 8
    greatest: Floats  # of those whose greedy agrees: greatest p
    edges: list[Ints]  # (E, 2) of each
    hits: list[int]  # those whose greatest p agrees, too

    def by_chance(self, printed: float, width: float) -> float:
        """Hits that are expected by chance, from the graphs whose greatest p is near the printed one."""
        near = int((np.abs(self.greatest - printed) <= AROUND).sum())
        return near * width / (2.0 * AROUND)


def graphs() -> list[Any]:
    """(B, 9, 9) adjacency of all of them, for each number of edges."""
    level = np.array([nx.to_numpy_array(tree, nodelist=range(N)) for tree in nx.nonisomorphic_trees(N)])
    found = [level]
    corners = np.tril_indices(N, -1)
    for _ in range(N, MOST_EDGES + 1):
        larger = []
        for i, j in zip(*corners, strict=True):
            some = level[level[:, i, j] == 0].copy()
            some[:, i, j] = some[:, j, i] = 1.0
            larger.append(some)
        every = np.concatenate(larger)
        once = {code: k for k, code in reversed(list(enumerate(_codes(every))))}
        level = every[sorted(once.values())]
        found.append(level)
    return found


def _codes(some: Any) -> list[bytes]:
    """A code of each graph that doesn't depend on the order of its vertices: what powers of its matrices say of each vertex.

    Different graphs could have the same one, but then there would be fewer than KNOWN.
    """
    k = np.arange(N)
    laplacian = -some
    laplacian[:, k, k] = some.sum(2)
    columns = []
    for matrix in (some, laplacian):
        power = matrix
        for _ in range(6):
            power = power @ matrix
            columns += [power[:, k, k], (power**2).sum(2)]
    signs = np.stack(columns, 2)
    return [one[np.lexsort(one.T)].tobytes() for one in signs]


@njit(cache=True)
def _greedy(edges: Ints, speeds: Floats, tie: float) -> Floats:
    """The layout by the paper's greedy, of equally good positions the first; speeds descend."""
    n = len(speeds)
    layout, free = np.full(n, speeds[-1]), np.ones(n, dtype=np.bool_)
    tried, values = np.empty((n, n)), np.empty(n)
    for speed in speeds:
        spots = np.flatnonzero(free)
        for k in range(len(spots)):
            tried[k] = layout
            tried[k, spots[k]] = speed
        some = values[: len(spots)]
        ratios_of(edges[:, 0], edges[:, 1], tried[: len(spots)], some)
        choice = spots[np.flatnonzero(some <= some.min() * (1.0 + tie))[0]]
        layout[choice], free[choice] = speed, False
    return layout


@njit(cache=True)
def _ascend(edges: Ints, layout: Floats) -> float:
    """Swap two nodes while p grows."""
    n = len(layout)
    pairs = n * (n - 1) // 2
    tried, values, best = np.empty((pairs, n)), np.empty(pairs), 0.0
    while True:
        k = 0
        for i in range(n):
            for j in range(i):
                tried[k] = layout
                tried[k, i], tried[k, j] = layout[j], layout[i]
                k += 1
        ratios_of(edges[:, 0], edges[:, 1], tried, values)
        if values.max() <= best * (1.0 + 1e-9):
            return best
        best = float(values.max())
        layout = tried[values.argmax()].copy()


def search(greedy: tuple[float, float], greatest: tuple[float, float]) -> Search:
    """The graphs whose greedy for speeds 1 to 9 is within the first interval, and of them those within the second."""
    speeds, values = np.arange(9.0, 0.0, -1.0), np.empty(1)
    rng = np.random.default_rng(0)
    levels, edges, most = graphs(), [], []
    for level in levels:
        for one in level:
            ends = np.argwhere(np.triu(one)).astype(np.int64)
            ratios_of(ends[:, 0], ends[:, 1], _greedy(ends, speeds, TIE)[None], values)
            if greedy[0] <= values[0] <= greedy[1]:
                edges.append(ends)
                most.append(max(_ascend(ends, rng.permutation(speeds)) for _ in range(STARTS)))
    hits = [k for k, p in enumerate(most) if greatest[0] <= p <= greatest[1]]
    return Search(tuple(map(len, levels)), np.array(most), edges, hits)
