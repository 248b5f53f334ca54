"""Timed methods of mpi4py: the `Recorder` of one rank's calls, and wrappers for each kind of call.

The recorder knows clocks, places in the program, and the ranks of communicators; it feeds `lb_mpi.profiling.profile.Calls`
with the clocks of this rank.  Only calls of the thread that created it are recorded; those of others happen while that one
computes.  Calls within calls (for example a reduction in Python that sends) are part of the outer one.

Each wrapper receives mpi4py's plain method, and makes one that does the same and reports to the recorder.  A returned
request is labelled with its operation (`Posted`).  A wait for several requests counts as a wait for the last one to
complete: each is tested without completing it (MPI_Request_get_status), until all are complete; then MPI's own call follows.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import mpi4py
from mpi4py import MPI

import lb_mpi
from lb_mpi.profiling.profile import NEIGHBOURS, NOBODY, Calls, CpuShare, Stream

OURS = tuple(str(Path(str(package.__file__)).parent) + "/" for package in (lb_mpi, mpi4py))
PYTHONS = (sysconfig.get_path("stdlib") + "/", "<frozen ")
SAVE_FIRST_NS, SAVE_EVERY_NS = 1_000_000_000, 5_000_000_000
_now = time.perf_counter_ns
_is_complete = MPI.Request.Get_status  # the plain one
Method = Callable[..., Any]


class Known(NamedTuple):
    """Facts about a communicator."""

    peers: tuple[int, ...]  # rank in the program of each of its (remote) ranks; NOBODY: of another program
    stream: Stream | None  # of its collectives; None: there is nobody to wait for
    neighbours: int = 0  # the kind of its neighbourhood collectives in this stream


class Lines:
    """The lines of the program that make calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._here = str(Path.cwd()) + "/"
        self._skipped: dict[int, tuple[CodeType, bool]] = {}

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
            number = known[key] = self._calls.number(file, frame.f_lineno, code.co_name, call)
        return number

    def _skip(self, code: CodeType) -> bool:
        found = self._skipped.get(id(code))
        if found is None:  # keeps the code alive, so that its id stays unique
            found = self._skipped[id(code)] = code, not _is_of_the_program(code.co_filename)
        return found[1]


def _is_of_the_program(file: str) -> bool:
    """Return False for lb_mpi, mpi4py and Python's own modules; other packages count as parts of the program."""
    return not file.startswith(OURS) and ("/site-packages/" in file or not file.startswith(PYTHONS))


class Recorder:
    """Times what the main thread does in MPI."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.calls = Calls()
        self.lines = Lines(self.calls)
        self.pickled = 0  # bytes made by pickle in the current call
        self.status = MPI.Status()  # for calls without a status of the program's
        self.unseen: set[str] = set()  # untimed operations of the program
        self.save: Callable[[], None] | None = None  # called from time to time
        self._world = world.Get_group()
        self._thread = threading.get_ident()
        self._busy = False
        self.restart()

    def restart(self) -> None:
        """Restart at the start of the program."""
        self.began = _now()
        self._cpu = CpuShare(self.began, time.thread_time_ns())
        self._save_at = self.began + SAVE_FIRST_NS if self.save else math.inf

    def elsewhere(self) -> bool:
        """True if this call isn't timed: in another thread, or within a call."""
        if threading.get_ident() != self._thread:
            self.unseen.add("calls of threads other than the main one")
            return True
        return self._busy

    def enter(self) -> int:
        """Begin a call; return the time."""
        self._busy = True
        self.pickled = 0
        now = _now()
        if now > self._cpu.due:
            self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        return now

    def leave(self, number: int, entered: int, n_bytes: int = 0, whom: int = NOBODY) -> int:
        """End a call; return the time."""
        now = _now()
        self.calls.add(number, entered, now, n_bytes + self.pickled, whom)
        if now > self._cpu.due:
            self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        if now > self._save_at and self.save is not None:
            self.save()
            self._save_at = _now() + SAVE_EVERY_NS
        self._busy = False
        return now

    def stop(self) -> tuple[int, int, float]:
        """Return the nanoseconds since the program's start, those outside of MPI, and the latter's CPU time."""
        now = _now()
        self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        return now - self.began, now - self.began - self.calls.in_mpi_ns, self._cpu.outside_ns

    def known(self, comm: MPI.Comm) -> Known:
        """Return the facts about a communicator."""
        found: Known | None = getattr(comm, "_known", None)
        if found is None:
            found = self._look_at(comm)
            if hasattr(comm, "_known"):
                comm._known = found
        return found

    def _look_at(self, comm: MPI.Comm) -> Known:
        if comm == MPI.COMM_NULL:
            return Known((), None)
        own = peers = self._in_world(comm.Get_group())
        if comm.Is_inter():
            peers = self._in_world(comm.Get_remote_group())  # type: ignore[attr-defined]
        stream = self.calls.stream(own if peers is own else own + peers)
        if stream is None or not isinstance(comm, MPI.Topocomm):
            return Known(peers, stream)
        return Known(peers, stream, stream.kind_of([peers[rank] for rank in comm.inedges if rank >= 0]))

    def _in_world(self, group: MPI.Group) -> tuple[int, ...]:
        ranks: Sequence[int] = group.Translate_ranks(None, self._world)
        group.Free()
        return tuple(rank if rank >= 0 else NOBODY for rank in ranks)

    def peer(self, comm: MPI.Comm, rank: object) -> int:
        """Return the rank in the program of a rank of a communicator; NOBODY if there is none."""
        peers = self.known(comm).peers
        return peers[rank] if isinstance(rank, int) and 0 <= rank < len(peers) else NOBODY


