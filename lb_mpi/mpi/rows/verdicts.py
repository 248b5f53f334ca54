"""The end of a call of `map_rows`: the root hears all ranks' reports, and all hear its verdict.

That is one gather and one broadcast, which nobody waits in: ranks go on serving each other meanwhile.  As each rank reports
when its rows are back, the verdict tells at the same time that the round is over.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.judge import Judge
from lb_mpi.balancing.migrate import ROWS, plan_of
from lb_mpi.balancing.reports import REPORT, Problem, Report, Verdict, left_out, verdict_dtype, verdict_of
from lb_mpi.mpi.common.collective import raise_together, wait


class Hearing:
    """One call's; `judge` is on the root only.  Collective: `tell`, once, and then `heard` until it says so."""

    def __init__(self, comm: MPI.Intracomm, judge: Judge | None) -> None:
        self._comm, self._judge = comm, judge
        self._reports = np.empty(comm.size if judge is not None else 0, dtype=REPORT)
        self._room = comm.size  # transfers for which the verdict has room
        self._answer = np.zeros(1, dtype=verdict_dtype(comm.size, self._room))
        self._gathered: MPI.Request | None = None
        self._spread: MPI.Request | None = None
        self._verdict: Verdict | None = None  # on the root
        self._error: Exception | None = None
        self.judging_s = 0.0  # on the root

    def tell(self, report: Report) -> None:
        """Send this rank's report on its way."""
        self._mine = np.array([report.fields()], dtype=REPORT)
        self._gathered = self._comm.Igather(self._mine.view(np.uint8), self._reports.view(np.uint8), 0)
        if self._judge is None:
            self._spread = self._comm.Ibcast(self._answer.view(np.uint8), 0)

    def heard(self) -> bool:
        """See whether the verdict has come; the root gives it when it has heard everybody."""
        assert self._gathered is not None
        gathered = self._gathered.Test()
        if self._spread is None and gathered:
            began = time.perf_counter()
            self._decide()
            self.judging_s = time.perf_counter() - began
            self._spread = self._comm.Ibcast(self._answer.view(np.uint8), 0)
        return self._spread is not None and self._spread.Test() and gathered

    def verdict(self) -> Verdict:
        """Collective, when it has come: what was decided.  What was raised on the root, all raise."""
        verdict = self._verdict or verdict_of(self._answer)
        if verdict.problem is Problem.JUDGE:
            raise_together(self._comm, self._error)
        if n := left_out(self._answer):
            table = verdict.plan.table() if verdict.plan is not None else np.empty((ROWS, n))
            wait(self._comm, self._comm.Ibcast(table, 0), table)
            verdict = verdict._replace(plan=plan_of(table))
        return verdict

    def _decide(self) -> None:
        assert self._judge is not None
        try:
            self._verdict = self._judge.hear(self._reports)
            self._answer = self._verdict.record(self._room)
        except Exception as caught:  # the others wait for a verdict
            self._error = caught
            self._answer["verdict"]["problem"] = Problem.JUDGE
            self._verdict = verdict_of(self._answer)
