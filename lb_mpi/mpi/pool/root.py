"""The root's part in a map: plan it, tell all ranks of it, work on it, take in results, tell all that it is over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from lb_mpi import checks, signs
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.recorder import ProgressLine, mark_save
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.pool.messages import (
    End,
    Failure,
    Flag,
    Items,
    Sent,
    Start,
    check_costs,
    check_items,
    encode,
    failure_of,
    pack_failure,
    read_results,
    start_parcel,
    task_error,
    unpack_failure,
)
from lb_mpi.mpi.pool.serving import FLUSH_S, Call, Shift
from lb_mpi.mpi.pool.session import INLINE_BYTES, MAP, Crew
from lb_mpi.mpi.pool.submitting import Leader
from lb_mpi.pooling import checkpoint
from lb_mpi.pooling.account import Collector, RankTasks
from lb_mpi.pooling.checkpoint import check_returns, digest
from lb_mpi.pooling.deal import Deal, Floats, deal
from lb_mpi.pooling.intervals import MOST
from lb_mpi.table import Table

Progress = Callable[[int, int], None]
REPORT_S = 0.25


class Job(NamedTuple):
    """What is to be done in a map."""

    call: Call
    items: Items
    numbers: NDArray[np.int64]  # of the tasks to run
    costs: NDArray[np.float64] | None = None  # of all tasks
    chunksize: int = 0  # tasks in a chunk; 0: adaptive
    to_all: bool = False
    log: TaskLog | None = None  # of finished tasks
    progress: Progress | None = None  # told (tasks done, tasks)


class Options(TypedDict, total=False):
    """What a map takes beside function and items; see `lb_mpi.Pool.map`."""

    costs: Any
    to: str
    chunksize: int | None
    progress: Progress | bool | None
    checkpoint: Any


def make_job(
    call: Call,
    items: Sequence[Any],
    *,
    costs: Any = None,
    to: str = "root",
    chunksize: int | None = None,
    progress: Progress | bool | None = None,
    checkpoint: Any = None,
) -> Job:
    """Hold the arguments of a map against what is expected, and open its checkpoint; ValueError, TypeError or OSError."""
    checks.function("function", call.function)
    checks.choice("to", to, ("root", "all"))
    checked = check_items(*items)
    if isinstance(progress, bool):
        progress = ProgressLine() if progress else None
    job = Job(
        call,
        checked,
        np.arange(checked.n, dtype=np.int64),
        check_costs(costs, checked.n),
        0 if chunksize is None else checks.integer("chunksize", chunksize, least=1, most=MOST),
        to == "all",
        progress=checks.function("progress", progress, optional=True),
    )
    if checkpoint is None:
        return job
    for one in items:
        if isinstance(one, set | frozenset):
            raise TypeError(f"items = {checks.show(one)}: expected items in a fixed order, such as sorted(items)")
    check_returns(call.function)
    opened = TaskLog(checkpoint, digest(call.function, checked.of, star=call.star), checked.n)
    left = np.array([number for number in range(checked.n) if number not in opened.done], dtype=np.int64)
    return job._replace(numbers=left, log=opened)


class Plan(NamedTuple):
    """A map that can begin: nothing in it will raise any more."""

    job: Job
    dealt: Deal
    speeds: list[float]  # of all ranks
    epoch: int
    sent: Sent | None  # the function; None: every rank has its own
    starts: list[Buffer]  # START, for each rank
    on_shelf: list[bytes | memoryview]  # function and items, where they are too long for START


def plan_map(crew: Crew, job: Job, speeds: list[float], sent: Sent | None) -> Plan:
    """Deal the tasks to ranks, and encode all that these are told; TypeError for an item that can't be pickled."""
    dealt = deal(job.numbers, speeds, None if job.costs is None else job.costs[job.numbers])
    items = encode(job.items, dealt.order, crew.size)
    function = sent.data if sent is not None and sent.digest not in crew.functions else b""
    parts, items_bytes = [function, *items], sum(map(len, items))
    inline = len(function) + items_bytes <= INLINE_BYTES
    call, epoch = job.call, crew.epoch + 1
    flags = Flag.STAR * call.star | Flag.KEEP_EXCEPTIONS * call.keep_exceptions
    flags |= Flag.TO_ALL * job.to_all | Flag.SHELF * (not inline)
    bounds = dealt.bounds.tolist()
    starts = []
    for rank, speed in enumerate(speeds):
        digest = b"" if sent is None else sent.digest
        start = Start(
            epoch, bounds[rank], bounds[rank + 1], flags, speed, job.chunksize, len(function), items_bytes, digest
        )
        starts.append(start_parcel(start, parts if inline else []))
    return Plan(job, dealt, speeds, epoch, sent, starts, [] if inline else parts)


