"""The command `python -m lb_mpi info`: what this is run with and where; with --measure, how fast it is.

The only one that may be started by mpiexec; without an MPI it tells the versions, and that there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from lb_mpi import __version__
from lb_mpi.machine import Machine

LIBRARIES = ("numpy", "scipy", "networkx", "numba", "mpi4py")
MOST_LINES = 64  # of ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--measure", action="store_true", help="measure speeds, and latency and bandwidth of messages")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write what was measured, to be read with --machine")
    parser.add_argument(
        "--speeds",
        metavar="F,F,...",
        help="emulate unequal machines: a relative speed above 0 and at most 1 for each rank",
    )


@contextlib.contextmanager
def one_rank_speaks() -> Iterator[None]:
    """Only rank 0 prints within the block, as far as the launcher has told who that is: before MPI is started."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
    if next((os.environ[name] for name in names if name in os.environ), "0") == "0":
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """What rank 0 tells; nothing on the others, which exit with code 2 where rank 0 raises ValueError or OSError."""
    versions = {"lb_mpi": __version__, "python": platform.python_version(), **_versions()}
    try:
        from lb_mpi.mpi import info
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        if options.measure:
            raise ValueError(f"--measure needs MPI: {str(error).splitlines()[0]}") from None
        return {"versions": versions, "mpi": None}, [in_words(versions), f"no MPI: {str(error).splitlines()[0]}"]
    return info.run(versions, options.measure, options.speeds, options.output)


def table(machine: Machine) -> list[str]:
    """What was measured, in lines for people: a line a rank, and one for each two hosts."""
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


def in_words(versions: dict[str, str]) -> str:
    """As one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
