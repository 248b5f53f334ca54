"""The root's side of one map: results in their places, what each rank has done, and what the map has come to."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.metrics import queueing
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.pool.messages import Failure, failure_of, read_results, unpack_failure
from lb_mpi.mpi.pool.shift import FLUSH_S
from lb_mpi.mpi.pool.task_log import TaskLog
from lb_mpi.pooling.account import Collector, RankTasks
from lb_mpi.table import Table


class PoolReport(NamedTuple):
    """What became of the last map of a pool."""

    n: int  # tasks run; those of the log are not
    seconds: float  # wall-clock time of the map
    lower_bound_s: float  # seconds of work in tasks / sum of (emulated) speeds
    ranks: list[RankTasks]  # of each rank, in order
    queued_s: float = 0.0  # seconds in tasks without a core, of all ranks

    def __str__(self) -> str:
        """Write a table, a line for each rank."""
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
