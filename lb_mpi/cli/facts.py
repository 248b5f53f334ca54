"""Facts of a running MPI, for `python -m lb_mpi info`: its library, hosts and ranks, and the machine as measured."""

from __future__ import annotations

import re
from typing import Any

from mpi4py import MPI

from lb_mpi.checks import emulated_speeds
from lb_mpi.machine import as_json, write_machine
from lb_mpi.mpi.common.collective import agree, agree_on
from lb_mpi.mpi.common.waiting import N_CORES
from lb_mpi.mpi.graph.speed import measure
from lb_mpi.threads import n_threads

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


def facts(versions: dict[str, str], measured: bool, speeds: str | None, output: str | None) -> dict[str, Any]:
    """Collective over all ranks: return the answer, ready for JSON; ValueError or OSError on all for a user's mistake."""
    comm = MPI.COMM_WORLD
    if not measured and (output or speeds):
        raise ValueError(f"{'-o' if output else '--speeds'} without --measure: expected both")
    speed = emulated_speeds(speeds, comm.size)[comm.rank]
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
    here = comm.allgather((n_threads(), N_CORES))
    answer["threads"], answer["cores"] = (list(one) for one in zip(*here, strict=True))
    if not measured:
        return answer
    machine = measure(comm, emulated_speed=speed)
    answer["machine"] = as_json(machine)
    if output:
        agree(comm, lambda: write_machine(machine, output) if comm.rank == 0 else None)
        answer["output"] = output
    return answer
