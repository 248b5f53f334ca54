"""The commands on an installation: `info`, its versions and, with --measure, the speed of the machine; `warmup`;
`slurm-script`.

`info` is the only one that mpiexec may start; without an MPI it prints the versions, and that there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import re
import time
from importlib import metadata, resources
from typing import Any

import numpy as np

from lb_mpi import __version__
from lb_mpi.checks import emulated_speeds
from lb_mpi.cli.run.command import STDOUT, NoMPI, Output, needs_mpi, speaks
from lb_mpi.cli.run.options import add_slow_ranks, output, written
from lb_mpi.machine import FIELDS, WAITS, Machine, as_json, write_machine
from lb_mpi.table import Table, counted, named_ranks
from lb_mpi.threads import crowded, n_threads

LIBRARIES = ("numpy", "scipy", "networkx", "numba", "mpi4py")
MOST_LINES = 64  # of ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `info`."""
    parser.add_argument("--measure", action="store_true",
        help="measure the speeds of the ranks, and the latency and bandwidth of messages")
    parser.add_argument("-o", dest="output", metavar="FILE",
        help="write the measured machine to FILE, for partition --machine")
    add_slow_ranks(parser)


def info(options: argparse.Namespace) -> Output:
    """Collective if there is an MPI: return the facts."""
    if options.output == STDOUT:
        raise ValueError("-o -: expected a file")
    versions = {"lb_mpi": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    try:
        answer = _facts(needs_mpi("mpi4py.MPI"), versions, options)
    except NoMPI as error:
        if options.measure:
            raise
        answer = {"versions": versions, "mpi": None, "reason": str(error)}
    return Output(answer, _describe(answer) if speaks() else [])


def _facts(MPI: Any, versions: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the answer; ValueError or OSError on all ranks for a user's mistake."""
    from lb_mpi.mpi.common.collective import agree, agree_on
    from lb_mpi.mpi.common.waiting import N_CORES
    from lb_mpi.mpi.graph.speed import measure

    comm, given = MPI.COMM_WORLD, options.output or options.speeds
    if given and not options.measure:
        raise ValueError(f"{'-o' if options.output else '--speeds'} without --measure: expected both")
    speed = emulated_speeds(options.speeds, comm.size)[comm.rank]
    agree(comm, lambda: output(options.output) if options.output and comm.rank == 0 else None)  # other hosts may not have it
    agree_on(comm, versions=versions)
    threads, cores = (list(one) for one in zip(*comm.allgather((n_threads(), N_CORES)), strict=True))
    levels = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in ("single", "funneled", "serialized", "multiple")}
    answer: dict[str, Any] = {
        "versions": versions,
        "mpi": " ".join(re.split(r"[\n,\0]", MPI.Get_library_version())[0].split()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": levels[MPI.Query_thread()],
        "ranks": comm.size,
        "hosts": comm.allgather(MPI.Get_processor_name()),
        "threads": threads,
        "cores": cores,
    }
    if options.measure:
        machine = measure(comm, emulated_speed=speed)
        answer["machine"] = as_json(machine)
        if options.output:
            agree(comm, lambda: write_machine(machine, options.output) if comm.rank == 0 else None)
            answer["output"] = options.output
    return answer


def _describe(answer: dict[str, Any]) -> list[str]:
    lines = [", ".join(f"{name} {version}" for name, version in answer["versions"].items())]
    if answer["mpi"] is None:
        return [*lines, answer["reason"]]
    size, hosts = answer["ranks"], answer["hosts"]
    n_hosts = len(set(hosts))
    lines += [
        f"{answer['mpi']}; MPI standard {answer['standard']}; thread level {answer['thread_level']}",
        f"{counted(size, 'rank')} on {counted(n_hosts, 'host')}",
    ]
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, its in enumerate(hosts) if its == host]
        if text := crowded(len(ranks), max(answer["threads"][rank] for rank in ranks), answer["cores"][ranks[0]]):
            lines.append(f"{host}: {text}")
    if "machine" in answer:
        machine = Machine(**{name: answer["machine"][name] for name in (*FIELDS, *WAITS)})
        return lines + _table(machine) + written(answer.get("output"))
    for host in dict.fromkeys(hosts):
        lines.append(f"  {host}: {named_ranks([rank for rank, its in enumerate(hosts) if its == host])}")
    return lines


def _table(machine: Machine) -> list[str]:
    """Return a line per rank, and one per pair of hosts."""
    top = machine.speeds.max()
    ranks = [
        (str(rank), host, f"{speed / top:.3f}", f"{speed:,.0f}")
        for rank, (host, speed) in enumerate(zip(machine.hosts, machine.speeds, strict=True))
    ]
    header = ("rank", "host", "speed", "million mult-adds/s")
    lines = Table(header, ranks, words=(1,), most=MOST_LINES).fitted().splitlines()
    hosts = list(dict.fromkeys(machine.hosts))[:8]
    for k, one in enumerate(hosts):
        for other in hosts[k:]:
            if (cost := machine.between(one, other)) is not None:
                where = f"within {one}" if one == other else f"{one} to {other}"
                speed = f"{1e-6 / cost[1]:,.0f} MB/s" if cost[1] else "bandwidth too high to measure"
                lines.append(f"messages {where}: {cost[0] * 1e6:,.2f} us, {speed}")
    if machine.size > 1:
        q, wait_s = float(np.mean(machine.wait_probability)), float(np.mean(machine.wait_s))
        lines.append(f"exchanges of computing ranks: a rank waits in {q:.0%} of them (q), {wait_s * 1e6:,.1f} us each (Q)")
    return lines


def warmup(_options: object) -> Output:
    """Compile or load the kernels of the library; return the `seconds` that this took."""
    from lb_mpi.arranging.arrange import arrange
    from lb_mpi.machine import Machine
    from lb_mpi.partitioning.partition import EFFORTS, partition
    from lb_mpi.rebalancing.rebalance import compile_kernels
    from lb_mpi.searching import uts

    began = time.perf_counter()
    for effort in EFFORTS:
        partition("mesh:20x20", 4, effort=effort)
    costs = np.full((4, 4), 1e-6) * ~np.eye(4, dtype=bool)
    partition("mesh:20x20", 4, aim="time", machine=Machine(("a", "a", "b", "b"), np.ones(4), costs, costs))
    partition("mesh:2x2", 3)  # no vertex is light
    compile_kernels()
    arrange("mesh:2x2", [1, 2, 3, 4])
    uts.compile_kernels()
    seconds = time.perf_counter() - began
    lines = [f"all kernels are compiled ({seconds:.1f} s); later runs read them from the cache"]
    return Output({"seconds": seconds}, lines)


def slurm_script(_options: object) -> Output:
    """Return a batch script that starts a program with `run` on the nodes of a job."""
    script = resources.files("lb_mpi.cli").joinpath("slurm.sbatch").read_text()
    return Output({"script": script}, [script.rstrip("\n")])
