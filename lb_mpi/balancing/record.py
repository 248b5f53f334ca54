"""What calls of the Balancer did, and why.   (pure)"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

MOST_RECORDS = 10_000  # in a History


@dataclass(frozen=True)
class Balanced:
    """One call: what it did, and why; the same on all ranks but for `seconds`.

    The imbalance is the time of the slowest rank / the time that perfect balance would take, less 1 (Jin and Wang's I_m).
    """

    acted: bool  # whether the distribution was changed (map_blocks: for the calls after this one)
    reason: str  # in words; and what was lent in this call, by the plan of before or to idle ranks
    imbalance_before: float  # with all rows at home; NaN: not known yet
    imbalance_after: float  # map_blocks: as it was in this call; migrate: as planned
    rows_moved: int  # in this call, on all ranks: lent, or given away
    bytes_moved: int  # in this call, on all ranks, in messages with rows and results
    steps: int  # exchanges between neighbours to find the flow; scheme direct: 1
    seconds: float  # that this rank spent for balancing: not computing, and not waiting for others
    predicted_gain_s: float  # seconds expected to be saved until the next chance

    def __str__(self) -> str:
        """Lay out as a table of one line."""
        return table([(1, self)])


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
        first = self.n_calls - len(self._records) + 1
        return table(list(enumerate(self._records, start=first)))


def table(rows: list[tuple[int, Balanced]]) -> str:
    """Lay out calls with their numbers, a line each."""
    lines = ["  call  imbalance: at home   now  rows moved    MB moved  steps  ms spent  ms gained  what was done"]
    for number, one in rows:
        lines.append(
            f"{number:6d} {percent(one.imbalance_before):>19} {percent(one.imbalance_after):>5} {one.rows_moved:11,d} "
            f"{one.bytes_moved / 1e6:11,.2f} {one.steps:6d} {1e3 * one.seconds:9.2f} {1e3 * one.predicted_gain_s:10.1f}  "
            f"{one.reason}"
        )
    return "\n".join(lines)


def percent(value: float) -> str:
    """Write a ratio for people, with one digit; "?" when it isn't known."""
    return f"{value:.1%}" if math.isfinite(value) else "?"
