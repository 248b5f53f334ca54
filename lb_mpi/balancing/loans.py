"""Who still owes whom rows in one round of lending, and who may help whom at its end.   (pure)

Law.
- Planned loans leave at the start of the round, one for each planned borrower, be it an empty one.
- A rank that has nothing left to begin with is dry, and says so once to each of its neighbours.  It lends nothing more.
- To a neighbour that is dry and has no rows of ours, some of our rows may be lent, as long as we are not dry.
- Messages from one rank to another arrive in order.  So a neighbour's "dry" is the last of its messages with rows, and a
  rank that has heard it from all neighbours, has had all planned loans and has all its own rows back is at the end of its
  round: nothing that belongs to the round is under way to it.
- Nobody waits for ever: a rank waits only for ranks that compute; nobody asks, so nobody who has left has to answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Ints

LATENCY_S = 0.5e-3  # at least as much has to be saved by a loan


class Kind(IntEnum):
    """What a message in a round says."""

    PLANNED = 0  # rows lent by plan, maybe none
    HELP = 1  # rows lent to who is dry
    DRY = 2  # its sender has nothing left to lend
    DONE = 3  # results of rows that were lent
    FAILED = 4  # no results: the round has failed on the borrower


class Loans:
    """One rank's book of one round."""

    def __init__(self, neighbours: Iterable[int], lenders: Iterable[int], away: Mapping[int, Ints]) -> None:
        self.planned = set(lenders)  # whose planned loan is still to come
        self.giving = set(neighbours)  # neighbours that have not said that they are dry
        self.dry = False
        self.away = {borrower: rows for borrower, rows in away.items() if len(rows)}  # our rows, by who has them
        self._idle: set[int] = set()  # neighbours that are dry

    @property
    def over(self) -> bool:
        """Whether no message of the round is still to come, and all has been said."""
        return self.dry and not (self.planned or self.giving or self.away)

    def heard(self, rank: int, kind: Kind) -> None:
        """A message with rows, or that there will be none, has come from `rank`; ProtocolError if it can't."""
        if kind == Kind.PLANNED and rank in self.planned:
            self.planned.remove(rank)
        elif kind == Kind.DRY and rank in self.giving:
            self.giving.remove(rank)
            self._idle.add(rank)
        elif kind != Kind.HELP or rank not in self.giving:
            raise ProtocolError(f"{kind.name} from rank {rank}, which may not send it now")

    def back(self, rank: int) -> Ints:
        """Our rows that `rank` had."""
        if rank not in self.away:
            raise ProtocolError(f"results from rank {rank}, which has no rows from here")
        return self.away.pop(rank)

    def helpers(self) -> list[int]:
        """The neighbours that rows may be lent to now."""
        return [] if self.dry else sorted(self._idle - self.away.keys())

    def lend(self, rank: int, rows: Ints) -> None:
        """`rows` go to this helper."""
        if rank not in self.helpers():
            raise ProtocolError(f"rank {rank} can't be lent rows now")
        self.away[rank] = rows


def share(n: int, block_s: float, faster: float) -> int:
    """How many of n blocks, that take `block_s` seconds each here, a helper `faster` times as fast is best given."""

    def end_s(given: int) -> float:
        return max((n - given) * block_s, given * block_s / faster + LATENCY_S * (given > 0))

    even = max(0.0, n - LATENCY_S / block_s) * faster / (1.0 + faster)  # both end together
    given = min((int(even), min(n, int(even) + 1)), key=end_s)
    return given if end_s(given) + LATENCY_S <= n * block_s else 0
