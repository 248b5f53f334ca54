"""The commands on graphs: `partition` assigns the vertices to unequal parts, `allocate` computes the number of tasks for
each of several unequal nodes, `arrange` assigns nodes to the vertices of a process graph, or sorts a host list so."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from lb_mpi import checks
from lb_mpi.arranging import METHODS as ARRANGE_METHODS
from lb_mpi.checks import comma_list
from lb_mpi.cli.run.command import Output
from lb_mpi.cli.run.hosts import format_hosts, read_hosts
from lb_mpi.cli.run.options import GRAPH, PATIENCE_S, add_seed, add_speeds, deliver, draw, output, written
from lb_mpi.distributing.allocation import METHODS as ALLOCATION_METHODS
from lb_mpi.distributing.allocation import allocate
from lb_mpi.graph import Graph, Ints
from lb_mpi.graph_files import as_graph, parts_text
from lb_mpi.machine import read_machine
from lb_mpi.metrics import check_speeds
from lb_mpi.partitioning.partition import AIMS, EFFORTS, METHODS, THRESHOLDS, partition
from lb_mpi.partitioning.quality import partition_metrics
from lb_mpi.status import StatusLine
from lb_mpi.table import counted

SHOWN = 20  # parts or nodes, in the text output
PARTITION_SETTINGS = ("imbalance", "effort", "seed", "method", "threshold")
PREDICTED = ("p_before", "p", "tolerance", "steps_before", "steps_predicted", "note")  # of an arrangement


def _some(values: Sequence[object], unit: str) -> str:
    """List the first values, and their total number if there are more."""
    return ", ".join(map(str, values[:SHOWN])) + (f", ... ({len(values)} {unit})" if len(values) > SHOWN else "")


# --- partition --------------------------------------------------------------------------------------------------------


def add_partition(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `partition`."""
    add = parser.add_argument
    add("graph", metavar="GRAPH", help=GRAPH)
    add("-k", type=int, required=True, metavar="K", help="number of parts")
    add("--targets", metavar="W,W,...",
        help="target weights of the parts, in any unit (default: the speeds of the machine, or equal weights)")
    add("--machine", metavar="FILE",
        help="a machine of K ranks, written by `info --measure -o FILE`; part k is for rank k: predict how long the "
        "ranks compute and communicate")
    add("--unit-s", type=float, metavar="S",
        help="with --machine: seconds that its fastest rank needs for a vertex of weight 1")
    add("--imbalance", type=float, default=0.03, metavar="X",
        help="fraction by which a part may exceed its target; 0.03 is 3 %%")
    add("--effort", choices=EFFORTS, default="good", help="a higher effort needs more time and cuts fewer edges")
    add_seed(parser)
    add("--method", choices=METHODS, default="multilevel", metavar="NAME",
        help="multilevel: the method of this library; the others are for comparison: multilevel-spectral, that of a course; "
        "spectral: by the Fiedler vector v_2 of the whole graph alone")
    add("--threshold", choices=THRESHOLDS, default="median", help="spectral: the entry of v_2 that divides the vertices")
    add("--show", action="store_true", help="print lambda_2 and v_2 of the graph, and the vertices of each part")
    add("--aim", choices=AIMS, default="cut",
        help="cut: few edges between parts that have their target weights; time: minimise the time of the slowest "
        "rank of the machine, whatever the weights; it is never longer than with cut")
    add("-o", "--output", type=output, metavar="FILE.part",
        help="write the part of each vertex to this file, one per line; -: to standard output")


def partition_graph(options: argparse.Namespace) -> Output:
    """Partition as the options say; ValueError for odd values and malformed files.

    `cut` weight of edges between parts, `volume` vertices sent in an exchange, `imbalance` against the targets, `sizes`
    vertices and `weights` per part, `connected` whether each part is connected, `disconnected` the parts that are not,
    and with a machine the `cost`: `objective_s`, seconds until its last rank is done, of them `computing_s` and
    `communication_s` on each, and `lower_bound_s`, a limit for all partitions.  With --show, `lambda_2`, `v_2`, and
    `parts`, the vertices of each, counted from 1.
    """
    machine = None if options.machine is None else read_machine(options.machine)
    targets = None if options.targets is None else comma_list("targets", options.targets)
    aims: dict[str, Any] = {"targets": targets, "machine": machine, "unit_s": options.unit_s}
    settings = {name: getattr(options, name) for name in PARTITION_SETTINGS} | aims
    graph = as_graph(options.graph)
    parts = partition(graph, options.k, aim=options.aim, **settings)
    figures = partition_metrics(graph, parts, options.k, **aims)
    cost = figures.cost
    if options.output is not None:
        deliver(options.output, parts_text(parts))
    result = {
        "graph": options.graph,
        "vertices": graph.n,
        "edges": graph.n_edges,
        **{name: getattr(options, name) for name in ("k", "method", "effort")},
        **{name: getattr(figures, name) for name in ("cut", "volume", "imbalance")},
        "sizes": figures.sizes.tolist(),
        "weights": figures.weights.tolist(),
        "connected": bool(figures.connected.all()),
        "disconnected": np.flatnonzero(~figures.connected).tolist(),
        **({"cost": {name: np.asarray(value).tolist() for name, value in vars(cost).items()}} if cost else {}),
        **(_shown(graph, parts, options.k) if options.show else {}),
        **({} if options.output is None else {"file": options.output}),
    }
    return Output(result, _describe_partition(result))


