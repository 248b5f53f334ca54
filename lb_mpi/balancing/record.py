"""What calls of the Balancer did, and why, as tables.   (pure)"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lb_mpi.record.events import Step
from lb_mpi.table import Table

MOST_RECORDS = 10_000  # in a History


@dataclass(frozen=True)
class Balanced:
    """One call: what it did, and why; the same on all ranks but for `seconds`.

    The imbalance is the time of the slowest rank / the time that perfect balance would take, minus 1 (Jin and Wang's I_m).
    """

    acted: bool  # whether the distribution was changed (map_rows: for the calls after this one)
    reason: str  # in words; and what was lent in this call, under the plan of before or to idle ranks
    imbalance_before: float  # with all rows at home; NaN: not known yet
    imbalance_after: float  # map_rows: as it was in this call; migrate: as planned
    rows_moved: int  # in this call, on all ranks: lent, or given away
    bytes_moved: int  # in this call, on all ranks, in messages with rows and results
    steps: int  # exchanges between neighbours to find the flow; scheme direct: 1
    seconds: float  # that this rank spent for balancing: not computing, and not waiting for others
    predicted_gain_s: float  # seconds expected to be saved until the next chance

    def __str__(self) -> str:
        """Lay out as a table of one line."""
        return _table(1, [self])


class History:
    """The calls of a Balancer, the last 10,000 of them; prints as a table."""

    def __init__(self) -> None:
        self._records: deque[Balanced] = deque(maxlen=MOST_RECORDS)
        self.n_calls = 0  # since the beginning

    def append(self, record: Balanced) -> None:
        """One more call."""
        self._records.append(record)
        self.n_calls += 1

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Balanced:
        return self._records[index]

    def __iter__(self) -> Iterator[Balanced]:
        return iter(self._records)

    def __str__(self) -> str:
        """Lay out as a table, a line a call."""
        return _table(self.n_calls - len(self._records) + 1, self._records)


def _table(first: int, calls: Iterable[Balanced]) -> str:
    header = ("call", "imbalance: at home", "now", "rows moved", "MB moved", "steps", "ms spent", "ms gained", "decision")
    lines = [
        (
            str(number), percent(one.imbalance_before), percent(one.imbalance_after), f"{one.rows_moved:,}",
            f"{one.bytes_moved / 1e6:,.2f}", str(one.steps), f"{1e3 * one.seconds:.2f}", f"{1e3 * one.predicted_gain_s:.1f}",
            one.reason,
        )
        for number, one in enumerate(calls, first)
    ]  # fmt: skip
    return str(Table(header, lines, words=(8,)))


class Share(NamedTuple):
    """One rank's part of the calls of map_rows so far."""

    rank: int
    rows_home: int  # its own, in the last call
    rows_computed: int  # in all calls: its own and others'
    computing_s: float  # in all calls; rests of an emulated slow rank included
    seconds: float  # in all calls, from entering to leaving

    @property
    def idle(self) -> float:
        """The part of the time in map_rows in which this rank did not compute, 0 to 1."""
        return max(0.0, 1.0 - self.computing_s / self.seconds) if self.seconds > 0.0 else 0.0


@dataclass(frozen=True)
class Shares:
    """Each rank's part of the calls so far, and how even the last one was; prints as a table.

    The imbalance is the time of the slowest rank / the time that perfect balance would take, minus 1: 0 is perfect, 1 is
    twice as long as need be.  NaN: not known yet, since not all rows have been timed.
    """

    n_calls: int
    ranks: tuple[Share, ...]
    imbalance_home: float  # of the last call, if every rank had computed its own rows
    imbalance: float  # as it was in the last call

    def __str__(self) -> str:
        """Lay out as a table, a line a rank."""
        lines = [
            (str(one.rank), f"{one.rows_home:,}", f"{one.rows_computed:,}", f"{one.computing_s:.3f}", f"{one.idle:.1%}")
            for one in self.ranks
        ]
        return (
            f"{Table(('rank', 'rows at home', 'rows computed', 'computing s', 'idle'), lines)}\n"
            f"{self.n_calls} calls; imbalance of the last one: {percent(self.imbalance)}, "
            f"with all rows at home {percent(self.imbalance_home)}\n"
            "(imbalance 0%: all ranks end together; 100%: it takes twice as long as need be)"
        )


def shares(totals: Sequence[Step | None], last: Step | None) -> Shares:
    """Put together each rank's calls added up, in the order of ranks (None: there was none), and the last call."""
    ranks = [
        Share(rank, 0, 0, 0.0, 0.0)
        if one is None
        else Share(rank, int(one.home), int(one.units), one.useful_s, one.seconds)
        for rank, one in enumerate(totals)
    ]
    calls = max((one.n for one in totals if one is not None), default=0)
    imbalances = (math.nan, math.nan) if last is None else (last.before, last.after)
    return Shares(calls, tuple(ranks), *imbalances)


def percent(value: float) -> str:
    """Write a ratio for people, with one digit; "?" when it isn't known."""
    return f"{value:.1%}" if math.isfinite(value) else "?"
