"""One rank of a pool: the tasks that it runs, and the results that it passes on.

    the root's order      a rank other than the root
    START                 begins its interval: chunks that its `Stealer` chooses, until none is left on its host; then steals
    TASK                  runs a batch: items of the map under way, or else calls that were submitted to an executor
    STOP                  begins nothing more of the map, and sends the results of what it has begun: for the checkpoint
    END, CLOSE            leaves the loop
"""

from __future__ import annotations

import io
import pickle
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.errors import Error, ProtocolError
from lb_mpi.knowledge import n_numbers
from lb_mpi.mpi.common.calls import Interrupts, interrupts
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.failure import location
from lb_mpi.mpi.common.parcels import Buffer, parcel
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.pool.arguments import ReceivedItems, UnreadableError, unpickled
from lb_mpi.mpi.pool.messages import (
    NO_MAP,
    START,
    STEAL,
    Call,
    Frame,
    Start,
    TaskBatch,
    TaskFailure,
    failure_of,
    map_error,
    read_batch,
    results_parcel,
)
from lb_mpi.mpi.pool.orders import Order
from lb_mpi.mpi.pool.ranks import MAP, TASK, PoolRanks
from lb_mpi.mpi.pool.running import Ran, rest_of, run_submitted, run_tasks
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.beginning import PoolState
from lb_mpi.pooling.intervals import Interval, synchronizes
from lb_mpi.pooling.scheduler import BATCH_S
from lb_mpi.pooling.stealer import StealMessage
from lb_mpi.record.record import OFF

FLUSH_S = 20e-3  # least time between two sends of results, or two writes to the checkpoint; an idle rank doesn't wait
FLUSH_BYTES = 256 << 10
UNSENT_BYTES = 64 << 20  # a rank with more bytes under way begins no new tasks
QUICK_S = 0.1e-3  # polling without sleep, since maps may follow each other; others may use the core


class TaskResults(NamedTuple):
    """To the root: results of a map, or of tasks of an executor."""

    parcel: Buffer


PoolMessage = StealMessage | TaskResults | Order
PoolSend = tuple[int, PoolMessage]  # destination rank, message


class PoolActor(Port[PoolMessage, Any]):
    """An actor, and its port: one rank's work in a pool, one at a time: a map, tasks of executors, or following orders."""

    job: Any = None  # see `lb_mpi.actor`

    def __init__(self, ranks: PoolRanks) -> None:
        self.ranks, self.meter = ranks, ranks.meter

    @property
    @abstractmethod
    def over(self) -> bool:
        """See `lb_mpi.actor`."""

    @property
    def wake_at(self) -> float:
        """See `lb_mpi.actor`."""
        return self.ranks.stealer.wake_at

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """Keep orders until they are due, process results, and answer thieves."""
        ranks, steals = self.ranks, list[tuple[int, StealMessage]]()
        for source, message in arrived:
            if isinstance(message, StealMessage):
                steals.append((source, message))
            elif isinstance(message, TaskResults):
                ranks.helpers.add(source)
                self.receive_results(source, message.parcel)
            else:
                ranks.orders.receive(message)
        return [*ranks.stealer.turn(now, steals)] if steals or ranks.stealer.epoch >= 0 else []

    def arrived(self) -> list[tuple[int, PoolMessage]]:
        """See `Port`."""
        parcels = self.ranks.parcels.receive()
        return [(source, _read(tag, buffer)) for source, tag, buffer in parcels] if parcels else []

    def post(self, sends: list[PoolSend]) -> None:
        """See `Port`."""
        for rank, message in sends:
            if isinstance(message, StealMessage):
                self.ranks.parcels.send(rank, Tag.STEAL, parcel(STEAL.pack(*message)))
            else:
                tag = Tag.RESULTS if isinstance(message, TaskResults) else message.tag
                self.ranks.parcels.send(rank, tag, message.parcel)

    def idle(self) -> bool:
        """See `Port`."""
        ranks = self.ranks
        return not (ranks.parcels.under_way or ranks.stealer.sees_tasks or ranks.parcels.news())

    def carry(self, call: str = "", interrupts: Interrupts | None = None) -> None:
        """Receive messages and work until it is over; `call`: its name, if all ranks must reach it.

        interrupts : of the call that this thread is in; None: it begins one.
        """
        ranks, before = self.ranks, self.ranks.record.phase
        with in_call(call, watched=True) if interrupts is None else nullcontext(interrupts) as interrupts:
            try:
                carry(ranks.throttle.around(self), self, ranks.presence, ranks.record, interrupts, quick_s=QUICK_S)
            finally:
                if ranks.record is not OFF:
                    ranks.record.enter(before, time.perf_counter())

    @abstractmethod
    def done(self, job: Any, result: Any) -> list[PoolSend]:
        """See `lb_mpi.actor`."""

    def fail(self, error: BaseException) -> list[PoolSend]:
        """See `lb_mpi.actor`; without a task, nobody else needs to know before this rank raises it."""
        raise error

    @property
    @abstractmethod
    def state(self) -> PoolState:
        """See `UnderWay`."""

    def complete(self) -> None:
        """See `UnderWay`."""
        raise ProtocolError(f"rank {self.ranks.rank} is to complete what only the root can")

    def receive_results(self, source: int, _results: Buffer) -> None:
        """On the root, process results from another rank, which may belong to an earlier operation."""
        raise ProtocolError(f"results from rank {source} on rank {self.ranks.rank}, which is not the root")

    def leave(self, _error: BaseException | None) -> None:
        """See `UnderWay`."""
        self.complete()


