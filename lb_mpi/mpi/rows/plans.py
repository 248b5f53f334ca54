"""Decisions and plans: by the root for all ranks (`Root`), or by all ranks with their neighbours (`Neighbours`).

Both have the same methods, which are collective.  In each call of `map_rows`, `report` starts the exchange of the reports of
all ranks, and `decided` is polled until it returns the decision.  The rules are in `lb_mpi.balancing.deciding` and
`lb_mpi.balancing.neighbours`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.deciding import (
    REPORT,
    Decided,
    Levels,
    RankReport,
    RootDecider,
    RoundProblem,
    Trigger,
    decision_dtype,
    decision_of,
)
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.neighbours import ALL, NEAR, NeighbourDecider, Planning
from lb_mpi.balancing.transfers import ROWS, Plan, plan_of
from lb_mpi.emulate import throttle
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import imbalance, lower_bound
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.collective import agree, raise_on_all
from lb_mpi.mpi.common.communicator import QUICK_S, Presence, presence_of, wait
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import interrupts
from lb_mpi.record.record import OFF

T = TypeVar("T")


class Root:
    """Rank 0 decides on each call from the reports of all ranks, and solves for the flow; vertex k of `graph` is rank k.

    `knowledge` is that of this rank in `comm`, a duplicate of the user's.
    """

    def __init__(self, comm: MPI.Intracomm, knowledge: Knowledge, trigger: Trigger, graph: Graph) -> None:
        self._comm, self._knowledge = comm, knowledge
        self.decider = RootDecider(graph, trigger) if comm.rank == 0 else None
        self._gathered = self._spread = MPI.REQUEST_NULL
        self._made: tuple[Plan | None, Exception | None, float] = None, None, 0.0  # by the root: plan, error, seconds

    def report(self, report: RankReport) -> None:
        """Send this rank's report to the root; other ranks also begin to receive the root's decision."""
        comm, decider = self._comm, self.decider
        self._mine = np.array([report.fields()], dtype=REPORT)
        self._reports = np.empty(0 if decider is None else comm.size, dtype=REPORT)
        self._answer = np.zeros(1, dtype=decision_dtype(comm.size))  # a new one: ranks keep what they were sent
        self._made = None, None, 0.0
        self._gathered = comm.Igather(self._mine.view(np.uint8), self._reports.view(np.uint8), 0)
        if decider is None:
            self._spread = comm.Ibcast(self._answer.view(np.uint8), 0)

    def decided(self) -> tuple[Decided, float] | None:
        """Return the decision, with the plan if any, and this rank's seconds to find it; None: it has not arrived yet.

        The root makes the decision once it has all reports.  An error of the root's is raised on all ranks.
        """
        if not self._gathered.Test():
            return None
        if self.decider is not None and not self._spread:
            self._decide(self.decider)
        if not self._spread.Test():
            return None
        self._spread = MPI.REQUEST_NULL
        (plan, error, seconds), decided = self._made, decision_of(self._answer)
        if decided.problem is RoundProblem.DECIDER:
            raise_on_all(self._comm, error)
        n_transfers = int(self._answer["n_transfers"][0])
        return decided if n_transfers < 0 else decided._replace(plan=self._send(plan, n_transfers)), seconds

    def _decide(self, decider: RootDecider) -> None:
        began, plan, error = time.perf_counter(), None, None
        try:
            decided = decider.decide(self._reports)
            self._answer, plan = decided.record(), decided.plan
        except Exception as caught:  # the other ranks wait for a decision
            error = caught
            self._answer["problem"] = RoundProblem.DECIDER
        self._made = plan, error, time.perf_counter() - began
        self._spread = self._comm.Ibcast(self._answer.view(np.uint8), 0)

    def plan(self, moving: float) -> tuple[Plan, int]:
        """Return a plan that levels all ranks, and the number of steps, 1.

        `moving`: this rank's work, in any unit, of rows that change their owner.  A plan to lend comes with a decision.
        """
        comm, decider, loads = self._comm, self.decider, self._gather(moving)
        made = agree(comm, lambda: None if decider is None else decider.plan(loads, self._knowledge.speeds))
        n = np.array([0 if made is None else len(made.amounts)])
        wait(comm, comm.Ibcast(n, 0), n)
        return self._send(made, int(n[0])), 1

    def levels(self, load: float) -> Levels:
        """Return the levels of the loads of all ranks, with the same bits everywhere; NaN: they have no finite sum."""
        found, loads = np.full(len(Levels._fields), np.nan), self._gather(load)
        with np.errstate(over="ignore"):
            finite = np.isfinite(loads.sum())
        if self._comm.rank == 0 and finite:
            speeds = self._knowledge.speeds
            found[:] = imbalance(loads, speeds), (loads / speeds).max(), np.nan, lower_bound(loads, speeds)
        wait(self._comm, self._comm.Ibcast(found, 0), found)
        return Levels(*found.tolist())

    def hold(self, *, late: bool) -> None:
        """Record a quick call, which took too long (`late`) or not."""
        if self.decider is not None:
            self.decider.policy.hold(late=late)

    def changed(self, plan: Plan | None, seconds: float | None = None) -> None:
        """Record that the next round follows `plan` (None: all rows at home), which took `seconds` (None: not known)."""
        if self.decider is not None:
            self.decider.policy.changed(lending=plan is not None and len(plan.amounts) > 0, seconds=seconds)

    def _send(self, made: Plan | None, n_transfers: int) -> Plan:
        """Send the root's plan of `n_transfers` transfers to all ranks."""
        table = np.empty((ROWS, n_transfers)) if made is None else made.table()
        wait(self._comm, self._comm.Ibcast(table, 0), table)
        return plan_of(table)

    def _gather(self, number: float) -> Floats:
        """Return (P,) the number of each rank, the same on all ranks."""
        mine, everyone = np.array([number]), np.empty(self._comm.size)
        wait(self._comm, self._comm.Iallgather(mine, everyone), (mine, everyone))
        return everyone


