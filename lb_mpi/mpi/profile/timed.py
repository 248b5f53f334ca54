"""Timed methods of mpi4py's communicators, requests and messages, and the `Recorder` of one rank's calls.

`Installed` replaces the methods in mpi4py's own classes, so that every object is timed, wherever it comes from.  A timed
method does the same as mpi4py's and reports to the recorder.  No message is added or removed on the program's communicators.
Windows and files are not timed, but their use is noted.

The recorder knows clocks, places in the program, and the ranks of communicators; it feeds `lb_mpi.profiling.profile.Calls`
with the clocks of this rank.  Only calls of the thread that created it are recorded; those of others happen while that one
computes.  Calls within calls (for example a reduction in Python that sends) are part of the outer one.

The operation of a request (`Posted`) is found by the request's handle.  A wait for several requests counts as a wait for the
last one to complete: each is tested without completing it (MPI_Request_get_status), until all are complete; then MPI's own
call follows.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import mpi4py
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.common.waiting import Nap
from lb_mpi.profiling.profile import NOBODY, PARTLY, SOMEBODY, TOGETHER, Calls, Stream

OURS = tuple(str(Path(str(package.__file__)).parent) + "/" for package in (lb_mpi, mpi4py))
PYTHONS = (sysconfig.get_path("stdlib") + "/", "<frozen ")
_now = time.perf_counter_ns
Method = Callable[..., Any]


class Known(NamedTuple):
    """Facts about a communicator."""

    peers: tuple[int, ...]  # rank in the program of each of its (remote) ranks; NOBODY: of another program
    stream: Stream | None  # of its collectives; None: there is nobody to wait for


def _is_of_the_program(file: str) -> bool:
    """Return False for lb_mpi, mpi4py and Python's own modules; other packages count as parts of the program."""
    return not file.startswith(OURS) and ("/site-packages/" in file or not file.startswith(PYTHONS))


class Recorder:
    """Times what the main thread does in MPI."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.calls = Calls()
        self._here = str(Path.cwd()) + "/"
        self._skipped: dict[int, tuple[CodeType, bool]] = {}
        self.status = MPI.Status()  # for calls without a status of the program's
        self.unseen: set[str] = set()  # untimed operations of the program
        self._world = world.Get_group()
        self._keyval = MPI.Comm.Create_keyval()  # of `Known`, as an attribute of a communicator
        self._thread = threading.get_ident()
        self._busy = False
        self.restart()

    def restart(self) -> None:
        """Restart at the start of the program."""
        self.began = _now()

    def elsewhere(self) -> bool:
        """True if this call isn't timed: in another thread, or within a call."""
        if threading.get_ident() != self._thread:
            self.unseen.add("calls of threads other than the main one")
            return True
        return self._busy

    def enter(self) -> int:
        """Begin a call; return the time."""
        self._busy = True
        return _now()

    def leave(self, number: int, entered: int, whom: int = NOBODY) -> int:
        """End a call; return the time."""
        now = _now()
        self.calls.add(number, entered, now, whom)
        self._busy = False
        return now

    def stop(self) -> tuple[int, int]:
        """Return the nanoseconds since the program's start, and those outside of MPI."""
        total_ns = _now() - self.began
        return total_ns, total_ns - self.calls.in_mpi_ns

    def place(self, call: str, known: dict[tuple[int, int], int]) -> int:
        """Return the number of the innermost line of the program that calls; `known` is this call's own cache."""
        frame = sys._getframe(2)
        code = frame.f_code
        while self._skip(code) and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        key = id(code), frame.f_lasti
        number = known.get(key)
        if number is None:
            file = code.co_filename.removeprefix(self._here)
            number = known[key] = self.calls.number(file, frame.f_lineno, code.co_name, call)
        return number

    def _skip(self, code: CodeType) -> bool:
        found = self._skipped.get(id(code))
        if found is None:  # keeps the code alive, so that its id stays unique
            found = self._skipped[id(code)] = code, not _is_of_the_program(code.co_filename)
        return found[1]

    def known(self, comm: MPI.Comm) -> Known:
        """Return the facts about a communicator, which it keeps as an attribute."""
        if comm == MPI.COMM_NULL:
            return Known((), None)
        found: Any = comm.Get_attr(self._keyval)
        if found is None:
            found = self._look_at(comm)
            comm.Set_attr(self._keyval, found)
        known: Known = found
        return known

    def _look_at(self, comm: MPI.Comm) -> Known:
        own = peers = self._in_world(comm.Get_group())
        if comm.Is_inter():
            peers = self._in_world(comm.Get_remote_group())  # type: ignore[attr-defined]
        return Known(peers, self.calls.stream(own if peers is own else own + peers))

    def _in_world(self, group: MPI.Group) -> tuple[int, ...]:
        ranks: Sequence[int] = group.Translate_ranks(None, self._world)
        group.Free()
        return tuple(rank if rank >= 0 else NOBODY for rank in ranks)

    def peer(self, comm: MPI.Comm, rank: object) -> int:
        """Return the rank in the program of a rank of a communicator; NOBODY if there is none."""
        peers = self.known(comm).peers
        return peers[rank] if isinstance(rank, int) and 0 <= rank < len(peers) else NOBODY


