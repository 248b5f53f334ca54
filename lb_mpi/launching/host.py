"""The part of launch/run on each host: `python lb_mpi/launching host`, in the program's working folder.

    input       output
    MARK [WORD] (the first line: the mark of the run's processes, and a word in their command lines: limit.py)
                lb_mpi {...}         at the start: facts of the host (lb_mpi.mpi.common.facts), or {"error": ...}
    ? K         lb_mpi state {...}   of each rank that has reported something new, or is quiet
                lb_mpi alive K
    save                             (it asks the ranks that can to save and end, see lb_mpi.signs)
    stack RANK  lb_mpi stack {...}   its Python stack; a stopped rank is continued for that
    look RANK   lb_mpi stack {...}   the same, but a stopped rank stays stopped, and has no stack
                lb_mpi end {...}     a rank on this host was killed or has failed (reported by rank.py)

Ranks send it datagrams (rank.py), but any user of the machine can send one.  So it asks the kernel for the sender, which
must be a process of this user that bears MARK; and the end of a known rank must come from its own process.  All else is
ignored.  The mark isn't on the command line, where all users see it: nobody can take the socket's name before this process.

When its input ends, or nothing arrives for LOST_S, the program is over, or this host is cut off.  Then all processes on this
host that bear MARK or have WORD in their command lines are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
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
from lb_mpi.launching import limit, rank
from lb_mpi.launching.heard import Begin, End, RankState, Stack, read, told

SHARE = 0.02  # of a core: a rank that uses more is computing
MOVED_BYTES = 4096  # read or written: a rank that has moved more makes progress; timers of an MPI also move some
ASLEEP = 0.5  # of the time: a rank that sleeps longer is waiting
QUIET_S = 2.0  # a shorter idle or waiting time of a rank is not reported
LOOK_S = 0.2  # minimum time between two looks, for a meaningful share
STACK_S = 2.0  # for writing a stack
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOVED = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")


class Used(NamedTuple):
    """The state of a process and its descendants at one time."""

    cpu_s: float
    stopped: bool = False  # one of them is, by SIGSTOP
    gone: bool = False  # no process is left
    moved_bytes: int = 0  # read and written so far
    on_disk: bool = False  # one of them waits for a disk or a file server


class Idle:
    """Measure how long a rank has been idle: no turn, at most `SHARE` of a core used, no reading or writing.

    Being stopped or continued begins a new time.  A rank that has ended doesn't hang.
    """

    def __init__(self, now: float) -> None:
        self._since, self._turns, self._used = now, 0, Used(0.0)

    def idle_s(self, now: float, seen: signs.Seen, used: Used) -> float:
        """Return the idle seconds at this look."""
        computed = abs(used.cpu_s - self._used.cpu_s) > SHARE * (now - self._since)
        moved = used.on_disk or abs(used.moved_bytes - self._used.moved_bytes) >= MOVED_BYTES
        stops = used.stopped != self._used.stopped
        if seen.turns != self._turns or computed or moved or stops or used.gone:
            self._since, self._turns, self._used = now, seen.turns, used
        return now - self._since


class Waiting:
    """Measure how long a rank has been in calls of lb_mpi, mostly asleep because it waits for other ranks."""

    def __init__(self, now: float) -> None:
        self._since = self._looked = now
        self._asleep_s = 0.0

    def waits_s(self, now: float, seen: signs.Seen) -> float:
        """Return the waiting seconds at this look."""
        if (passed_s := now - self._looked) >= LOOK_S:
            if not seen.phase or seen.asleep_s - self._asleep_s < ASLEEP * passed_s:
                self._since = now
            self._looked, self._asleep_s = now, seen.asleep_s
        return now - self._since


class Rank:
    """A rank whose rank.py is the process `pid`, and whose page (see `lb_mpi.signs`) is `file`."""

    def __init__(self, number: str, pid: int, file: int) -> None:
        self.number, self._pid, self._file = number, pid, file
        self._idle = Idle(time.monotonic())
        self._waiting = Waiting(time.monotonic())
        self._host = socket.gethostname()

    def look(self) -> RankState:
        """Return its state; its last report outlives the rank."""
        seen, used = self._seen(), self._used()
        now = time.monotonic()
        idle_s, waits_s = round(self._idle.idle_s(now, seen, used), 1), round(self._waiting.waits_s(now, seen), 1)
        if max(idle_s, waits_s) < QUIET_S:
            idle_s, waits_s, used, seen = 0.0, 0.0, used._replace(stopped=False), seen._replace(phase="")
        return RankState(
            self.number, self._host, used.stopped, seen.phase, seen.n_saved, seen.saved, bool(seen.saves_pid), seen.spoke,
            idle_s, waits_s, seen.at_end,
        )  # fmt: skip

    def save(self) -> None:
        """Ask it to save and end, if it can."""
        self._send(self._seen().saves_pid, signs.SAVE_SIGNAL)

    def stack(self, *, wake: bool) -> str:
        """Return its Python stack; empty if none comes.  `wake`: a stopped rank is continued for that."""
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

    def _used(self) -> Used:
        """Return its usage, without the stacks that it wrote on request."""
        used = _used(self._pid)
        return used._replace(moved_bytes=used.moved_bytes - os.fstat(self._file).st_size)

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


def read_at_once(path: str) -> bytes:
    """Return the content of a file in /proc, at half the price of `Path`: a throttle reads many."""
    file = os.open(path, os.O_RDONLY)
    try:
        found = more = os.read(file, _PAGE)
        while len(more) > _PAGE // 2:  # of a long list, a read returns the lines or numbers that fit in a page
            more = os.read(file, _PAGE)
            found += more
        return found
    finally:
        os.close(file)


def children(pid: int) -> list[int]:
    """Return the children of `pid`; OSError if it has ended."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found += map(int, read_at_once(f"/proc/{pid}/task/{thread}/children").split())
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
            fields = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
            states.add(fields[0])
            cpu_s += sum(map(int, fields[11:15])) * TICK_S
            # by the program (rchar, wchar), and by a disk while a call of the program lasts (read_bytes, write_bytes)
            lines = Path(f"/proc/{one}/io").read_bytes().splitlines()
            moved_bytes += sum(int(line.split()[1]) for line in lines if line.partition(b":")[0] in _MOVED)
    return Used(cpu_s, bool(states & {b"T", b"t"}), not tree, moved_bytes, b"D" in states)


