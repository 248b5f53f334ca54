"""The call that this rank is in; the calls that all ranks make on a communicator, their commits, and what ends them.

    with call("lb_mpi.save") as interrupts:     # what this rank does; Ctrl-C is held back
        with interrupts, at_work(comm):         # the user's code: Ctrl-C is raised at once; no collective call may begin

A KeyboardInterrupt between the start of a send and the line that keeps its request would leave the send half done, and
in a rank's sleep it would leave the others waiting for ever.  So a driver holds Ctrl-C back (`defer`) while it sends and
receives, checks for it at each turn, and then ends as after any other error: it notifies all ranks.  In the user's code
Ctrl-C is raised at once.  A process has one signal handler, so there is one state.  Blocks may be nested: a wait within
a driver, or a driver within a function that another driver has called.

A call that has succeeded returns its value.  Once all ranks are sure to end it well (`commit`), Ctrl-C waits, and is raised
in the next call (but for exchanges of a plan), at the end of a close, or at the end of the program; or at the next Ctrl-C in
the user's code, which counts as the same.  Otherwise this rank would keep the old state where all others have the new one.

A case remains: Ctrl-C that arrives while an iterator that is dropped ends its map is printed and lost, as in any finalizer.

Where the calls of ranks differ, those that wait find it out, in a ring.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`, which makes enums of all handlers: 20 us in each call
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi import signs
from lb_mpi.errors import Error
from lb_mpi.handlers import install, restore
from lb_mpi.mpi.common.tags import Tag

MOST_CALLS = 64  # that a rank remembers: in exchanges, one may be ahead of another by the diameter of the graph
LONGEST = 1000  # bytes of the text of a failure: any MPI sends so few eagerly
_CALL = struct.Struct("<q120s")  # number and name
_STAGE = struct.Struct("<q")  # of the sender of a failure, before the text


# --- the call that this rank is in, and Ctrl-C ------------------------------------------------------------------------


class _Here:
    """The call that this process is in."""

    call = ""  # "": in none
    number = 0  # of the call


here = _Here()


class call:
    """Be in the call `name` in this block, and hold Ctrl-C back.

    Blocks may be nested: the outermost name counts.  "" is no call, and gives no warning.  `watched`: a supervisor sees
    the name, and may end the program if all ranks wait for one for long.  `last`: at its end, nothing is returned that a
    Ctrl-C could lose, and it is raised.
    """

    __slots__ = ("_installed", "_interrupts", "_last", "_name", "_outermost", "_phase")

    def __init__(self, name: str, *, watched: bool = False, last: bool = False) -> None:
        self._name, self._last = name, last
        self._phase = signs.phase(here.call or name) if watched and name else None

    def __enter__(self) -> Interrupts:  # not a generator: a map enters twice, and may be short
        self._interrupts = interrupts()
        self._installed = self._interrupts.defer()  # first: a Ctrl-C would leave behind what follows
        self._outermost = bool(self._name) and not here.call
        if self._outermost:
            here.call, here.number = self._name, here.number + 1
        if self._phase is not None:
            self._phase.__enter__()
        return self._interrupts

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._phase is not None:
            self._phase.__exit__(kind, error, trace)
        if self._outermost:
            here.call = ""
        self._interrupts.release(self._installed, failed=kind is not None, last=self._last)


class Interrupts:
    """The Ctrl-C that arrived while it was held back.

    `with interrupts:` is a block of the user's code, in which Ctrl-C is raised at once.
    """

    def __init__(self) -> None:
        self.pending = False
        self.committed = False  # to the end of the block of `defer` it waits
        self._raising = True
        self._before: list[tuple[bool, bool]] = []  # stack: the two states outside of each such block, or one of `defer`

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any, before a `commit`."""
        if self.pending and not self.committed:
            self.pending = False
            raise KeyboardInterrupt

    def forget(self) -> None:
        """Forget the Ctrl-C that was held back: in a forked child, which has got none."""
        self.pending = False

    def commit(self) -> None:
        """Let Ctrl-C wait for the next call, in this block of `defer`: all ranks are sure to end this one well."""
        self.committed = bool(self._before)

    def wait(self) -> None:
        """Let a KeyboardInterrupt that was raised too late to stop this call wait for the next one."""
        self.pending = True

    def __enter__(self) -> None:  # not a generator: a search enters several times within microseconds
        if self.pending:
            self.check()
        self._before.append((self._raising, self.committed))
        self._raising = not self.committed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raising, self.committed = self._before.pop()

    def defer(self) -> bool:
        """Hold Ctrl-C back until `release`; return whether this is the outermost block with Python's own handler of SIGINT.

        With any other handler (ignored, a user's), or in another thread, nothing changes.
        """
        outermost = not self._before
        self._before.append((self._raising, self.committed))
        self._raising = False
        if self is not _interrupts or not outermost:
            return False
        handler = _signal.getsignal(_signal.SIGINT)
        if handler is _signal.default_int_handler:
            install(_signal.SIGINT, self._handle_sigint)
            return True
        return bool(handler == self._handle_sigint)  # which stays while a Ctrl-C waits

    def release(self, installed: bool, *, failed: bool, last: bool = False) -> None:
        """Restore the previous SIGINT handler if `defer` installed ours; after a `last` call, raise a pending Ctrl-C.

        An error that is being raised replaces the Ctrl-C.  A handler that the user's code has installed meanwhile stays.
        """
        self._raising, self.committed = self._before.pop()
        if installed and failed:
            self.pending = False
        if installed and (last or not self.pending):
            restore(_signal.SIGINT, self._handle_sigint)
        if last and installed:
            self.check()

    def _handle_sigint(self, _number: int, frame: FrameType | None) -> None:
        if self._raising and (frame is None or frame.f_code.co_filename != __file__):  # not half way in or out of a block
            self.pending = False
            raise KeyboardInterrupt
        self.pending = True


