"""./launch/run: start a program on a list of hosts, or on this machine, with the installed MPI.

Before the start it checks that mpiexec and mpi4py belong together, and that each host is reachable, has the same versions,
and sees this folder.  During the run, it checks that the hosts answer and the ranks make progress.  Afterwards, nothing of
the run is left on any host.  If a host or a rank died and the program has saved, it may be restarted on the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lb_mpi.cli.run import argv as argv_of
from lb_mpi.cli.run import processes
from lb_mpi.cli.run.command import NOT_FOUND, Mistake, Parser
from lb_mpi.cli.run.hangs import AT_END, PATIENCE, FirstSigns, Hang, awaited, stopped
from lb_mpi.cli.run.hosts import Host, read_hosts
from lb_mpi.cli.run.lines import End
from lb_mpi.cli.run.mpiexec import command, find, identify, link_to, variables
from lb_mpi.cli.run.progress import followed, recorded, remove_records
from lb_mpi.cli.run.rank import written
from lb_mpi.cli.run.restarting import How, Outcome, assign_ranks, decide, how
from lb_mpi.cli.run.watch import POLL_S, SSH, Watch, is_here
from lb_mpi.handlers import deferred
from lb_mpi.signs import SAVE_SIGNAL, SAVED
from lb_mpi.table import counted


def say(*lines: object) -> None:
    """Print lines on stderr for people."""
    for line in lines:
        print(f"run: {line}", file=sys.stderr, flush=True)


def add_arguments(parser: Parser) -> None:
    """Add the arguments of `run`."""
    parser.usage = "%(prog)s [options] -- PROGRAM [ARGUMENTS]\n       %(prog)s [--hosts FILE] --check"
    parser.description = (
        "Start a program on this machine or on the hosts of a hostfile, with MPICH or Open MPI. Before the start, this "
        "command checks that mpiexec and mpi4py belong together, and that each host can be reached, has the same versions, "
        "and has this folder. If a host dies, or if a rank is killed or hangs, it names the host or rank and ends the "
        "program, or starts it again (--restarts). The exit code is that of mpiexec, or one of ours (lb_mpi --help)."
    )
    parser.add_argument("--hosts", metavar="FILE",
        help="hostfile, one host per line: NAME [slots=N] [speed=X] (default: this machine, with -n slots)")
    parser.add_argument("-n", type=int, metavar="N",
        help="number of ranks (default: all slots; without a hostfile, one for each core)")
    parser.add_argument("--restarts", type=int, default=0, metavar="N",
        help="if a host or a rank dies or hangs, start the same command again on the remaining hosts, at most N times. "
        "If nothing was saved since the start: not after a hang, and not if the same rank dies twice by the same signal. "
        "Never if the program itself fails")
    parser.add_argument("--hang-s", type=float, default=60.0, metavar="S",
        help="report a rank that hangs for S seconds, with its Python stack, and end or restart the run (default: 60; 0: "
        "never). A rank hangs if it is stopped; if all others wait for it in lb_mpi while it is idle outside or has ended; "
        "if all ranks wait; or if its program has not begun after S seconds (at least 30). "
        f"A rank that computes outside lb_mpi, or is blocked in MPI, has {PATIENCE} times as long")
    parser.add_argument("--grace-s", type=float, default=10.0, metavar="S",
        help="after Ctrl-C, SIGTERM or SIGUSR1, a program that can save has S seconds to do so; a second Ctrl-C ends it at "
        "once. After SIGUSR1, a program that cannot save continues")
    parser.add_argument("-q", "--quiet", action="store_true",
        help="print only what goes wrong: no hosts, versions, command line")
    parser.add_argument("--check", action="store_true", help="only check the hosts")
    parser.add_argument("--emulated", action="store_true",
        help="the hosts are virtual ones, made by `cluster`: emulate their speeds, and use TCP")
    parser.add_argument("--record", metavar="FOLDER",
        help="write a record of the run (after a restart: of the last start) to FOLDER, for python -m lb_mpi report FOLDER")
    parser.add_argument("--progress", action="store_true",
        help="show during the run how much is done, and how busy the ranks are, in a line that changes; without a terminal, "
        "print a line every ten seconds. With --hosts, this needs --record")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="program to run on each rank")


def main(options: argparse.Namespace) -> int:
    """Run `run`."""
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if bool(program) == options.check:
        raise ValueError("expected a PROGRAM, or --check")
    with processes.interruptible("run: "):
        return run(options, program)


def run(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Check, start, and restart after deaths as often as allowed; ValueError or OSError for mistakes."""
    for name in ("restarts", "hang_s", "grace_s"):
        if not 0 <= (value := getattr(options, name)) < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} {value:g}: expected 0 or more")
    with contextlib.ExitStack() as stack:
        record = options.record or None
        if options.progress and record is None:
            if options.hosts:
                raise ValueError("--progress with --hosts: expected also --record FOLDER, which all hosts see")
            record = stack.enter_context(tempfile.TemporaryDirectory(prefix="lb_mpi-", ignore_cleanup_errors=True))
        job = MpiJob(options, program, record)
        if record is not None:
            stack.enter_context(recorded(record))
            if options.progress:
                stack.enter_context(followed(record))
        n_restarts, before = 0, None  # the outcome of the previous start
        while not isinstance(outcome := job.start(before), int):
            decision = decide(outcome, n_restarts, options.restarts, before)
            if decision.why:
                say(decision.why)
            if not decision.again:
                return decision.code
            n_restarts, before = n_restarts + 1, outcome
        return outcome


