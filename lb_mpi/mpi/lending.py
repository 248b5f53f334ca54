"""One round of lending: rows go out, are computed together with everybody's own, and come home as results.

Order of work on a rank: what others wait for comes first.  It sends the rows that it lends by plan, computes its own in
blocks, and between two blocks takes in what has arrived; foreign rows that are here are computed before the rest of its own,
and their results leave at once.  Whoever has nothing left to begin with says so to the neighbours, which lend it some of
what they still have (the law is that of `lb_mpi.balancing.loans`), and sleeps until a message arrives.

A rank whose function has raised, or whose rows are no good, stays in the round: it lends nothing (an empty parcel) and
answers parcels with an empty one, so nobody waits for it; the error is told afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.loans import Kind, Loans, share
from lb_mpi.graph import Floats, Ints
from lb_mpi.mpi.blame import blame
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
from lb_mpi.mpi.stopwatch import Stopwatch
from lb_mpi.mpi.waiting import Nap

_ROWS, _RESULTS = 1, 2  # tags
LONGEST_NAP_S = 0.5e-3
USUAL_BLOCK_S = 5e-3  # of seconds, where nothing is known yet


class Timed(NamedTuple):
    """Rows at home that were computed together."""

    rows: Rowset
    by: int  # rank
    ticks: float  # seconds of that rank's clock of work


class Lending:
    """One round, on one rank of `comm` (not the user's: a duplicate).

    `rows` is None when they are no good; `error` says why.  `away` are the rows that are lent by plan, by borrower,
    `sources` the ranks that lend to this one by plan; `home` are the other rows, in blocks; `neighbours` those that may be
    helped or help at the end, `speeds` (P,) of all ranks, in any unit.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        function: Callable[..., Any],
        rows: Rows | None,
        *,
        away: Mapping[int, Ints],
        sources: Sequence[int],
        home: Sequence[Rowset],
        neighbours: Sequence[int],
        speeds: Floats,
        stopwatch: Stopwatch,
        error: Exception | None = None,
    ) -> None:
        self._comm, self._function, self._rows, self._watch = comm, function, rows, stopwatch
        self._neighbours, self._speeds = neighbours, speeds
        self._planned = {} if rows is None else away
        self._borrowers = list(away)
        self._loans = Loans(neighbours, sources, self._planned)
        self._home = list(reversed(home))
        self._home_s, self._n_home = 0.0, 0  # seconds for blocks at home, and how many
        self._results = Results(rows) if rows is not None else None
        self._parcels: list[tuple[int, Buffer]] = []  # foreign rows to compute
        self._incoming: list[tuple[int, int, Buffer, MPI.Request]] = []  # with rank and tag
        self._sends: list[tuple[MPI.Request, Buffer]] = []
        self._status = MPI.Status()
        self.error = error
        self.timed: list[Timed] = []
        self.helped: list[Timed] = []  # those of `timed` that were lent to who was dry
        self.help_ticks = 0.0  # for rows that were borrowed beyond the plan
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
        watch, nap, loans = self._watch, Nap(LONGEST_NAP_S), self._loans
        began = time.perf_counter()
        for borrower in self._borrowers:
            parcel = self._parcel(self._planned.get(borrower), Kind.PLANNED)
            if borrower in loans.away and head(parcel).n == 0:
                loans.back(borrower)
            self._send(borrower, parcel, _ROWS)
        self.spent_s += time.perf_counter() - began
        while True:
            began = time.perf_counter()
            if self._serve():
                nap.reset()
                self.spent_s += time.perf_counter() - began
            if self.error is not None:
                self._home.clear()
            if not (self._home or self._parcels or loans.dry):
                self._say_dry()
            if watch.rest():
                continue
            if self._parcels:
                self._compute_foreign(*self._parcels.pop(0))
            elif self._home:
                self._compute_home(self._home.pop())
            elif not loans.over or self._incoming or self._sends:
                nap.take()
            else:
                return

    def _parcel(self, index: Ints | None, kind: Kind) -> Buffer:
        """Rows to lend; without any when there are none, or the user's pack fails."""
        if self._rows is not None and self.error is None and index is not None and len(index):
            try:
                parcel = self._rows.parcel(index, kind=kind)
            except Exception as caught:
                self._fail(caught, "packing rows")
            else:
                self.rows_lent += len(index)
                return parcel
        return empty_parcel(kind)

    def _send(self, rank: int, buffer: Buffer, tag: int) -> None:
        self._sends.append((self._comm.Isend([buffer, MPI.BYTE], rank, tag), buffer))
        self.bytes_moved += buffer.nbytes

    def _serve(self) -> bool:
        """Take in what has arrived, and help."""
        moved = False
        loans = self._loans
        for ranks, tag in ((loans.planned | loans.giving, _ROWS), (set(loans.away), _RESULTS)):
            for rank in sorted(ranks - {rank for rank, its_tag, *_ in self._incoming if its_tag == tag}):
                message = self._comm.Improbe(rank, tag, self._status)
                if message is not None:
                    buffer = np.empty(self._status.Get_count(MPI.BYTE), dtype=np.uint8)
                    self._incoming.append((rank, tag, buffer, message.Irecv([buffer, MPI.BYTE])))
        for arrival in [arrival for arrival in self._incoming if arrival[3].Test()]:
            self._incoming.remove(arrival)
            self._take(arrival[0], arrival[2])
            moved = True
        if self._sends:
            self._sends = [(request, buffer) for request, buffer in self._sends if not request.Test()]
        if self._home and self.error is None:
            for rank in loans.helpers():
                moved |= self._help(rank)
        return moved

    def _take(self, rank: int, buffer: Buffer) -> None:
        about = head(buffer)
        kind = Kind(about.kind)
        if kind not in (Kind.DONE, Kind.FAILED):
            self._loans.heard(rank, kind)
            if about.n:
                self._parcels.append((rank, buffer))
            return
        index = self._loans.back(rank)
        if kind == Kind.FAILED or self._rows is None or self._results is None:
            return
        try:
            block = columns_of(buffer, self._rows.spec, self._rows.unpack, home=True)
        except Exception as caught:  # the user's unpack
            self._fail(caught, f"unpacking results of rank {rank}")
            return
        self._results.put(index, block)
        if not np.isnan(about.ticks):
            self.timed.append(Timed(index, rank, about.ticks))
            if index is not self._planned.get(rank):
                self.helped.append(self.timed[-1])

    def _say_dry(self) -> None:
        self._loans.dry = True
        for rank in self._neighbours:
            self._send(rank, empty_parcel(Kind.DRY), _ROWS)

    def _help(self, rank: int) -> bool:
        """Lend some blocks of the rows at home, the last ones, to a neighbour that is dry."""
        assert self._rows is not None
        block_s = self._home_s / self._n_home if self._n_home else USUAL_BLOCK_S
        faster = float(self._speeds[rank] / self._speeds[self._comm.rank])
        n = share(len(self._home), block_s / self._watch.slow.speed, faster)
        if not n:
            return False
        given, self._home = self._home[:n], self._home[n:]
        everything = np.arange(self._rows.n)
        index = np.concatenate([everything[block] for block in given])
        parcel = self._parcel(index, Kind.HELP)
        if self.error is None:
            self._loans.lend(rank, index)
            self._send(rank, parcel, _ROWS)
        return True

    def _compute_foreign(self, lender: int, buffer: Buffer) -> None:
        answer = empty_parcel(Kind.FAILED)
        if self.error is None and self._rows is not None and head(buffer).ticks == self._rows.spec.mark:
            spec = self._rows.spec
            try:
                block = columns_of(buffer, spec, self._rows.unpack)
                result, ticks = self._call(block, spec)
                began = time.perf_counter()
                answer = parcel_of(result, spec, self._rows.pack, kind=Kind.DONE, ticks=ticks)
                self.spent_s += time.perf_counter() - began
                if head(buffer).kind == Kind.HELP and not np.isnan(ticks):
                    self.help_ticks += ticks
            except Exception as caught:
                self._fail(caught, f"{head(buffer).n} rows lent by rank {lender}")
        self._send(lender, answer, _RESULTS)

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
        self._home_s += computed - copied
        self._n_home += 1
        self.spent_s += copied - began + time.perf_counter() - computed

    def _call(self, block: tuple[Any, ...], spec: Spec) -> tuple[tuple[Any, ...], float]:
        n_home = spec.n_home
        result, ticks = self._watch.call(self._function, (in_form(spec, block), *block[n_home:]))
        return check_result(result, block, spec), ticks

    def _fail(self, error: Exception, what: str) -> None:
        self.error = blame(error, self._comm.rank, what)
