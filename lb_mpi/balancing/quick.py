"""Quick calls: while the plan holds, nothing is learned, and nothing is decided.   (pure)

A decision (`lb_mpi.balancing.deciding`) says how many quick calls follow.  In these, rows are lent as before, blocks are
long, and dry ranks are helped.  They end with the reduction that ends each call, in which most numbers are missing.

Law.
- All ranks make the same calls quick: that depends on decisions and sums only, and these have the same bits on all ranks.
- A plan changes at the end of a full call only, so on all ranks before the same call.
- If a rank fails, or ranks have rows or results of different forms, all ranks know it at the end of the same call.
- If a call takes much longer than expected, the next one is a full call.  While ranks queue for cores, slow calls are
  expected and ignored.
"""

from __future__ import annotations

import math

from lb_mpi.balancing.deciding import CROWDED, Decided

LATE, LATE_S = 0.05, 0.5e-3  # a call takes too long if it exceeds the usual imbalance by this part, and these seconds


class Quick:
    """The quick calls of one rank, the same on all ranks."""

    def __init__(self) -> None:
        self.left = 0  # quick calls that follow
        self.imbalance_home = math.nan  # with all rows at home, in the last full call
        self._usual = 0.0  # imbalance in the last full call

    def decided(self, decided: Decided) -> None:
        """Record the decision of a full call."""
        self.left = 0 if decided.problem or decided.compare else decided.decision.quick
        self.imbalance_home, self._usual = decided.imbalance_before, max(0.0, decided.imbalance_after)

    def stop(self) -> None:
        """Let a full call follow."""
        self.left = 0

    def ended(self, elapsed_s: float, mean_s: float, queued: float) -> bool:
        """Record a quick call; return True if it took too long.

        It took `elapsed_s` on the slowest rank; all ranks were busy for `mean_s` on average, and queued for cores in the
        part `queued` of their time.
        """
        late = queued <= CROWDED and elapsed_s > (1.0 + self._usual + LATE) * mean_s + LATE_S
        self.left = 0 if late else self.left - 1
        return late
