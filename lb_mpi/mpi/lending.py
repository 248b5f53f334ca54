"""One round of lending: rows go out, are computed together with everybody's own, and come home as results.

Order of work on a rank: what others wait for comes first.  It sends the rows that it lends, computes its own in blocks, and
between two blocks takes in what has arrived; foreign rows that are here are computed before the rest of its own, and their
results leave at once.  Whoever has nothing left to compute sleeps until a message arrives.

A rank whose function has raised, or whose rows are no good, stays in the round: it lends nothing (an empty parcel) and
answers parcels with an empty one, so nobody waits for it; the error is told afterwards.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.emulate import throttle
from lb_mpi.graph import Ints
from lb_mpi.mpi.rows import (
    Buffer,
    Results,
    Rows,
    Rowset,
    Spec,
    check_result,
    columns_of,
    empty_parcel,
    head,
    in_form,
    parcel_of,
)
from lb_mpi.mpi.wait import Nap

LEND, DONE, FAILED = range(3)  # kinds of parcels
_TAGS = (1, 2)  # of rows, of results
LONGEST_NAP_S = 0.5e-3
ASLEEP = 0.2  # a function that uses less CPU time than this part of its time is waiting for something,
MOSTLY = 0.75  # in most of its last calls: on a busy machine it may look so in some


class Timed(NamedTuple):
    """Rows at home that were computed together."""

    rows: Rowset
    by: int  # rank
    ticks: float  # seconds of that rank's clock of work


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of CPU time: the operating system giving the processor to others is no property of the rows.  Where
    the function hardly uses the CPU (it sleeps, or a GPU computes), they are seconds of wall-clock time from then on.
    """

    def __init__(self, speed: float) -> None:
        self.slow = throttle(speed)
        self.by_cpu = True
        self.warm = False  # the first call of a function may compile it, and tells nothing about rows
        self.busy_s = self.ticks = 0.0
        self._asleep: deque[bool] = deque(maxlen=16)  # for each of the last calls

    def begin(self) -> None:
        """A new round."""
        self.busy_s = self.ticks = 0.0

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
        """The function's result, and the ticks it took (NaN: not to be relied upon)."""
        cpu, wall = time.thread_time(), time.perf_counter()
        result = function(*arguments)
        wall_s, cpu_s = time.perf_counter() - wall, time.thread_time() - cpu
        self.slow.charge(cpu_s)
        if not self.warm:
            self.warm = True
            return result, np.nan
        self._asleep.append(cpu_s < ASLEEP * wall_s)
        ticks = cpu_s if self.by_cpu else wall_s
        self.busy_s += wall_s
        self.ticks += ticks
        return result, ticks

    def rest(self) -> bool:
        """A short part of the rest that an emulated slow rank needs; False when it may compute."""
        seconds = self.slow.due()
        if seconds <= 0.0:
            return False
        began = time.perf_counter()
        time.sleep(seconds)
        self.busy_s += time.perf_counter() - began
        return True

    def end(self) -> bool:
        """The round is over; False when its ticks are worth nothing, since the clock had to be changed."""
        if self.by_cpu and len(self._asleep) >= 4 and sum(self._asleep) >= MOSTLY * len(self._asleep):
            self.by_cpu = False
            return False
        return True


