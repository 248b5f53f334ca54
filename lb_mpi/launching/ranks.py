"""The ranks of one host as its host.py sees them: what they say of themselves, and whether they go on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from lb_mpi import signs
from lb_mpi.launching.heard import State
from lb_mpi.launching.program import children

SHARE = 0.02  # of a core: who uses more is computing
ASLEEP = 0.5  # of the time: who sleeps longer is waiting
LOOK_S = 0.2  # between two looks, at least, for a share that says something
STACK_S = 2.0  # for writing a stack
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """A process and its descendants at a look."""

    cpu_s: float
    stopped: bool = False  # one of them is, by SIGSTOP
    gone: bool = False  # there is none


class Progress:
    """For how long a rank has done nothing: neither a turn, nor more CPU time than `SHARE` of a core.

    A rank that is nowhere where it must go on may wait for whatever it likes; but not stopped.  What is gone doesn't hang.
    """

    def __init__(self, now: float) -> None:
        self._since, self._turns, self._cpu_s = now, 0, 0.0

    def quiet_s(self, now: float, seen: signs.Seen, used: Used) -> float:
        """Seconds, at a look."""
        computed = abs(used.cpu_s - self._cpu_s) > SHARE * (now - self._since)
        if seen.turns != self._turns or computed or used.gone or not (seen.phase or used.stopped):
            self._since, self._turns, self._cpu_s = now, seen.turns, used.cpu_s
        return now - self._since


class Waiting:
    """For how long a rank has been in a call of lb_mpi, and asleep there, waiting for other ranks, for most of the time."""

    def __init__(self, now: float) -> None:
        self._since = self._looked = now
        self._asleep_s = 0.0

    def waits_s(self, now: float, seen: signs.Seen) -> float:
        """Seconds, at a look."""
        if (passed_s := now - self._looked) >= LOOK_S:
            if not seen.phase or seen.asleep_s - self._asleep_s < ASLEEP * passed_s:
                self._since = now
            self._looked, self._asleep_s = now, seen.asleep_s
        return now - self._since


class Rank:
    """A rank whose rank.py is the process `pid`, and whose page (see `lb_mpi.signs`) is `file`."""

    def __init__(self, number: str, pid: int, file: int) -> None:
        self.number, self._pid, self._file = number, pid, file
        self._progress = Progress(time.monotonic())
        self._anywhere = Progress(time.monotonic())
        self._waiting = Waiting(time.monotonic())
        self._host = socket.gethostname()

    def look(self) -> State:
        """How it does; what it has said stays known when it's gone."""
        seen, used = self._seen(), _used(self._pid)
        now = time.monotonic()
        quiet_s = self._progress.quiet_s(now, seen, used)
        idle_s = self._anywhere.quiet_s(now, seen._replace(phase="anywhere"), used)
        waits_s = self._waiting.waits_s(now, seen)
        return State(
            self.number, self._host, round(quiet_s, 1), used.stopped, seen.phase, seen.n_saved, seen.saved,
            bool(seen.saves_pid), seen.spoke, round(idle_s, 1), round(waits_s, 1), seen.at_end,
        )  # fmt: skip

    def save(self) -> None:
        """Let it save and end, if it can."""
        self._send(self._seen().saves_pid, signs.SAVE_SIGNAL)

    def stack(self, *, wake: bool) -> str:
        """Let it write its Python stack; empty when it doesn't come.  What is stopped goes on for that, if `wake`."""
        pid = self._seen().stack_pid
        if not wake and _used(self._pid).stopped:
            return ""
        before = os.fstat(self._file).st_size
        self._send(pid, signs.STACK_SIGNAL, _kill_main_thread)
        if wake:
            self._send(pid, signal.SIGCONT)
        deadline = time.monotonic() + STACK_S
        size, last = before, -1
        while pid and (size == before or size != last) and time.monotonic() < deadline:
            time.sleep(0.1)
            size, last = os.fstat(self._file).st_size, size
        return os.pread(self._file, size - before, before).decode(errors="replace")

    def _seen(self) -> signs.Seen:
        return signs.read(os.pread(self._file, signs.BYTES, 0))

    def _send(self, pid: int, number: int, kill: Callable[[int, int], None] = os.kill) -> None:
        """Send a signal, if `pid` is of this rank: what a page says is the program's to write."""
        if pid in _tree(self._pid):
            with contextlib.suppress(OSError):
                kill(pid, number)


def _kill_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread of `pid`.

    One to the whole process is taken by any of its threads when it was stopped, one of the MPI library's for example; by the
    time that has written the stacks, the main thread has gone on.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc has it, since 2.30; os doesn't
    if tgkill is None:
        os.kill(pid, number)
    else:
        tgkill(pid, pid, number)


def _tree(pid: int) -> list[int]:
    """Return all descendants of `pid`."""
    found, unseen = [], [pid]
    while unseen:
        with contextlib.suppress(OSError):
            new = children(unseen.pop())
            found += new
            unseen += new
    return found


def _used(pid: int) -> Used:
    """What the descendants of `pid` have used so far, to 10 ms."""
    cpu_s, stopped, tree = 0.0, False, _tree(pid)
    for one in tree:
        with contextlib.suppress(OSError), open(f"/proc/{one}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            stopped |= fields[0] in (b"T", b"t")
            cpu_s += sum(map(int, fields[11:15])) * _TICK_S
    return Used(cpu_s, stopped, not tree)
