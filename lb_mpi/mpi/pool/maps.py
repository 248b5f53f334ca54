"""A map, from its beginning to its end, on the root and on the other ranks.

    root       MapPlan, RootMap; START    -> carry: a chunk, MapPort.run -> Gathering.put -> its deliver -> collect; END
    others     WorkerMap, made of a START -> carry: a chunk, MapPort.run -> put, RESULTS -> RootTasks.take

The rank's `Worker` chooses the next chunk.  The caller's functions (callback, progress) are called in the caller's frame,
which the loop leaves when there is something to deliver.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.errors import Error
from lb_mpi.mpi.common.late import call as in_call
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import interrupts
from lb_mpi.mpi.pool.arguments import (
    CheckedOptions,
    MapCall,
    ReceivedItems,
    check_items,
    encode,
    name_of,
)
from lb_mpi.mpi.pool.checkpoint_file import CheckpointFile
from lb_mpi.mpi.pool.gathering import FLUSH_S, Gathering
from lb_mpi.mpi.pool.messages import (
    START,
    Frame,
    ItemBatch,
    StartOrder,
    TaskFailure,
    digest_of,
    dumps,
    exact,
    failure_of,
    read_results,
    results_parcel,
    task_error,
)
from lb_mpi.mpi.pool.plan import MapPlan
from lb_mpi.mpi.pool.running import Ran, run_tasks
from lb_mpi.mpi.pool.session import MAP, PoolMessage, PoolSend, Session, SessionActor, SessionPort, TaskResults
from lb_mpi.pooling.account import RankTasks, report
from lb_mpi.pooling.beginning import PoolState
from lb_mpi.pooling.deal import Speeds
from lb_mpi.pooling.intervals import Interval, synchronizes
from lb_mpi.pooling.learning import Memory
from lb_mpi.pooling.worker import Swap
from lb_mpi.record.events import Phase
from lb_mpi.record.report import Report

FLUSH_BYTES = 256 << 10
UNSENT_BYTES = 64 << 20  # a rank with more bytes under way begins no new tasks


class PoolMaps:
    """The maps of one pool: the one under way, and what the root has learned from earlier ones.

    `speeds`: the user's, or None.
    """

    def __init__(self, session: Session, speeds: Sequence[float] | None) -> None:
        self.session = session
        self.speeds, self.memory = Speeds(session.ranks.size, speeds), Memory()
        self.current: RootTasks | None = None  # under way, on the root
        self._ended: tuple[int, float, Sequence[RankTasks]] | None = None  # the last one, on the root

    def ended(self, n: int, seconds: float, ranks: Sequence[RankTasks]) -> None:
        """Keep what the report of a map of `n` tasks needs."""
        self._ended = n, seconds, ranks

    @property
    def report(self) -> Report | None:
        """Make the report of the last map that has ended, on the root."""
        return None if self._ended is None else report(*self._ended, self.session.ranks.emulated_speeds)


class Arrived(NamedTuple):
    """Results from other ranks, which the root is to unpickle."""

    frames: list[tuple[int, Frame]]  # with the rank of each


class MapPort(SessionPort):
    """Runs chunks of a map: calls its function with items; those of a stream (None) come with each batch.

    On the root, results are copied before the next call may change them, and those of other ranks unpickled: the user gets
    the same everywhere.  The other ranks pickle them.
    """

    def __init__(self, session: Session, call: MapCall, items: ReceivedItems | None = None) -> None:
        super().__init__(session)
        self._call, self._items = call, items

    def idle(self) -> bool:
        """See `Port`."""
        return super().idle() and not self.session.worker.sees_tasks

    def run(self, job: Interval | ItemBatch | Arrived) -> Any:
        """Run the tasks of a chunk or batch, up to the first that raises; or unpickle results."""
        if isinstance(job, Arrived):
            return _unpickled(job)
        if isinstance(job, ItemBatch):
            tasks, items = Interval(0, job.first, job.first + len(job.items)), job.items
            return run_tasks(self.session, self._call, Phase.OWN, tasks, lambda _lo, _hi: [*map(pickle.loads, items)])
        assert self._items is not None
        return run_tasks(self.session, self._call, self.session.account.phase(job.lo), job, self._items.some)


def _unpickled(job: Arrived) -> tuple[list[list[Any]], Exception | None]:
    """Return the results in each frame from other ranks, up to the first that can't be unpickled, and that error."""
    values: list[list[Any]] = []
    try:
        for _, frame in job.frames:
            values.append(pickle.loads(frame.data))
    except Exception as error:
        return values, error
    return values, None


