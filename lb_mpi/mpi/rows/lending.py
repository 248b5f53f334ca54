"""One round on MPI: index sets become buffers, and jobs become calls of the user's function.

The protocol is in `lb_mpi.balancing.round`; this module only carries it.  An error of the user's (function, pack,
unpack, Ctrl-C) fails the round on this rank, which stays in it to the end; all ranks raise afterwards.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.judge import RankReport, Verdict
from lb_mpi.balancing.record import Loans
from lb_mpi.balancing.round import ROOT, Arrival, Computed, Job, Learned, RoundKind, RoundMessage, Send, count, numbers
from lb_mpi.emulate import throttle
from lb_mpi.mpi.common.carrier import Part, Spent
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.presence import Presence, Tag
from lb_mpi.mpi.common.waiting import PATIENCE_S, Clocks, Interrupts, own_s, queued_s
from lb_mpi.mpi.rows.plans import Judging, Neighbours, Root
from lb_mpi.mpi.rows.rows import HEADER_BYTES, Results, Rows, Spec, columns_of, empty_parcel, head, in_blocks
from lb_mpi.record.events import Phase


@dataclass
class Measured:
    """Seconds and ticks that a rank spent on rows."""

    occupied_s: float = 0.0  # computing, resting (emulated), and all overhead: copying, sending, messages
    ticks: float = 0.0
    called_s: float = 0.0  # in the function
    handled: int = 0  # blocks directly after another one, without messages in between
    handled_cpu_s: float = 0.0  # between those blocks and the ones before

    @property
    def handling_s(self) -> float:
        """Overhead of a block in seconds, at this rank's emulated speed; 0: unknown.

        Based on CPU time, so a few blocks suffice even if the rank is interrupted now and then.
        """
        return self.handled_cpu_s / max(1, self.handled) * (self.called_s / self.ticks if self.ticks else 0.0)


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of the function's own time, CPU and waiting; see `lb_mpi.balancing.course`.
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
        self.disturbed()
        self._clocks.begin()

    def call(self, function: Callable[..., Any], arguments: Sequence[Any], *, first: bool = True) -> tuple[Any, float]:
        """Call the function, `first` in a block of rows; return its result, and the ticks it took (NaN: unreliable)."""
        before = self._clocks.before()
        result = function(*arguments)
        after = self._clocks.after()
        self.slow.charge(after.cpu_s - before.cpu_s)
        seconds = after.wall_s - before.wall_s
        self.computing_s += seconds
        self.queued_s += queued_s(before, after)
        measured = self.measured
        if not self.warm:
            self.warm = True
            measured.occupied_s -= seconds
            return result, np.nan
        if first and self._handling_since is not None:
            measured.handled += 1
            measured.handled_cpu_s += self._handled_cpu_s + before.cpu_s - self._handling_since
        ticks = own_s(before, after)
        measured.called_s += seconds
        measured.ticks += ticks
        self._handled_cpu_s, self._handling_since = 0.0, after.cpu_s
        return result, ticks

    def disturbed(self) -> None:
        """Note that the rank has done something other than computing blocks."""
        self._handling_since = None

    def tell(self) -> Measured:
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
        self.computing_s += seconds
        if self._handling_since is not None:
            self._handling_since = time.thread_time()

    def end(self) -> None:
        """End the round."""
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


VERDICT_S = 1.0  # extra wait after reporting: the verdict may still be in transit although another rank has left


class Lending(Part):
    """Carries one round of `course` on `wire`.  `failed`: the rows are invalid, and the round fails from the start.

    `loans` records phases and loans.  `began_s`: seconds since the last round.  `form`: of the results of the last round.
    """

    def __init__(
        self,
        wire: Wire,
        course: Course,
        function: Callable[..., Any],
        rows: Rows,
        stopwatch: Stopwatch,
        loans: Loans,
        plans: Root | Neighbours,
        began_s: float,
        failed: Failed | None,
        form: Spec | None,
    ) -> None:
        self._wire, self._course, self._function, self.rows = wire, course, function, rows
        self._watch, self._loans, self._plans, self._began_s = stopwatch, loans, plans, began_s
        self.failed = failed
        self.round = course.begin(rows.n_units, rows.spec.mark, warm=stopwatch.warm)
        if failed:
            self.round.fail()
        self.results = Results(rows, form)
        self.n_computed = 0  # rows of this and of other ranks
        self._answer: list[Send] = []  # of the last job; sent later, since an emulated slow rank must rest first
        self._judging: Judging | None = None  # once this rank has reported
        self.verdict: tuple[Verdict, float] | None = None  # and this rank's seconds to find it
        self.spent_s = 0.0  # for packing, sending, and joining

    @property
    def over(self) -> bool:
        """The round is over, as it will be on all ranks whatever the users' functions do."""
        return self.round.over

    def turn(self, now: float) -> bool:
        """Process arrivals, send what is due, report once, and check for the root's verdict."""
        round = self.round
        arrived = [self._open(*parcel) for parcel in self._wire.arrived()]
        sends = [send for send in round.turn(now, arrived) if send[1].kind is not RoundKind.LEARNED]
        self._post(sends)
        active = bool(arrived or sends)
        if active:
            self._watch.disturbed()
            self.spent_s += time.perf_counter() - now
        if round.told and self._judging is None and not self._answer:
            self._judging = self._plans.judged(self._report(round.learned))
        if self._judging is not None:
            try:
                next(self._judging)
            except StopIteration as ended:
                self.verdict = ended.value
                round.turn(now, [(ROOT, RoundMessage(RoundKind.OVER))])
        return active

    def work(self, interrupts: Interrupts) -> bool:
        """Send the answer of the last job, and compute the next one."""
        if self._answer:
            self._post(self._answer)
            self._answer = []
        job = self.round.job
        if job is not None:
            self._answer = self._compute(job, interrupts)
        return job is not None

    def look(self, presence: Presence, waited_s: float) -> None:
        """See `Part`; after this rank's report, the verdict may still be in transit although another rank has left."""
        super().look(presence, waited_s - VERDICT_S * self.round.told)

    def interrupted(self, interrupts: Interrupts, waited_s: float) -> None:
        """Fail the round on Ctrl-C; a rank that has reported first waits for the verdict, and then raises."""
        if self.round.told:
            if waited_s > PATIENCE_S:
                interrupts.check()
            return
        try:
            interrupts.check()
        except KeyboardInterrupt as caught:
            self._post(self._fail(caught, "between rows"))

    def spent(self, how: Spent, seconds: float) -> None:
        """See `Part`."""
        if how is Spent.RESTING:
            self._watch.rested(seconds)
        elif how is Spent.WORKING:
            self._watch.worked(seconds)
        else:
            self._watch.disturbed()

    def _report(self, learned: Learned) -> RankReport:
        measured, mark, results = self._watch.tell(), self.rows.spec.mark, self.results.mark
        report = self._course.learn(learned, measured.occupied_s, measured.ticks, measured.handling_s)
        moved, began_s = self._wire.sent_bytes, self._began_s
        return report._replace(mark=mark, results=results, spent_s=self.spent_s, bytes=moved, began_s=began_s)

    def _open(self, source: int, buffer: Buffer) -> Arrival:
        """Read a parcel; store the results that it contains."""
        about = head(buffer)
        message = RoundMessage(RoundKind(about.kind), slice(0, about.n), about.ticks, buffer)
        loan = self.round.away.get(source)
        if loan is not None and message.kind is RoundKind.DONE:
            try:
                self.results.receive(self.rows.of_units(loan.rows), buffer)
            except BaseException as caught:  # from the user's unpack
                self._post(self._fail(caught, f"unpacking results of rank {source}"))
        return source, message

    def _post(self, sends: Iterable[Send]) -> None:
        waiting = deque(sends)
        while waiting:
            rank, message = waiting.popleft()
            try:
                buffer = self._pack(message)
            except BaseException as caught:  # from the user's pack
                waiting.extend(self._fail(caught, f"packing rows for rank {rank}", rank))
            else:
                self._wire.post(rank, buffer)
                if message.rows is not None:
                    self._loans.lent(rank, count(self.rows.of_units(message.rows)))

    def _pack(self, message: RoundMessage) -> Buffer:
        if message.kind is RoundKind.DONE:
            buffer: Buffer = message.payload
            return buffer
        if message.rows is None or not count(message.rows):
            return empty_parcel(message.kind)
        return self.rows.parcel(self.rows.of_units(message.rows), kind=message.kind)

    def _compute(self, job: Job, interrupts: Interrupts) -> list[Send]:
        rows, record, foreign = self.rows, self._loans.record, job.owner != self._course.rank
        if foreign and head(job.payload).mark != rows.spec.mark:
            return self.round.fail()  # the rows differ between ranks, as the root will detect
        index = job.rows if foreign else rows.of_units(job.rows)
        began = copied = time.perf_counter()
        try:
            if foreign:
                record.enter(Phase.FOREIGN, began)
                block = columns_of(job.payload, rows.spec, rows.unpack)
            else:
                record.enter(Phase.PACKING, began)
                block = rows.block(index)
                copied = time.perf_counter()
                record.enter(Phase.OWN, copied)
            result, ticks = self._call(block, interrupts)
            computed = time.perf_counter()
            record.enter(Phase.PACKING, computed)
            parcel = None
            if foreign:
                parcel = self.results.parcel(result, ticks)
            else:
                self.results.put(index, result)
        except BaseException as caught:
            if foreign:
                return self._fail(caught, f"{count(job.rows)} rows lent by rank {job.owner}")
            places = numbers(index)
            return self._fail(caught, f"its rows {places[0]}..{places[-1]}")
        sends = self.round.done(job, Computed((computed - copied) / self._watch.slow.speed, ticks, parcel))
        if not foreign:
            learned = self.round.learned
            learned.handling_s = learned.handling_s or self._watch.measured.handling_s
        self.spent_s += copied - began + time.perf_counter() - computed
        return sends

    def _call(self, block: tuple[Any, ...], interrupts: Interrupts) -> tuple[Sequence[Any], float]:
        """Call the function, in blocks of the wanted size; return its results, which are valid until the next call."""
        total, begin, n = 0.0, 0, len(block[0])
        whole: Sequence[Any] = ()
        self.n_computed += n
        for part in in_blocks(block, self.rows.spec.block_rows):
            with interrupts.allowed():
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

    def _fail(self, error: BaseException, what: str, *unsent: int) -> list[Send]:
        if self.failed is None:
            self.failed = of_rows(error, self._course.rank, what)
        return self.round.fail(error) + [send for borrower in unsent for send in self.round.take_back(borrower)]
