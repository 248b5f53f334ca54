"""Timed methods of mpi4py's: the `Recorder` of one rank's calls, and a way to time each sort of call.

The recorder knows clocks, places in the program, and ranks behind communicators; it carries
`lb_mpi.profiling.profile.Calls` on the clocks of this rank.  Only calls of the thread that has made it are recorded; those
of others take place while that one computes.  Calls within calls (a reduction in Python that sends, say) are part of the
outer one.

Each way gets mpi4py's plain method, and makes one that does the same and reports it to the recorder.  Where a request is
returned, what is waited for by it is noted on it (`Posted`).  A wait for several requests is a wait for the one that is
complete last: each is asked without completing it (MPI_Request_get_status), until all are there; then MPI's own call does
what it always does.
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
    """What is known of a communicator."""

    peers: tuple[int, ...]  # whom its ranks, to which one sends, are in the program; NOBODY: of another program
    stream: Stream | None  # of its collectives; None: nobody to be waited for
    neighbours: int = 0  # the kind of its neighbourhood collectives in this stream


class Lines:
    """Where in the program a call has come from."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._here = str(Path.cwd()) + "/"
        self._skipped: dict[int, tuple[CodeType, bool]] = {}

    def place(self, call: str, known: dict[tuple[int, int], int]) -> int:
        """The number of the innermost line of the program above who asks; `known` is this call's own."""
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
        if found is None:  # the code is kept, so that its id stays its own
            found = self._skipped[id(code)] = code, not _is_of_the_program(code.co_filename)
        return found[1]


def _is_of_the_program(file: str) -> bool:
    """False for lb_mpi, mpi4py and Python's own modules; other people's packages are parts of the program."""
    return not file.startswith(OURS) and ("/site-packages/" in file or not file.startswith(PYTHONS))


class Recorder:
    """Times what the main thread does in MPI."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.calls = Calls()
        self.lines = Lines(self.calls)
        self.pickled = 0  # bytes made by pickle in the call that is being timed
        self.status = MPI.Status()  # for calls whose status the program doesn't want
        self.unseen: set[str] = set()  # what the program does, and what is not timed
        self.save: Callable[[], None] | None = None  # to be called now and then
        self._world = world.Get_group()
        self._thread = threading.get_ident()
        self._busy = False
        self.restart()

    def restart(self) -> None:
        """The program begins."""
        self.began = _now()
        self._cpu = CpuShare(self.began, time.thread_time_ns())
        self._save_at = self.began + SAVE_FIRST_NS if self.save else math.inf

    def elsewhere(self) -> bool:
        """True when this call isn't to be timed: in another thread, or within a call."""
        if threading.get_ident() != self._thread:
            self.unseen.add("calls of threads other than the main one")
            return True
        return self._busy

    def enter(self) -> int:
        """A call begins; the time."""
        self._busy = True
        self.pickled = 0
        now = _now()
        if now > self._cpu.due:
            self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        return now

    def leave(self, number: int, entered: int, n_bytes: int = 0, whom: int = NOBODY) -> int:
        """A call has ended; the time."""
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
        """Nanoseconds since the program began, those outside of MPI, and the latter's CPU time."""
        now = _now()
        self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        return now - self.began, now - self.began - self.calls.in_mpi_ns, self._cpu.outside_ns

    def known(self, comm: MPI.Comm) -> Known:
        """What is known of a communicator."""
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
        """The rank of the program behind a rank of a communicator; NOBODY where there is none."""
        peers = self.known(comm).peers
        return peers[rank] if isinstance(rank, int) and 0 <= rank < len(peers) else NOBODY