def _shown(graph: Graph, parts: Ints, k: int) -> dict[str, Any]:
    from lb_mpi.partitioning.spectral import fiedler  # late: needs numba

    found = fiedler(graph)
    sides = [(1 + np.flatnonzero(parts == part)).tolist() for part in range(k)]
    return {"lambda_2": found.value, "v_2": found.vector.tolist(), "parts": sides}


def _describe_partition(result: dict[str, Any]) -> list[str]:
    sizes, broken = result["sizes"], result["disconnected"]
    pieces = f"{counted(len(broken), 'part is', 'parts are')} in several pieces" if broken else "every part is in one piece"
    lines = [
        f"{result['graph']}: {counted(result['vertices'], 'vertex', 'vertices')}, {counted(result['edges'], 'edge')}",
        f"cut {result['cut']:g}, volume {result['volume']}, imbalance {result['imbalance']:.2%}, {pieces}",
        f"vertices per part: {_some(sizes, 'parts')}",
    ]
    if "cost" in result:
        seconds, bound = result["cost"]["objective_s"], result["cost"]["lower_bound_s"]
        lines.insert(2, f"on this machine {seconds:.4g} s, of which {bound:.4g} s could not be avoided")
    if "v_2" in result:
        lines.append(f"lambda_2 = {result['lambda_2']:.4f}")
        lines.append(f"v_2 = {_some([f'{entry:.4f}' for entry in result['v_2']], 'vertices')}")
        for part, vertices in enumerate(result["parts"][:SHOWN]):
            lines.append(f"part {part}: vertices {_some(vertices, 'vertices')}")
    return lines + written(result.get("file"))


# --- allocate ---------------------------------------------------------------------------------------------------------


def add_allocate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `allocate`."""
    add = parser.add_argument
    add("--tasks", type=int, required=True, metavar="N", help="the number of tasks")
    add("--time", required=True, metavar="S,S,...", help="expected seconds of one task on each node")
    add("--edge-probability", type=float, default=0.0, metavar="E", help="probability that two tasks exchange data")
    add("--exchange", default="0", metavar="S,S,...",
        help="seconds of one exchange with a task on another node; one number: the same on all nodes")
    add("--wait-probability", default="0", metavar="Q,Q,...",
        help="probability that such an exchange makes the node wait; one number: the same on all nodes")
    add("--wait", default="0", metavar="S,S,...", help="expected seconds of such a wait; one number: the same on all nodes")
    add("--cap", metavar="N,N,...", help="maximum number of tasks of each node; inf: no limit")
    add("--method", choices=ALLOCATION_METHODS, default="exact",
        help="exact: the optimum in whole tasks; paper: the method of Chen et al., rounded, for comparison")


def allocate_tasks(options: argparse.Namespace) -> Output:
    """Allocate as the options say; ValueError for odd values.

    `counts` of tasks per node, `makespan` and `lower_bound` in seconds of the tasks' time.
    """
    names = ("exchange", "wait_probability", "wait")
    given: dict[str, Any] = {name: _same(comma_list(name, getattr(options, name))) for name in names}
    given["cap"] = None if options.cap is None else _same(comma_list("cap", options.cap))
    how = {**given, "edge_probability": options.edge_probability, "method": options.method}
    found = allocate(options.tasks, comma_list("time", options.time), **how)
    result = {**vars(found), "counts": found.counts.tolist()}
    return Output(result, _describe_allocation(result))


def _same(values: list[float]) -> list[float] | float:
    return values[0] if len(values) == 1 else values


def _describe_allocation(result: dict[str, Any]) -> list[str]:
    counts = _some(result["counts"], "nodes")
    makespan, least = result["makespan"], result["lower_bound"]
    best = "the optimum" if makespan <= least else f"{makespan / least - 1:.2%} more than the optimum, {least:.6g} s"
    return [f"tasks per node: {counts}", f"the last node finishes after {makespan:.6g} s, {best}"]


# --- arrange ----------------------------------------------------------------------------------------------------------


def add_arrange(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `arrange`."""
    add = parser.add_argument
    add("--graph", required=True, help=GRAPH)
    nodes = parser.add_mutually_exclusive_group()
    add_speeds(nodes, "nodes", "uniform:1:10", ", with one for each vertex")
    nodes.add_argument("--hosts", metavar="FILE", help="a hostfile; it is printed again in the order of the vertices")
    add_seed(parser, "the drawn speeds and of anneal")
    add("--method", choices=ARRANGE_METHODS, default="swap",
        help="exhaustive: try all arrangements (at most 9 vertices); paper: the greedy method of Jin and Wang; fill, swap, "
        "anneal: each is better and slower than the one before")


