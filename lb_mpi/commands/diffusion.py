"""The command `simulate diffusion`: one balancing of drawn loads on a process graph, on paper."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from lb_mpi import checks
from lb_mpi.commands.arguments import GRAPH, draw
from lb_mpi.diffusion.diffusion import SCHEMES, TAU_RULES, balance
from lb_mpi.diffusion.setup import AUTO, DEFAULT_TAU, chosen_scheme
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_loads, check_speeds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    usual = ", ".join(f"{scheme}: {tau}" for scheme, tau in DEFAULT_TAU.items() if scheme != "dimension_exchange")
    parser.add_argument("--graph", required=True, help=GRAPH)
    parser.add_argument(
        "--speeds",
        default="uniform:4:16",
        metavar="X,X,...",
        help="uniform:LOW:HIGH, or one per rank: 1,2,... (%(default)s)",
    )
    parser.add_argument(
        "--times", default="uniform:5:15", metavar="S,S,...", help="seconds before balancing, likewise (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws: speeds first, then times (%(default)s)")
    parser.add_argument(
        "--scheme",
        choices=(AUTO, *SCHEMES),
        default="fos",
        help="how neighbours level their times: fos, first order, is the plain way, sos, chebyshev, ops and cg take fewer "
        "steps, dimension_exchange levels pairs in turn, direct solves for the flow at once; auto: what suits the number of "
        "ranks and the graph (%(default)s)",
    )
    parser.add_argument(
        "--tau",
        choices=TAU_RULES,
        help="how much work flows over an edge for each second by which its ends differ; left out: what suits the scheme "
        f"({usual}); dimension_exchange has its own",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="stop when no rank needs longer than the mean by more than this (%(default)s)",
    )
    parser.add_argument("--max-steps", type=int, default=100_000, help="give up after so many steps (%(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Balance as the options say; a dictionary that is ready for json.  ValueError for odd values.

    `steps` between neighbours until `imbalance[-1]` was within the tolerance (if `converged`), `imbalance` before each step
    and after the last, `volume` the sum of all |flow| over edges, `l2_volume` the root of the sum of their squares (both in
    units of work), `seconds` of computing, spectrum included.
    """
    graph = as_graph(args.graph)
    rng = np.random.default_rng(checks.seed(args.seed))
    speeds = check_speeds(draw("speeds", args.speeds, graph.n, rng), graph.n)
    times = check_loads(draw("times", args.times, graph.n, rng), graph.n, name="times")
    begin = time.perf_counter()
    scheme = chosen_scheme(graph, args.scheme)
    options = {"scheme": scheme, "tau": args.tau, "tolerance": args.tolerance, "max_steps": args.max_steps}
    result = balance(graph, speeds * times, speeds, **options)
    seconds = time.perf_counter() - begin
    return {
        "graph": args.graph,
        "ranks": graph.n,
        "edges": graph.n_edges,
        "scheme": scheme,
        "tau": args.tau or DEFAULT_TAU[scheme],
        "seed": args.seed,
        "tolerance": args.tolerance,
        "steps": result.steps,
        "converged": result.converged,
        "imbalance": result.imbalance,
        "volume": float(np.abs(result.flow).sum()),
        "l2_volume": float(np.sqrt((result.flow**2).sum())),
        "seconds": seconds,
    }


def summary(result: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    first, last = result["imbalance"][0], result["imbalance"][-1]
    end = "" if result["converged"] else f", which is not the {result['tolerance']:g} that was asked for"
    return [
        f"{result['graph']}: {result['ranks']} ranks, {result['edges']} edges",
        f"{result['scheme']}, tau {result['tau']}: imbalance {first:.3g} to {last:.3g} in {result['steps']} steps{end}",
        f"work moved over edges {result['volume']:.6g} (l2 {result['l2_volume']:.6g}), "
        f"computed in {result['seconds']:.3g} s",
    ]
