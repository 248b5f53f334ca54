"""The command `python -m lb_mpi info`: what this is run with and where; with --measure, how fast it is.

The only one that may be started by mpiexec; without an MPI it tells the versions, and that there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from lb_mpi import __version__
from lb_mpi.machine import Machine, as_json, write_machine

if TYPE_CHECKING:
    from mpi4py import MPI

LIBRARIES = ("numpy", "scipy", "networkx", "numba", "mpi4py")
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
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
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        if options.measure:
            raise ValueError(f"--measure needs MPI: {str(error).splitlines()[0]}") from None
        return {"versions": versions, "mpi": None}, [_line(versions), f"no MPI: {str(error).splitlines()[0]}"]
    comm = MPI.COMM_WORLD
    try:
        answer, lines = _run(comm, options, versions)
    except (ValueError, OSError):
        if comm.rank == 0:
            raise
        sys.exit(2)
    except KeyboardInterrupt:
        comm.Abort(130)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        comm.Abort(1)
    return (answer, lines) if comm.rank == 0 else ({}, [])


def _run(comm: MPI.Intracomm, options: argparse.Namespace, versions: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    from mpi4py import MPI

    from lb_mpi.mpi.agree import agree, agree_on
    from lb_mpi.mpi.speed import measure

    if not options.measure and (options.output or options.speeds):
        raise ValueError(f"{'-o' if options.output else '--speeds'} without --measure: expected both")
    speed = _speed(options.speeds, comm.rank, comm.size)
    agree_on(comm, versions=versions)
    hosts = comm.allgather(MPI.Get_processor_name())
    level = MPI.Query_thread()
    answer: dict[str, Any] = {
        "versions": versions,
        "mpi": " ".join(re.split(r"[\n,\0]", MPI.Get_library_version())[0].split()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": next(name for name in THREAD_LEVELS if getattr(MPI, f"THREAD_{name.upper()}") == level),
        "ranks": comm.size,
        "hosts": hosts,
    }
    lines = [
        _line(versions),
        f"{answer['mpi']}; MPI standard {answer['standard']}; thread level {answer['thread_level']}",
        f"{comm.size} rank{'s' * (comm.size > 1)} on {len(set(hosts))} host{'s' * (len(set(hosts)) > 1)}",
    ]
    if not options.measure:
        for host in dict.fromkeys(hosts):
            lines.append(f"  {host}: {_ranks([rank for rank, its in enumerate(hosts) if its == host])}")
        return answer, lines
    machine = measure(comm, speed=speed)
    answer["machine"] = as_json(machine)
    if options.output:
        agree(comm, lambda: write_machine(machine, options.output) if comm.rank == 0 else None)
        answer["output"] = options.output
    return answer, lines + table(machine)


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


def _line(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _ranks(ranks: list[int]) -> str:
    """As "ranks 0 to 3" or "ranks 0, 2"."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _speed(text: str | None, rank: int, size: int) -> float:
    """This rank's of the speeds to emulate."""
    if text is None:
        return 1.0
    try:
        speeds = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--speeds {text}: expected numbers with commas between them") from None
    if len(speeds) != size:
        raise ValueError(f"--speeds has {len(speeds)} numbers: expected {size}, one for each rank")
    return speeds[rank]
