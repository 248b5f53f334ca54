"""One round on MPI: index sets become buffers, and jobs calls of the user's function.

What happens when stands in `lb_mpi.balancing.round`; here is only what carries it.  An error of the user's (the function,
pack or unpack, Ctrl-C) fails the round on this rank, which stays in it to its end; the error is told afterwards.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.record import Loans
from lb_mpi.balancing.round import ROOT, Arrival, Computed, Job, Kind, Learned, Message, Round, Send, count, numbers
from lb_mpi.emulate import Varying, throttle
from lb_mpi.mpi.common.carrier import Part, Spent
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.presence import Presence, Tag
from lb_mpi.mpi.common.waiting import PATIENCE_S, Clocks, Interrupts, own_s, queued_s
from lb_mpi.mpi.rows.rows import (
    HEADER_BYTES,
    Results,
    Rows,
    columns_of,
    concatenate,
    empty_parcel,
    head,
    in_blocks,
    in_form,
    parcel_of,
)
from lb_mpi.record.events import Phase


class Measured:
    """What a rank did with rows."""

    def __init__(self) -> None:
        self.occupied_s = 0.0  # computing, resting (emulated), and all that goes with it: copying, sending, messages
        self.computing_s = 0.0  # of it, computing and resting
        self.ticks = 0.0
        self.called_s = 0.0  # in the function
        self.handled = 0  # blocks that came straight after another one, without any message
        self.handled_cpu_s = 0.0  # between these and the ones before

    @property
    def handling_s(self) -> float:
        """Seconds that a block takes beside being computed, on this rank as slow as it is; 0: not known.

        By CPU time: a few blocks tell it, even where the rank is stopped now and then.
        """
        return self.handled_cpu_s / max(1, self.handled) * (self.called_s / self.ticks if self.ticks else 0.0)


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of the function's own time: CPU time, and the time in which it waits by itself; see
    `lb_mpi.balancing.estimate`.
    """

    def __init__(self, emulated_speed: float | Varying) -> None:
        self.slow = throttle(emulated_speed, "emulated_speed")
        self.warm = False  # the first call of a function may compile it, and tells nothing about rows
        self.computing_s = 0.0  # of this round, with what the first call took
        self.queued_s = 0.0  # of them, without a core
        self.rows = 0  # computed in this round
        self._measured = Measured()
        self._handled_cpu_s = 0.0  # since the function returned, without rests
        self._handling_since: float | None = None  # CPU time; None: there were messages since the function returned
        self._begins = False  # a block: the next call is its first
        self._clocks = Clocks()

    def begin(self) -> None:
        """Begin a new round, in this thread."""
        self.computing_s, self.queued_s, self.rows = 0.0, 0.0, 0
        self.disturbed()
        self._clocks.begin()

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
        """Call the function; its result, and the ticks it took (NaN: not to be relied upon)."""
        before = self._clocks.before()
        result = function(*arguments)
        after = self._clocks.after()
        self.slow.charge(after.cpu_s - before.cpu_s)
        seconds = after.wall_s - before.wall_s
        self.computing_s += seconds
        self.queued_s += queued_s(before, after)
        measured = self._measured
        if not self.warm:
            self.warm = True
            measured.occupied_s -= seconds
            return result, np.nan
        if self._begins and self._handling_since is not None:
            measured.handled += 1
            measured.handled_cpu_s += self._handled_cpu_s + before.cpu_s - self._handling_since
        ticks = own_s(before, after)
        measured.computing_s += seconds
        measured.called_s += seconds
        measured.ticks += ticks
        self._begins, self._handled_cpu_s, self._handling_since = False, 0.0, after.cpu_s
        return result, ticks

    def occupy(self, seconds: float) -> None:
        """The rank was occupied with rows for so long, with computing and with all else that it takes."""
        self._measured.occupied_s += seconds

    def block(self, rows: int) -> None:
        """A block of rows is about to be computed."""
        self.rows += rows
        self._begins = True

    def disturbed(self) -> None:
        """The rank has done something else than one block after the other."""
        self._handling_since = None

    @property
    def handling_s(self) -> float:
        """Seconds that a block took beside being computed, so far; 0: not known."""
        return self._measured.handling_s

    def tell(self) -> Measured:
        """What was measured since this was asked the last time."""
        measured, self._measured = self._measured, Measured()
        return measured

    def rests(self, *, begins: bool) -> None:
        """Note that a rest of an emulated slow rank begins, or has ended: it is no handling of blocks."""
        if self._handling_since is None:
            return
        if begins:
            self._handled_cpu_s += time.thread_time() - self._handling_since
        else:
            self._handling_since = time.thread_time()

    def rested(self, seconds: float) -> None:
        """The rank has rested for so long, in which it has looked at its messages: all that is emulated computing."""
        measured = self._measured
        measured.occupied_s += seconds
        measured.computing_s += seconds
        self.computing_s += seconds

    def end(self) -> None:
        """End the round."""
        self._clocks.end()


