"""Verdicts and plans without a root: exchanges between neighbours, and reductions of a few numbers.

The rules are in `lb_mpi.balancing.neighbours`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.judge import Levels, RankReport, Verdict
from lb_mpi.balancing.neighbours import Ask, Fetch, LoadExchange, NeighbourJudge, Post, Reduction, Request
from lb_mpi.balancing.transfers import Plan
from lb_mpi.graph import Floats
from lb_mpi.mpi.common.presence import Tag, presence_of
from lb_mpi.mpi.rows.process_graph import exchange_rows

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
    """The verdicts and plans of `judge`, whose neighbours have these ranks in `comm`, a duplicate of the user's.

    The methods are those of `lb_mpi.mpi.rows.root.Root`, and collective.
    """

    judging_s = 0.0  # hardly any

    def __init__(self, comm: MPI.Intracomm, judge: NeighbourJudge, neighbours: list[int]) -> None:
        self._presence, self.judge, self._neighbours = presence_of(comm), judge, neighbours

    def tell(self, report: RankReport) -> None:
        """Start the reduction with this rank's report."""
        self._reducing = _Reducing(self._presence.comm, self.judge.report(report))

    def heard(self) -> bool:
        """True when the answer has arrived."""
        return self._reducing.done()

    def verdict(self) -> Verdict:
        """Return the verdict, after `heard`: the same decision on all ranks."""
        return self.judge.hear(self._reducing.answer)

    def plan(self, moving: float | None = None) -> tuple[Plan, int]:
        """Return the transfers from and to this rank, and the number of steps; see `NeighbourJudge.plan`."""
        return self._drive(self.judge.plan(moving))

    def levels(self, load: float) -> Levels:
        """Return the levels of the loads of all ranks, with the same bits everywhere; NaN: they have no finite sum."""
        return self._drive(self.judge.levels(load))

    def changed(self, plan: Plan | None, seconds: float | None = None) -> None:
        """Record that the next round follows `plan` (None: all rows at home), which took `seconds` (None: not known)."""
        self.judge.changed(lending=plan is not None, seconds=seconds)  # the same on all ranks: this one may lend nothing

    def _drive(self, making: Generator[Request, Any, T]) -> T:
        comm, wait, near = self._presence.comm, self._presence.wait, self._neighbours
        asked, posted = deque[_Reducing](), list[tuple[MPI.Request, Floats]]()
        reply: Any = None
        while True:
            try:
                request = making.send(reply)
            except StopIteration as ended:
                made: T = ended.value
                wait(lambda: MPI.Request.Testall([request for request, _ in posted]), posted)
                return made
            reply = None
            if isinstance(request, LoadExchange):
                reply = exchange_rows(self._presence, near, request.numbers)
            elif isinstance(request, Ask):
                asked.append(_Reducing(comm, request.numbers))
            elif isinstance(request, Post):
                table = np.ascontiguousarray(request.table)
                posted.append((comm.Isend(table, near[request.neighbour], int(Tag.NEIGHBOUR)), table))
            elif isinstance(request, Fetch):
                reply = self._fetch(near[request.neighbour]).reshape(-1, request.columns)
            else:
                wait(asked[0].done, asked)
                reply = asked.popleft().answer

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
