"""What each rank had, did and waited in the calls of map_blocks so far, as a table.   (pure)"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lb_mpi.balancing.record import Balanced, percent


class Share(NamedTuple):
    """One rank's part of the calls of map_blocks so far."""

    rank: int
    rows_home: int  # its own, in the last call
    rows_computed: int  # in all calls: its own and others'
    computing_s: float  # in all calls; rests of an emulated slow rank included
    seconds: float  # in all calls, from entering to leaving

    @property
    def idle(self) -> float:
        """The part of the time in map_blocks in which this rank did not compute, 0 to 1."""
        return max(0.0, 1.0 - self.computing_s / self.seconds) if self.seconds > 0.0 else 0.0


@dataclass(frozen=True)
class Shares:
    """Each rank's part of the calls so far, and how even the last one was; prints as a table.

    The imbalance is the time of the slowest rank / the time that perfect balance would take, less 1: 0 is perfect, 1 is
    twice as long as need be.  NaN: not known yet, since not all rows have been timed.
    """

    n_calls: int
    ranks: tuple[Share, ...]
    imbalance_home: float  # of the last call, if every rank had computed its own rows
    imbalance: float  # as it was in the last call

    def __str__(self) -> str:
        """Lay out as a table, a line a rank."""
        lines = ["  rank  rows at home  rows computed  computing s    idle"]
        for one in self.ranks:
            lines.append(
                f"{one.rank:6d} {one.rows_home:13,d} {one.rows_computed:14,d} {one.computing_s:12.3f} {one.idle:7.1%}"
            )
        lines.append(
            f"{self.n_calls} calls; imbalance of the last one: {percent(self.imbalance)}, "
            f"with all rows at home {percent(self.imbalance_home)}"
        )
        lines.append("(imbalance 0%: all ranks end together; 100%: it takes twice as long as need be)")
        return "\n".join(lines)


class Tally:
    """Adds up one rank's calls."""

    def __init__(self) -> None:
        self.ended_s = math.nan  # when the last call came to its end
        self._n_calls = 0
        self._rows_home = self._rows_computed = 0
        self._computing_s = self._seconds = 0.0
        self._imbalances = math.nan, math.nan

    def called(self, began_s: float, ended_s: float, rows: tuple[int, int], computing_s: float, last: Balanced) -> None:
        """One more call of map_blocks; `rows` of this rank, and computed by it."""
        self.ended_s = ended_s
        self._n_calls += 1
        self._rows_home = rows[0]
        self._rows_computed += rows[1]
        self._computing_s += computing_s
        self._seconds += ended_s - began_s
        self._imbalances = last.imbalance_before, last.imbalance_after

    def share(self, rank: int) -> Share:
        """The sums so far."""
        return Share(rank, self._rows_home, self._rows_computed, self._computing_s, self._seconds)

    def shares(self, ranks: Iterable[Share]) -> Shares:
        """Put the ranks' parts together."""
        return Shares(self._n_calls, tuple(ranks), *self._imbalances)
