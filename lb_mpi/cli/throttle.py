"""./launch/throttle: run any program as on a slower machine, without privileges.

The program and all its descendants are stopped and continued (SIGSTOP, SIGCONT) in slices of milliseconds.  As with
`lb_mpi.throttle`, c seconds of CPU time last at least c / speed seconds.  The account is kept in used CPU time and not in
allowed time; otherwise, speeds would be off by half on a busy machine.

A program that waits by itself saves nothing up.  Delays by others, the scheduler or this program's late waking count as
rest, so that CPU time / wall-clock time is the requested speed if the machine can deliver it.  If it can't (more ranks than
cores), nothing is stopped, and the program runs as fast as it can.

If root starts it, it does not wait for a core itself, so slices stay short where all cores are in use.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from lb_mpi.checks import comma_list, emulated_speed, emulated_speeds
from lb_mpi.cli.run import processes
from lb_mpi.cli.run.command import FAILED, Mistake, Parser
from lb_mpi.cli.run.host import descendants
from lb_mpi.cli.run.options import add_slow_ranks
from lb_mpi.cli.run.rank import FORWARDED, NUMBER, become, end_as, number, prctl, raise_priority
from lb_mpi.emulate import THROTTLED, Stops, throttled
from lb_mpi.table import counted

PERIOD_S = 5e-3  # of one slice to run and one to rest, if the speed allows it
RUN_S = (1e-3, 4e-3)  # the shortest and the longest slice to run; after shorter ones, more time goes to cold caches
REST_S = 0.1e-3  # a shorter rest is postponed
POLL_S = 20e-3  # between two polls for signals
SCAN_S = 50e-3  # between two scans for new descendants
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
CREDIT_S = 50e-3  # limit of delays by others that are made up for at once
LOST, LOST_S = 0.1, 0.2  # fraction of the time a program wants, and seconds, that others may use before a warning


class Activity(NamedTuple):
    """The state of a thread at one time."""

    runnable: bool  # runs, or would if it had a core
    n_waits: int  # number of times so far that it has waited, or was stopped
    queued_s: float  # time so far in which it was ready but waited for a core


class Program:
    """A program in a separate session, which gets no signals from a terminal: forward them with `send`.

    Descendants that lose their parent become children of this process.  If this process is killed, a guard process ends all
    descendants, even stopped ones, whatever their parent is by then; the kernel kills the program itself.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], mask: set[int]) -> None:
        """Start `argv` with the variables `env` and the signal mask `mask`; this process must have no other thread."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._run_id, env = processes.with_run_id(env)
        self._guard, self._leash = _post_guard(self._run_id)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            become(argv, env, mask, parent, "throttle")
        self._files = [os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY) for name in ("status", "schedstat")]
        self.status: int | None = None  # as from waitpid, once it has ended
        self._cpu_s = {self.pid: 0.0}  # of each process, also of those reaped since the last scan
        self._reaped_s = 0.0  # of those reaped before
        self._next_scan = 0.0

    def cpu_s(self) -> float:
        """CPU time so far of all threads and descendants, to a few microseconds (10 ms for descendants that have ended)."""
        if (now := time.monotonic()) >= self._next_scan:
            self._scan()
            self._next_scan = now + SCAN_S
        for pid in self._cpu_s:
            with contextlib.suppress(OSError):  # ended: its CPU time is found with its parent at the next scan
                self._cpu_s[pid] = time.clock_gettime(~pid << 3 | 2)  # the id that clock_getcpuclockid(3) gives
        return sum(self._cpu_s.values()) + self._reaped_s

    def activity(self) -> Activity:
        """Return what its main thread is doing; all zero if it has ended."""
        try:
            status, schedstat = (os.pread(file, 8192, 0) for file in self._files)
        except OSError:
            return Activity(False, 0, 0.0)
        n_waits = status.rpartition(b"\nvoluntary_ctxt_switches:")[2].split(None, 1)[0]
        return Activity(b"\nState:\tR" in status, int(n_waits), int(schedstat.split()[1]) * 1e-9)

    def send(self, number: int) -> None:
        """Send a signal to the program's process group and to descendants outside of it."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)
        for pid in self._cpu_s if len(self._cpu_s) > 1 else ():
            with contextlib.suppress(OSError):
                if os.getpgid(pid) != self.pid:
                    os.kill(pid, number)

    def ended(self) -> bool:
        """Return whether it has ended; reap all processes that have."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.status = ended[1]
        return self.status is not None

    def has_stopped(self) -> bool:
        """Return whether it was stopped since the last call."""
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def close(self) -> None:
        """End its remaining processes, and dismiss the guard."""
        self.send(signal.SIGCONT)
        processes.end(self._run_id)
        sys.stderr.write(processes.cannot_be_ended(processes.end_found(self._remaining)))  # those without the run id
        with contextlib.suppress(OSError):  # another process may have killed it
            os.write(self._leash, b"done")
            os.waitpid(self._guard, 0)
        for file in (self._leash, *self._files):
            os.close(file)

    def _remaining(self) -> set[int]:
        self.ended()
        self._scan()
        return set(self._cpu_s)

    def _scan(self) -> None:
        found: dict[int, float] = {}
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # orphans that were reaped here
        reaped_s = used.ru_utime + used.ru_stime
        for pid in {*descendants(os.getpid())} - {self._guard}:
            with contextlib.suppress(OSError):
                children_cpu_s = processes.stat(pid).children_cpu_s
                found[pid] = self._cpu_s.get(pid, 0.0)
                reaped_s += children_cpu_s
        self._cpu_s, self._reaped_s = found, reaped_s


def _post_guard(run_id: str) -> tuple[int, int]:
    """Fork a process that ends all those of `run_id` when this one dies; return its pid and the pipe that dismisses it."""
    read_end, write_end = os.pipe()
    guard = os.fork()
    if guard:
        os.close(read_end)
        return guard, write_end
    with contextlib.suppress(BaseException):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()  # a signal to the group of this process doesn't reach the guard
        os.chdir("/")
        processes.silence(0, 1, 2)  # mpiexec waits until its pipes are closed
        os.closerange(3, read_end)
        os.closerange(read_end + 1, os.sysconf("SC_OPEN_MAX"))
        if not os.read(read_end, 1):
            processes.end(run_id)
    os._exit(0)


class RestAccount:
    """The rest that a program of relative `speed` owes: its seconds must be CPU seconds / speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._owed_s = 0.0
        self._used_s = self._passed_s = self._lost_s = 0.0

    def rest(self, used_s: float, passed_s: float) -> float:
        """Return the rest owed (0 or less: none) after `used_s` more seconds of CPU time.

        `passed_s`: the time passed meanwhile, without that in which the program waited by itself.
        """
        owed_s = self._owed_s + used_s / self._speed - passed_s
        self._owed_s = max(owed_s, -CREDIT_S)
        self._lost_s += self._owed_s - owed_s
        self._used_s, self._passed_s = self._used_s + used_s, self._passed_s + passed_s
        return self._owed_s

    def warning(self) -> str:
        """Return a warning if other programs made it slower than its speed; "" if not."""
        if self._lost_s <= max(LOST_S, LOST * self._passed_s):
            return ""
        had = self._used_s / self._passed_s
        return f"speed {self._speed:g}: the machine was too busy: while it wanted to compute, it had {had:.2f} of a core"