def n_bytes(spec: object) -> int:
    """Bytes of a buffer as mpi4py takes it; 0 where it can't be told."""
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
    """Bytes of [buffer, count or counts, (displacements,) datatype]; of the whole buffer where one of these is missing."""
    kind = MPI.Datatype.fromcode(spec[-1]) if isinstance(spec[-1], str) else spec[-1]
    if len(spec) < 3 or not isinstance(kind, MPI.Datatype) or spec[1] is None:
        return n_bytes(spec[0])
    counts = spec[1] if hasattr(spec[1], "__len__") else [spec[1]]
    if hasattr(counts[0], "__len__"):
        counts = counts[0]  # of (counts, displacements)
    return sum(int(one) for one in counts) * kind.Get_size()


# --- messages and collectives -----------------------------------------------------------------------------------------


class Posted:
    """What a request stands for."""

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
        self.whom = whom  # the rank that it waits for
        self.anybody = anybody  # of this communicator: the status will tell
        self.stream = stream  # of a collective
        self.kind, self.index = kind, -1  # of the collective, and which one of the stream
        self.n_bytes = n_bytes  # of a persistent one, each time it starts


class Timed:
    """Makes timed methods; `adopt` makes the communicators, requests and messages that they return timed ones, too."""

    def __init__(self, recorder: Recorder, adopt: Callable[[Any], Any]) -> None:
        self.recorder, self.adopt = recorder, adopt

    def call(self, name: str, plain: Method, whom: int = NOBODY) -> Method:
        """A call that waits for nobody, such as a question; or, by `whom`, for somebody."""
        recorder, adopt, places = self.recorder, self.adopt, _places()

        @functools.wraps(plain)
        def method(*args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(*args, **kwargs))
            number = recorder.lines.place(name, places)
            entered = recorder.enter()
            try:
                return adopt(plain(*args, **kwargs))
            finally:
                recorder.leave(number, entered, 0, whom)

        return method

    def send(self, name: str, plain: Method) -> Method:
        """A blocking send: the wait is for the destination."""
        recorder, places = self.recorder, _places()
        buffers = name[0].isupper()

        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return plain(self, *args, **kwargs)
            whom = recorder.peer(self, argument(args, kwargs, 1, "dest"))
            size = n_bytes(argument(args, kwargs, 0, "buf")) if buffers else 0
            number = recorder.lines.place(name, places)
            entered = recorder.enter()
            try:
                return plain(self, *args, **kwargs)
            finally:
                recorder.leave(number, entered, size, whom)

        return method

    def receive(self, name: str, plain: Method, source: int, status: int, sends: str = "") -> Method:
        """A blocking receive, or a probe: the wait is for the source.  source, status: positions of these arguments.

        sends : the name of what is sent in the same call, its first argument.
        """
        recorder, adopt, places = self.recorder, self.adopt, _places()

        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(self, *args, **kwargs))
            rank = argument(args, kwargs, source, "source", MPI.ANY_SOURCE)
            if rank == MPI.PROC_NULL and sends:
                rank = argument(args, kwargs, 1, "dest")
            asked = None
            if rank == MPI.ANY_SOURCE:
                args, kwargs, asked = with_status(recorder, args, kwargs, status)
            size = n_bytes(argument(args, kwargs, 0, sends)) if sends and name[0].isupper() else 0
            whom = recorder.peer(self, rank)
            number = recorder.lines.place(name, places)
            entered = recorder.enter()
            try:
                result = plain(self, *args, **kwargs)
                if asked is not None:
                    whom = recorder.peer(self, asked.source)
                if isinstance(result, MPI.Message):
                    result = adopt(result)
                    result._posted = Posted(whom)
                return result
            finally:
                recorder.leave(number, entered, size, whom)

        return method

    def start(self, name: str, plain: Method, peer: tuple[int, str], sends: bool) -> Method:
        """A call that returns a request for a message; peer: position and name of the argument that tells with whom."""
        recorder, adopt, places = self.recorder, self.adopt, _places()
        persistent, buffers = name.endswith("_init"), name[0].isupper()
        position, word = peer

        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            request = None
            if recorder.elsewhere():
                return adopt(plain(self, *args, **kwargs))
            rank = argument(args, kwargs, position, word, MPI.ANY_SOURCE)
            size = (
                n_bytes(argument(args, kwargs, 0, "sendbuf" if word == "source" else "buf")) if sends and buffers else 0
            )
            posted = Posted(
                recorder.peer(self, rank),
                anybody=self if rank == MPI.ANY_SOURCE else None,
                n_bytes=size if persistent else 0,
            )
            number = recorder.lines.place(name, places)
            entered = recorder.enter()
            try:
                request = adopt(plain(self, *args, **kwargs))
                request._posted = posted
                return request
            finally:
                recorder.leave(number, entered, 0 if persistent else size)

        return method

    def collective(self, name: str, plain: Method, kind: int, size: Callable[..., int]) -> Method:
        """A blocking collective; whom one has waited for comes out when all have told."""
        recorder, adopt, places = self.recorder, self.adopt, _places()

        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(self, *args, **kwargs))
            _, stream, neighbours = recorder.known(self)
            sent = size(self, *args, **kwargs)
            number = recorder.lines.place(name, places)
            entered = recorder.enter()
            try:
                return adopt(plain(self, *args, **kwargs))
            finally:
                left = recorder.leave(number, entered, sent)
                if stream is not None:
                    recorder.calls.join(
                        stream, neighbours if kind == NEIGHBOURS else kind, number, entered, entered, left
                    )

        return method

    def begin_collective(self, name: str, plain: Method, kind: int, size: Callable[..., int]) -> Method:
        """A collective that returns a request; the wait is that of the request."""
        recorder, adopt, places = self.recorder, self.adopt, _places()
        persistent = name.endswith("_init")

        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(self, *args, **kwargs))
            _, stream, neighbours = recorder.known(self)
            sent = size(self, *args, **kwargs)
            posted = Posted(
                stream=stream, kind=neighbours if kind == NEIGHBOURS else kind, n_bytes=sent if persistent else 0
            )
            number = recorder.lines.place(name, places)
            entered = recorder.enter()
            try:
                result = adopt(plain(self, *args, **kwargs))
                request = result[1] if isinstance(result, tuple) else result  # Idup: a communicator, too
                request._posted = posted
                return result
            finally:
                recorder.leave(number, entered, 0 if persistent else sent)
                if stream is not None and not persistent:
                    posted.index = recorder.calls.join(stream, posted.kind, number, entered, entered, entered)

        return method


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    """An argument, however it was given."""
    return args[position] if len(args) > position else kwargs.get(name, default)


