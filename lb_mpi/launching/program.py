"""A program with all its descendants: start it, stop and continue it, measure its CPU time, and leave none behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from lb_mpi.launching import limit

FORWARDED = {getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM")}
SCAN_S = 50e-3  # between two looks for new descendants
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


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
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._mark, env = limit.marked(env)
        self._guard, self._leash = _post_guard(self._mark)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            become(argv, env, mask, parent)
        self._files = [os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY) for name in ("status", "schedstat")]
        self.status: int | None = None  # as from waitpid, once it has ended
        self._cpu_s = {self.pid: 0.0}  # of each process, also of those reaped since the last look
        self._reaped_s = 0.0  # of those reaped before
        self._next_look = 0.0

    def cpu_s(self) -> float:
        """CPU time so far of all threads and descendants, to a few microseconds (10 ms for descendants that have ended)."""
        if (now := time.monotonic()) >= self._next_look:
            self._look()
            self._next_look = now + SCAN_S
        for pid in self._cpu_s:
            with contextlib.suppress(OSError):  # ended: its CPU time is found with its parent at the next look
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
        limit.end(self._mark)
        deadline = time.monotonic() + limit.LEFT_S
        while True:
            self.ended()
            self._look()
            if not self._cpu_s:
                break
            if time.monotonic() > deadline:
                sys.stderr.write("".join(map(limit.cannot_be_ended, sorted(self._cpu_s))))
                break
            for pid in self._cpu_s:  # those that have removed their mark
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(1e-3)
        with contextlib.suppress(OSError):  # another process may have killed it
            os.write(self._leash, b"done")
            os.waitpid(self._guard, 0)
        for file in (self._leash, *self._files):
            os.close(file)

    def _look(self) -> None:
        """Update the set of descendants."""
        found: dict[int, float] = {}
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # orphans that were reaped here
        reaped_s = used.ru_utime + used.ru_stime
        unseen = [pid for pid in children(os.getpid()) if pid != self._guard]
        while unseen:
            pid = unseen.pop()
            with contextlib.suppress(OSError):
                fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
                found[pid] = self._cpu_s.get(pid, 0.0)
                reaped_s += (int(fields[13]) + int(fields[14])) * _TICK_S  # cutime, cstime
                unseen += children(pid)
        self._cpu_s, self._reaped_s = found, reaped_s


def children(pid: int) -> list[int]:
    """Return the children of `pid`; OSError if it has ended."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 20)
    finally:
        os.close(file)


def _post_guard(mark: str) -> tuple[int, int]:
    """Fork a process that ends all bearers of `mark` when this one dies; return its pid and the pipe that dismisses it."""
    read_end, write_end = os.pipe()
    guard = os.fork()
    if guard:
        os.close(read_end)
        return guard, write_end
    with contextlib.suppress(BaseException):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()  # a signal to the group of this process doesn't reach the guard
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # mpiexec waits until its pipes are closed
            os.dup2(nothing, number)
        os.closerange(3, read_end)
        os.closerange(read_end + 1, os.sysconf("SC_OPEN_MAX"))
        if not os.read(read_end, 1):
            limit.end(mark)
    os._exit(0)


def become(argv: Sequence[str], env: Mapping[str, str], mask: set[int], parent: int) -> NoReturn:
    """In the child of `parent`: become the program, in a new session, killed when `parent` dies."""
    code = 126
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(argv[0], list(argv), env)
    except FileNotFoundError as error:
        code = 127
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def end_as(code: int) -> NoReturn:
    """End this process with the exit code `code`, or by the signal -`code` (as in `os.waitstatus_to_exitcode`)."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has already left a core file, if one is allowed
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
        code = 128 - code
    sys.exit(code)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