LOST_S = 20.0
MOST_BYTES = 4096  # of a datagram
_CREDENTIALS = struct.Struct("3i")  # of a sender, from the kernel: process, user, group
_FILE = struct.Struct("i")


def facts() -> str:
    """Return a JSON object in one line."""
    argv = [sys.executable, "-m", "lb_mpi.mpi.common.facts"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0 and done.stdout.startswith("{"):
        return done.stdout.splitlines()[-1]
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return json.dumps({"error": f"{sys.executable}: {said[-1]}"})


def say(text: str) -> None:
    """Write to the other side; lines of other programs may come between."""
    os.write(1, f"lb_mpi {text}\n".encode())


class Datagram(NamedTuple):
    """A datagram that has been received, and its sender."""

    pid: int  # of the sender
    uid: int  # of its user
    data: bytes
    files: list[int]  # open here from now on


def receive(from_ranks: socket.socket) -> Datagram:
    """Receive a datagram."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_FILE.size)
    data, about, _, _ = from_ranks.recvmsg(MOST_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    pid, uid, files = 0, -1, []
    for level, kind, value in about:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = _CREDENTIALS.unpack(value)
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files += [file for (file,) in _FILE.iter_unpack(value[: len(value) // _FILE.size * _FILE.size])]
    return Datagram(pid, uid, data, files)


class Side:
    """Answer launch/run, and keep the state of this host's ranks, which bear `mark`."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._pids: set[int] = set()  # of the rank.py of all ranks so far
        self._ranks: dict[str, Rank] = {}
        self._said: dict[str, RankState] = {}
        self._text = b""

    def hear_rank(self, from_ranks: socket.socket) -> None:
        """Process a report of rank.py, that a rank starts or how it ended; ignore all other senders."""
        came = receive(from_ranks)
        if came.uid == os.getuid() and limit.may_bear(came.pid, self._mark):
            with contextlib.suppress(ValueError):  # junk
                if came.files:
                    self._begin(came)
                elif came.pid in self._pids:
                    self._end(read(End, came.data))
        for file in came.files:
            os.close(file)

    def _begin(self, came: Datagram) -> None:
        number = read(Begin, came.data).rank
        self._pids.add(came.pid)
        self._ranks[number] = Rank(number, came.pid, came.files.pop(0))

    def _end(self, end: End) -> None:
        if end.rank in self._ranks:
            self._tell_state(self._ranks[end.rank])
        say(f"end {told(end)}")

    def hear(self) -> bool:
        """Process the input of launch/run; False if it is gone."""
        data = os.read(0, 4096)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            word, _, about = line.decode().partition(" ")
            if word == "save":
                for one in self._ranks.values():
                    one.save()
            elif word in ("stack", "look"):
                text = self._ranks[about].stack(wake=word == "stack") if about in self._ranks else ""
                say(f"stack {told(Stack(about, text))}")
            else:
                for one in self._ranks.values():
                    self._tell_state(one)
                say(f"alive {about}")
        return bool(data)

    def _tell_state(self, one: Rank) -> None:
        state = one.look()
        if state != self._said.get(state.rank):
            self._said[state.rank] = state
            say(f"state {told(state)}")


def serve(side: Side, from_ranks: socket.socket) -> None:
    """Answer until the other side is gone."""
    while ready := select.select([0, from_ranks.fileno()], [], [], LOST_S)[0]:
        if from_ranks.fileno() in ready:
            side.hear_rank(from_ranks)
        elif not side.hear():  # ranks first: their reports precede the answer
            return


def main(_arguments: Sequence[str], _prog: str) -> int:
    """Answer, then end all remaining processes."""
    with limit.interruptible(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as from_ranks:
        with open(0, "rb", buffering=0, closefd=False) as file:  # keeps the lines after the first one for later
            mark, _, word = file.readline().decode().strip().partition(" ")
        if not mark:
            return 0
        side = Side(mark)
        try:
            from_ranks.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with contextlib.suppress(OSError):  # two names of one host: the other process receives the datagrams
                from_ranks.bind(rank.address(mark))
            say(facts())
            serve(side, from_ranks)
        except BrokenPipeError:
            pass
        finally:
            limit.end(mark, word=word)
    return 0
