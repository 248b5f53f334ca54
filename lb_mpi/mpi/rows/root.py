"""Verdicts and plans of the root: rank 0 judges each call from the reports of all ranks, and makes the plans.

With the scheme "direct" the root solves for the flow.  With the others, neighbours exchange loads step by step
(`Diffuser`); only the stopping test, and turning the flow into direct transfers, need all ranks.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.judge import REPORT, Judge, Levels, RankReport, RoundProblem, Verdict, verdict_dtype, verdict_of
from lb_mpi.balancing.migrate import ROWS, Direct, Plan, is_stale, plan, plan_of
from lb_mpi.balancing.trigger import Trigger
from lb_mpi.diffusion.diffusion import MAX_STEPS, excess, on_rank
from lb_mpi.diffusion.setup import Eigen, Scheme, Setup, Spectrum, assemble, chosen_scheme, find_eigen, tau_rule
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import imbalance, lower_bound
from lb_mpi.mpi.common.collective import agree, raise_together, wait
from lb_mpi.mpi.common.presence import presence_of
from lb_mpi.mpi.rows.process_graph import METHODS, NeighbourExchange

MOST_GATHERED = 512  # ranks up to which each rank adds up the numbers of all


class Root:
    """The root's verdicts and plans, on the rank of `course` in `comm`, a duplicate of the user's.

    In each call of `map_rows`: `tell` once, poll `heard`, then `verdict`, and then `plan` if it acts without a plan.
    `scheme`, `tau` and `exchange` as for `lb_mpi.Balancer`; vertex k of `graph` is rank k.  All methods are collective.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        course: Course,
        trigger: Trigger,
        graph: Graph,
        scheme: str,
        tau: str | None = None,
        exchange: str = METHODS[0],
    ) -> None:
        self._comm, self._course = comm, course
        self._planner: Direct | Diffuser
        if chosen_scheme(graph, scheme) == "direct":
            self._planner = Direct(graph, tau)
        else:
            self._planner = Diffuser(comm, graph, scheme, tau, trigger.tolerance, exchange=exchange)
        self.judge: Judge | None = None
        if comm.rank == 0:
            self.judge = Judge(comm.size, trigger, self._planner if isinstance(self._planner, Direct) else None)
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
        """Return a plan that levels all ranks, and the number of exchanges between neighbours (or 1).

        `moving`: this rank's work, in any unit, if rows change their owner; None: that of the calls of `map_rows`.
        """
        comm, planner, speeds = self._comm, self._planner, self._course.speeds
        loads, steps = _gather(comm, self._course.work if moving is None else moving).ravel(), 1
        if isinstance(planner, Direct):
            make: Callable[[], Plan] = functools.partial(planner.plan, loads, speeds)
        else:
            make, steps = planner.diffused(loads, speeds)
        made = agree(comm, lambda: make() if comm.rank == 0 else None)
        n = np.array([0 if made is None else len(made.amounts)])
        wait(comm, comm.Ibcast(n, 0), n)
        return self._send(made, int(n[0])), steps

    def levels(self, load: float) -> Levels:
        """Return the levels of the loads of all ranks, with the same bits everywhere; NaN: they have no finite sum."""
        found, loads = np.full(len(Levels._fields), np.nan), _gather(self._comm, load).ravel()
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

    def close(self) -> None:
        """Free the MPI resources, but not the communicator."""
        if isinstance(self._planner, Diffuser):
            self._planner.close()

    def _send(self, made: Plan | None, n_transfers: int) -> Plan:
        """Send the root's plan of `n_transfers` transfers to all ranks."""
        table = np.empty((ROWS, n_transfers)) if made is None else made.table()
        wait(self._comm, self._comm.Ibcast(table, 0), table)
        return plan_of(table)


def _gather(comm: MPI.Intracomm, numbers: float | Floats) -> Floats:
    """Collective: the k numbers of each rank, (P, k), the same on all ranks."""
    mine = np.atleast_1d(numbers)
    everyone = np.empty((comm.size, len(mine)))
    wait(comm, comm.Iallgather(mine, everyone), (mine, everyone))
    return everyone


class Diffused(NamedTuple):
    """A flow, and how it was found; all but `flow` is the same on all ranks."""

    flow: Floats  # (deg,) work to each neighbour, < 0: from it; in the order of graph.neighbours(rank)
    imbalance: list[float]  # (steps+1,): before each step and after the last


