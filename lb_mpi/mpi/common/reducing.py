"""Reductions of a few numbers over all ranks, beside other messages on the same communicator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.graph import Floats, Ints
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.reduction import Reduction

FEW = 8  # ranks that all send their numbers to all


class _Table(NamedTuple):
    """The numbers of few ranks, a row each."""

    rows: list[Ints]
    sums: Ints  # (P, n), a view of the rows, as the maxima
    maxima: Floats


class Reducing:
    """The reductions of the ranks of `comm`, one after the other: each is under way until it is `done`.

    Each step of MPI's own waits until both ranks poll, which takes long where ranks share cores: few ranks exchange all
    numbers in one step.  Their buffers are kept, for the next reduction of as many numbers.
    """

    def __init__(self, comm: MPI.Intracomm, mine: Reduction | None = None) -> None:
        self._comm = comm
        self._tables = dict[tuple[int, int], _Table]()  # of few ranks, by the numbers of sums and maxima
        self._answer: Reduction | _Table = Reduction()
        self._requests = list[MPI.Request]()
        if mine is not None:
            self.begin(mine)

    def begin(self, mine: Reduction) -> None:
        """Begin a reduction of this rank's numbers, as many as on all ranks."""
        comm = self._comm
        if comm.size > FEW:
            self._answer = answer = Reduction(np.empty_like(mine.sums), np.empty_like(mine.maxima))
            pairs = zip(mine, answer, (MPI.SUM, MPI.MAX), strict=True)
            self._requests = [comm.Iallreduce(own, whole, of) for own, whole, of in pairs if len(own)]
            return
        lengths, rank = (len(mine.sums), len(mine.maxima)), comm.rank
        table = self._answer = self._tables.get(lengths) or self._add(*lengths)
        table.sums[rank], table.maxima[rank] = mine
        self._requests.clear()
        for other, row in enumerate(table.rows):
            if other != rank:
                self._requests.append(comm.Irecv(row, other, int(Tag.REDUCTION)))
                self._requests.append(comm.Isend(table.rows[rank], other, int(Tag.REDUCTION)))

    def _add(self, n_sums: int, n_maxima: int) -> _Table:
        numbers = np.empty((self._comm.size, n_sums + n_maxima), dtype=np.int64)
        table = _Table([*numbers], numbers[:, :n_sums], numbers[:, n_sums:].view(np.float64))
        self._tables[n_sums, n_maxima] = table
        return table

    def done(self) -> bool:
        """True when the answer is there."""
        return MPI.Request.Testall(self._requests)

    @property
    def answer(self) -> Reduction:
        """The answer, once `done`."""
        if isinstance(self._answer, Reduction):
            return self._answer
        return Reduction(np.add.reduce(self._answer.sums), np.maximum.reduce(self._answer.maxima))
