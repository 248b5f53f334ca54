"""One rank of one round: which rows it lends, which it computes, and when the round is over for it.   (pure)

A `Round` is an actor (`lb_mpi.actor`).  Its jobs are

    Job(owner, rows)            rows to compute
    Packing(borrower, message)     objects to lend, which the user's function packs; the result: the payload of the message
    Unpacking(borrower, message)     results of objects, which the user's function unpacks

A rank that has finished sends SETTLED to all, and after SETTLED from all ranks, each gets OVER: on MPI, a reduction of what
`lb_mpi.balancing.decider` reports of each rank, from which all ranks decide.

Rows are index sets; payloads are opaque.  A rank computes borrowed rows before its own.  A rank without unstarted rows
is dry.  It sends DRY to its neighbours, as `Asking` says: at once, or in a quick call after a moment; and to one more rank
after each idle pause, or to one neighbour after each if the plan is the neighbours' own.  The receiver lends part of its
unstarted rows, and later part of the rest.

The law
-------
- Each row is in exactly one place: unstarted at its owner, in a loan in transit, borrowed, in an answer in transit, or
  computed.
- The first turn sends one planned loan to each planned borrower, even if the loan is empty.
- A dry rank sends DRY at most once to each other rank.  It never has rows to lend again.
- A rank may lend rows to a dry rank that has none of its rows yet.
- Each loan with rows is answered exactly once, by DONE or FAILED.  Messages from one rank to another arrive in order.
- A rank is settled, and stays so, once its rows are back and all planned loans to it have arrived.  When all ranks are
  settled, no loan or answer is in transit and the round is over.  Only DRY may still arrive, without effect.
- A settled rank that holds no borrowed rows ends: it sends SETTLED once.  Its help after that counts in its own next round,
  but for the owner of the rows in this round.
- If rows are lost, or a rank failed before its end, at least one rank says so with SETTLED.
- No rank waits for ever: a rank waits only for ranks that compute, and a dry rank expects no answer.
- A failed rank stays in the round: it starts no more rows, and answers each loan with FAILED.

The table (any other message raises ProtocolError)
--------------------------------------------------
arrives    from                                    does
---------  --------------------------------------  ---------------------------------------------------------------------
PLANNED    a lender of the plan, once              rows: compute them next (failed: answer FAILED); none: nothing
HELP       a rank that was sent DRY                compute its rows next (failed: answer FAILED)
DRY        any rank, once                          it may be lent rows
DONE       a borrower of this rank's rows          they are computed
FAILED     a borrower of this rank's rows          they are lost, and the round fails
OVER       all, once all have sent SETTLED         the round is over
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

Rowset = slice | Ints  # a range, or row numbers


def count(rows: Rowset) -> int:
    """Count the rows of a set."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def cut(rows: Rowset, begin: int, end: int) -> Rowset:
    """Return the rows of a set from position `begin` to `end`."""
    return slice(rows.start + begin, rows.start + end) if isinstance(rows, slice) else rows[begin:end]