def arrange_nodes(options: argparse.Namespace) -> Output:
    """Arrange as the options say; ValueError for odd values, OSError for files.

    `positions[k]`, counted from 0, is the speed (or host of the list) at vertex k; `p` is lambda_P / lambda_2 of S^-1 A A^T,
    and `p_before`; `steps_predicted` of fos to the tolerance; `note` says why nothing was gained, if so; `hosts` is the list
    in its new order.  For the method "paper" in small graphs, `comparison` has the paper's Pr (`relative`), Pct
    (`percentile`) and numbers of arrangements (`below`, `above`).
    """
    from lb_mpi.arranging.arrange import MAX_EXHAUSTIVE, arrange, compare_with_all  # late: needs numba

    graph = as_graph(options.graph)
    hosts = [] if options.hosts is None else read_hosts(options.hosts)
    rng = np.random.default_rng(checks.seed(options.seed))
    if hosts and len(hosts) != graph.n:
        raise ValueError(f"{options.hosts}: {counted(len(hosts), 'host')}: expected {graph.n}, one for each vertex")
    given = [host.slots * host.speed for host in hosts] or draw("speeds", options.speeds, graph.n, rng)
    speeds = check_speeds(given, graph.n)
    settings = {name: getattr(options, name) for name in ("method", "seed")}
    with StatusLine(PATIENCE_S) as line:

        def show(text: str, done: float) -> None:
            line.show(f"{text}: {done:.0%} of the trials")  # the last ones may take longer

        found = arrange(graph, speeds, progress=show, **settings)
    result = {
        "graph": options.graph,
        "ranks": graph.n,
        "edges": graph.n_edges,
        **settings,
        **{name: getattr(found, name) for name in PREDICTED},
        "positions": found.positions.tolist(),
        "speeds": speeds[found.positions].tolist(),
    }
    if options.method == "paper" and graph.n <= MAX_EXHAUSTIVE:
        at = compare_with_all(graph, speeds, found.p)
        result["comparison"] = {**at._asdict(), "relative": at.relative, "percentile": at.percentile}
    if hosts:
        result["hosts"] = format_hosts(hosts[k] for k in found.positions.tolist()).splitlines()
    return Output(result, _describe_arrangement(result))


def _describe_arrangement(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{result['graph']}: {counted(result['ranks'], 'rank')}, {counted(result['edges'], 'edge')}; "
        f"{result['method']} for the uniform tau",
        f"p = lambda_P / lambda_2, to which the steps of diffusion are proportional: {result['p_before']:.2f} before, "
        f"{result['p']:.2f} now",
        f"steps to an imbalance of {result['tolerance']:g}: {result['steps_before']} before, "
        f"{result['steps_predicted']} now (predicted)",
    ]
    if result["note"]:
        lines.append(result["note"])
    if "comparison" in result:
        at = result["comparison"]
        lines.append(
            f"of all {at['n']:,} arrangements: p from {at['least']:.2f} to {at['greatest']:.2f}; {at['below']:,} are below "
            f"this one, {at['above']:,} above; Pr {at['relative']:.1%}, Pct {at['percentile']:.2%}"
        )
    if "hosts" not in result:
        return [*lines, "ranks at vertices 0, 1, ...: " + " ".join(map(str, result["positions"]))]
    return [*(f"# {line}" for line in lines), *result["hosts"]]  # which is a host list, too