class UsageWatch:
    """The CPU time used by a program since the last sample, and the time passed."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._now = time.monotonic()
        self._cpu_s = 0.0
        self._activity = program.activity()

    def measure(self, stopped_s: float, n_stops: int) -> tuple[float, float]:
        """Return (used_s, passed_s) since the last sample, in which it was stopped `n_stops` times for `stopped_s` in all.

        A program that was runnable at both samples, and has not waited, wanted the processor all the time.  For one that has
        waited, the times in which it ran, was stopped, or queued for a core are known.
        """
        now, cpu_s, activity = time.monotonic(), self._program.cpu_s(), self._program.activity()
        elapsed_s, used_s = now - self._now, max(cpu_s - self._cpu_s, 0.0)
        n_waits = activity.n_waits - self._activity.n_waits - n_stops
        if not (self._activity.runnable and activity.runnable and n_waits <= 0):
            elapsed_s = min(elapsed_s, used_s + stopped_s + max(activity.queued_s - self._activity.queued_s, 0.0))
        self._now, self._cpu_s, self._activity = now, self._cpu_s + used_s, activity
        return used_s, elapsed_s


def slow_down(program: Program, speed: float, stops: Stops) -> str:
    """Stop and continue `program` until it has ended, with notes in `stops`; forward FORWARDED, which must be blocked.

    Return a warning if it could not be given its speed.
    """
    run_s = min(max(PERIOD_S * speed, RUN_S[0]), RUN_S[1])
    account, watch = RestAccount(speed), UsageWatch(program)
    stopped_s, n_stops = 0.0, 0
    raise_priority()
    while not program.ended():
        _wait(program, run_s)
        rest_s = account.rest(*watch.measure(stopped_s, n_stops))
        stopped_s, n_stops = 0.0, 0
        if rest_s > REST_S and not program.ended():
            began = time.monotonic()
            program.send(signal.SIGSTOP)
            _wait(program, rest_s)
            if program.has_stopped():  # on a busy machine it may have waited for a core until now, only to be stopped
                stopped_s, n_stops = time.monotonic() - began, 1
                stops.add(stopped_s)
            program.send(signal.SIGCONT)
    return account.warning()


def _wait(program: Program, seconds: float) -> None:
    """Wait, at most slightly longer than until a signal comes; forward it."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0.0:
        time.sleep(min(left_s, POLL_S))
        # With a timeout, Python 3.11 invents a signal if this process itself was stopped meanwhile.
        info = signal.sigtimedwait(FORWARDED, 0)
        if info is not None:
            program.send(info.si_signo)
            program.send(signal.SIGCONT)  # a stopped program doesn't handle signals
            return


