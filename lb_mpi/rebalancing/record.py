"""The record of the calls of `plan.rebalance`, for the user.   (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.balancing.record import history_lines
from lb_mpi.rebalancing.deciding import RebalanceDecision
from lb_mpi.record.history import History
from lb_mpi.table import Table, percent


@dataclass(frozen=True)
class Rebalanced:
    """The record of one call: what moved, and why.  All fields but `seconds` are the same on all ranks.

    A call between two opportunities repeats the imbalance of the last one.

    Imbalance is the time of the slowest rank divided by the time of a perfect balance, minus 1.
    """

    acted: bool  # True if vertices have moved
    reason: str  # of the decision, in words
    imbalance_before: float  # as measured in the last steps; NaN: unknown
    imbalance_after: float  # expected with the parts after the call
    vertices_moved: int  # on all ranks
    bytes_moved: int  # in messages with vertices and their values, on all ranks
    cut: float  # weight of the edges between parts, afterwards
    steps: int  # exchanges between neighbours to find the flow
    seconds: float  # that this rank spent in the call, with waiting

    def __str__(self) -> str:
        """Lay out as a table of one line."""
        return _table([self])


def rebalances() -> History[Rebalanced]:
    """Make the history of a plan."""
    return History(_table, "vertices_moved")


def reason_of(decided: RebalanceDecision, moved: int = 0) -> str:
    """Say why this number of vertices has moved, or none."""
    reason, cost_s, lost_s = decided.reason, decided.cost_s, decided.lost_s
    if reason is BalanceReason.NO_GAIN:
        vain = f"; after moves in vain, {decided.price_s:.2g} s are needed" if decided.price_s > cost_s else ""
        about = f"a move takes about {cost_s:.2g} s, and this one would have saved {lost_s:.2g} s so far"
        return f"{reason.words}; {about}{vain}"
    if reason is BalanceReason.UNMEASURED:
        return "plan unchanged: not all ranks have been timed often enough"
    if moved or not reason.acts:
        return reason.words
    if reason is BalanceReason.CUT:
        return "plan unchanged: no lighter cut was found"
    return "plan unchanged: no move was found that makes the slowest rank faster"


def _table(calls: Iterable[Rebalanced], first: int = 1) -> str:
    header = (
        "calls", "opportunities", "imbalance: before", "after", "vertices moved", "MB moved", "cut", "flow steps", "ms",
        "decision",
    )  # fmt: skip
    lines = [
        (
            *line.cells, percent(line.deciding.imbalance_before), percent(line.deciding.imbalance_after),
            f"{line.sum('vertices_moved'):,}", f"{line.sum('bytes_moved') / 1e6:,.2f}", f"{line.deciding.cut:g}",
            f"{line.sum('steps')}", f"{1e3 * line.sum('seconds'):.2f}", line.deciding.reason,
        )
        for line in history_lines(calls, first)
    ]  # fmt: skip
    return str(Table(header, lines, words=(9,)))