def with_status(
    recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], position: int
) -> tuple[tuple[Any, ...], dict[str, Any], MPI.Status]:
    """The arguments with a status: the program's own, or else the recorder's; and that one."""
    given: MPI.Status | None = argument(args, kwargs, position, "status")
    if given is not None:
        return args, kwargs, given
    return args[:position], {**kwargs, "status": recorder.status}, recorder.status


def _places() -> dict[tuple[int, int], int]:
    return {}


# --- requests and messages that have come -----------------------------------------------------------------------------


def wait(recorder: Recorder, name: str, plain: Method) -> Method:
    """The wait for one request."""
    places: dict[tuple[int, int], int] = {}

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(self, *args, **kwargs)
        posted = _posted(self)
        asked = None
        if posted.anybody is not None:
            args, kwargs, asked = with_status(recorder, args, kwargs, 0)
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            return plain(self, *args, **kwargs)
        finally:
            _waited(recorder, posted, asked, number, entered)

    return method


def wait_all(recorder: Recorder, name: str, plain: Method) -> classmethod[Any, Any, Any]:
    """The wait for all of some requests."""
    places: dict[tuple[int, int], int] = {}

    @functools.wraps(plain)
    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(requests, *args, **kwargs)
        last, asked = Posted(), None
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            last, asked = _last(recorder, requests)
            return plain(requests, *args, **kwargs)
        finally:
            _waited(recorder, last, asked, number, entered)

    return classmethod(method)


