"""The root's part in a map: tell all ranks of it, work on it, take in results, tell all that it is over."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from lb_mpi import checks
from lb_mpi.mpi.crew import INLINE_BYTES, MAP, Crew
from lb_mpi.mpi.functions import Sent
from lb_mpi.mpi.interrupts import held
from lb_mpi.mpi.items import Items, check_costs, check_items, encode
from lb_mpi.mpi.ledger import Ledger, PoolReport
from lb_mpi.mpi.pool_messages import End, Flag, Start, Tag, failure_of, pack_failure, start_parcel, task_error
from lb_mpi.mpi.progress import ProgressLine
from lb_mpi.mpi.shift import Call, Shift
from lb_mpi.mpi.task_log import TaskLog, digest
from lb_mpi.pooling.deal import Deal, Speeds, deal
from lb_mpi.pooling.log import check_returns
from lb_mpi.record.events import Phase

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
    log: Any


def make_job(
    call: Call,
    items: Any,
    *,
    costs: Any = None,
    to: str = "root",
    chunksize: int | None = None,
    progress: Progress | bool | None = None,
    log: Any = None,
) -> Job:
    """Hold the arguments of a map against what is expected, and open its log; ValueError, TypeError or OSError."""
    checks.function("function", call.function)
    checks.choice("to", to, ("root", "all"))
    checked = check_items(items)
    if isinstance(progress, bool):
        progress = ProgressLine() if progress else None
    job = Job(
        call,
        checked,
        np.arange(checked.n, dtype=np.int64),
        check_costs(costs, checked.n),
        0 if chunksize is None else checks.integer("chunksize", chunksize, least=1),
        to == "all",
        progress=checks.function("progress", progress, optional=True),
    )
    if log is None:
        return job
    check_returns(call.function)
    opened = TaskLog(log, digest(call.function, checked), checked.n)
    left = np.array([number for number in range(checked.n) if number not in opened.done], dtype=np.int64)
    return job._replace(numbers=left, log=opened)


class Encoded(NamedTuple):
    """A job as it travels."""

    dealt: Deal
    parts: list[bytes | memoryview]


def encode_job(job: Job, speeds: Speeds) -> Encoded:
    """Deal the tasks to ranks, and encode their items in that order; TypeError for an item that can't be pickled."""
    costs = None if job.costs is None else job.costs[job.numbers]
    dealt = deal(job.numbers, speeds.values.tolist(), costs)
    return Encoded(dealt, encode(job.items, dealt.order, len(speeds.values)))


