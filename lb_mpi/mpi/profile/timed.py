"""Ways to time a method of mpi4py's: each takes the plain one, and makes one that does the same and tells a Recorder.

`Timed(recorder)` has one way for each sort of call: sends, receives, collectives, requests, questions.  Where a request is
returned, what is waited for by it is noted on it (`Posted`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from lb_mpi.mpi.profile.profiling import Recorder, n_bytes
from lb_mpi.profiling.calls import NEIGHBOURS, NOBODY, Stream

Method = Callable[..., Any]


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
