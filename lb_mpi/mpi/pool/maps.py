"""A map of known items, from its beginning to its end, on the root; the other ranks have their part in it (`member`).

    root       MapPlan, RootMap; START    -> carry: a chunk, run -> MapResults.put -> its take -> collect; END
    others     Worker                   -> carry: a chunk, run -> put; RESULTS  -> RootTasks.receive_results

The rank's `Stealer` chooses the next chunk.  The caller's functions (callback, progress) are called in the caller's frame,
which the loop leaves when there is something for them.  Another thread, whose map completes this one, calls none of them:
their errors would be its own, and they may wait for a lock that it holds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.files import warn
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.mpi.common.calls import Interrupts, bind, interrupts
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.carrier import end_child
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import N_CORES, PATIENCE_S
from lb_mpi.mpi.pool.arguments import (
    CheckedOptions,
    Progress,
    ReceivedItems,
    check_costs,
    encode,
    name_of,
    sample_of,
)  # fmt: skip
from lb_mpi.mpi.pool.checkpoint_file import CheckpointFile
from lb_mpi.mpi.pool.member import FLUSH_S, UNSENT_BYTES, Arrived, Member, PoolSend, Unpickled
from lb_mpi.mpi.pool.messages import (
    START,
    Call,
    Frame,
    Start,
    TaskFailure,
    digest_of,
    dumps,
    exact,
    failure_of,
    map_error,
    read_results,
)
from lb_mpi.mpi.pool.ranks import MAP, PoolRanks
from lb_mpi.pooling.account import Collector, RankTasks, report
from lb_mpi.pooling.beginning import PoolState
from lb_mpi.pooling.checkpoint import is_storable
from lb_mpi.pooling.learning import Memory
from lb_mpi.pooling.plan import ChunkRun, MapPlan
from lb_mpi.record.record import OFF
from lb_mpi.record.report import Report
from lb_mpi.table import named_ranks
from lb_mpi.threads import crowded, n_threads

THREADS_S, THREADED = 0.1, 0.2  # of the root: CPU seconds of other threads, and as a part of its tasks; less is ignored


OFTEN = (
    "function = {}: its {:.1f} MB are sent to all ranks for the third time, since they have changed between maps; "
    "expected what changes as a part of the items, or large data loaded on each rank (initializer=, or a module's global)"
)


class PoolMaps:
    """The maps of one pool: the one under way, and what the root has learned from earlier ones.

    `speeds`: the user's, or None.
    """

    def __init__(self, ranks: PoolRanks, speeds: Sequence[float] | None) -> None:
        self.ranks = ranks
        self.knowledge = ranks.knowledge if speeds is None else RankKnowledge(ranks.size, speeds)
        self.memory = Memory()
        self.current: RootTasks | None = None  # under way, on the root
        self._ended: tuple[int, float, Sequence[RankTasks]] | None = None  # the last one, on the root

    def ended(self, n: int, seconds: float, done: Sequence[RankTasks], threads_s: float) -> None:
        """Keep what the report of a map of `n` tasks needs; after the first, warn of tasks with more threads than cores."""
        ranks = self.ranks
        if self._ended is None and threads_s > max(THREADS_S, THREADED * done[ranks.rank].work_s):
            n_ranks = ranks.hosts.count(ranks.hosts[ranks.rank])
            if text := crowded(n_ranks, n_threads(), N_CORES):
                warn(f"the tasks of this map use threads: {text}")
        self._ended = n, seconds, done

    @property
    def report(self) -> Report | None:
        """Make the report of the last map that has ended, on the root."""
        return None if self._ended is None else report(*self._ended, self.ranks.emulated_speeds)


def _nothing() -> None:
    pass


def sent_function(ranks: PoolRanks, call: Call) -> tuple[Call, bytes, bytes]:
    """Return the root's own call; the pickled function, if other ranks need it; and its digest, unless they call, too.

    The root's tasks use their own unpickled copy, as those of other ranks do.  So they don't change the caller's object,
    which would be sent again in each map.
    """
    if not ranks.alone or ranks.size == 1:
        return call, b"", b""
    digest = digest_of(call.function)
    if digest in ranks.functions:
        return call._replace(function=ranks.functions.load(digest)), b"", digest
    function = dumps(call.function, "function", call.function)
    if ranks.functions.is_often(name_of(call.function), len(function)):
        warn(OFTEN.format(show(call.function), 1e-6 * len(function)))
    with contextlib.suppress(Exception):  # the other ranks tell what is wrong
        call = call._replace(function=pickle.loads(function))
    return call, function, digest


class RootTasks(Member):
    """A map on its root: of known items (`RootMap`), or of items that are read while it runs (`RootStream`)."""

    def __init__(self, maps: PoolMaps, call: Call) -> None:
        super().__init__(maps.ranks, call)
        self._maps = maps
        self._given = call  # with the caller's function, not this rank's copy
        self._function = [b"", b""]  # pickled, and its digest
        self._epoch = 0
        self._began = 0.0
        self.failure: TaskFailure | None = None  # the first, with the number of its task
        self._rank_tasks = [RankTasks()] * self.ranks.size
        self._thread = self._caller = 0  # the thread that works on it; the one in a function of the caller's
        self.calls = True  # the thread that works on it is the caller's, which wants results as they arrive
        self._dropped = False  # before all results were taken
        self._free_others: Callable[[], None] = _nothing  # where all ranks call the methods: see `bind`
        self._arrived: list[tuple[int, Frame]] = []  # (rank, results to be unpickled)
        self._awaited = set(range(self.ranks.size)) - {self.ranks.rank}  # ranks that may send more results

    def pickle_function(self) -> None:
        """Pickle the function, if it must be sent, and make this rank's copy of it."""
        self.call, *self._function = sent_function(self.ranks, self._given)

    def task_at(self, position: int) -> int:
        """Return the number of the task at a position."""
        return position

    @abstractmethod
    def begin_all(self) -> None:
        """Begin it on all ranks."""

    @abstractmethod
    def _results(self, *, indexed: bool, ordered: bool) -> Iterator[Any]:
        """Yield once to begin, and then what `each` returns."""

    @abstractmethod
    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        """End the map on all ranks: see `end`."""

    def send_start(
        self, bounds: Sequence[int], items: list[bytes], *, chunksize: int, costs: bool = False, lazy: bool = False
    ) -> memoryview:
        """Begin the map on all ranks, of which rank r owns bounds[r]..bounds[r + 1] - 1; return the items as encoded.

        `costs`: they are known.  `items` are removed, since what is sent is not kept here, too.
        """
        ranks, call, knowledge, (function, digest) = self.ranks, self.call, self._maps.knowledge, self._function
        if ranks.record is not OFF:
            ranks.record.use("pool", {"costs": costs, "chunksize": chunksize, "speeds": knowledge.speeds})
        known = knowledge.numbers()
        self._began, self._epoch = time.perf_counter(), ranks.next_map()
        start = Start(self._epoch, chunksize, costs, lazy, len(function), digest)
        parts = [np.array(known).tobytes(), np.array(bounds, dtype=np.int64).tobytes(), function, *items]
        items.clear()
        with ranks.presence.notifying():
            data = ranks.orders.send_all(Tag.START, START.pack(*start, *call[1:]), parts)
            if function:
                ranks.functions.store(digest, call.function)
            self.begin(start, known, bounds, self._began)
        if not ranks.alone:
            self._free_others = bind(ranks.presence.comm, "before all results of a pool's map are taken", here=True)
        self._maps.current = self
        return data[8 * (len(known) + len(bounds)) + len(function) :]

    def send_end(self, payload: bytes) -> None:
        """Send the end of the map to all ranks."""
        self.stop()
        self._free_others()
        with self.ranks.presence.committing():
            self.ranks.orders.send_all(Tag.END, b"", [payload])
        self._maps.current = None

    @property
    def state(self) -> PoolState:
        """See `PoolActor`."""
        if threading.get_ident() in (self._thread, self._caller):
            return PoolState.IN_MAP
        return PoolState.MAP if self.ranks.alone else PoolState.MAP_OF_ALL

    @property
    def under_way(self) -> bool:
        """True from its begin until its end."""
        return self.ranks.operation is self

    def receive_results(self, source: int, results: Buffer) -> None:
        """See `PoolActor`."""
        epoch, done, frames = read_results(results)
        if epoch != self._epoch:
            return
        self._rank_tasks[source] = done
        if frames and frames[-1].lo == frames[-1].hi:
            self._awaited.discard(source)
            if (failure := pickle.loads(frames.pop().data)) is not None:
                self.fail_task(failure, None)
        self._arrived += [(source, frame) for frame in frames]

    def unpacked(self, outcome: Unpickled) -> Iterator[tuple[int, Frame, list[Any]]]:
        """Yield (rank, frame, its results) of what was unpickled; note its failure, after which others may be left."""
        values, error, offset = outcome
        frames, self._arrived = self._arrived, self._arrived[len(values) + 1 :]
        for (source, frame), some in zip(frames, values, strict=False):
            yield source, frame, some
        if error is not None:
            source, frame = frames[len(values)]
            self.fail_task(failure_of(error, source, self.position_in(frame, offset), self.call.function), None)

    def position_in(self, frame: Frame, k: int) -> int:
        """Return the position of the k-th task of the oldest frame."""
        return frame.lo + k

    def fail_task(self, failure: TaskFailure, error: BaseException | None) -> None:
        """Note a failure, see `Member`; `error` is an exception on this rank."""
        if self.failure is None:
            self.failure = failure._replace(task=self.task_at(failure.task) if failure.task >= 0 else -1)
        self.failed = error if self.failed is None else self.failed

    def each(self, *, indexed: bool, ordered: bool) -> Iterator[Any]:
        """Work on the map while results are requested; return an iterator of them, as they arrive or `ordered` as the items.

        indexed : return (index of the item, result).
        """
        results = self._results(indexed=indexed, ordered=ordered)
        next(results)  # a generator that has not begun would not end the map when it is dropped
        return results

    def end(self, results: list[Any] | None = None, *, dropped: bool = False) -> None:
        """End the map on all ranks, once: send the results, the failure, or that no more results are needed."""
        if self.under_way:  # asked without the lock, too: a thread for whose start its holder waits may collect this map
            with self.ranks.lock, in_call(""):
                if self.under_way:
                    self._end(results, dropped=dropped)

    def leave(self, _error: BaseException | None) -> None:
        """See `PoolActor`."""
        self.end(dropped=True)

    def complete(self) -> None:
        """See `PoolActor`; results not yet requested are kept, a failure is raised where they are requested."""
        with in_call(""):
            try:
                while not self.complete_for_others:
                    self.work(calls=False)
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self.end()
            if isinstance(self.failed, KeyboardInterrupt):
                raise self.failed

    @property
    @abstractmethod
    def complete_for_others(self) -> bool:
        """True if it can leave the ranks: it is complete, or has failed, or nothing of it is under way."""

    def work(self, interrupts: Interrupts | None = None, *, calls: bool = True) -> None:
        """Work until there is something for the caller, which `calls`; or until the map can leave the ranks."""
        self._thread, self.calls = threading.get_ident(), calls
        try:
            self.carry(MAP, interrupts)
        finally:
            self._thread, self.calls = 0, True

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Call the caller's functions in this block, in which this thread may begin no other map."""
        self._caller, process = threading.get_ident(), os.getpid()
        try:
            with interrupts():
                yield
        finally:
            end_child(process)
            self._caller = 0

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the map on all ranks if an exception leaves the block: they raise it, too."""
        try:
            yield
        except BaseException as error:
            if self.under_way:  # asked without the lock, too: see `end`
                with self.ranks.lock, in_call(""):  # since another thread may make a stream pause, and begin its own map
                    if self.under_way:
                        self.fail(error)
                        self.end()
                        self.ranks.on_all(error, self.ranks.rank)
            raise

    @contextlib.contextmanager
    def _yielding(self) -> Iterator[None]:
        """End the map on all ranks if the caller drops the iterator in this block, which only yields.

        A function of the caller's may raise GeneratorExit, too: that is an error as any other.
        """
        try:
            yield
        except GeneratorExit:
            self.end(dropped=True)
            raise

    def _finish(self, results: list[Any] | None = None) -> None:
        """End the map on all ranks; raise its failure."""
        self.end(results)
        if self.failure is not None:
            raise self.ranks.on_all(self._error(self.failure), self.failure.rank)

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """See `Member`; the root sends no results."""
        return []

    def _error(self, failure: TaskFailure) -> BaseException:
        """Make the error of a failed map; if only the root continues, SystemExit in a task does not end it."""
        own = self.failed
        if not isinstance(own, Exception | None) and (isinstance(own, KeyboardInterrupt) or not self.ranks.alone):
            return own
        return map_error(failure, self.ranks.rank, own)


REPORT_S = 0.25  # between two calls of the progress


class MapResults:
    """The results of a map, whose position k is task order[k].

    With a checkpoint, results can be taken when they are on disk, some milliseconds after their arrival.
    `keep_exceptions`: exceptions are results, which are not written, so that a later run tries their tasks again.
    """

    def __init__(
        self,
        order: Sequence[int],
        *,
        callback: Callable[[Any], object] | None,
        progress: Progress | None,
        file: CheckpointFile | None,
        keep_exceptions: bool,
    ) -> None:
        self.runs: list[ChunkRun] = []  # in order of arrival
        self._unwritten: list[tuple[ChunkRun, list[Any]]] = []
        self._fresh = deque[tuple[Sequence[int], list[Any]]]()  # (task numbers, values), to be taken
        self._stored = [] if file is None else list(file.done)  # tasks with results from an earlier run
        if file is not None and file.done:
            self._fresh.append((self._stored, list(file.done.values())))
        self._order, self._collector = order, Collector(0, len(order))
        self._callback, self._progress = callback, progress
        self._file, self._keep_exceptions = file, keep_exceptions
        self._n_reported = len(order)  # not done, when progress was called last
        self._reported = time.perf_counter()
        self._write_at = 0.0
        self.refused: tuple[int, int] | None = None  # (rank, position) of a task whose result the checkpoint can't store

    @property
    def has_calls(self) -> bool:
        """True if there are functions of the caller's."""
        return self._callback is not None or self._progress is not None

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint."""
        return self._file is not None

    @property
    def complete(self) -> bool:
        """True if all results have arrived, and are written."""
        return not (self._collector.missing or self._unwritten)

    def put(self, source: int, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """Accept the results of the tasks at positions lo..hi-1 from rank `source`; together they took `seconds`."""
        self._collector.add(0, lo, hi)
        self.runs.append(run := ChunkRun(lo, hi, seconds, source))
        if self._file is None:
            self._fresh.append((self._order[lo:hi], values))
        else:
            self._unwritten.append((run, values))

    def due(self, now: float, *, idle: bool) -> bool:
        """Return whether results are to be written, some together if there may soon be more; the root may be `idle`."""
        return bool(self._unwritten) and (idle or now > self._write_at)

    def calls(self, now: float) -> bool:
        """Return whether the caller's frame is due: for the callback, or for the progress.

        An idle root stays in the loop, where it may warn of a late rank.
        """
        return (self._callback is not None and bool(self._fresh)) or self._reports(now)

    def _reports(self, now: float) -> bool:
        some = self._progress is not None and self._collector.missing < self._n_reported
        return some and now > self._reported + REPORT_S

    def write(self) -> None:
        """Write results to the checkpoint, if there is one; raise what the file raises."""
        if not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        found = [pair for run, values in unwritten for pair in zip(range(run.lo, run.hi), values, strict=True)]
        if self._keep_exceptions:
            found = [(position, value) for position, value in found if not isinstance(value, Exception)]
        try:
            self._store(found)
        except (TypeError, ValueError):
            for position in [k for k, value in found if not is_storable(value)][:1]:
                self.refused = next((run.rank, position) for run in self.runs if run.lo <= position < run.hi)
                self._store([(k, value) for k, value in found if is_storable(value)])  # for a later run
            raise
        self._fresh.extend((self._order[run.lo : run.hi], values) for run, values in unwritten)
        self._write_at = time.perf_counter() + FLUSH_S

    def _store(self, found: Sequence[tuple[int, Any]]) -> None:
        """Write the values of these positions."""
        assert self._file is not None
        self._file.write([self._order[position] for position, _ in found], [value for _, value in found])

    @property
    def has_fresh(self) -> bool:
        """True if there are results that were not returned yet."""
        return bool(self._fresh)

    def next_results(self) -> tuple[Sequence[int], list[Any]]:
        """Return (task numbers, values) of results that were not returned before."""
        return self._fresh.popleft()

    def call(self, tasks: Sequence[int], values: list[Any]) -> None:
        """Call the caller's functions: the callback with results, the progress now and then."""
        if self._callback is not None and tasks is not self._stored:
            for value in values:
                self._callback(value)
        if self._reports(time.perf_counter()):
            self.report_progress()
            self._reported = time.perf_counter()  # after the call, which may take long

    def report_progress(self) -> None:
        """Call the caller's progress, if there is one."""
        if self._progress is not None:
            self._n_reported = self._collector.missing
            self._progress(len(self._order) - self._n_reported, len(self._order))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class RootMap(RootTasks):
    """A map of a range, an array or a list on its root.  The constructor plans it, so that `begin_all` raises nothing."""

    def __init__(self, maps: PoolMaps, given: Any, options: CheckedOptions, opened: contextlib.ExitStack) -> None:
        super().__init__(maps, options.call)
        ranks, path, file, call = maps.ranks, options.checkpoint, None, options.call
        if path is not None:
            file = CheckpointFile(path, call.function, given, star=call.star, key=options.key)
            opened.enter_context(contextlib.closing(file))
        done, n = () if file is None else file.done, len(given)
        name = name_of(call.function)
        costs, digest = check_costs(options.costs, n), partial(sample_of, given)
        self._plan = plan = MapPlan.of(name, n, costs, done, maps.knowledge, maps.memory, digest)
        self.pickle_function()
        self._encoded, self._chunksize = encode(given, plan.order, ranks.size), options.chunksize
        self._to_all = options.to_all
        self._found = MapResults(
            plan.order, callback=options.callback, progress=options.progress, file=file,
            keep_exceptions=call.keep_exceptions,
        )  # fmt: skip
        self._one_by_one = False  # the caller takes results as they arrive
        self._due = False  # the caller's frame is due, or results are to be written
        self._stopped, self._stop_until = False, 0.0  # nothing more begins; until when the rest is awaited

    def begin_all(self) -> None:
        """Begin it on all ranks."""
        known = self._plan.costs is not None
        data = self.send_start(self._plan.bounds, self._encoded, chunksize=self._chunksize, costs=known)
        self.items = ReceivedItems(data)

    def task_at(self, position: int) -> int:
        """See `RootTasks`."""
        return self._plan.order[position]

    def collect(self) -> list[Any]:
        """Complete the map; return all results in the order of the items."""
        results: list[Any] = [None] * self._plan.n
        with self._ending():
            while True:
                for tasks, values in self._new_results():
                    for task, value in zip(tasks, values, strict=True):
                        results[task] = value
                if self.complete_for_others:
                    break
                self.work()
            self._finish(results)
        return results

    def _finish(self, results: list[Any] | None = None) -> None:
        """See `RootTasks`; report the progress at the end, before the other ranks are notified."""
        if self.failure is None and self._found.has_calls:
            with self._calling():
                self._found.report_progress()
        super()._finish(results)

    def _results(self, *, indexed: bool, ordered: bool) -> Iterator[Any]:
        self._one_by_one, early, n = True, dict[int, Any](), 0
        with self._ending():
            with self._yielding():
                yield
            while True:
                if self._dropped:
                    raise Error("the pool was closed during a map: expected a loop over all its results before")
                for tasks, values in self._new_results():
                    with self._yielding():
                        if indexed:
                            yield from zip(tasks, values, strict=True)
                        elif not ordered:
                            yield from values
                        else:
                            early.update(zip(tasks, values, strict=True))
                            while n in early:
                                yield early.pop(n)
                                n += 1
                with self.ranks.lock, in_call(MAP, watched=True) as interrupts, self._ending():
                    if self._found.has_fresh or self._dropped:  # another map has completed this one meanwhile
                        continue
                    if self.complete_for_others:
                        self._finish()
                        return
                    self.work(interrupts)

    def _new_results(self) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Yield (tasks, values) of results that have arrived; call the caller's functions."""
        found = self._found
        while found.has_fresh:
            taken = found.next_results()
            if found.has_calls:
                with self._calling():
                    found.call(*taken)
            yield taken

    @property
    def complete_for_others(self) -> bool:
        """See `RootTasks`."""
        return self._found.complete or self.failure is not None

    @property
    def over(self) -> bool:
        """True if the map is complete, or there is something for the caller."""
        if self._stopped:
            return self._due or not (self._awaited or self._arrived) or time.perf_counter() > self._stop_until
        return self._due or self.complete_for_others

    @property
    def may_begin(self) -> bool:
        """See `Member`; results to unpickle go first."""
        return not self._arrived and self.ranks.parcels.unsent_bytes <= UNSENT_BYTES and not self.over

    @property
    def job(self) -> Any:
        """Results to unpickle, which may be the user's code; or else the next chunk."""
        if self._arrived:
            return None if self.over else Arrived(self._arrived)
        return self.ranks.stealer.chunk if self.may_begin else None

    def done(self, job: Any, result: Any) -> list[PoolSend]:
        """See `Member`; count results."""
        if not isinstance(job, Arrived):
            return super().done(job, result)
        for source, frame, values in self.unpacked(result):
            self._found.put(source, frame.lo, frame.hi, values, frame.seconds)
        return []

    def put(self, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """See `Member`."""
        self._found.put(self.ranks.rank, lo, hi, values, seconds)

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """Note whether something is due for the caller; the root sends no results."""
        found = self._found
        wanted = self.calls and (found.calls(now) or (self._one_by_one and found.has_fresh))
        self._due = wanted or found.due(now, idle=idle)
        return []

    def work(self, interrupts: Interrupts | None = None, *, calls: bool = True) -> None:
        """See `RootTasks`; write results: a failure of that ends the map."""
        super().work(interrupts, calls=calls)
        self._due = False
        self._write()

    def _write(self) -> None:
        try:
            self._found.write()
        except (OSError, TypeError, ValueError) as error:
            rank, position = self._found.refused or (self.ranks.rank, -1)
            failure = failure_of(error, rank, position, self.call.function if position >= 0 else None)
            self.fail_task(failure._replace(of_file=isinstance(error, OSError)), error)
            self.ranks.stealer.end()

    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        ranks, self._dropped = self.ranks, dropped
        payload = pickle.dumps(None)
        done = self.done_tasks
        copies = len(set(ranks.hosts)) * len(self._function[0])  # of the function, one to each host
        self._rank_tasks[ranks.rank] = done._replace(sent_bytes=done.sent_bytes + copies)
        try:
            self._write_rest()
            if self.failure is None and self._to_all and results is not None:
                payload = exact(results)
        except BaseException as error:
            self.fail(error)
        if self.failure is not None and not dropped:
            payload = pickle.dumps(self.failure, pickle.HIGHEST_PROTOCOL)
        self.send_end(payload)
        seconds, found, maps = time.perf_counter() - self._began, self._found, self._maps
        self._plan.learn(found.runs, maps.knowledge, maps.memory)
        maps.ended(len(self._plan.order), seconds, self._rank_tasks, self.threads_s)

    def _write_rest(self) -> None:
        """Write what all ranks have finished of a map that is dropped, or has failed, for a later run."""
        if self._found.has_checkpoint:
            if not self._found.complete:
                self._await_rest()
            self._write()
            self._found.close()

    def _await_rest(self) -> None:
        """Let all ranks end what they have begun, and wait for its results; after Ctrl-C, for a second only."""
        ranks, self._stopped, warned = self.ranks, True, False
        ranks.stealer.end()
        ranks.orders.send_all(Tag.STOP, b"", [])
        while self._awaited or self._arrived:
            self._stop_until = time.perf_counter() + PATIENCE_S
            while not self.over:
                self.work(calls=False)
            interrupts().check()
            if not isinstance(self.failed, Exception | None):
                return
            if self._awaited and not warned:
                warned = True
                who = named_ranks(sorted(self._awaited))
                warn(f"a map with a checkpoint ends early: the tasks that run on {who} are awaited, to keep their results")