class Neighbours:
    """All ranks decide on each call, and plan with their neighbours; `comm` is a duplicate of the user's."""

    def __init__(self, comm: MPI.Intracomm, decider: NeighbourDecider) -> None:
        self._presence, self.decider = presence_of(comm), decider
        self._reducing: Reducing | None = None  # of the reports of a call

    def report(self, report: RankReport) -> None:
        """Start the reduction of all reports."""
        self._reducing = Reducing(self._presence.comm, self.decider.report(report))

    def decided(self) -> tuple[Decided, float] | None:
        """Return the decision, and 0 seconds; None: some report has not arrived yet."""
        reducing = self._reducing
        assert reducing is not None
        if not reducing.done():
            return None
        self._reducing = None
        return self.decider.decide(reducing.answer), 0.0

    def plan(self, moving: float | None = None) -> tuple[Plan, int]:
        """Return the transfers from and to this rank, and the number of steps; see `NeighbourDecider.plan`."""
        return self._run(self.decider.plan(moving))

    def levels(self, load: float) -> Levels:
        """Return the levels of the loads of all ranks, with the same bits everywhere; NaN: they have no finite sum."""
        return self._run(self.decider.levels(load))

    def hold(self, *, late: bool) -> None:
        """Record a quick call, which took too long (`late`) or not."""
        self.decider.policy.hold(late=late)

    def changed(self, plan: Plan | None, seconds: float | None = None) -> None:
        """Record that the next round follows `plan` (None: all rows at home), which took `seconds` (None: not known)."""
        self.decider.changed(lending=plan is not None, seconds=seconds)  # the same on all ranks: this one may lend nothing

    def _run(self, planning: Planning[T]) -> T:
        port = _PlanningPort(self._presence, planning, self.decider.neighbours)
        try:
            carry(planning, port, self._presence, OFF, throttle(1.0), interrupts(), quick_s=QUICK_S)
            self._presence.wait(port.sent, port)
        except BaseException:
            self._presence.keep(port)
            raise
        value: T = planning.value
        return value


class _PlanningPort(Port[Any, None]):
    """The messages of a plan: to each neighbour, into a reduction, and tables of any length."""

    def __init__(self, presence: Presence, planning: Planning[Any], neighbours: Sequence[int]) -> None:
        self._comm, self._planning, self._neighbours = presence.comm, planning, neighbours
        self._near: tuple[Floats, list[MPI.Request]] | None = None  # what comes from the neighbours
        self._all = deque[Reducing]()
        self._table: tuple[int, Floats, MPI.Request] | None = None  # that arrives, and from which rank
        self._sends: list[tuple[MPI.Request, Floats]] = []
        self._status = MPI.Status()

    def arrived(self) -> list[tuple[int, Any]]:
        """Return what has arrived from the source that is awaited: another one may send tables and numbers early."""
        source = self._planning.awaited
        if source == NEAR and self._near is not None:
            theirs, requests = self._near
            if MPI.Request.Testall(requests):
                self._near = None
                return [(NEAR, theirs)]
        elif source == ALL and self._all and self._all[0].done():
            return [(ALL, self._all.popleft().answer)]
        elif source is not None and source >= 0:
            return self._receive(source)
        return []

    def post(self, sends: list[tuple[int, Any]]) -> None:
        """Start to send."""
        for target, message in sends:
            if target == NEAR:
                self._near = self._begin(message)
            elif target == ALL:
                self._all.append(Reducing(self._comm, message))
            else:
                self._send(target, np.ascontiguousarray(message))

    def sent(self) -> bool:
        """True when all that this rank has sent has left."""
        return MPI.Request.Testall([request for request, _ in self._sends])

    def _begin(self, mine: Floats) -> tuple[Floats, list[MPI.Request]]:
        """Start an exchange with each neighbour."""
        theirs = np.empty((len(self._neighbours), mine.shape[-1]))
        rows = [mine] * len(self._neighbours) if mine.ndim == 1 else np.ascontiguousarray(mine)
        for row, rank in zip(rows, self._neighbours, strict=True):
            self._send(rank, row)
        pairs = zip(theirs, self._neighbours, strict=True)
        return theirs, [self._comm.Irecv(row, rank, int(Tag.NEIGHBOUR)) for row, rank in pairs]

    def _send(self, rank: int, numbers: Floats) -> None:
        self._sends = [(request, kept) for request, kept in self._sends if not request.Test()]
        self._sends.append((self._comm.Isend(numbers, rank, int(Tag.NEIGHBOUR)), numbers))

    def _receive(self, source: int) -> list[tuple[int, Any]]:
        """Receive the next table from a rank."""
        if self._table is None:
            message = self._comm.Improbe(source, int(Tag.NEIGHBOUR), self._status)
            if message is None:
                return []
            table = np.empty(self._status.Get_count(MPI.DOUBLE))
            self._table = source, table, message.Irecv(table)
        source, table, request = self._table
        if not request.Test():
            return []
        self._table = None
        return [(source, table)]
