"""What simulated ranks did in a round.   (pure)"""

from __future__ import annotations

from typing import NamedTuple

from lb_mpi.graph import Floats


class Times(NamedTuple):
    """(P,) what each rank did in a round."""

    busy_s: Floats  # with jobs
    ticks: Floats  # of it, their own
    blocks: Floats  # jobs
    handling_s: Floats  # that each job takes beside its own

    def add(self, rank: int, seconds: float) -> None:
        """One more job."""
        self.busy_s[rank] += seconds + self.handling_s[rank]
        self.ticks[rank] += seconds
        self.blocks[rank] += 1


class Call(NamedTuple):
    """What one call took; seconds are virtual."""

    seconds: float  # until all ranks are through, and have agreed on what comes next
    bound_s: float  # work / sum of the speeds, or later where ranks come late
    alone_s: float  # without balancing
    rows_moved: int
    bytes_moved: int
    acted: bool  # the distribution was changed for the calls after this one
    reason: str  # in words
    messages: int
