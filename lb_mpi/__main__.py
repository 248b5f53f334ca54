"""python -m lb_mpi: what needs no MPI, and info.  Exit codes: 0; 2 for a mistake of the user's, in one line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from lb_mpi.launching import commands as launching

if __name__ == "__main__" and sys.argv[1:2] and sys.argv[1] in launching.FOR_PEOPLE:  # they must start at once
    sys.exit(launching.main(sys.argv[1], sys.argv[2:], f"python -m lb_mpi {sys.argv[1]}"))

from lb_mpi.commands import allocate as cli_allocate
from lb_mpi.commands import arrange as cli_arrange
from lb_mpi.commands import diffusion as cli_diffusion
from lb_mpi.commands import info as cli_info
from lb_mpi.commands import partition as cli_partition
from lb_mpi.graph import ring_order
from lb_mpi.problems.maze import MazeSearch, read_maze
from lb_mpi.problems.uts import PUBLISHED, TREES, UnbalancedTreeSearch
from lb_mpi.searching import lockstep, simulate
from lb_mpi.searching.searcher import Options

PUBLISHED_LOCKSTEP = {1: "67 steps", 2: "47 steps, 10 balances", 4: "33 steps, 13 balances"}

Command = Callable[[argparse.Namespace], tuple[dict[str, Any], list[str]]]


def pair(text: str) -> tuple[float, float]:
    """Parse "LOW,HIGH", or one number for both."""
    numbers = [float(part) for part in text.split(",")]
    if len(numbers) > 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one number, or two with a comma")
    return numbers[0], numbers[-1]


def parser() -> argparse.ArgumentParser:
    """Make the command line."""
    top = argparse.ArgumentParser(prog="python -m lb_mpi", description="Load balancing on unequal machines.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    simulations = commands.add_parser("simulate", help="without MPI, on a virtual clock").add_subparsers(
        required=True, metavar="WHAT"
    )

    lock = simulations.add_parser("lockstep", help="idealised search of a maze: communication is free")
    lock.add_argument(
        "--maze", required=True, metavar="FILE", help="rows of 0 (free) and 1 (blocked) within a wall of 2"
    )
    lock.add_argument("--ranks", type=int, default=2, help="number of virtual ranks (default: %(default)s)")
    lock.add_argument("--threshold", type=float, default=0.125, metavar="J", help="default: %(default)s")
    lock.add_argument("--split-rule", choices=("half", "one", "alternate"), default="half")
    _finish(lock, run_lockstep)

    search = simulations.add_parser("search", help="an unbalanced tree search, message by message")
    search.add_argument("--tree", choices=sorted(TREES), default="T1", help="a published tree (default: %(default)s)")
    search.add_argument("--ranks", type=int, default=16, help="number of virtual ranks (default: %(default)s)")
    search.add_argument(
        "--latency",
        type=pair,
        default=(5e-6, 5e-6),
        metavar="S[,S]",
        help="of a message in seconds; two: log-uniform between them (default: 5e-6)",
    )
    search.add_argument("--seed", type=int, default=0, help="of delays and pauses (default: %(default)s)")
    search.add_argument(
        "--unit-s", type=float, default=1e-6, help="virtual seconds a node takes (default: %(default)s)"
    )
    search.add_argument("--quantum-s", type=float, default=50e-6, help="work between two turns (default: %(default)s)")
    search.add_argument(
        "--threshold", type=float, default=4.0, metavar="J", help="nodes in hand (default: %(default)s)"
    )
    search.add_argument("--split-rule", choices=("alternate", "half", "one"), default="alternate")
    search.add_argument("--pause", type=pair, metavar="S,S", help="shortest and longest before drafting again")
    _finish(search, run_search)

    diffusion = simulations.add_parser("diffusion", help="neighbours level their loads, step by step")
    cli_diffusion.add_arguments(diffusion)
    _finish(diffusion, run_diffusion)

    allocation = commands.add_parser("allocate", help="how many tasks each of some unequal nodes should run")
    cli_allocate.add_arguments(allocation)
    _finish(allocation, run_allocate)

    partition = commands.add_parser("partition", help="which tasks of a graph go to which of some nodes")
    cli_partition.add_arguments(partition)
    _finish(partition, run_partition)

    arrangement = commands.add_parser("arrange", help="which node sits where on a process graph")
    cli_arrange.add_arguments(arrangement)
    _finish(arrangement, run_arrange)

    info = commands.add_parser("info", help="versions, MPI, hosts, ranks; with --measure, speeds and costs of messages")
    cli_info.add_arguments(info)
    _finish(info, cli_info.run)
    return top


def _finish(command: argparse.ArgumentParser, run: Command) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run)


def run_lockstep(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Search a maze in lock-step (Xu, Zhang, Sun 1991, the table of the example)."""
    cells = read_maze(options.maze)
    ring = ring_order(options.ranks)
    problems = [MazeSearch(cells, rank, options.split_rule) for rank in range(options.ranks)]
    result = lockstep.lockstep(problems, ring, options.threshold)
    return (
        {"ranks": options.ranks, **result._asdict()},
        [
            f"{options.ranks} ranks: {result.steps} steps, {result.balances} balances, "
            + ("exit found" if result.found else "no path to the exit"),
            "published for the paper's maze: "
            + "; ".join(f"{ranks} ranks {text}" for ranks, text in PUBLISHED_LOCKSTEP.items())
            + " (33 / 13 can't be reproduced by this model)",
        ],
    )


