"""The record of one rank's halo exchanges; between them the rank computes its own part.   (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record
from lb_mpi.table import Table


class HaloShare(NamedTuple):
    """One rank's part of the exchanges so far."""

    rank: int
    vertices: int  # owned
    ghosts: int
    computing_s: float  # between the exchanges, including the rests of an emulated slow rank
    seconds: float  # from the start of the first exchange to the end of the last one
    speed: float  # relative to the other ranks, as `distribute` used it; 1.0: it used none

    @property
    def idle(self) -> float:
        """The fraction, 0 to 1, of the time during which this rank exchanged values or waited for others."""
        return max(0.0, 1.0 - self.computing_s / self.seconds) if self.seconds > 0.0 else 0.0


@dataclass(frozen=True)
class HaloReport:
    """The times of each rank between the exchanges of a plan so far; prints as a table."""

    n: int  # number of exchanges
    ranks: tuple[HaloShare, ...]  # of each rank, in order

    @property
    def lower_bound_s(self) -> float:
        """The least time for this work: seconds of work / sum of the speeds."""
        return sum(one.computing_s * one.speed for one in self.ranks) / sum(one.speed for one in self.ranks)

    def __str__(self) -> str:
        """Lay out as a table with a line per rank."""
        lines = [
            (str(one.rank), f"{one.vertices:,}", f"{one.ghosts:,}", f"{one.computing_s:.3f}", f"{one.idle:.1%}")
            for one in self.ranks
        ]
        seconds = max(one.seconds for one in self.ranks)
        return (
            f"{Table(('rank', 'vertices', 'ghosts', 'computing s', 'idle'), lines)}\n"
            f"{self.n:,} exchanges in {seconds:.3f} s; {self.lower_bound_s:.3f} s if no rank had been idle"
        )


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

    def share(self, rank: int, vertices: int, ghosts: int) -> HaloShare:
        """Return this rank's part so far."""
        seconds = 0.0 if self._first is None else self._last - self._first
        return HaloShare(rank, vertices, ghosts, self._own_s, seconds, self._speed)

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
