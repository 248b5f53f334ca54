"""One round on MPI, in which rows are lent: index sets become buffers, and jobs become calls of the user's function.

The protocol is in `lb_mpi.balancing.round`; this module is its port.  An error of the user's (function, pack, unpack,
Ctrl-C) fails the round on this rank, which stays in it to the end; all ranks raise afterwards.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from mpi4py import MPI

from lb_mpi.balancing.decider import Decider
from lb_mpi.balancing.deciding import Decided
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.record import Loans
from lb_mpi.balancing.round import (
    ROOT,
    Arrival,
    Computed,
    Job,
    Learned,
    Packing,
    Round,
    RoundKind,
    RoundMessage,
    Send,
    Unpacking,
    count,
)
from lb_mpi.mpi.common.carrier import Port
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import without_core_s
from lb_mpi.mpi.rows.computing import Computing
from lb_mpi.mpi.rows.rows import HEADER_BYTES, columns_of, empty_parcel, head
from lb_mpi.record.events import Phase
from lb_mpi.table import counted

_NUMBER = struct.Struct("<q")
_AT = HEADER_BYTES - _NUMBER.size  # in the header of a parcel, after the fields of `Head`


class Wire(Parcels):
    """Parcels on `comm`, a duplicate of the user's, from round to round.

    A rank may start the next round before another one knows that the last is over.  So each parcel has the number of
    its round: early parcels are kept, and late ones, which no longer matter, are dropped.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm, Tag.LENDING)
        self.reducing = Reducing(comm)  # of what the ranks report at the end of each round
        self._round = 0
        self._early: list[tuple[int, int, Buffer]] = []

    def begin(self) -> None:
        """Start the next round, of which `sent_bytes` are counted."""
        self._round += 1
        self.sent_bytes = 0

    def post(self, rank: int, buffer: Buffer) -> None:
        """Start a send in this round; returns at once."""
        _NUMBER.pack_into(buffer.data, _AT, self._round)
        self.send(rank, Tag.LENDING, buffer)

    def arrived(self, *, within_s: float = 0.0) -> list[tuple[int, Buffer]]:
        """Return the parcels of this round that have arrived, as (source, parcel), in order for each source.

        If none has, but one is arriving, wait for it so long.
        """
        arrived = [*self._early, *self.receive()] or self.awaited(within_s)
        self._early, mine = [], list[tuple[int, Buffer]]()
        for source, tag, buffer in arrived:
            (number,) = _NUMBER.unpack_from(buffer.data, _AT)
            if number == self._round:
                mine.append((source, buffer))
            elif number > self._round:
                self._early.append((source, tag, buffer))
        return mine


PATIENT_S = 20e-3  # of a rank from which others wait for rows, until results that are arriving are there: then it lends more
DECISION_S = 1.0  # extra wait after reporting: the decision may still be in transit although another rank has left


class RowsDiffer(Exception):
    """The rows of another rank have another form, as the root will detect."""