def _read(tag: int, buffer: Buffer) -> PoolMessage:
    if tag == Tag.STEAL:
        return StealMessage(*STEAL.unpack_from(buffer.data))
    return TaskResults(buffer) if tag == Tag.RESULTS else Order(tag, buffer)


def _unknown(*_: Any) -> Any:
    raise LookupError("the function of this map has not been unpickled")


class Arrived(NamedTuple):
    """Results from other ranks, which the root is to unpickle."""

    frames: list[tuple[int, Frame]]  # with the rank of each


class Unpickled(NamedTuple):
    """The results in each frame from other ranks, up to the first frame with one that can't be unpickled."""

    values: list[list[Any]]
    error: Exception | None = None  # of that result
    offset: int = 0  # of that result in its frame


def _unpickled(job: Arrived) -> Unpickled:
    values: list[list[Any]] = []
    for _, frame in job.frames:
        try:
            values.append(pickle.loads(frame.data))
        except Exception as error:
            return Unpickled(values, error, _first_wrong(frame))
    return Unpickled(values)


class _Attempts(pickle.Unpickler):
    """Unpickles the results of a frame; a result that can't be unpickled is replaced by its error."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _attempted if found is pickle.loads else found  # of a `PickledResult`


def _attempted(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        return Unpickled([], error)


def _first_wrong(frame: Frame) -> int:
    """Return the index in the frame of the first result that can't be unpickled; of the last result if none fails alone."""
    try:
        values = _Attempts(io.BytesIO(frame.data)).load()
        return next(k for k, value in enumerate(values) if isinstance(value, Unpickled))
    except Exception:  # StopIteration, too
        return frame.hi - frame.lo - 1