class MpiJob:
    """A job that is started, and restarted; ValueError or OSError for mistakes in `options`.

    `program` : its command line; empty: only check the hosts
    `record` : the folder of its records, those of the last start
    """

    def __init__(self, options: argparse.Namespace, program: Sequence[str], record: str | None) -> None:
        here = Host(socket.gethostname(), max(options.n or len(os.sched_getaffinity(0)), 1))
        self.hosts = read_hosts(options.hosts) if options.hosts else [here]
        self.ranks = fill(self.hosts, options.n)
        self.mpi = identify(find("mpiexec"))
        try:
            self.program = [find(program[0]), *program[1:]] if program else []
        except ValueError as error:
            raise Mistake(str(error), NOT_FOUND) from None
        self.python = interpreter(self.program)
        self.options = options
        self.recording: dict[str, str] = {}  # variables for the ranks
        if record is not None:
            self.recording["LB_MPI_RECORD"] = os.path.abspath(record)

    def start(self, before: Outcome | None) -> Outcome | int:
        """Check the hosts, and start; return the outcome, or the exit code if nothing was started.

        The first time, an unusable host is an error.  After a start `before`, it is left out, and the rest of the list is
        used, also the hosts that were gone then, if they answer.

        Ctrl-C and similar signals end the run: SystemExit or KeyboardInterrupt, unless the program saves first.  SIGUSR1
        only requests a save: a program that can't save goes on.
        """
        env = variables(self.mpi, {**os.environ, **self.recording}, emulated=self.options.emulated)
        run_id, env = processes.with_run_id(env)
        wanted = sorted(set(self.ranks)) if before is None else range(len(self.hosts))
        names = [self.hosts[index].name for index in wanted]
        with contextlib.ExitStack() as stack:
            link = None if all(map(is_here, names)) else stack.enter_context(link_to(find(SSH[0])))
            word = link.parent.name if link else ""
            watch = stack.enter_context(Watch(names, SSH, self.python, run_id, word))
            ranks = self.assigned(watch, before)
            if not ranks:
                return 1
            watch.watch_only({self.hosts[index].name for index in ranks})
            if not self.options.quiet:
                self.describe(watch, ranks, env, first=before is None)
            if not self.program:
                return 0
            process = None
            try:
                with deferred() as signals:
                    argv = [*self.argv(ranks, env, link), *map(written, self.program)]
                    if "LB_MPI_RECORD" in self.recording:
                        remove_records(self.recording["LB_MPI_RECORD"])
                    process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
                    hosts = [self.hosts[index].name for index in ranks]
                    run = _Run(process, watch, hosts, signals, self)
                    while run.goes_on():
                        time.sleep(POLL_S)
                    return run.outcome()
            finally:
                processes.end(run_id, process)

    def describe(self, watch: Watch, ranks: Sequence[int], env: Mapping[str, str], *, first: bool) -> None:
        """Print hosts; at the `first` start, also versions and the command line."""
        counts = Counter(self.hosts[index].name for index in ranks)
        say(", ".join(f"{name} ({counted(count, 'rank')})" for name, count in counts.items()))
        if first:
            say(", ".join(f"{what} {has}" for what, has in watch.here.facts.items() if what not in ("host", "sources")))
            say(*[shlex.join([*self.argv(ranks, env), *self.program])] * bool(self.program))

    def argv(self, ranks: Sequence[int], env: Mapping[str, str], link: Path | None = None) -> list[str]:
        """Return the command line up to the program: mpiexec, rank.py, and a throttle on emulated hosts."""
        argv = command(self.mpi, self.hosts, ranks, env, link)
        rank = argv_of(self.python, "rank")
        if not self.options.emulated:
            return argv + rank
        free = ["--bind-to", "none"] if self.mpi.is_open_mpi else []  # each host would take the same core first
        speeds = ",".join(f"{self.hosts[index].speed:g}" for index in ranks)
        return [*argv, *free, *rank, *argv_of(sys.executable, "throttle"), "--speeds", speeds]

    def assigned(self, watch: Watch, before: Outcome | None) -> list[int]:
        """Wait for the hosts; return the host of each rank; [], with printed reasons, if the program can't be started."""
        problems = watch.reach()
        has = watch.here.facts.get("MPI library")
        if has is not None and has != self.mpi.library:
            say(f"{self.mpi.path} belongs to {self.mpi.library}, but mpi4py of {self.python} uses {has}: expected the same")
            return []
        if before is None or watch.here.name in problems:
            say(*problems.values())
            return [] if problems else self.ranks
        dead = {index: problems[host.name] for index, host in enumerate(self.hosts) if host.name in problems}
        ranks, words = assign_ranks(self.hosts, dead, len(self.ranks))
        say(*words)
        return ranks


