"""One rank's part in one map of a pool: begin chunks as its `Worker` says, run them, hand the results on."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.waiting import Interrupts, own_s
from lb_mpi.mpi.pool.crew import Crew
from lb_mpi.mpi.pool.messages import (
    Failure,
    Frame,
    failure_of,
    pack_failure,
    pickled_error,
    results_parcel,
    steal_parcel,
)
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