class Lead:
    """A map, begun on all ranks; `ended` is called with its report."""

    def __init__(self, leader: Leader, plan: Plan, ended: Callable[[Lead], None]) -> None:
        self._leader, self._crew, self._job = leader, leader.crew, plan.job
        self._ended = ended
        self._order, bounds = plan.dealt
        self._began = time.perf_counter()
        self._reported = self._began
        crew, job = self._crew, plan.job
        self.ledger = Ledger(plan.epoch, self._order, crew.rank, crew.size, job.log)
        if job.log is not None:
            self.ledger.fresh.append((list(job.log.done), list(job.log.done.values())))
        self._shift = Shift(crew, job.call, lambda lo, hi: job.items.some(self._order[lo:hi].tolist()), self.ledger)
        how = {"costs": job.costs is not None, "chunksize": job.chunksize, "speeds": plan.speeds}
        crew.record.use("pool", how)
        with crew.news.telling():
            self._tell(plan)
        lo, hi = bounds[crew.rank : crew.rank + 2].tolist()
        crew.steals.begin(self._began, lo, hi)
        crew.worker.begin(plan.epoch, lo, hi, job.chunksize)
        leader.map, crew.busy = self, True

    def _tell(self, plan: Plan) -> None:
        crew, sent = self._crew, plan.sent
        crew.epoch = plan.epoch
        if sent is not None and sent.digest not in crew.functions:
            crew.functions.keep(sent.digest, plan.job.call.function)
        for rank, start in enumerate(plan.starts):
            if rank != crew.rank:
                crew.parcels.send(rank, Tag.START, start)
        if plan.on_shelf:
            crew.host.shelf.spread(sum(map(len, plan.on_shelf)), plan.on_shelf)
        crew.host.words.tell_speed(crew.rank, plan.speeds[crew.rank])
        crew.meet(plan.epoch)

    def collect(self) -> list[Any]:
        """Work on the map to its end; all results, in the order of the items."""
        results: list[Any] = [None] * self._job.items.n
        with self._ending(results):
            self._work(lambda: self.ledger.over)
            for numbers, values in self._take_fresh():
                for number, value in zip(numbers, values, strict=True):
                    results[number] = value
        return results

    def each(self) -> Iterator[tuple[int, Any]]:
        """Work on the map while results are asked for; (index of the item, result), as they come."""
        with self._ending():
            while True:
                if not self.under_way:
                    raise Error("a map whose pool was closed: expected all its results to be taken before")
                self._work(lambda: self.ledger.over or bool(self.ledger.fresh))
                fresh = self._take_fresh()
                if not fresh:
                    break
                for numbers, values in fresh:
                    yield from zip(numbers, values, strict=True)

    @property
    def under_way(self) -> bool:
        """It was not ended."""
        return self._leader.map is self

    def take(self, source: int, buffer: Buffer) -> None:
        """See `Led`."""
        self.ledger.take(source, buffer)

    def turn(self, interrupts: Interrupts) -> bool:
        """See `Led`."""
        ran = self._shift.turn(interrupts)
        now = time.perf_counter()
        if self._job.progress is not None and now > self._reported + REPORT_S:
            self._reported = now
            self._tell_progress(self._job.progress)
        return ran

    def end(self, results: list[Any] | None = None, *, dropped: bool = False) -> None:
        """Tell all ranks, once, that it is over: with the results, with what has failed, or that no more are wanted."""
        if not self.under_way:
            return
        crew, ledger = self._crew, self.ledger
        self._leader.map, crew.busy = None, False
        self._shift.end()
        crew.steals.end(time.perf_counter(), self._shift.done, crew.emulated_speeds[crew.rank])
        payload = b""
        try:
            ledger.write()
            if self._job.log is not None:
                self._job.log.close()
            if self._job.progress is not None and ledger.failure is None:
                self._tell_progress(self._job.progress)
            if self._job.to_all and ledger.failure is None and not ledger.missing:
                payload = pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
        except BaseException as error:
            self._fail(error)
        if dropped:
            crew.send_all(Tag.END, End.DROPPED)
        elif ledger.failure is None:
            crew.send_all(Tag.END, End.DONE, parts=[payload])
        else:
            index = ledger.index
            crew.send_all(Tag.END, End.FAILED, -1 if index is None else index, [pack_failure(ledger.failure)])
        self.seconds = time.perf_counter() - self._began
        self._ended(self)

    def report(self) -> PoolReport:
        """What has become of it."""
        done = self.ledger.done
        work_s = sum(rank.work_s for rank in done)
        return PoolReport(len(self._order), self.seconds, work_s / sum(self._crew.emulated_speeds), list(done))

    def observed(self) -> tuple[Floats, Floats | None, Floats]:
        """What each rank has done: the number of tasks, their costs, if known, and the seconds that they took."""
        n, seconds = np.array([(rank.tasks, rank.busy_s) for rank in self.ledger.done]).T
        if self._job.costs is None:
            return n, None, seconds
        dealt = self._job.costs[self._order]
        places = self.ledger.places
        return n, np.array([sum(dealt[lo:hi].sum() for lo, hi in of_rank) for of_rank in places]), seconds

    @contextmanager
    def _ending(self, results: list[Any] | None = None) -> Iterator[None]:
        """End the map on all ranks, whatever happens in the block; raise what it has failed with."""
        try:
            yield
        except GeneratorExit:
            self.end(dropped=True)
            raise
        except BaseException as error:
            if self.under_way:
                self._fail(error)
                self.end()
                self._together(error)
            raise
        self.end(results)
        if self.ledger.failure is not None:
            raise self._together(self._error(self.ledger.failure))

    def _together(self, error: BaseException) -> BaseException:
        """Where all ranks call the pool's methods, they raise this together."""
        return error if self._leader.alone else self._crew.news.together(error)

    def _error(self, failure: Failure) -> BaseException:
        """What the map has failed with; where only the root goes on, SystemExit in a task does not end it."""
        own = self.ledger.failed
        if isinstance(own, KeyboardInterrupt) or (isinstance(own, SystemExit) and not self._leader.alone):
            return own
        error = task_error(failure, self.ledger.index)
        error.__cause__ = own or error.__cause__
        return error

    def _fail(self, error: BaseException) -> None:
        """The root itself can't go on."""
        self.ledger.fail(failure_of(error, self._crew.rank), error)

    def _work(self, over: Callable[[], bool]) -> None:
        self._crew.work(MAP, over, self.turn)

    def _take_fresh(self) -> list[tuple[list[int], list[Any]]]:
        fresh, self.ledger.fresh = self.ledger.fresh, []
        return fresh

    def _tell_progress(self, progress: Progress) -> None:
        progress(len(self._order) - self.ledger.missing, len(self._order))


