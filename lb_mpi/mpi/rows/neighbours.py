"""Carries the judges of all ranks on MPI: exchanges between neighbours, and reductions of a few numbers.

The rules are in `lb_mpi.balancing.neighbours`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.judge import RankReport, Verdict
from lb_mpi.balancing.migrate import Plan
from lb_mpi.balancing.neighbours import Ask, Fetch, LoadExchange, NeighbourJudge, Post, Reduction, Request
from lb_mpi.graph import Floats
from lb_mpi.mpi.common.presence import Tag, presence_of

T = TypeVar("T")


class _Reducing:
    """A reduction that is under way."""

    def __init__(self, comm: MPI.Intracomm, mine: Reduction) -> None:
        self.answer = Reduction(np.empty_like(mine.sums), np.empty_like(mine.maxima))
        self._keep = mine
        pairs = zip(mine, self.answer, (MPI.SUM, MPI.MAX), strict=True)
        self._requests = [comm.Iallreduce(own, whole, of) for own, whole, of in pairs if len(own)]

    def done(self) -> bool:
        """True when the answer is there."""
        return MPI.Request.Testall(self._requests)


class Neighbours:
    """Makes plans with the neighbours of this rank; `neighbours`: their ranks in `comm`, a duplicate of the user's."""

    def __init__(self, comm: MPI.Intracomm, judge: NeighbourJudge, neighbours: list[int]) -> None:
        self._presence, self._judge, self._neighbours = presence_of(comm), judge, neighbours

    def plan(self, moving: float | None = None) -> tuple[Plan, int]:
        """Collective: the transfers from and to this rank, and the number of steps; see `NeighbourJudge.plan`."""
        return self._drive(self._judge.plan(moving))

    def levels(self, load: float) -> tuple[float, float, float]:
        """Collective: imbalance, seconds of the slowest rank, balanced seconds; NaN unless the loads have a finite sum."""
        return self._drive(self._judge.levels(load))

    def _drive(self, making: Generator[Request, Any, T]) -> T:
        comm, wait = self._presence.comm, self._presence.wait
        asked, posted = deque[_Reducing](), list[tuple[MPI.Request, Floats]]()
        reply: Any = None
        with self._presence.telling():
            while True:
                try:
                    request = making.send(reply)
                except StopIteration as ended:
                    made: T = ended.value
                    wait(lambda: MPI.Request.Testall([request for request, _ in posted]), posted)
                    return made
                reply = None
                if isinstance(request, LoadExchange):
                    reply = self._exchange(request.numbers)
                elif isinstance(request, Ask):
                    asked.append(_Reducing(comm, request.numbers))
                elif isinstance(request, Post):
                    table, rank = np.ascontiguousarray(request.table), self._neighbours[request.neighbour]
                    posted.append((comm.Isend(table, rank, int(Tag.NEIGHBOUR)), table))
                elif isinstance(request, Fetch):
                    reply = self._fetch(self._neighbours[request.neighbour]).reshape(-1, request.columns)
                else:
                    wait(asked[0].done, asked)
                    reply = asked.popleft().answer

    def _exchange(self, numbers: Floats) -> Floats:
        """Send (n,) numbers, or a row of (deg, n), to each neighbour, and receive as many from each (Jin and Wang)."""
        comm, wait, tag = self._presence.comm, self._presence.wait, int(Tag.NEIGHBOUR)
        numbers = np.array(np.broadcast_to(numbers, (len(self._neighbours), numbers.shape[-1])), order="C")
        theirs = np.empty_like(numbers)
        sends = [comm.Isend(numbers[k], rank, tag) for k, rank in enumerate(self._neighbours)]
        for k, rank in enumerate(self._neighbours):
            wait(comm.Irecv(theirs[k], rank, tag).Test, (theirs, numbers, sends))
        wait(lambda: MPI.Request.Testall(sends), (numbers, sends))
        return theirs

    def _fetch(self, rank: int) -> Floats:
        """Receive the next message from a neighbour, of any length."""
        comm, status, found = self._presence.comm, MPI.Status(), list[MPI.Message]()

        def arrived() -> bool:
            message = comm.Improbe(rank, int(Tag.NEIGHBOUR), status)
            found.extend([message] if message is not None else [])
            return bool(found)

        self._presence.wait(arrived, found)
        table = np.empty(status.Get_count(MPI.DOUBLE))
        self._presence.wait(found[0].Irecv(table).Test, table)
        return table

    def close(self) -> None:
        """Free nothing: the communicator belongs to the caller."""


class Reduced:
    """The reports of one call, as one reduction over all ranks; the same methods as `lending.Hearing`."""

    judging_s = 0.0

    def __init__(self, comm: MPI.Intracomm, judge: NeighbourJudge) -> None:
        self._comm, self._judge = comm, judge

    def tell(self, report: RankReport) -> None:
        """Start the reduction with this rank's report."""
        self._reducing = _Reducing(self._comm, self._judge.report(report))

    def heard(self) -> bool:
        """True when the answer has arrived."""
        return self._reducing.done()

    def verdict(self) -> Verdict:
        """The verdict, after `heard`: the same decision on all ranks."""
        return self._judge.hear(self._reducing.answer)