# --- the calls ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Posted:
    """The operation of a request."""

    whom: int = NOBODY  # the rank for which it waits
    anybody: MPI.Comm | None = None  # of this communicator: the status names the rank
    stream: Stream | None = None  # of a collective
    index: int = -1  # of the collective in the stream


_NOTHING = Posted()


@dataclass(slots=True)
class TimedCall:
    """A call being timed."""

    number: int  # its place in the program
    entered: int
    positions: dict[str, int]  # of the method's arguments, by name
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    whom: int = NOBODY  # the rank for which it waits
    came: Callable[[Any], object] | None = None  # called with the result
    left: Callable[[int], object] | None = None  # called with the end of the call

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument, positional or keyword."""
        position = self.positions[name]
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def other(self) -> Any:
        """Return the source, or the destination of a call without a source."""
        rank = self.argument("source", MPI.ANY_SOURCE) if "source" in self.positions else MPI.PROC_NULL
        return self.argument("dest") if rank == MPI.PROC_NULL and "dest" in self.positions else rank

    def with_status(self, spare: MPI.Status) -> MPI.Status:
        """Return the status passed by the program; if there is none, pass and return `spare`."""
        given: MPI.Status | None = self.argument("status")
        if given is not None:
            return given
        self.args, self.kwargs = self.args[: self.positions["status"]], {**self.kwargs, "status": spare}
        return spare


Begin = Callable[[TimedCall], object]


class Installed:
    """The methods of mpi4py's classes, timed from now on; `remove` restores the originals.

    A method for each kind of call begins it: it says for whom the call waits, and what follows the call.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._posted: dict[int, Posted] = {}  # by request
        self._senders: dict[int, int] = {}  # by message
        self._replaced = ExitStack()
        for kind, begins in self._kinds().items():
            for name in begins.keys() & kind.__dict__.keys():
                timed = self._timed(name, getattr(kind, name), begins[name])
                self._replaced.callback(_replace, kind, name, kind.__dict__[name])
                _replace(kind, name, timed)
        self.put(Nap, "take", self._timed("sleep of lb_mpi", Nap.take, self._sleep))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or of a class in Python."""
        self._replaced.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Restore all attributes."""
        self._replaced.close()

    def _timed(self, name: str, plain: Method, begin: Begin) -> Any:
        """Return mpi4py's method `plain` with timing: a class method if it is one."""
        recorder = self._recorder
        positions = {word: k for k, word in enumerate(inspect.signature(plain).parameters)}
        places: dict[tuple[int, int], int] = {}

        @functools.wraps(plain)
        def method(*args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return plain(*args, **kwargs)
            call = TimedCall(recorder.place(name, places), recorder.enter(), positions, args, kwargs)
            try:
                begin(call)
                result = plain(*call.args, **call.kwargs)
                if call.came is not None:
                    call.came(result)
                return result
            finally:
                left = recorder.leave(call.number, call.entered, call.whom)
                if call.left is not None:
                    call.left(left)

        if isinstance(getattr(plain, "__self__", None), type):
            return classmethod(lambda _cls, *args, **kwargs: method(*args, **kwargs))
        return method

    def _kinds(self) -> dict[type, dict[str, Begin]]:
        """Return how the calls of each class begin, by name."""
        of_comm: dict[str, Begin] = dict.fromkeys(TALKS.split(), self._talk)
        of_comm |= dict.fromkeys(STARTS.split(), self._start)
        for kind, words in COLLECTIVES.items():
            for word in words.split():
                of_comm[word] = of_comm[word.lower()] = partial(self._collective, kind=kind)
                of_comm[f"I{word.lower()}"] = partial(self._begin_collective, kind=kind)
                of_comm[f"{word}_init"] = self._start
        of_comm |= dict.fromkeys(MAKES_TOGETHER.split(), partial(self._collective, kind=TOGETHER))
        of_comm |= dict.fromkeys(("Free", "Disconnect"), partial(self._collective, kind=PARTLY))
        of_comm |= dict.fromkeys(("Idup", "Idup_with_info"), partial(self._begin_collective, kind=TOGETHER))
        of_comm |= dict.fromkeys((*MAKES_ALONE.split(), *QUESTIONS.split()), self._call)
        waits: dict[str, Begin] = {"wait": self._wait, "waitall": self._wait_all}
        waits |= {"waitany": partial(self._wait_some, one=True), "waitsome": partial(self._wait_some, one=False)}
        waits |= dict.fromkeys(("test", "testall", "testany", "testsome"), self._call)
        of_message: dict[str, Begin] = dict.fromkeys(("recv", "Recv"), self._receive_message)
        of_message |= dict.fromkeys(("probe", "Probe"), self._talk)
        of_message |= dict.fromkeys(("irecv", "Irecv"), self._start_message)
        of_message |= dict.fromkeys(("iprobe", "Iprobe"), self._call)
        return {
            **dict.fromkeys(COMMUNICATORS, of_comm),
            MPI.Request: waits | {word.capitalize(): begin for word, begin in waits.items()},
            MPI.Prequest: dict.fromkeys(("Start", "Startall"), self._call),
            MPI.Message: of_message,
            MPI.Win: dict.fromkeys(WINDOWS.split(), partial(self._call, unseen="one-sided communication (MPI.Win)")),
            MPI.File: {"Open": partial(self._call, unseen="files (MPI.File)")},
        }

    def _sleep(self, call: TimedCall) -> None:
        """Begin a sleep: it waits for some rank."""
        call.whom = SOMEBODY

    def _call(self, call: TimedCall, *, unseen: str = "") -> None:
        """Begin a call that waits for no rank, such as a query; `unseen`: what it opens isn't timed."""
        if unseen:
            self._recorder.unseen.add(unseen)

    def _talk(self, call: TimedCall) -> None:
        """Begin a blocking send, receive or probe: it waits for the other rank."""
        recorder, comm, rank, asked = self._recorder, call.args[0], call.other(), None
        call.whom = recorder.peer(comm, rank)
        if rank == MPI.ANY_SOURCE:
            asked = call.with_status(recorder.status)

        def came(result: Any) -> None:
            if asked is not None:
                call.whom = recorder.peer(comm, asked.source)
            if isinstance(result, MPI.Message):
                self._senders[result.handle] = call.whom

        call.came = came

    def _receive_message(self, call: TimedCall) -> None:
        """Begin a receive of a probed message: it waits for the sender."""
        call.whom = self._senders.pop(call.args[0].handle, NOBODY)

    def _start_message(self, call: TimedCall) -> None:
        """Begin a receive of a probed message whose request waits for the sender."""
        posted = Posted(self._senders.pop(call.args[0].handle, NOBODY))
        call.came = lambda request: self._post(request, posted)

    def _start(self, call: TimedCall) -> None:
        """Begin a call whose result is the request of a message, or of a persistent collective, which waits for no rank."""
        comm, rank = call.args[0], call.other()
        posted = Posted(self._recorder.peer(comm, rank), comm if rank == MPI.ANY_SOURCE else None)
        call.came = lambda request: self._post(request, posted)

    def _collective(self, call: TimedCall, *, kind: int) -> None:
        """Begin a blocking collective; the awaited rank is determined at the end of the run."""
        stream = self._recorder.known(call.args[0]).stream
        if stream is not None:
            call.left = lambda left: self._recorder.calls.join(stream, kind, call.number, call.entered, left)

    def _begin_collective(self, call: TimedCall, *, kind: int) -> None:
        """Begin a nonblocking collective; its request waits."""
        stream = self._recorder.known(call.args[0]).stream
        posted = Posted(stream=stream)
        if stream is not None:
            posted.index = self._recorder.calls.join(stream, kind, call.number, call.entered, call.entered)
        # Idup also returns a communicator
        call.came = lambda result: self._post(result[1] if isinstance(result, tuple) else result, posted)

    def _wait(self, call: TimedCall) -> None:
        """Begin a wait for one request."""
        posted = self._posted_of(call.args[0])
        asked = None if posted.anybody is None else call.with_status(self._recorder.status)
        call.came = lambda _result: self._waits(call, posted, asked)
        call.whom = posted.whom

    def _wait_all(self, call: TimedCall) -> None:
        """Begin a wait for all of some requests: it counts as a wait for the last."""
        self._waits(call, *self._last(call.argument("requests")))

    def _wait_some(self, call: TimedCall, *, one: bool) -> None:
        """Begin a wait for one of some requests, or at least one of them."""
        every, asked = [self._posted_of(request) for request in call.argument("requests")], None
        if one and any(posted.anybody is not None for posted in every):
            asked = call.with_status(self._recorder.status)

        def came(result: Any) -> None:
            found = result[0] if isinstance(result, tuple) else result  # the pickled ones also return messages
            index = found if isinstance(found, int) else found[0] if found else -1
            if 0 <= index < len(every):
                self._waits(call, every[index], asked)

        call.came = came

    def _post(self, request: MPI.Request, posted: Posted) -> None:
        self._posted[request.handle] = posted

    def _posted_of(self, request: MPI.Request) -> Posted:
        return self._posted.get(request.handle, _NOTHING) if request else _NOTHING

    def _waits(self, call: TimedCall, posted: Posted, asked: MPI.Status | None) -> None:
        """Note that the call waits, or has waited, for a posted operation."""
        call.whom = posted.whom
        if asked is not None and posted.anybody is not None:
            call.whom = self._recorder.peer(posted.anybody, asked.source)
        stream = posted.stream
        if stream is not None and posted.index >= 0:
            index, posted.index = posted.index, -1
            call.left = lambda left: stream.waited(index, call.entered, left, call.number)

    def _last(self, requests: Sequence[MPI.Request]) -> tuple[Posted, MPI.Status | None]:
        """Wait until all are complete; return the last one's operation, and its status if that names the source."""
        last, asked = _NOTHING, None
        pending = list(requests)
        try:
            while pending:
                still = [one for one in pending if not one.Get_status()]
                if not still:
                    last = self._posted_of(pending[-1])
                    if last.anybody is not None and pending[-1].Get_status(self._recorder.status):
                        asked = self._recorder.status
                pending = still
                if pending:
                    os.sched_yield()  # to another rank on this core, as MPI does if oversubscribed
        except MPI.Exception:  # MPI's own call will raise it
            return _NOTHING, None
        return last, asked


def _replace(kind: type, name: str, value: object) -> None:
    """Replace a method of a class of mpi4py: a class written in C has a dictionary as any other, but refuses setattr."""
    (methods,) = gc.get_referents(kind.__dict__)
    methods[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))  # clears the interpreter's caches of methods


