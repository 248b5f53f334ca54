"""The command `python -m lb_mpi simulate diffusion`: one balancing of drawn loads on a process graph, on paper."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from lb_mpi.diffusion.diffusion import SCHEMES, TAU_RULES, balance
from lb_mpi.diffusion.setup import DEFAULT_TAU
from lb_mpi.graph import Floats, parse
from lb_mpi.metrics import check_loads, check_speeds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    usual = ", ".join(f"{scheme}: {tau}" for scheme, tau in DEFAULT_TAU.items() if scheme != "dimension_exchange")
    parser.add_argument("--graph", required=True, help="mesh:RxC, torus:RxC, hypercube:D, ring:N or complete:N")
    parser.add_argument(
        "--speeds", default="uniform:4:16", help="uniform:LOW:HIGH, or one per rank: 1,2,... (%(default)s)"
    )
    parser.add_argument("--times", default="uniform:5:15", help="seconds before balancing, likewise (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws: speeds first, then times (%(default)s)")
    parser.add_argument("--scheme", choices=SCHEMES, default="fos", help="(%(default)s)")
    parser.add_argument(
        "--tau",
        choices=TAU_RULES,
        help=f"conductance of the edges; left out: the usual one of the scheme ({usual}); dimension_exchange has its own",
    )
    parser.add_argument("--tolerance", type=float, default=0.05, help="imbalance to stop at (%(default)s)")
    parser.add_argument("--max-steps", type=int, default=100_000, help="give up after so many (%(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Balance as the options say; a dictionary that is ready for json.  ValueError for odd values.

    `steps` between neighbours until `imbalance[-1]` was within the tolerance (if `converged`), `imbalance` before each step
    and after the last, `volume` the sum of all |flow| over edges, `l2_volume` the root of the sum of their squares (both in
    units of work), `seconds` of computing, spectrum included.
    """
    graph = parse(args.graph)
    if args.seed < 0:
        raise ValueError(f"seed = {args.seed}: expected at least 0")
    rng = np.random.default_rng(args.seed)
    speeds = check_speeds(draw("speeds", args.speeds, graph.n, rng), graph.n)
    times = check_loads(draw("times", args.times, graph.n, rng), graph.n, name="times")
    begin = time.perf_counter()
    options = {"scheme": args.scheme, "tau": args.tau, "tolerance": args.tolerance, "max_steps": args.max_steps}
    result = balance(graph, speeds * times, speeds, **options)
    seconds = time.perf_counter() - begin
    return {
        "graph": args.graph,
        "ranks": graph.n,
        "edges": graph.n_edges,
        "scheme": args.scheme,
        "tau": args.tau or DEFAULT_TAU[args.scheme],
        "seed": args.seed,
        "tolerance": args.tolerance,
        "steps": result.steps,
        "converged": result.converged,
        "imbalance": result.imbalance,
        "volume": float(np.abs(result.flow).sum()),
        "l2_volume": float(np.sqrt((result.flow**2).sum())),
        "seconds": seconds,
    }


def summary(result: dict[str, Any]) -> str:
    """What `run` found, in a few lines for people."""
    first, last = result["imbalance"][0], result["imbalance"][-1]
    end = "" if result["converged"] else f", which is not the {result['tolerance']:g} that was asked for"
    return (
        f"{result['graph']}: {result['ranks']} ranks, {result['edges']} edges\n"
        f"{result['scheme']}, tau {result['tau']}: imbalance {first:.3g} to {last:.3g} in {result['steps']} steps{end}\n"
        f"work moved over edges {result['volume']:.6g} (l2 {result['l2_volume']:.6g}), computed in {result['seconds']:.3g} s"
    )


def draw(name: str, text: str, n: int, rng: np.random.Generator) -> Floats:
    """(n,) numbers "uniform:LOW:HIGH", or those that are listed, as many as there are; ValueError, naming `name`."""
    words = text.split(":")
    try:
        if words[0] != "uniform":
            return np.array([float(word) for word in text.split(",")])
        low, high = map(float, words[1:])
    except ValueError:
        raise ValueError(f"{name} = {text!r}: expected uniform:LOW:HIGH or numbers with commas between") from None
    if not 0.0 <= low <= high < math.inf:
        raise ValueError(f"{name} = {text!r}: expected 0 <= LOW <= HIGH")
    return rng.uniform(low, high, n)