class Member(PoolActor):
    """One rank's part in a map."""

    def __init__(self, ranks: PoolRanks, call: Call) -> None:
        super().__init__(ranks)
        self.call = call
        self.items: ReceivedItems | None = None  # which each rank unpickles for itself; None: they come in batches
        self.failed: BaseException | None = None  # an exception on this rank: it begins nothing more
        self._sent_before = 0  # bytes, before it began
        self.threads_s = 0.0  # CPU time of other threads of this process while tasks ran here

    @property
    def state(self) -> PoolState:
        """See `PoolActor`; on ranks other than the root, only a task can ask."""
        return PoolState.IN_MAP

    def begin(self, start: Start, known: Sequence[float], bounds: Sequence[int], began: float) -> None:
        """Begin the map on this rank; rank r owns the tasks bounds[r]..bounds[r + 1] - 1."""
        ranks = self.ranks
        lo, hi = bounds[ranks.rank], bounds[ranks.rank + 1]
        ranks.known.adopt(known)
        if synchronizes(start.epoch):  # see `lb_mpi.pooling.intervals`
            ranks.presence.wait(ranks.presence.comm.Ibarrier().Test)
        self._sent_before = ranks.parcels.sent_bytes
        ranks.account.begin(began, lo, hi)
        if not start.lazy:
            ranks.stealer.begin(start.epoch, lo, hi, start.chunksize, start.largest_first, bounds[-1])
        ranks.begin(self)

    def stop(self) -> None:
        """Begin nothing more: the map is over."""
        ranks = self.ranks
        ranks.end()
        ranks.stealer.end()
        ranks.account.end(time.perf_counter(), self.done_tasks, ranks.emulated_speeds[ranks.rank])

    @property
    def done_tasks(self) -> RankTasks:
        """The work of this rank in this map so far."""
        ranks = self.ranks
        return ranks.account.done._replace(sent_bytes=ranks.parcels.sent_bytes - self._sent_before)

    @abstractmethod
    def put(self, lo: int, hi: int, values: Any, seconds: float) -> None:
        """Pass on the results of the tasks at positions lo..hi-1, which took the rank so many of its own `seconds`."""

    @abstractmethod
    def fail_task(self, failure: TaskFailure, error: BaseException | None) -> None:
        """Note that a task has raised, or that this rank can't continue: it does nothing more in this map."""

    @abstractmethod
    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """Return the results passed to `put` as messages: all if the rank is `idle`, else some may wait for others."""

    @property
    def may_begin(self) -> bool:
        """True if a chunk may begin: not while too much is under way."""
        return self.ranks.parcels.unsent_bytes <= UNSENT_BYTES and not self.over

    @property
    def job(self) -> Any:
        """The next chunk, if it may begin."""
        return self.ranks.stealer.chunk if self.may_begin else None

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """See `PoolActor`; take a chunk, and pass on results: an emulated slow rank that rests has none of either."""
        ranks, stealer, sends = self.ranks, self.ranks.stealer, super().turn(now, arrived)
        if ranks.throttle.rests and ranks.throttle.due():
            return sends
        if self.may_begin:
            while (swap := stealer.swap) is not None:
                sends += stealer.done(swap, ranks.intervals.swap(swap))
                sends += stealer.turn(now, ())
        if stealer.steals:
            ranks.account.stole(stealer.steals)
        return sends + self.flush(now, idle=stealer.chunk is None and stealer.swap is None)

    def run(self, job: Any) -> Any:
        """Run a chunk or a batch, up to the first task that raises; or unpickle results, which may be the user's code."""
        if isinstance(job, Arrived):
            return _unpickled(job)
        if isinstance(job, TaskBatch):
            return run_tasks(self.ranks, self.call, map(unpickled, job.tasks), len(job.tasks), limit_s=BATCH_S)
        assert self.items is not None
        return run_tasks(self.ranks, self.call, self.items.some(job.lo, job.hi), job.hi - job.lo, first=job.lo)

    def done(self, job: Any, result: Any) -> list[PoolSend]:
        """Pass on what a chunk or a batch has brought."""
        ranks, stealer, ran, sends = self.ranks, self.ranks.stealer, result, list[PoolSend]()
        seconds, first = self.own_s(ran), self.position(job, 0)
        if isinstance(job, Interval):
            n = job.hi - job.lo
            sends += stealer.done(job, ran.wall_s, seconds)
        else:
            n = len(job.tasks)
        failed_at = self.position(job, ran.n) if ran.n < n else -1
        self.threads_s += ran.others_s
        ranks.account.ran(first, ran.n, ran.wall_s, ran.work_s)
        if ran.n:
            self.put(first, first + ran.n, ran.values, seconds)
        if ran.failed is not None:  # Ctrl-C may come after the last task
            self._fail_at(failed_at, ran.failed)
            stealer.end()
        return sends

    def _fail_at(self, position: int, error: BaseException) -> None:
        """Record the failure of the task at this position, or of the unpickling of its item."""
        what = ""
        if isinstance(error, UnreadableError) and error.__cause__ is not None:
            what, position, error = "an item can't be unpickled: ", position if error.alone else -1, error.__cause__
        failure = failure_of(error, self.ranks.rank, position, self.call.function)
        starmap = type(error) is TypeError and " missing " in failure.text and not (self.call.star or location(error))
        hint = ": expected starmap, if an item has several arguments" * starmap
        self.fail_task(failure._replace(text=what + failure.text + hint), error)

    def own_s(self, ran: Ran) -> float:
        """Return the seconds of tasks that tell the speed of this rank: not those in which it waited for a core.

        An emulated slow rank rests after them, before their results leave.
        """
        slow, seconds = self.ranks.throttle, ran.work_s + ran.stopped_s
        if slow.rests:
            slow.charge(ran.cpu_s)
            seconds += ran.cpu_s / slow.speed - ran.cpu_s
        return seconds

    def position(self, job: Any, k: int) -> int:
        """Return the position of task k of a job."""
        return int(job.lo if isinstance(job, Interval) else job.number) + k

    def fail(self, error: BaseException) -> list[PoolSend]:
        """Note that this rank can't continue."""
        self.fail_task(failure_of(error, self.ranks.rank), error)
        self.ranks.stealer.end()
        return []