COMMUNICATORS = (
    MPI.Comm, MPI.Intracomm, MPI.Topocomm, MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm, MPI.Intercomm,
)  # fmt: skip
TALKS = (
    "send ssend bsend Send Ssend Bsend Rsend recv Recv sendrecv Sendrecv Sendrecv_replace probe Probe mprobe Mprobe"
)
STARTS = (
    "isend issend ibsend Isend Issend Ibsend Irsend Send_init Ssend_init Bsend_init Rsend_init Psend_init irecv Irecv "
    "Recv_init Precv_init Isendrecv Isendrecv_replace"
)
COLLECTIVES = {
    TOGETHER: "Barrier Allgather Allgatherv Alltoall Alltoallv Alltoallw Allreduce Reduce_scatter Reduce_scatter_block",
    PARTLY: "Bcast Gather Gatherv Scatter Scatterv Reduce Scan Exscan Neighbor_allgather Neighbor_allgatherv "
    "Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw",
}  # and their other forms: bcast, Ibcast, Bcast_init
MAKES_TOGETHER = (
    "Dup Clone Dup_with_info Split Split_type Create Create_cart Create_graph Create_dist_graph "
    "Create_dist_graph_adjacent Sub Merge"
)
MAKES_ALONE = "Create_group Create_intercomm Spawn Spawn_multiple Accept Connect"
QUESTIONS = "iprobe Iprobe improbe Improbe Attach_buffer Detach_buffer Flush_buffer"
WINDOWS = "Create Allocate Allocate_shared Create_dynamic"