def fill(hosts: Sequence[Host], n: int | None) -> list[int]:
    """Return (n,) the host of each rank, slot by slot; n None: all slots.  ValueError for more ranks than slots."""
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots)]
    if n is not None and n < 1:
        raise ValueError(f"-n {n}: expected at least 1")
    if n is not None and n > len(slots):
        raise ValueError(f"-n {n}: expected 1 to {len(slots)}, the slots of these hosts")
    return slots[:n]


def interpreter(program: Sequence[str]) -> str:
    """Return the Python that runs the program: the first word of `program` that is one; without any, this one."""
    for word in program:
        if Path(word).name.startswith("python") and (found := shutil.which(word)):
            return os.path.abspath(found)
    return sys.executable


DEATH_S = 10.0  # time for mpiexec to end the other ranks after a death
STACK_S = 5.0
NEWEST_S = 0.4  # for the ranks' last reports after Ctrl-C: all is over within a second
LAST_S = 10.0  # for the same where nobody waits: a restart needs the number of the last save, also from a busy host
MOST_STACKS = 4  # number of stacks shown
MOST_NAMED = 8  # ranks without a reported end


class _Run:
    """A run under way: mpiexec is `process`, `hosts` are those of the ranks, and `signals` are the signals received.

    It prints what dies or hangs.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], watch: Watch, hosts: Sequence[str], signals: list[int], job: MpiJob
    ) -> None:
        self._process, self._watch, self._hosts, self._signals = process, watch, hosts, signals
        self._hang_s, self._grace_s = job.options.hang_s, job.options.grace_s
        self._began = time.monotonic()
        self._ends: list[tuple[float, End]] = []  # except regular ones
        self._n_regular, self._last_s = 0, 0.0  # number of regular ends, time of the last one
        self._unreported = set(range(len(hosts)))  # ranks without a regular end
        self._gone: list[str] = []
        self._hung: list[Hang] = []
        self._start = FirstSigns(hosts, self._hang_s)
        self._asked: tuple[float, int] | None = None  # time of the request to save, and number of signals then
        self._n_saved = math.inf  # saves before it
        self._wrong: list[str] = []  # lines about processes other than ranks that hang

    def goes_on(self) -> bool:
        """Return whether to wait for it any longer: until it ends, a host is gone, or a rank or mpiexec hangs."""
        self._gone = self._watch.lost()
        self._hear()
        now = time.monotonic() - self._began
        if self._process.poll() is not None or self._gone:
            return False
        if self._signals and not self._goes_on_to_save(now):
            return False
        if any(end.code <= 0 and now > at_s + DEATH_S for at_s, end in self._ends):
            return False
        states = self._watch.states()
        at_start = self._start.stuck(now, states)
        self._hung = stopped(states, self._hang_s) or at_start or awaited(states, len(self._hosts), self._hang_s)
        if self._hang_s and self._n_regular == len(self._hosts) and now > self._last_s + self._hang_s:
            self._wrong = [f"all ranks have ended, but mpiexec has not for {now - self._last_s:.0f} s"]
        return not self._hung and not self._wrong

    def outcome(self) -> Outcome:
        """Return how it ended, after all hosts have reported."""
        code = self._process.poll()
        if code is not None:
            self._gone = self._watch.silent()  # Open MPI's mpiexec may exit with 0 after a host has died
        else:
            self._watch.hear(NEWEST_S if self._signals else LAST_S)  # the ranks' latest reports, perhaps of a save
        self._hear()
        seconds = time.monotonic() - self._began
        say(*self._gone, *self._hung, *self._wrong)
        for rank in [hang.rank for hang in self._hung if hang.how != AT_END][:MOST_STACKS]:
            stack = self._watch.stack(rank, STACK_S).rstrip().splitlines()
            say(f"Python stack of rank {rank}:" if stack else f"no Python stack from rank {rank}", *stack)
        if code and not self._signals:
            alone = "" if self._ends else ", and no rank has reported why"
            say(f"mpiexec ended with exit code {code}{alone}" if code > 0 else f"mpiexec died by signal {-code}")
        states = self._watch.states()
        n_saved = sum(state.n_saved for state in states)
        found = Outcome(
            code=1 if code is None else code if code >= 0 else 128 - code,
            ends=self._ends,
            unreported=[] if self._n_regular >= len(self._hosts) else sorted(self._unreported),
            gone=self._gone,
            hung=bool(self._hung or self._wrong),
            n_saved=n_saved,
            saved=max((state.saved for state in states), default=0),
            saved_on_request=n_saved > self._n_saved,
            seconds=seconds,
        )
        if not code and how(found) is How.DIED and not self._ends:
            for one in found.unreported[:MOST_NAMED]:
                say(f"rank {one} on host {self._hosts[one]} has not reported its end, but mpiexec has ended with code 0")
        if how(found) in (How.STOPPED, How.DONE):  # it has saved, or ended meanwhile
            self._signals.clear()
        return found

    def _hear(self) -> None:
        """Process the ends of ranks; print which was killed, and which failed first."""
        now = time.monotonic() - self._began
        for end in self._watch.ends():
            if end.regular:
                self._n_regular, self._last_s = self._n_regular + 1, now
                self._unreported -= {int(end.rank)} if end.rank.isdecimal() else set()
                continue
            before = [one for _, one in self._ends]
            if end.code < 0 or not (end.code == SAVED or any(one.code >= 0 for one in before)):  # of failures, the first
                say(end)
            self._ends.append((now, end))

    def _goes_on_to_save(self, now: float) -> bool:
        """After a signal, let the program save if it can, and wait for that; a second signal ends it."""
        if self._asked is None:
            self._watch.hear(NEWEST_S)
            if not any(state.saves for state in self._watch.states()):
                if set(self._signals) != {SAVE_SIGNAL}:
                    return False
                say(f"{SAVE_SIGNAL.name}: the program continues, since it cannot save at a signal (lb_mpi.asked_to_stop)")
                self._signals.clear()
                return True
            say(f"the program has {self._grace_s:g} s to save and stop; a second signal ends it at once")
            self._n_saved = sum(state.n_saved for state in self._watch.states())
            self._watch.send("save")
            self._asked = now, len(self._signals)
        asked_s, n_signals = self._asked
        if now > asked_s + self._grace_s:
            say(f"the program has not stopped within {self._grace_s:g} s")
            return False
        return len(self._signals) == n_signals
