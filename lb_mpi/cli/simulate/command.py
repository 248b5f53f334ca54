"""The command `simulate`: a search, rows or tasks on any number of virtual ranks, without MPI.

The same objects as on MPI run on a virtual clock, so the same options give the same figures.  All subjects share the options
of `_common`; the specific options, answer and summary of each are together below.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.checks import choice, comma_list, integer, virtual_s
from lb_mpi.cli.run.command import Output
from lb_mpi.cli.run.options import GRAPH, PATIENCE_S, add_seed, add_speeds, draw
from lb_mpi.cli.run.progress import remove_records
from lb_mpi.cli.simulate import rows as rounds
from lb_mpi.cli.simulate import search as searches
from lb_mpi.cli.simulate import tasks as pools
from lb_mpi.cli.simulate.rows import SimulatedCall, SimulatedRows
from lb_mpi.diffusion.setup import AUTO, ROWS_SCHEMES
from lb_mpi.graph import Floats
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_speeds
from lb_mpi.record.record import Record, virtual_files
from lb_mpi.searching.guard import Options
from lb_mpi.status import StatusLine
from lb_mpi.table import Table, counted
from lb_mpi.virtual import Network, check_span

THRESHOLD = 4.0  # nodes: a rank of a search gives some away only if it has more
ROW_BYTES = 256  # of a row, and of its result
BYTES_PER_S = 1e9  # of a link
WITHIN_S = 2e-6  # that a message of a pool takes within a host
MOST_RANKS = 1 << 16  # of simulated rows
SHOWN = 20  # lines of a table in the text output


class Subject(NamedTuple):
    """A subject of a simulation."""

    text: str  # a line of help
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], dict[str, Any]]  # figures, ready for JSON
    describe: Callable[[dict[str, Any]], list[str]]  # the figures, for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each subject."""
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT", title="subjects")
    for name, one in SUBJECTS.items():
        description = f"{one.text[0].upper()}{one.text[1:]}."
        one.add_arguments(subjects.add_parser(name, strict=True, help=one.text, description=description))


def simulate(options: argparse.Namespace) -> Output:
    """Simulate as the options say; ValueError for odd values.  Returns the subject's answer, and its name."""
    subject = SUBJECTS[options.subject]
    found = subject.run(options)
    return Output({"subject": options.subject, **found}, subject.describe(found))


# --- common to all subjects -------------------------------------------------------------------------------------------


def _common(parser: argparse.ArgumentParser, *, speeds: str = "1", latency_s: float = 5e-6, between: str = "") -> None:
    add_speeds(parser, "ranks", speeds, ", which is repeated if it has fewer numbers than there are ranks")
    parser.add_argument("--latency", type=float, default=latency_s, metavar="S",
        help=f"seconds that a message{between} takes")
    add_seed(parser)
    parser.add_argument("--record", metavar="FOLDER", help="write a record to FOLDER, for python -m lb_mpi report FOLDER")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text")


def _speeds(options: argparse.Namespace, size: int) -> Floats:
    """Return (size,) speeds; fewer listed ones are repeated."""
    speeds = draw("speeds", options.speeds, size, np.random.default_rng(options.seed))
    return check_speeds(np.resize(speeds, size) if len(speeds) < size else speeds, size)


def _write(options: argparse.Namespace, records: Sequence[Record], now: float, hosts: Sequence[str], what: str) -> None:
    """Write the records of virtual ranks on `hosts` (ranks,) at the time `now`; OSError."""
    folder = Path(options.record)
    folder.mkdir(parents=True, exist_ok=True)
    remove_records(options.record)
    for name, data in virtual_files(records, now, hosts, f"simulate {options.subject} {what}"):
        (folder / name).write_bytes(data)


def _ratio(seconds: float, bound_s: float) -> float:
    """Return time / bound; 1 if there was nothing to do."""
    return seconds / bound_s if bound_s else 1.0


# --- search -----------------------------------------------------------------------------------------------------------


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tree", metavar="NAME", default="T1",
        help="a published tree: T1 to T5, or a large one: T1L, T2L, T3L, T1XL")
    parser.add_argument("--ranks", type=int, default=16, help="number of virtual ranks")
    parser.add_argument("--unit-s", type=float, default=1e-6, help="virtual seconds per node at speed 1")
    _common(parser)


