"""One round on MPI: index sets become buffers, and jobs calls of the user's function.

What happens when stands in `lb_mpi.balancing.round`; here is only what carries it.  An error of the user's (the function,
pack or unpack, Ctrl-C) fails the round on this rank, which stays in it to its end; the error is told afterwards.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mpi4py import MPI

from lb_mpi.balancing.round import Arrival, Job, Kind, Learned, Message, Round, Send
from lb_mpi.balancing.rowsets import count, numbers
from lb_mpi.mpi.blame import Blame, blame_user
from lb_mpi.mpi.interrupts import Interrupts
from lb_mpi.mpi.parcels import Buffer, Parcels
from lb_mpi.mpi.rows import (
    Results,
    Rows,
    check_result,
    columns_of,
    concatenate,
    empty_parcel,
    head,
    in_blocks,
    in_form,
    parcel_of,
)
from lb_mpi.mpi.stopwatch import Stopwatch
from lb_mpi.mpi.waiting import Nap
from lb_mpi.recording.events import Phase
from lb_mpi.recording.loans import Loans

# Of one round, and of the next: a rank may begin that while another still waits for the verdict, and takes what is late.
TAGS = (1, 2)
LONGEST_NAP_S = 0.5e-3


class Lending:
    """Carries `round` on `comm` (not the user's: a duplicate); `rows` is None when they are no good, `blame` says why.

    `interrupts`: Ctrl-C is held back (see `lb_mpi.mpi.interrupts`).  `loans` hears of phases, and what is lent.
    `number` is that of the round, the same on all ranks.  `meanwhile`, called at each turn with the seconds since something
    has happened, may raise: then the round is left as it is.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        round: Round,
        function: Callable[..., Any],
        rows: Rows | None,
        stopwatch: Stopwatch,
        interrupts: Interrupts,
        loans: Loans,
        blame: Blame | None = None,
        *,
        number: int = 0,
        meanwhile: Callable[[float], object] = lambda waited_s: None,
    ) -> None:
        self._round, self._function, self._rows, self._watch = round, function, rows, stopwatch
        self._comm, self._parcels = comm, Parcels(comm, TAGS[number % 2])
        self._results = Results(rows) if rows is not None else None
        self._interrupts, self._meanwhile, self._loans = interrupts, meanwhile, loans
        self.blame = blame
        self.spent_s = 0.0  # for packing, sending, and putting together

    @property
    def value(self) -> Any:
        """The answer, when there was no error anywhere."""
        assert self._results is not None
        return self._results.value

    @property
    def learned(self) -> Learned:
        """What the round has told this rank."""
        return self._round.learned

    @property
    def bytes_moved(self) -> int:
        """Bytes that this rank has sent."""
        return self._parcels.sent_bytes

    def take_late(self) -> None:
        """Receive, after the end, what means nothing any more: until all ranks' sends are known to be complete."""
        self._parcels.take()

    def run(self) -> None:
        """Carry the round to its end; it comes on all ranks, whatever the user's functions do."""
        round, nap = self._round, Nap(LONGEST_NAP_S)
        all_settled: MPI.Request | None = None
        answer: list[Send] = []  # of the last job: a slow rank would not have it before it has rested
        began, idle = time.perf_counter(), True
        while not round.over or self._parcels.under_way:
            before, began = began, time.perf_counter()
            if not idle:
                self._watch.occupied_s += began - before
            idle = False
            self._loans.record.enter(Phase.PROTOCOL, began)
            arrived = [self._open(*parcel) for parcel in self._parcels.take()]
            sends = round.turn(began, arrived)
            self._post(sends)
            if arrived or sends:
                nap.reset()
                self.spent_s += time.perf_counter() - began
            self._meanwhile(nap.waited_s)
            if self._interrupts.pending:
                self._post(self._interrupted())
            if round.settled and not round.over:
                if all_settled is None:
                    all_settled = self._comm.Ibarrier()
                if all_settled.Test():
                    round.end()
                    continue
            looked = time.perf_counter()
            if self._watch.rest():
                self._loans.record.enter(Phase.RESTING, looked)
                continue
            if answer:
                self._post(answer)
                answer = []
            job = round.job
            if job is not None:
                answer = self._compute(job)
                nap.reset()
            elif not arrived:
                self._loans.record.enter(Phase.WAITING, time.perf_counter())
                nap.take()
                idle = True

    def _open(self, source: int, _tag: int, buffer: Buffer) -> Arrival:
        """Read a parcel; results that it brings are put where they belong."""
        about = head(buffer)
        message = Message(Kind(about.kind), slice(0, about.n), about.ticks, buffer)
        loan = self._round.away.get(source)
        if loan is not None and message.kind is Kind.DONE:
            self._loans.back(source, time.perf_counter(), buffer.nbytes)
        if message.kind is Kind.DONE and loan is not None and self._rows is not None and self._results is not None:
            try:
                block = columns_of(buffer, self._rows.spec, self._rows.unpack, home=True)
                self._results.put(self._rows.of_units(loan.rows), block)
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
                # Nobody answers DRY: that it was received has to be known before the next round.
                self._parcels.send(rank, self._parcels.tag, buffer, synchronous=message.kind is Kind.DRY)
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

    def _compute(self, job: Job) -> list[Send]:
        """Compute a job; what is to be sent then."""
        foreign = job.owner != self._comm.rank
        try:
            return self._compute_foreign(job) if foreign else self._compute_home(job)
        except BaseException as caught:
            n = len(numbers(job.rows))
            if foreign:
                return self._fail(caught, f"{n} rows lent by rank {job.owner}")
            assert self._rows is not None
            places = numbers(self._rows.of_units(job.rows))
            return self._fail(caught, f"its rows {places[0]}..{places[-1]}")

    def _compute_foreign(self, job: Job) -> list[Send]:
        if self._rows is None or head(job.payload).mark != self._rows.spec.mark:
            return self._round.fail()  # the rows differ between ranks, as will be found out
        began = time.perf_counter()
        self._loans.record.enter(Phase.FOREIGN, began)
        block = columns_of(job.payload, self._rows.spec, self._rows.unpack)
        result, ticks = self._call(block)
        computed = time.perf_counter()
        self._loans.record.enter(Phase.PACKING, computed)
        parcel = parcel_of(result, self._rows.spec, self._rows.pack, ticks)
        sends = self._round.done(job, (computed - began) / self._watch.slow.speed, ticks, parcel)
        self.spent_s += time.perf_counter() - computed
        return sends

    def _compute_home(self, job: Job) -> list[Send]:
        assert self._rows is not None
        assert self._results is not None
        began = time.perf_counter()
        self._loans.record.enter(Phase.PACKING, began)
        index = self._rows.of_units(job.rows)
        block = self._rows.block(index)
        copied = time.perf_counter()
        self._loans.record.enter(Phase.OWN, copied)
        result, ticks = self._call(block)
        computed = time.perf_counter()
        self._loans.record.enter(Phase.PACKING, computed)
        self._results.put(index, result)
        sends = self._round.done(job, (computed - copied) / self._watch.slow.speed, ticks)
        self.spent_s += copied - began + time.perf_counter() - computed
        return sends

    def _call(self, block: tuple[Any, ...]) -> tuple[tuple[Any, ...], float]:
        """Call the user's function; its result as columns, and the ticks it took."""
        assert self._rows is not None
        spec, results, total = self._rows.spec, [], 0.0
        self._watch.rows += len(block[0])
        self._watch.blocks += 1
        for part in in_blocks(block, spec.block_rows):
            with self._interrupts.allowed():
                result, ticks = self._watch.call(self._function, (in_form(spec, part), *part[spec.n_home :]))
            results.append(check_result(result, part, spec))
            total += ticks
        return results[0] if len(results) == 1 else tuple(concatenate(spec, results)), total

    def _interrupted(self) -> list[Send]:
        try:
            self._interrupts.check()
        except KeyboardInterrupt as caught:
            return self._fail(caught, "between rows")
        return []

    def _fail(self, error: BaseException, what: str, *unsent: int) -> list[Send]:
        if self.blame is None:
            self.blame = blame_user(error, self._comm.rank, what)
        return self._round.fail(*unsent)