HANDLERS = (Interrupts._handle_sigint.__name__, "_handle_sigalrm")  # innermost frames of errors that interrupt user code
_interrupts = Interrupts()  # of the main thread
_MAIN = threading.main_thread().ident
os.register_at_fork(after_in_child=_interrupts.forget)


def interrupts() -> Interrupts:
    """Return the state of this thread; only the main thread is ever interrupted."""
    return _interrupts if threading.get_ident() == _MAIN else Interrupts()


# --- ranks that can't take part in a collective call ------------------------------------------------------------------


class _Busy(NamedTuple):
    """Ranks that can't take part in a collective call on other communicators of theirs."""

    ranks: MPI.Intracomm
    thread: int | None  # of this rank, in which such a call would wait for ever; None: in any but those in `free`
    why: str
    task: bool = False  # this rank runs a task of a pool, a function of map_rows, or a problem of a search
    free: frozenset[int | None] = frozenset()  # threads that ran before: the other ranks may have the same ones


busy: dict[int, _Busy] = {}  # by id: entries are compared nowhere, since a task may have lowered the recursion limit


class at_work:
    """Run the user's code on some of these ranks in this block, which may make no collective call that needs several.

    It may be used for one block after another.
    """

    __slots__ = ("_comm", "_why")

    def __init__(self, comm: MPI.Intracomm, why: str = "in a task of a pool") -> None:
        self._comm, self._why = comm, why

    def __enter__(self) -> None:  # not a generator: a chunk may be short
        busy[id(self)] = _Busy(self._comm, threading.get_ident(), self._why, True)

    def __exit__(self, *_: object) -> None:
        del busy[id(self)]


def bind(comm: MPI.Intracomm, why: str, *, here: bool) -> Callable[[], None]:
    """Note that the other ranks of `comm` wait for this one; return what ends that.

    `here`: they do so for calls in this thread; else also in those that call back, or that start from now on.
    """
    this = threading.get_ident()
    free = frozenset(one.ident for one in threading.enumerate() if one.ident != this and not one.name.startswith("lb_mpi."))
    entry = _Busy(comm, this, why) if here else _Busy(comm, None, why, free=free)
    busy[id(entry)] = entry

    def end() -> None:
        if busy.get(id(entry)) is entry:
            del busy[id(entry)]

    return end


def in_task() -> bool:
    """Return whether this thread runs a task of a pool, a function of map_rows, or a problem of a search."""
    return any(one.task and one.thread == threading.get_ident() for one in [*busy.values()])


def refuse_busy(comm: MPI.Intracomm) -> None:
    """Raise Error if other ranks of `comm` run tasks, functions of map_rows or a search, or wait for this one in a call."""
    for one in reversed([*busy.values()]):  # the innermost first; other threads begin and end tasks
        thread = threading.get_ident()
        if one.thread in (None, thread) and thread not in one.free and (one.task or one.ranks != comm):
            groups = [one.ranks.Get_group(), comm.Get_group()]
            groups.append(MPI.Group.Intersection(*groups))
            n_common = groups[-1].size
            for group in groups:
                group.Free()
            if n_common > 1:
                how = f"expected MPI.COMM_SELF, or other ranks than these {n_common}"
                raise Error(f"a collective call {one.why}, on ranks that it would wait for without end: {how}")


# --- the calls of all ranks of a communicator -------------------------------------------------------------------------


