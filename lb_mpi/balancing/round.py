"""One rank of one round: which rows it lends, which it computes, and when the round is over for it.   (pure)

A `Round` is an actor (`lb_mpi.virtual`).  Its jobs are rows to compute.  When a rank is through it sends the root LEARNED,
and when the root has that of all ranks it sends each OVER: on MPI a gather and a broadcast that nobody waits in.

Rows are index sets, what travels with a message is opaque.  A rank computes what others wait for first: rows of others
before its own.  A rank that has nothing left to begin is dry, and says so: to its neighbours at once, and to one rank more
whenever it has been idle for a while.  A rank that hears it lends a part of its rows not begun, and then of what is left.

The law
-------
- Each row is in exactly one place: not begun at home, in one loan on its way, with one borrower, in one answer on its way,
  or computed.
- Planned loans leave with the first turn, one for each planned borrower, be it an empty one.
- A rank that is dry has said so at most once to each other rank.  It never has rows to lend again.
- To a rank that is dry, and has no rows of ours, some of our rows may be lent.
- Each loan with rows is answered exactly once, by DONE or FAILED.  Messages from one rank to another arrive in order.
- A rank whose rows are all back, and which has had all planned loans, is settled, and stays so.  When all ranks are, no loan
  and no answer is under way anywhere: the round is over.  Of its messages only DRY may come later, and means nothing.
- A rank that is settled, with nothing borrowed in its hands, tells the root once what it has learned.  That changes no more.
  It may still help others: what that took it counts in its next round, while the owner of the rows has it in this one.
- Nobody waits for ever: a rank waits only for ranks that compute; who says that it is dry expects no answer.
- A rank that has failed stays in the round: it begins nothing more, and answers each loan with FAILED.

The table (what is not in it is a ProtocolError)
------------------------------------------------
arrives    from                                    does
---------  --------------------------------------  ---------------------------------------------------------------------
PLANNED    a lender of the plan, once              rows: compute them next (failed: answer FAILED); none: nothing
HELP       who was told that this rank is dry      compute its rows next (failed: answer FAILED)
DRY        any rank, once                          it may be lent rows
DONE       who has rows of ours                    they are computed
FAILED     who has rows of ours                    they are lost, and so is the round
OVER       the root, once all have told            the round is over
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Ints

Rowset = slice | Ints  # from start to stop, or their numbers


def count(rows: Rowset) -> int:
    """Count the rows of a set."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def cut(rows: Rowset, begin: int, end: int) -> Rowset:
    """Take those from `begin` to `end` of the rows of a set."""
    return slice(rows.start + begin, rows.start + end) if isinstance(rows, slice) else rows[begin:end]


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
    """The measurements of one rank in a round; see `lb_mpi.balancing.course`."""

    sizes: Floats | None = None  # (n,) > 0 what its rows cost, in any unit, as known before; None: all the same
    timed: list[Timed] = field(default_factory=list)
    planned_ticks: float = 0.0  # that this rank took for rows borrowed by plan
    help_ticks: float = 0.0  # likewise, beyond the plan
    late_ticks: float = 0.0  # likewise, after it had told: they are counted in its next round
    handling_s: float = 0.0  # of a block beside computing it, in the round before
    rows_lent: int = 0
    told: bool = False  # nothing but late_ticks changes any more
    failed: bool = False  # this rank, before it told, or a borrower, so that rows of this rank are lost
    home_s: float = 0.0  # seconds for rows at home
    home_size: float = 0.0  # and how large these were; see `lb_mpi.balancing.round`


LATENCY_S = 0.5e-3  # at least as much has to be saved by a loan
BLOCK_S = 2.5e-3  # of a block at home: short enough for who waits, and so long that timing it costs nothing
LEAST_HANDLINGS = 8  # a block takes at least so many times as long as it takes to handle it
PART = 0.5  # of a rank's share in what is left is lent at a time
HALVINGS = 3  # what is kept of planned loans is halved so often: 1/2, 1/4, 1/8
KEPT_S = 16 * BLOCK_S  # what is kept takes the borrower at least so long; its owner may be slow, with long blocks


def shortest_s(handling_s: float) -> float:
    """Seconds of a short block at home, where to handle one takes `handling_s` beside its rows."""
    return max(BLOCK_S, LEAST_HANDLINGS * handling_s)