def run_search(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Search a tree on virtual ranks; the count is checked where it is published."""
    began = time.perf_counter()
    ring_order(options.ranks)  # a mistake in the number is best found before the ranks are made
    low, high = simulate.check_latency(options.latency)
    problems = [UnbalancedTreeSearch(TREES[options.tree], options.split_rule) for _ in range(options.ranks)]
    pause = options.pause or simulate.pause_for(options.ranks, high)
    result = simulate.search(
        problems,
        latency=(low, high),
        unit_s=options.unit_s,
        quantum_s=options.quantum_s,
        seed=options.seed,
        options=Options(threshold=options.threshold, pause=pause, seed=options.seed),
    )
    count = result.value
    known = PUBLISHED.get(options.tree)
    if known is not None and known != count:
        raise AssertionError(f"{options.tree} has {known} as published, but {count} were counted")
    return (
        {
            "tree": options.tree,
            "ranks": options.ranks,
            **count._asdict(),
            "efficiency": result.efficiency,
            "balances": result.balances,
            "drafts": result.drafts,
            "messages": result.messages,
            "virtual_seconds": result.virtual_seconds,
            "seconds": time.perf_counter() - began,
        },
        [
            f"{count.nodes:,} nodes on {options.ranks} virtual ranks in {result.virtual_seconds:.6f} virtual seconds",
            f"efficiency {result.efficiency:.3f}; work was moved {result.balances} times, with {result.drafts} drafts "
            f"and {result.messages:,} messages",
        ],
    )


def run_diffusion(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Balance drawn loads on a process graph."""
    answer = cli_diffusion.run(options)
    return answer, [cli_diffusion.summary(answer)]


def run_allocate(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """How many tasks for each node."""
    answer = cli_allocate.run(options)
    return answer, [cli_allocate.summary(answer)]


def run_partition(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Which tasks go to which node."""
    answer = cli_partition.run(options)
    return answer, [cli_partition.summary(answer)]


def run_arrange(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Which node sits where."""
    answer = cli_arrange.run(options)
    return answer, cli_arrange.summary(answer)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    with cli_info.one_rank_speaks():
        options = parser().parse_args(arguments)
    try:
        for_machines, for_people = options.run(options)
    except (ValueError, OSError) as error:
        print(f"python -m lb_mpi: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if for_people:
        print(json.dumps(for_machines) if options.json else "\n".join(for_people))
    return 0


if __name__ == "__main__":
    sys.exit(main())
