"""The command `simulate rows`: calls of `Balancer.map_blocks` on virtual ranks, with balancing beside without."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from lb_mpi.balancing.simulate import ROWS, Cluster, World, row_costs, simulate
from lb_mpi.balancing.times import Call
from lb_mpi.checks import bandwidth, integer, virtual_s
from lb_mpi.commands.arguments import GRAPH, add_record, draw, pair, write_record
from lb_mpi.diffusion.setup import AUTO, SCHEMES
from lb_mpi.graph_files import as_graph
from lb_mpi.recording.virtual import Rows
from lb_mpi.virtual import Network, check_span

SHOWN = 20  # calls, to people
PROGRESS_S = 2.0  # between two lines of progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--graph", default="mesh:4x4", help=f"which ranks are neighbours: {GRAPH} (%(default)s)")
    parser.add_argument("--calls", type=int, default=20, help="of map_blocks, one after the other (%(default)s)")
    parser.add_argument("--rows", type=int, default=50, metavar="N", help="on each rank (%(default)s)")
    parser.add_argument(
        "--costs",
        choices=ROWS,
        default="lognormal",
        help="of the rows: all the same; drawn, a few are heavy; or a warm region that moves over the ranks (%(default)s)",
    )
    parser.add_argument(
        "--spread", type=float, default=1.0, help="of the costs: of their logarithm; how warm it gets (%(default)s)"
    )
    parser.add_argument(
        "--period", type=int, default=100, help="calls in which the warm region comes round once (%(default)s)"
    )
    parser.add_argument(
        "--speeds",
        default="uniform:1:4",
        help="of the ranks, relative to each other: uniform:LOW:HIGH, or as many as there are: 1,2,... (%(default)s)",
    )
    parser.add_argument(
        "--row-s", type=float, default=2e-4, help="mean seconds of a row on a rank of speed 1 (%(default)s)"
    )
    parser.add_argument("--row-bytes", type=int, default=256, help="of a row, and of its result (%(default)s)")
    parser.add_argument(
        "--latency",
        type=pair,
        default=(5e-6, 5e-6),
        metavar="S[,S]",
        help="seconds that a message takes; two: log-uniform between them (5e-6)",
    )
    parser.add_argument("--bandwidth", type=float, default=1e9, help="bytes per second (%(default)g)")
    parser.add_argument(
        "--noise", type=float, default=0.0, help="by which times vary, as a standard deviation: 0.05 (%(default)s)"
    )
    parser.add_argument(
        "--scheme",
        choices=(AUTO, *SCHEMES),
        default=AUTO,
        help="how it is found out who gives what to whom; auto: what suits the number of ranks and the graph (%(default)s)",
    )
    parser.add_argument("--tolerance", type=float, default=0.05, help="imbalance that is good enough (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (%(default)s)")
    add_record(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Simulate as the options say; ValueError for odd values.

    The `scheme` that was taken; `calls`, a list with the seconds of each, without balancing (`alone_s`) and at least
    (`bound_s`), the rows and bytes moved; the totals of these; simulated in `seconds`.
    """
    began = time.process_time()
    graph = as_graph(options.graph)
    n_rows, seed = integer("rows", options.rows, 1), integer("seed", options.seed, 0)
    row_s = virtual_s("row_s", options.row_s)
    speeds = draw("speeds", options.speeds, graph.n, np.random.default_rng(seed)) / row_s
    bytes_per_s = bandwidth("bandwidth", options.bandwidth)
    recorded = Rows(graph.n) if options.record is not None else None
    if recorded is not None:
        recorded.records[0].known.graph(*graph.edges())
    cluster = Cluster(
        graph,
        speeds,
        scheme=options.scheme,
        tolerance=options.tolerance,
        network=Network(check_span("latency", options.latency), bytes_per_s=bytes_per_s),
        row_bytes=options.row_bytes,
        noise=options.noise,
        seed=seed,
        world_class=World if recorded is None else recorded.world,
    )
    costs = row_costs(options.costs, graph.n, n_rows, seed=seed, spread=options.spread, period=options.period)
    show = _progress(options.calls)

    def on_call(number: int, call: Call) -> None:
        show(number, call)
        if recorded is not None:
            recorded.called(cluster, call)

    done = simulate(cluster, costs, options.calls, on_call)
    if recorded is not None:
        program = f"simulate rows --graph {options.graph} --calls {options.calls}"
        write_record(options.record, recorded.records, recorded.now, ["virtual"] * graph.n, program)
    totals = {
        name: sum(getattr(call, name) for call in done)
        for name in ("seconds", "bound_s", "alone_s", "rows_moved", "bytes_moved", "messages")
    }
    later = done[len(done) // 2 :]
    return {
        "ranks": graph.n,
        "scheme": cluster.scheme,
        "calls": [call._asdict() for call in done],
        "total": totals,
        "ratio": totals["seconds"] / totals["bound_s"],
        "ratio_without": totals["alone_s"] / totals["bound_s"],
        "ratio_later": statistics.median(call.seconds / call.bound_s for call in later),
        "cpu_seconds": time.process_time() - began,
    }


def summary(answer: dict[str, Any]) -> list[str]:
    """The answer as a table for people."""
    calls, total = answer["calls"], answer["total"]
    every = -(-len(calls) // SHOWN)
    lines = [" call     bound s   time / bound  without balancing   rows moved      MB moved  what was done"]
    for k, call in enumerate(calls):
        if k % every and k != len(calls) - 1:
            continue
        lines.append(
            f"{k + 1:5d} {call['bound_s']:11.6f} {call['seconds'] / call['bound_s']:14.3f} "
            f"{call['alone_s'] / call['bound_s']:18.3f} {call['rows_moved']:12,d} {call['bytes_moved'] / 1e6:13.3f}  "
            f"{call['reason']}"
        )
    return [
        *lines,
        f"{answer['ranks']:,} ranks, {len(calls)} calls: {total['seconds']:.4f} virtual seconds, {answer['ratio']:.3f} of "
        f"the bound ({answer['ratio_later']:.3f} in the later half); without balancing {answer['ratio_without']:.3f}",
        f"{total['rows_moved']:,} rows and {total['bytes_moved'] / 1e6:,.1f} MB moved, with {total['messages']:,} messages",
    ]


def _progress(n_calls: int) -> Any:
    """Make what tells on a terminal how far it is."""
    told = [time.monotonic()]

    def show(number: int, call: Call) -> None:
        if sys.stderr.isatty() and time.monotonic() > told[0] + PROGRESS_S:
            told[0] = time.monotonic()
            ratio = call.seconds / call.bound_s
            print(f"call {number + 1} of {n_calls}: {ratio:.3f} of the bound", file=sys.stderr, flush=True)

    return show