class LocalMap(SessionActor):
    """One rank's part in a map: it begins the chunks chosen by its `Worker`, runs them, and passes the results on."""

    def __init__(self, session: Session, call: MapCall) -> None:
        super().__init__(session)
        self._call = call
        self._port: SessionPort  # once the items are known, which each rank unpickles for itself
        self.failed: BaseException | None = None  # an exception on this rank: it begins nothing more
        self._sent_before = 0  # bytes, before it began

    @property
    def state(self) -> PoolState:
        """See `SessionActor`; on ranks other than the root, only a task can ask."""
        return PoolState.IN_MAP

    def begin(self, start: StartOrder, speeds: list[float], bounds: Sequence[int], began: float) -> None:
        """Begin the map on this rank; rank r owns the tasks bounds[r]..bounds[r + 1] - 1."""
        session = self.session
        lo, hi = bounds[session.ranks.rank], bounds[session.ranks.rank + 1]
        session.learn(speeds)
        if synchronizes(start.epoch):  # see `lb_mpi.pooling.intervals`
            session.presence.wait(session.presence.comm.Ibarrier().Test)
        self._sent_before = session.parcels.sent_bytes
        session.account.begin(began, lo, hi)
        if not start.lazy:
            session.worker.begin(start.epoch, lo, hi, start.chunksize, start.largest_first)
        session.clocks.begin()
        session.begin(self)

    def stop(self) -> None:
        """Begin nothing more: the map is over."""
        session = self.session
        session.end()
        session.worker.end()
        session.account.end(time.perf_counter(), self.done_tasks, session.ranks.emulated_speeds[session.ranks.rank])

    @property
    def done_tasks(self) -> RankTasks:
        """The work of this rank in this map so far."""
        session = self.session
        sent_bytes = session.parcels.sent_bytes - self._sent_before
        return session.account.done._replace(sent_bytes=sent_bytes)

    def put(self, lo: int, hi: int, values: Any, seconds: float) -> None:
        """Pass on the results of the tasks at positions lo..hi-1, which took `seconds` by themselves."""
        raise NotImplementedError

    def fail_task(self, failure: TaskFailure, error: BaseException | None) -> None:
        """Note that a task has raised, or that this rank can't continue: it does nothing more in this map."""
        raise NotImplementedError

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """Return the results passed to `put` as messages: all if the rank is `idle`, else some may wait for others."""
        raise NotImplementedError

    @property
    def may_begin(self) -> bool:
        """True if a chunk may begin: not while too much is under way."""
        return self.session.parcels.unsent_bytes <= UNSENT_BYTES and not self.over

    @property
    def job(self) -> Interval | Arrived | None:
        """The next chunk, if it may begin."""
        return self.session.worker.chunk if self.may_begin else None

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """See `SessionActor`; take a chunk, and pass on results: an emulated slow rank that rests has none of either."""
        session, worker, sends = self.session, self.session.worker, super().turn(now, arrived)
        if session.throttle.due():
            return sends
        if self.may_begin:
            while isinstance(swap := worker.job, Swap):
                sends += worker.done(swap, session.intervals.swap(swap))
                sends += worker.turn(now, ())
        session.account.stole(worker.steals)
        return sends + self.flush(now, idle=worker.job is None)

    def done(self, job: Interval, result: Any) -> list[PoolSend]:
        """Pass on what a chunk has brought."""
        session, worker = self.session, self.session.worker
        sends = worker.done(job, result.wall_s, result.cpu_s / session.throttle.speed - result.cpu_s)
        self.ran(job.lo, job.n, result)
        if self.failed is not None:
            worker.end()
        return [*sends]

    def ran(self, first: int, n: int, outcome: Ran) -> None:
        """Pass on what the `n` tasks from position `first` on have brought."""
        session = self.session
        session.account.ran(first, outcome.n, outcome.wall_s, outcome.work_s)
        if outcome.n:
            self.put(first, first + outcome.n, outcome.values, outcome.work_s)
        if outcome.failed is not None:  # Ctrl-C may come after the last task
            task = first + outcome.n if outcome.n < n else -1
            self.fail_task(failure_of(outcome.failed, session.ranks.rank, task), outcome.failed)

    def fail(self, error: BaseException) -> list[PoolSend]:
        """Note that this rank can't continue."""
        self.fail_task(failure_of(error, self.session.ranks.rank), error)
        self.session.worker.end()
        return []


