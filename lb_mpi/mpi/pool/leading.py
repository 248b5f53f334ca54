"""The root's part in a map: plan it, tell all ranks of it, work on it, take in results, tell all that it is over."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from lb_mpi import checks
from lb_mpi.errors import Error
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.recorder import ProgressLine
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.pool.crew import INLINE_BYTES, MAP, Crew
from lb_mpi.mpi.pool.functions import Sent
from lb_mpi.mpi.pool.items import Items, check_costs, check_items, encode
from lb_mpi.mpi.pool.ledger import Ledger, PoolReport
from lb_mpi.mpi.pool.messages import (
    End,
    Failure,
    Flag,
    Start,
    failure_of,
    pack_failure,
    start_parcel,
    task_error,
)
from lb_mpi.mpi.pool.shift import Call, Shift
from lb_mpi.mpi.pool.submitting import Leader
from lb_mpi.mpi.pool.task_log import TaskLog
from lb_mpi.pooling.checkpoint import check_returns, digest
from lb_mpi.pooling.deal import Deal, Floats, deal
from lb_mpi.pooling.intervals import MOST

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
        work_s, speeds = sum(rank.work_s for rank in done), self._crew.emulated_speeds
        queued = (rank.busy_s - rank.work_s / speed for rank, speed in zip(done, speeds, strict=True))
        queued_s = sum(max(0.0, each) for each in queued)
        return PoolReport(len(self._order), self.seconds, work_s / sum(speeds), list(done), queued_s)

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
        return error if self._leader.alone else self._crew.news.together(error, getattr(error, "rank", self._crew.rank))

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
