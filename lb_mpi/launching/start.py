"""./launch/run: start a program on a list of hosts, or on this machine, with the MPI that is installed.

Before the start: mpiexec and mpi4py belong together, each host is reached, has the same versions, and sees this folder.
While it runs: each host gives signs of life, and its ranks go on.  After it, however it ended: nothing of it is left on any
host.  When a host or a rank has died and the program has saved something, it may be started again on what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lb_mpi.hosts import Host, read_hosts
from lb_mpi.launching import commands, limit
from lb_mpi.launching.diary import Diary
from lb_mpi.launching.followed import followed
from lb_mpi.launching.mpiexec import THREADS, Mpiexec, command, fill, identify
from lb_mpi.launching.restarting import Outcome, decide, place
from lb_mpi.launching.starting import Start
from lb_mpi.launching.supervise import Patience, say, supervise
from lb_mpi.launching.watch import Watch, is_here, launcher
from lb_mpi.record.launches import END, RESTART

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
    """The full path of a command, in PATH or beside this interpreter; ValueError when there is none.

    An mpiexec from a wheel lies beside the interpreter, and `python -m lb_mpi run` needs no activated environment.
    """
    found = shutil.which(what) or shutil.which(what, path=os.path.dirname(sys.executable))
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


def parser(prog: str) -> argparse.ArgumentParser:
    """Make the command line."""
    top = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [-n N] [--hosts FILE] [options] -- PROGRAM [ARGUMENTS]\n       %(prog)s [--hosts FILE] --check",
        description="Start a program on this machine or on a list of hosts, with MPICH or Open MPI; see "
        "launch/hosts.example. Before the start it checks that mpiexec and mpi4py belong together, and that each host can "
        "be reached, has the same versions, and sees this folder. When a host dies, or a rank is killed or hangs, it says "
        "which one, and ends the program, or starts it again (--restarts).",
        epilog="Exit codes: that of mpiexec; 75: the program was told to stop, and has saved; 124: a rank hung; 2: a "
        "mistake in the command line.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--hosts",
        metavar="FILE",
        help="the host list, one host per line: NAME [slots=N] [speed=X] (default: this machine, with -n slots)",
    )
    top.add_argument(
        "-n", type=int, metavar="N", help="number of ranks (default: all slots; without a host list, one for each core)"
    )
    top.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="when a host or a rank dies or hangs, start the same command again on the remaining hosts, at most N times, "
        "and only if the program has saved something since its start; never when it fails by itself (default: %(default)s)",
    )
    top.add_argument(
        "--hang-s",
        type=float,
        default=60.0,
        metavar="S",
        help="a rank hangs if, for S seconds, it neither computes nor answers in a call of lb_mpi, or is stopped; or if all "
        "others wait for it in lb_mpi, and it doesn't compute, is blocked in MPI, or has come to its end; or if, for at "
        "least 30 s, its program doesn't begin, or says nothing in a restart. It is named, with its Python stack, and the "
        "run is ended or restarted; 0: never (default: %(default)g)",
    )
    top.add_argument(
        "--grace-s",
        type=float,
        default=10.0,
        metavar="S",
        help="after Ctrl-C, SIGTERM or SIGUSR1 a program that can save has S seconds for that; a second Ctrl-C ends it at "
        "once; at SIGUSR1 one that can't save goes on (default: %(default)g)",
    )
    top.add_argument(
        "--arrange",
        metavar="GRAPH",
        help="place the ranks so that diffusion on this graph (mesh:RxC, torus:RxC, hypercube:D or ring:N) converges "
        "fastest, given the speeds in the host list (default: the order of the list)",
    )
    top.add_argument("--check", action="store_true", help="only check the hosts")
    top.add_argument("--mpiexec", default="mpiexec", metavar="FILE", help="which mpiexec (default: from PATH)")
    top.add_argument("--launcher", metavar="FILE", help="a program to use instead of ssh, called as FILE HOST COMMAND")
    top.add_argument(
        "--emulated",
        action="store_true",
        help="all hosts are on one machine (launch/cluster): emulate their speeds, and use TCP",
    )
    top.add_argument(
        "--record", metavar="FOLDER", help="keep a record of the run there, for python -m lb_mpi report FOLDER"
    )
    top.add_argument(
        "--progress",
        action="store_true",
        help="show while it runs how much is done, and how busy each host or rank is; without a terminal, print a line "
        "every ten seconds",
    )
    top.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run on each rank")
    return top


class Job(NamedTuple):
    """What is to be run, each time that it is started."""

    hosts: list[Host]
    ranks: list[int]  # (n,) the host of each, as wanted
    arrange: str | None  # the graph by which they are arranged
    mpi: Mpiexec
    launcher: str | None  # what stands for ssh
    program: list[str]  # empty: the hosts are only checked
    emulated: bool
    patience: Patience
    restarts: int  # at most
    diary: Diary
    reached: set[str]  # hosts that have come to this one over the network between them

    def start(self, before: Outcome | None, *, may_restart: bool) -> Outcome | int:
        """Check the hosts, and start; how it has ended, or the exit code when it hasn't started.

        A host that won't do is an error the first time.  After a start `before`: it's left out, and all others of the list
        are used; those that were gone then, too, if they answer about as soon.
        """
        again, gone = before is not None, tuple(before.gone) if before else ()
        mark, env = limit.marked(variables(self.mpi, {**os.environ, **self.diary.variables()}, emulated=self.emulated))
        python = interpreter(self.program)
        names = [self.hosts[index].name for index in (range(len(self.hosts)) if again else sorted(set(self.ranks)))]
        linked = contextlib.nullcontext() if all(map(is_here, names)) else link_to(find(launcher(self.launcher)[0]))
        self.argv(self.ranks, python, env)  # a host that can't be named is told before any is asked
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(linked)
            word = link.parent.name if link else ""
            watch = Watch(
                names, launcher(self.launcher), python, mark, word, may_restart=may_restart, reached=self.reached
            )
            stack.enter_context(watch)
            ranks = self.placed(watch, python, gone, again=again)
            if not ranks:
                return 1
            counts = Counter(self.hosts[index].name for index in ranks)
            watch.keep(counts)
            say(", ".join(f"{name} ({count} rank{'s' * (count > 1)})" for name, count in counts.items()))
            if not again:
                facts = watch.here.facts.items()
                say(", ".join(f"{what} {has}" for what, has in facts if what not in ("host", "sources")))
            if not self.program:
                return 0
            if not again:
                say(shlex.join([*self.argv(ranks, python, env), *self.program]))
            self.diary.begin(f"{len(ranks)} rank{'s' * (len(ranks) > 1)} on {', '.join(counts)}")
            names = [self.hosts[index].name for index in ranks]
            begun = Start(names, self.patience.hang_s, before.first_word_s if before else None)
            argv = [*self.argv(ranks, python, env, link), *self.program]
            return supervise(argv, env, mark, watch, self.patience, self.diary, begun)

    def argv(self, ranks: Sequence[int], python: str, env: Mapping[str, str], link: Path | None = None) -> list[str]:
        """Return the command line up to the program."""
        argv = command(self.mpi, self.hosts, ranks, self.launcher, env, link)
        return argv + before(self.mpi, python, [self.hosts[index] for index in ranks] if self.emulated else [])

    def placed(self, watch: Watch, python: str, gone: Collection[str], *, again: bool) -> list[int]:
        """Wait for the hosts; the host of each rank.  None, with words, if it can't be started."""
        problems = watch.reach(gone)
        has = watch.here.facts.get("MPI library")
        if has is not None and has != self.mpi.library:
            say(f"{self.mpi.path} is of {self.mpi.library}, but mpi4py of {python} uses {has}: expected the same")
            return []
        if not again or watch.here.name in problems:
            say(*problems.values())
            return [] if problems else self.ranks
        dead = {index: problems[host.name] for index, host in enumerate(self.hosts) if host.name in problems}
        ranks, words = place(self.hosts, dead, len(self.ranks))
        say(*words)
        if self.arrange and len(ranks) < len(self.ranks):
            say(f"not arranged: {self.arrange} has {len(self.ranks)} vertices")
        elif self.arrange:
            return arranged(self.arrange, self.hosts, ranks)
        return ranks


