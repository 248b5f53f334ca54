"""Calls of the Balancer: their records as tables, and how a carrier writes them on one rank.   (pure)"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.record.events import Driver, Step, Way
from lb_mpi.record.history import History
from lb_mpi.record.record import OFF, Record
from lb_mpi.record.report import RankWork, Report
from lb_mpi.table import Table, percent


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


@dataclass
class HistoryLine:
    """A line of a history: a call that changed the distribution, or consecutive calls that did not, for the same reason."""

    first: int  # number of the first call
    deciding: Any  # the last call in which something was decided, if any was
    calls: list[Any] = field(default_factory=list)
    n_opportunities: int = 0  # calls in which something was decided

    @property
    def cells(self) -> tuple[str, str]:
        """The first two cells: the calls, and the number of opportunities."""
        last = self.first + len(self.calls) - 1
        return f"{self.first}" if last == self.first else f"{self.first}-{last}", str(self.n_opportunities)

    def sum(self, name: str) -> Any:
        """Return the sum of a field of all its calls."""
        return sum(getattr(one, name) for one in self.calls)

    def mean(self, name: str) -> float:
        """Return the mean of a field, over the calls in which it is known."""
        known = [value for one in self.calls if math.isfinite(value := getattr(one, name))]
        return fmean(known) if known else math.nan


def history_lines(calls: Iterable[Any], first: int = 1) -> list[HistoryLine]:
    """Group the calls, `Balanced` or `Rebalanced`, into lines; those without a decision belong to the last decision.

    first : the number of the first call.
    """
    lines = list[HistoryLine]()
    for number, one in enumerate(calls, first):
        words = _decision(one)
        begins = not lines or one.acted or lines[-1].deciding.acted
        if begins or (words not in _UNDECIDED and _decision(lines[-1].deciding) not in (words, *_UNDECIDED)):
            lines.append(HistoryLine(number, one))
        lines[-1].calls.append(one)
        if words not in _UNDECIDED:
            lines[-1].deciding = one
            lines[-1].n_opportunities += 1
    return lines


_UNDECIDED = (BalanceReason.LATER.words, BalanceReason.UNCHANGED.words)


def _decision(call: Any) -> str:
    """Return the reason without its numbers."""
    return str(call.reason.partition(";")[0])


def balances() -> History[Balanced]:
    """Make the history of a Balancer."""
    return History(_table, "rows_moved")


def _table(calls: Iterable[Balanced], first: int = 1) -> str:
    header = (
        "calls", "opportunities", "imbalance before", "imbalance after", "rows moved", "MB moved", "flow steps", "ms spent",
        "ms to gain", "decision",
    )  # fmt: skip
    lines = [
        (
            *line.cells, percent(line.deciding.imbalance_before),
            percent(line.mean("imbalance_after")), f"{line.sum('rows_moved'):,}",
            f"{line.sum('bytes_moved') / 1e6:,.2f}", f"{line.sum('steps')}", f"{1e3 * line.sum('seconds'):.2f}",
            f"{1e3 * line.deciding.predicted_gain_s:.1f}", _decision(line.deciding),
        )
        for line in history_lines(calls, first)
    ]  # fmt: skip
    return str(Table(header, lines, words=(9,)))


def _speed(knowledge: Knowledge) -> float:
    """The speed of this rank, relative to the mean of all ranks."""
    return float(knowledge.relative_speeds[knowledge.index])


class Loans:
    """The rows that `rank` lends, and its calls; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int], rank: int) -> None:
        self.record, self._worlds, self._rank = record, worlds, rank
        self._n_calls = self._n_computed = 0  # of map_rows so far
        self._seconds = self._busy_s = self._queued_s = 0.0  # in those calls
        self._last: tuple[Balanced, int, Knowledge] | None = None  # of the last call, with the number of rows at home
        self.ended = self.last_s = math.nan  # when the last call ended, and how long after the one before; NaN: none yet

    @property
    def rank(self) -> RankWork:
        """The work of this rank in the calls so far."""
        if self._last is None:
            return RankWork(self._rank)
        _, home, knowledge = self._last
        return RankWork(
            self._rank, home, self._n_computed, busy_s=self._busy_s, useful_s=self._busy_s - self._queued_s,
            speed=_speed(knowledge), seconds=self._seconds,
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
        self._n_calls, self._n_computed = self._n_calls + 1, self._n_computed + computed
        self._seconds, self._busy_s = self._seconds + ended - began, self._busy_s + busy_s
        self._queued_s, self._last = self._queued_s + queued_s, (last, home, knowledge)
        self.ended, self.last_s = ended, ended - self.ended
        if self.record is not OFF:
            step = _step(Driver.ROWS, began, ended, last, busy_s - queued_s, computed)
            self._add(step._replace(home=home, busy_s=busy_s, home_s=knowledge.home_s), last, knowledge)
            self.know(ended, knowledge)

    def know(self, now: float, knowledge: Knowledge) -> None:
        """Record what is known of the costs of this rank's rows."""
        costs = knowledge.costs
        if costs is not None and costs.known:
            self.record.know(now, lambda: costs.work(knowledge.tick_work))

    def migrated(self, began: float, ended: float, last: Balanced, knowledge: Knowledge) -> None:
        """Record a finished call of `migrate`."""
        self._add(_step(Driver.MIGRATE, began, ended, last), last, knowledge)

    def report(self, ranks: Iterable[RankWork]) -> Report:
        """Combine the work of all ranks, in their order."""
        home = actual = math.nan
        if self._last is not None:
            home, actual = self._last[0].imbalance_before, self._last[0].imbalance_after
        return Report(Driver.ROWS, self._n_calls, tuple(ranks), actual, home)

    def _add(self, step: Step, last: Balanced, knowledge: Knowledge) -> None:
        reason = self.record.reason(last.reason.partition(";")[0])
        self.record.step(step._replace(speed=_speed(knowledge), reason=reason))


def _step(driver: Driver, began: float, ended: float, last: Balanced, useful_s: float = 0.0, units: int = 0) -> Step:
    return Step(
        driver, began, ended, useful_s, units, 1.0, last.imbalance_before, last.imbalance_after, last.rows_moved,
        int(last.acted), serving_s=last.seconds,
    )  # fmt: skip
