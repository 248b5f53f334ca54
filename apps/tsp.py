"""Find the shortest tour through some cities (travelling salesman) on all ranks: branch and bound, with one bound for all.

mpiexec -n 4 python -m apps.tsp --cities 14 --seed 3
mpiexec -n 4 python -m apps.tsp --cities 14 --seed 3 --private --compare
mpiexec -n 4 python -m apps.tsp --cities 15 --seed 5 --speeds 0.8,0.4,0.2,0.2 --json

A node of the search is the beginning of a tour.  Depth first, it is lengthened by each of the cities that are left; what
can't become shorter than the best tour of all ranks is dropped.  So `lb_mpi.Bound` decides how much there is to search: when
each rank knows its own best tour only (--private), four ranks search about twice as many nodes as one.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from mpi4py import MPI

import lb_mpi
from apps.command import add_search_options, app, figures, lines, run, search
from lb_mpi.checks import integer, seed
from lb_mpi.cli.run.options import add_seed
from lb_mpi.mpi.common.collective import agree

Point = tuple[float, float]


class Node(NamedTuple):
    """The beginning of a tour."""

    least: float  # no tour that begins so is shorter
    length: float  # of the path
    path: tuple[int, ...]  # of cities, from city 0


class Found(NamedTuple):
    """What one rank, or all together, did."""

    length: float  # of the shortest tour; inf when none was shorter than those of other ranks
    tour: tuple[int, ...]  # all cities, from city 0; it ends where it began
    nodes: int  # lengthened by one more city, or completed


class Tours(lb_mpi.Problem):
    """One rank's part of the search for the shortest tour through `cities`; a unit of work is one node.

    The part that moves is every second node in hand (`split_rule` "alternate"), or the oldest half ("half").  The oldest
    ones are the shortest beginnings, with most of the search below them, but the least promising ones, too.
    """

    found = False  # a tour is the shortest one only when all nodes are done or dropped

    def __init__(self, cities: list[Point], bound: lb_mpi.Bound, split_rule: str = "alternate") -> None:
        self.bound, self.split_rule = bound, split_rule
        self.distances = [[math.dist(one, other) for other in cities] for one in cities]
        everywhere = range(len(cities))
        self.nearest = [  # of each city, the others by distance
            sorted((other for other in everywhere if other != city), key=self.distances[city].__getitem__)
            for city in everywhere
        ]
        self.open: list[Node] = []  # the next one is the last
        self.mine = Found(math.inf, (), 0)

    def start(self) -> None:
        """Begin every tour at city 0."""
        self.open.append(Node(0.0, 0.0, (0,)))

    def work(self, units: int) -> int:
        """Do up to `units` nodes, depth first, the most promising one first."""
        done = 0
        while self.open and done < units:
            node = self.open.pop()
            if node.least < self.bound.best:
                self._lengthen(node)
                done += 1
        self.mine = self.mine._replace(nodes=self.mine.nodes + done)
        return done

    def load(self) -> float:
        """Count the nodes in hand that may still lead to a shorter tour."""
        self.open = [node for node in self.open if node.least < self.bound.best]
        return float(len(self.open))

    def split(self) -> bytes | None:
        """Give away half of the nodes; the one that is next is kept."""
        n = len(self.open)
        given = slice(n // 2) if self.split_rule == "half" else slice(n % 2, n - 1, 2)
        part = self.open[given]
        del self.open[given]
        return json.dumps(part).encode() if part else None

    def absorb(self, payload: bytes) -> None:
        """Take in what another rank has given."""
        self.open = [Node(least, length, tuple(path)) for least, length, path in json.loads(payload)]

    def save(self) -> bytes:
        """Pack the cities, the nodes in hand, and the shortest tour of this rank."""
        return json.dumps([self.distances, self.open, self.mine]).encode()

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Take in hand what ranks of an earlier run had; ValueError for other cities."""
        for index in mine:
            distances, nodes, (length, tour, n) = json.loads(states[index])
            if distances != self.distances:
                raise ValueError(f"{len(self.distances)} cities: expected those that were saved, {len(distances)}")
            self.open += [Node(least, so_far, tuple(path)) for least, so_far, path in nodes]
            self.mine = self.merge(self.mine, Found(length, tuple(tour), n))

    def result(self) -> Found:
        """Return the shortest tour of this rank."""
        return self.mine

    def merge(self, one: Found, other: Found) -> Found:
        """Choose the shorter tour, and add the nodes."""
        return min(one, other)._replace(nodes=one.nodes + other.nodes)

    def _lengthen(self, node: Node) -> None:
        _, length, path = node
        steps = self.distances[path[-1]]
        if len(path) == len(self.distances):
            if self.bound.update(length + steps[0]):
                self.mine = self.mine._replace(length=length + steps[0], tour=path)
            return
        children = [
            self._node(length + steps[city], (*path, city)) for city in self.nearest[path[-1]] if city not in path
        ]
        self.open += sorted((child for child in children if child.least < self.bound.best), reverse=True)

    def _node(self, length: float, path: tuple[int, ...]) -> Node:
        """Bound the tours that begin with `path`.

        What is left of a tour leads from the end of the path through all other cities to its beginning.  It has two edges
        at each of those cities and one at either end, and each edge has two ends: so it is at least half as long as the
        two shortest edges at each, and the shortest at either end, together.
        """
        inside, ends = set(path[1:-1]), (path[0], path[-1])
        direct = len(path) == len(self.distances)  # nothing is left but the edge between the ends
        twice = 0.0
        for city, distances in enumerate(self.distances):
            if city not in inside:
                missing = 1 if city in ends else 2
                for other in self.nearest[city]:
                    if other not in inside and (direct or city not in ends or other not in ends):
                        twice += distances[other]
                        missing -= 1
                        if missing == 0:
                            break
        return Node(length + twice / 2.0, length, path)


