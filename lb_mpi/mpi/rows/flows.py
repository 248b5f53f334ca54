"""From one load per rank to the plan of transfers that all ranks know: diffusion carried on MPI."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.direct import STALE, Direct
from lb_mpi.balancing.judge import Planner
from lb_mpi.balancing.migrate import ROWS, Plan, plan, plan_of
from lb_mpi.diffusion.diffusion import MAX_STEPS
from lb_mpi.diffusion.setup import chosen_scheme
from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.common.collective import raise_together, wait
from lb_mpi.mpi.rows.diffuse import Diffuser, solve
from lb_mpi.mpi.rows.exchange import METHODS

_FAILED = -1.0


class Planned(NamedTuple):
    """Plan and steps, the same on all ranks."""

    plan: Plan
    steps: int  # exchanges between neighbours; direct: 1


class Flows:
    """A diffusion scheme on `comm` (not the user's: a duplicate), vertex k of `graph` being its rank k.

    Scheme direct ("auto": see `diffusion.setup.usual_scheme`): all hear all loads, and the root computes the flow.  The
    other schemes: step by step between neighbours (by `exchange`); only the stopping test, and
    the way from the flow to straight transfers, take all ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        graph: Graph,
        scheme: str,
        tau: str | None,
        tolerance: float,
        *,
        exchange: str = METHODS[0],
    ) -> None:
        self._comm, self._graph, self._tau, self._direct = comm, graph, tau, chosen_scheme(graph, scheme) == "direct"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the graph is not connected has been told before
            self._diffuser = Diffuser(
                comm, graph, scheme=scheme, tau=tau, exchange=exchange, tolerance=tolerance, max_steps=MAX_STEPS
            )

    @property
    def planner(self) -> Planner | None:
        """Makes plans on one rank alone, in scheme direct; otherwise None."""
        return Direct(self._graph, self._tau).plan if self._direct else None

    def close(self) -> None:
        """Free what belongs to the MPI; collective."""
        self._diffuser.close()

    def spread(self, error: BaseException) -> None:
        """Tell all others that this rank can't go on; not collective.  Afterwards: only `close`."""
        self._diffuser.spread(error)

    def plan(self, work: float, speeds: Floats) -> Planned:
        """Collective: from this rank's `work`, and the (P,) speeds, the same on all ranks."""
        loads = self._diffuser.gather(work)[:, 0].copy()
        setup = self._diffuser.prepare(speeds, STALE)
        whole, steps = (np.zeros(0), 1) if self._direct else self._diffuser.collect(setup, loads)
        made, error = None, None
        if self._comm.rank == 0:
            try:
                flow = solve(setup, loads) if self._direct else whole
                made = plan(self._graph, flow, loads, setup.speeds)
            except BaseException as caught:
                error = caught
        return Planned(self._tell(made, error), steps)

    def _tell(self, made: Plan | None, error: BaseException | None) -> Plan:
        """The root's plan, or what was raised there, on all ranks: in one message, unless the plan is very long."""
        comm, room = self._comm, self._comm.size
        table = np.zeros((ROWS, 0))
        if made is not None:
            table = made.table()
        first = np.zeros(1 + ROWS * room)
        first[0] = _FAILED if error is not None else table.shape[1]
        if table.shape[1] <= room:
            first[1 : 1 + table.size] = table.ravel()
        wait(comm, comm.Ibcast(first, 0), first)
        if first[0] == _FAILED:
            raise_together(comm, error)
        n = int(first[0])
        if n <= room:
            table = first[1 : 1 + ROWS * n].reshape(ROWS, n)
        else:
            table = table if comm.rank == 0 else np.empty((ROWS, n))
            wait(comm, comm.Ibcast(table, 0), table)
        return plan_of(table)
