"""From one load per rank to the plan of transfers that all ranks know: diffusion carried on MPI."""

from __future__ import annotations

import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.migrate import Plan, plan
from lb_mpi.diffusion.diffusion import Diffusion, Local, RankDiffusion, Setup, prepare
from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.collective import agree
from lb_mpi.mpi.diffuse import level, total
from lb_mpi.mpi.exchange import NeighbourExchange
from lb_mpi.mpi.waiting import wait

MAX_STEPS = 10_000
STALE = 0.01  # relative change of a speed after which the scheme is prepared anew


class Planned(NamedTuple):
    """The same on all ranks."""

    plan: Plan
    steps: int  # exchanges between neighbours; direct: 1


class Flows:
    """A diffusion scheme on `comm` (not the user's: a duplicate), vertex k of `graph` being its rank k.

    scheme direct: the root hears all loads, and computes the flow.  The other schemes: step by step between neighbours; only
    the stopping test, and the way from the flow to straight transfers, take all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, graph: Graph, scheme: str, tau: str | None, tolerance: float) -> None:
        self._comm, self._graph, self._scheme, self._tau, self._tolerance = comm, graph, scheme, tau, tolerance
        self._setup: Setup | None = None  # on the root
        self._local: Local | None = None
        self._exchange = NeighbourExchange(comm, graph) if scheme != "direct" else None

    def close(self) -> None:
        """Free what belongs to the MPI; collective."""
        if self._exchange is not None:
            self._exchange.close()

    def plan(self, work: float, speeds: Floats) -> Planned:
        """Collective: from this rank's `work`, and the (P,) speeds, which only the root (rank 0) has to know."""
        comm, root = self._comm, self._comm.rank == 0
        loads = np.zeros(comm.size)
        wait(comm.Igather(np.array([work]), loads, 0))
        flow, steps = np.zeros(0), 1
        if self._exchange is not None:
            fresh = agree(comm, lambda: root and self._prepare(speeds))
            flow, steps = self._diffuse(self._exchange, work, loads, fresh)
        made, error = None, None
        if root:
            try:
                made = self._make(flow, loads, speeds)
            except Exception as caught:
                error = caught
        length = np.array([-1 if made is None else len(made.amounts)])
        wait(comm.Ibcast(length, 0))
        if length[0] < 0:
            agree(comm, lambda: _raise(error))
        table = np.empty((5, length[0]))
        if made is not None:
            table[:] = made.sources, made.destinations, made.amounts, made.margins, made.shares
        wait(comm.Ibcast(table, 0))
        sources, destinations, amounts, margins, shares = table
        transfers = Plan(sources.astype(np.int64), destinations.astype(np.int64), amounts, margins, shares)
        return Planned(transfers, steps)

    def _prepare(self, speeds: Floats) -> bool:
        if self._setup is not None and float(np.abs(speeds / self._setup.speeds - 1.0).max()) <= STALE:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the graph is not connected has been told before
            self._setup = prepare(self._graph, speeds, self._scheme, self._tau)
        return True

    def _make(self, flow: Floats, loads: Floats, speeds: Floats) -> Plan:
        if self._scheme == "direct":
            self._prepare(speeds)
        assert self._setup is not None
        if self._scheme == "direct":
            diffusion = Diffusion(self._setup, loads)
            diffusion.step()
            flow = diffusion.flow()
        return plan(self._graph, flow, loads, self._setup.speeds)

    def _diffuse(self, exchange: NeighbourExchange, work: float, loads: Floats, fresh: bool) -> tuple[Floats, int]:
        """The (E,) flow, on the root."""
        comm = self._comm
        parts: list[Local] | None = None
        levels = np.zeros(comm.size)
        if self._setup is not None:
            parts = [self._setup.local(rank) for rank in range(comm.size)] if fresh else None
            levels = self._setup.balanced_times(loads)
        if comm.bcast(fresh):
            self._local = comm.scatter(parts)
        comm.Bcast(levels, 0)
        assert self._local is not None
        one = RankDiffusion(self._local, work, float(levels[comm.rank]), partial(total, comm))
        one, heard = level(comm, exchange, one, self._tolerance, MAX_STEPS)
        flow = one.flow(exchange.exchange(one.potential))
        upper = flow[self._graph.neighbours(comm.rank) > comm.rank]  # one after the other: the order of Graph.edges
        tails, _ = self._graph.edges()
        whole = np.zeros(len(tails))
        comm.Gatherv(upper, [whole, np.bincount(tails, minlength=comm.size)], 0)
        return whole, len(heard) - 1


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error