def wait_some(recorder: Recorder, name: str, plain: Method) -> classmethod[Any, Any, Any]:
    """The wait for one of some requests, or for at least one of them."""
    places: dict[tuple[int, int], int] = {}
    one = name.lower() == "waitany"

    @functools.wraps(plain)
    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(requests, *args, **kwargs)
        came, asked = Posted(), None
        if one and any(_posted(request).anybody is not None for request in requests):
            args, kwargs, asked = with_status(recorder, args, kwargs, 0)
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            result = plain(requests, *args, **kwargs)
            found = result[0] if isinstance(result, tuple) else result  # the pickled ones return messages, too
            index = found if isinstance(found, int) else found[0] if found else -1
            if 0 <= index < len(requests):
                came = _posted(requests[index])
            return result
        finally:
            _waited(recorder, came, asked, number, entered)

    return classmethod(method)


def restart(recorder: Recorder, name: str, plain: Method) -> Method:
    """The start of a persistent request."""
    places: dict[tuple[int, int], int] = {}

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(self, *args, **kwargs)
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            return plain(self, *args, **kwargs)
        finally:
            recorder.leave(number, entered, _started(recorder, self, number, entered))

    return method


def restart_all(recorder: Recorder, name: str, plain: Method) -> classmethod[Any, Any, Any]:
    """The start of several persistent requests."""
    places: dict[tuple[int, int], int] = {}

    @functools.wraps(plain)
    def method(cls: type, requests: Sequence[MPI.Prequest], *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(requests, *args, **kwargs)
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            return plain(requests, *args, **kwargs)
        finally:
            recorder.leave(number, entered, sum(_started(recorder, one, number, entered) for one in requests))

    return classmethod(method)


def receive_message(recorder: Recorder, name: str, plain: Method) -> Method:
    """The receive of a message that a probe has matched: its way here is a wait for who has sent it."""
    places: dict[tuple[int, int], int] = {}

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(self, *args, **kwargs)
        posted = _posted(self)
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            return plain(self, *args, **kwargs)
        finally:
            recorder.leave(number, entered, 0, posted.whom)

    return method


def test_all(recorder: Recorder, name: str, plain: Method) -> classmethod[Any, Any, Any]:
    """A question about several requests, which waits for nobody."""
    places: dict[tuple[int, int], int] = {}

    @functools.wraps(plain)
    def method(cls: type, *args: Any, **kwargs: Any) -> Any:
        if recorder.elsewhere():
            return plain(*args, **kwargs)
        number = recorder.lines.place(name, places)
        entered = recorder.enter()
        try:
            return plain(*args, **kwargs)
        finally:
            recorder.leave(number, entered)

    return classmethod(method)


def _posted(request: Any) -> Posted:
    return getattr(request, "_posted", None) or _NOTHING


_NOTHING = Posted()


def _last(recorder: Recorder, requests: Sequence[MPI.Request]) -> tuple[Posted, MPI.Status | None]:
    """Wait until all are complete; what the last one stands for, and its status if that is to tell the source."""
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
                os.sched_yield()  # to a rank on this core, as MPI does where there are more ranks than cores
    except MPI.Exception:  # MPI's own call will say so
        return _NOTHING, None
    return last, asked


def _waited(recorder: Recorder, posted: Posted, asked: MPI.Status | None, number: int, entered: int) -> None:
    """The wait for what was posted is over."""
    whom = posted.whom
    if asked is not None and posted.anybody is not None:
        whom = recorder.peer(posted.anybody, asked.source)
    left = recorder.leave(number, entered, 0, whom)
    if posted.stream is not None and posted.index >= 0:
        posted.stream.waited(posted.index, entered, left, number)
        posted.index = -1


def _started(recorder: Recorder, request: Any, number: int, now: int) -> int:
    """Note that a persistent request has been started; the bytes it sends."""
    posted = _posted(request)
    if posted.stream is not None:
        posted.index = recorder.calls.join(posted.stream, posted.kind, number, now, now, now)
    return posted.n_bytes
