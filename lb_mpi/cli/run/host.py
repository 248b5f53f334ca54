"""The part of launch/run on each host: `python lb_mpi/cli/run host`, in the program's working folder.

    input       output
    RUN_ID [WORD] (the first line: the id of the run, and a word in its command lines: processes.py)
                lb_mpi {...}         at the start: facts of the host (lb_mpi.mpi.common.facts), or {"error": ...}
    ? K         lb_mpi state {...}   of each rank that has reported something new, or is quiet
                lb_mpi alive K
    save                             (it asks the ranks that can to save and end, see lb_mpi.signs)
    stack RANK  lb_mpi stack {...}   its Python stack; a stopped rank is continued for that
                lb_mpi end {...}     a rank on this host has ended, or MPI's process that watches it (reported by rank.py)

Ranks send it datagrams (rank.py), but any user of the machine can send one.  So it asks the kernel for the sender, which
must be a process of this user.  All else is ignored.  The id isn't on the command line, where all users see it: nobody can
take the socket's name before this process.

When its input ends, or nothing arrives for LOST_S, the program is over, or this host is cut off.  Then all processes on this
host of the run RUN_ID, or that have WORD in their command lines are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lb_mpi import signs
from lb_mpi.cli.run import processes, rank
from lb_mpi.cli.run.lines import Begin, End, RankState, Stack, line_of, read

SHARE = 0.02  # of a core: a rank that uses more is computing
MOVED_BYTES = 4096  # read or written: a rank that has moved more makes progress; timers of an MPI also move some
ASLEEP = 0.5  # of the time: a rank that sleeps longer is waiting
QUIET_S = 2.0  # shorter times of a rank are not reported
POLL_S = 0.2  # minimum time between two samples, for a meaningful share
STACK_S = 2.0  # for writing a stack
_STOPPED = ("T", "t")
_MOVED = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")


class Used(NamedTuple):
    """The state of a process and its descendants at one time."""

    cpu_s: float
    stopped: bool = False  # one of them is, by SIGSTOP
    gone: bool = False  # no process is left
    moved_bytes: int = 0  # read and written so far
    on_disk: bool = False  # one of them waits for a disk or a file server


class QuietTimes:
    """Measure how long a rank has been quiet, in seconds, as `RankState` has them.

    away : without a turn; idle : also at most `SHARE` of a core, no input or output; waits : mostly asleep in lb_mpi, in
    calls, where it waits for others, or in no call.  Being stopped or continued begins a new time.  A rank that has ended
    doesn't hang.
    """

    def __init__(self, now: float) -> None:
        self._turned = self._active = self._awake = self._polled = now
        self._turns, self._used, self._asleep_s, self._in_call = 0, Used(0.0), 0.0, False

    def times(self, now: float, seen: signs.Seen, used: Used) -> dict[str, float]:
        """Return the times at this sample."""
        computed = abs(used.cpu_s - self._used.cpu_s) > SHARE * (now - self._active)
        moved = used.on_disk or abs(used.moved_bytes - self._used.moved_bytes) >= MOVED_BYTES
        if turned := seen.turns != self._turns:
            self._turned = now
        if turned or computed or moved or used.stopped != self._used.stopped or used.gone:
            self._active, self._turns, self._used = now, seen.turns, used
        if (passed_s := now - self._polled) >= POLL_S:
            in_call = bool(seen.phase)
            if in_call != self._in_call or seen.asleep_s - self._asleep_s < ASLEEP * passed_s:
                self._awake = now
            self._polled, self._asleep_s, self._in_call = now, seen.asleep_s, in_call
        idle_s = now - self._active
        return {"away_s": now - self._turned, "idle_s": idle_s, "waits_s": now - self._awake,
            "stopped_s": idle_s if used.stopped else 0.0}  # fmt: skip


class Rank:
    """A rank whose rank.py is the process `pid`, and whose page (see `lb_mpi.signs`) is `file`."""

    def __init__(self, number: str, pid: int, file: int) -> None:
        self.number, self._pid, self._file = number, pid, file
        self._quiet, self._host = QuietTimes(time.monotonic()), socket.gethostname()

    def state(self) -> RankState:
        """Return its state; its last report outlives the rank."""
        seen, used = self._seen(), _used(self._pid)
        times = self._quiet.times(time.monotonic(), seen, used)
        return RankState(
            self.number, self._host, seen.phase, seen.n_saved, seen.saved, bool(seen.saves_pid), seen.spoke,
            at_end=seen.at_end,
            **{name: float(round(one)) if one >= QUIET_S else 0.0 for name, one in times.items()},
        )  # fmt: skip

    def save(self) -> None:
        """Ask it to save and end, if it can."""
        self._send(self._seen().saves_pid, signs.SAVE_SIGNAL)

    def stack(self) -> str:
        """Return its Python stack; empty if none comes.  A stopped rank is continued for that."""
        pid = self._seen().stack_pid
        before = os.fstat(self._file).st_size
        self._send(pid, signs.STACK_SIGNAL, _kill_main_thread)
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
        """Send a signal if `pid` belongs to this rank: the program can write any number on its page."""
        if pid in descendants(self._pid):
            with contextlib.suppress(OSError):
                kill(pid, number)


def _kill_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread of `pid`.

    In a process that was stopped, any thread can handle a signal to the whole process, for example one of the MPI library's.
    By the time it has written the stacks, the main thread has gone on.
    """
    ctypes.CDLL(None).tgkill(pid, pid, number)  # glibc has it, since 2.30; Python's os doesn't