def _search(options: argparse.Namespace) -> dict[str, Any]:
    """Search a published tree, and check its count.

    Returns `nodes`, `leaves`, `depth` of the tree, `efficiency` (1: all ranks worked all the time), how often work moved
    (`balances`) with how many `drafts` and `messages` (`most_messages`: by one rank), in `virtual_seconds`, of which
    `detection_seconds` from the end of the last rank's work until all learned of it; simulated in `seconds`.
    """
    from lb_mpi.searching.uts import PUBLISHED, TREES, UnbalancedTreeSearch  # late: needs numba

    began = time.perf_counter()
    choice("tree", options.tree, sorted(TREES))
    integer("ranks", options.ranks, 1, searches.MOST_RANKS)
    seed = integer("seed", options.seed, 0)
    network = Network(check_span("latency", options.latency))
    records = [Record(0.0) for _ in range(options.ranks)] if options.record else None
    result = searches.search(
        [UnbalancedTreeSearch(TREES[options.tree]) for _ in range(options.ranks)],
        speeds=_speeds(options, options.ranks),
        network=network,
        unit_s=options.unit_s,
        seed=seed,
        options=Options(
            threshold=THRESHOLD,
            pause_s=searches.pause_for(options.ranks, network.latency_s[1]),
            seed=seed,
        ),
        records=records,
    )
    if records is not None:
        what = f"--tree {options.tree} --ranks {options.ranks}"
        _write(options, records, result.virtual_seconds, ["virtual"] * options.ranks, what)
    count = result.value
    known = PUBLISHED.get(options.tree)
    if known is not None and known != count:
        raise AssertionError(f"{options.tree} has {known} as published, but {count} were counted")
    return {
        "tree": options.tree,
        "ranks": options.ranks,
        **count._asdict(),
        **{name: getattr(result, name) for name in ("efficiency", "balances", "drafts", "messages", "most_messages")},
        "detection_seconds": result.detection_s,
        "virtual_seconds": result.virtual_seconds,
        "seconds": time.perf_counter() - began,
    }


def _describe_search(answer: dict[str, Any]) -> list[str]:
    return [
        f"{counted(answer['nodes'], 'node')} on {counted(answer['ranks'], 'virtual rank')} in "
        f"{answer['virtual_seconds']:.6f} virtual seconds",
        f"efficiency {answer['efficiency']:.3f}; work was moved {counted(answer['balances'], 'time')}, with "
        f"{counted(answer['drafts'], 'draft')} and {counted(answer['messages'], 'message')}: "
        f"{answer['messages'] / answer['ranks']:.0f} per rank, and at most {answer['most_messages']:,} from one rank",
    ]


# --- rows -------------------------------------------------------------------------------------------------------------


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", default="mesh:4x4", help=f"the process graph: {GRAPH}")
    parser.add_argument("--calls", type=int, default=20, help="number of calls of map_rows")
    parser.add_argument("--rows", type=int, default=50, metavar="N", help="number of rows of each rank")
    parser.add_argument("--costs", choices=rounds.ROWS, default="lognormal",
        help="costs of the rows: equal; random, with a few expensive ones; or a hot region that moves over the ranks")
    parser.add_argument("--period", type=int, default=100, help="number of calls in which the hot region goes round once")
    parser.add_argument("--row-s", type=float, default=2e-4, help="mean seconds of a row at speed 1")
    parser.add_argument("--scheme", choices=(AUTO, *ROWS_SCHEMES), default=AUTO,
        help="direct: rank 0 makes the plans; fos, sos: all ranks do, with their neighbours only, by diffusion of first or "
        "second order; auto: direct up to 512 ranks")
    _common(parser, speeds="uniform:1:4")


