"""The command `allocate`."""

from __future__ import annotations

import argparse
import time
from typing import Any

from lb_mpi.checks import comma_list
from lb_mpi.distributing.allocation import METHODS, allocate

SHOWN = 20  # nodes, to people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    several = "; one number: the same on all nodes (%(default)s)"
    parser.add_argument("--tasks", type=int, required=True, metavar="N", help="the number of tasks")
    parser.add_argument("--time", required=True, metavar="S,S,...", help="expected seconds of one task on each node")
    parser.add_argument(
        "--edge-probability",
        type=float,
        default=0.0,
        metavar="E",
        help="chance that two tasks exchange data (%(default)s)",
    )
    parser.add_argument(
        "--exchange", default="0", metavar="S,S,...", help="seconds of one exchange with a task elsewhere" + several
    )
    parser.add_argument(
        "--wait-probability", default="0", metavar="Q,Q,...", help="chance that such an exchange makes wait" + several
    )
    parser.add_argument("--wait", default="0", metavar="S,S,...", help="seconds of such a wait" + several)
    parser.add_argument("--cap", metavar="N,N,...", help="the most tasks that each node can hold; inf: no limit")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="exact",
        help="exact: the best there is; paper: the method of Chen, Shi, Huang and Chen, to compare with (%(default)s)",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Allocate as the options say; a dictionary that is ready for json.  ValueError for odd values.

    `counts` of tasks per node, `makespan` and `lower_bound` in seconds of the tasks' time, `seconds` of computing.
    """
    times = comma_list("time", args.time)
    each = {name: _same(comma_list(name, getattr(args, name))) for name in ("exchange", "wait_probability", "wait")}
    cap = None if args.cap is None else _same(comma_list("cap", args.cap))
    began = time.perf_counter()
    result = allocate(args.tasks, times, edge_probability=args.edge_probability, cap=cap, method=args.method, **each)
    return {
        "counts": result.counts.tolist(),
        "makespan": result.makespan,
        "lower_bound": result.lower_bound,
        "method": result.method,
        "seconds": time.perf_counter() - began,
    }


def summary(result: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    counts, makespan, bound = result["counts"], result["makespan"], result["lower_bound"]
    shown = ", ".join(map(str, counts[:SHOWN])) + (f", ... ({len(counts)} nodes)" if len(counts) > SHOWN else "")
    above = f", {makespan / bound - 1:.2%} above the best, {bound:.6g} s" if makespan > bound else ", none is better"
    return [f"tasks per node: {shown}", f"the last node is done after {makespan:.6g} s{above}"]


def _same(values: list[float]) -> list[float] | float:
    return values[0] if len(values) == 1 else values