def kept(n_before: int, loan_s: float) -> float:
    """The part of a planned loan that stays at home for whoever is dry first, after `n_before` rounds with planned loans.

    Plans rest on estimates, and a loan that has left is not divided any more.  So half is kept at first, and less in each
    round, as the estimates get better.  The longest loan takes its borrower `loan_s` seconds longer than its own rows, which
    are there for whoever is dry: nothing is kept where asking for that part would take about as long as computing it.
    """
    rest: float = 0.5 ** min(1 + n_before, HALVINGS)
    return rest if rest * loan_s >= KEPT_S else 0.0


def part(sizes: Sequence[float], each_s: float, share: float, faster: float, handling_s: float = 0.0) -> int:
    """The number of blocks, of these sizes, the next one first, that a helper is given of what is left at home.

    Size 1 takes `each_s` seconds at home.  The helper makes up `share` of the speed of all ranks, and is `faster` times as
    fast as this one.  It gets PART of its share, or all of it if that takes less than a short block, and one block at least;
    nothing that would not come back LATENCY_S before this rank alone would be through, if that takes it `handling_s` more.
    """
    left = sum(sizes)
    wanted = max(PART * share * left, min(share * left, shortest_s(handling_s) / each_s if each_s else 0.0))
    size, n = sizes[0], 1
    while n < len(sizes) and size + 0.5 * sizes[n] <= wanted:
        size += sizes[n]
        n += 1
    back_s = size * each_s / faster + LATENCY_S + handling_s
    return n if back_s + LATENCY_S <= left * each_s else 0


USUAL_BLOCK_S = 5e-3  # of a block at home, where nothing is known yet
LEAST = 2  # rows of a block, where nothing is known: of one alone, a product of matrices is computed in another way
PAUSE_S = 1e-3  # of being idle, before one rank more is told


class RoundKind(IntEnum):
    """The kind of a message in a round."""

    PLANNED = 0  # rows lent by plan, maybe none
    HELP = 1  # rows lent to who is dry
    DRY = 2  # its sender has nothing left to lend
    DONE = 3  # results of rows that were lent
    FAILED = 4  # no results: the round has failed on the borrower
    LEARNED = 5  # to the root: all that its sender has to tell
    OVER = 6  # from the root: all have told


class RoundMessage(NamedTuple):
    """One message, of any kind."""

    kind: RoundKind
    rows: Rowset | None = None  # PLANNED, HELP: of the sender
    ticks: float = math.nan  # DONE: that they took, on the sender's clock of work
    payload: Any = None  # the carrier's; LEARNED: a Learned


ROOT = 0
Send = tuple[int, RoundMessage]  # destination rank, message
Arrival = tuple[int, RoundMessage]  # source rank, message


class Job(NamedTuple):
    """Rows to be computed together."""

    owner: int  # rank
    rows: Rowset  # of the owner
    helps: bool = False  # borrowed beyond the plan
    payload: Any = None  # of the message that brought them


class Computed(NamedTuple):
    """The outcome of a job."""

    seconds: float  # of this rank's time
    ticks: float  # of its clock of work; NaN: not to be relied upon
    payload: Any = None  # the results, of rows that were borrowed


class Telling:
    """The ranks that a dry one tells so: its neighbours at once, and another after each pause in which it was idle."""

    def __init__(self, rank: int, size: int, neighbours: Iterable[int]) -> None:
        self.rank, self.size, self.neighbours = rank, size, set(neighbours)
        self.begun = False
        self.at: float | None = None  # when the next one is told; None: the rank is not idle
        self.next = 1  # so many ranks further on is the next one

    def due(self, now: float, *, idle: bool) -> list[int]:
        """Return the ranks to be told now."""
        if not idle:
            self.at = None
            return []
        if not self.begun:
            self.begun, self.at = True, now + PAUSE_S
            self._skip()
            return sorted(self.neighbours)
        if self.at is None:
            self.at = now + PAUSE_S
        if now < self.at or self.next >= self.size:
            return []
        other = (self.rank + self.next) % self.size
        self.next, self.at = self.next + 1, now + PAUSE_S
        self._skip()
        return [other]

    def told(self, other: int) -> bool:
        """True when this rank has told another one."""
        return self.begun and (other in self.neighbours or (other - self.rank) % self.size < self.next)

    @property
    def wake_at(self) -> float:
        """The time at which the next rank is to be told; infinite: never, as it looks now."""
        return math.inf if self.at is None or self.next >= self.size else self.at

    def _skip(self) -> None:
        while (self.rank + self.next) % self.size in self.neighbours:
            self.next += 1