def n_bytes(spec: object) -> int:
    """Return the bytes of a buffer argument of mpi4py; 0 if unknown."""
    if spec is None:
        return 0
    found = getattr(spec, "nbytes", None)
    if found is not None:
        return int(found)
    try:
        if isinstance(spec, list | tuple):
            return _of_several(spec)
        return memoryview(spec).nbytes  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError):
        return 0


def _of_several(spec: Sequence[Any]) -> int:
    """Return the bytes of [buffer, count or counts, (displacements,) datatype]; of the whole buffer if one is missing."""
    kind = MPI.Datatype.fromcode(spec[-1]) if isinstance(spec[-1], str) else spec[-1]
    if len(spec) < 3 or not isinstance(kind, MPI.Datatype) or spec[1] is None:
        return n_bytes(spec[0])
    counts = spec[1] if hasattr(spec[1], "__len__") else [spec[1]]
    if hasattr(counts[0], "__len__"):
        counts = counts[0]  # of (counts, displacements)
    return sum(int(one) for one in counts) * kind.Get_size()


# --- wrappers for each kind of method ---------------------------------------------------------------------------------


class Posted:
    """The operation of a request."""

    __slots__ = ("anybody", "index", "kind", "n_bytes", "stream", "whom")

    def __init__(
        self,
        whom: int = NOBODY,
        *,
        anybody: MPI.Comm | None = None,
        stream: Stream | None = None,
        kind: int = 0,
        n_bytes: int = 0,
    ) -> None:
        self.whom = whom  # the rank for which it waits
        self.anybody = anybody  # of this communicator: the status names the rank
        self.stream = stream  # of a collective
        self.kind, self.index = kind, -1  # of the collective, and its index in the stream
        self.n_bytes = n_bytes  # of a persistent one, per start


_NOTHING = Posted()


class TimedCall:
    """A call being timed; a wrapper's `begin` fills it in."""

    __slots__ = ("came", "entered", "left", "n_bytes", "number", "whom")

    def __init__(self, number: int, entered: int) -> None:
        self.number, self.entered = number, entered  # its place in the program, and its start
        self.n_bytes = 0  # sent by MPI
        self.whom = NOBODY  # the rank for which it waits
        self.came: Callable[[Any], object] | None = None  # called with the result
        self.left: Callable[[int], object] | None = None  # called with the end of the call


