"""What a call of the Balancer did, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Balanced:
    """What a call of the Balancer did, and why; the same on all ranks but for `seconds`."""

    acted: bool  # whether the distribution was changed (map: for the calls after this one)
    reason: str  # in words
    imbalance_before: float  # with all rows at home; NaN: not known yet
    imbalance_after: float  # map: as it was in this call; migrate: as planned
    rows_moved: int  # in this call, on all ranks: lent, or given away
    bytes_moved: int  # in this call, on all ranks, in messages with rows and results
    steps: int  # exchanges between neighbours to find the flow; scheme direct: 1
    seconds: float  # that this rank spent for balancing: not computing, and not waiting for others
    predicted_gain_s: float  # seconds expected to be saved until the next chance