class Lead:
    """A map, begun on all ranks; `sent` is the function, unless every rank has its own."""

    def __init__(self, crew: Crew, job: Job, speeds: Speeds, encoded: Encoded, sent: Sent | None) -> None:
        crew.epoch += 1
        self._crew, self._job, self._speeds = crew, job, speeds
        self._began = time.perf_counter()
        self._reported = self._began
        self._order, bounds = encoded.dealt
        how = {"costs": job.costs is not None, "chunksize": job.chunksize, "speeds": speeds.values.tolist()}
        crew.post.record.use("pool", how)
        self.ledger = Ledger(crew.epoch, self._order, crew.rank, crew.size, job.log)
        if job.log is not None:
            self.ledger.fresh.append((list(job.log.done), list(job.log.done.values())))
        self._shift = Shift(
            crew.worker, crew.host.words, crew.post.parcels, job.call,
            lambda lo, hi: job.items.some(self._order[lo:hi].tolist()), self.ledger, crew.steals,
            crew.clocks,
        )  # fmt: skip
        self._tell(encoded.parts, sent, bounds)
        crew.host.words.tell_speed(crew.rank, float(speeds.values[crew.rank]))
        crew.meet(crew.epoch)
        crew.post.active()
        crew.steals.begin(self._began, int(bounds[crew.rank]), int(bounds[crew.rank + 1]))
        crew.worker.begin(crew.epoch, int(bounds[crew.rank]), int(bounds[crew.rank + 1]), job.chunksize)

    def _tell(self, parts: list[bytes | memoryview], sent: Sent | None, bounds: NDArray[np.int64]) -> None:
        crew, call = self._crew, self._job.call
        digest, function = (sent.digest, sent.data) if sent is not None else (b"", b"")
        if sent is not None and digest in crew.functions:
            function = b""
        elif sent is not None:
            crew.functions.keep(digest, call.function)
        items_bytes = sum(map(len, parts))
        flags = Flag.STAR * call.star | Flag.KEEP_EXCEPTIONS * call.keep_exceptions | Flag.TO_ALL * self._job.to_all
        inline = len(function) + items_bytes <= INLINE_BYTES
        if not inline:
            flags |= Flag.SHELF
        for rank in range(crew.size):
            if rank != crew.rank:
                start = Start(
                    crew.epoch, int(bounds[rank]), int(bounds[rank + 1]), flags, float(self._speeds.values[rank]),
                    self._job.chunksize, len(function), items_bytes, digest,
                )  # fmt: skip
                crew.post.parcels.send(rank, Tag.START, start_parcel(start, [function, *parts] if inline else []))
        if not inline:
            crew.host.shelf.spread(len(function) + items_bytes, [function, *parts])

    def advance(self, *, to_the_end: bool) -> None:
        """Work on the map until it is over, or there are fresh results."""
        crew, ledger = self._crew, self.ledger
        with crew.news.roll.call(MAP), held() as interrupts:
            while not ledger.over and (to_the_end or not ledger.fresh):
                interrupts.check()
                if crew.receive():
                    crew.post.active()
                while crew.post.inbox:
                    source, tag, buffer = crew.post.inbox.popleft()
                    if tag == Tag.RESULTS:
                        ledger.take(source, buffer)
                    else:
                        crew.post.returned.append((source, buffer))
                if self._shift.turn(crew.slow, interrupts):
                    crew.post.active()
                else:
                    crew.post.nap(crew.worker.wake_at - time.perf_counter())
                self._report()
        crew.post.record.enter(Phase.OUTSIDE, time.perf_counter())

    def finish(self, results: list[Any] | None = None) -> None:
        """Tell all ranks that it is over: with the results, with what has failed, or that the others are not wanted."""
        crew, ledger = self._crew, self.ledger
        self._shift.end()
        crew.steals.end(time.perf_counter(), self._shift.done, crew.emulated_speeds[crew.rank])
        ledger.write()
        if self._job.log is not None:
            self._job.log.close()
        payload = b""
        if self._job.to_all and ledger.failure is None and not ledger.missing:
            try:
                payload = pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                self.fail(error)
        if ledger.failure is not None:
            index = ledger.index
            crew.send_all(Tag.END, End.FAILED, -1 if index is None else index, [pack_failure(ledger.failure)])
        else:
            crew.send_all(Tag.END, End.DROPPED if ledger.missing else End.DONE, parts=[payload])
        self._learn()
        if self._job.progress is not None and ledger.failure is None:
            self._job.progress(len(self._order) - ledger.missing, len(self._order))

    @property
    def n(self) -> int:
        """Number of items, those that are not run among them."""
        return self._job.items.n

    def take_fresh(self) -> list[tuple[list[int], list[Any]]]:
        """Results that have come since the last call, as (task numbers, values)."""
        fresh, self.ledger.fresh = self.ledger.fresh, []
        return fresh

    def error(self, *, alone: bool) -> BaseException | None:
        """What the map has failed with; `alone`: only the root goes on, which a task's SystemExit doesn't end."""
        ledger = self.ledger
        if ledger.failure is None:
            return None
        if isinstance(ledger.failed, KeyboardInterrupt) or (isinstance(ledger.failed, SystemExit) and not alone):
            return ledger.failed
        error = task_error(ledger.failure, ledger.index)
        error.__cause__ = ledger.failed or error.__cause__
        return error

    def fail(self, error: BaseException) -> None:
        """The root itself can't go on."""
        self.ledger.fail(failure_of(error, self._crew.rank), error)

    def report(self) -> PoolReport:
        """What has become of it."""
        done, speeds = self.ledger.done, self._crew.emulated_speeds
        work_s = sum(rank.work_s for rank in done)
        return PoolReport(len(self._order), self._seconds, work_s / sum(speeds), list(done))

    def _report(self) -> None:
        now = time.perf_counter()
        if self._job.progress is not None and now > self._reported + REPORT_S:
            self._reported = now
            self._job.progress(len(self._order) - self.ledger.missing, len(self._order))

    def _learn(self) -> None:
        self._seconds = time.perf_counter() - self._began
        places, costs, done = self.ledger.places, self._job.costs, self.ledger.done
        n, seconds = np.array([(rank.tasks, rank.busy_s) for rank in done]).T
        cost = None
        if costs is not None:
            dealt = costs[self._order]
            cost = np.array([sum(dealt[lo:hi].sum() for lo, hi in of_rank) for of_rank in places])
        self._speeds.observe(n, cost, seconds)
