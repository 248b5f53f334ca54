"""./launch/run: start a program on a list of hosts with the MPI that is installed.

Before the start: mpiexec and mpi4py belong together, each host is reached, has the same versions, and sees this folder.
While it runs: each host gives signs of life.  After it, however it ended: nothing of it is left on any host.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lb_mpi.hosts import Host, read_hosts
from lb_mpi.launching import commands, limit
from lb_mpi.launching.mpiexec import THREADS, Mpiexec, command, fill, identify
from lb_mpi.launching.watch import LOOK_S, SIGN_S, Watch, is_here, launcher

_OPEN_MPI_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # it refuses to run as root


def variables(mpi: Mpiexec, given: Mapping[str, str], *, emulated: bool) -> dict[str, str]:
    """Return the variables for mpiexec: `given`, and one thread a rank, unless they say otherwise."""
    own = dict.fromkeys(THREADS, "1")
    if emulated:  # or UCX would find out that all hosts have one memory
        own |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
    if mpi.is_open_mpi:
        own["OMPI_MCA_osc"] = "^ucx"  # its one-sided component prints a complaint for every shared-memory window
        own |= _OPEN_MPI_ROOT if os.geteuid() == 0 else {}
    return {**own, **given}


def interpreter(program: Sequence[str]) -> str:
    """The Python that the program is run by: of its words the first that is one; without any, this one."""
    for word in program:
        if Path(word).name.startswith("python") and (found := shutil.which(word)):
            return os.path.abspath(found)
    return sys.executable


def find(what: str) -> str:
    """The full path of a command; ValueError when there is none."""
    found = shutil.which(what)
    if found is None:
        raise ValueError(f"{what}: not found: expected a command")
    return os.path.abspath(found)


def arranged(text: str, hosts: Sequence[Host], slots: Sequence[int]) -> list[int]:
    """Return `slots`, the host of each, in the order in which diffusion on the named graph converges fastest."""
    try:
        import lb_mpi
        from lb_mpi.graph import parse
    except ImportError as error:
        raise ValueError(f"--arrange needs lb_mpi and what it depends on: {error}") from None
    graph = parse(text)
    if graph.n != len(slots):
        raise ValueError(
            f"--arrange {text}: has {graph.n} vertices, and there are {len(slots)} ranks: expected as many"
        )
    positions = lb_mpi.arrange(graph, [hosts[index].speed for index in slots]).positions
    return [slots[position] for position in positions]


def supervise(argv: Sequence[str], env: Mapping[str, str], mark: str, watch: Watch) -> int:
    """Run mpiexec for as long as all hosts live; return its exit code, or 1 when a host is gone.

    Whoever was killed, a host or a rank, is named.
    """
    process = None
    try:
        with limit.held():
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None:
            gone = watch.lost()
            say(*watch.killed(), *gone)
            if gone:
                return 1
            time.sleep(LOOK_S)
        code = process.returncode
        gone = watch.silent(SIGN_S)  # Open MPI's mpiexec may end with 0 when a host has died
        say(*watch.killed(), *gone)
        if code:
            say(f"mpiexec ended with exit code {code}" if code > 0 else f"mpiexec died by signal {-code}")
        return (code if code >= 0 else 128 - code) or int(bool(gone))
    finally:
        limit.end(mark, process)


def say(*lines: str) -> None:
    """Tell people."""
    for line in lines:
        print(f"run: {line}", file=sys.stderr, flush=True)


def parser(prog: str) -> argparse.ArgumentParser:
    """Make the command line."""
    top = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s --hosts FILE [options] -- PROGRAM [ARGUMENTS]\n       %(prog)s --hosts FILE --check",
        description="Start a program on a list of hosts, with MPICH or Open MPI; see launch/hosts.example. Before the start "
        "it is checked that mpiexec and mpi4py belong together, and that each host is reached, has the same versions, and "
        "sees this folder. When a host dies or a rank is killed, it is named, and all is ended.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--hosts", required=True, metavar="FILE", help="the host list: NAME [slots=N] [speed=X], a host a line"
    )
    top.add_argument("-n", type=int, metavar="N", help="ranks (default: all slots)")
    top.add_argument(
        "--arrange",
        metavar="GRAPH",
        help="which rank runs where: as is best for diffusion on mesh:RxC, torus:RxC, hypercube:D or ring:N, by the speeds "
        "in the host list (default: in the list's order)",
    )
    top.add_argument("--check", action="store_true", help="only check the hosts")
    top.add_argument("--mpiexec", default="mpiexec", metavar="FILE", help="which mpiexec (default: from PATH)")
    top.add_argument("--launcher", metavar="FILE", help="a program that stands for ssh: FILE HOST COMMAND")
    top.add_argument(
        "--emulated",
        action="store_true",
        help="hosts are on one machine: emulate their speeds, use TCP (launch/cluster)",
    )
    top.add_argument(
        "--record", metavar="FOLDER", help="keep a record of the run there, for python -m lb_mpi report FOLDER"
    )
    top.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run on each rank")
    return top


def run(options: argparse.Namespace, program: list[str]) -> int:
    """Check, then start; ValueError or OSError for mistakes."""
    hosts = read_hosts(options.hosts)
    ranks = fill(hosts, options.n)
    if options.arrange:
        ranks = arranged(options.arrange, hosts, ranks)
    mpi = identify(find(options.mpiexec))
    through = find(options.launcher) if options.launcher else None
    used = [hosts[index] for index in sorted(set(ranks))]
    if program:
        program = [find(program[0]), *program[1:]]
    given = {**os.environ, **({"LB_MPI_RECORD": os.path.abspath(options.record)} if options.record else {})}
    mark, env = limit.marked(variables(mpi, given, emulated=options.emulated))
    if any(not is_here(host.name) for host in used):
        find(launcher(through)[0])
    python = interpreter(program)
    argv = command(mpi, hosts, ranks, through, env)
    argv += before(mpi, python, [hosts[index] for index in ranks] if options.emulated else [])
    with Watch((host.name for host in used), launcher(through), python, mark) as watch:
        problems = watch.reach()
        has = watch.here.facts.get("MPI library")
        if has is not None and has != mpi.library:
            problems.insert(0, f"{mpi.path} is of {mpi.library}, but mpi4py of {python} uses {has}: expected the same")
        if problems:
            say(*problems)
            return 1
        counts = Counter(hosts[index].name for index in ranks)
        say(", ".join(f"{name} ({count} rank{'s' * (count > 1)})" for name, count in counts.items()))
        say(", ".join(f"{what} {has}" for what, has in watch.here.facts.items() if what not in ("host", "sources")))
        if options.check:
            return 0
        say(shlex.join([*argv, *program]))
        return supervise([*argv, *program], env, mark, watch)


def before(mpi: Mpiexec, python: str, emulated: Sequence[Host]) -> list[str]:
    """Return what stands before the program: rank.py, and on `emulated` hosts (that of each rank) what slows it down."""
    argv = commands.argv(python, "rank")
    if not emulated:
        return argv
    free = ["--bind-to", "none"] if mpi.is_open_mpi else []  # each host would take the same core first
    speeds = ",".join(f"{host.speed:g}" for host in emulated)
    return [*free, *argv, *commands.argv(sys.executable, "throttle"), "--speeds", speeds]


def main(arguments: Sequence[str], prog: str) -> int:
    """./launch/run."""
    top = parser(prog)
    options = top.parse_args(arguments)
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if bool(program) == options.check:
        top.error("expected a PROGRAM, or --check")
    with limit.interruptible():
        try:
            return run(options, program)
        except (ValueError, OSError) as error:
            print(f"{top.prog}: error: {error}", file=sys.stderr)
            return 2