def _unknown(*_: Any) -> Any:
    raise LookupError("the function of this map has not been unpickled")


# --- the root ---------------------------------------------------------------------------------------------------------


def sent_function(session: Session, call: MapCall) -> tuple[bytes, bytes]:
    """Return the pickled function, if the other ranks need it, and its digest, if they do not all call with it."""
    if not session.ranks.alone or session.ranks.size == 1:
        return b"", b""
    function = dumps(call.function, "function", call.function)
    digest = digest_of(function)
    return b"" if digest in session.functions else function, digest


class RootTasks(LocalMap):
    """A map on its root: of known items (`RootMap`), or of items that are read while it runs (`RootStream`)."""

    def __init__(self, maps: PoolMaps, call: MapCall) -> None:
        super().__init__(maps.session, call)
        self._maps = maps
        self._function: tuple[bytes, bytes]  # pickled, and its digest
        self._epoch = 0
        self._began = 0.0
        self.failure: TaskFailure | None = None  # the first, with the number of its task
        self._rank_tasks = [RankTasks()] * self.session.ranks.size
        self._thread = 0  # the thread that works on it
        self._dropped = False  # before all results were taken
        self._arrived: list[tuple[int, Frame]] = []  # (rank, results to be unpickled)

    def task_at(self, position: int) -> int:
        """Return the number of the task at a position."""
        return position

    def begin_all(self) -> None:
        """Begin it on all ranks."""
        raise NotImplementedError

    def collect(self) -> list[Any]:
        """Complete the map; return all results in the order of the items."""
        raise NotImplementedError

    def _results(self) -> Iterator[tuple[int, Any]]:
        """Yield once to begin, and then what `each` returns."""
        raise NotImplementedError

    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        raise NotImplementedError

    def tell_start(
        self, bounds: Sequence[int], items: list[bytes], *, chunksize: int, costs: bool = False, lazy: bool = False
    ) -> memoryview:
        """Begin the map on all ranks, of which rank r owns bounds[r]..bounds[r + 1] - 1; return the items as encoded.

        `costs`: they are known.  `items` are removed, since what is sent is not kept here, too.
        """
        session, call, speeds, (function, digest) = self.session, self._call, self._maps.speeds.values, self._function
        session.record.use("pool", {"costs": costs, "chunksize": chunksize, "speeds": speeds.tolist()})
        self._began, self._epoch = time.perf_counter(), session.next_map()
        flags = costs, call.star, call.keep_exceptions, lazy
        start = StartOrder(self._epoch, chunksize, *flags, len(function), digest, call.retries, call.timeout_s)
        parts = [speeds.tobytes(), np.array(bounds, dtype=np.int64).tobytes(), function, *items]
        items.clear()
        with session.presence.notifying():
            data = session.orders.send_all(Tag.START, START.pack(*start), parts)
            if function:
                session.functions.keep(digest, call.function)
            self.begin(start, speeds.tolist(), bounds, self._began)
        self._maps.current = self
        return data[8 * (len(speeds) + len(bounds)) + len(function) :]

    def tell_end(self, payload: bytes) -> None:
        """Send the end of the map to all ranks."""
        self.stop()
        self.session.orders.send_all(Tag.END, b"", [payload])
        self._maps.current = None

    @property
    def state(self) -> PoolState:
        """See `SessionActor`."""
        if self._thread == threading.get_ident():
            return PoolState.IN_MAP
        return PoolState.MAP if self.session.ranks.alone else PoolState.MAP_OF_ALL

    @property
    def under_way(self) -> bool:
        """True from its begin until its end."""
        return self.session.operation is self

    def take(self, source: int, results: Buffer) -> None:
        """See `SessionActor`."""
        epoch, done, frames = read_results(results)
        if epoch != self._epoch:
            return
        self._rank_tasks[source] = done
        if frames and frames[-1].lo == frames[-1].hi:  # after a failure, a rank sends no more
            self.fail_task(pickle.loads(frames.pop().data), None)
        self._arrived += [(source, frame) for frame in frames]

    def unpacked(self, outcome: tuple[list[list[Any]], Exception | None]) -> Iterator[tuple[int, Frame, list[Any]]]:
        """Yield (rank, frame, its results) of what was unpickled; note its failure, after which others may be left."""
        values, error = outcome
        frames, self._arrived = self._arrived, self._arrived[len(values) + 1 :]
        for (source, frame), some in zip(frames, values, strict=False):
            yield source, frame, some
        if error is not None:
            source, frame = frames[len(values)]
            self.fail_task(failure_of(error, source, frame.lo), None)

    def fail_task(self, failure: TaskFailure, error: BaseException | None) -> None:
        """Note a failure, see `LocalMap`; `error` is an exception on this rank."""
        if self.failure is None:
            self.failure = failure._replace(task=self.task_at(failure.task) if failure.task >= 0 else -1)
        self.failed = self.failed or error

    def each(self) -> Iterator[tuple[int, Any]]:
        """Work on the map while results are requested; return an iterator of (index of the item, result) as they arrive."""
        results = self._results()
        next(results)  # a generator that has not begun would not end the map when it is dropped
        return results

    def end(self, results: list[Any] | None = None, *, dropped: bool = False) -> None:
        """End the map on all ranks, once: send the results, the failure, or that no more results are needed."""
        with self.session.lock, in_call(""):
            if self.under_way:
                self._end(results, dropped=dropped)

    def leave(self, _error: BaseException | None) -> None:
        """See `SessionActor`."""
        self.end(dropped=True)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the map on all ranks if an exception leaves the block: they raise it, too, unless the iterator is dropped."""
        try:
            yield
        except GeneratorExit:
            self.end(dropped=True)
            raise
        except BaseException as error:
            with in_call(""):
                if self.under_way:
                    self.fail(error)
                    self.end()
                    self.session.on_all(error)
            raise

    def _finish(self, results: list[Any] | None = None) -> None:
        """End the map on all ranks; raise its failure."""
        self.end(results)
        if self.failure is not None:
            raise self.session.on_all(self._error(self.failure))

    def _error(self, failure: TaskFailure) -> BaseException:
        """Make the error of a failed map; if only the root continues, SystemExit in a task does not end it."""
        own = self.failed
        if not isinstance(own, Exception | None) and (isinstance(own, KeyboardInterrupt) or not self.session.ranks.alone):
            return own
        error = task_error(failure)
        error.__cause__ = own or error.__cause__
        return error


class RootMap(RootTasks):
    """A map on its root.  The constructor checks and plans it, so that `begin_all` raises nothing."""

    def __init__(
        self, maps: PoolMaps, call: MapCall, items: Sequence[Any], options: CheckedOptions, opened: contextlib.ExitStack
    ) -> None:
        super().__init__(maps, call)
        session, path, file = maps.session, options.checkpoint, None
        given = check_items(items, ordered=path is not None)
        if path is not None:
            file = CheckpointFile(path, call.function, given, star=call.star, key=options.key)
            opened.enter_context(contextlib.closing(file))
        speeds, done = maps.speeds.values, () if file is None else file.done
        name = name_of(call.function)
        self._plan = plan = MapPlan.of(name, given, options.costs, done, speeds.tolist(), maps.memory)
        self._function = sent_function(session, call)
        self._encoded, self._chunksize = encode(given, plan.order, session.ranks.size), options.chunksize
        self._to_all = options.to_all
        self._gathering = Gathering(
            plan.order, callback=options.callback, progress=options.progress, file=file,
            keep_exceptions=call.keep_exceptions,
        )  # fmt: skip
        self._until_fresh = False  # it stops working when there are results
        self._calls = False  # the caller's frame is due

    def begin_all(self) -> None:
        """Begin it on all ranks."""
        known = self._plan.costs is not None
        data = self.tell_start(self._plan.bounds, self._encoded, chunksize=self._chunksize, costs=known)
        self._port = MapPort(self.session, self._call, ReceivedItems(data))

    def task_at(self, position: int) -> int:
        """See `RootTasks`."""
        return self._plan.order[position]

    def collect(self) -> list[Any]:
        """Complete the map; return all results in the order of the items."""
        results: list[Any] = [None] * len(self._plan.items)
        with self._ending():
            self._work()
            for tasks, values in self._gathering.take_fresh():
                for task, value in zip(tasks, values, strict=True):
                    results[task] = value
            self._finish(results)
        return results

    def _results(self) -> Iterator[tuple[int, Any]]:
        with self._ending():
            yield -1, None
            while True:
                if self._dropped:
                    raise Error("the pool was closed during a map: expected a loop over all its results before")
                with self.session.lock, in_call(""), self._ending():
                    if self.under_way:  # else another map has completed this one
                        self._work(until_fresh=True)
                    if not (fresh := self._gathering.take_fresh()):
                        self._finish()
                        return
                for tasks, values in fresh:
                    yield from zip(tasks, values, strict=True)

    def complete(self) -> None:
        """See `SessionActor`; results not yet requested are kept, a failure is raised where they are requested."""
        with in_call(""):
            try:
                self._work()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self.end()
            if isinstance(self.failed, KeyboardInterrupt):
                raise self.failed

    def _work(self, *, until_fresh: bool = False) -> None:
        """Work until the map is over, or until there are results; meanwhile, call the caller's functions."""
        self._thread, self._until_fresh = threading.get_ident(), until_fresh
        try:
            while True:
                self.session.work(self, self._port, MAP)
                self._deliver()
                if self._is_complete or (until_fresh and self._gathering.fresh):
                    return
        finally:
            self._thread = 0

    @property
    def _is_complete(self) -> bool:
        """True if all tasks are done, or one has failed."""
        return not self._gathering.collector.missing or self.failure is not None

    @property
    def over(self) -> bool:
        """True if the map is complete, or there is something for the caller."""
        return self._calls or self._is_complete or (self._until_fresh and bool(self._gathering.fresh))

    @property
    def may_begin(self) -> bool:
        """See `LocalMap`; results to unpickle go first."""
        return not self._arrived and self.session.parcels.unsent_bytes <= UNSENT_BYTES and not self.over

    @property
    def job(self) -> Interval | Arrived | None:
        """Results to unpickle, which may be the user's code; or else see `LocalMap`."""
        if self._arrived:
            return None if self.over else Arrived(self._arrived)
        return self.session.worker.chunk if self.may_begin else None

    def done(self, job: Interval | Arrived, result: Any) -> list[PoolSend]:
        """See `LocalMap`; count results."""
        if not isinstance(job, Arrived):
            return super().done(job, result)
        for source, frame, values in self.unpacked(result):
            self._gathering.put(source, frame.lo, frame.hi, values, frame.seconds)
        return []

    def put(self, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """See `LocalMap`."""
        self._gathering.put(self.session.ranks.rank, lo, hi, values, seconds)

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """Note whether something is due for the caller; the root sends no results."""
        self._calls = self._gathering.due(now, idle=idle)
        return []

    def _deliver(self) -> None:
        """Write results, and call the caller's functions; a failure of writing ends the map."""
        self._calls = False
        if self._write():
            with interrupts().allowed():
                self._gathering.deliver()

    def _write(self) -> bool:
        try:
            self._gathering.write()
        except (OSError, TypeError, ValueError) as error:
            self.fail_task(failure_of(error, *self._gathering.refused or (self.session.ranks.rank, -1)), error)
            self.session.worker.end()
            return False
        return True

    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        session, self._dropped = self.session, dropped
        payload = pickle.dumps(None)
        self._rank_tasks[session.ranks.rank] = self.done_tasks
        try:
            self._keep_rest()
            if self.failure is None and not dropped:
                self._tell_end()
                if self._to_all and not self._gathering.collector.missing:
                    payload = exact(results)
        except BaseException as error:
            self.fail(error)
        if self.failure is not None and not dropped:
            payload = pickle.dumps(self.failure, pickle.HIGHEST_PROTOCOL)
        self.tell_end(payload)
        seconds, found, maps = time.perf_counter() - self._began, self._gathering, self._maps
        n, busy_s = np.array([(rank.tasks, rank.busy_s) for rank in self._rank_tasks]).T
        self._plan.learn(found.runs, n, busy_s, maps.speeds, maps.memory)
        maps.ended(len(self._plan.order), seconds, self._rank_tasks)

    def _keep_rest(self) -> None:
        """Write what a map that is dropped, or has failed, has received, so that a later run need not compute it."""
        if self._gathering.keeps:
            with interrupts().allowed():
                while self._arrived:
                    self.done(arrived := Arrived(self._arrived), self._port.run(arrived))
            self._write()
            self._gathering.close()

    def _tell_end(self) -> None:
        """Report the progress at the end: in this call of the user's code, no other map may begin."""
        before, self._thread = self._thread, threading.get_ident()
        try:
            with interrupts().allowed():
                self._gathering.tell_progress()
        finally:
            self._thread = before


# --- the other ranks --------------------------------------------------------------------------------------------------


class WorkerMap(LocalMap):
    """A map on a rank other than the root, begun by its order; results go to the root in batches.

    `function`: None uses the one sent by the root.
    """

    def __init__(
        self, session: Session, start: StartOrder, data: memoryview, function: Callable[..., Any] | None = None
    ) -> None:
        limits = start.retries, start.timeout_s
        super().__init__(session, MapCall(function or _unknown, start.star, start.keep_exceptions, *limits))
        size = session.ranks.size
        speeds, bounds = np.frombuffer(data, np.float64, size), np.frombuffer(data, np.int64, size + 1, 8 * size)
        data = data[8 * (2 * size + 1) :]
        self._epoch = start.epoch
        self._frames: list[Frame] = []  # results to send
        self._bytes, self._since = 0, 0.0
        self.begin(start, speeds.tolist(), bounds.tolist(), time.perf_counter())
        try:
            if start.function_bytes:
                session.functions.keep(start.digest, bytes(data[: start.function_bytes]))
            self._call = self._call._replace(function=function or session.functions.load(start.digest))
            items = None if start.lazy else ReceivedItems(data[start.function_bytes :])
            self._port = MapPort(session, self._call, items)
        except Exception as error:  # the user's classes may raise anything when they are unpickled
            self._port = SessionPort(session)
            self.fail(error)

    @property
    def over(self) -> bool:
        """True when the root has ended the map."""
        return self.session.orders.first is not None

    def finish(self) -> tuple[list[Any] | None, BaseException | None]:
        """Complete the map; return the results, if all ranks get them, and the error that this rank raises."""
        session = self.session
        try:
            session.work(self, self._port, MAP)
        finally:
            self.stop()
        found = pickle.loads(session.orders.read(Tag.END)[1])
        own = self.failed if not isinstance(self.failed, Exception) else None  # SystemExit and Ctrl-C end their rank
        if not isinstance(found, TaskFailure):
            return found, own
        error = task_error(found)
        if error.rank == session.ranks.rank:
            error.__cause__ = self.failed or error.__cause__  # including its traceback
        return None, session.on_all(own or error)

    def collect(self) -> list[Any] | None:
        """Complete the map; return the results if all ranks get them, or raise its error."""
        with self.session.presence.notifying():
            results, error = self.finish()
        if error is not None:
            raise error
        return results

    def each(self) -> Iterator[tuple[int, Any]]:
        """Complete the map; return a generator of nothing, since only the root gets results one by one."""
        self.collect()
        nothing: list[tuple[int, Any]] = []
        return (result for result in nothing)

    def put(self, lo: int, hi: int, values: Any, seconds: float) -> None:
        """Pass on results, see `LocalMap`, which are pickled; or a failure, with lo == hi."""
        if not self._frames:
            self._since = time.perf_counter()
        self._frames.append(Frame(lo, hi, values, seconds))
        self._bytes += len(values)

    def fail_task(self, failure: TaskFailure, error: BaseException | None) -> None:
        """See `LocalMap`."""
        if self.failed is None:
            self.failed = error
            self.put(failure.task, failure.task, pickle.dumps(failure, pickle.HIGHEST_PROTOCOL), 0.0)
            self._bytes = FLUSH_BYTES

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """See `LocalMap`."""
        if not self._frames or not (idle or self._bytes >= FLUSH_BYTES or now > self._since + FLUSH_S):
            return []
        parcel = results_parcel(self._epoch, self.done_tasks, self._frames)
        self._frames, self._bytes = [], 0
        return [(self.session.ranks.root, TaskResults(parcel))]