class RoundPort(Port[RoundMessage, Job | Packing | Unpacking]):
    """The messages and jobs of `round`, one of `knowledge`, on `wire`.

    SETTLED is the reduction of what `decider` reports, from which it decides: then OVER arrives.  `loans` records loans.
    """

    def __init__(
        self, wire: Wire, knowledge: Knowledge, round: Round, computing: Computing, loans: Loans, decider: Decider
    ) -> None:  # fmt: skip
        self._wire, self._knowledge, self._round, self._loans, self._decider = wire, knowledge, round, loans, decider
        self._computing, self._rows, self._results = computing, computing.rows, computing.results
        self._watch = self.meter = computing.watch
        self._began = self._watch.read()
        self.failed: Failed | None = None  # an error of the user's
        self._n_lent = 0  # rows of this rank
        self._end: Learned | None = None  # of SETTLED, before it is sent
        self._reducing = False  # from SETTLED to OVER
        self.decided: Decided | None = None

    @property
    def failed_after_s(self) -> float:
        """See `Port`; after SETTLED, the decision may still be in transit although another rank has left."""
        return super().failed_after_s + DECISION_S * self._round.ended

    def arrived(self) -> list[Arrival]:
        """Return what has arrived, with the results stored; and OVER when all ranks have ended.

        An emulated slow rank ends when it has rested, and so sent its last results.
        """
        parcels = self._wire.arrived(within_s=PATIENT_S if self._round.dry and self._round.home else 0.0)
        arrived, began = list[Arrival](), time.perf_counter()
        for source, buffer in parcels:
            arrived.append(self._read(source, buffer))
        if arrived:
            self._computing.spent_s += time.perf_counter() - began
        if self._end is not None:
            self._send_end()
        if self._reducing and self._wire.reducing.done():
            self.decided, self._reducing = self._decider.decide(self._wire.reducing.answer), False
            arrived.append((ROOT, RoundMessage(RoundKind.OVER)))
        return arrived

    def idle(self) -> bool:
        """See `Port`."""
        return self._end is None and not self._wire.news() and not (self._reducing and self._wire.reducing.done())

    def post(self, sends: list[Send]) -> None:
        """Send parcels."""
        began = time.perf_counter()
        for rank, message in sends:
            if message.kind is RoundKind.SETTLED:
                self._end = message.payload
                continue
            buffer = message.payload
            if message.rows is not None and count(message.rows):
                rows = self._rows.of_units(message.rows)
                buffer = self._rows.parcel(rows, kind=message.kind) if buffer is None else buffer
                self._n_lent += count(rows)
                self._loans.lent(rank, count(rows))
            self._wire.post(rank, empty_parcel(message.kind) if buffer is None else buffer)
        if sends:
            self._computing.spent_s += time.perf_counter() - began
        if self._end is not None:
            self._send_end()

    def _send_end(self) -> None:
        """Start the reduction of SETTLED, unless an emulated slow rank still rests."""
        assert self._end is not None
        if self._watch.slow.due():
            return
        learned, self._end = self._end, None
        measured, began, now = self._watch.collect(), self._began, self._watch.read()
        learned.handled_s = measured.handling_s
        report = self._computing.report(
            measured, failed=learned.failed, rows=self._n_lent, bytes=self._wire.sent_bytes,
            queued_s=without_core_s(began, now), elapsed_s=now.wall_s - began.wall_s, overhead_s=measured.overhead_s,
        )  # fmt: skip
        self._wire.reducing.begin(self._decider.report(report, learned))
        self._reducing = True

    def run(self, job: Job | Packing | Unpacking) -> Any:
        """Call the user's functions; what they raise is kept with the words for it."""
        began = time.perf_counter()
        try:
            if isinstance(job, Job):
                return self._compute_own(job) if job.owner == self._knowledge.rank else self._compute_foreign(job)
            packed = None
            if isinstance(job, Unpacking):
                self._store(job.borrower, job.message)
            elif job.message.rows is not None:
                packed = self._rows.parcel(self._rows.of_units(job.message.rows), kind=job.message.kind)
            self._computing.spent_s += time.perf_counter() - began
            return packed
        except RowsDiffer:
            raise
        except BaseException as caught:
            self.failed = self.failed or of_rows(caught, self._knowledge.rank, self._words(job))
            raise
        finally:
            if isinstance(job, Job):
                self._watch.measured.rows_s += time.perf_counter() - began

    def _words(self, job: Job | Packing | Unpacking) -> str:
        """Describe a job, for an error in it."""
        if isinstance(job, Packing):
            return f"packing rows for rank {job.borrower}"
        if isinstance(job, Unpacking):
            return f"unpacking results of rank {job.borrower}"
        if job.owner != self._knowledge.rank:
            return f"{counted(count(job.rows), 'row')} lent by rank {job.owner}"
        return self._rows.named(self._rows.of_units(job.rows))

    def _read(self, source: int, buffer: Buffer) -> Arrival:
        """Read a parcel; store results of arrays, which needs no function of the user's."""
        about = head(buffer)
        message = RoundMessage(RoundKind(about.kind), slice(0, about.n), about.ticks, buffer)
        if message.kind is RoundKind.DONE and source in self._round.away and not self._round.objects:
            self._store(source, message)
        return source, message

    def _store(self, borrower: int, done: RoundMessage) -> None:
        """Store results that a borrower has sent."""
        loan = self._round.away[borrower]
        self._results.receive(self._rows.of_units(loan.rows), done.payload)

    def _compute_foreign(self, job: Job) -> Computed:
        """Compute rows of another rank; the payload is the parcel of their results."""
        rows = self._rows
        if head(job.payload).checksum != rows.checksum:
            raise RowsDiffer
        record, began = self._computing.record, time.perf_counter()
        if record is not None:
            record.enter(Phase.FOREIGN, began)
        result, ticks = self._computing.call(columns_of(job.payload, rows.spec, rows.pack, rows.unpack))
        computed = time.perf_counter()
        if record is not None:
            record.enter(Phase.PACKING, computed)
        parcel = self._results.parcel(result, ticks)
        self._computing.spent_s += time.perf_counter() - computed
        return Computed((computed - began) / self._watch.slow.speed, ticks, parcel)

    def _compute_own(self, job: Job) -> Computed:
        """Compute rows of this rank, and store their results."""
        seconds, ticks = self._computing.own(self._rows.of_units(job.rows))
        learned = self._round.learned
        learned.handling_s = learned.handling_s or self._watch.measured.handling_s
        return Computed(seconds / self._watch.slow.speed, ticks)
