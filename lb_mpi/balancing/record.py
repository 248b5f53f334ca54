"""Calls of the Balancer: their records as tables, and how a carrier writes them on one rank.   (pure)"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.record.events import Driver, Step, Way
from lb_mpi.record.record import OFF, Record
from lb_mpi.record.report import RankWork, Report, percent
from lb_mpi.table import Table

MOST_RECORDS = 10_000  # in a History


@dataclass(frozen=True)
class Balanced:
    """The record of one call: what it did, and why.  All fields but `seconds` are the same on all ranks.

    Imbalance is the time of the slowest rank divided by the time of a perfect balance, minus 1 (Jin and Wang's I_m).  While
    the plan holds, most calls decide nothing ("it holds for some calls"): their `imbalance_before` is that of the last
    decision.
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


def _speed(knowledge: Knowledge) -> float:
    """The speed of this rank, relative to the mean of all ranks."""
    return float(knowledge.relative_speeds[knowledge.place])


class Loans:
    """The rows that `rank` lends, and its calls; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int], rank: int) -> None:
        self.record, self._worlds = record, worlds
        self._rank = rank
        # Of the calls of map_rows so far:
        self.n_calls = self._owned = self._computed = 0
        self._busy_s = self._useful_s = self._seconds = 0.0
        self._knowledge: Knowledge | None = None  # of the last call
        self.ended = math.nan  # when the last call ended; NaN: none yet
        self._imbalances = (math.nan, math.nan)  # of the last call: with all rows at home, and actual

    @property
    def rank(self) -> RankWork:
        """The work of this rank in the calls so far."""
        return RankWork(
            self._rank, self._owned, self._computed, busy_s=self._busy_s, useful_s=self._useful_s,
            speed=1.0 if self._knowledge is None else _speed(self._knowledge), seconds=self._seconds,
        )  # fmt: skip

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
        useful_s = busy_s - queued_s
        if self.record is not OFF:
            home_s = knowledge.took / float(knowledge.speeds[knowledge.place])
            step = self._step(Driver.ROWS, began, ended, last, knowledge)
            self.record.step(step._replace(useful_s=useful_s, busy_s=busy_s, home=home, units=computed, home_s=home_s))
            costs = knowledge.costs
            if costs is not None and costs.known:
                self.record.know(ended, lambda: costs.work(knowledge.tick_work))
        self._owned, self._computed = home, self._computed + computed
        self._busy_s, self._useful_s = self._busy_s + busy_s, self._useful_s + useful_s
        self._seconds += ended - began
        self.n_calls, self.ended = self.n_calls + 1, ended
        self._imbalances, self._knowledge = (last.imbalance_before, last.imbalance_after), knowledge

    def migrated(self, began: float, ended: float, last: Balanced, knowledge: Knowledge) -> None:
        """Record a finished call of `migrate`."""
        self.record.step(self._step(Driver.MIGRATE, began, ended, last, knowledge))

    def report(self, ranks: Iterable[RankWork]) -> Report:
        """Combine the work of all ranks, in their order."""
        home, actual = self._imbalances
        return Report(Driver.ROWS, self.n_calls, tuple(ranks), actual, home)

    def _step(self, driver: Driver, began: float, ended: float, last: Balanced, knowledge: Knowledge) -> Step:
        return Step(
            driver, began, ended, 0.0, 0.0, _speed(knowledge), last.imbalance_before,
            last.imbalance_after, last.rows_moved, int(last.acted), self.record.reason(last.reason.partition(";")[0]),
            serving_s=last.seconds,
        )  # fmt: skip
