"""The other ranks' part: follow the root's orders, one after the other; work on a map from its START to its END."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.common.parcels import Buffer, body
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.pool.crew import MAP, TASK, Crew
from lb_mpi.mpi.pool.items import Coming
from lb_mpi.mpi.pool.messages import (
    End,
    Flag,
    failure_of,
    numbers_parcel,
    pack_failure,
    read_numbers,
    read_start,
    task_error,
    unpack_failure,
)
from lb_mpi.mpi.pool.shift import Call, Outbox, Shift


class Followed(NamedTuple):
    """What has become of a map, as another rank than the root sees it."""

    end: End
    value: Any = None  # all results, when all ranks get them
    error: BaseException | None = None  # which this rank is to raise

    def collect(self) -> Any:
        """Return what `Pool.map` returns on this rank."""
        return self.value

    def each(self) -> Iterator[tuple[int, Any]]:
        """Yield what `Pool.imap_unordered` yields on this rank: nothing."""
        return iter(())


def follow(crew: Crew, function: Callable[..., Any] | None = None) -> Followed:
    """Wait for a map, and work on it to its end; `function` is the rank's own, None: the root has sent it."""
    buffer = _await_order(crew, Tag.START)
    start = read_start(buffer)
    data = crew.host.shelf.spread(start.data_bytes, None) if start.flags & Flag.SHELF else body(buffer)
    outbox = Outbox(crew.parcels, crew.root, crew.rank, start.epoch)
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
    shift = Shift(crew, call, some, outbox)
    try:
        end = _await_order(crew, Tag.END, shift.turn)
    finally:
        shift.end()
        crew.steals.end(time.perf_counter(), shift.done, crew.emulated_speeds[crew.rank])
    kind, index, payload = crew.read_all(end)
    own = outbox.failed if not isinstance(outbox.failed, Exception) else None  # who is told to leave, leaves
    if kind == End.FAILED:
        failed = task_error(unpack_failure(payload), None if index < 0 else index)
        if failed.rank == crew.rank:
            failed.__cause__ = outbox.failed or failed.__cause__  # with its traceback
        return Followed(End.FAILED, error=own or failed)
    value = pickle.loads(payload) if start.flags & Flag.TO_ALL and kind == End.DONE else None
    return Followed(End(kind), value, own)


def serve(crew: Crew) -> None:
    """Follow all orders of the root until it closes the pool."""
    with crew.news.telling():
        while True:
            crew.work("", lambda: bool(crew.orders), _idle)
            tag = crew.orders[0][0]
            if tag == Tag.START:
                error = follow(crew).error
                if isinstance(error, KeyboardInterrupt):
                    raise error
            elif tag == Tag.TASK:
                crew.work(TASK, lambda: not crew.orders or crew.orders[0][0] != Tag.TASK, lambda i: _run_task(crew, i))
            else:
                _await_order(crew, Tag.CLOSE)
                return


def _await_order(crew: Crew, expected: Tag, turn: Callable[[Interrupts], bool] | None = None) -> Buffer:
    """Run submitted tasks, and work in turns, until the expected order has come; its parcel."""

    def work(interrupts: Interrupts) -> bool:
        if crew.orders:
            _run_task(crew, interrupts)
            return True
        return turn is not None and turn(interrupts)

    crew.work(MAP, lambda: bool(crew.orders) and crew.orders[0][0] == expected, work)
    return crew.orders.popleft()[1]


def _run_task(crew: Crew, interrupts: Interrupts) -> bool:
    """Run a submitted task, whose order has come, and send its result."""
    tag, buffer = crew.orders.popleft()
    if tag != Tag.TASK:
        raise ProtocolError(f"{Tag(tag).name} from the root: expected TASK")
    number, _, _, data = read_numbers(buffer)
    failed = False
    try:
        function, args, kwargs = pickle.loads(data)
        with crew.task(number), interrupts.allowed():
            value = function(*args, **kwargs)
        answer = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failed, answer = True, pack_failure(failure_of(error, crew.rank))
    crew.parcels.send(crew.root, Tag.RESULT, numbers_parcel(number, failed, data=answer))
    return True


def _idle(_: Interrupts) -> bool:
    return False


def _none(*_: Any) -> list[Any]:
    raise LookupError("the function of this map could not be unpickled on this rank")