class Round:
    """One rank's part of one round.

    `home`: its rows in blocks, without those that it lends by plan: `lent`, by borrower.  `lenders` lend to it by plan.
    `neighbours` are told first when it is dry.  `speeds` (P,) of all ranks, in any unit.  `help_ticks`: of the round before.
    `handling_s`: of a block, beside computing it.  `sizes`: (n,) > 0 what its rows cost, in any unit; None: all the same.
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
        help_ticks: float = 0.0,
        handling_s: float = 0.0,
        sizes: Floats | None = None,
    ) -> None:
        self.rank, self.speeds = rank, speeds
        self.home = list(reversed(home))  # blocks not begun, the next one last
        self.borrowed: deque[Job] = deque()  # not begun
        self.away: dict[int, Loan] = {}  # by borrower
        self.to_lend: dict[int, Rowset] | None = dict(lent)  # by plan; None: they have left
        self.lenders = set(lenders)  # whose planned loan is still to come
        self.dry: dict[int, None] = {}  # other ranks that have said so, one after the other
        self.telling = Telling(rank, len(speeds), neighbours)
        self.failed = False
        self.over = False
        self.learned = Learned(sizes, help_ticks=help_ticks, handling_s=handling_s)

    @property
    def settled(self) -> bool:
        """Its rows are back, or lost, and all planned loans have come: so it stays, from its first turn on."""
        return not (self.home or self.away or self.lenders)

    @property
    def told(self) -> bool:
        """It has told what it has learned."""
        return self.learned.told

    @property
    def job(self) -> Job | None:
        """Rows to compute now: what others wait for comes first."""
        if self.borrowed:
            return self.borrowed[0]
        return Job(self.rank, self.home[-1]) if self.home else None

    @property
    def wake_at(self) -> float:
        """The time at which a turn is due even if no message comes."""
        return math.inf if self.over or self.failed else self.telling.wake_at

    def turn(self, now: float, arrived: Iterable[Arrival]) -> list[Send]:
        """Serve what has arrived, in order; help ranks that are dry; say so if this one is; tell the root when settled."""
        if self.over:
            return []
        sends = self._lend_as_planned()
        for source, message in arrived:
            sends += self._receive(source, message)
        for rank in self.dry:
            if self.home and rank not in self.away:
                sends += self._help(rank)
        if self.home:
            self._fit()
        idle = not (self.home or self.borrowed or self.failed or self.over)
        sends += [(rank, RoundMessage(RoundKind.DRY)) for rank in self.telling.due(now, idle=idle)]
        if self.settled and not (self.borrowed or self.told):
            self.learned.told = True
            sends.append((ROOT, RoundMessage(RoundKind.LEARNED, payload=self.learned)))
        return sends

    def done(self, job: Job, result: Computed) -> list[Send]:
        """Take in what has come of a job."""
        seconds, ticks, payload = result
        if job.owner == self.rank:
            self.home.pop()
            if not math.isnan(ticks):
                self.learned.home_s += seconds
                self.learned.home_size += self._size(job.rows)
            self.learned.timed.append(Timed(job.rows, self.rank, ticks, helped=False))
            return []
        known = not math.isnan(ticks)
        self.borrowed.popleft()
        if job.helps and known and self.told:
            self.learned.late_ticks += ticks
        elif job.helps and known:
            self.learned.help_ticks += ticks
        elif known:
            self.learned.planned_ticks += ticks
        return [(job.owner, RoundMessage(RoundKind.DONE, ticks=ticks, payload=payload))]

    def fail(self, _error: BaseException | None = None) -> list[Send]:
        """The round has failed on this rank."""
        self.failed = True
        self.learned.failed = self.learned.failed or not self.told
        self.home.clear()
        if self.to_lend is not None:
            self.to_lend = dict.fromkeys(self.to_lend, slice(0, 0))
        sends = [(job.owner, RoundMessage(RoundKind.FAILED)) for job in self.borrowed]
        self.borrowed.clear()
        return sends

    def take_back(self, borrower: int) -> list[Send]:
        """The rows for a borrower could not be packed, and have not left."""
        loan = self.away.pop(borrower)
        self.learned.rows_lent -= count(loan.rows)
        return [] if loan.helps else [(borrower, RoundMessage(RoundKind.PLANNED, slice(0, 0)))]

    def _lend_as_planned(self) -> list[Send]:
        if self.to_lend is None:
            return []
        sends = [(borrower, RoundMessage(RoundKind.PLANNED, rows)) for borrower, rows in self.to_lend.items()]
        for borrower, rows in self.to_lend.items():
            self._lend(borrower, Loan(rows, helps=False))
        self.to_lend = None
        return sends

    def _receive(self, source: int, message: RoundMessage) -> list[Send]:
        kind = message.kind
        if kind is RoundKind.PLANNED and source in self.lenders:
            self.lenders.remove(source)
            return self._borrow(source, message)
        if kind is RoundKind.HELP and self.telling.told(source):
            return self._borrow(source, message)
        if kind is RoundKind.DRY and source not in self.dry:
            self.dry[source] = None
            return []
        if kind in (RoundKind.DONE, RoundKind.FAILED) and source in self.away:
            loan = self.away.pop(source)
            if kind is RoundKind.DONE:
                self.learned.timed.append(Timed(loan.rows, source, message.ticks, loan.helps))
            else:
                self.learned.failed = True
            return []
        if kind is RoundKind.OVER and self.told and not self.borrowed:
            self.over = True
            return []
        raise ProtocolError(f"rank {self.rank} got {kind.name} from rank {source}, which may not send it now")

    def _borrow(self, source: int, message: RoundMessage) -> list[Send]:
        rows = message.rows
        if rows is None or not count(rows):
            return []
        if self.failed:
            return [(source, RoundMessage(RoundKind.FAILED))]
        self.borrowed.append(Job(source, rows, message.kind is RoundKind.HELP, message.payload))
        return []

    def _help(self, rank: int) -> list[Send]:
        """Lend some blocks, the next ones, to a rank that is dry."""
        sizes = [self._size(block) for block in reversed(self.home)]
        each_s = self._size_s or USUAL_BLOCK_S * len(sizes) / sum(sizes)
        # Of all ranks: more of them may soon be dry, above all where one rank has all rows.
        share = float(self.speeds[rank]) / self._all_speeds
        n = part(sizes, each_s, share, float(self.speeds[rank] / self.speeds[self.rank]), self.learned.handling_s)
        if not n:
            return []
        rows = join(self.home[-n:])
        del self.home[-n:]
        self._lend(rank, Loan(rows, helps=True))
        return [(rank, RoundMessage(RoundKind.HELP, rows))]

    @cached_property
    def _all_speeds(self) -> float:
        """The sum over all ranks: once a round, since there may be many."""
        return float(self.speeds.sum())

    @property
    def _size_s(self) -> float:
        """Seconds at home of rows of size 1; 0: not known."""
        return self.learned.home_s / self.learned.home_size if self.learned.home_size else 0.0

    def _size(self, rows: Rowset) -> float:
        sizes = self.learned.sizes
        return count(rows) if sizes is None else float(sizes[rows].sum())

    def _fit(self) -> None:
        """Join blocks too short to be handled one by one; cut the next one where a rank that is dry waits for it."""
        home, least = self.home, 0.0
        if self._size_s:
            least = shortest_s(self.learned.handling_s) / self._size_s
            while len(home) > 1 and self._size(home[-1]) + self._size(home[-2]) <= least:
                home[-2:] = [join(home[-2:])]
        if self.dry:
            block, rows = home[-1], LEAST
            if least:
                rows = max(1, int(least / self._size(block) * count(block)))
            if count(block) >= 2 * rows:
                home[-1:] = [cut(block, rows, count(block)), cut(block, 0, rows)]

    def _lend(self, borrower: int, loan: Loan) -> None:
        if count(loan.rows):
            self.away[borrower] = loan
            self.learned.rows_lent += count(loan.rows)
