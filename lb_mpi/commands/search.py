"""The command `simulate search`: an unbalanced tree search on virtual ranks; the count is checked where it is published."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from lb_mpi.checks import comma_list
from lb_mpi.commands.arguments import add_record, add_route, pair, route_of, write_record
from lb_mpi.problems.uts import PUBLISHED, TREES, UnbalancedTreeSearch
from lb_mpi.recording.record import Record
from lb_mpi.searching import room, simulate
from lb_mpi.searching.options import Options
from lb_mpi.virtual import check_span


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--tree", choices=sorted(TREES), default="T1", help="a published tree (%(default)s)")
    parser.add_argument("--ranks", type=int, default=16, help="number of virtual ranks (%(default)s)")
    parser.add_argument(
        "--latency",
        type=pair,
        default=(5e-6, 5e-6),
        metavar="S[,S]",
        help="seconds that a message takes; two: log-uniform between them (5e-6)",
    )
    add_route(parser)
    parser.add_argument("--seed", type=int, default=0, help="of delays, pauses and random routes (%(default)s)")
    parser.add_argument("--unit-s", type=float, default=1e-6, help="virtual seconds a node takes (%(default)s)")
    parser.add_argument(
        "--quantum-s",
        type=float,
        default=50e-6,
        help="virtual seconds of work between two looks for messages (%(default)s)",
    )
    parser.add_argument(
        "--overhead-s",
        type=float,
        default=0.0,
        metavar="S",
        help="virtual seconds of a rank's own time for each message that it sends or receives (%(default)s)",
    )
    parser.add_argument(
        "--bytes-per-s",
        type=float,
        default=math.inf,
        metavar="B",
        help="what a link carries in a second (%(default)s)",
    )
    parser.add_argument(
        "--speeds",
        default="1",
        metavar="F,F,...",
        help="relative speeds of the ranks, in turns when there are fewer of them (%(default)s)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=4.0,
        metavar="J",
        help="a rank with no more nodes in hand than this gives none away (%(default)s)",
    )
    parser.add_argument(
        "--split-rule",
        choices=("alternate", "half", "one"),
        default="alternate",
        help="which of its nodes a rank gives away: every other one, the older half, or the oldest (%(default)s)",
    )
    parser.add_argument(
        "--pause",
        type=pair,
        metavar="S,S",
        help="shortest and longest seconds that an idle rank waits before it asks for work again",
    )
    add_record(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search as the options say; ValueError for odd values.

    `nodes`, `leaves`, `depth` of the tree, `efficiency` (1: all ranks did nothing but work), how often work was moved
    (`balances`) with how many `drafts` and `messages` (`most_messages`: sent by one rank), in `virtual_seconds`; the last
    `detection_seconds` of these nobody worked, until all knew it; simulated in `seconds`.
    """
    began = time.perf_counter()
    room.check_ranks(options.ranks, room.TREE_BYTES)
    given = comma_list("speeds", options.speeds)
    speeds = [given[rank % len(given)] for rank in range(options.ranks)]
    low, high = check_span("latency", options.latency)
    problems = [UnbalancedTreeSearch(TREES[options.tree], options.split_rule) for _ in range(options.ranks)]
    route = route_of(options)
    pause = options.pause or simulate.pause_for(options.ranks, high)
    records = [Record(0.0) for _ in range(options.ranks)] if options.record is not None else None
    result = simulate.search(
        problems,
        speeds=speeds,
        latency=(low, high),
        unit_s=options.unit_s,
        quantum_s=options.quantum_s,
        overhead_s=options.overhead_s,
        bytes_per_s=options.bytes_per_s,
        seed=options.seed,
        options=Options(threshold=options.threshold, pause_s=pause, seed=options.seed, route=route),
        records=records,
    )
    if records is not None:
        program = f"simulate search --tree {options.tree} --ranks {options.ranks}"
        write_record(options.record, records, result.virtual_seconds, ["virtual"] * options.ranks, program)
    count = result.value
    known = PUBLISHED.get(options.tree)
    if known is not None and known != count:
        raise AssertionError(f"{options.tree} has {known} as published, but {count} were counted")
    return {
        "tree": options.tree,
        "ranks": options.ranks,
        **count._asdict(),
        "efficiency": result.efficiency,
        "balances": result.balances,
        "drafts": result.drafts,
        "messages": result.messages,
        "most_messages": result.most_messages,
        "detection_seconds": result.detection_s,
        "virtual_seconds": result.virtual_seconds,
        "seconds": time.perf_counter() - began,
    }


def summary(answer: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    return [
        f"{answer['nodes']:,} nodes on {answer['ranks']} virtual ranks in {answer['virtual_seconds']:.6f} virtual seconds",
        f"efficiency {answer['efficiency']:.3f}; work was moved {answer['balances']} times, with {answer['drafts']} drafts "
        f"and {answer['messages']:,} messages, {answer['messages'] / answer['ranks']:.0f} a rank and "
        f"{answer['most_messages']:,} at most",
    ]