def run(options: argparse.Namespace, program: list[str]) -> int:
    """Check, start, and start again what has died; ValueError or OSError for mistakes."""
    for name in ("restarts", "hang_s", "grace_s"):
        if not 0 <= (value := getattr(options, name)) < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} {value:g}: expected 0 or more")
    with contextlib.ExitStack() as stack:
        record = options.record or None
        if options.progress and record is None:  # here, where all hosts see it
            record = stack.enter_context(tempfile.TemporaryDirectory(prefix=".lb_mpi-progress-", dir=os.getcwd()))
        job = make(options, program, record)
        if options.progress and record is not None:
            stack.enter_context(followed(record))
        return repeat(job)


def make(options: argparse.Namespace, program: list[str], record: str | None) -> Job:
    """Find out what is to be run, recorded in the folder `record`; ValueError or OSError for mistakes."""
    here = Host(socket.gethostname(), max(options.n or n_cores(), 1))
    hosts = read_hosts(options.hosts) if options.hosts else [here]
    ranks = fill(hosts, options.n)
    return Job(
        hosts,
        arranged(options.arrange, hosts, ranks) if options.arrange else ranks,
        options.arrange,
        identify(find(options.mpiexec)),
        find(options.launcher) if options.launcher else None,
        [find(program[0]), *program[1:]] if program else [],
        options.emulated,
        Patience(options.hang_s, options.grace_s),
        options.restarts,
        Diary(record, shown=options.progress),
        set(),
    )


def repeat(job: Job) -> int:
    """Start it, and start again what has died, at most so often; the exit code."""
    n_restarts, before = 0, None  # the start before
    while not isinstance(outcome := job.start(before, may_restart=n_restarts < job.restarts), int):
        decision = decide(outcome, n_restarts, job.restarts)
        if decision.why:
            say(decision.why)
        job.diary.tell(RESTART if decision.again else END, decision.why or f"exit code {decision.code}")
        if not decision.again:
            return decision.code
        n_restarts, before = n_restarts + 1, outcome
    return outcome


@contextlib.contextmanager
def link_to(ssh: str) -> Iterator[Path]:
    """Link to `ssh`, under its own name, in a new folder that is removed at the end of the block.

    Only mpiexec on this host follows the link.  MPICH does not quote its path where it passes it on to a shell.
    """
    place = tempfile.gettempdir()
    place = place if place == shlex.quote(place) else "/tmp"
    with tempfile.TemporaryDirectory(prefix="lb_mpi-", dir=place, ignore_cleanup_errors=True) as folder:
        link = Path(folder, os.path.basename(ssh))
        link.symlink_to(ssh)
        yield link


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


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
