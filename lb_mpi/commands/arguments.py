"""Arguments that several commands have: a graph, a seed, numbers that are drawn or listed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lb_mpi.checks import comma_list, number, show
from lb_mpi.graph import Floats
from lb_mpi.record.record import Record
from lb_mpi.record.store import virtual_files
from lb_mpi.searching.options import MOST_ON_RING

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


def pair(text: str) -> tuple[float, float]:
    """Parse "LOW,HIGH", or one number for both."""
    try:
        numbers = comma_list("", text)
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise argparse.ArgumentTypeError(f"{text!r}: expected one number, or two with a comma")
    return numbers[0], numbers[-1]


def add_record(parser: argparse.ArgumentParser) -> None:
    """Add --record, of simulators."""
    parser.add_argument("--record", metavar="FOLDER", help="keep a record there, for python -m lb_mpi report FOLDER")


def write_record(folder: str, records: Sequence[Record], now: float, hosts: Sequence[str], program: str) -> None:
    """Write the records of virtual ranks on `hosts` (ranks,), as they are at `now`; OSError."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, data in virtual_files(records, now, hosts, program):
        (Path(folder) / name).write_bytes(data)


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
