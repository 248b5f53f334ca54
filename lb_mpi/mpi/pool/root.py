"""The root's part in a map: plan it, begin it on all ranks, collect results, and end it on all ranks."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from lb_mpi import checks, signs
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.metrics import as_numbers, queueing
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.pool.messages import (
    START,
    StartOrder,
    TaskFailure,
    copied,
    digest_of,
    dumps,
    encode,
    failure_of,
    read_results,
    task_error,
)
from lb_mpi.mpi.pool.serving import FLUSH_S, LocalMap, MapCall
from lb_mpi.mpi.pool.session import MAP, Session
from lb_mpi.pooling import checkpoint
from lb_mpi.pooling.account import Collector, RankTasks
from lb_mpi.pooling.deal import Floats, Speeds, deal
from lb_mpi.pooling.intervals import MOST
from lb_mpi.pooling.learning import Memory, costs_at_speed_1
from lb_mpi.status import StatusLine
from lb_mpi.table import Table

Progress = Callable[[int, int], None]
REPORT_S = 0.25
SAMPLED, SAMPLED_BYTES = 32, 1 << 20  # items, and their bytes, by which a map is known to have the same ones as the last
_INT64 = range(-(1 << 63), 1 << 63)  # integers of a range that are sent as such

# --- arguments --------------------------------------------------------------------------------------------------------


class MapOptions(TypedDict, total=False):
    """The arguments of a map other than function and items; see `lb_mpi.Pool.map`."""

    costs: Any
    to: str
    chunksize: int | None
    progress: Progress | bool | None
    checkpoint: Any
    callback: Callable[[Any], object] | None


def check_options(
    function: Any,
    *,
    costs: Any = None,
    to: str = "root",
    chunksize: int | None = None,
    progress: Progress | bool | None = None,
    checkpoint: Any = None,
    callback: Callable[[Any], object] | None = None,
) -> tuple[int, Progress | None]:
    """Check the arguments that all ranks pass to a map; return the chunksize (0: adaptive) and the progress callback."""
    checks.function("callback", callback, optional=True)
    checks.function("function", function)
    checks.choice("to", to, ("root", "all"))
    if chunksize is not None:
        chunksize = checks.integer("chunksize", chunksize, least=1, most=MOST)
    if isinstance(progress, bool):
        progress = _progress_line() if progress else None
    return chunksize or 0, checks.function("progress", progress, optional=True)


def _progress_line() -> Progress:
    """Return a callback that shows "123 of 2,000 tasks, 12 s, about 180 s left"."""
    line, began = StatusLine(), time.perf_counter()

    def show(done: int, of: int) -> None:
        spent = time.perf_counter() - began
        left = f", about {spent / done * (of - done):,.0f} s left" if 0 < done < of else ""
        line.show(f"{done:,} of {of:,} tasks, {spent:,.0f} s{left}", last=done == of)

    return show


def check_items(*given: Any) -> Any:
    """Check the user's items, or several iterables of arguments; return a range, an array or a list."""
    items = _check_iterable(given[0] if given else None)
    if len(given) > 1:
        items = zip(*map(_rows, map(_check_iterable, given)), strict=False)
    if isinstance(items, range) and items:  # its integers may be too large for len()
        n = (items[-1] - items[0]) // items.step + 1
    else:
        items = items if isinstance(items, range | np.ndarray) else list(items)
        n = len(items)
    if n > MOST:
        count = f"{n:,}" if n in _INT64 else "more than 2**63"
        raise ValueError(f"{count} items: expected at most {MOST:,}")
    if isinstance(items, range) and not (items.start in _INT64 and items.step in _INT64):
        return list(items)
    return items


def _check_iterable(items: Any) -> Any:
    if isinstance(items, bool | str | bytes) or not isinstance(items, int | np.integer | Iterable):
        raise TypeError(f"items = {show(items)}: expected a number, a range, an array or a list of items")
    if isinstance(items, int | np.integer):
        if items < 0:
            raise ValueError(f"items = {items}: expected an integer >= 0")
        return range(int(items))
    if isinstance(items, np.ndarray) and type(items) is not np.ndarray:
        raise TypeError(f"items of type {type(items).__name__}: expected a numpy array (no subclass), or a list")
    if isinstance(items, np.ndarray) and not items.ndim:
        raise ValueError("items of shape (): expected at least one dimension, the items")
    return items


