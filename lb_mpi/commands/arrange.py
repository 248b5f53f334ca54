"""The command `arrange`: who sits where on a process graph; or a host list put in that order."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lb_mpi import checks
from lb_mpi.arranging.arrange import METHODS, OBJECTIVES, arrange
from lb_mpi.arranging.objectives import compile_kernels
from lb_mpi.checks import comma_list
from lb_mpi.commands.arguments import GRAPH, draw
from lb_mpi.graph import Floats, Graph
from lb_mpi.graph_files import as_graph
from lb_mpi.hosts import Host, format_hosts, read_hosts
from lb_mpi.metrics import check_speeds

_PATIENCE_S = 2.0  # before there is a progress bar
Report = Callable[[str, float], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--graph", required=True, help=GRAPH)
    nodes = parser.add_mutually_exclusive_group()
    nodes.add_argument(
        "--speeds",
        metavar="X,X,...",
        help="uniform:LOW:HIGH, one per vertex: 1,2,..., or a file with them (uniform:1:10)",
    )
    nodes.add_argument("--hosts", metavar="FILE", help="a host list; printed again in the order of the vertices")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn speeds and of anneal (%(default)s)")
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="uniform",
        help="what the arrangement is to be good for: diffusion with the same flow per second of difference on all edges "
        "(uniform), or with that of Jin and Wang, less where a slow node is (paper) (%(default)s)",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="swap",
        help="exhaustive: try all (at most 9 vertices); paper: the greedy method of Jin and Wang; fill, swap, anneal: ever "
        "better and slower (%(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-6,
        help="predict the steps until no rank is slower than the mean by more than this (%(default)s)",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Arrange as the options say; a dictionary that is ready for json.  ValueError for odd values, OSError for files.

    `positions[k]`, counted from 0, is the speed (or host of the list) that sits at vertex k; `p` is lambda_P / lambda_2 of
    S^-1 A A^T and `lambda_2` that of the objective's matrix, both with their `_before`; `steps_predicted` of fos to the
    tolerance; `seconds` of computing, without compiling; `note` says why nothing was gained, if so; `hosts` is the list in
    its new order.
    """
    graph = as_graph(args.graph)
    checks.seed(args.seed)
    hosts: list[Host] = []
    if args.hosts is None:
        speeds = read_speeds(args.speeds or "uniform:1:10", graph.n, args.seed)
    else:
        hosts = read_hosts(args.hosts)
        speeds = _speeds_of(hosts, graph, args.hosts)
    compile_kernels()
    begin = time.perf_counter()
    with _progress() as report:
        options = {name: getattr(args, name) for name in ("objective", "method", "seed", "tolerance")}
        found = arrange(graph, speeds, progress=report, **options)
    seconds = time.perf_counter() - begin
    result = {
        "graph": args.graph,
        "ranks": graph.n,
        "edges": graph.n_edges,
        "objective": found.objective,
        "method": found.method,
        "seed": args.seed,
        "p_before": found.p_before,
        "p": found.p,
        "lambda_2_before": found.spectrum_before.low,
        "lambda_2": found.spectrum.low,
        "positions": found.positions.tolist(),
        "speeds": speeds[found.positions].tolist(),
        "tolerance": found.tolerance,
        "steps_before": found.steps_before,
        "steps_predicted": found.steps_predicted,
        "note": found.note,
        "seconds": seconds,
    }
    if hosts:
        result["hosts"] = format_hosts(hosts[k] for k in found.positions.tolist()).splitlines()
    return result


def summary(result: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people; a host list is one for mpiexec, too."""
    comment = "# " if "hosts" in result else ""
    lines = [
        f"{result['graph']}: {result['ranks']} ranks, {result['edges']} edges; {result['method']} for the "
        f"{result['objective']} tau in {result['seconds']:.3g} s",
        f"p = lambda_P / lambda_2, to which the steps of diffusion are proportional: {result['p_before']:.2f} before, "
        f"{result['p']:.2f} now; lambda_2 for this tau: "
        f"{result['lambda_2_before']:.4g} before, {result['lambda_2']:.4g} now",
        f"steps to an imbalance of {result['tolerance']:g}: {result['steps_before']} before, "
        f"{result['steps_predicted']} now (predicted)",
    ]
    if result["note"]:
        lines.append(result["note"])
    if not comment:
        lines.append("who sits at vertex 0, 1, ...: " + " ".join(map(str, result["positions"])))
    hosts: list[str] = result.get("hosts", [])
    return [comment + line for line in lines] + hosts


def read_speeds(text: str, n: int, seed: int) -> Floats:
    """(n,) speeds: drawn, listed, or from a file with numbers between blanks, commas or line ends."""
    if text.startswith("uniform:") or not os.path.isfile(text):
        return check_speeds(draw("speeds", text, n, np.random.default_rng(seed)), n)
    try:
        numbers = comma_list("speeds", ",".join(Path(text).read_text().replace(",", " ").split()))
    except ValueError:  # UnicodeDecodeError is one, too
        raise ValueError(f"{text}: expected nothing but numbers, the speeds") from None
    return check_speeds(numbers, n, name=f"{text}: speeds")


def _speeds_of(hosts: list[Host], graph: Graph, path: str) -> Floats:
    if len(hosts) != graph.n:
        ranks = sum(host.slots for host in hosts)
        hint = ""
        if ranks == graph.n:  # a list can't interleave the slots of its hosts
            hint = "; a host list can't say where each of a host's ranks sits: use lb_mpi.reorder_ranks in the program"
        raise ValueError(f"{path}: {len(hosts)} hosts: expected {graph.n}, one for each vertex of the graph{hint}")
    return np.array([host.slots * host.speed for host in hosts])


@contextmanager
def _progress() -> Iterator[Report | None]:
    """A bar on stderr when it is a terminal, and not before two seconds are over."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=1.0)
    due = time.monotonic() + _PATIENCE_S

    def report(text: str, done: float) -> None:
        if time.monotonic() >= due:
            bar.start()
            bar.update(task, description=text, completed=done)

    try:
        yield report
    finally:
        bar.stop()
