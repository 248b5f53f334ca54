"""Arguments that several commands have: a graph, a route, numbers that are drawn or listed."""

from __future__ import annotations

import argparse

import numpy as np

from lb_mpi.checks import comma_list, number, show
from lb_mpi.graph import Floats
from lb_mpi.searching.guard import MOST_ON_RING

GRAPH = (
    "mesh:RxC, torus:RxC, hypercube:D, ring:N, complete:N; the neighbours of vertices 1, 2, ... with slashes between: "
    "2/1,3/2; or a METIS .graph or Matrix Market file"
)


def draw(name: str, text: str, n: int, rng: np.random.Generator) -> Floats:
    """(n,) numbers "uniform:LOW:HIGH", or those that are listed, as many as there are; ValueError, naming `name`."""
    kind, *bounds = text.split(":")
    if kind != "uniform":
        return np.array(comma_list(name, text))
    if len(bounds) != 2:
        raise ValueError(f"{name} = {show(text)}: expected uniform:LOW:HIGH, or numbers with commas between them")
    low = number(name, comma_list(name, bounds[0], 1)[0], least=0.0)
    high = number(name, comma_list(name, bounds[1], 1)[0], least=low)
    return rng.uniform(low, high, n)


def add_route(group: argparse._ActionsContainer) -> None:
    """Add --route of a search."""
    group.add_argument(
        "--route",
        choices=("auto", "ring", "random"),
        default="auto",
        help="where a rank without work asks: round the ring, as in the paper, or at random ranks; auto: the ring on up to "
        f"{MOST_ON_RING} ranks (default: auto)",
    )


def route_of(options: argparse.Namespace) -> str | None:
    """Return what --route says, as `lb_mpi.search` takes it."""
    route: str = options.route
    return None if route == "auto" else route