class CallOrder:
    """The calls that this rank has begun on `comm`, which all ranks make in the same order; none: they are not compared.

    If the calls of all ranks are not the same, they differ first at some number, and all come to wait with this number or
    after it: then, in the ring of all ranks, two neighbours differ there.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._n = 0
        self._names = deque[str](maxlen=MOST_CALLS)  # of the last ones
        self._n_sent = 0  # the last call that this rank has sent to the next one
        self._sent: tuple[bytes, MPI.Request] | None = None
        self._received: list[tuple[int, int, str]] = []  # not yet compared: (source, number of a call, its name)

    def begin(self, name: str) -> None:
        """Begin a call."""
        self._n += 1
        self._names.append(name)

    def compare(self) -> str | None:
        """Tell the next rank, once, which call this one waits in; return what is wrong if the previous one is in another."""
        comm = self._comm
        if self._n_sent < self._n and comm.size > 1:
            self._n_sent = self._n
            data = _CALL.pack(self._n, self._names[-1].encode())
            self._sent = data, comm.Isend([data, MPI.BYTE], (comm.rank + 1) % comm.size, Tag.CALL)
        self.receive()
        received, self._received = self._received, [one for one in self._received if one[1] > self._n]
        for source, number, theirs in received:
            back = self._n - number
            if 0 <= back < len(self._names) and theirs != (mine := self._names[-1 - back]):
                others = f"rank {source} is in {theirs}, rank {comm.rank} in {mine}"
                return f"{others}: expected the same calls on all ranks"
        return None

    def receive(self) -> None:
        """Receive what the previous rank has sent."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, Tag.CALL, status):
            data = bytearray(_CALL.size)
            self._comm.Recv([data, MPI.BYTE], status.Get_source(), Tag.CALL)
            number, name = _CALL.unpack(data)
            self._received.append((status.Get_source(), number, name.rstrip(b"\0").decode()))


class Failures:
    """The failures that ranks send each other on `comm`: any of them ends the calls of all.

    A rank's stage counts the begins and the ends of its commits, so it is odd within one.  All ranks come through the same
    stages.  A failure of a rank that is ahead of this one waits until this one is there: what that rank has ended, all can.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._stage, self._n_found = 0, 0
        self.ahead: list[tuple[int, str]] = []  # failures of ranks that were ahead: (stage, text)
        self.text: str | None = None  # of the failure that has ended the calls

    @property
    def in_commit(self) -> bool:
        """True within a commit."""
        return self._stage % 2 == 1

    def commit(self, interrupts: Interrupts, *, ends: bool = False) -> None:
        """Begin the end of a call: all ranks are ready, and then either all raise or all return what the call has changed.

        Until `end_commit`, all take part in a collective operation, and nobody runs the user's code.  A rank that fails has
        done so before its commit, and then all raise, or after its end, and then the others end theirs well.  One that fails
        within it, as without memory, never ends it: the others, which may wait for it there, raise.  To the end of the call,
        Ctrl-C waits for the next one.  `ends`: it ends at once, since no collective operation follows.
        """
        self._stage += 1 + ends
        interrupts.commit()

    def end_commit(self) -> None:
        """End a commit: all others have begun it."""
        self._stage += 1

    def note(self, text: str) -> None:
        """Note a failure, after which there are no calls."""
        self.text = text

    def send(self, text: str) -> tuple[object, ...]:
        """Send a failure to all others; return what MPI may still read."""
        data = np.frombuffer(_STAGE.pack(self._stage) + text.encode(errors="replace")[:LONGEST], dtype=np.uint8)
        others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
        return data, [self._comm.Isend([data, MPI.BYTE], rank, Tag.FAILURE) for rank in others]

    def receive(self, after: int) -> str | None:
        """Return a failure that another rank has sent, if this is at least the `after`-th time that one is found."""
        for stage, text in self.ahead:
            if stage <= self._stage:
                return text
        if not self._comm.Iprobe(MPI.ANY_SOURCE, Tag.FAILURE):
            return None
        self._n_found += 1
        status = MPI.Status()
        # Another thread may have received what was found.
        if self._n_found < after or not (found := self._comm.Improbe(MPI.ANY_SOURCE, Tag.FAILURE, status)):
            return None
        data: NDArray[np.uint8] = np.empty(status.Get_count(MPI.BYTE), dtype=np.uint8)
        found.Recv([data, MPI.BYTE])
        (stage,) = _STAGE.unpack_from(data.data)
        text = data[_STAGE.size :].tobytes().decode(errors="replace")
        if stage <= self._stage:
            return text
        self.ahead.append((stage, text))
        return None