class Diffuser:
    """A scheme with steps on `comm`, a duplicate of the user's; reusable, also when speeds change.

    Scheme and tau as for `diffusion.setup.prepare`, `exchange` as for `NeighbourExchange`.  The stopping test after a
    step starts at once, but its result arrives ceil(log2 P) steps later; the steps made meanwhile are discarded.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        graph: Graph,
        scheme: str,
        tau: str | None = None,
        tolerance: float = 0.05,
        *,
        exchange: str = METHODS[0],
    ) -> None:
        self._presence, self._graph = presence_of(comm), graph
        self._exchange = NeighbourExchange(comm, graph, exchange)
        self._scheme = chosen_scheme(graph, scheme)
        self._rule, self._tolerance = tau_rule(self._scheme, tau), tolerance
        self._setup: Setup | None = None

    def diffused(self, loads: Floats, speeds: Floats) -> tuple[Callable[[], Plan], int]:
        """Collective: diffuse; return what makes the plan on the root, and the number of steps."""
        found = self.diffuse(loads, speeds)
        whole, setup = self._collect(found.flow), self._prepare(speeds)
        return lambda: plan(setup.graph, whole, loads, setup.speeds), len(found.imbalance) - 1

    def diffuse(self, loads: Floats, speeds: Floats) -> Diffused:
        """Collective: the flow that levels the (P,) loads at (P,) speeds, both equal on all ranks, to the tolerance.

        The steps and the flow are bit-identical to those of `lb_mpi.balance` on the whole graph (but the flow of
        dimension_exchange may contain cycles).  It stops after MAX_STEPS, balanced or not.  An imbalance is infinite if
        a rank has to give more than it has.
        """
        comm, wait_for = self._presence.comm, self._presence.wait
        exchange, lag = self._exchange.exchange, (comm.size - 1).bit_length()
        asked: deque[tuple[MPI.Request, Floats, Floats, Scheme]] = deque()
        answered: list[float] = []
        setup = self._prepare(speeds)
        mean = float(setup.mean_times(loads)[comm.rank])
        one, ends = on_rank(setup, comm.rank, float(loads[comm.rank]), mean, self._total)
        for step in range(MAX_STEPS + 1):
            mine, worst = np.array([excess(one.time, mean)]), np.zeros(1)
            asked.append((comm.Iallreduce(mine, worst, MPI.MAX), mine, worst, copy.copy(one)))
            while len(asked) > (lag if step < MAX_STEPS else 0):
                request, _, worst, then = asked[0]
                wait_for(request.Test, asked)
                asked.popleft()
                answered.append(max(0.0, float(worst[0])))
                if answered[-1] <= self._tolerance:
                    for request, *_ in asked:
                        wait_for(request.Test, asked)
                    ends.heard = exchange(then.potential)
                    return Diffused(then.flow(), answered)
            if step < MAX_STEPS:
                ends.heard = exchange(one.value)
                one.step()
        ends.heard = exchange(one.potential)
        return Diffused(one.flow(), answered)

    def close(self) -> None:
        """Free the MPI resources, but not the communicator; collective."""
        self._exchange.close()

    def _prepare(self, speeds: Floats) -> Setup:
        """Prepare for the (P,) speeds, unless they have hardly changed; rank 0 finds the eigenvalues."""
        if self._setup is not None and not is_stale(self._setup, speeds):
            return self._setup
        own, graph, scheme, rule = self._presence.comm, self._graph, self._scheme, self._rule
        eigen = agree(own, lambda: find_eigen(graph, speeds, scheme, rule) if own.rank == 0 else Eigen())
        told = np.array([*eigen.spectrum, *eigen.points])
        length = np.array([len(told)])
        wait(own, own.Ibcast(length), length)
        told = np.resize(told, length[0])
        wait(own, own.Ibcast(told), told)
        eigen = Eigen(Spectrum(*told[:2].tolist()), told[2:])
        self._setup = agree(own, lambda: assemble(graph, speeds, scheme, rule, eigen))
        return self._setup

    def _total(self, numbers: Floats) -> Floats:
        """Sums over all ranks, in the same order as on a whole graph: the same bits with every MPI.

        Above MOST_GATHERED ranks a reduction, since gathering all numbers in each step would be too much.
        """
        comm = self._presence.comm
        if comm.size > MOST_GATHERED:
            total = np.empty_like(numbers)
            self._presence.wait(comm.Iallreduce(numbers, total, MPI.SUM).Test, (numbers, total))
            return total
        return np.asarray(np.ascontiguousarray(_gather(comm, numbers).T).sum(axis=1))

    def _collect(self, flow: Floats) -> Floats:
        """(E,) flow on rank 0, from each rank's (deg,) flow; zeros elsewhere."""
        comm, graph = self._presence.comm, self._graph
        upper = flow[graph.neighbours(comm.rank) > comm.rank]  # in rank order, the order of Graph.edges
        tails, _ = graph.edges()
        whole = np.zeros(graph.n_edges)
        request = comm.Igatherv(upper, [whole, np.bincount(tails, minlength=comm.size)], 0)
        self._presence.wait(request.Test, (upper, whole))
        return whole
