"""Facts of a running MPI that `python -m lb_mpi info` tells: its library, hosts and ranks, and the machine as measured."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Any

from mpi4py import MPI

from lb_mpi.checks import comma_list
from lb_mpi.commands.info import in_words, table
from lb_mpi.machine import as_json, write_machine
from lb_mpi.mpi.collective import agree, agree_on
from lb_mpi.mpi.speed import measure

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


def run(
    versions: dict[str, str], measured: bool, speeds: str | None, output: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Collective on all ranks: what rank 0 tells, for machines and for people; nothing on the others.

    ValueError or OSError on rank 0 for a mistake of the user's, on which the others exit with code 2.
    """
    comm = MPI.COMM_WORLD
    try:
        answer, lines = _tell(comm, versions, measured, speeds, output)
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


def _tell(
    comm: MPI.Intracomm, versions: dict[str, str], measured: bool, speeds: str | None, output: str | None
) -> tuple[dict[str, Any], list[str]]:
    if not measured and (output or speeds):
        raise ValueError(f"{'-o' if output else '--speeds'} without --measure: expected both")
    speed = 1.0 if speeds is None else comma_list("--speeds", speeds, comm.size)[comm.rank]
    agree_on(comm, versions=versions)
    hosts = comm.allgather(MPI.Get_processor_name())
    answer: dict[str, Any] = {
        "versions": versions,
        "mpi": " ".join(re.split(r"[\n,\0]", MPI.Get_library_version())[0].split()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": THREAD_LEVELS[MPI.Query_thread()],
        "ranks": comm.size,
        "hosts": hosts,
    }
    lines = [
        in_words(versions),
        f"{answer['mpi']}; MPI standard {answer['standard']}; thread level {answer['thread_level']}",
        f"{comm.size} rank{'s' * (comm.size > 1)} on {len(set(hosts))} host{'s' * (len(set(hosts)) > 1)}",
    ]
    if not measured:
        for host in dict.fromkeys(hosts):
            lines.append(f"  {host}: {_ranks([rank for rank, its in enumerate(hosts) if its == host])}")
        return answer, lines
    machine = measure(comm, emulated_speed=speed)
    answer["machine"] = as_json(machine)
    if output:
        agree(comm, lambda: write_machine(machine, output) if comm.rank == 0 else None)
        answer["output"] = output
    return answer, lines + table(machine)


def _ranks(ranks: list[int]) -> str:
    """As "ranks 0 to 3" or "ranks 0, 2"."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
