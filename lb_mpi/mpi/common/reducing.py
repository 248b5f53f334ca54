"""Reductions of a few numbers over all ranks, beside other messages on the same communicator."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.mpi.common.tags import Tag
from lb_mpi.reduction import Reduction

FEW = 8  # ranks that all send their numbers to all


class Reducing:
    """A reduction that is under way.

    Each step of MPI's own waits until both ranks poll, which takes long where ranks share cores: few ranks exchange all
    numbers in one step.
    """

    def __init__(self, comm: MPI.Intracomm, mine: Reduction) -> None:
        self._mine = mine
        self._all: NDArray[np.int64] | None = None
        self._answer = mine
        if comm.size <= FEW:
            numbers = np.concatenate([mine.sums, mine.maxima.view(np.int64)])
            self._all = np.empty((comm.size, len(numbers)), dtype=np.int64)
            self._all[comm.rank] = numbers
            self._requests = list[MPI.Request]()
            for rank in range(comm.size):
                if rank != comm.rank:
                    self._requests.append(comm.Irecv(self._all[rank], rank, int(Tag.REDUCTION)))
                    self._requests.append(comm.Isend(numbers, rank, int(Tag.REDUCTION)))
            return
        self._answer = Reduction(np.empty_like(mine.sums), np.empty_like(mine.maxima))
        pairs = zip(mine, self._answer, (MPI.SUM, MPI.MAX), strict=True)
        self._requests = [comm.Iallreduce(own, whole, of) for own, whole, of in pairs if len(own)]

    def done(self) -> bool:
        """True when the answer is there."""
        return MPI.Request.Testall(self._requests)

    @property
    def answer(self) -> Reduction:
        """The answer, once `done`."""
        if self._all is None:
            return self._answer
        n = len(self._mine.sums)
        return Reduction(np.add.reduce(self._all[:, :n]), np.maximum.reduce(self._all[:, n:].view(np.float64)))
