"""Verdicts and plans of the root: rank 0 judges each call from the reports of all ranks, and solves for the flow."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.judge import (
    REPORT,
    Judge,
    Levels,
    RankReport,
    RoundProblem,
    Trigger,
    Verdict,
    verdict_dtype,
    verdict_of,
)
from lb_mpi.balancing.transfers import ROWS, Plan, direct_plan, plan_of
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import imbalance, lower_bound
from lb_mpi.mpi.common.collective import agree, raise_together, wait


class Root:
    """The root's verdicts and plans, on the rank of `course` in `comm`, a duplicate of the user's.

    In each call of `map_rows`: `tell` once, poll `heard`, then `verdict`.  Vertex k of `graph` is rank k.  All methods
    are collective.
    """

    def __init__(self, comm: MPI.Intracomm, course: Course, trigger: Trigger, graph: Graph) -> None:
        self._comm, self._course, self._graph = comm, course, graph
        self.judge = Judge(graph, trigger) if comm.rank == 0 else None
        self._reports = np.empty(comm.size if comm.rank == 0 else 0, dtype=REPORT)

    def tell(self, report: RankReport) -> None:
        """Start sending this rank's report."""
        comm = self._comm
        self.judging_s = 0.0
        self._made: Verdict | Exception | None = None  # on the root
        self._mine, self._answer = np.array([report.fields()], dtype=REPORT), np.zeros(1, dtype=verdict_dtype(comm.size))
        self._gathered = comm.Igather(self._mine.view(np.uint8), self._reports.view(np.uint8), 0)
        self._spread = None if comm.rank == 0 else comm.Ibcast(self._answer.view(np.uint8), 0)

    def heard(self) -> bool:
        """True when the verdict has arrived; the root makes it once it has all reports."""
        gathered = self._gathered.Test()
        if self.judge is not None and self._spread is None and gathered:
            began = time.perf_counter()
            try:
                self._made = verdict = self.judge.hear(self._reports)
                self._answer = verdict.record()
            except Exception as caught:  # the other ranks wait for a verdict
                self._made = caught
                self._answer["problem"] = RoundProblem.JUDGE
            self.judging_s = time.perf_counter() - began
            self._spread = self._comm.Ibcast(self._answer.view(np.uint8), 0)
        return self._spread is not None and self._spread.Test() and gathered

    def verdict(self) -> Verdict:
        """Return the decision, after `heard`, with the plan, if any; an error on the root is raised on all ranks."""
        verdict, made, n_transfers = verdict_of(self._answer), self._made, int(self._answer["n_transfers"][0])
        if verdict.problem is RoundProblem.JUDGE:
            raise_together(self._comm, made if isinstance(made, Exception) else None)
        plan = made.plan if isinstance(made, Verdict) else None
        return verdict if n_transfers < 0 else verdict._replace(plan=self._send(plan, n_transfers))

    def plan(self, moving: float | None = None) -> tuple[Plan, int]:
        """Return a plan that levels all ranks, and the number of steps, 1.

        `moving`: this rank's work, in any unit, if rows change their owner; None: that of the calls of `map_rows`.
        """
        comm, loads = self._comm, self._gather(self._course.work if moving is None else moving)
        made = agree(comm, lambda: direct_plan(self._graph, loads, self._course.speeds) if comm.rank == 0 else None)
        n = np.array([0 if made is None else len(made.amounts)])
        wait(comm, comm.Ibcast(n, 0), n)
        return self._send(made, int(n[0])), 1

    def levels(self, load: float) -> Levels:
        """Return the levels of the loads of all ranks, with the same bits everywhere; NaN: they have no finite sum."""
        found, loads = np.full(len(Levels._fields), np.nan), self._gather(load)
        with np.errstate(over="ignore"):
            finite = np.isfinite(loads.sum())
        if self._comm.rank == 0 and finite:
            speeds = self._course.speeds
            found[:] = imbalance(loads, speeds), (loads / speeds).max(), np.nan, lower_bound(loads, speeds)
        wait(self._comm, self._comm.Ibcast(found, 0), found)
        return Levels(*found.tolist())

    def changed(self, plan: Plan | None, seconds: float | None = None) -> None:
        """Record that the next round follows `plan` (None: all rows at home), which took `seconds` (None: not known)."""
        if self.judge is not None:
            self.judge.policy.changed(lending=plan is not None and len(plan.amounts) > 0, seconds=seconds)

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