def _rows(items: Iterable[Any]) -> Iterable[Any]:
    return map(copied, items) if isinstance(items, np.ndarray) else items


def check_costs(costs: Any, n: int) -> Floats | None:
    """Return the costs of n items relative to the largest, so that sums are finite in any unit; or raise ValueError."""
    if costs is None:
        return None
    values = as_numbers("costs", costs)
    if values.shape != (n,):
        raise ValueError(f"costs of shape {values.shape}: expected ({n},), one for each item")
    if wrong := np.flatnonzero(~(np.isfinite(values) & (values >= 0))).tolist():
        raise ValueError(f"costs[{wrong[0]}] = {values[wrong[0]]}: expected a finite number >= 0")
    most = values.max(initial=0.0)
    return values / most if most else values


def name_of(function: Callable[..., Any]) -> Hashable:
    """Return what identifies a function in the next map, where the same lambda is a new object."""
    if isinstance(function, FunctionType | MethodType | BuiltinFunctionType):
        return getattr(function, "__code__", function.__qualname__)
    kind: type = type(function)
    return kind


def sample_of(items: Any) -> bytes:
    """Return a digest of some items; b"" if they can't be pickled."""
    digest = hashlib.sha256()
    n_bytes = 0
    try:
        for k in range(0, len(items), max(1, len(items) // SAMPLED)):
            data = pickle.dumps(items[k], pickle.HIGHEST_PROTOCOL)
            digest.update(data)
            if (n_bytes := n_bytes + len(data)) > SAMPLED_BYTES:
                break
    except Exception:  # the map itself says what is wrong with items that can't be pickled
        return b""
    return digest.digest()


# --- the map ----------------------------------------------------------------------------------------------------------


class PoolReport(NamedTuple):
    """The outcome of the last map of a pool, or of the tasks of an executor so far."""

    n: int  # tasks run, without those restored from the checkpoint
    seconds: float  # wall-clock time of the map; of an executor, from its first task to the end of its last one
    lower_bound_s: float  # seconds of work in tasks / sum of (emulated) speeds
    ranks: list[RankTasks]  # of each rank, in order
    queued_s: float = 0.0  # seconds for which tasks had no core, on all ranks

    @classmethod
    def of(cls, n: int, seconds: float, ranks: list[RankTasks], speeds: Sequence[float]) -> PoolReport:
        """Make the report of `ranks` with these emulated speeds; those of speed 0 were not used."""
        bound_s = sum(rank.work_s for rank in ranks) / sum(speeds)
        slow = zip(ranks, speeds, strict=True)
        queued_s = sum(max(0.0, rank.busy_s - rank.work_s / speed) for rank, speed in slow if speed)
        return cls(n, seconds, bound_s, ranks, queued_s)

    def __str__(self) -> str:
        """Return a table with a line per rank."""
        whole_s = self.seconds or 1.0
        lines = [
            (str(rank), f"{one.tasks:,}", f"{one.busy_s:.3f}", f"{one.busy_s / whole_s:.0%}", f"{one.steals:,}",
             f"{one.sent_bytes:,}")
            for rank, one in enumerate(self.ranks)
        ]  # fmt: skip
        queued = queueing(sum(one.busy_s for one in self.ranks), self.queued_s)
        return (
            f"{self.n:,} tasks in {self.seconds:.3f} s, lower bound {self.lower_bound_s:.3f} s{queued}\n"
            f"{Table(('rank', 'tasks', 'busy s', 'busy', 'steals', 'bytes'), lines)}"
        )


class RootMap(LocalMap):
    """A map on its root.  The constructor checks and plans it, so that `begin_all` raises nothing.

    Position k of the map is task order[k].  With a checkpoint, results count when they are on disk, some milliseconds after
    their arrival.
    """

    def __init__(
        self,
        session: Session,
        call: MapCall,
        items: Sequence[Any],
        options: MapOptions,
        learned: Speeds,
        memory: Memory,
        opened: contextlib.ExitStack,
    ) -> None:
        super().__init__(session, call)
        self._learned, self._memory = learned, memory
        chunksize, self._progress = check_options(call.function, **options)
        self._items = check_items(*items)
        self._n = len(self._items)
        self._sample = b""  # of the items, by which their costs are remembered
        self._costs = check_costs(options.get("costs"), self._n)
        if self._costs is None and session.size > 1:
            self._sample = sample_of(self._items)
            self._costs = memory.predict(name_of(call.function), self._sample, self._n)
        self._to_all = options.get("to") == "all"
        self._callback = options.get("callback")
        self._file: CheckpointFile | None = None
        tasks: NDArray[np.int64] = np.arange(self._n, dtype=np.int64)
        self._fresh: list[tuple[list[int], list[Any]]] = []  # (task numbers, values), in order of arrival
        if options.get("checkpoint") is not None:
            self._file = opened.enter_context(contextlib.closing(self._open(options["checkpoint"], items)))
            done = self._file.done
            tasks = np.array([task for task in range(self._n) if task not in done], dtype=np.int64)
            self._fresh.append((list(done), list(done.values())))
        function, digest = b"", b""  # every rank has the function
        if session.alone and session.size > 1:
            function = dumps(call.function, "function", call.function)
            digest = digest_of(function)
        self._speeds: list[float] = learned.values.tolist()
        self._order, bounds = deal(tasks, self._speeds, None if self._costs is None else self._costs[tasks])
        if digest in session.functions:
            function = b""
        self._parts = [learned.values.tobytes(), function, *encode(self._items, self._order, session.size)]
        self._epoch = session.epoch + 1
        how = self._costs is not None, call.star, call.keep_exceptions, len(function), digest
        self._starts = [
            StartOrder(self._epoch, lo, hi, chunksize, *how) for lo, hi in itertools.pairwise(bounds.tolist())
        ]
        self.failure: TaskFailure | None = None  # the first, with the number of its task
        self._rank_tasks = [RankTasks()] * session.size
        self._rank_costs = np.zeros(session.size)  # of the tasks done by each rank, if known
        self._seconds = np.zeros(len(self._order), dtype=np.float32)  # of each task, by position
        self._by = np.zeros(len(self._order), dtype=np.int32)  # the rank that has run it
        self._worker = 0  # the thread that works on it
        self._until_fresh = False  # it stops working when there are results
        self._dropped = False  # before all results were taken
        self._unwritten: list[tuple[int, int, int, list[Any]]] = []  # (rank, lo, hi, values)
        self._write_at = 0.0
        self._collector = Collector(self._epoch, len(self._order))

    def _open(self, path: Any, items: Sequence[Any]) -> CheckpointFile:
        """Open the checkpoint of these items; raises ValueError, TypeError or OSError."""
        for one in items:
            if isinstance(one, set | frozenset):
                raise TypeError(f"items = {show(one)}: expected items in a fixed order, such as sorted(items)")
        function, star, _ = self._call
        checkpoint.check_returns(function)
        return CheckpointFile(path, checkpoint.digest(function, self._items, star=star), self._n)

    def begin_all(self, ended: Callable[[PoolReport], None]) -> None:
        """Begin it on all ranks; `ended` is called when it is over."""
        session = self.session
        self._ended = ended
        self._began = self._reported = time.perf_counter()
        how = {"costs": self._costs is not None, "chunksize": self._starts[0].chunksize, "speeds": self._speeds}
        session.record.use("pool", how)
        with session.presence.telling():
            session.epoch = self._epoch
            if self._starts[0].function_bytes:
                session.functions.keep(self._starts[0].digest, self._call.function)
            session.send_all(Tag.START, [START.pack(*start) for start in self._starts], self._parts)
            self.begin(self._starts[session.rank], self._speeds, self._began)
        self._starts, self._parts = [], []  # free memory

    def collect(self) -> list[Any]:
        """Complete the map; return all results in the order of the items."""
        results: list[Any] = [None] * self._n
        with self._ending(results):
            self._work()
            for tasks, values in self._take_fresh():
                for task, value in zip(tasks, values, strict=True):
                    results[task] = value
        return results

    def each(self) -> Iterator[tuple[int, Any]]:
        """Work on the map while results are requested; yield (index of the item, result) as they arrive."""
        with self._ending():
            while True:
                if self._dropped:
                    raise Error("the pool was closed during a map: expected a loop over all its results before")
                with self.session.lock:
                    if self.under_way:  # else another map has completed this one
                        self._work(until_fresh=True)
                    fresh = self._take_fresh()
                if not fresh:
                    break
                for tasks, values in fresh:
                    yield from zip(tasks, values, strict=True)

    def complete(self) -> bool:
        """See `Operation`; results not yet requested are kept, a failure is raised where they are requested."""
        if self.refuses() or not self.session.alone:  # the other ranks would have to know
            return False
        try:
            self._work()
        except BaseException as error:
            self.fail(failure_of(error, self.session.rank), error)
            self.end()
            raise
        self.end()
        if isinstance(self.failed, KeyboardInterrupt):
            raise self.failed
        return True

    def refuses(self) -> bool:
        """See `Operation`."""
        return self._worker == threading.get_ident()

    def _work(self, *, until_fresh: bool = False) -> None:
        self._worker, self._until_fresh = threading.get_ident(), until_fresh
        try:
            self.session.work(self, MAP)
        finally:
            self._worker = 0

    @property
    def under_way(self) -> bool:
        """True from its begin until its end."""
        return self.session.operation is self

    @property
    def over(self) -> bool:
        """True if all tasks are done, or one has failed, or the caller waits for results and there are some."""
        return not self._collector.missing or self.failure is not None or (self._until_fresh and bool(self._fresh))

    def arguments(self, lo: int, hi: int) -> list[Any]:
        """Return items, see `LocalMap`; rows of an array are copies."""
        return [copied(self._items[task]) for task in self._order[lo:hi].tolist()]

    def take(self, source: int, results: Buffer) -> None:
        """See `Operation`."""
        epoch, done, frames = read_results(results)
        if epoch != self._epoch:
            return
        self._rank_tasks[source] = done
        for lo, hi, data, seconds in frames:
            try:
                found = pickle.loads(data)
            except Exception as error:
                self.fail(failure_of(error, source, lo), None)
                return
            if lo == hi:
                self.fail(found, None)
            else:
                self.put(lo, hi, found, seconds, source)

    def put(self, lo: int, hi: int, values: list[Any], seconds: float, source: int | None = None) -> None:
        """Pass on results, see `LocalMap`, of another rank if there is a `source`."""
        source = self.session.rank if source is None else source
        self._seconds[lo:hi], self._by[lo:hi] = seconds / (hi - lo), source
        if self._file is None:
            self._count(source, lo, hi, values)
        else:
            self._unwritten.append((source, lo, hi, values))

    def fail(self, failure: TaskFailure, error: BaseException | None) -> None:
        """Note a failure, see `LocalMap`; `error` is an exception on this rank."""
        if self.failure is None:
            self.failure = failure._replace(task=int(self._order[failure.task]) if failure.task >= 0 else -1)
        self.failed = self.failed or error

    def flush(self, now: float, *, idle: bool) -> None:
        """Pass on results, see `LocalMap`; some may not yet be in the checkpoint.  Report the progress now and then."""
        if now > self._reported + REPORT_S:
            self._reported = now
            self._tell_progress()
        self._rank_tasks[self.session.rank] = self.done
        if self._unwritten and (idle or now > self._write_at):
            self._write_at = now + FLUSH_S
            self._write()

    def end(self, results: list[Any] | None = None, *, dropped: bool = False) -> None:
        """End the map on all ranks, once: send the results, the failure, or that no more results are needed."""
        with self.session.lock:
            if self.under_way:
                self._end(results, dropped=dropped)

    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        session = self.session
        self._dropped = dropped
        self.stop()
        payload = pickle.dumps(None)
        try:
            self._write()
            if self._file is not None:
                self._file.close()
            if self.failure is None:
                self._tell_progress()
                if self._to_all and not self._collector.missing:
                    payload = pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
        except BaseException as error:
            self.fail(failure_of(error, session.rank), error)
        if self.failure is not None and not dropped:
            payload = pickle.dumps(self.failure, pickle.HIGHEST_PROTOCOL)
        session.send_all(Tag.END, [b""] * session.size, [payload])
        seconds = time.perf_counter() - self._began
        self._learn()
        self._ended(PoolReport.of(len(self._order), seconds, [*self._rank_tasks], session.emulated_speeds))

    def _learn(self) -> None:
        """Learn the speeds of the ranks, and what the tasks cost: nothing of a part of the tasks, or of a single rank."""
        n, busy_s = np.array([(rank.tasks, rank.busy_s) for rank in self._rank_tasks]).T
        self._learned.observe(n, None if self._costs is None else self._rank_costs, busy_s)
        if not self._sample or self._collector.missing or len(self._order) < self._n:
            return
        costs = np.empty(self._n)
        costs[self._order] = costs_at_speed_1(self._seconds, self._by, busy_s, self._learned.values)
        self._memory.observe(name_of(self._call.function), self._sample, costs)

    def leave(self, _error: BaseException | None) -> None:
        """See `Operation`."""
        self.end(dropped=True)

    @contextlib.contextmanager
    def _ending(self, results: list[Any] | None = None) -> Iterator[None]:
        """End the map on all ranks, whatever happens in the block; raise its failure."""
        try:
            yield
        except GeneratorExit:
            self.end(dropped=True)
            raise
        except BaseException as error:
            if self.under_way:
                self.fail(failure_of(error, self.session.rank), error)
                self.end()
                self.session.together(error)
            raise
        self.end(results)
        if self.failure is not None:
            raise self.session.together(self._error(self.failure))

    def _error(self, failure: TaskFailure) -> BaseException:
        """Make the error of a failed map; if only the root continues, SystemExit in a task does not end it."""
        own = self.failed
        if isinstance(own, KeyboardInterrupt) or (isinstance(own, SystemExit) and not self.session.alone):
            return own
        error = task_error(failure)
        error.__cause__ = own or error.__cause__
        return error

    def _take_fresh(self) -> list[tuple[list[int], list[Any]]]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress(len(self._order) - self._collector.missing, len(self._order))

    def _write(self) -> None:
        """Write pending results to the checkpoint, and count them."""
        came, self._unwritten = self._unwritten, []
        if not came or self._file is None:
            return
        tasks = [task for _, lo, hi, _ in came for task in self._order[lo:hi].tolist()]
        try:
            self._file.write(tasks, [value for *_, values in came for value in values])
        except (OSError, TypeError, ValueError) as error:
            self.fail(failure_of(error, self.session.rank), error)
            return
        for results in came:
            self._count(*results)

    def _count(self, source: int, lo: int, hi: int, values: list[Any]) -> None:
        self._collector.take(self._epoch, lo, hi)
        tasks = self._order[lo:hi]
        if self._callback is not None:
            for value in values:
                self._callback(value)
        self._fresh.append((tasks.tolist(), values))
        if self._costs is not None:
            self._rank_costs[source] += self._costs[tasks].sum()


# --- its checkpoint ---------------------------------------------------------------------------------------------------


class CheckpointFile:
    """The checkpoint (see `lb_mpi.pooling.checkpoint`) at `path`: read when a map begins, written before results count.

    `done` are its results, by task number.  ValueError for other files, functions or tasks; OSError, also if another run
    writes to it.  Truncated or corrupt parts are dropped with a UserWarning.
    """

    def __init__(self, path: Any, digest: bytes, n: int) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
            raise TypeError(f"checkpoint = {show(path)}: expected the name of a file")
        if Path(name).exists() and not Path(name).is_file():
            raise ValueError(f"checkpoint = {show(path)}: expected a file")
        self._name = os.path.abspath(name)  # the working directory may change
        self._file = open(name, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)
        self._warned = False  # that the file is gone
        try:
            self.done = self._read(digest, n)
        except BaseException:
            self._file.close()
            raise
        self._n_written = len(self.done)

    def _read(self, digest: bytes, n: int) -> dict[int, Any]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{self._name}: another run writes to this checkpoint") from None
        self._file.seek(0)
        try:
            read = checkpoint.read(self._file.read(), digest, n)
        except ValueError as error:
            raise ValueError(f"checkpoint {self._name}: {error}") from None
        if read.dropped:
            warnings.warn(f"checkpoint {self._name}: dropped {read.dropped}", stacklevel=2)
            self._file.truncate(read.n_good)
        if not read.n_good:
            self._write(checkpoint.header(digest, n))
        return read.done

    def write(self, tasks: list[int], values: list[Any]) -> None:
        """Write results to disk; TypeError for an unsupported type; OSError, with the file unchanged, if that fails."""
        self._write(checkpoint.record(tasks, values))
        self._check_name()
        self._n_written += len(tasks)
        signs.saved(self._n_written)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)  # data after a truncated record can't be read
            raise OSError(error.errno, error.strerror, self._name) from None

    def _check_name(self) -> None:
        """Warn once if the file was removed or replaced: results are still written, but another run won't find them."""
        try:
            there = os.path.samestat(os.stat(self._name), os.fstat(self._file.fileno()))
        except OSError:
            there = False
        if not there and not self._warned:
            self._warned = True
            warnings.warn(f"checkpoint {self._name}: removed while in use; a restart will repeat all tasks", stacklevel=2)
