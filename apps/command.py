"""The common part of the apps' command lines: options of the search, errors, exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from mpi4py import MPI

import lb_mpi
from apps.speeds import Change, Varying, change_of, seconds_for
from lb_mpi.checks import emulated_speeds
from lb_mpi.cli.run.command import Command, Output, execute
from lb_mpi.cli.run.options import add_slow_ranks
from lb_mpi.emulate import throttled
from lb_mpi.mpi.common.collective import agree
from lb_mpi.searching.guard import MOST_ON_RING
from lb_mpi.table import counted


def add_search_options(parser: argparse.ArgumentParser, *, threshold: float, split_rules: tuple[str, ...] = ()) -> None:
    """Add the options that every search has; the first split rule is the default, if there are several."""
    group = parser.add_argument_group("balancing")
    group.add_argument(
        "--no-balance", action="store_true",
            help="give each rank one part at the start, and move nothing afterwards (for comparison)"
    )
    add_slow_ranks(group)
    add_changes(group)
    group.add_argument(
        "--threshold",
        type=float,
        default=threshold,
        metavar="J",
        help="a rank gives work away only if its load is above J (default: %(default)s)",
    )
    if split_rules:
        group.add_argument(
            "--split-rule", choices=split_rules, default=split_rules[0],
                help="which part of its work a rank gives away (default: %(default)s)"
        )
    group.add_argument(
        "--quantum", type=int, metavar="UNITS", help="units of work between two polls for messages (default: adaptive)"
    )
    group.add_argument("--route", choices=("ring", "random"),
        help="which ranks a rank without work asks: all round the ring, as in the paper, or random ones (default: the "
        f"ring on up to {MOST_ON_RING} ranks of one host)")
    add_search_saves(parser)


def add_search_saves(parser: argparse.ArgumentParser) -> None:
    """Add --save and --save-every of a search."""
    group = parser.add_argument_group("saving")
    group.add_argument(
        "--save",
        metavar="FOLDER",
        help="save the search in FOLDER regularly, and when SIGTERM or SIGUSR1 comes; the same command continues it "
        "later, on any number of ranks",
    )
    group.add_argument(
        "--save-every", type=float, default=30.0, metavar="SECONDS", help="interval between two saves (default: %(default)g)"
    )


def add_changes(group: Any) -> None:
    """Add --speed-changes."""
    group.add_argument(
        "--speed-changes",
        type=changes,
        default=[],
        metavar="RANK:FROM_S:TO_S:FACTOR,...",
        help="from FROM_S to TO_S seconds after the start, RANK has only FACTOR times its speed, as when another user "
        "logs in (default: no changes)",
    )


def shape_of(text: str) -> tuple[int, int]:
    """Parse "40x60"."""
    try:
        rows, columns = text.split("x")
        return int(rows), int(columns)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected two integers, as in 40x60") from None


def changes(text: str) -> list[Change]:
    """Parse "1:10:20:0.33,0:5:8:0.5"."""
    try:
        return [change_of(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def all_speeds(comm: MPI.Intracomm, options: argparse.Namespace) -> list[Varying]:
    """The speed of each rank over time; ValueError on all ranks alike for speeds and changes that won't do."""
    usual = emulated_speeds(options.speeds, comm.size)
    for change in options.speed_changes:
        if change.rank >= comm.size:
            raise ValueError(f"--speed-changes: rank {change.rank}: expected 0 to {comm.size - 1}")
    return [
        Varying(speed, [change for change in options.speed_changes if change.rank == rank])
        for rank, speed in enumerate(usual)
    ]


def as_slow(comm: MPI.Intracomm, speeds: list[Varying]) -> list[Varying]:
    """The speeds, with that of launch/throttle (or of an emulated host) for each rank: what lower bounds are made of."""
    slow = comm.allgather(throttled())
    return [Varying(one.usual * factor, one.changes) for one, factor in zip(speeds, slow, strict=True)]


def own_speed(comm: MPI.Intracomm, speeds: str | None) -> float:
    """This rank's speed; ValueError on all ranks alike for speeds that won't do."""
    return emulated_speeds(speeds, comm.size)[comm.rank]


def search(
    comm: MPI.Intracomm,
    problem: lb_mpi.Problem,
    options: argparse.Namespace,
    bound: lb_mpi.Bound | None = None,
    trace: bool = False,
    limit_s: float = math.inf,
) -> lb_mpi.SearchResult:
    """Run `lb_mpi.search` as the command line asks."""
    speeds = all_speeds(comm, options)
    speeds[comm.rank].start()
    result = lb_mpi.search(
        comm,
        problem,
        bound=bound,
        threshold=options.threshold,
        balance=not options.no_balance,
        emulated_speed=speeds[comm.rank].now,
        quantum=options.quantum,
        route=options.route,
        save=options.save,
        save_every_s=options.save_every,
        limit_s=limit_s,
        trace=trace,
    )
    return dataclasses.replace(result, lower_bound_s=seconds_for(result.cpu_s, as_slow(comm, speeds)))


def lines(result: lb_mpi.SearchResult) -> list[str]:
    """Say for people how the time was spent."""
    busy = " ".join(f"{rank.useful_s / rank.seconds:.2f}" for rank in result.ranks)
    return [
        f"{result.seconds:.3f} s; lower bound {result.lower_bound_s:.3f} s (CPU seconds of work / sum of speeds)",
        f"work was moved {counted(result.balances, 'time')}; messages: "
        + (", ".join(f"{n} {kind}" for kind, n in result.messages.items()) or "none"),
        f"busy, by rank: {busy}",
    ]


def figures(result: lb_mpi.SearchResult) -> dict[str, Any]:
    """Say for machines how the time was spent: the JSON keys that all searches have."""
    return {
        "ranks": len(result.ranks),
        "seconds": result.seconds,
        "lower_bound_seconds": result.lower_bound_s,
        "cpu_seconds": result.cpu_s,
        "balances": result.balances,
        "messages": result.messages,
        "timed_out": result.timed_out,
        "busy_fraction": [rank.useful_s / rank.seconds for rank in result.ranks],
    }


def compile_once(comm: MPI.Intracomm, compile_kernels: Callable[[], None]) -> None:
    """Compile on one rank of each machine, then load what it cached on the others: not eight times at once.

    Collective; what it raises on one rank (OSError: no room for the cache), all raise.
    """
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = machine.rank == 0
    machine.Free()
    agree(comm, lambda: compile_kernels() if first else None)
    agree(comm, lambda: None if first else compile_kernels())


def app(
    name: str,
    text: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    main: Callable[[MPI.Intracomm, argparse.Namespace], tuple[dict[str, Any], list[str]]],
) -> Command:
    """Return the command of an app; `main` returns (figures for machines, lines for people)."""
    return Command(name, "apps", text, "mpiexec -n 4 {}", add_arguments,
        lambda options: Output(*main(MPI.COMM_WORLD, options)), ranks=True)  # fmt: skip


def run(command: Command) -> NoReturn:
    """Run an app, and exit, as every command does."""
    sys.exit(execute(command, sys.argv[1:], f"python -m apps.{command.name}"))
