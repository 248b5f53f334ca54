"""Planners on MPI: from each rank's work to a plan of transfers that all ranks have.

A planner has `plan(work, speeds)`, which is collective, and `close()`.  `Central` gathers the loads on the root, which
solves for the flow.  `Diffuser` exchanges loads between neighbours, step by step; only the stopping test, and turning
the flow into direct transfers, need all ranks.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.migrate import ROWS, Direct, Plan, is_stale, plan, plan_of
from lb_mpi.diffusion.diffusion import MAX_STEPS, excess, on_rank
from lb_mpi.diffusion.setup import Eigen, Scheme, Setup, Spectrum, assemble, chosen_scheme, find_eigen, tau_rule
from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.common.collective import agree, wait
from lb_mpi.mpi.common.presence import presence_of
from lb_mpi.mpi.rows.process_graph import METHODS, NeighbourExchange

MOST_GATHERED = 512  # ranks up to which each rank adds up the numbers of all


def planner(
    comm: MPI.Intracomm, graph: Graph, scheme: str, tau: str | None, tolerance: float, exchange: str
) -> Central | Diffuser:
    """Return the planner of a scheme ("auto": see `diffusion.setup.usual_scheme`); vertex k of `graph` is rank k."""
    if chosen_scheme(graph, scheme) == "direct":
        return Central(comm, graph, tau)
    return Diffuser(comm, graph, scheme, tau, tolerance, exchange=exchange)


def spread_plan(comm: MPI.Intracomm, made: Plan | None, n_transfers: int) -> Plan:
    """Collective: send the root's plan of `n_transfers` transfers to all ranks."""
    table = np.empty((ROWS, n_transfers)) if made is None else made.table()
    wait(comm, comm.Ibcast(table, 0), table)
    return plan_of(table)


def _made_by_root(comm: MPI.Intracomm, make: Callable[[], Plan]) -> Plan:
    """Collective: return the plan that the root makes; an error there is raised on all ranks."""
    made = agree(comm, lambda: make() if comm.rank == 0 else None)
    n = np.array([0 if made is None else len(made.amounts)])
    wait(comm, comm.Ibcast(n, 0), n)
    return spread_plan(comm, made, int(n[0]))


class Central:
    """The scheme "direct" on `comm`, a duplicate of the user's: the root knows all loads, and makes the plan."""

    def __init__(self, comm: MPI.Intracomm, graph: Graph, tau: str | None = None) -> None:
        self._comm, self.direct = comm, Direct(graph, tau)

    def plan(self, work: float, speeds: Floats) -> tuple[Plan, int]:
        """Collective: a plan from this rank's `work` and the (P,) speeds; and its number of steps, 1."""
        mine, loads = np.array([work]), np.zeros(self._comm.size)
        wait(self._comm, self._comm.Igather(mine, loads, 0), (mine, loads))
        return _made_by_root(self._comm, lambda: self.direct.plan(loads, speeds)), 1

    def close(self) -> None:
        """Free nothing: the communicator belongs to the caller."""


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

    def plan(self, work: float, speeds: Floats) -> tuple[Plan, int]:
        """Collective: a plan from this rank's `work` and the (P,) speeds; and the number of exchanges between neighbours."""
        with self._presence.telling():
            loads = self._gather(np.array([work]))[:, 0].copy()
            found = self.diffuse(loads, speeds)
            whole = self._collect(found.flow)
            setup = self._prepare(speeds)
            made = _made_by_root(self._presence.comm, lambda: plan(setup.graph, whole, loads, setup.speeds))
        return made, len(found.imbalance) - 1

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
        with self._presence.telling():
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

    def _gather(self, numbers: Floats) -> Floats:
        """Collective: the k numbers of each rank, (P, k), the same on all ranks."""
        comm = self._presence.comm
        everyone = np.empty((comm.size, len(numbers)))
        self._presence.wait(comm.Iallgather(numbers, everyone).Test, (numbers, everyone))
        return everyone

    def _total(self, numbers: Floats) -> Floats:
        """Sums over all ranks, in the same order as on a whole graph: the same bits with every MPI.

        Above MOST_GATHERED ranks a reduction, since gathering all numbers in each step would be too much.
        """
        comm = self._presence.comm
        if comm.size > MOST_GATHERED:
            total = np.empty_like(numbers)
            self._presence.wait(comm.Iallreduce(numbers, total, MPI.SUM).Test, (numbers, total))
            return total
        return np.asarray(np.ascontiguousarray(self._gather(numbers).T).sum(axis=1))

    def _collect(self, flow: Floats) -> Floats:
        """(E,) flow on rank 0, from each rank's (deg,) flow; zeros elsewhere."""
        comm, graph = self._presence.comm, self._graph
        upper = flow[graph.neighbours(comm.rank) > comm.rank]  # in rank order, the order of Graph.edges
        tails, _ = graph.edges()
        whole = np.zeros(graph.n_edges)
        request = comm.Igatherv(upper, [whole, np.bincount(tails, minlength=comm.size)], 0)
        self._presence.wait(request.Test, (upper, whole))
        return whole
