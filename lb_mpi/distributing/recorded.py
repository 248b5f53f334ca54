"""The record of one rank's halo exchanges; between them the rank computes its own part.   (pure)"""

from __future__ import annotations

from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record
from lb_mpi.record.report import RankWork


class Halos:
    """All exchanges of a plan in one Step, since they may follow each other within microseconds."""

    def __init__(self, record: Record, speed: float = 1.0, emulated_speed: float = 1.0) -> None:
        self._record, self._speed = record, speed  # of this rank, relative to the others
        self._emulated = emulated_speed
        self._first: float | None = None  # when the first exchange began; None: none yet
        self._last = 0.0  # when the last one ended
        self._last_cpu_s = 0.0
        self._own_s, self.n = 0.0, 0  # computed between exchanges; number of exchanges

    def begin(self, now: float, cpu_s: float) -> None:
        """Record that an exchange begins; this thread has used `cpu_s` of CPU time so far."""
        if self._first is None:
            self._first = now
        else:
            self._compute(now, cpu_s)
        self._record.enter(Phase.WAITING, now)

    def end(self, now: float, cpu_s: float) -> None:
        """Record that the exchange has ended, successfully or not."""
        self._last, self._last_cpu_s, self.n = now, cpu_s, self.n + 1
        self._record.doing(self.n)
        self._record.enter(Phase.OWN, now)

    def rank(self, rank: int, vertices: int, ghosts: int) -> RankWork:
        """Return the work of this rank, number `rank`, so far: `seconds` are from the first exchange to the last."""
        seconds = 0.0 if self._first is None else self._last - self._first
        return RankWork(
            rank,
            owned=vertices,
            received=ghosts,
            busy_s=self._own_s,
            useful_s=self._own_s,
            speed=self._speed,
            seconds=seconds,
        )

    def close(self, now: float, cpu_s: float) -> None:
        """Record the Step: there are no more exchanges."""
        if self._first is not None:
            self._compute(now, cpu_s)
            self._record.step(Step(Driver.EXCHANGE, self._first, now, self._own_s, self.n, self._speed))
            self._first = None
            self._record.enter(Phase.OUTSIDE, now)

    def _compute(self, now: float, cpu_s: float) -> None:
        """Add the time computed since the last exchange.

        An emulated slow rank needs its CPU time / speed on any machine: time without a core is deducted from its rests.
        """
        took_s = now - self._last
        self._own_s += took_s if self._emulated == 1.0 else min(took_s, (cpu_s - self._last_cpu_s) / self._emulated)