_NUMBER = struct.Struct("<q")
_AT = HEADER_BYTES - _NUMBER.size  # in the header of a parcel, behind what it says of its rows


class Wire:
    """Parcels on `comm` (not the user's: a duplicate), from round to round.

    A rank that has heard that a round is over may be in the next one before another has heard it.  So a parcel bears the
    number of its round: what comes too early is kept, and what comes too late, which means nothing then, is dropped.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._parcels = Parcels(comm, Tag.LENDING)
        self._number = 0
        self._early: list[tuple[int, Buffer]] = []
        self._sent_before = 0

    def begin(self) -> None:
        """Begin the next round."""
        self._number += 1
        self._sent_before = self._parcels.sent_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent in this round."""
        return self._parcels.sent_bytes - self._sent_before

    def send(self, rank: int, buffer: Buffer) -> None:
        """Start to send in this round; returns at once."""
        _NUMBER.pack_into(buffer.data, _AT, self._number)
        self._parcels.send(rank, Tag.LENDING, buffer)

    def take(self) -> list[tuple[int, Buffer]]:
        """Return what has arrived for this round, as (source, parcel), those of one source in their order."""
        arrived = self._early + [(source, buffer) for source, _, buffer in self._parcels.take()]
        self._early = []
        if not arrived:
            return arrived
        mine = []
        for source, buffer in arrived:
            (number,) = _NUMBER.unpack_from(buffer.data, _AT)
            if number == self._number:
                mine.append((source, buffer))
            elif number > self._number:
                self._early.append((source, buffer))
        return mine

    def drain(self) -> None:
        """Collective, between rounds: receive and drop what is still under way."""
        self._parcels.drain()


VERDICT_S = 1.0  # who has left the block has had the verdict: it is on its way, and only if it doesn't come that matters