def children(pid: int) -> list[int]:
    """Return the children of `pid`; OSError if it has ended."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found += map(int, processes.read_at_once(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants(pid: int) -> list[int]:
    """Return all descendants of `pid`."""
    found, unseen = [], [pid]
    while unseen:
        with contextlib.suppress(OSError):
            new = children(unseen.pop())
            found += new
            unseen += new
    return found


def _used(pid: int) -> Used:
    """Return what the descendants of `pid` have used so far; CPU time to 10 ms."""
    cpu_s, moved_bytes, states, tree = 0.0, 0, set(), descendants(pid)
    for one in tree:
        with contextlib.suppress(OSError):
            stat = processes.stat(one)
            states.add(stat.state)
            cpu_s += stat.cpu_s + stat.children_cpu_s
            # by the program (rchar, wchar), and by a disk while a call of the program lasts (read_bytes, write_bytes)
            lines = Path(f"/proc/{one}/io").read_bytes().splitlines()
            moved_bytes += sum(int(line.split()[1]) for line in lines if line.partition(b":")[0] in _MOVED)
    return Used(cpu_s, not states.isdisjoint(_STOPPED), not tree, moved_bytes, "D" in states)


LOST_S = 20.0
MOST_BYTES = 4096  # of a datagram
_CREDENTIALS = struct.Struct("3i")  # of a sender, from the kernel: process, user, group
_FILE = struct.Struct("i")


# The current folder may have lb_mpi, for a program that is a module; but a numpy.py there must not be run.
_FACTS = "import runpy, sys; sys.path.append(''); runpy.run_module('lb_mpi.mpi.common.facts', run_name='__main__')"


def facts() -> str:
    """Return a JSON object in one line."""
    argv = [sys.executable, "-P", "-c", _FACTS]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0 and done.stdout.startswith("{"):
        return done.stdout.splitlines()[-1]
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if found := re.search(r"No module named '?(lb_mpi|mpi4py)\b", said[-1]):
        said[-1] = f"this Python has no {found[1]}: expected one that has (activate its environment)"
    return json.dumps({"error": f"{sys.executable}: {said[-1]}"})


def say(text: str) -> None:
    """Write to the other side; lines of other programs may come between."""
    os.write(1, f"lb_mpi {text}\n".encode())


def receive(from_ranks: socket.socket) -> tuple[int, int, bytes, list[int]]:
    """Receive a datagram; return the process and the user that have sent it, its data, and its files, now open here."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_FILE.size)
    data, about, _, _ = from_ranks.recvmsg(MOST_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    pid, uid, files = 0, -1, []
    for level, kind, value in about:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = _CREDENTIALS.unpack(value)
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files += [file for (file,) in _FILE.iter_unpack(value[: len(value) // _FILE.size * _FILE.size])]
    return pid, uid, data, files


class Side:
    """The ranks of this host, as launch/run hears of them, and asks them."""

    def __init__(self) -> None:
        self._ranks: dict[str, Rank] = {}
        self._said: dict[str, RankState] = {}
        self._text = b""

    def hear_rank(self, from_ranks: socket.socket) -> None:
        """Process a report of rank.py, that a rank starts or how it ended; ignore all other senders."""
        pid, uid, data, files = receive(from_ranks)
        if uid == os.getuid():
            with contextlib.suppress(ValueError):  # junk
                if files:
                    number = read(Begin, data).rank
                    self._ranks[number] = Rank(number, pid, files.pop(0))
                else:
                    self._end(read(End, data))
        for file in files:
            os.close(file)

    def _end(self, end: End) -> None:
        if end.rank in self._ranks:
            self._send_state(self._ranks[end.rank])
        if not end.asked:
            say(f"end {line_of(end)}")

    def hear(self) -> bool:
        """Process the input of launch/run; False if it is gone."""
        data = os.read(0, 4096)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            word, _, about = line.decode().partition(" ")
            if word == "save":
                for one in self._ranks.values():
                    one.save()
            elif word == "stack":
                text = self._ranks[about].stack() if about in self._ranks else ""
                say(f"stack {line_of(Stack(about, text))}")
            else:
                for one in self._ranks.values():
                    self._send_state(one)
                say(f"alive {about}")
        return bool(data)

    def _send_state(self, one: Rank) -> None:
        state = one.state()
        if state != self._said.get(state.rank):
            self._said[state.rank] = state
            say(f"state {line_of(state)}")


def serve(side: Side, from_ranks: socket.socket) -> None:
    """Output until the other side is gone."""
    while found := select.select([0, from_ranks.fileno()], [], [], LOST_S)[0]:
        if from_ranks.fileno() in found:  # the reports of ranks come first
            side.hear_rank(from_ranks)
        elif not side.hear():
            return


def main(_arguments: Sequence[str]) -> int:
    """Output, then end all remaining processes."""
    with processes.interruptible(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as from_ranks:
        with open(0, "rb", buffering=0, closefd=False) as file:  # keeps the lines after the first one for later
            run_id, _, word = file.readline().decode().strip().partition(" ")
        if not run_id:
            return 0
        side = Side()
        try:
            from_ranks.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with contextlib.suppress(OSError):  # two names of one host: the other process receives the datagrams
                from_ranks.bind(rank.address(run_id))
            say(facts())
            serve(side, from_ranks)
        except BrokenPipeError:
            pass
        finally:
            processes.end(run_id, word=word)
    return 0
