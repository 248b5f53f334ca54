"""The command `balance`: diffusion on paper, step by step, with the figure of Jin and Wang.

`apps.diffusion` runs the same on ranks, with the options and the answer of this file.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.cli.run.command import Output
from lb_mpi.cli.run.options import GRAPH, add_seed, add_speeds, draw
from lb_mpi.diffusion.diffusion import Balance, balance
from lb_mpi.diffusion.setup import (
    AUTO,
    SCHEMES,
    Setup,
    Spectrum,
    assemble,
    chosen_scheme,
    coefficients,
    spectrum,
    tau_rule,
)
from lb_mpi.graph import Floats, Graph
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_comparable, check_loads, check_speeds, scaled
from lb_mpi.table import Table, counted

STEPPING = tuple(scheme for scheme in SCHEMES if scheme != "direct")
SHOWN = 20  # lines of the curve, and of the table of ranks
MOST_BOXES = 8  # in a row of the figure as text


def add_options(parser: argparse.ArgumentParser, schemes: tuple[str, ...]) -> None:
    """Add all options but the graph."""
    add = parser.add_argument
    others = "; direct: by solving a linear system; auto: the usual one for the graph" if "auto" in schemes else ""
    add("--scheme", choices=schemes, default="fos", metavar="NAME",
        help="what computes the work that moves over each edge: fos, sos: diffusion of first and second order; chebyshev, "
        f"ops, cg: fewer steps; dimension_exchange: with one neighbour at a time{others}")
    add("--tolerance", type=float, default=0.05, metavar="X",
        help="imbalance at which the steps end (default: 0.05, that is 5 %%)")
    add("--steps", type=int, default=100_000, metavar="N", help="end after so many steps at the latest")
    add_speeds(parser, "ranks", "uniform:4:16")
    add("--times", default="uniform:5:15", metavar="X,X,...", help="seconds that each rank needs before, given as --speeds")
    add_seed(parser, "the drawn numbers")


class Ranks(NamedTuple):
    """The ranks before the steps."""

    speeds: Floats  # (P,)
    loads: Floats  # (P,)


def read_ranks(options: argparse.Namespace, n: int) -> Ranks:
    """Draw speeds, then times, or return the listed ones; ValueError for odd values."""
    rng = np.random.default_rng(checks.seed(options.seed))
    speeds = check_speeds(draw("speeds", options.speeds, n, rng), n)
    return Ranks(speeds, speeds * check_loads(draw("times", options.times, n, rng), n, name="times"))


def figures(name: str, setup: Setup, loads: Floats, found: Balance) -> dict[str, Any]:
    """Return all numbers, ready for JSON; (P,) loads before.

    `imbalance` I_m before each step and after the last; `flow` a list of [from, to, work], `times` before and `times_after`;
    `theorem_4` its conditions, the least eigenvalue of M and the factor by which a step of fos reduces the error at least.
    """
    graph, speeds = setup.graph, setup.speeds
    tails, heads = graph.edges()
    flow = [
        [tail, head, amount] if amount > 0.0 else [head, tail, -amount]
        for tail, head, amount in zip(tails.tolist(), heads.tolist(), found.flow.tolist(), strict=True)
    ]
    theorem = theorem_4(graph, speeds, setup.tau_rule)
    return {
        "graph": name,
        "ranks": graph.n,
        "edges": graph.n_edges,
        "scheme": setup.scheme,
        "tau": setup.tau_rule,
        **{name: getattr(found, name) for name in ("steps", "converged", "imbalance")},
        "speeds": speeds.tolist(),
        "times": (loads / speeds).tolist(),
        "times_after": (found.loads / speeds).tolist(),
        "flow": flow,
        "theorem_4": {**theorem._asdict(), "converges": theorem.converges},
    }


def describe(result: dict[str, Any]) -> list[str]:
    """Say how the ranks were levelled: the figure or a table, the imbalance of each step, theorem 4."""
    after, theorem = result["times_after"], result["theorem_4"]
    tau = "" if result["scheme"] == "dimension_exchange" else f", tau {result['tau']}"
    moved = sum(amount for _, _, amount in result["flow"])
    end = "" if result["converged"] else ", not converged"
    zero, sides = "" if theorem["least_diagonal"] > 0.0 else "not ", "" if theorem["bipartite"] else "not "
    return [
        f"{result['graph']}: {counted(result['ranks'], 'rank')}, {counted(result['edges'], 'edge')}; "
        f"{result['scheme']}{tau}",
        *_figure(result),
        f"steps: {result['steps']}{end}; imbalance {result['imbalance'][0]:.2%} before, {result['imbalance'][-1]:.2%} "
        f"after; times {min(after):.2f} to {max(after):.2f} s; {moved:.1f} units of work moved over edges",
        *_curve(result["imbalance"]),
        f"theorem 4 for fos with tau {result['tau']}: the diagonal of M is {zero}positive (at least "
        f"{theorem['least_diagonal']:.4f}), the graph is {sides}bipartite;",
        f"  least eigenvalue of M {theorem['least']:.4f}, largest but 1 in absolute value {theorem['slowest']:.4f}: fos "
        + ("converges" if theorem["converges"] else "need not converge"),
    ]


def _curve(imbalance: list[float]) -> list[str]:
    """Draw I_m of each step as a bar, of at most so many of them."""
    every, most = math.ceil(len(imbalance) / SHOWN), max(*imbalance, 1e-300)
    kept = [k for k in range(len(imbalance)) if k % every == 0 or k == len(imbalance) - 1]
    lines = [[f"{k}", f"{imbalance[k]:.3%}", "#" * round(40 * imbalance[k] / most)] for k in kept]
    return Table(("step", "I_m", ""), lines, words=(2,)).fitted().splitlines()


def _figure(result: dict[str, Any]) -> list[str]:
    """Draw a small mesh with its boxes and arrows, or list the ranks with what they give."""
    mesh = re.fullmatch(r"mesh:(\d+)x(\d+)", result["graph"])
    if mesh and int(mesh[2]) <= MOST_BOXES and result["ranks"] <= MOST_BOXES**2:
        return _boxes(result, int(mesh[1]), int(mesh[2]))
    gives: dict[int, list[str]] = {}
    for giver, taker, amount in result["flow"]:
        if amount > 0.0:
            gives.setdefault(giver, []).append(f"{amount:.2f} to {taker}")
    numbers = zip(result["speeds"], result["times"], result["times_after"], strict=True)
    lines = [
        [f"{rank}", *(f"{number:.2f}" for number in some), ", ".join(gives.get(rank, [])[:SHOWN])]
        for rank, some in enumerate(numbers)
    ]
    return Table(("rank", "speed", "time", "after", "gives"), lines, words=(4,), most=SHOWN).fitted().splitlines()


def _boxes(result: dict[str, Any], rows: int, columns: int) -> list[str]:
    """Draw figure 2 of Jin and Wang: of each rank its time, the time after, and the speed; on each edge what moves."""
    arrows = {(giver, taker): amount for giver, taker, amount in result["flow"]}
    lines = ["in a box: time before, time after, speed; at an arrow: units of work"]

    def between(one: int, other: int, forward: str, back: str) -> str:
        if arrows.get((one, other), 0.0) > 0.0:
            return f"{arrows[one, other]:.1f} {forward}"
        return f"{back} {arrows.get((other, one), 0.0):.1f}"

    for row in range(rows):
        ranks = range(row * columns, (row + 1) * columns)
        edge = (" " * 9).join("+------+" for _ in ranks)
        side = [f"{between(k, k + 1, '>', '<'):^9}" for k in ranks[:-1]] + [""]
        lines.append(edge)
        for name, tag in (("times", "{:6.2f}"), ("times_after", "{:6.2f}"), ("speeds", "s{:5.2f}")):
            joints = side if name == "times_after" else [" " * 9] * (columns - 1) + [""]
            boxes = [f"|{tag.format(result[name][k])}|{joint}" for k, joint in zip(ranks, joints, strict=True)]
            lines.append("".join(boxes))
        lines.append(edge)
        if row < rows - 1:
            lines.append("".join(f"{between(k, k + columns, 'v', '^'):^8}{' ' * 9}" for k in ranks).rstrip())
    return lines


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `balance`."""
    parser.add_argument("graph", metavar="GRAPH", help=GRAPH)
    add_options(parser, (*SCHEMES, AUTO))


