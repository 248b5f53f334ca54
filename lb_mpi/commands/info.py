"""The command `info`: the installed versions and the environment; with --measure, the speed of the machine.

It is the only command that mpiexec may start; without an MPI it prints the versions, and that there is none.
"""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from lb_mpi import __version__
from lb_mpi.commands.dispatch import Command
from lb_mpi.machine import Machine

LIBRARIES = ("numpy", "scipy", "networkx", "numba", "mpi4py")
MOST_LINES = 64  # of ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--measure", action="store_true", help="measure speeds, and latency and bandwidth of messages")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write what was measured, to be read with --machine")
    parser.add_argument("--speeds", metavar="F,F,...",
        help="emulate unequal machines: a relative speed above 0 and at most 1 for each rank")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the facts on rank 0; None on the others, which exit with code 2 if it raises ValueError or OSError."""
    versions = {"lb_mpi": __version__, "python": platform.python_version(), **_versions()}
    try:
        from lb_mpi.mpi.graph import info
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library found by mpi4py
        reason = str(error).splitlines()[0]
        if options.measure:
            raise ValueError(f"--measure needs MPI: {reason}") from None
        return {"versions": versions, "mpi": None, "reason": reason}
    return info.run(versions, options.measure, options.speeds, options.output)


def describe(answer: dict[str, Any]) -> list[str]:
    """Return the answer as lines for people."""
    lines = [", ".join(f"{name} {version}" for name, version in answer["versions"].items())]
    if answer["mpi"] is None:
        return [*lines, f"no MPI: {answer['reason']}"]
    size, hosts = answer["ranks"], answer["hosts"]
    n_hosts = len(set(hosts))
    lines += [
        f"{answer['mpi']}; MPI standard {answer['standard']}; thread level {answer['thread_level']}",
        f"{size} rank{'s' * (size > 1)} on {n_hosts} host{'s' * (n_hosts > 1)}",
    ]
    if "machine" in answer:
        fields = ("hosts", "speeds", "latency_s", "s_per_byte")
        return lines + table(Machine(**{name: answer["machine"][name] for name in fields}))
    for host in dict.fromkeys(hosts):
        lines.append(f"  {host}: {_ranks([rank for rank, its in enumerate(hosts) if its == host])}")
    return lines


def table(machine: Machine) -> list[str]:
    """Return the machine as lines for people: one per rank, and one per pair of hosts."""
    width = max(len(host) for host in ("host", *machine.hosts))
    lines = [f"{'rank':>6}  {'host':<{width}}  {'speed':>6}  {'million mult-adds/s':>19}"]
    for rank in range(min(machine.size, MOST_LINES)):
        speed = machine.speeds[rank]
        lines.append(f"{rank:>6}  {machine.hosts[rank]:<{width}}  {speed / machine.speeds.max():6.3f}  {speed:19,.0f}")
    if machine.size > MOST_LINES:
        lines.append(f"   ... and {machine.size - MOST_LINES} more")
    hosts = list(dict.fromkeys(machine.hosts))[:8]
    for k, one in enumerate(hosts):
        for other in hosts[k:]:
            if (cost := machine.between(one, other)) is not None:
                where = f"within {one}" if one == other else f"{one} to {other}"
                speed = f"{1e-6 / cost[1]:,.0f} MB/s" if cost[1] else "bandwidth too high to be seen"
                lines.append(f"messages {where}: {cost[0] * 1e6:,.2f} us, {speed}")
    return lines


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ranks(ranks: list[int]) -> str:
    """Write "ranks 0 to 3" or "ranks 0, 2"."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


COMMANDS = {"info": Command(add_arguments, run, describe)}
