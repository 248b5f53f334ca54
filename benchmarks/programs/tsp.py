"""Branch and bound: the shortest tour through some cities, and the proof that there is none shorter.

Source: Land, Doig, "An automatic method of solving discrete programming problems" (Econometrica 28, 1960); the program is
ours.  Before, beginnings of tours are dealt out in turn, and each rank knows the best tour of its own.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS: dict[str, str] = {}
CITIES = np.random.default_rng(7).uniform(0.0, 1.0, (16, 2)).tolist()
N = len(CITIES)
DISTANCES = [[math.dist(one, other) for other in CITIES] for one in CITIES]
NEAREST = [min(DISTANCES[one][other] for other in range(N) if other != one) for one in range(N)]

Path = tuple[int, ...]


def length(path: Path) -> float:
    """Length of a path; of the tour, if it has all cities."""
    ends = path[1:] + path[:1] if len(path) == N else path[1:]
    return sum(DISTANCES[one][other] for one, other in zip(path, ends, strict=False))


def least(path: Path) -> float:
    """No tour that begins so is shorter."""
    return length(path) + sum(NEAREST[city] for city in range(N) if city not in path[:-1]) * (len(path) < N)


def children(path: Path) -> list[Path]:
    """Paths with one more city, the nearest one last."""
    left = [city for city in range(N) if city not in path]
    return [(*path, city) for city in sorted(left, key=lambda city: -DISTANCES[path[-1]][city])]


@task
def lengthen(paths: list[Path], best: float) -> float:
    """Lengthen the newest path; the length of the best tour so far."""
    path = paths.pop()
    if len(path) == N:
        return min(best, length(path))
    if least(path) < best:
        paths += [child for child in children(path) if least(child) < best]
    return best


class Tours(lb_mpi.Problem):
    """The same as a problem of lb_mpi."""

    found = False

    def __init__(self, bound: lb_mpi.Bound) -> None:
        """Begin with nothing."""
        self.bound = bound
        self.paths: list[Path] = []

    def start(self) -> None:
        """Begin at city 0."""
        self.paths = [(0,)]

    def work(self, units: int) -> int:
        """Lengthen some paths, the newest first."""
        for done in range(units):
            if not self.paths:
                return done
            if (best := lengthen(self.paths, self.bound.best)) < self.bound.best:
                self.bound.update(best)
        return units

    def load(self) -> float:
        """Number of paths."""
        return float(len(self.paths))

    def split(self) -> bytes | None:
        """Every other one."""
        given, self.paths = self.paths[:-1:2], self.paths[1:-1:2] + self.paths[-1:]
        return pickle.dumps(given) if given else None

    def absorb(self, payload: bytes) -> None:
        """Paths of another rank."""
        self.paths = pickle.loads(payload)

    def result(self) -> float:
        """Length of the shortest tour."""
        return self.bound.best

    def merge(self, one: float, other: float) -> float:
        """The shorter one."""
        return min(one, other)


def before(comm: Any) -> Any:
    """In equal parts."""
    best = math.inf
    paths = [path for first in children((0,)) for path in children(first)][comm.rank :: comm.size]
    while paths:
        best = lengthen(paths, best)
    best = min(comm.allgather(best))
    return round(best, 9)


def after(comm: Any) -> Any:
    """With lb_mpi."""
    bound = lb_mpi.Bound("min")
    found = lb_mpi.search(comm, Tours(bound), bound=bound)
    return round(found.value, 9)


if __name__ == "__main__":
    main(before, after)