def level(options: argparse.Namespace) -> Output:
    """Level the ranks as the options say; ValueError for odd values."""
    graph = as_graph(options.graph)
    ranks, scheme = read_ranks(options, graph.n), chosen_scheme(graph, options.scheme)
    setup = assemble(graph, ranks.speeds, scheme, tau_rule(scheme, None))
    found = balance(graph, ranks.loads, ranks.speeds, scheme=setup.scheme, tau=setup.tau_rule,
        tolerance=options.tolerance, max_steps=options.steps)
    result = figures(options.graph, setup, ranks.loads, found)
    return Output(result, describe(result))


# --- Theorem 4 --------------------------------------------------------------------------------------------------------


class Theorem4(NamedTuple):
    """The conditions of Jin and Wang's theorem 4 for M of fos, and what they are to ensure: that -1 is no eigenvalue."""

    least_diagonal: float  # of M
    bipartite: bool
    least: float  # eigenvalue of M
    slowest: float  # the largest absolute value of all eigenvalues but the 1 of each component: the factor of a step

    @property
    def converges(self) -> bool:
        """True if fos levels all times, whatever the loads are."""
        return self.slowest < 1.0


def theorem_4(graph: Graph, speeds: ArrayLike, tau: str = "paper") -> Theorem4:
    """Examine M of fos on a graph with (P,) speeds and edge weights by the rule `tau`; ValueError as `prepare`.

    The theorem asks for a diagonal that is not zero and a graph that is not bipartite; one of the two is enough.
    """
    setup = assemble(graph, scaled(check_comparable(speeds, graph.n))[0], "fos", tau_rule("fos", tau))
    tails, heads = graph.edges()
    low, high = spectrum(graph, setup.speeds, setup.tau)
    factor = next(coefficients("fos", setup.tau_rule, Spectrum(low, high), setup.points))[0]
    outward = np.bincount(tails, setup.tau, graph.n) + np.bincount(heads, setup.tau, graph.n)
    first = np.unique(graph.components()[1], return_index=True)[1]
    hops = scipy.sparse.csgraph.dijkstra(graph.to_scipy(), unweighted=True, indices=first, min_only=True)
    odd = np.asarray(hops, dtype=np.int64) % 2
    slowest = max(abs(1.0 - factor * low), abs(1.0 - factor * high)) if graph.n_edges else 0.0
    return Theorem4(
        float((1.0 - factor * outward / setup.speeds).min()),
        bool((odd[tails] != odd[heads]).all()),
        1.0 - factor * high if graph.n_edges else 1.0,
        slowest,
    )
