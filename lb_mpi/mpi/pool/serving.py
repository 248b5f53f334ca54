"""One rank's part in one map of a pool: begin chunks as its `Worker` says, run them, hand the results on."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.common.parcels import Buffer, Parcels, body
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.waiting import Interrupts, own_s
from lb_mpi.mpi.pool.messages import (
    Coming,
    End,
    Failure,
    Flag,
    Frame,
    failure_of,
    numbers_parcel,
    pack_failure,
    pickled_error,
    read_numbers,
    read_start,
    results_parcel,
    steal_parcel,
    task_error,
    unpack_failure,
)
from lb_mpi.mpi.pool.session import MAP, TASK, Crew
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.intervals import Interval
from lb_mpi.pooling.worker import Swap
from lb_mpi.record.events import Phase

FLUSH_S = 20e-3  # results wait so long for others to go with
FLUSH_BYTES = 256 << 10
UNSENT_BYTES = 64 << 20  # who has so many under way, begins nothing new


class Call(NamedTuple):
    """What a task is: function(item)."""

    function: Callable[..., Any]
    star: bool = False  # function(*item)
    keep_exceptions: bool = False  # they are results


class Sink(Protocol):
    """Where results go."""

    failed: BaseException | None

    def put(self, lo: int, hi: int, values: list[Any]) -> None:
        """Results of the tasks at positions lo..hi-1."""

    def fail(self, failure: Failure, error: BaseException) -> None:
        """A task has raised, or this rank can't go on: there is no more of it in this map."""

    def flush(self, done: RankTasks, now: float, *, idle: bool) -> None:
        """Hand on what has been put; at once when the rank is `idle`."""


class Shift:
    """The tasks of one map on this rank; `some(lo, hi)` are the arguments of positions.  `turn` again and again."""

    def __init__(self, crew: Crew, call: Call, some: Callable[[int, int], list[Any]], sink: Sink) -> None:
        self._worker, self._words, self._parcels = crew.worker, crew.host.words, crew.parcels
        self._steals, self._clocks, self._slow = crew.steals, crew.clocks, crew.slow
        self._call, self._some, self._sink = call, some, sink
        self._tasks, self._busy_s, self._work_s = 0, 0.0, 0.0  # see `RankTasks`
        self._clocks.begin()
        self._crew = crew
        self._before = crew.worker.steals, crew.parcels.sent_bytes, crew.rested_s  # which count over all maps

    @property
    def done(self) -> RankTasks:
        """What this rank has done so far in this map."""
        steals, sent_bytes, rested_s = self._before
        return RankTasks(
            self._tasks,
            self._busy_s + self._crew.rested_s - rested_s,
            self._work_s,
            self._worker.steals - steals,
            self._parcels.sent_bytes - sent_bytes,
        )

    def end(self) -> None:
        """The map is over."""
        self._worker.end()

    def turn(self, interrupts: Interrupts) -> bool:
        """Answer, begin, and run one chunk; False when there was none to run."""
        worker, words = self._worker, self._words
        if self._parcels.unsent_bytes > UNSENT_BYTES:
            return False
        sends = worker.turn(time.perf_counter(), [])
        while isinstance(job := worker.job, Swap):
            steals = worker.steals
            sends += worker.done(job, words.swap(job))
            if worker.steals > steals:
                self._steals.taken(job, time.perf_counter())
            sends += worker.turn(time.perf_counter(), [])
        for rank, message in sends:
            self._parcels.send(rank, Tag.STEAL, steal_parcel(message))
        if job is None:
            self._sink.flush(self.done, time.perf_counter(), idle=True)
            return False
        self._run(job, interrupts)
        self._sink.flush(self.done, time.perf_counter(), idle=False)
        return True

    def _run(self, chunk: Interval, interrupts: Interrupts) -> None:
        lo, hi = chunk.lo, chunk.hi
        function, star, keep = self._call
        values: list[Any] = []
        failed: BaseException | None = None
        before = self._clocks.before()
        self._steals.record.enter(self._steals.phase(lo), before.wall_s)
        try:
            arguments = self._some(lo, hi)
            with interrupts.allowed():
                for argument in arguments:
                    try:
                        values.append(function(*argument) if star else function(argument))
                    except Exception as error:
                        if not keep:
                            raise
                        values.append(_kept(error))
        except BaseException as error:
            failed = error
        after = self._clocks.after()
        self._slow.charge(after.cpu_s - before.cpu_s)
        self._steals.record.enter(Phase.PACKING, after.wall_s)
        wall = after.wall_s - before.wall_s
        took_s = own_s(before, after)
        self._tasks += len(values)
        self._busy_s += wall
        self._work_s += took_s
        self._steals.ran(lo, len(values), took_s)
        self._steals.done(self._tasks)
        self._worker.done(chunk, wall)
        if values:
            self._sink.put(lo, lo + len(values), values)
        if failed is not None:
            self._sink.fail(failure_of(failed, self._worker.rank, lo + len(values)), failed)
        if self._sink.failed is not None:
            self._worker.end()


