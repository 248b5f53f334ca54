"""What is known of a map: which tasks are done, each once, and what each rank has done for it.   (pure)

Law: a result is taken once, of the map that is under way; when there are as many as tasks, the map is over, and no other
detection of the end is needed.
"""

from __future__ import annotations

from typing import NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.pooling.intervals import unpack
from lb_mpi.pooling.worker import Kind, Message, Swap
from lb_mpi.record.events import Driver, Move, Phase, Step, Way, merged
from lb_mpi.record.record import Record


class RankTasks(NamedTuple):
    """What one rank has done in a map."""

    tasks: int = 0  # tasks run
    busy_s: float = 0.0  # wall-clock seconds in tasks, with what an emulated slower speed adds
    work_s: float = 0.0  # seconds that the tasks take by themselves: of CPU, and of waiting
    steals: int = 0  # intervals stolen, of its own host or of another
    sent_bytes: int = 0  # of messages, of all kinds


class Collector:
    """Results of one map as they come to the root."""

    def __init__(self, epoch: int, n: int) -> None:
        self.epoch = epoch
        self.missing = n
        self._done = bytearray(n)  # 1: done

    def take(self, epoch: int, lo: int, hi: int) -> bool:
        """Results of the tasks lo..hi-1 have come; False when they are of another map, and not wanted."""
        if epoch != self.epoch:
            return False
        if not 0 <= lo < hi <= len(self._done) or self._done.find(1, lo, hi) >= 0:
            raise ProtocolError(f"results of tasks {lo}..{hi - 1} of {len(self._done)}: expected each once")
        self._done[lo:hi] = b"\1" * (hi - lo)
        self.missing -= hi - lo
        return True


class Steals:
    """What this rank steals from others, map by map; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int]) -> None:
        self.record, self._worlds = record, worlds
        self._began, self._dealt = 0.0, range(0)
        self.submitted: Step | None = None  # the submitted tasks that ran here, added up

    def begin(self, now: float, lo: int, hi: int) -> None:
        """A map begins, in which this rank is dealt the tasks lo..hi-1."""
        self._began, self._dealt = now, range(lo, hi)
        self.record.begin_tasks()
        self.record.enter(Phase.PROTOCOL, now)

    def phase(self, position: int) -> Phase:
        """Return what the rank does when it runs the task at this position."""
        return Phase.OWN if position in self._dealt else Phase.FOREIGN

    def done(self, tasks: int) -> None:
        """The rank has done `tasks` tasks of the map."""
        self.record.doing(tasks, len(self._dealt))

    def ran(self, first: int, n: int, seconds: float) -> None:
        """The `n` tasks from this position on took `seconds`, in the rank's own time."""
        self.record.task(first, n, seconds)

    def taken(self, swap: Swap, now: float) -> None:
        """A swap has succeeded, which took tasks from the back of another rank's word."""
        n = unpack(swap.old).hi - unpack(swap.new).hi
        self.record.move(Move(Way.STEAL, self._worlds[swap.rank], now, now, n, 0.0))

    def given(self, source: int, now: float, message: Message) -> None:
        """A message has come from a rank of another host, maybe with tasks."""
        if message.kind is Kind.GIVE and message.lo < message.hi:
            self.record.move(Move(Way.STEAL, self._worlds[source], now, now, message.hi - message.lo, 0.0))

    def end(self, now: float, done: RankTasks, speed: float) -> None:
        """The map is over: what this rank has done in it, at its emulated speed."""
        step = Step(Driver.TASKS, self._began, now, done.work_s / speed, done.tasks, speed, moved=done.steals)
        self.record.step(step._replace(busy_s=done.busy_s, sent_bytes=done.sent_bytes))
        self.record.enter(Phase.OUTSIDE, now)

    def ran_submitted(self, number: int, began: float, ended: float, seconds: float, speed: float) -> None:
        """A submitted task is over, which took `seconds` by itself, at the rank's emulated speed."""
        step = Step(Driver.TASKS, began, ended, seconds / speed, 1, speed, busy_s=ended - began)
        self.submitted = step if self.submitted is None else merged(self.submitted, step)
        self.record.task(number, 1, seconds)
        self.record.doing(self.submitted.units)

    def close(self, now: float, speed: float) -> None:
        """The pool is closed: the tasks that were submitted to it are one step on each rank, also on one that ran none."""
        step = self.submitted or Step(Driver.TASKS, now, now, 0.0, 0, speed)
        self.record.step(step._replace(n=1, between_s=0.0))
