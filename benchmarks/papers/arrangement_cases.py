"""Graphs of nine nodes, and all 362,880 arrangements of nine speeds on them, up to the symmetries of the graph."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from networkx.algorithms.isomorphism import GraphMatcher

from benchmarks.papers.page import DATA
from benchmarks.papers.ratios import ratios
from lb_mpi.arranging.objectives import TIE
from lb_mpi.graph import Floats, Graph, Ints, parse

N = 9
ALL = 362_880  # 9!


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a file of printed data."""
    with open(DATA / "papers" / name, newline="") as file:
        return list(csv.DictReader(file))


class Case(NamedTuple):
    """A graph of nine nodes and its symmetries."""

    name: str
    graph: Graph
    symmetries: Ints  # (A, 9) all maps of the graph onto itself: vertex k goes to symmetries[a, k]

    @property
    def orders(self) -> Ints:
        """(9! / A, 9) one of each A arrangements that are the same up to symmetry."""
        return _orders(self.symmetries.tobytes())

    def values(self, speeds: Floats) -> Floats:
        """(9! / A,) p of all arrangements, each for A of them."""
        return ratios(self.graph, speeds[self.orders])

    def place(self, speeds: Floats) -> Place:
        """All arrangements of the (9,) speeds."""
        return Place(np.sort(self.values(speeds)), len(self.symmetries))

    def greedy(self, speeds: Floats) -> Floats:
        """p of the paper's greedy, of each outcome that there is when several positions are equally good: ascending."""
        fastest_first = np.argsort(-speeds, kind="stable")
        some = {(-1,) * N}
        for node in fastest_first.tolist():
            some = {self._first(placed) for one in some for placed in self._best(one, node, speeds)}
        found = np.sort(ratios(self.graph, speeds[np.array(sorted(some))]))
        return found[np.diff(found, prepend=0.0) > TIE * found]

    def _best(self, placed: tuple[int, ...], node: int, speeds: Floats) -> Iterator[tuple[int, ...]]:
        now = np.array(placed)
        free = np.flatnonzero(now < 0)
        layouts = np.tile(np.where(now < 0, speeds.min(), speeds[now]), (len(free), 1))
        layouts[np.arange(len(free)), free] = speeds[node]
        values = ratios(self.graph, layouts)
        for position in free[values <= values.min() * (1.0 + TIE)].tolist():
            yield (*placed[:position], node, *placed[position + 1 :])

    def _first(self, placed: tuple[int, ...]) -> tuple[int, ...]:
        """Of arrangements that are the same up to symmetry, always the same one."""
        return min(map(tuple, np.array(placed)[self.symmetries].tolist()))


class Place(NamedTuple):
    """The values of all arrangements, where each stands for several."""

    values: Floats  # ascending
    weight: int

    @property
    def least(self) -> float:
        """The smallest p."""
        return float(self.values[0])

    @property
    def greatest(self) -> float:
        """The largest p."""
        return float(self.values[-1])

    def below(self, p: float) -> int:
        """The number of arrangements with a smaller p."""
        return self.weight * int(np.searchsorted(self.values, p * (1.0 - TIE), "left"))

    def above(self, p: float) -> int:
        """The number of arrangements with a larger p."""
        return self.weight * (len(self.values) - int(np.searchsorted(self.values, p * (1.0 + TIE), "right")))

    def relative(self, p: float) -> float:
        """The paper's Pr in %: where p is between the least and the greatest."""
        return 100.0 * (p - self.least) / (self.greatest - self.least)

    def percentile(self, p: float) -> float:
        """The paper's Pct in %: the share of arrangements with a smaller p."""
        return 100.0 * self.below(p) / ALL


@cache
def _orders(symmetries: bytes) -> Ints:
    everything = _everything()
    digits = N ** np.arange(N, dtype=np.int32)[::-1]
    code = everything @ digits
    least = code
    for one in np.frombuffer(symmetries, np.int64).reshape(-1, N):
        least = np.minimum(least, everything @ digits[np.argsort(one)])  # the code of everything[:, one]
    orders: Ints = everything[code == least].astype(np.int64)
    return orders


@cache
def _everything() -> Any:
    return np.array(list(permutations(range(N))), dtype=np.int32)


@cache
def cases() -> dict[str, Case]:
    """The eight graphs whose lists are whole, by name."""
    found = {}
    for row in rows("arrangement_lists.csv"):
        graph = parse(row["neighbours"])
        picture = graph.to_networkx()
        maps = [[one[k] for k in range(N)] for one in GraphMatcher(picture, picture).isomorphisms_iter()]
        found[row["graph"]] = Case(row["graph"], graph, np.array(sorted(maps), dtype=np.int64))
    return found
