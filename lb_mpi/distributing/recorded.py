"""The record of one rank's halo exchanges; between them the rank computes its own part.   (pure)"""

from __future__ import annotations

import math
from collections.abc import Callable

from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record
from lb_mpi.record.report import RankWork


class Halos:
    """All exchanges of a plan in one Step, since they may follow each other within microseconds."""

    def __init__(
        self, record: Record, speed: float = 1.0, cpu_share: Callable[[], float] | None = None
    ) -> None:
        self._record, self._speed = record, speed  # of this rank, relative to the others; NaN: unknown
        self._cpu_share = cpu_share  # of an emulated slow rank: `lb_mpi.throttle.cpu_share`; None: of no such rank
        self._first: float | None = None  # when the first exchange of the current Step began; None: none yet
        self._began = 0.0  # when the first one of all began
        self._last = 0.0  # when the last one ended
        self._last_cpu_s = self._last_queue_s = 0.0
        self._depth = 0  # exchanges, waits and rebalancings that have begun: a wait may contain others
        self.own_s, self.n = 0.0, 0  # computed between exchanges; number of exchanges
        self.queued_s = 0.0  # of the time between exchanges, without a core
        self._stepped_s, self._stepped_n = 0.0, 0  # of those, in Steps that are recorded

    def begin(self, now: float, cpu_s: float, queue_s: float = 0.0) -> None:
        """Record that an exchange begins; so far, this thread has used `cpu_s`, and waited `queue_s` for a core."""
        if self._first is None:
            self._first = self._began = now
        elif not self._depth:
            self._compute(now, cpu_s)
            self.queued_s += max(0.0, queue_s - self._last_queue_s)  # less while other threads of the process compute
        self._depth += 1
        self._record.enter(Phase.WAITING, now)

    def end(self, now: float, cpu_s: float, queue_s: float = 0.0) -> None:
        """Record that the exchange has ended, successfully or not."""
        self.n += 1
        self._record.doing(self.n)
        self.go_on(now, cpu_s, queue_s)

    def go_on(self, now: float, cpu_s: float, queue_s: float = 0.0) -> None:
        """Record that an exchange, a rebalancing or a wait has ended: the rank computes again, unless in a wait."""
        self._last, self._last_cpu_s, self._last_queue_s = now, cpu_s, queue_s
        self._depth -= 1
        if not self._depth:
            self._record.enter(Phase.OWN, now)

    def moved(self, began: float, now: float, step: Step) -> None:
        """Record a rebalancing in which vertices have moved, which began at `began`: the exchanges before are a Step."""
        self._end_step(began)
        self._record.step(step)
        self._first = now

    def rank(self, rank: int, vertices: int, ghosts: int) -> RankWork:
        """Return the work of this rank, number `rank`, so far: `seconds` are from the first exchange to the last."""
        seconds = 0.0 if self._first is None else self._last - self._began
        return RankWork(
            rank,
            owned=vertices,
            received=ghosts,
            busy_s=self.own_s,
            useful_s=self.own_s,
            speed=self._speed,
            seconds=seconds,
        )

    def close(self, now: float, cpu_s: float) -> None:
        """Record the Step: there are no more exchanges."""
        if self._first is not None:
            self._compute(now, cpu_s)
            self._end_step(now)
            self._first = None
            self._record.enter(Phase.OUTSIDE, now)

    def _compute(self, now: float, cpu_s: float) -> None:
        """Add the time computed since the last exchange.

        An emulated slow rank needs its CPU time / `cpu_share` anywhere: time without a core is deducted from its rests.
        """
        took_s, share = now - self._last, 1.0 if self._cpu_share is None else self._cpu_share()
        self.own_s += took_s if share == 1.0 else min(took_s, (cpu_s - self._last_cpu_s) / share)

    def _end_step(self, now: float) -> None:
        own_s, n = self.own_s - self._stepped_s, self.n - self._stepped_n
        if self._first is not None and n:
            speed = 1.0 if math.isnan(self._speed) else self._speed
            self._record.step(Step(Driver.EXCHANGE, self._first, now, own_s, n, speed))
            self._stepped_s, self._stepped_n = self.own_s, self.n
