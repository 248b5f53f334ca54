"""The other ranks' part: follow the root's orders, one after the other; work on a map from its START to its END."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.crew import MAP, Crew
from lb_mpi.mpi.handles import Handle, keep_pickled
from lb_mpi.mpi.interrupts import held
from lb_mpi.mpi.items import Coming
from lb_mpi.mpi.meeting import Op, meet
from lb_mpi.mpi.parcels import Buffer, body
from lb_mpi.mpi.pool_messages import End, Flag, Tag, failure_of, read_start, task_error, unpack_failure
from lb_mpi.mpi.shift import Call, Outbox, Shift
from lb_mpi.mpi.submitting import serve_task


class Followed(NamedTuple):
    """What has become of a map, as another rank than the root sees it."""

    end: End
    value: Any = None  # all results, when all ranks get them
    error: BaseException | None = None


def follow(crew: Crew, buffer: Buffer, function: Callable[..., Any] | None = None) -> Followed:
    """Work on the map of a START to its end; `function` is the rank's own, None: the root has sent it."""
    start = read_start(buffer)
    data = crew.host.shelf.spread(start.data_bytes, None) if start.flags & Flag.SHELF else body(buffer)
    outbox = Outbox(crew.post.parcels, crew.root, crew.rank, start.epoch)
    crew.host.words.tell_speed(crew.rank, start.speed)
    crew.meet(start.epoch)
    crew.steals.begin(time.perf_counter(), start.lo, start.hi)
    crew.worker.begin(start.epoch, start.lo, start.hi, start.chunksize)
    some: Callable[[int, int], list[Any]] = _none
    try:
        if start.function_bytes:
            crew.functions.keep(start.digest, _none)  # whatever comes of it: all ranks know the same digests
            crew.functions.keep(start.digest, function or pickle.loads(data[: start.function_bytes]))
        function = function or crew.functions[start.digest]
        some = Coming(data[start.function_bytes : start.data_bytes]).some
    except Exception as error:  # the user's classes may do anything when they are unpickled
        function = _none
        outbox.fail(failure_of(error, crew.rank), error)
        crew.worker.end()
    call = Call(function, bool(start.flags & Flag.STAR), bool(start.flags & Flag.KEEP_EXCEPTIONS))
    shift = Shift(crew.worker, crew.host.words, crew.post.parcels, call, some, outbox, crew.steals, crew.clocks)
    try:
        with crew.news.roll.call(MAP):
            end = _work(crew, shift)
    finally:
        shift.end()
        crew.steals.end(time.perf_counter(), shift.done, crew.emulated_speeds[crew.rank])
    kind, index, payload = crew.read_all(end)
    if kind == End.FAILED:
        told: BaseException = task_error(unpack_failure(payload), None if index < 0 else index)
        own = outbox.failed
        return Followed(End.FAILED, error=told if own is None or isinstance(own, Exception) else own)
    return Followed(End(kind), pickle.loads(payload) if start.flags & Flag.TO_ALL and kind == End.DONE else None)


def _next_order(crew: Crew) -> tuple[int, Buffer]:
    """Wait for the next order of the root: its tag, and the parcel."""
    with held() as interrupts:
        while not crew.post.inbox:
            interrupts.check()
            if crew.receive():
                crew.post.active()
            else:
                crew.post.nap()
    _, tag, buffer = crew.post.inbox.popleft()
    return tag, buffer


def await_order(crew: Crew, expected: Tag) -> Buffer:
    """Wait for the order that must come next."""
    tag, buffer = _next_order(crew)
    if tag != expected:
        raise ProtocolError(f"{Tag(tag).name} from the root: expected {expected.name}")
    return buffer


def serve(crew: Crew, *, meets: bool) -> None:
    """Follow all orders of the root until it closes the pool; `meets`: other ranks call the pool's methods."""
    with crew.news.telling():
        while True:
            try:
                met = meet(crew, Op.SERVE) if meets else None
                if met is not None and met.op == Op.MAP:
                    meet(crew, Op.SERVE)  # the root has pickled the function
            except Exception:
                crew.news.check()
                continue  # what is wrong with a call, is told where it was called
            if (met is not None and met.op == Op.CLOSE) or _serve_order(crew) == Tag.CLOSE:
                return


def _serve_order(crew: Crew) -> int:
    """Wait for the next order of the root, whatever it is, and follow it; its tag."""
    tag, buffer = _next_order(crew)
    if tag == Tag.START:
        error = follow(crew, buffer).error
        if isinstance(error, KeyboardInterrupt):
            raise error
    elif tag == Tag.TASK:
        with crew.news.roll.call("a task of lb_mpi.Pool"), held() as interrupts:
            serve_task(crew, buffer, interrupts)
    elif tag == Tag.SHARE:
        keep_shared(crew, buffer)
    return tag


def keep_shared(crew: Crew, buffer: Buffer) -> Handle:
    """Keep the object of a SHARE."""
    number, _, data = crew.read_all(buffer)
    return keep_pickled(crew.number, number, data)


def _work(crew: Crew, shift: Shift) -> Buffer:
    """Work until the root ends the map; its END."""
    with held() as interrupts:
        while True:
            interrupts.check()
            if crew.receive():
                crew.post.active()
            while crew.post.inbox:
                _, tag, buffer = crew.post.inbox.popleft()
                if tag == Tag.END:
                    return buffer
                serve_task(crew, buffer, interrupts)
            if shift.turn(crew.slow, interrupts):
                crew.post.active()
            else:
                crew.post.nap(crew.worker.wake_at - time.perf_counter())


def _none(*_: Any) -> list[Any]:
    raise LookupError("the function of this map could not be unpickled on this rank")
