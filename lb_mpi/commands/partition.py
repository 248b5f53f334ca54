"""The command `partition`: which tasks of a graph go to which of some unequal nodes."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from lb_mpi.commands.allocate import numbers
from lb_mpi.graph_files import read_graph, write_parts
from lb_mpi.partitioning.partition import EFFORTS, METHODS, partition
from lb_mpi.partitioning.quality import quality

SHOWN = 20  # parts, to people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("graph", metavar="FILE", help="METIS .graph or Matrix Market file, or mesh:RxC and the like")
    parser.add_argument("-k", type=int, required=True, metavar="K", help="how many parts")
    parser.add_argument(
        "--targets", metavar="W,W,...", help="what the parts should weigh, in any unit; left out: the same"
    )
    parser.add_argument(
        "--imbalance",
        type=float,
        default=0.03,
        metavar="X",
        help="parts may exceed their targets by this (%(default)s)",
    )
    parser.add_argument("--effort", choices=EFFORTS, default="good", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="multilevel",
        help="this library's, or another to compare with; metis and kahip need pymetis and kahip (%(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE.part", help="write the part of each vertex, one a line")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Partition as the options say; a dictionary that is ready for json.  ValueError for odd values and malformed files.

    `cut` weight of edges between parts, `volume` vertices sent in an exchange, `imbalance` against the targets, `sizes`
    vertices and `weights` per part, `connected` whether each part is in one piece, `disconnected` the parts that are not,
    `seconds` of partitioning: reading the file is not counted, compiling in the very first run is.
    """
    targets = None if args.targets is None else numbers("targets", args.targets)
    graph = read_graph(args.graph)
    settings = (args.imbalance, args.effort, args.seed, args.method)
    began = time.perf_counter()
    parts = partition(graph, args.k, targets, *settings)
    seconds = time.perf_counter() - began
    figures = quality(graph, parts, np.ones(args.k) if targets is None else targets)
    if args.output is not None:
        write_parts(args.output, parts)
    return {
        "graph": args.graph,
        "vertices": graph.n,
        "edges": graph.n_edges,
        "k": args.k,
        "method": args.method,
        "effort": args.effort,
        "cut": figures.cut,
        "volume": figures.volume,
        "imbalance": figures.imbalance,
        "sizes": figures.sizes.tolist(),
        "weights": figures.weights.tolist(),
        "connected": bool(figures.connected.all()),
        "disconnected": np.flatnonzero(~figures.connected).tolist(),
        "seconds": seconds,
    }


def summary(result: dict[str, Any]) -> str:
    """What `run` found, in a few lines for people."""
    sizes, broken = result["sizes"], result["disconnected"]
    shown = ", ".join(map(str, sizes[:SHOWN])) + (f", ... ({len(sizes)} parts)" if len(sizes) > SHOWN else "")
    pieces = f"{len(broken)} parts are in several pieces" if broken else "every part is in one piece"
    return (
        f"{result['graph']}: {result['vertices']} vertices, {result['edges']} edges\n"
        f"cut {result['cut']:g}, volume {result['volume']}, imbalance {result['imbalance']:.2%}, {pieces}\n"
        f"vertices per part: {shown}\n"
        f"{result['method']} took {result['seconds']:.3g} s"
    )
