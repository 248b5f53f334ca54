"""Ways to time what is done with requests and messages: waits, tests, starts of persistent ones; see `timed`.

A wait for several requests is a wait for the one that is complete last.  Who that is, is found by asking each without
completing it (MPI_Request_get_status), until all are there; then MPI's own call does what it always does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from lb_mpi.mpi.profile.profiling import Recorder
from lb_mpi.mpi.profile.timed import Method, Posted, with_status

_is_complete = MPI.Request.Get_status  # the plain one


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
