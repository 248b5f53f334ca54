"""Reductions of a few numbers over all ranks, beside other messages on the same communicator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.graph import Floats, Ints
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.reduction import Reduction, added, digits, real

FEW = 8  # ranks that all send their numbers to all


class _Table(NamedTuple):
    """The numbers of few ranks, a row each."""

    rows: list[Floats]
    sums: Floats  # (P, n), a view of the rows, as the maxima
    maxima: Floats


class _Totals(NamedTuple):
    """The numbers of many ranks, reduced by MPI."""

    digits: Ints  # (n, N_DIGITS + 1) sums
    maxima: Floats


class Reducing:
    """The reductions of the ranks of `comm`, one after the other: each is under way until it is `done`.

    Each step of MPI's own waits until both ranks poll, which takes long where ranks share cores: few ranks exchange all
    numbers in one step.  Their buffers are kept, for the next reduction of as many numbers.
    """

    def __init__(self, comm: MPI.Intracomm, mine: Reduction | None = None) -> None:
        self._comm = comm
        self._tables = dict[tuple[int, int], _Table]()  # of few ranks, by the numbers of sums and maxima
        self._going: _Table | _Totals
        self._requests = list[MPI.Request]()
        self._own: _Totals | None = None  # of many ranks: MPI reads them meanwhile, and mpi4py doesn't keep them
        if mine is not None:
            self.begin(mine)

    def begin(self, mine: Reduction) -> None:
        """Begin a reduction of this rank's numbers, as many as on all ranks."""
        comm = self._comm
        if comm.size > FEW:
            own = self._own = _Totals(digits(mine.sums), mine.maxima)
            whole = self._going = _Totals(np.empty_like(own.digits), np.empty_like(own.maxima))
            pairs = zip(own, whole, (MPI.SUM, MPI.MAX), strict=True)
            self._requests = [comm.Iallreduce(some, total, of) for some, total, of in pairs if len(some)]
            return
        lengths, rank = (len(mine.sums), len(mine.maxima)), comm.rank
        table = self._going = self._tables.get(lengths) or self._add(*lengths)
        table.sums[rank], table.maxima[rank] = mine
        self._requests.clear()
        for other, row in enumerate(table.rows):
            if other != rank:
                self._requests.append(comm.Irecv(row, other, int(Tag.REDUCTION)))
                self._requests.append(comm.Isend(table.rows[rank], other, int(Tag.REDUCTION)))

    def _add(self, n_sums: int, n_maxima: int) -> _Table:
        numbers = np.empty((self._comm.size, n_sums + n_maxima))
        table = _Table([*numbers], numbers[:, :n_sums], numbers[:, n_sums:])
        self._tables[n_sums, n_maxima] = table
        return table

    def done(self) -> bool:
        """True when the answer is there."""
        return MPI.Request.Testall(self._requests)

    @property
    def answer(self) -> Reduction:
        """The answer, once `done`."""
        found = self._going
        if isinstance(found, _Table):
            return Reduction(added(found.sums.tolist()), np.maximum.reduce(found.maxima))
        return Reduction(real(found.digits), found.maxima)
