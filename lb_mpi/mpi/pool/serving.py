"""One rank's part in a map, and a rank that serves: it follows the root's orders, and completes each map."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.mpi.common.parcels import body
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.presence import call as in_call
from lb_mpi.mpi.common.recorder import running
from lb_mpi.mpi.common.waiting import Interrupts, own_s
from lb_mpi.mpi.pool import arrays
from lb_mpi.mpi.pool.messages import (
    NO_MAP,
    START,
    Frame,
    ReceivedItems,
    StartOrder,
    TaskFailure,
    failure_of,
    pickled_error,
    results_parcel,
    task_error,
)
from lb_mpi.mpi.pool.session import MAP, TASK, Operation, Session
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.intervals import Interval, meets
from lb_mpi.pooling.worker import Swap
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF

FLUSH_S = 20e-3  # how long results wait for others to be sent along
FLUSH_BYTES = 256 << 10
UNSENT_BYTES = 64 << 20  # a rank with more bytes under way begins no new tasks


class MapCall(NamedTuple):
    """The function of a map, and the way to call it: function(item)."""

    function: Callable[..., Any]
    star: bool = False  # function(*item)
    keep_exceptions: bool = False  # exceptions are results


class LocalMap(Operation):
    """One rank's part in a map: it begins the chunks chosen by its `Worker`, runs them, and passes the results on."""

    def __init__(self, session: Session, call: MapCall) -> None:
        super().__init__(session)
        self._call = call
        self.failed: BaseException | None = None  # an exception on this rank: it begins nothing more
        self._sent_before = session.parcels.sent_bytes

    @property
    def refusal(self) -> str:
        """See `Operation`."""
        return "a map of these ranks is under way: expected none (not in a task, nor before all results are taken)"

    def begin(self, start: StartOrder, speeds: list[float], began: float) -> None:
        """Begin the map on this rank."""
        session = self.session
        session.speeds[:] = speeds
        if meets(start.epoch):  # see `lb_mpi.pooling.intervals`
            session.presence.wait(session.presence.comm.Ibarrier().Test)
        session.account.begin(began, start.lo, start.hi)
        session.worker.begin(start.epoch, start.lo, start.hi, start.chunksize, start.largest_first)
        session.clocks.begin()
        session.operation = self

    def stop(self) -> None:
        """Begin nothing more: the map is over."""
        session = self.session
        session.operation = None
        session.worker.end()
        session.account.end(time.perf_counter(), self.done, session.emulated_speeds[session.rank])

    @property
    def done(self) -> RankTasks:
        """The work of this rank in this map so far."""
        session = self.session
        sent_bytes = session.parcels.sent_bytes - self._sent_before
        return session.account.done._replace(sent_bytes=sent_bytes)

    def arguments(self, lo: int, hi: int) -> list[Any]:
        """Return the items at positions lo..hi-1."""
        raise NotImplementedError

    def put(self, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """Pass on the results of the tasks at positions lo..hi-1, which took `seconds` by themselves."""
        raise NotImplementedError

    def fail(self, failure: TaskFailure, error: BaseException | None) -> None:
        """Note that a task has raised, or that this rank can't continue: it does nothing more in this map."""
        raise NotImplementedError

    def flush(self, now: float, *, idle: bool) -> None:
        """Send the results passed to `put`, at once if the rank is `idle`."""
        raise NotImplementedError

    def work(self, interrupts: Interrupts) -> bool:
        """Answer, begin, and run one chunk; return False if there was none."""
        session, worker = self.session, self.session.worker
        if session.parcels.unsent_bytes > UNSENT_BYTES:
            return False
        sends = worker.turn(time.perf_counter(), [])
        while isinstance(job := worker.job, Swap):
            sends += worker.done(job, session.intervals.swap(job))
            sends += worker.turn(time.perf_counter(), [])
        session.send(sends)
        session.account.stole(worker.steals, time.perf_counter())
        if job is not None:
            self._run(job, interrupts)
        self.flush(time.perf_counter(), idle=job is None)
        return job is not None

    def _run(self, chunk: Interval, interrupts: Interrupts) -> None:
        lo, hi = chunk.lo, chunk.hi
        function, star, keep = self._call
        session, worker = self.session, self.session.worker
        values: list[Any] = []
        failed: BaseException | None = None
        before = session.clocks.before()
        session.record.enter(session.account.phase(lo), before.wall_s)
        try:
            arguments = self.arguments(lo, hi)
            with interrupts.allowed():
                for argument in arguments:
                    try:
                        values.append(function(*argument) if star else function(argument))
                    except Exception as error:
                        if not keep:
                            raise
                        values.append(error if pickled_error(error) else RuntimeError(failure_of(error, -1).text))
        except BaseException as error:
            failed = error
        after = session.clocks.after()
        cpu_s = after.cpu_s - before.cpu_s
        session.throttle.charge(cpu_s)
        session.record.enter(Phase.PACKING, after.wall_s)
        wall_s, work_s = after.wall_s - before.wall_s, own_s(before, after)
        session.account.ran(lo, len(values), wall_s, work_s)
        worker.done(chunk, wall_s, cpu_s / session.throttle.speed - cpu_s)
        if values:
            self.put(lo, lo + len(values), values, work_s)
        if failed is not None:
            self.fail(failure_of(failed, session.rank, lo + len(values)), failed)
        if self.failed is not None:
            worker.end()


def _unknown(*_: Any) -> Any:
    raise LookupError("the function of this map could not be unpickled on this rank")


# --- the other ranks --------------------------------------------------------------------------------------------------


class WorkerMap(LocalMap):
    """A map on a rank other than the root, begun by the next order; results go to the root in batches.

    `function`: None uses the one sent by the root.
    """

    def __init__(self, session: Session, function: Callable[..., Any] | None = None) -> None:
        header, data = session.next_order(Tag.START)
        start = StartOrder(*START.unpack_from(header))
        super().__init__(session, MapCall(function or _unknown, start.star, start.keep_exceptions))
        speeds, data = np.frombuffer(data, np.float64, session.size), data[8 * session.size :]
        self._epoch = start.epoch
        self._frames: list[Frame] = []  # results to send
        self._bytes, self._since = 0, 0.0
        self.begin(start, speeds.tolist(), time.perf_counter())
        known = session.functions
        try:
            if start.function_bytes:
                known.keep(start.digest, _unknown)  # even if this fails, all ranks must know the same digests
                known.keep(start.digest, function or pickle.loads(data[: start.function_bytes]))
            self._call = self._call._replace(function=function or known[start.digest])
            self._items = ReceivedItems(data[start.function_bytes :])
        except Exception as error:  # the user's classes may raise anything when they are unpickled
            self.fail(failure_of(error, session.rank), error)
            session.worker.end()

    @property
    def over(self) -> bool:
        """True when the root has ended the map."""
        return bool(self.session.orders)

    def finish(self) -> tuple[list[Any] | None, BaseException | None]:
        """Complete the map; return the results, if all ranks get them, and the error that this rank raises."""
        session = self.session
        try:
            session.work(self, MAP)
        finally:
            self.stop()
        found = pickle.loads(session.next_order(Tag.END)[1])
        own = self.failed if not isinstance(self.failed, Exception) else None  # SystemExit and Ctrl-C end their rank
        if not isinstance(found, TaskFailure):
            return found, own
        error = task_error(found)
        if error.rank == session.rank:
            error.__cause__ = self.failed or error.__cause__  # including its traceback
        return None, session.together(own or error)

    def collect(self) -> list[Any] | None:
        """Complete the map; return the results if all ranks get them, or raise its error."""
        with self.session.presence.telling():
            results, error = self.finish()
        if error is not None:
            raise error
        return results

    def each(self) -> Iterator[tuple[int, Any]]:
        """Complete the map; return an iterator of nothing, since only the root gets results one by one."""
        self.collect()
        return iter(())

    def arguments(self, lo: int, hi: int) -> list[Any]:
        """See `LocalMap`."""
        return self._items.some(lo, hi)

    def put(self, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """Pass on results, see `LocalMap`; a result that can't be pickled is a failure."""
        try:
            self._add(lo, hi, values, seconds)
        except Exception:
            for k, value in enumerate(values, lo):
                try:
                    self._add(k, k + 1, [value], seconds / len(values))
                except Exception as caught:
                    wrong = TypeError(f"result of type {type(value).__name__} can't be pickled: {caught}")
                    self.fail(failure_of(wrong, self.session.rank, k), wrong)
                    return

    def fail(self, failure: TaskFailure, error: BaseException | None) -> None:
        """See `LocalMap`."""
        if self.failed is None:
            self.failed = error
            self._add(failure.task, failure.task, failure)
            self._bytes = FLUSH_BYTES

    def flush(self, now: float, *, idle: bool) -> None:
        """See `LocalMap`."""
        if self._frames and (idle or self._bytes >= FLUSH_BYTES or now > self._since + FLUSH_S):
            parcel = results_parcel(self._epoch, self.done, self._frames)
            self.session.parcels.send(self.session.root, Tag.RESULTS, parcel)
            self._frames, self._bytes = [], 0

    def _add(self, lo: int, hi: int, what: list[Any] | TaskFailure, seconds: float = 0.0) -> None:
        data = pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
        if not self._frames:
            self._since = time.perf_counter()
        self._frames.append(Frame(lo, hi, data, seconds))
        self._bytes += len(data)


class Serving(Operation):
    """A rank other than the root between two maps: it waits for orders, and runs tasks of executors."""

    @property
    def over(self) -> bool:
        """True when the next order is no TASK."""
        orders = self.session.orders
        return bool(orders) and orders[0][0] != Tag.TASK

    def work(self, _: Interrupts) -> bool:
        """Run a batch of tasks, and send their results; return False if there is none."""
        session = self.session
        if not session.orders:
            return False
        batch = pickle.loads(body(session.orders.popleft()[1]))
        with in_call(TASK, watched=True) as interrupts, running(session.record, Phase.OWN), interrupts.allowed():
            done, frames = run_batch(session, *batch)
        session.parcels.send(session.root, Tag.RESULTS, results_parcel(NO_MAP, done, frames))
        return True


def serve(session: Session) -> None:
    """Follow all orders of the root until it closes the pool."""
    with session.presence.telling():
        while True:
            session.work(Serving(session))
            if session.orders[0][0] != Tag.START:
                session.next_order(Tag.CLOSE)
                return
            _, error = WorkerMap(session).finish()
            if isinstance(error, KeyboardInterrupt):
                raise error


# --- tasks of an executor, on the root, too ---------------------------------------------------------------------------

BATCH_S = 10e-3  # short tasks are sent together: as many as a rank runs in this time


def run_batch(
    session: Session, number: int, tasks: list[bytes], places: dict[str, str]
) -> tuple[RankTasks, list[Frame]]:
    """Run tasks for BATCH_S seconds, and at least one, and return their results; the root sends the others again.

    number : of the first task; -1: not counted.
    places : where their large arrays are on this host.
    """
    arrays.locate(places)
    session.clocks.begin()
    before = session.clocks.before()
    frames, began = list[Frame](), time.perf_counter()
    for k, data in enumerate(tasks):
        frames.append(_outcome(session.rank, k, data))
        if time.perf_counter() > began + BATCH_S:
            break
    busy_s, after = time.perf_counter() - began, session.clocks.after()
    done = RankTasks(len(frames), busy_s, own_s(before, after))
    if session.record is not OFF and number >= 0:
        speed = session.emulated_speeds[session.rank]
        session.account.ran_submitted(number, done.tasks, before.wall_s, after.wall_s, done.work_s, speed)
    return done, frames


def _outcome(rank: int, k: int, data: bytes) -> Frame:
    """Run task k of a batch."""
    try:
        function, args, kwargs = pickle.loads(data)
        return Frame(k, k + 1, pickle.dumps(function(*args, **kwargs), pickle.HIGHEST_PROTOCOL))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return Frame(k, k, pickle.dumps(failure_of(error, rank), pickle.HIGHEST_PROTOCOL))
