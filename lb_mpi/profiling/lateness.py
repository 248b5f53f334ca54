"""Who waited for whom in collective calls, from when each rank came and went; and clocks set side by side.   (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.profiling.calls import NEIGHBOURS, NOBODY, PARTLY, TOGETHER

Ints = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).min


class Clock(NamedTuple):
    """How one rank's clock stands to rank 0's: looked at when the run began and when it ended, a straight line between."""

    begin_ns: int = 0  # this rank's clock at the first look
    end_ns: int = 1  # and at the last
    begin_offset_ns: int = 0  # rank 0's clock less this one's
    end_offset_ns: int = 0
    error_ns: int = 0  # the offsets are known to +- this

    def common(self, times: Ints) -> Ints:
        """This rank's times on rank 0's clock."""
        slope = (self.end_offset_ns - self.begin_offset_ns) / max(1, self.end_ns - self.begin_ns)
        drift: Ints = np.rint((times - self.begin_ns) * slope).astype(np.int64)
        common: Ints = times + self.begin_offset_ns + drift
        return common


def offset(sent: Sequence[int], answered: Sequence[int], returned: Sequence[int]) -> tuple[int, int]:
    """(offset, error) of another clock less one's own, from messages there and back: the quickest one counts.

    sent, returned : when each left and was back, by one's own clock; answered: when it was there, by the other one.
    Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989.
    """
    times = [back - out for out, back in zip(sent, returned, strict=True)]
    best = min(range(len(times)), key=times.__getitem__)
    return answered[best] - (sent[best] + returned[best]) // 2, (times[best] + 1) // 2


def lateness(members: Sequence[int], calls: Ints, needs: Sequence[Sequence[Sequence[int]]]) -> tuple[Ints, Ints]:
    """How long each of P ranks waited in each of K collective calls, in nanoseconds, and for whom: two (P, K) arrays.

    A rank waits from when it entered until the last of those whom it needs was there, or until it left, if that was before.
    Whom it needs: where nobody can leave before all have come (TOGETHER; barrier, allreduce), all; among NEIGHBOURS, these;
    in all others (PARTLY; bcast, reduce, scan) those who came before it left.  What is left of the call is communication.

    members : (P,) ranks; calls : (4, P, K) kinds, posted, entered, left, by one clock; needs : each rank's lists of
    neighbours.
    A call of which ranks tell different kinds is nobody's wait: NOBODY, 0.
    """
    kinds, posted, entered, left = calls
    ranks = np.asarray(members, dtype=np.int64)
    waits, whom = np.zeros_like(posted), np.full_like(posted, NOBODY)
    same = (np.minimum(kinds, NEIGHBOURS) == np.minimum(kinds[0], NEIGHBOURS)).all(axis=0)
    for row in range(len(ranks)):
        needed = np.broadcast_to(kinds[row] == TOGETHER, posted.shape).copy()
        needed |= (kinds[row] == PARTLY) & (posted <= left[row])
        for k, neighbours in enumerate(needs[row]):
            needed |= (kinds[row] == NEIGHBOURS + k) & np.isin(ranks, neighbours)[:, None]
        came = np.where(needed, posted, _NEVER)
        last = came.argmax(axis=0)
        until = np.minimum(came.max(axis=0), left[row])
        late = same & (until > entered[row]) & (last != row)
        waits[row, late] = (until - entered[row])[late]
        whom[row, late] = ranks[last[late]]
    return waits, whom