Begin = Callable[[TimedCall, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class TimedMethods:
    """A factory of timed methods; `adopt` makes returned communicators, requests and messages timed as well."""

    def __init__(self, recorder: Recorder, adopt: Callable[[Any], Any]) -> None:
        self.recorder, self.adopt = recorder, adopt

    def _method(self, name: str, plain: Method, begin: Begin) -> Method:
        """Return `plain` with timing; `begin` fills in the call, and returns the arguments."""
        recorder, adopt = self.recorder, self.adopt
        places: dict[tuple[int, int], int] = {}

        @functools.wraps(plain)
        def method(*args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(*args, **kwargs))
            call = TimedCall(recorder.lines.place(name, places), recorder.enter())
            try:
                args, kwargs = begin(call, args, kwargs)
                result = adopt(plain(*args, **kwargs))
                if call.came is not None:
                    call.came(result)
                return result
            finally:
                left = recorder.leave(call.number, call.entered, call.n_bytes, call.whom)
                if call.left is not None:
                    call.left(left)

        return method

    def call(self, name: str, plain: Method, whom: int = NOBODY) -> Method:
        """Return a timed call that waits for no rank, such as a query, or for rank `whom`."""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            call.whom = whom
            return args, kwargs

        return self._method(name, plain, begin)

    def send(self, name: str, plain: Method) -> Method:
        """Return a timed blocking send: it waits for the destination."""
        buffers = name[0].isupper()

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            call.whom = self.recorder.peer(args[0], argument(args, kwargs, 2, "dest"))
            call.n_bytes = n_bytes(argument(args, kwargs, 1, "buf")) if buffers else 0
            return args, kwargs

        return self._method(name, plain, begin)

    def receive(self, name: str, plain: Method, source: int, status: int, sends: str = "") -> Method:
        """Return a timed blocking receive or probe: it waits for the source.  source, status: positions of these arguments.

        sends : the name of the data sent in the same call, its first argument.
        """
        recorder, buffers = self.recorder, sends and name[0].isupper()

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            comm, asked = args[0], None
            rank = argument(args, kwargs, source + 1, "source", MPI.ANY_SOURCE)
            if rank == MPI.PROC_NULL and sends:
                rank = argument(args, kwargs, 2, "dest")
            call.whom = recorder.peer(comm, rank)
            call.n_bytes = n_bytes(argument(args, kwargs, 1, sends)) if buffers else 0
            if rank == MPI.ANY_SOURCE:
                args, kwargs, asked = with_status(recorder, args, kwargs, status + 1)

            def came(result: Any) -> None:
                if asked is not None:
                    call.whom = recorder.peer(comm, asked.source)
                if isinstance(result, MPI.Message):
                    result._posted = Posted(call.whom)  # type: ignore[attr-defined]

            call.came = came
            return args, kwargs

        return self._method(name, plain, begin)

    def start(self, name: str, plain: Method, peer: tuple[int, str], sends: bool) -> Method:
        """Return a timed call whose result is a message's request; peer: position and name of the other rank's argument."""
        persistent, (position, word) = name.endswith("_init"), peer
        sent = ("sendbuf" if word == "source" else "buf") if sends and name[0].isupper() else ""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            rank = argument(args, kwargs, position + 1, word, MPI.ANY_SOURCE)
            anybody = args[0] if rank == MPI.ANY_SOURCE else None
            posted = Posted(self.recorder.peer(args[0], rank), anybody=anybody)
            which = posted if persistent else call
            which.n_bytes = n_bytes(argument(args, kwargs, 1, sent)) if sent else 0
            call.came = lambda request: setattr(request, "_posted", posted)
            return args, kwargs

        return self._method(name, plain, begin)

    def collective(self, name: str, plain: Method, kind: int, size: Callable[..., int]) -> Method:
        """Return a timed blocking collective; the awaited rank is determined at the end of the run."""
        recorder = self.recorder

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            _, stream, neighbours = recorder.known(args[0])
            call.n_bytes = size(*args, **kwargs)
            if stream is not None:
                its, at = neighbours if kind == NEIGHBOURS else kind, call.entered
                call.left = lambda left: recorder.calls.join(stream, its, call.number, at, at, left)
            return args, kwargs

        return self._method(name, plain, begin)

    def begin_collective(self, name: str, plain: Method, kind: int, size: Callable[..., int]) -> Method:
        """Return a timed nonblocking collective; its request waits."""
        recorder, persistent = self.recorder, name.endswith("_init")

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            _, stream, neighbours = recorder.known(args[0])
            posted = Posted(stream=stream, kind=neighbours if kind == NEIGHBOURS else kind)
            which = posted if persistent else call
            which.n_bytes = size(*args, **kwargs)

            def came(result: Any) -> None:
                request = result[1] if isinstance(result, tuple) else result  # Idup also returns a communicator
                request._posted = posted

            call.came = came
            if not persistent:
                call.left = lambda _left: _join(recorder, posted, call)
            return args, kwargs

        return self._method(name, plain, begin)

    def wait(self, name: str, plain: Method) -> Method:
        """Return a timed wait for one request."""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            posted, asked = _posted(args[0]), None
            if posted.anybody is not None:
                args, kwargs, asked = with_status(self.recorder, args, kwargs, 1)
            call.came = lambda _result: self._waits(call, posted, asked)
            call.whom = posted.whom
            return args, kwargs

        return self._method(name, plain, begin)

    def wait_all(self, name: str, plain: Method) -> classmethod[Any, Any, Any]:
        """Return a timed wait for all of some requests: it counts as a wait for the last."""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            self._waits(call, *_last(self.recorder, args[0]))
            return args, kwargs

        return _of_class(self._method(name, plain, begin))

    def wait_some(self, name: str, plain: Method) -> classmethod[Any, Any, Any]:
        """Return a timed wait for one of some requests, or at least one of them."""
        one = name.lower() == "waitany"

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            requests, asked = args[0], None
            if one and any(_posted(request).anybody is not None for request in requests):
                args, kwargs, asked = with_status(self.recorder, args, kwargs, 1)

            def came(result: Any) -> None:
                found = result[0] if isinstance(result, tuple) else result  # the pickled ones also return messages
                index = found if isinstance(found, int) else found[0] if found else -1
                if 0 <= index < len(requests):
                    self._waits(call, _posted(requests[index]), asked)

            call.came = came
            return args, kwargs

        return _of_class(self._method(name, plain, begin))

    def restart(self, name: str, plain: Method) -> Method:
        """Return a timed start of a persistent request."""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            self._starts(call, args[:1])
            return args, kwargs

        return self._method(name, plain, begin)

    def restart_all(self, name: str, plain: Method) -> classmethod[Any, Any, Any]:
        """Return a timed start of several persistent requests."""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            self._starts(call, args[0])
            return args, kwargs

        return _of_class(self._method(name, plain, begin))

    def receive_message(self, name: str, plain: Method) -> Method:
        """Return a timed receive of a probed message: it waits for the sender."""

        def begin(call: TimedCall, args: Any, kwargs: Any) -> Any:
            call.whom = _posted(args[0]).whom
            return args, kwargs

        return self._method(name, plain, begin)

    def test_all(self, name: str, plain: Method) -> classmethod[Any, Any, Any]:
        """Return a timed test of several requests, which waits for no rank."""
        return _of_class(self.call(name, plain))

    def _waits(self, call: TimedCall, posted: Posted, asked: MPI.Status | None) -> None:
        """Note that the call waits, or has waited, for a posted operation."""
        call.whom = posted.whom
        if asked is not None and posted.anybody is not None:
            call.whom = self.recorder.peer(posted.anybody, asked.source)
        stream = posted.stream
        if stream is not None and posted.index >= 0:
            index, posted.index = posted.index, -1
            call.left = lambda left: stream.waited(index, call.entered, left, call.number)

    def _starts(self, call: TimedCall, requests: Sequence[Any]) -> None:
        """Note that this call starts persistent requests."""
        every = [_posted(request) for request in requests]
        call.n_bytes = sum(posted.n_bytes for posted in every)

        def left(_left: int) -> None:
            for posted in every:
                _join(self.recorder, posted, call)

        call.left = left


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    """Return an argument, positional or keyword."""
    return args[position] if len(args) > position else kwargs.get(name, default)


def with_status(
    recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], position: int
) -> tuple[tuple[Any, ...], dict[str, Any], MPI.Status]:
    """Return the arguments with a status: the program's own, or else the recorder's; and that status."""
    given: MPI.Status | None = argument(args, kwargs, position, "status")
    if given is not None:
        return args, kwargs, given
    return args[:position], {**kwargs, "status": recorder.status}, recorder.status


def _of_class(method: Method) -> classmethod[Any, Any, Any]:
    """Return the class method that does this on any class."""
    return classmethod(lambda _cls, *args, **kwargs: method(*args, **kwargs))


def _posted(request: Any) -> Posted:
    return getattr(request, "_posted", None) or _NOTHING


def _join(recorder: Recorder, posted: Posted, call: TimedCall) -> None:
    """Add a nonblocking collective to its stream."""
    if posted.stream is not None:
        at = call.entered
        posted.index = recorder.calls.join(posted.stream, posted.kind, call.number, at, at, at)


def _last(recorder: Recorder, requests: Sequence[MPI.Request]) -> tuple[Posted, MPI.Status | None]:
    """Wait until all are complete; return the last one's operation, and its status if that names the source."""
    last, asked = _NOTHING, None
    pending = list(requests)
    try:
        while pending:
            still = [one for one in pending if not _is_complete(one)]
            if not still:
                done = pending[-1]
                last = _posted(done)
                if last.anybody is not None and _is_complete(done, recorder.status):
                    asked = recorder.status
            pending = still
            if pending:
                os.sched_yield()  # to another rank on this core, as MPI does if oversubscribed
    except MPI.Exception:  # MPI's own call will raise it
        return _NOTHING, None
    return last, asked