def _kept(error: Exception) -> Exception:
    """An exception as a result: itself where it can be sent."""
    return error if pickled_error(error) else RuntimeError(failure_of(error, -1).text)


class Outbox:
    """Results on their way to the root, in batches."""

    def __init__(self, parcels: Parcels, root: int, rank: int, epoch: int) -> None:
        self._parcels, self._root, self._rank, self._epoch = parcels, root, rank, epoch
        self._frames: list[Frame] = []
        self._bytes = 0
        self._since = 0.0
        self.failed: BaseException | None = None

    def put(self, lo: int, hi: int, values: list[Any]) -> None:
        """See `Sink`; results that can't be pickled are a failure."""
        try:
            data = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
        except Exception:
            self._put_some(lo, values)
            return
        self._add(Frame(lo, hi, False, data))

    def fail(self, failure: Failure, error: BaseException) -> None:
        """See `Sink`."""
        if self.failed is None:
            self.failed = error
            self._add(Frame(failure.position, failure.position, True, pack_failure(failure)))
            self._bytes = FLUSH_BYTES

    def flush(self, done: RankTasks, now: float, *, idle: bool) -> None:
        """See `Sink`."""
        if self._frames and (idle or self._bytes >= FLUSH_BYTES or now > self._since + FLUSH_S):
            self._parcels.send(self._root, Tag.RESULTS, results_parcel(self._epoch, done, self._frames))
            self._frames, self._bytes = [], 0

    def _add(self, frame: Frame) -> None:
        if not self._frames:
            self._since = time.perf_counter()
        self._frames.append(frame)
        self._bytes += len(frame.data)

    def _put_some(self, lo: int, values: list[Any]) -> None:
        for k, value in enumerate(values):
            try:
                data = pickle.dumps([value], pickle.HIGHEST_PROTOCOL)
            except Exception as caught:
                wrong = TypeError(f"result of type {type(value).__name__} can't be pickled: {caught}")
                self.fail(failure_of(wrong, self._rank, lo + k), wrong)
                return
            self._add(Frame(lo + k, lo + k + 1, False, data))


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
        return Followed(End.FAILED, error=own or task_error(unpack_failure(payload), None if index < 0 else index))
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
    crew.record.enter(Phase.OWN, time.perf_counter())
    cpu = time.thread_time()
    failed = False
    try:
        function, args, kwargs = pickle.loads(data)
        with interrupts.allowed():
            value = function(*args, **kwargs)
        answer = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failed, answer = True, pack_failure(failure_of(error, crew.rank))
    crew.slow.charge(time.thread_time() - cpu)
    crew.parcels.send(crew.root, Tag.RESULT, numbers_parcel(number, failed, data=answer))
    return True


def _idle(_: Interrupts) -> bool:
    return False


def _none(*_: Any) -> list[Any]:
    raise LookupError("the function of this map could not be unpickled on this rank")