def _rows(options: argparse.Namespace) -> dict[str, Any]:
    """Call `Balancer.map_rows` on drawn rows.

    Returns the `scheme` used; `calls`, a list with the seconds of each, without balancing (`alone_s`) and at least
    (`bound_s`), the rows and bytes moved; the totals of these; simulated in `cpu_seconds`.
    """
    began = time.process_time()
    if named := re.fullmatch(r"(\w+):([1-9]\d{0,8})(?:x([1-9]\d{0,8}))?", options.graph):  # refused before it is made
        kind, n, columns = named[1], int(named[2]), int(named[3] or 1)
        integer(f"--graph {options.graph}: ranks", 1 << min(n, 64) if kind == "hypercube" else n * columns, 1, MOST_RANKS)
    graph = as_graph(options.graph)
    integer(f"--graph {options.graph}: ranks", graph.n, 1, MOST_RANKS)
    n_rows, seed = integer("rows", options.rows, 1), integer("seed", options.seed, 0)
    network = Network(check_span("latency", options.latency), bytes_per_s=BYTES_PER_S)
    recorded = SimulatedRows(graph.n) if options.record else None
    cluster = rounds.Cluster(
        graph,
        _speeds(options, graph.n) / virtual_s("row_s", options.row_s),
        scheme=options.scheme,
        network=network,
        row_bytes=ROW_BYTES,
        seed=seed,
        recorded=recorded,
    )
    costs = rounds.row_costs(options.costs, graph.n, n_rows, seed=seed, period=options.period)

    def on_call(number: int, call: SimulatedCall) -> None:
        line.show(f"call {number + 1} of {options.calls}: {call.seconds / call.bound_s:.3f} of the bound")

    with StatusLine(PATIENCE_S) as line:
        done = rounds.simulate(cluster, costs, options.calls, on_call)
    if recorded is not None:
        what = f"--graph {options.graph} --calls {options.calls}"
        _write(options, recorded.records, recorded.now, ["virtual"] * graph.n, what)
    names = ("seconds", "bound_s", "alone_s", "rows_moved", "bytes_moved", "messages")
    total = {name: sum(getattr(call, name) for call in done) for name in names}
    return {
        "ranks": graph.n,
        "scheme": cluster.scheme,
        "calls": [call._asdict() for call in done],
        "total": total,
        "ratio": _ratio(total["seconds"], total["bound_s"]),
        "ratio_later": statistics.median(call.seconds / call.bound_s for call in done[len(done) // 2 :]),
        "ratio_without": _ratio(total["alone_s"], total["bound_s"]),
        "cpu_seconds": time.process_time() - began,
    }


def _describe_rows(answer: dict[str, Any]) -> list[str]:
    calls, total, before = answer["calls"], answer["total"], ""
    header = ("call", "bound s", "time/bound", "without balancing", "rows moved", "MB moved", "what was done")
    every = -(-len(calls) // SHOWN)
    lines = []
    for k, call in enumerate(calls):
        if k % every == 0 or k == len(calls) - 1:
            reason = call["reason"]
            lines.append([
                f"{k + 1}", f"{call['bound_s']:.6f}", f"{call['seconds'] / call['bound_s']:.3f}",
                f"{call['alone_s'] / call['bound_s']:.3f}", f"{call['rows_moved']:,}", f"{call['bytes_moved'] / 1e6:.3f}",
                '"' if reason == before else reason,
            ])  # fmt: skip
            before = reason
    return [
        Table(header, lines, words=(6,)).fitted(),
        f"{counted(answer['ranks'], 'rank')}, {counted(len(calls), 'call')}: {total['seconds']:.4f} virtual seconds, "
        f"{answer['ratio']:.3f} of the bound ({answer['ratio_later']:.3f} in the later half); without balancing "
        f"{answer['ratio_without']:.3f}",
        f"{counted(total['rows_moved'], 'row')} and {total['bytes_moved'] / 1e6:,.1f} MB moved, with "
        f"{counted(total['messages'], 'message')}",
    ]


# --- tasks ------------------------------------------------------------------------------------------------------------


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", default="16", metavar="N,N,...",
        help="number of ranks on each host (default: %(default)s, on one host)")
    parser.add_argument("--tasks", type=int, default=25, metavar="N", help="number of tasks for each rank")
    parser.add_argument("--costs", choices=pools.TASKS, default="lognormal",
        help="costs of the tasks: equal, or random with a few expensive ones")
    parser.add_argument("--task-s", type=float, default=0.01, help="mean seconds of a task at speed 1")
    _common(parser, latency_s=50e-6, between=" between hosts")


def _tasks(options: argparse.Namespace) -> dict[str, Any]:
    """Map drawn tasks with a pool.

    Returns the `seconds` of the map, at least (`bound_s`), as dealt and without stealing (`dealt_s`), and with an ideal
    counter (`counter_s`); tasks and busy seconds by rank, steals and messages; simulated in `cpu_seconds`.
    """
    began = time.process_time()
    hosts = [integer("hosts", int(n) if n.is_integer() else n, 1) for n in comma_list("hosts", options.hosts)]
    size = integer("hosts", sum(hosts), 1, pools.MOST_RANKS, unit="ranks in all")
    n_tasks, seed = integer("tasks", options.tasks, 0), integer("seed", options.seed, 0)
    records = [Record(0.0) for _ in range(size)] if options.record else None
    network = Network((WITHIN_S, WITHIN_S), check_span("latency", options.latency))
    pool = pools.SimulatedPool(hosts, _speeds(options, size), network=network, seed=seed, records=records)
    done = pool.map(pools.task_costs(options.costs, n_tasks * size, options.task_s, seed=seed))
    if records is not None:
        names = [f"host{k}" for k, n in enumerate(hosts) for _ in range(n)]
        _write(options, records, pool.now, names, f"--hosts {options.hosts}")
    return {"ranks": size, **done._asdict(), "speeds": pool.knowledge.speeds, "cpu_seconds": time.process_time() - began}


def _describe_tasks(answer: dict[str, Any]) -> list[str]:
    ratio, dealt, counter = (_ratio(answer[name], answer["bound_s"]) for name in ("seconds", "dealt_s", "counter_s"))
    return [
        f"{counted(sum(answer['tasks']), 'task')} on {counted(answer['ranks'], 'rank')}: {answer['seconds']:.4f} virtual "
        f"seconds, {ratio:.3f} of the bound; without stealing {dealt:.3f}; with an ideal shared counter {counter:.3f}",
        f"{counted(answer['steals'], 'steal')}, with {counted(answer['messages'], 'message')}",
    ]


SUBJECTS = {
    "search": Subject("an unbalanced tree search, message by message", _add_search, _search, _describe_search),
    "rows": Subject("calls of Balancer.map_rows, with and without balancing", _add_rows, _rows, _describe_rows),
    "tasks": Subject(
        "tasks of a pool, compared with a fixed distribution and with a shared counter",
        _add_tasks, _tasks, _describe_tasks,
    ),
}
