"""The command `partition`."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from lb_mpi.checks import comma_list
from lb_mpi.commands.arguments import GRAPH
from lb_mpi.graph_files import as_graph, read_parts, write_parts
from lb_mpi.machine import read_machine
from lb_mpi.partitioning.partition import EFFORTS, METHODS, partition
from lb_mpi.partitioning.quality import MappingCost, partition_metrics

SHOWN = 20  # parts, to people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("graph", metavar="GRAPH", help=GRAPH)
    parser.add_argument("-k", type=int, required=True, metavar="K", help="how many parts")
    parser.add_argument(
        "--targets",
        metavar="W,W,...",
        help="what the parts should weigh, in any unit; left out: the speeds of the machine, or all the same",
    )
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="K ranks, as measured by `info --measure -o FILE`: say how long they take, one for each part",
    )
    parser.add_argument(
        "--unit-s",
        type=float,
        metavar="S",
        help="with --machine: seconds that work of vertex weight 1 takes on its fastest rank",
    )
    parser.add_argument("--parts", metavar="FILE.part", help="judge the partition in this file instead of making one")
    parser.add_argument(
        "--imbalance",
        type=float,
        default=0.03,
        metavar="X",
        help="parts may exceed their targets by this: 0.03 is 3 %% (%(default)s)",
    )
    parser.add_argument(
        "--effort", choices=EFFORTS, default="good", help="more takes longer, and cuts fewer edges (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (%(default)s)")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="multilevel",
        help="this library's, or another to compare with; metis and kahip need pymetis and kahip (%(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE.part", help="write the part of each vertex, one a line")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Partition as the options say; ValueError for odd values and malformed files.

    `cut` weight of edges between parts, `volume` vertices sent in an exchange, `imbalance` against the targets, `sizes`
    vertices and `weights` per part, `connected` whether each part is in one piece, `disconnected` the parts that are not,
    `seconds` of partitioning: reading the file is not counted, compiling in the very first run is.  With a machine, the
    `cost`: `objective_s`, seconds until its last rank is done, of them `computing_s` and `communication_s` on each, and
    `lower_bound_s`, which no partition can beat.
    """
    machine = None if args.machine is None else read_machine(args.machine)
    targets = None if args.targets is None else comma_list("targets", args.targets)
    if targets is None and machine is not None and machine.size == args.k:
        targets = machine.speeds.tolist()
    graph = as_graph(args.graph)
    began = time.perf_counter()
    if args.parts is None:
        options = {name: getattr(args, name) for name in ("imbalance", "effort", "seed", "method")}
        parts = partition(graph, args.k, targets=targets, **options)
    else:
        parts = read_parts(args.parts, graph.n)
    seconds = time.perf_counter() - began
    figures = partition_metrics(graph, parts, args.k, targets=targets, machine=machine, unit_s=args.unit_s)
    if args.output is not None:
        write_parts(args.output, parts)
    return {
        "graph": args.graph,
        "vertices": graph.n,
        "edges": graph.n_edges,
        "k": args.k,
        "method": args.method if args.parts is None else args.parts,
        "effort": args.effort,
        "cut": figures.cut,
        "volume": figures.volume,
        "imbalance": figures.imbalance,
        "sizes": figures.sizes.tolist(),
        "weights": figures.weights.tolist(),
        "connected": bool(figures.connected.all()),
        "disconnected": np.flatnonzero(~figures.connected).tolist(),
        "seconds": seconds,
        **({} if figures.cost is None else {"cost": _plain(figures.cost)}),
    }


def _plain(cost: MappingCost) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in vars(cost).items()}


def summary(result: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    sizes, broken = result["sizes"], result["disconnected"]
    shown = ", ".join(map(str, sizes[:SHOWN])) + (f", ... ({len(sizes)} parts)" if len(sizes) > SHOWN else "")
    pieces = f"{len(broken)} parts are in several pieces" if broken else "every part is in one piece"
    lines = [
        f"{result['graph']}: {result['vertices']} vertices, {result['edges']} edges",
        f"cut {result['cut']:g}, volume {result['volume']}, imbalance {result['imbalance']:.2%}, {pieces}",
        f"vertices per part: {shown}",
        f"{result['method']} took {result['seconds']:.3g} s",
    ]
    if "cost" in result:
        seconds, bound = result["cost"]["objective_s"], result["cost"]["lower_bound_s"]
        lines.insert(2, f"on this machine {seconds:.4g} s, of which {bound:.4g} s could not be avoided")
    return lines
