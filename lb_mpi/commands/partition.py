"""The command `partition`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from lb_mpi.checks import comma_list
from lb_mpi.commands.arguments import GRAPH
from lb_mpi.graph_files import as_graph, read_parts, write_parts
from lb_mpi.machine import read_machine
from lb_mpi.partitioning.partition import AIMS, EFFORTS, METHODS, partition
from lb_mpi.partitioning.quality import partition_metrics

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
        help="K ranks, as measured by `info --measure -o FILE`: say how long they compute and talk, one for each part",
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
        help="this library's, or recursive spectral bisection to compare with (%(default)s)",
    )
    parser.add_argument(
        "--aim",
        choices=AIMS,
        default="cut",
        help="cut: few edges between parts of their target weights; time: the last rank of the machine done first, whatever "
        "its share, never later than by cut (%(default)s)",
    )
    parser.add_argument("--fiedler", action="store_true", help="the Fiedler value and vector of the whole graph, too")
    parser.add_argument("-o", "--output", metavar="FILE.part", help="write the part of each vertex, one a line")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Partition as the options say; ValueError for odd values and malformed files.

    `cut` weight of edges between parts, `volume` vertices sent in an exchange, `imbalance` against the targets, `sizes`
    vertices and `weights` per part, `connected` whether each part is in one piece, `disconnected` the parts that are not,
    `seconds` of partitioning, `compiling_s` before that for kernels, much in the very first run.  With a machine, the
    `cost`: `objective_s`, seconds until its last rank is done, of them `computing_s` and `communication_s` on each, and
    `lower_bound_s`, which no partition can beat; when that is the aim, `cost_by_cut`, of the partition that it began with.
    `fiedler`, if asked for: second smallest eigenvalue `value` of the graph's Laplacian, and its `vector` of length 1.
    """
    machine = None if args.machine is None else read_machine(args.machine)
    targets = None if args.targets is None else comma_list("targets", args.targets)
    aims: dict[str, Any] = {"targets": targets, "machine": machine, "unit_s": args.unit_s}
    options = {name: getattr(args, name) for name in ("imbalance", "effort", "seed", "method")} | aims
    graph = as_graph(args.graph)
    if args.fiedler:
        from lb_mpi.partitioning.multilevel import fiedler  # late: it brings numba
    began = time.perf_counter()
    if args.parts is None:  # a small one first: the kernels are compiled, or read, and that is no partitioning
        if sys.stderr.isatty():
            print("loading the kernels (compiled the first time, for some seconds) ...", file=sys.stderr, flush=True)
        partition("mesh:3x3", 2, method=args.method, effort=args.effort)
    compiled = time.perf_counter()
    if args.parts is None:
        parts = partition(graph, args.k, aim=args.aim, **options)
    else:
        parts = read_parts(args.parts, graph.n)
    seconds = time.perf_counter() - compiled
    figures = partition_metrics(graph, parts, args.k, **aims)
    costs = {"cost": figures.cost}
    if args.parts is None and args.aim == "time":
        costs["cost_by_cut"] = partition_metrics(graph, partition(graph, args.k, **options), args.k, **aims).cost
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
        "compiling_s": compiled - began,
        **{name: _plain(vars(cost)) for name, cost in costs.items() if cost is not None},
        **({"fiedler": _plain(fiedler(graph)._asdict())} if args.fiedler else {}),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in values.items()}


def summary(result: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    sizes, broken = result["sizes"], result["disconnected"]
    shown = ", ".join(map(str, sizes[:SHOWN])) + (f", ... ({len(sizes)} parts)" if len(sizes) > SHOWN else "")
    pieces = f"{len(broken)} parts are in several pieces" if broken else "every part is in one piece"
    lines = [
        f"{result['graph']}: {result['vertices']} vertices, {result['edges']} edges",
        f"cut {result['cut']:g}, volume {result['volume']}, imbalance {result['imbalance']:.2%}, {pieces}",
        f"vertices per part: {shown}",
        f"{result['method']} took {result['seconds']:.3g} s, after {result['compiling_s']:.3g} s for its compiled kernels",
    ]
    if "cost" in result:
        seconds, bound = result["cost"]["objective_s"], result["cost"]["lower_bound_s"]
        lines.insert(2, f"on this machine {seconds:.4g} s, of which {bound:.4g} s could not be avoided")
    if "cost_by_cut" in result:
        before = result["cost_by_cut"]["objective_s"]
        saved = 1.0 - seconds / before if before else 0.0
        lines[2] += f"; by cut alone {before:.4g} s, {saved:.1%} are saved"
    if "fiedler" in result:
        vector = result["fiedler"]["vector"]
        shown = ", ".join(f"{entry:.4f}" for entry in vector[:SHOWN]) + (", ..." if len(vector) > SHOWN else "")
        lines.append(f"Fiedler value {result['fiedler']['value']:.6g}, vector {shown}")
    return lines