class PoolReport(NamedTuple):
    """What became of the last map of a pool."""

    n: int  # tasks run; those of the log are not
    seconds: float  # wall-clock time of the map
    lower_bound_s: float  # seconds of work in tasks / sum of (emulated) speeds
    ranks: list[RankTasks]  # of each rank, in order

    def __str__(self) -> str:
        """Write a table, a line for each rank."""
        whole_s = self.seconds or 1.0
        lines = [
            (str(rank), f"{one.tasks:,}", f"{one.busy_s:.3f}", f"{one.busy_s / whole_s:.0%}", f"{one.steals:,}",
             f"{one.sent_bytes:,}")
            for rank, one in enumerate(self.ranks)
        ]  # fmt: skip
        return (
            f"{self.n:,} tasks in {self.seconds:.3f} s, lower bound {self.lower_bound_s:.3f} s\n"
            f"{Table(('rank', 'tasks', 'busy s', 'busy', 'steals', 'bytes'), lines)}"
        )


class Ledger:
    """Results of map `epoch`: position k is task order[k].

    With a `log`, results count when they are on disk, some milliseconds after they came.
    """

    def __init__(
        self,
        epoch: int,
        order: NDArray[np.int64],
        rank: int,
        size: int,
        log: TaskLog | None = None,
    ) -> None:
        self.order = order
        self.failure: Failure | None = None
        self.failed: BaseException | None = None  # an exception of this very rank
        self.fresh: list[tuple[list[int], list[Any]]] = []  # (task numbers, values), as they came
        self.done = [RankTasks()] * size
        self.places = [list[tuple[int, int]]() for _ in range(size)]  # what each rank has done, as (lo, hi)
        self._rank, self._log = rank, log
        self._unwritten: list[tuple[int, int, int, list[Any]]] = []  # (rank, lo, hi, values)
        self._write_at = 0.0
        self._collector = Collector(epoch, len(order))

    @property
    def missing(self) -> int:
        """Tasks without a result."""
        return self._collector.missing

    @property
    def over(self) -> bool:
        """All are done, or one has failed."""
        return not self._collector.missing or self.failure is not None

    def take(self, source: int, buffer: Buffer) -> None:
        """Results have come from another rank."""
        epoch, done, frames = read_results(buffer)
        if epoch != self._collector.epoch:
            return
        self.done[source] = done
        for lo, hi, failed, data in frames:
            if failed:
                self.failure = self.failure or unpack_failure(data)
                continue
            try:
                values = pickle.loads(data)
            except Exception as error:
                self.fail(failure_of(error, source, lo), None)
                return
            self._take(source, lo, hi, values)

    def put(self, lo: int, hi: int, values: list[Any]) -> None:
        """See `Sink`: results of this rank."""
        self._take(self._rank, lo, hi, values)

    def fail(self, failure: Failure, error: BaseException | None) -> None:
        """See `Sink`."""
        self.failure = self.failure or failure
        self.failed = self.failed or error

    def flush(self, done: RankTasks, now: float, *, idle: bool) -> None:
        """See `Sink`: what this rank has put is here already, but maybe not yet in the log."""
        self.done[self._rank] = done
        if self._unwritten and (idle or now > self._write_at):
            self._write_at = now + FLUSH_S
            self.write()

    def write(self) -> None:
        """Write to the log what has come, and count it."""
        came, self._unwritten = self._unwritten, []
        if not came or self._log is None:
            return
        numbers = [number for _, lo, hi, _ in came for number in self.order[lo:hi].tolist()]
        try:
            self._log.write(numbers, [value for *_, values in came for value in values])
        except (OSError, TypeError, ValueError) as error:
            self.fail(failure_of(error, self._rank), error)
            return
        for rank, lo, hi, values in came:
            self._count(rank, lo, hi, values)

    @property
    def index(self) -> int | None:
        """The number of the task that has failed; None: it was none."""
        position = -1 if self.failure is None else self.failure.position
        return int(self.order[position]) if position >= 0 else None

    def _take(self, source: int, lo: int, hi: int, values: list[Any]) -> None:
        if self._log is None:
            self._count(source, lo, hi, values)
        else:
            self._unwritten.append((source, lo, hi, values))

    def _count(self, source: int, lo: int, hi: int, values: list[Any]) -> None:
        self._collector.take(self._collector.epoch, lo, hi)
        self.fresh.append((self.order[lo:hi].tolist(), values))
        self.places[source].append((lo, hi))


