"""Calls of the Balancer: their records as tables, and how a carrier writes them on one rank.   (pure)"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.metrics import queueing
from lb_mpi.record.events import Driver, Step, Way
from lb_mpi.record.record import Record
from lb_mpi.table import Table

MOST_RECORDS = 10_000  # in a History


@dataclass(frozen=True)
class Balanced:
    """The record of one call: what it did, and why.  All fields but `seconds` are the same on all ranks.

    Imbalance is the time of the slowest rank divided by the time of a perfect balance, minus 1 (Jin and Wang's I_m).
    """

    acted: bool  # True if the distribution was changed (by `map_rows`: for the following calls)
    reason: str  # of the decision, in words; and what was lent in this call, by the old plan or to idle ranks
    imbalance_before: float  # if all rows were computed by their owners; NaN: unknown
    imbalance_after: float  # in this call (`map_rows`), or as planned (`migrate`)
    rows_moved: int  # number of rows lent or given away in this call, on all ranks
    bytes_moved: int  # bytes in messages with rows and results in this call, on all ranks
    steps: int  # exchanges between neighbours to find the flow; 1 for the scheme "direct"
    seconds: float  # time that this rank spent on balancing, without computing and without waiting for others
    predicted_gain_s: float  # seconds that a change is expected to save until the next opportunity

    def __str__(self) -> str:
        """Lay out as a table of one line."""
        return _table([self])


class History(deque[Balanced]):
    """The records of the last 10,000 calls of a Balancer, oldest first; prints as a table."""

    def __init__(self) -> None:
        super().__init__(maxlen=MOST_RECORDS)

    def __str__(self) -> str:
        """Lay out as a table with a line per call, numbered from 1."""
        return _table(self)


def _table(calls: Iterable[Balanced]) -> str:
    header = (
        "call", "imbalance: without lending", "actual", "rows moved", "MB moved", "steps", "ms spent", "ms gained",
        "decision",
    )  # fmt: skip
    lines = [
        (
            str(number), percent(one.imbalance_before), percent(one.imbalance_after), f"{one.rows_moved:,}",
            f"{one.bytes_moved / 1e6:,.2f}", str(one.steps), f"{1e3 * one.seconds:.2f}", f"{1e3 * one.predicted_gain_s:.1f}",
            one.reason,
        )
        for number, one in enumerate(calls, 1)
    ]  # fmt: skip
    return str(Table(header, lines, words=(8,)))


class Share(NamedTuple):
    """One rank's part of the calls of `map_rows` so far."""

    rank: int  # number of the rank
    rows_home: int  # rows that the rank owned in the last call
    rows_computed: int  # rows that it computed in all calls, its own and others'
    computing_s: float  # seconds that it computed in all calls, including the rests of an emulated slow rank
    seconds: float  # seconds in all calls, from entering to leaving
    queued_s: float = 0.0  # seconds of computing_s during which it had no core

    @property
    def idle(self) -> float:
        """The fraction, 0 to 1, of the time in `map_rows` during which this rank did not compute."""
        return max(0.0, 1.0 - self.computing_s / self.seconds) if self.seconds > 0.0 else 0.0


@dataclass(frozen=True)
class Shares:
    """Each rank's part of the calls so far, and the imbalance of the last call; prints as a table.

    Imbalance is the time of the slowest rank divided by the time of a perfect balance, minus 1: 0 is perfect, 1 is
    twice as long as necessary.  NaN: not known yet, since not all rows have been timed.
    """

    n_calls: int  # number of calls so far
    ranks: tuple[Share, ...]  # of each rank, in order
    imbalance_home: float  # of the last call, if every rank had computed its own rows
    imbalance: float  # in the last call

    def __str__(self) -> str:
        """Lay out as a table with a line per rank."""
        lines = [
            (str(one.rank), f"{one.rows_home:,}", f"{one.rows_computed:,}", f"{one.computing_s:.3f}", f"{one.idle:.1%}")
            for one in self.ranks
        ]
        queued = queueing(sum(one.computing_s for one in self.ranks), sum(one.queued_s for one in self.ranks))
        return (
            f"{Table(('rank', 'rows owned', 'rows computed', 'computing s', 'idle'), lines)}\n"
            f"{self.n_calls} calls; imbalance of the last one: {percent(self.imbalance)}, "
            f"without lending {percent(self.imbalance_home)}{queued}\n"
            "(imbalance 0%: all ranks end together; 100%: the call takes twice as long as necessary)"
        )


def percent(value: float) -> str:
    """Format a ratio as a percentage with one digit; "?" if it is unknown."""
    return f"{value:.1%}" if math.isfinite(value) else "?"


class Loans:
    """The rows that `rank` lends, and its calls; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int], rank: int) -> None:
        self.record, self._worlds = record, worlds
        # Of the calls of map_rows so far:
        self.share = Share(rank, 0, 0, 0.0, 0.0)
        self.n_calls = 0
        self.ended = math.nan  # when the last call ended; NaN: none yet
        self._imbalances = (math.nan, math.nan)  # of the last call: with all rows at home, and actual

    def lent(self, borrower: int, rows: int) -> None:
        """Record that rows were sent."""
        if rows:
            self.record.move(Way.LOAN, self._worlds[borrower], rows)

    def mapped(
        self, began: float, ended: float, last: Balanced, knowledge: Knowledge, rows: tuple[int, int], busy_s: float,
        queued_s: float = 0.0,
    ) -> None:
        """Record a finished call of `map_rows`.

        `rows`: at home, and computed here.  `busy_s`: computing; `queued_s` of it without a core.
        """
        home, computed = rows
        home_s = knowledge.took / float(knowledge.speeds[knowledge.place])
        step = self._step(Driver.ROWS, began, ended, last, knowledge)
        self.record.step(step._replace(useful_s=busy_s - queued_s, busy_s=busy_s, home=home, units=computed, home_s=home_s))
        costs, before = knowledge.costs, self.share
        if costs is not None and costs.known:
            self.record.know(ended, lambda: costs.work(knowledge.tick_work))
        computed, busy_s = before.rows_computed + computed, before.computing_s + busy_s
        seconds, queued_s = before.seconds + ended - began, before.queued_s + queued_s
        self.share = Share(before.rank, home, computed, busy_s, seconds, queued_s)
        self.n_calls, self.ended = self.n_calls + 1, ended
        self._imbalances = last.imbalance_before, last.imbalance_after

    def migrated(self, began: float, ended: float, last: Balanced, knowledge: Knowledge) -> None:
        """Record a finished call of `migrate`."""
        self.record.step(self._step(Driver.MIGRATE, began, ended, last, knowledge))

    def shares(self, everyone: Iterable[Share]) -> Shares:
        """Combine all ranks' shares, in the order of ranks."""
        return Shares(self.n_calls, tuple(everyone), *self._imbalances)

    def _step(self, driver: Driver, began: float, ended: float, last: Balanced, knowledge: Knowledge) -> Step:
        return Step(
            driver, began, ended, 0.0, 0.0, float(knowledge.relative_speeds[knowledge.place]), last.imbalance_before,
            last.imbalance_after, last.rows_moved, int(last.acted), self.record.reason(last.reason.partition(";")[0]),
            serving_s=last.seconds,
        )  # fmt: skip
