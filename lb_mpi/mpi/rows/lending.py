"""One round on MPI: index sets become buffers, and jobs become calls of the user's function.

The protocol is in `lb_mpi.balancing.round`; this module is its port.  An error of the user's (function, pack, unpack,
Ctrl-C) fails the round on this rank, which stays in it to the end; all ranks raise afterwards.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    numbers,
)
from lb_mpi.emulate import throttle
from lb_mpi.mpi.common.carrier import Meter, Port
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Clocks, own_s, without_core_s
from lb_mpi.mpi.rows.rows import HEADER_BYTES, Results, Rows, Spec, columns_of, empty_parcel, head, in_blocks
from lb_mpi.record.events import Phase
from lb_mpi.table import counted


@dataclass
class Measured:
    """Seconds and ticks that a rank spent on rows."""

    occupied_s: float = 0.0  # with rows, and all other overhead: sending, messages
    rows_s: float = 0.0  # with rows: computing and copying blocks, resting (emulated)
    ticks: float = 0.0
    called_s: float = 0.0  # in the function
    handled: int = 0  # blocks directly after another one, without messages in between
    handled_cpu_s: float = 0.0  # between those blocks and the ones before

    @property
    def overhead_s(self) -> float:
        """Seconds that do not depend on how many rows this rank computed."""
        return max(0.0, self.occupied_s - self.rows_s)

    @property
    def handling_s(self) -> float:
        """Overhead of a block in seconds, at this rank's emulated speed; 0: unknown.

        Based on CPU time, so a few blocks suffice even if the rank is interrupted now and then.
        """
        return self.handled_cpu_s / max(1, self.handled) * (self.called_s / self.ticks if self.ticks else 0.0)


class Stopwatch(Meter):
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of the function's own time, CPU and waiting; see `lb_mpi.balancing.knowledge`.
    """

    def __init__(self, emulated_speed: float | Callable[[], float]) -> None:
        self.slow = throttle(emulated_speed, "emulated_speed")
        self.warm = False  # the first call may compile the function, so its time is not used
        self.computing_s = 0.0  # in this round, with rests and the first call
        self.queued_s = 0.0  # of computing_s, without a core
        self.measured = Measured()  # since the last call of `tell`
        self._handled_cpu_s = 0.0  # since the function returned, without rests
        self._handling_since: float | None = None  # CPU time; None: messages were handled since the function returned
        self._clocks = Clocks()

    def begin(self) -> None:
        """Start a new round, in this thread."""
        self.computing_s = self.queued_s = 0.0
        self.handled()
        self._clocks.begin()
        self._began = self._clocks.before()

    def so_far(self) -> tuple[float, float]:
        """Return the seconds of this round so far, and those without a core."""
        began, now = self._began, self._clocks.after()
        return now.wall_s - began.wall_s, without_core_s(began, now)

    def call(self, function: Callable[..., Any], arguments: Sequence[Any], *, first: bool = True) -> tuple[Any, float]:
        """Call the function, `first` in a block of rows; return its result, and the ticks it took (NaN: unreliable)."""
        before = self._clocks.before()
        result = function(*arguments)
        after = self._clocks.after()
        self.slow.charge(after.cpu_s - before.cpu_s)
        seconds = after.wall_s - before.wall_s
        self.computing_s += seconds
        ticks, measured = own_s(before, after), self.measured
        self.queued_s += max(0.0, seconds - (after.stops.seconds - before.stops.seconds) - ticks)
        if not self.warm:
            self.warm = True
            measured.occupied_s -= seconds
            measured.rows_s -= seconds
            return result, np.nan
        if first and self._handling_since is not None:
            measured.handled += 1
            measured.handled_cpu_s += self._handled_cpu_s + before.cpu_s - self._handling_since
        measured.called_s += seconds
        measured.ticks += ticks
        self._handled_cpu_s, self._handling_since = 0.0, after.cpu_s
        return result, ticks

    def waited(self, _seconds: float) -> None:
        """See `Meter`: the rank has done something other than computing blocks."""
        self.handled()

    def handled(self) -> None:
        """See `Meter`; the time until the next block belongs to no block."""
        self._handling_since = None

    def collect(self) -> Measured:
        """Return the measurements since the last call, and reset them."""
        measured, self.measured = self.measured, Measured()
        return measured

    def worked(self, seconds: float) -> None:
        """Add time with a job, including all overhead."""
        self.measured.occupied_s += seconds
        if self._handling_since is not None:
            now = time.thread_time()
            self._handled_cpu_s, self._handling_since = self._handled_cpu_s + now - self._handling_since, now

    def rested(self, seconds: float) -> None:
        """Add a rest, including the messages handled in it: all of it counts as emulated computing, not as handling."""
        self.measured.occupied_s += seconds
        self.measured.rows_s += seconds
        self.computing_s += seconds
        if self._handling_since is not None:
            self._handling_since = time.thread_time()

    def end(self) -> None:
        """Stop measuring, until the next round begins."""
        self._clocks.end()


