"""The account of a map: the finished tasks, each counted once, and the work of each rank.   (pure)

Law: only results of the current map count, each once; when there is one for each task, the map is over.  No other
termination detection is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.record.events import Driver, Phase, Step, Way, merged
from lb_mpi.record.record import OFF, Record
from lb_mpi.record.report import RankWork, Report


class RankTasks(NamedTuple):
    """The work of one rank in a map."""

    tasks: int = 0  # tasks run
    busy_s: float = 0.0  # wall-clock seconds in tasks, with the delay of an emulated slower speed
    work_s: float = 0.0  # seconds of the tasks alone: CPU time and waiting
    steals: int = 0  # intervals stolen, on its own host or from another
    sent_bytes: int = 0  # of messages, of all kinds

    def plus(self, more: RankTasks) -> RankTasks:
        """Return the sums of both."""
        times = self.busy_s + more.busy_s, self.work_s + more.work_s
        return RankTasks(self.tasks + more.tasks, *times, self.steals + more.steals, self.sent_bytes + more.sent_bytes)


def report(n: int, seconds: float, ranks: Sequence[RankTasks], speeds: Sequence[float]) -> Report:
    """Report `n` tasks that took `seconds`, on ranks with these emulated speeds; those of speed 0 were not used."""
    rows = [
        RankWork(
            rank, done=one.tasks, received=one.steals, sent_bytes=one.sent_bytes, busy_s=one.busy_s,
            useful_s=one.work_s / (speed or 1.0), speed=speed, seconds=seconds,
        )
        for rank, (one, speed) in enumerate(zip(ranks, speeds, strict=True))
    ]  # fmt: skip
    return Report(Driver.TASKS, n, tuple(rows))


class Collector:
    """The results of one map, as they reach the root."""

    def __init__(self, epoch: int, n: int) -> None:
        self.epoch = epoch
        self.missing = n
        self._done = bytearray(n)  # 1: done

    def add(self, epoch: int, lo: int, hi: int) -> bool:
        """Accept results of the tasks lo..hi-1; return False if they belong to another map."""
        if epoch != self.epoch:
            return False
        if not 0 <= lo < hi <= len(self._done) or self._done.find(1, lo, hi) >= 0:
            raise ProtocolError(f"results of tasks {lo}..{hi - 1} of {len(self._done)}: expected each once")
        self._done[lo:hi] = b"\1" * (hi - lo)
        self.missing -= hi - lo
        return True


class RankAccount:
    """The work of one rank, counted and recorded map by map; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int]) -> None:
        self.record, self._worlds = record, worlds
        self._began, self._dealt = 0.0, range(0)
        self.submitted: Step | None = None  # the tasks of executors that ran here, merged
        self.done = RankTasks()  # in this map so far, without the bytes sent

    def begin(self, now: float, lo: int, hi: int) -> None:
        """Begin a map in which this rank owns the tasks lo..hi-1."""
        self.done = RankTasks()
        self._began, self._dealt = now, range(lo, hi)
        if self.record is not OFF:
            self.record.begin_tasks()
            self.record.enter(Phase.PROTOCOL, now)

    def phase(self, position: int) -> Phase:
        """Return the phase of the rank while it runs the task at this position; -1: it belongs to no interval."""
        return Phase.OWN if position < 0 or position in self._dealt else Phase.FOREIGN

    def ran(self, first: int, n: int, busy_s: float, work_s: float) -> None:
        """Count the `n` tasks from position `first` on."""
        done = self.done
        self.done = done._replace(tasks=done.tasks + n, busy_s=done.busy_s + busy_s, work_s=done.work_s + work_s)
        if self.record is not OFF:
            self.record.task(first, n, work_s)
            self.record.doing(self.done.tasks, len(self._dealt))

    def rested(self, seconds: float) -> None:
        """Count a rest of an emulated slow rank, which belongs to its tasks."""
        self.done = self.done.plus(RankTasks(busy_s=seconds))

    def stole(self, steals: Sequence[tuple[int, int]]) -> None:
        """Record the steals of the rank's `Stealer` in this map since the last call."""
        if len(steals) > self.done.steals:
            for source, n in steals[self.done.steals :]:
                self.record.move(Way.STEAL, self._worlds[source], n)
            self.done = self.done._replace(steals=len(steals))

    def end(self, now: float, done: RankTasks, speed: float) -> None:
        """Record the complete map, at the rank's emulated speed."""
        if self.record is OFF:
            return
        step = Step(Driver.TASKS, self._began, now, done.work_s / speed, done.tasks, speed, moved=done.steals)
        self.record.step(step._replace(busy_s=done.busy_s, sent_bytes=done.sent_bytes))
        self.record.enter(Phase.OUTSIDE, now)

    def ran_submitted(self, first: int, n: int, began: float, ended: float, seconds: float, speed: float) -> None:
        """Count `n` tasks of an executor, numbered from `first`, of `seconds`, at the rank's emulated speed."""
        step = Step(Driver.TASKS, began, ended, seconds / speed, n, speed, busy_s=ended - began)
        self.submitted = step if self.submitted is None else merged(self.submitted, step)
        self.record.task(first, n, seconds)
        self.record.doing(self.submitted.units)

    def close(self, now: float, speed: float) -> None:
        """Record all tasks of executors as one step per rank, even on a rank without any."""
        step = self.submitted or Step(Driver.TASKS, now, now, 0.0, 0, speed)
        self.record.step(step._replace(n=1, between_s=0.0))