class TaskLog:
    """The log at `path` of a function and its tasks: `done` are the results that it has, by task number.

    ValueError for what is no log, or one of another function or other tasks; OSError, also while another run writes to it.
    What is torn or flipped is dropped, with a UserWarning that tells how much.
    """

    def __init__(self, path: Any, digest: bytes, n: int) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
            raise TypeError(f"checkpoint = {show(path)}: expected the name of a file")
        if Path(name).exists() and not Path(name).is_file():
            raise ValueError(f"checkpoint = {show(path)}: expected a file")
        self._name = os.path.abspath(name)  # the working directory may change
        self._file = open(name, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)
        self._told = False  # that it is no longer there
        try:
            self.done = self._begin(digest, n)
            self._n_written = len(self.done)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, digest: bytes, n: int) -> dict[int, Any]:
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

    def write(self, numbers: list[int], values: list[Any]) -> None:
        """Results of some tasks: on disk when this returns; TypeError for one of a type that a log can't keep.

        OSError, naming the file, when they can't be written: the log is then as it was before.
        """
        began = time.perf_counter()
        self._write(checkpoint.record(numbers, values))
        self._check_name()
        self._n_written += len(numbers)
        signs.saved(self._n_written)
        mark_save(began, self._n_written)

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
                self._file.truncate(end)  # what follows a torn record can't be read
            raise OSError(error.errno, error.strerror, self._name) from None

    def _check_name(self) -> None:
        """Warn once when the file was removed or replaced: the results go on, but another run won't find them."""
        try:
            there = os.path.samestat(os.stat(self._name), os.fstat(self._file.fileno()))
        except OSError:
            there = False
        if not there and not self._told:
            self._told = True
            warnings.warn(f"checkpoint {self._name}: removed while it is in use; a restart will begin anew", stacklevel=2)
