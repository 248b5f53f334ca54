"""One rank of one round: which rows it lends, which it computes, and when the round is over for it.   (pure)

The caller's loop, on MPI (`lb_mpi.mpi.lending`) and on a virtual clock (`lb_mpi.balancing.simulate`), is

    while not round.over:
        post(round.turn(now, messages that have arrived))
        if round.job:
            post(round.done(round.job, *compute(round.job)))      # round.fail() if that has raised
        else:
            wait for a message

Rows are index sets, what travels with a message is opaque.  A rank computes what others wait for first: rows of others
before its own.  Who has nothing left to begin with is dry, and says so to its neighbours, which lend it some of what they
have not begun.

The law
-------
- Each row is in exactly one place: not begun at home, in one loan on its way, with one borrower, in one answer on its way,
  or computed.
- Planned loans leave with the first turn, one for each planned borrower, be it an empty one.
- A rank that is dry has said so once to each of its neighbours.  It lends nothing more.
- To a neighbour that is dry, and has no rows of ours, some of our rows may be lent as long as we are not dry.
- Each loan with rows is answered exactly once, by DONE or FAILED.
- Messages from one rank to another arrive in order.  So a neighbour's DRY is the last of its loans, and a rank that has
  heard it from all neighbours, has had all planned loans and has all its own rows back is at the end of its round: nothing
  that belongs to the round is under way to it.
- Nobody waits for ever: a rank waits only for ranks that compute; nobody asks, so nobody who has left has to answer.
- A rank that has failed stays in the round: it begins nothing more, and answers each loan with FAILED.

The table (what is not in it is a ProtocolError)
------------------------------------------------
arrives    from                                    does
---------  --------------------------------------  ---------------------------------------------------------------------
PLANNED    a lender of the plan, once              rows: compute them next (failed: answer FAILED); none: nothing
HELP       a neighbour that has not said DRY       compute its rows next (failed: answer FAILED)
DRY        a neighbour, once                       it may be lent rows
DONE       who has rows of ours                    they are computed
FAILED     who has rows of ours                    they are lost, and so is the round
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Ints

LATENCY_S = 0.5e-3  # at least as much has to be saved by a loan
USUAL_BLOCK_S = 5e-3  # of a block at home, where nothing is known yet

Rowset = slice | Ints  # rows of one rank: from start to stop, or their numbers


class Kind(IntEnum):
    """What a message in a round says."""

    PLANNED = 0  # rows lent by plan, maybe none
    HELP = 1  # rows lent to who is dry
    DRY = 2  # its sender has nothing left to lend
    DONE = 3  # results of rows that were lent
    FAILED = 4  # no results: the round has failed on the borrower


class Message(NamedTuple):
    """One message, of any kind."""

    kind: Kind
    rows: Rowset | None = None  # PLANNED, HELP: of the sender
    ticks: float = math.nan  # DONE: that they took, on the sender's clock of work
    payload: Any = None  # the carrier's


Send = tuple[int, Message]  # destination rank, message
Arrival = tuple[int, Message]  # source rank, message


class Job(NamedTuple):
    """Rows to be computed together."""

    owner: int  # rank
    rows: Rowset  # of the owner
    helps: bool = False  # borrowed beyond the plan
    payload: Any = None  # of the message that brought them


class Timed(NamedTuple):
    """Rows of this rank that were computed together."""

    rows: Rowset
    by: int  # rank
    ticks: float  # on the clock of work of that rank; NaN: not to be relied upon
    helped: bool  # lent beyond the plan


class Loan(NamedTuple):
    """Rows of this rank that another has."""

    rows: Rowset
    helps: bool  # beyond the plan


@dataclass
class Learned:
    """What a round has told one rank; see `lb_mpi.balancing.course`."""

    timed: list[Timed] = field(default_factory=list)
    help_ticks: float = 0.0  # that this rank took for rows borrowed beyond the plan
    rows_lent: int = 0
    home_s: float = 0.0  # seconds for blocks at home
    n_home: int = 0  # and how many


class Round:
    """One rank's part of one round.

    `home`: its rows in blocks, without those that it lends by plan: `lent`, by borrower.  `lenders` lend to it by plan.
    `neighbours` may be helped, or help.  `speeds` (P,) of all ranks, in any unit.
    """

    def __init__(
        self,
        rank: int,
        home: Sequence[Rowset],
        *,
        lent: Mapping[int, Rowset],
        lenders: Iterable[int],
        neighbours: Iterable[int],
        speeds: Floats,
    ) -> None:
        self.rank, self.speeds = rank, speeds
        self.home = list(reversed(home))  # blocks not begun, the next one last
        self.borrowed: deque[Job] = deque()  # not begun
        self.away: dict[int, Loan] = {}  # by borrower
        self.to_lend: dict[int, Rowset] | None = dict(lent)  # by plan; None: they have left
        self.lenders = set(lenders)  # whose planned loan is still to come
        self.neighbours = dict.fromkeys(neighbours, False)  # whether each has said that it is dry
        self.dry_at: float | None = None  # when this rank said so
        self.failed = False
        self.learned = Learned()

    @property
    def over(self) -> bool:
        """Nothing of the round is under way to this rank, and it has nothing to do."""
        return self.dry_at is not None and not (
            self.borrowed or self.away or self.lenders or not all(self.neighbours.values())
        )

    @property
    def job(self) -> Job | None:
        """Rows to compute now: what others wait for comes first."""
        if self.borrowed:
            return self.borrowed[0]
        return Job(self.rank, self.home[-1]) if self.home else None

    def turn(self, now: float, arrived: Iterable[Arrival]) -> list[Send]:
        """Serve what has arrived, in order; help who is dry; say so when nothing is left to begin with."""
        sends = self._lend_as_planned()
        for source, message in arrived:
            sends += self._receive(source, message)
        if self.home:
            for neighbour, dry in self.neighbours.items():
                if dry and self.home and neighbour not in self.away:
                    sends += self._help(neighbour)
        if self.dry_at is None and not (self.home or self.borrowed):
            self.dry_at = now
            sends += [(neighbour, Message(Kind.DRY)) for neighbour in self.neighbours]
        return sends

    def done(self, job: Job, seconds: float, ticks: float, payload: Any = None) -> list[Send]:
        """The job has been computed in so many seconds (of this rank's time) and ticks (of its clock of work)."""
        if job.owner == self.rank:
            self.home.pop()
            self.learned.home_s += seconds
            self.learned.n_home += 1
            self.learned.timed.append(Timed(job.rows, self.rank, ticks, helped=False))
            return []
        self.borrowed.popleft()
        if job.helps and not math.isnan(ticks):
            self.learned.help_ticks += ticks
        return [(job.owner, Message(Kind.DONE, ticks=ticks, payload=payload))]

    def fail(self, *unsent: int) -> list[Send]:
        """The round has failed on this rank; rows that were to be lent to the `unsent` ranks have not left."""
        self.failed = True
        self.home.clear()
        if self.to_lend is not None:
            self.to_lend = dict.fromkeys(self.to_lend, slice(0, 0))
        sends = [(job.owner, Message(Kind.FAILED)) for job in self.borrowed]
        self.borrowed.clear()
        for borrower in unsent:
            loan = self.away.pop(borrower)
            self.learned.rows_lent -= count(loan.rows)
            if not loan.helps:
                sends.append((borrower, Message(Kind.PLANNED, slice(0, 0))))
        return sends

    def _lend_as_planned(self) -> list[Send]:
        if self.to_lend is None:
            return []
        sends = [(borrower, Message(Kind.PLANNED, rows)) for borrower, rows in self.to_lend.items()]
        for borrower, rows in self.to_lend.items():
            self._lend(borrower, Loan(rows, helps=False))
        self.to_lend = None
        return sends

    def _receive(self, source: int, message: Message) -> list[Send]:
        kind = message.kind
        if kind is Kind.PLANNED and source in self.lenders:
            self.lenders.remove(source)
            return self._borrow(source, message)
        if kind is Kind.HELP and self.neighbours.get(source) is False:
            return self._borrow(source, message)
        if kind is Kind.DRY and self.neighbours.get(source) is False:
            self.neighbours[source] = True
            return []
        if kind in (Kind.DONE, Kind.FAILED) and source in self.away:
            loan = self.away.pop(source)
            if kind is Kind.DONE:
                self.learned.timed.append(Timed(loan.rows, source, message.ticks, loan.helps))
            return []
        raise ProtocolError(f"rank {self.rank} got {kind.name} from rank {source}, which may not send it now")

    def _borrow(self, source: int, message: Message) -> list[Send]:
        rows = message.rows
        if rows is None or not count(rows):
            return []
        if self.failed:
            return [(source, Message(Kind.FAILED))]
        self.borrowed.append(Job(source, rows, message.kind is Kind.HELP, message.payload))
        return []

    def _help(self, neighbour: int) -> list[Send]:
        """Lend some blocks, the last ones, to a neighbour that is dry."""
        block_s = self.learned.home_s / self.learned.n_home if self.learned.n_home else USUAL_BLOCK_S
        n = share(len(self.home), block_s, float(self.speeds[neighbour] / self.speeds[self.rank]))
        if not n:
            return []
        given, self.home = self.home[:n], self.home[n:]
        rows = join(given)
        self._lend(neighbour, Loan(rows, helps=True))
        return [(neighbour, Message(Kind.HELP, rows))]

    def _lend(self, borrower: int, loan: Loan) -> None:
        if count(loan.rows):
            self.away[borrower] = loan
            self.learned.rows_lent += count(loan.rows)


def share(n: int, block_s: float, faster: float) -> int:
    """How many of n blocks, that take `block_s` seconds each here, a helper `faster` times as fast is best given."""

    def end_s(given: int) -> float:
        return max((n - given) * block_s, given * block_s / faster + LATENCY_S * (given > 0))

    if block_s <= 0.0:
        return 0
    even = max(0.0, n - LATENCY_S / block_s) * faster / (1.0 + faster)  # both end together
    given = min((int(even), min(n, int(even) + 1)), key=end_s)
    return given if end_s(given) + LATENCY_S <= n * block_s else 0


def count(rows: Rowset) -> int:
    """Count the rows of a set."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def numbers(rows: Rowset) -> Ints:
    """Name the rows of a set: (n,)."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def join(blocks: Sequence[Rowset]) -> Rowset:
    """Put the rows of some blocks together, those of the last block first."""
    joined = blocks[-1]
    for block in reversed(blocks[:-1]):
        if isinstance(joined, slice) and isinstance(block, slice) and joined.stop == block.start:
            joined = slice(joined.start, block.stop)
        else:
            joined = np.concatenate([numbers(joined), numbers(block)])
    return joined