def numbers(rows: Rowset) -> Ints:
    """Return the row numbers of a set: (n,)."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def join(blocks: Sequence[Rowset]) -> Rowset:
    """Join blocks of rows, the last block first."""
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
    ticks: float  # on that rank's work clock; NaN: unreliable
    helped: bool  # lent beyond the plan


class Loan(NamedTuple):
    """Rows of this rank that another rank holds."""

    rows: Rowset
    helps: bool  # beyond the plan


@dataclass
class Learned:
    """The measurements of one rank in a round; see `lb_mpi.balancing.knowledge`.  Once sent, only late_ticks may change."""

    sizes: Floats | None = None  # (n,) > 0 row costs known before the round, in any unit; None: all equal
    timed: list[Timed] = field(default_factory=list)
    planned_ticks: float = 0.0  # spent by this rank on rows borrowed by plan
    help_ticks: float = 0.0  # spent on rows borrowed beyond the plan
    late_ticks: float = 0.0  # the same after SETTLED was sent: counted in this rank's next round
    handling_s: float = 0.0  # overhead of a block beyond computing it, in the previous round
    handled_s: float = 0.0  # the same in this round, without calls of the function; 0: unknown, as before
    rows_lent: int = 0
    failed: bool = False  # this rank failed before its end, or a borrower failed, so that rows are lost
    home_s: float = 0.0  # seconds spent on rows at home
    home_size: float = 0.0  # total size of those rows
    usual_s: float = 0.0  # seconds at home of rows of size 1 in the call before; 0: unknown

    @property
    def size_s(self) -> float:
        """Seconds at home of rows of size 1; 0: unknown."""
        return self.home_s / self.home_size if self.home_size else self.usual_s


LATENCY_S = 0.5e-3  # a loan must save at least this much
BLOCK_S = 2.5e-3  # of a block at home: short enough for waiting ranks, long enough to be timed at no cost
QUICK_BLOCK_S = 5e-3  # the same while the plan holds and no rank waits
CHEAPER = 0.75  # of the seconds that a row took in the block before: a longer block was worth it
LONG_PART = 0.125  # of the rows at home: a block that may last longer than BLOCK_S, to learn what a call costs
SLOWER = 1.5  # times as long as in the call before: if rows take so long, others are dry first
LEAST_HANDLINGS = 8  # minimum ratio of a block's computing time to its handling time
PART = 0.5  # fraction of a rank's share in the remaining rows that is lent at a time


def shortest_s(handling_s: float, *, quick: bool = False) -> float:
    """Seconds of a short block at home, if handling a block costs `handling_s` beyond its rows."""
    return max(QUICK_BLOCK_S if quick else BLOCK_S, LEAST_HANDLINGS * handling_s)


def wanted_size(left: float, each_s: float, share: float, handling_s: float) -> float:
    """Return the size of the rows at home that a helper gets, of those that are `left`; see `part`."""
    return max(PART * share * left, min(share * left, shortest_s(handling_s) / each_s if each_s else 0.0))


def part(sizes: Sequence[float], each_s: float, share: float, faster: float, handling_s: float = 0.0) -> int:
    """The number of blocks at home to lend to a helper, from blocks of these sizes, the next one first.

    Size 1 takes `each_s` seconds at home.  The helper has `share` of the speed of all ranks, and is `faster` times as
    fast as this one.  It gets PART of its share, or all of it if that is less than a short block, but at least one
    block; none unless the results, with `handling_s` added, come back LATENCY_S before this rank alone would finish.
    """
    left = sum(sizes)
    wanted = wanted_size(left, each_s, share, handling_s)
    size, n = sizes[0], 1
    while n < len(sizes) and size + 0.5 * sizes[n] <= wanted:
        size += sizes[n]
        n += 1
    back_s = size * each_s / faster + LATENCY_S + handling_s
    return n if back_s + LATENCY_S <= left * each_s else 0


USUAL_BLOCK_S = 5e-3  # of a block at home, before any measurement
LEAST = 2  # rows of a block before any measurement: for one row, a matrix product is computed differently
PAUSE_S = 1e-3  # idle time before one more rank is sent DRY
AT_ONCE = 4  # ranks that are sent DRY at once, at most
MOMENT_S = 0.1e-3  # idle time before the first one in a quick call, in which most ranks end at nearly the same time


class RoundKind(IntEnum):
    """The kind of a message in a round."""

    PLANNED = 0  # rows lent by plan, possibly none
    HELP = 1  # rows lent to a dry rank
    DRY = 2  # its sender has nothing left to lend
    DONE = 3  # results of rows that were lent
    FAILED = 4  # no results: the borrower has failed
    SETTLED = 5  # to all: its sender has ended, with all its measurements
    OVER = 6  # from all: all ranks have sent SETTLED


class RoundMessage(NamedTuple):
    """One message, of any kind."""

    kind: RoundKind
    rows: Rowset | None = None  # PLANNED, HELP: rows of the sender
    ticks: float = math.nan  # DONE: spent on the rows, on the sender's work clock
    payload: Any = None  # for the carrier; SETTLED: a Learned


ROOT = 0
Send = tuple[int, RoundMessage]  # destination rank, message
Arrival = tuple[int, RoundMessage]  # source rank, message


class Job(NamedTuple):
    """Rows to be computed together."""

    owner: int  # rank
    rows: Rowset  # of the owner
    helps: bool = False  # borrowed beyond the plan
    payload: Any = None  # of the message that brought them


class Packing(NamedTuple):
    """Objects to be packed for a borrower, in the message that lends them."""

    borrower: int  # rank
    message: RoundMessage  # PLANNED or HELP, without a payload


class Unpacking(NamedTuple):
    """Results of objects, which a borrower has sent, to be unpacked."""

    borrower: int  # rank
    message: RoundMessage  # DONE


class Computed(NamedTuple):
    """The outcome of a job."""

    seconds: float  # of this rank's time
    ticks: float  # on its work clock; NaN: unreliable
    payload: Any = None  # the results of borrowed rows


class Asking:
    """The ranks to which a dry rank sends DRY: its neighbours, then one more after each idle pause.

    In a `quick` call, the neighbours are due after a moment, otherwise at once.

    A rank that many help at once would be the last to finish.  If there are more than AT_ONCE neighbours, those with the
    next numbers after this rank's are asked at once; the others wait for their turn among all ranks.
    `size`: number of ranks; 0: unknown.  Then only the neighbours are asked, one after each idle pause.
    """

    def __init__(self, rank: int, size: int, neighbours: Iterable[int], *, quick: bool = False) -> None:
        self.rank, self.size, self.neighbours = rank, size, list(dict.fromkeys(neighbours))
        if size and len(self.neighbours) > AT_ONCE:
            self.neighbours = sorted(self.neighbours, key=lambda other: (other - rank) % size)[:AT_ONCE]
        self.quick = quick
        self.begun = False
        self.at: float | None = None  # when the next rank is due; None: this rank is not idle
        self.next = min(1, size)  # distance from this rank to the next one; size 0: number of neighbours asked

    def due(self, now: float, *, idle: bool) -> list[int]:
        """Return the ranks that are due now."""
        if not idle:
            self.at = None
            return []
        if self.at is None:
            self.at = now + (PAUSE_S if self.begun else MOMENT_S if self.quick else 0.0)
        if now < self.at or (self.begun and self.next >= self._n_ranks):
            return []
        if not self.begun:
            self.begun = True
            self._skip()
            if self.size:
                self.at = now + PAUSE_S
                return sorted(self.neighbours)
            if not self.neighbours:
                return []
        other = (self.rank + self.next) % self.size if self.size else self.neighbours[self.next]
        self.next, self.at = self.next + 1, now + PAUSE_S
        self._skip()
        return [other]

    def asked(self, other: int) -> bool:
        """True when this rank has sent DRY to another one."""
        if not self.size:
            return other in self.neighbours[: self.next]
        return self.begun and (other in self.neighbours or (other - self.rank) % self.size < self.next)

    @property
    def wake_at(self) -> float:
        """The time at which the next rank is due; infinite: never."""
        return math.inf if self.at is None or (self.begun and self.next >= self._n_ranks) else self.at

    @property
    def _n_ranks(self) -> int:
        return self.size or len(self.neighbours)

    def _skip(self) -> None:
        while self.next < self.size and (self.rank + self.next) % self.size in self.neighbours:
            self.next += 1


class Round:
    """One rank's part of one round.

    `home`: blocks of its rows, without those `lent` by plan, by borrower.  `lenders` lend to it by plan.  `neighbours`
    are sent DRY first.  `speeds`, in any unit: (P,) of all ranks, or by rank of this one and its neighbours, the only
    ones that it knows.  `help_ticks`: from the round before.  `handling_s`: overhead of a block.  `sizes`: (n,) > 0 row
    costs, in any unit; None: all equal.  `objects`: its rows are objects, so that packing and opening them are jobs.
    `usual_s`: seconds at home of rows of size 1 in the call before; 0: unknown.  `quick`: the call is a quick one, on all
    ranks.
    """

    def __init__(
        self,
        rank: int,
        home: Sequence[Rowset],
        *,
        lent: Mapping[int, Rowset],
        lenders: Iterable[int],
        neighbours: Iterable[int],
        speeds: Floats | Mapping[int, float],
        help_ticks: float = 0.0,
        handling_s: float = 0.0,
        sizes: Floats | None = None,
        usual_s: float = 0.0,
        objects: bool = False,
        quick: bool = False,
    ) -> None:
        self.rank, self.speeds, self.objects, self.quick = rank, speeds, objects, quick
        self.home = list(reversed(home))  # unstarted blocks, the next one last
        self.borrowed: deque[Job] = deque()  # unstarted
        self.parcels: deque[Packing | Unpacking] = deque()  # to be packed or opened; their rows are in `away`
        self.away: dict[int, Loan] = {}  # by borrower
        self.to_lend: dict[int, Rowset] | None = dict(lent)  # by plan; None: already sent
        self.lenders = set(lenders)  # of planned loans that have not arrived
        self.dry: dict[int, None] = {}  # ranks that have sent DRY, in order of arrival
        size = 0 if isinstance(speeds, Mapping) else len(speeds)
        self.asking = Asking(rank, size, neighbours, quick=quick)
        self.ended = False  # SETTLED was sent
        self.failed = False
        self.error: BaseException | None = None  # the first one on this rank
        self.over = False
        self.learned = Learned(sizes, help_ticks=help_ticks, handling_s=handling_s, usual_s=usual_s)
        self._sizes = [self._size(block) for block in self.home]  # of the blocks at home
        self._last = 0.0, math.inf  # the last block at home: its size, and its seconds for rows of size 1
        self.next_size = 0.0  # of the next one, at least

    @property
    def settled(self) -> bool:
        """Its rows are back or lost, and all planned loans have arrived; from the first turn on this stays true."""
        return not (self.home or self.away or self.lenders)

    @property
    def job(self) -> Job | Packing | Unpacking | None:
        """A parcel to pack or open now, or else rows to compute, borrowed ones first."""
        if self.parcels:
            return self.parcels[0]
        if self.borrowed:
            return self.borrowed[0]
        return Job(self.rank, self.home[-1]) if self.home else None

    @property
    def wake_at(self) -> float:
        """The time at which a turn is due even if no message arrives."""
        return math.inf if self.over or self.failed else self.asking.wake_at

    def turn(self, now: float, arrived: Iterable[Arrival]) -> list[Send]:
        """Process arrivals in order; lend to dry ranks; send DRY if dry; end once settled."""
        if self.over:
            return []
        sends: list[Send] = []
        if self.to_lend is not None:
            for borrower, rows in self.to_lend.items():
                sends += self._lend(borrower, RoundMessage(RoundKind.PLANNED, rows))
            self.to_lend = None
        for source, message in arrived:
            sends += self._receive(source, message)
        for rank in self.dry:
            if self.home and rank not in self.away:
                sends += self._help(rank)
        if self.home:
            self._fit()
        idle = not (self.home or self.borrowed or self.failed or self.over)
        if idle or self.asking.at is not None:
            sends += [(rank, RoundMessage(RoundKind.DRY)) for rank in self.asking.due(now, idle=idle)]
        if self.settled and not (self.borrowed or self.ended):
            self.ended = True
            sends.append((ROOT, RoundMessage(RoundKind.SETTLED, payload=self.learned)))
        return sends

    def done(self, job: Job | Packing | Unpacking, result: Any) -> list[Send]:
        """Record the outcome of a job: `Computed`, or the payload of a `Packing`."""
        if isinstance(job, Packing):
            self.parcels.popleft()
            return [(job.borrower, job.message._replace(payload=result))]
        if isinstance(job, Unpacking):
            self.parcels.popleft()
            self._back(job.borrower, job.message)
            return []
        seconds, ticks, payload = result
        if job.owner == self.rank:
            self.home.pop()
            size = self._sizes.pop()
            if not math.isnan(ticks):
                self._grow(seconds, size)
                self.learned.home_s += seconds
                self.learned.home_size += size
            self.learned.timed.append(Timed(job.rows, self.rank, ticks, helped=False))
            return []
        known = not math.isnan(ticks)
        self.borrowed.popleft()
        if job.helps and known and self.ended:
            self.learned.late_ticks += ticks
        elif job.helps and known:
            self.learned.help_ticks += ticks
        elif known:
            self.learned.planned_ticks += ticks
        return [(job.owner, RoundMessage(RoundKind.DONE, ticks=ticks, payload=payload))]

    def fail(self, error: BaseException | None = None) -> list[Send]:
        """Record that the round has failed on this rank; loans that are not packed yet are taken back.

        A rank that has ended and holds no rows only keeps the error: the round is as good as over.
        """
        self.error = error if self.error is None else self.error
        if self.ended and not self.borrowed:
            return []
        self.failed = True
        self.learned.failed = self.learned.failed or not self.ended
        self.home.clear()
        self._sizes.clear()
        if self.to_lend is not None:
            self.to_lend = dict.fromkeys(self.to_lend, slice(0, 0))
        sends = [(job.owner, RoundMessage(RoundKind.FAILED)) for job in self.borrowed]
        self.borrowed.clear()
        for parcel in self.parcels:
            loan = self.away.pop(parcel.borrower)
            if isinstance(parcel, Packing):
                self.learned.rows_lent -= count(loan.rows)
                if not loan.helps:
                    sends.append((parcel.borrower, RoundMessage(RoundKind.PLANNED, slice(0, 0))))
        self.parcels.clear()
        return sends

    def _receive(self, source: int, message: RoundMessage) -> list[Send]:
        kind = message.kind
        if kind is RoundKind.PLANNED and source in self.lenders:
            self.lenders.remove(source)
            return self._borrow(source, message)
        if kind is RoundKind.HELP and self.asking.asked(source):
            return self._borrow(source, message)
        if kind is RoundKind.DRY and source not in self.dry:
            self.dry[source] = None
            return []
        if kind in (RoundKind.DONE, RoundKind.FAILED) and source in self.away:
            if kind is RoundKind.DONE and self.objects and not self.failed:
                self.parcels.append(Unpacking(source, message))
            else:
                self._back(source, message)
            return []
        if kind is RoundKind.OVER and self.ended and not self.borrowed:
            self.over = True
            return []
        raise ProtocolError(f"rank {self.rank} got {kind.name} from rank {source}, which may not send it now")

    def _back(self, borrower: int, answer: RoundMessage) -> None:
        """Record that lent rows are back, or lost."""
        loan = self.away.pop(borrower)
        if answer.kind is RoundKind.DONE:
            self.learned.timed.append(Timed(loan.rows, borrower, answer.ticks, loan.helps))
        else:
            self.learned.failed = True

    def _borrow(self, source: int, message: RoundMessage) -> list[Send]:
        rows = message.rows
        if rows is None or not count(rows):
            return []
        if self.failed:
            return [(source, RoundMessage(RoundKind.FAILED))]
        self.borrowed.append(Job(source, rows, message.kind is RoundKind.HELP, message.payload))
        return []

    def _help(self, rank: int) -> list[Send]:
        left = sum(self._sizes)
        each_s = self.learned.size_s or USUAL_BLOCK_S * len(self._sizes) / left
        # Relative to all known ranks: others may soon be dry, above all if one rank has all rows.
        share = float(self.speeds[rank]) / self._all_speeds
        self._split(wanted_size(left, each_s, share, self.learned.handling_s))
        sizes = self._sizes[::-1]
        n = part(sizes, each_s, share, float(self.speeds[rank] / self.speeds[self.rank]), self.learned.handling_s)
        if not n:
            return []
        rows = join(self.home[-n:])
        del self.home[-n:]
        del self._sizes[-n:]
        return self._lend(rank, RoundMessage(RoundKind.HELP, rows))

    @cached_property
    def _all_speeds(self) -> float:
        """The sum over all known ranks: computed once per round, since there may be many."""
        return sum(self.speeds.values()) if isinstance(self.speeds, Mapping) else float(self.speeds.sum())

    def _size(self, rows: Rowset) -> float:
        sizes = self.learned.sizes
        return count(rows) if sizes is None else float(np.add.reduce(sizes[rows]))

    def _grow(self, seconds: float, size: float) -> None:
        """Double the next block of a full call while that makes rows much cheaper: a call may have a cost of its own."""
        rate, (last_size, last_rate) = seconds / size, self._last
        if rate < CHEAPER * last_rate:
            may_be_longer = seconds <= BLOCK_S or 2 * size <= LONG_PART * sum(self._sizes)
            self.next_size = 0.0 if self.quick else 2 * size if may_be_longer else size
        elif size > last_size:
            self.next_size = 0.0
        self._last = size, rate

    def _fit(self) -> None:
        """Join blocks that are too short to handle one by one; split the next one if a dry rank waits for it, or will.

        Nobody can help with a block that has begun.  So a rank that finds its rows SLOWER than before gets no more of the
        rest at a time than a helper would.
        """
        home, sizes, least = self.home, self._sizes, 0.0
        if self.learned.size_s:
            shortest = shortest_s(self.learned.handling_s, quick=self.quick and not self.dry)
            least = max(self.next_size, shortest / self.learned.size_s)
            while len(home) > 1 and sizes[-1] + sizes[-2] <= least:
                home[-2:] = [join(home[-2:])]
                sizes[-2:] = [self._size(home[-1])]
        if self.learned.home_size and self.learned.size_s > SLOWER * self.learned.usual_s > 0.0:
            share = float(self.speeds[self.rank]) / self._all_speeds
            self._split(max(least, wanted_size(sum(sizes), self.learned.size_s, share, self.learned.handling_s)))
        if self.dry:
            self._split(least or LEAST * sizes[-1] / count(home[-1]))

    def _split(self, size: float) -> None:
        """Cut the next block where it has this size, unless it is shorter than two such parts."""
        home, sizes = self.home, self._sizes
        block = home[-1]
        rows = max(1, int(size / sizes[-1] * count(block)))
        if count(block) >= 2 * rows:
            home[-1:] = [cut(block, rows, count(block)), cut(block, 0, rows)]
            sizes[-1:] = [self._size(each) for each in home[-2:]]

    def _lend(self, borrower: int, message: RoundMessage) -> list[Send]:
        """Lend the rows of a message; return it to be sent, unless it is to be packed before."""
        rows = message.rows
        if rows is None or not count(rows):
            return [(borrower, message)]
        self.away[borrower] = Loan(rows, message.kind is RoundKind.HELP)
        self.learned.rows_lent += count(rows)
        if not self.objects:
            return [(borrower, message)]
        self.parcels.append(Packing(borrower, message))
        return []
