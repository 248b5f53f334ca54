"""The end of a call of `map_blocks`: the root hears all ranks' reports, and all hear its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.judge import Judge
from lb_mpi.balancing.reports import REPORT, Problem, Report, Verdict, verdict_dtype, verdict_of
from lb_mpi.mpi.collective import raise_together
from lb_mpi.mpi.waiting import wait

LONGEST_WAIT_S = 1e-4  # the wait for the others, at the end of a call


def hear_verdict(
    comm: MPI.Intracomm, judge: Judge | None, report: Report, meanwhile: Callable[[], object]
) -> tuple[Verdict, float]:
    """Collective: what the root decides when it has heard everybody, and the seconds that deciding took.

    `judge` is on the root only.  `meanwhile` is called between naps, and may raise.
    """
    reports, answer = np.empty(comm.size, dtype=REPORT), np.zeros(1, dtype=verdict_dtype(comm.size))
    mine = np.array([report.fields()], dtype=REPORT)
    wait(comm.Igather(mine.view(np.uint8), reports.view(np.uint8), 0), LONGEST_WAIT_S, meanwhile)
    began = time.perf_counter()
    error: Exception | None = None
    if judge is not None:
        try:
            answer = judge.hear(reports).record()
        except Exception as caught:  # the others wait for a verdict
            error = caught
            answer["verdict"]["problem"] = Problem.JUDGE
    judging_s = time.perf_counter() - began
    wait(comm.Ibcast(answer.view(np.uint8), 0), LONGEST_WAIT_S, meanwhile)
    verdict = verdict_of(answer)
    if verdict.problem is Problem.JUDGE:
        raise_together(comm, error)
    return verdict, judging_s
