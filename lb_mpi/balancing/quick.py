"""Quick calls: while the plan holds, no rank reports, and nothing is decided.   (pure)

A decision (`lb_mpi.balancing.deciding`) says how many quick calls follow.  In these, rows are lent as before, blocks are
long, dry ranks are helped, and at the end all ranks add up a few numbers.  They leave as soon as they have the sums.

Law.
- All ranks make the same calls quick: that depends on decisions and sums only, and these have the same bits on all ranks.
  The sums are of integers, so every tree of a reduction gives the same.
- A plan changes at the end of a full call only, so on all ranks before the same call.
- If a rank fails, or has rows or results of another form than in the last call, all ranks report in the same call.
- A call that takes much longer than the sums say that it should is followed by a full one; but not while the ranks queue for
  cores, since then any call may.
- While the ranks queue for cores and lending would not pay for that, all rows stay at home, and no rank helps another
  (`crowded`).  When they no longer queue, a full call follows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lb_mpi.balancing.deciding import CROWDED, BalanceReason, Decided
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.metrics import above
from lb_mpi.reduction import Reduction

UNIT = 2.0**-20  # of seconds and work that are summed as integers: days on a million ranks do not overflow
LATE, LATE_S = 0.05, 0.5e-3  # a call takes too long if it exceeds the usual imbalance by this part, and these seconds


class QuickSums(NamedTuple):
    """The numbers of one rank at the end of a quick call; or their sums."""

    changed: int  # the rank has failed, or its rows or results have another form than in the last call; or scalars differ
    formed: int  # it knows the form of the results
    rows: int  # lent
    bytes: int  # sent
    work: float  # that it did, or could have done before it came
    speed: float  # work per second
    queued_s: float  # without a core, of the elapsed time
    elapsed_s: float


class Quick:
    """The quick calls of one rank, the same on all ranks."""

    def __init__(self) -> None:
        self.left = 0  # quick calls that follow
        self.imbalance_home = math.nan  # with all rows at home, in the last full call
        self.imbalance = math.nan  # actual, in the last call
        self.late = False  # the last call took too long
        self.crowded = False  # the quick calls that follow are without help
        self._usual = 0.0  # imbalance in the last full call

    def decided(self, decided: Decided) -> None:
        """Record the decision of a full call."""
        self.left = 0 if decided.problem or decided.compare else decided.decision.quick
        self.crowded = self.left > 0 and decided.decision.reason is BalanceReason.CROWDED
        self.imbalance_home, self.imbalance = decided.imbalance_before, decided.imbalance_after
        self._usual = max(0.0, decided.imbalance_after)

    def stop(self) -> None:
        """Let a full call follow."""
        self.left, self.crowded = 0, False

    def summed(self, all_ranks: Reduction) -> QuickSums:
        """Record the sums of a quick call, and return them; after a change, `decided` follows."""
        changed, formed, rows, n_bytes, *others = all_ranks.sums.tolist()
        busy_s, elapsed_s, most, least = all_ranks.maxima.tolist()
        total = QuickSums(changed + (most != -least), formed, rows, n_bytes, *(UNIT * number for number in others))
        share = total.queued_s / total.elapsed_s if total.elapsed_s else 0.0
        mean_s = total.work / total.speed if total.speed else 0.0
        self.imbalance = above(busy_s, mean_s)
        self.late = share <= CROWDED and elapsed_s > (1.0 + self._usual + LATE) * mean_s + LATE_S
        ends = self.late or (self.crowded and share < 0.5 * CROWDED)
        self.left = 0 if ends else self.left - 1
        self.crowded = self.crowded and self.left > 0
        return total


def numbers(
    knowledge: Knowledge, *, changed: bool, formed: bool, rows: int, bytes: int, busy_s: float, elapsed_s: float,
    overhead_s: float = 0.0, queued_s: float = 0.0, given: int = 0,
) -> Reduction:  # fmt: skip
    """Return the numbers of this rank, which all ranks add up.

    It was busy with rows for `busy_s`, with messages for `overhead_s`, and without a core for `queued_s`, of the `elapsed_s`
    between its begin and its end.  `given`: a checksum of what must be equal on all ranks.
    """
    speed, late = float(knowledge.speeds[knowledge.place]), float(knowledge.late[knowledge.place])
    work = busy_s * speed + late
    whole = (round(value / UNIT) for value in (work, speed, queued_s, elapsed_s))
    sums = np.array([changed, formed, rows, bytes, *whole], dtype=np.int64)
    # The usual overhead is in `late`: see `RankReport.began_s`.
    return Reduction(sums, np.array([work / speed, elapsed_s - overhead_s + late / speed, given, -given]))