def random_cities(n: int, seed: int) -> list[Point]:
    """Draw `n` cities in the unit square."""
    draw = random.Random(seed)
    return [(draw.random(), draw.random()) for _ in range(n)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    cities = parser.add_argument_group("cities")
    cities.add_argument("--cities", type=int, default=14,
        help="number of cities, at random places in a square (default: %(default)s)")
    add_seed(cities, "the places")
    parser.add_argument(
        "--private", action="store_true", help="share no bound: each rank knows only its own best tour (for comparison)"
    )
    parser.add_argument(
        "--compare", action="store_true", help="first search on one rank alone, and compare the numbers of nodes"
    )
    parser.add_argument("--limit-s", type=float, default=math.inf, metavar="SECONDS",
        help="end after so long with the best tour so far (default: when no shorter one is left)")
    add_search_options(parser, threshold=1.0, split_rules=("alternate", "half"))


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Search, check the tour that was found, compare the nodes."""
    cities = agree(comm, lambda: random_cities(integer("--cities", options.cities, 3), seed(options.seed, "--seed")))
    nodes_alone = None
    if options.compare:
        nodes_alone = comm.bcast(agree(comm, partial(count_alone, cities) if comm.rank == 0 else nothing))
    bound = lb_mpi.Bound("min")
    problem = Tours(cities, bound, options.split_rule)
    result = search(comm, problem, options, None if options.private else bound, limit_s=options.limit_s)
    best: Found = result.value
    if not best.tour:
        raise lb_mpi.SearchError(f"no tour found within --limit-s {options.limit_s:g}")
    check_tour(cities, best)
    answer = {
        "cities": options.cities,
        "seed": options.seed,
        "length": best.length,
        "tour": best.tour,
        "nodes": best.nodes,
    }
    said = [
        f"shortest tour through {options.cities} cities{', so far' * result.timed_out}: {best.length:.6f}",
        " ".join(map(str, best.tour)),
        f"{best.nodes:,} nodes searched",
    ]
    if nodes_alone is not None:
        answer |= {"nodes_alone": nodes_alone, "nodes_ratio": best.nodes / nodes_alone}
        said[-1] += f", {best.nodes / nodes_alone:.2f} times the {nodes_alone:,} that one rank needs"
    said += [*lines(result), f"time / lower bound: {result.seconds / result.lower_bound_s:.2f}"]
    return answer | figures(result), said


def count_alone(cities: list[Point]) -> int:
    """Search on this rank only; returns the number of nodes."""
    bound = lb_mpi.Bound("min")
    found: Found = lb_mpi.search(MPI.COMM_SELF, Tours(cities, bound), bound=bound).value
    return found.nodes


def nothing() -> None:
    """The part of the other ranks."""


def check_tour(cities: list[Point], best: Found) -> None:
    """AssertionError unless the tour has all cities once, and is as long as it claims."""
    steps = zip(best.tour, (*best.tour[1:], best.tour[0]), strict=True)
    length = math.fsum(math.dist(cities[one], cities[other]) for one, other in steps)
    if sorted(best.tour) != [*range(len(cities))] or not math.isclose(length, best.length):
        raise AssertionError(f"{best} is no tour through {cities}")


COMMAND = app("tsp", "find the shortest tour through some cities on all ranks: branch and bound", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