_NUMBER = struct.Struct("<q")
_AT = HEADER_BYTES - _NUMBER.size  # in the header of a parcel, after the fields of `Head`


class Wire(Parcels):
    """Parcels on `comm`, a duplicate of the user's, from round to round.

    A rank may start the next round before another one knows that the last is over.  So each parcel has the number of
    its round: early parcels are kept, and late ones, which no longer matter, are dropped.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm, Tag.LENDING)
        self._round = 0
        self._early: list[tuple[int, Buffer]] = []

    def begin(self) -> None:
        """Start the next round, of which `sent_bytes` are counted."""
        self._round += 1
        self.sent_bytes = 0

    def post(self, rank: int, buffer: Buffer) -> None:
        """Start a send in this round; returns at once."""
        _NUMBER.pack_into(buffer.data, _AT, self._round)
        self.send(rank, Tag.LENDING, buffer)

    def arrived(self) -> list[tuple[int, Buffer]]:
        """Return the parcels of this round that have arrived, as (source, parcel), in order for each source."""
        all_rounds = self._early + [(source, buffer) for source, _, buffer in self.take()]
        self._early, mine = [], []
        for source, buffer in all_rounds:
            (number,) = _NUMBER.unpack_from(buffer.data, _AT)
            if number == self._round:
                mine.append((source, buffer))
            elif number > self._round:
                self._early.append((source, buffer))
        return mine


DECISION_S = 1.0  # extra wait after reporting: the decision may still be in transit although another rank has left


class RowsDiffer(Exception):
    """The rows of another rank have another form, as the root will detect."""


class RoundPort(Port[RoundMessage, Job | Packing | Unpacking]):
    """The messages and jobs of `round`, one of `knowledge`, on `wire`.

    SETTLED is the reduction of what `decider` reports, from which it decides: then OVER arrives.  `loans` records phases and
    loans.  `form`: of the results of the last call; None: these are the first rows of their form.  `began_s`: seconds since
    the last round.  `mark`: a checksum of what must be equal on all ranks.
    """

    def __init__(
        self,
        wire: Wire,
        knowledge: Knowledge,
        round: Round,
        function: Callable[..., Any],
        rows: Rows,
        results: Results,
        stopwatch: Stopwatch,
        loans: Loans,
        decider: Decider,
        form: Spec | None,
        began_s: float,
        mark: int,
    ) -> None:
        self._wire, self._knowledge, self._round, self._function, self.rows = wire, knowledge, round, function, rows
        self._watch, self._loans, self._decider, self._began_s = stopwatch, loans, decider, began_s
        self._form, self._mark = form, mark
        self.results = results
        self.failed: Failed | None = None  # an error of the user's
        self.n_computed = 0  # rows of this and of other ranks
        self._n_lent = 0  # rows of this rank
        self._end: Learned | None = None  # of SETTLED, before it is sent
        self._reducing: Reducing | None = None  # after SETTLED
        self.decided: Decided | None = None
        self.spent_s = 0.0  # for packing, sending, and joining

    @property
    def failed_after_s(self) -> float:
        """See `Port`; after SETTLED, the decision may still be in transit although another rank has left."""
        return super().failed_after_s + DECISION_S * self._round.ended

    def arrived(self) -> list[Arrival]:
        """Return what has arrived, with the results stored; and OVER when all ranks have ended.

        An emulated slow rank ends when it has rested, and so sent its last results.
        """
        began, arrived = time.perf_counter(), [self._read(*parcel) for parcel in self._wire.arrived()]
        if arrived:
            self.spent_s += time.perf_counter() - began
        if self._end is not None:
            self._send_end()
        if self._reducing is not None and self._reducing.done():
            self.decided, self._reducing = self._decider.decide(self._reducing.answer), None
            arrived.append((ROOT, RoundMessage(RoundKind.OVER)))
        return arrived

    def idle(self) -> bool:
        """See `Port`."""
        return self._end is None and not self._wire.news() and not (self._reducing is not None and self._reducing.done())

    def post(self, sends: list[Send]) -> None:
        """Send parcels."""
        began = time.perf_counter()
        for rank, message in sends:
            if message.kind is RoundKind.SETTLED:
                self._end = message.payload
                continue
            self._wire.post(rank, self._parcel(message))
            if message.rows is not None:
                n_rows = count(self.rows.of_units(message.rows))
                self._n_lent += n_rows
                self._loans.lent(rank, n_rows)
        if sends:
            self.spent_s += time.perf_counter() - began
        if self._end is not None:
            self._send_end()

    def _send_end(self) -> None:
        """Start the reduction of SETTLED, unless an emulated slow rank still rests."""
        assert self._end is not None
        if self._watch.slow.due():
            return
        learned, self._end = self._end, None
        measured, quick = self._watch.collect(), self._round.quick
        report = self._knowledge.learn(learned, measured.rows_s, measured.ticks, measured.handling_s, quick=quick)
        elapsed_s, queued_s = self._watch.so_far()
        mark = self.results.mark
        report = report._replace(
            mark=self._mark, results=mark or (self._form.mark if self._form is not None else 0), formed=mark != 0,
            changed=self._form is None, rows=self._n_lent, spent_s=self.spent_s, bytes=self._wire.sent_bytes,
            began_s=self._began_s, queued_s=queued_s, elapsed_s=elapsed_s, overhead_s=measured.overhead_s,
            last_s=self._loans.last_s, coreless_s=self._watch.queued_s,
        )  # fmt: skip
        self._reducing = Reducing(self._wire.comm, self._decider.report(report))

    def run(self, job: Job | Packing | Unpacking) -> Any:
        """Call the user's functions; what they raise is kept with its place."""
        began = time.perf_counter()
        try:
            if isinstance(job, Job):
                return self._compute_own(job) if job.owner == self._knowledge.rank else self._compute_foreign(job)
            packed = self._packed(job.message) if isinstance(job, Packing) else None
            if isinstance(job, Unpacking):
                self._store(job.borrower, job.message)
            self.spent_s += time.perf_counter() - began
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
        places = numbers(self.rows.of_units(job.rows))
        return f"its row {places[0]}" if len(places) == 1 else f"its rows {places.min()}..{places.max()}"

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
        self.results.receive(self.rows.of_units(loan.rows), done.payload)

    def _parcel(self, message: RoundMessage) -> Buffer:
        if message.payload is not None:
            buffer: Buffer = message.payload
            return buffer
        if message.rows is None or not count(message.rows):
            return empty_parcel(message.kind)
        return self._packed(message)

    def _packed(self, message: RoundMessage) -> Buffer:
        assert message.rows is not None
        return self.rows.parcel(self.rows.of_units(message.rows), kind=message.kind)

    def _compute_foreign(self, job: Job) -> Computed:
        """Compute rows of another rank; the payload is the parcel of their results."""
        if head(job.payload).mark != self.rows.spec.mark:
            raise RowsDiffer
        record, began = self._loans.record, time.perf_counter()
        record.enter(Phase.FOREIGN, began)
        result, ticks = self._call(columns_of(job.payload, self.rows.spec, self.rows.pack, self.rows.unpack))
        computed = time.perf_counter()
        record.enter(Phase.PACKING, computed)
        parcel = self.results.parcel(result, ticks)
        self.spent_s += time.perf_counter() - computed
        return Computed((computed - began) / self._watch.slow.speed, ticks, parcel)

    def _compute_own(self, job: Job) -> Computed:
        """Compute rows of this rank, and store their results."""
        record, began, index = self._loans.record, time.perf_counter(), self.rows.of_units(job.rows)
        record.enter(Phase.PACKING, began)
        block = self.rows.block(index)
        copied = time.perf_counter()
        record.enter(Phase.OWN, copied)
        result, ticks = self._call(block)
        computed = time.perf_counter()
        record.enter(Phase.PACKING, computed)
        self.results.put(index, result)
        learned = self._round.learned
        learned.handling_s = learned.handling_s or self._watch.measured.handling_s
        self.spent_s += copied - began + time.perf_counter() - computed
        return Computed((computed - copied) / self._watch.slow.speed, ticks)

    def _call(self, block: tuple[Any, ...]) -> tuple[Sequence[Any], float]:
        """Call the function, in blocks of the wanted size; return its results, which are valid until the next call."""
        total, begin, n = 0.0, 0, len(block[0])
        whole: Sequence[Any] = ()
        self.n_computed += n
        for part in in_blocks(block, self.rows.spec.block_rows):
            result, ticks = self._watch.call(self._function, self.rows.arguments(part), first=not begin)
            end = begin + len(part[0])
            columns = self.results.check(result, end - begin)
            if end - begin == n:
                whole = columns
            else:  # copied at once, since the function may return its own array, the same one each time
                whole = whole or self.results.room(n)
                for column, some in zip(whole, columns, strict=True):
                    column[begin:end] = some
            total, begin = total + ticks, end
        return whole, total