class Lending:
    """One round, on one rank of `comm` (not the user's: a duplicate)."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        function: Callable[..., Any],
        rows: Rows | None,
        *,
        foreign: tuple[Spec | None, Any, Any],
        away: Mapping[int, Ints],
        home: Sequence[Rowset],
        sources: Sequence[int],
        stopwatch: Stopwatch,
        error: Exception | None = None,
    ) -> None:
        self._comm, self._function, self._rows, self._watch = comm, function, rows, stopwatch
        self._spec, self._pack, self._unpack = foreign  # what others' rows look like
        self._away, self._home = away, list(reversed(home))
        self._lenders, self._borrowers = set(sources), set[int]()
        self._results = Results(rows) if rows is not None else None
        self._parcels: list[tuple[int, Buffer]] = []  # foreign rows to compute
        self._incoming: list[tuple[int, Buffer, MPI.Request]] = []
        self._sends: list[tuple[MPI.Request, Buffer]] = []
        self._status = MPI.Status()
        self.error = error
        self.timed: list[Timed] = []
        self.rows_lent = 0
        self.bytes_moved = 0
        self.spent_s = 0.0  # for packing, sending, and putting together

    @property
    def value(self) -> Any:
        """The answer, when there was no error anywhere."""
        assert self._results is not None
        return self._results.value

    def run(self) -> None:
        """The round; comes to its end on all ranks, whatever the user's functions do."""
        watch, nap = self._watch, Nap(LONGEST_NAP_S)
        began = time.perf_counter()
        for borrower, index in self._away.items():
            self._lend(borrower, index)
        self.spent_s += time.perf_counter() - began
        while True:
            began = time.perf_counter()
            if self._serve():
                nap.reset()
                self.spent_s += time.perf_counter() - began
            if watch.rest():
                continue
            if self._parcels:
                self._compute_foreign(*self._parcels.pop())
            elif self._home and self.error is None:
                self._compute_home(self._home.pop())
            elif self._lenders or self._borrowers or self._incoming or self._sends:
                nap.take()
            else:
                return

    def _lend(self, borrower: int, index: Ints) -> None:
        buffer = empty_parcel(LEND)
        if self._rows is not None and self.error is None and len(index):
            try:
                buffer = self._rows.parcel(index, kind=LEND)
            except Exception as caught:  # the user's pack
                self._fail(caught, "packing rows")
            else:
                self._borrowers.add(borrower)
                self.rows_lent += len(index)
        self._send(borrower, buffer, _TAGS[0])

    def _send(self, rank: int, buffer: Buffer, tag: int) -> None:
        self._sends.append((self._comm.Isend([buffer, MPI.BYTE], rank, tag), buffer))
        self.bytes_moved += buffer.nbytes

    def _serve(self) -> bool:
        """Take in what has arrived."""
        moved = False
        for ranks, tag in ((self._lenders, _TAGS[0]), (self._borrowers, _TAGS[1])):
            for rank in sorted(ranks):
                message = self._comm.Improbe(rank, tag, self._status)
                if message is not None:
                    buffer = np.empty(self._status.Get_count(MPI.BYTE), dtype=np.uint8)
                    self._incoming.append((rank, buffer, message.Irecv([buffer, MPI.BYTE])))
                    ranks.remove(rank)
                    moved = True
        for arrival in [arrival for arrival in self._incoming if arrival[2].Test()]:
            self._incoming.remove(arrival)
            self._take(*arrival[:2])
            moved = True
        if self._sends:
            self._sends = [(request, buffer) for request, buffer in self._sends if not request.Test()]
        return moved

    def _take(self, rank: int, buffer: Buffer) -> None:
        about = head(buffer)
        if about.kind == LEND:
            if about.n:
                self._parcels.append((rank, buffer))
        elif about.kind == DONE and self._rows is not None and self._results is not None:
            try:
                block = columns_of(buffer, self._rows.spec, self._rows.unpack, home=True)
            except Exception as caught:  # the user's unpack
                self._fail(caught, f"unpacking results of rank {rank}")
                return
            self._results.put(self._away[rank], block)
            if not np.isnan(about.ticks):
                self.timed.append(Timed(self._away[rank], rank, about.ticks))

    def _compute_foreign(self, lender: int, buffer: Buffer) -> None:
        answer = empty_parcel(FAILED)
        if self.error is None:
            assert self._spec is not None
            try:
                block = columns_of(buffer, self._spec, self._unpack)
                result, ticks = self._call(block, self._spec)
                began = time.perf_counter()
                answer = parcel_of(result, self._spec, self._pack, kind=DONE, ticks=ticks)
                self.spent_s += time.perf_counter() - began
            except Exception as caught:
                self._fail(caught, f"{head(buffer).n} rows lent by rank {lender}")
        self._send(lender, answer, _TAGS[1])

    def _compute_home(self, index: Rowset) -> None:
        assert self._rows is not None
        assert self._results is not None
        began = time.perf_counter()
        block = self._rows.block(index)
        copied = time.perf_counter()
        try:
            result, ticks = self._call(block, self._rows.spec)
        except Exception as caught:
            places = np.arange(self._rows.n)[index]
            self._fail(caught, f"its rows {places[0]}..{places[-1]}")
            return
        computed = time.perf_counter()
        self._results.put(index, result)
        self.timed.append(Timed(index, self._comm.rank, ticks))
        self.spent_s += copied - began + time.perf_counter() - computed

    def _call(self, block: tuple[Any, ...], spec: Spec) -> tuple[tuple[Any, ...], float]:
        n_home = spec.n_home
        result, ticks = self._watch.call(self._function, (in_form(spec, block), *block[n_home:]))
        return check_result(result, block, spec), ticks

    def _fail(self, error: Exception, what: str) -> None:
        self.error = blame(error, self._comm.rank, what)


def blame(error: Exception, rank: int, what: str) -> Exception:
    """The error of a user's function with a note that all ranks can be told: where it was, and with which rows."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"({where.filename}:{where.lineno}, in {where.name})"
    error.add_note(f"rank {rank}, {what}: {type(error).__name__}: {error} {place}")
    return error