def own_speed(text: str, variables: Mapping[str, str]) -> float:
    """Return this rank's speed of "0.8,0.4,0.2"; ValueError unless each rank has a valid speed."""
    speeds = emulated_speeds(text, len(text.split(",")))
    found = number(variables)
    if not (found.isascii() and found.isdigit()):
        raise ValueError(f"--speeds: no rank in the environment ({', '.join(NUMBER)}): start with mpiexec, or give --speed")
    size = next((variables[name] for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if variables.get(name)), "")
    if len(speeds) != int(size) if size.isdigit() else len(speeds) <= int(found):
        ranks = f"{size} ranks" if size else f"ranks, of which this is number {found}, counted from 0"
        expected = f"one for each of the {ranks}, with commas between them"
        raise ValueError(f"--speeds has {counted(len(speeds), 'number')}: expected {expected}")
    return speeds[int(found)]


def run(argv: Sequence[str], speed: float, *, report: bool = False) -> NoReturn:
    """Run `argv` at relative `speed`, then exit as it did: with its exit code, or by the same signal."""
    began = time.monotonic()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    stops = Stops(os.environ)
    env = {**os.environ, **stops.variables, THROTTLED: f"{speed * throttled():g}"}
    program = Program(argv, env, mask)
    try:
        warning = slow_down(program, speed, stops)
    finally:
        program.close()
    rank = number(os.environ)
    name = "throttle" if rank == "?" else f"throttle: rank {rank}"
    if warning:
        print(f"{name}: {warning}", file=sys.stderr)
    if report:
        seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        print(
            f"{name}: speed {speed:g}: {cpu_s:.3f} s of CPU time in {seconds:.3f} s, {cpu_s / seconds:.3f}",
            file=sys.stderr,
        )
    assert program.status is not None
    end_as(os.waitstatus_to_exitcode(program.status))


def add_arguments(parser: Parser) -> None:
    """Add the arguments of `throttle`."""
    parser.usage = "mpiexec -n 4 %(prog)s --speeds F,F,... PROGRAM\n       %(prog)s --speed F PROGRAM [ARGUMENTS]"
    parser.description = (
        "Run any program as if on a slower machine: stop and continue it in slices of milliseconds, so that with its "
        "threads and child processes it uses at most the fraction F of one core. This needs Linux, but no privileges. "
        "Signals are passed to the program; the exit code is that of the program."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    add_slow_ranks(which, default="")
    which.add_argument("--speed", metavar="F", help="one speed for all ranks")
    parser.add_argument("--report", action="store_true", help="print the CPU time used, on stderr, at the end")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGUMENTS]", help="program to run")


def main(options: argparse.Namespace) -> NoReturn:
    """Run `throttle`."""
    argv = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not argv:
        raise ValueError("no PROGRAM: expected a program to run")
    try:
        throttled()  # a throttle around this one
        if options.speeds is not None:
            speed = own_speed(options.speeds, os.environ)
        else:
            speed = emulated_speed(comma_list("--speed", options.speed, 1)[0], "--speed")
    except ValueError as error:
        hint = "; did you mean --speeds?" if "," in (options.speed or "") else ""
        raise Mistake(f"{error}{hint}", anywhere=True) from None
    try:
        run(argv, speed, report=options.report)
    except OSError as error:  # other ranks may have none
        raise Mistake(str(error), FAILED, anywhere=True) from None