class Lending(Part):
    """Carries `round` of `rank` on `wire`; `rows` is None when they are no good, `failed` says why.

    `loans` is told of phases, and of what is lent.  `tell` sends what the round has taught this rank to the root, once;
    `heard` says whether the root has answered.
    """

    def __init__(
        self,
        wire: Wire,
        rank: int,
        round: Round,
        function: Callable[..., Any],
        rows: Rows | None,
        stopwatch: Stopwatch,
        loans: Loans,
        failed: Failed | None = None,
        *,
        tell: Callable[[Learned], object],
        heard: Callable[[], bool],
    ) -> None:
        self._round, self._function, self._rows, self._watch = round, function, rows, stopwatch
        self._wire, self._rank = wire, rank
        self.results = Results(rows) if rows is not None else None
        self._loans, self._tell, self._heard = loans, tell, heard
        self._answer: list[Send] = []  # of the last job: a slow rank would not have it before it has rested
        self._learned: list[Message] = []  # to be told behind it
        self.failed = failed
        self.spent_s = 0.0  # for packing, sending, and putting together

    @property
    def learned(self) -> Learned:
        """What the round has told this rank."""
        return self._round.learned

    @property
    def bytes_moved(self) -> int:
        """Bytes that this rank has sent."""
        return self._wire.sent_bytes

    @property
    def over(self) -> bool:
        """The round has come to its end, as it does on all ranks, whatever the user's functions do."""
        return self._round.over

    def turn(self, now: float) -> bool:
        """Take in what has arrived, send what is to be sent; report, once, and see whether the root has answered."""
        round = self._round
        arrived = [self._open(*parcel) for parcel in self._wire.take()]
        sends = round.turn(now, arrived)
        self._learned += [message for _, message in sends if message.kind is Kind.LEARNED]
        sends = [send for send in sends if send[1].kind is not Kind.LEARNED]
        self._post(sends)
        active = bool(arrived or sends)
        if active:
            self._watch.disturbed()
            self.spent_s += time.perf_counter() - now
        if self._learned and not self._answer:
            self._tell(self._learned.pop().payload)
        if round.told and not self._learned and self._heard():
            round.turn(now, [(ROOT, Message(Kind.OVER))])
        return active

    def work(self, interrupts: Interrupts) -> bool:
        """Send what the last job has led to, and compute the next one."""
        if self._answer:
            self._post(self._answer)
            self._answer = []
        job = self._round.job
        if job is not None:
            self._answer = self._compute(job, interrupts)
        return job is not None

    def look(self, presence: Presence, waited_s: float) -> None:
        """See `Part`; once this rank has reported, the root's answer may be on its way although another rank has left."""
        super().look(presence, waited_s - VERDICT_S * self._round.told)

    def interrupted(self, interrupts: Interrupts, waited_s: float) -> None:
        """Ctrl-C fails the round; a rank that has reported waits a while for the root's answer, and raises it then."""
        if self._round.told:
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
            self._watch.occupy(seconds)
        else:
            self._watch.disturbed()

    def rests(self, *, begins: bool) -> None:
        """See `Part`."""
        self._watch.rests(begins=begins)

    def _open(self, source: int, buffer: Buffer) -> Arrival:
        """Read a parcel; results that it brings are put where they belong."""
        about = head(buffer)
        message = Message(Kind(about.kind), slice(0, about.n), about.ticks, buffer)
        loan = self._round.away.get(source)
        if loan is not None and message.kind is Kind.DONE:
            self._loans.back(source, time.perf_counter(), buffer.nbytes)
        if message.kind is Kind.DONE and loan is not None and self._rows is not None and self.results is not None:
            try:
                self.results.receive(self._rows.of_units(loan.rows), buffer)
            except BaseException as caught:  # of the user's unpack
                self._post(self._fail(caught, f"unpacking results of rank {source}"))
        return source, message

    def _post(self, sends: Iterable[Send]) -> None:
        if not sends:
            return
        waiting = deque(sends)
        while waiting:
            rank, message = waiting.popleft()
            try:
                buffer = self._pack(message)
            except BaseException as caught:  # of the user's pack
                waiting.extend(self._fail(caught, f"packing rows for rank {rank}", rank))
            else:
                self._wire.send(rank, buffer)
                if message.rows is not None and self._rows is not None:
                    n = count(self._rows.of_units(message.rows))
                    self._loans.lent(rank, time.perf_counter(), n, buffer.nbytes)

    def _pack(self, message: Message) -> Buffer:
        if message.kind is Kind.DONE:
            buffer: Buffer = message.payload
            return buffer
        if message.rows is None or self._rows is None or not len(numbers(message.rows)):
            return empty_parcel(message.kind)
        return self._rows.parcel(self._rows.of_units(message.rows), kind=message.kind)

    def _compute(self, job: Job, interrupts: Interrupts) -> list[Send]:
        """Compute a job; what is to be sent then."""
        foreign = job.owner != self._rank
        try:
            return self._compute_foreign(job, interrupts) if foreign else self._compute_home(job, interrupts)
        except BaseException as caught:
            n = len(numbers(job.rows))
            if foreign:
                return self._fail(caught, f"{n} rows lent by rank {job.owner}")
            assert self._rows is not None
            places = numbers(self._rows.of_units(job.rows))
            return self._fail(caught, f"its rows {places[0]}..{places[-1]}")

    def _compute_foreign(self, job: Job, interrupts: Interrupts) -> list[Send]:
        if self._rows is None or head(job.payload).mark != self._rows.spec.mark:
            return self._round.fail()  # the rows differ between ranks, as will be found out
        began = time.perf_counter()
        self._loans.record.enter(Phase.FOREIGN, began)
        block = columns_of(job.payload, self._rows.spec, self._rows.unpack)
        result, ticks = self._call(block, interrupts)
        computed = time.perf_counter()
        self._loans.record.enter(Phase.PACKING, computed)
        assert self.results is not None
        assert self.results.spec is not None
        parcel = parcel_of(result, self.results.spec, self._rows.pack, ticks)
        sends = self._round.done(job, Computed((computed - began) / self._watch.slow.speed, ticks, parcel))
        self.spent_s += time.perf_counter() - computed
        return sends

    def _compute_home(self, job: Job, interrupts: Interrupts) -> list[Send]:
        assert self._rows is not None
        assert self.results is not None
        began = time.perf_counter()
        self._loans.record.enter(Phase.PACKING, began)
        index = self._rows.of_units(job.rows)
        block = self._rows.block(index)
        copied = time.perf_counter()
        self._loans.record.enter(Phase.OWN, copied)
        result, ticks = self._call(block, interrupts)
        computed = time.perf_counter()
        self._loans.record.enter(Phase.PACKING, computed)
        self.results.put(index, result)
        sends = self._round.done(job, Computed((computed - copied) / self._watch.slow.speed, ticks))
        self._round.learned.handling_s = self._round.learned.handling_s or self._watch.handling_s
        self.spent_s += copied - began + time.perf_counter() - computed
        return sends

    def _call(self, block: tuple[Any, ...], interrupts: Interrupts) -> tuple[tuple[Any, ...], float]:
        """Call the user's function; its result as columns, and the ticks it took."""
        assert self._rows is not None
        assert self.results is not None
        spec, results, total = self._rows.spec, [], 0.0
        self._watch.block(len(block[0]))
        for part in in_blocks(block, spec.block_rows):
            with interrupts.allowed():
                result, ticks = self._watch.call(self._function, (in_form(spec, part), *part[spec.n_home :]))
            results.append(self.results.check(result, len(part[0])))
            total += ticks
        assert self.results.spec is not None
        return results[0] if len(results) == 1 else tuple(concatenate(self.results.spec, results)), total

    def _fail(self, error: BaseException, what: str, *unsent: int) -> list[Send]:
        if self.failed is None:
            self.failed = of_rows(error, self._rank, what)
        return self._round.fail(error) + [send for borrower in unsent for send in self._round.take_back(borrower)]