class Worker(Member):
    """A rank other than the root: it follows the root's orders one after the other, and sends results in batches."""

    def __init__(self, ranks: PoolRanks) -> None:
        super().__init__(ranks, Call(_unknown))
        self._epoch = NO_MAP
        self._frames: list[Frame] = []  # results to send
        self._bytes, self._send_at = 0, 0.0
        self._batch: TaskBatch | None = None  # what is left of the first batch of an executor, of which some has run

    def begin_map(self, function: Callable[..., Any] | None = None) -> None:
        """Begin the map of the next order; `function`: None uses the one sent by the root."""
        ranks, size = self.ranks, self.ranks.size
        header, data = ranks.orders.read(Tag.START)
        fields = START.unpack_from(header)
        start, how = Start(*fields[: len(Start._fields)]), fields[len(Start._fields) :]
        n = n_numbers(size)
        known, bounds = np.frombuffer(data, np.float64, n), np.frombuffer(data, np.int64, size + 1, 8 * n)
        data = data[8 * (n + size + 1) :]
        self._epoch = start.epoch
        began = time.perf_counter()
        self._send_at = began + FLUSH_S
        self.begin(start, known.tolist(), bounds.tolist(), began)
        try:
            if start.function_bytes:
                ranks.functions.store(start.digest, bytes(data[: start.function_bytes]))
            self.call = Call(function or ranks.functions.load(start.digest), *how)
            self.items = None if start.lazy else ReceivedItems(data[start.function_bytes :])
        except Exception as error:  # the user's classes may raise anything when they are unpickled
            self.fail(error)

    @property
    def over(self) -> bool:
        """True when the next order is no TASK."""
        order = self.ranks.orders.first
        return order is not None and order.tag != Tag.TASK

    @property
    def job(self) -> Any:
        """The next batch, or else the next chunk."""
        order = self.ranks.orders.first
        if order is None:
            return super().job
        return None if self.over else self._batch or read_batch(order.parcel)

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """See `Member`; drop the batches not begun if another order has arrived behind them, or after a failure here."""
        ranks, sends = self.ranks, super().turn(now, arrived)
        ranks.orders.drop(Tag.TASK, all_of_them=self.failed is not None)
        if (order := ranks.orders.first) is not None and order.tag == Tag.STOP:
            ranks.orders.follow()
            ranks.stealer.end()
            if self.failed is None:
                self._put_last(0, None)
            sends += self.flush(now, idle=True)
        return sends

    def run(self, job: Any) -> Any:
        """See `Member`; outside of a map, a batch is of calls that were submitted."""
        if self._epoch != NO_MAP:
            return super().run(job)
        with in_call(TASK, watched=True):
            return run_submitted(self.ranks, job)

    def done(self, job: Any, result: Any) -> list[PoolSend]:
        """See `Member`."""
        if self._epoch == NO_MAP:
            self._batch = rest_of(job, result)
        if isinstance(job, TaskBatch) and self._batch is None:
            self.ranks.orders.follow()
        if self._epoch != NO_MAP:
            return super().done(job, result)
        ran: Ran = result
        seconds, rest_s = self.own_s(ran), ran.cpu_s / self.ranks.throttle.speed - ran.cpu_s
        done, frames = RankTasks(ran.n, ran.wall_s + rest_s, ran.work_s), [Frame(0, ran.n, ran.values, seconds)]
        if self._batch is None:
            frames.append(Frame(ran.n, ran.n, b""))
        return [(self.ranks.root, TaskResults(results_parcel(NO_MAP, done, frames)))]

    def fail(self, error: BaseException) -> list[PoolSend]:
        """See `Member`; outside of a map, nobody else needs to know before this rank raises it."""
        if self._epoch == NO_MAP:
            raise error
        return super().fail(error)

    def finish(self) -> tuple[list[Any] | None, BaseException | None]:
        """Complete the map; return the results, if all ranks get them, and the error that this rank raises."""
        ranks = self.ranks
        try:
            self.carry(MAP)
        finally:
            self.stop()
        with ranks.presence.committing():
            end = ranks.orders.read(Tag.END)[1]
        found = pickle.loads(end)
        own = self.failed if not isinstance(self.failed, Exception) else None  # SystemExit and Ctrl-C end their rank
        if not isinstance(found, TaskFailure):
            if isinstance(own, KeyboardInterrupt):  # the root had all results before
                interrupts().wait()
                own = None
            return found, own
        error = map_error(found, ranks.rank, self.failed) if own is None else own
        return None, ranks.on_all(error, found.rank if own is None else ranks.rank)

    def collect(self) -> list[Any] | None:
        """Complete the map; return the results if all ranks get them, or raise its error."""
        with self.ranks.presence.notifying():
            results, error = self.finish()
        if error is not None:
            raise error
        return results

    def each(self, **_how: bool) -> Iterator[Any]:
        """Complete the map; return a generator of nothing, since only the root gets results one by one."""
        self.collect()
        nothing: list[Any] = []
        return (result for result in nothing)

    def put(self, lo: int, hi: int, values: Any, seconds: float) -> None:
        """Pass on results, see `Member`, which are pickled; or the last message, with lo == hi."""
        self._frames.append(Frame(lo, hi, values, seconds))
        self._bytes += len(values)

    def fail_task(self, failure: TaskFailure, error: BaseException | None) -> None:
        """See `Member`."""
        if self.failed is None:
            self.failed = error
            self._put_last(failure.task, failure)

    def _put_last(self, position: int, failure: TaskFailure | None) -> None:
        """Pass on that no results of this rank follow, and its failure; this is sent in the next turn."""
        self.put(position, position, pickle.dumps(failure, pickle.HIGHEST_PROTOCOL), 0.0)
        self._bytes = FLUSH_BYTES

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """See `Member`."""
        if not self._frames or not (idle or self._bytes >= FLUSH_BYTES or now > self._send_at):
            return []
        parcel = results_parcel(self._epoch, self.done_tasks, self._frames)
        self._frames, self._bytes, self._send_at = [], 0, now + FLUSH_S
        return [(self.ranks.root, TaskResults(parcel))]


def serve(ranks: PoolRanks) -> None:
    """Follow all orders of the root until it closes the pool; lb_mpi.Error if an error has ended the root's block."""
    ranks.serve()
    with ranks.presence.notifying():
        while True:
            worker = Worker(ranks)
            worker.carry()
            order = ranks.orders.first
            if order is None or order.tag != Tag.START:
                if text := bytes(ranks.orders.read(Tag.CLOSE)[1]).decode(errors="replace"):
                    raise ranks.presence.on_all(Error(text), ranks.root)
                return
            try:
                worker.begin_map()
                _, error = worker.finish()
            except OSError as short:  # of shared memory for this map: the root may go on with a smaller one
                if not ranks.presence.is_of_all(short):
                    raise
                continue
            if isinstance(error, KeyboardInterrupt):
                raise error
