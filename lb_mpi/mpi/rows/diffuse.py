"""Diffusion on real ranks, by neighbour exchanges; and the plan of transfers that follows, on all ranks."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.judge import Planner
from lb_mpi.balancing.migrate import ROWS, STALE, Direct, Plan, plan, plan_of
from lb_mpi.checks import integer, number
from lb_mpi.diffusion.diffusion import MAX_STEPS, Diffusion, RankDiffusion, at_ends, cancel_cycles
from lb_mpi.diffusion.setup import (
    Eigen,
    Local,
    Setup,
    Spectrum,
    assemble,
    chosen_scheme,
    find_eigen,
    tau_rule,
    warn_of_components,
)
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import check_loads, check_speeds
from lb_mpi.mpi.common.collective import agree, agree_on, raise_together, wait
from lb_mpi.mpi.common.presence import call
from lb_mpi.mpi.rows.process_graph import METHODS, NeighbourExchange

MOST_GATHERED = 512  # ranks whose numbers all ranks add up by themselves


class Diffused(NamedTuple):
    """Flow, and how it was found; the same on all ranks but for `flow`."""

    flow: Floats  # (deg,) work to each neighbour, < 0: from it; in the order of graph.neighbours(rank)
    steps: int  # exchanges between neighbours that the flow took; direct: 1, to the root and back
    converged: bool
    imbalance: list[float]  # before each step and after the last: (steps+1,)


class Diffuser:
    """A scheme on all ranks of `comm`, again and again, with speeds that may change.

        with Diffuser(comm, graph, scheme="sos") as diffuser:
            for round in range(rounds):
                found = diffuser.diffuse(load, speed)

    Vertex k of `graph`, which comes in any shape that `lb_mpi.as_graph` takes, is rank k of `comm`.  Scheme and tau as for
    `diffusion.setup.prepare`; `exchange` is "neighbourhood" or "paper".  Collective, as are all methods.  Works on
    communicators of its own.

    The stopping test, whether all ranks were balanced after a step, is asked at once, but heard only `lag` >= 0 steps later
    (None: log2 of the number of ranks, rounded up); the steps made meanwhile are forgotten.

    ValueError or TypeError on every rank when an argument is wrong on any, or not the same on all.  A rank that leaves the
    `with` statement by an exception tells all others: `lb_mpi.Error` for who waits for it.  UserWarning on rank 0 for a
    graph that isn't connected: each component is balanced by itself.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        graph: Any,
        *,
        scheme: str = "fos",
        tau: str | None = None,
        exchange: str = METHODS[0],
        tolerance: float = 0.05,
        max_steps: int = 100_000,
        lag: int | None = None,
    ) -> None:
        with call("Diffuser"):
            self._exchange = NeighbourExchange(comm, graph, method=exchange)
            self._presence = self._exchange.presence
            self._presence.name = "Diffuser"
            own = self._presence.comm
            try:
                chosen = agree(own, lambda: chosen_scheme(self._exchange.graph, scheme))
                self._rule = agree(own, lambda: tau_rule(chosen, tau))
                self._stop = agree(own, lambda: _check(tolerance, max_steps, lag, own.size))
                agree_on(own, scheme=scheme, tau=tau, **self._stop._asdict())
                agree(own, lambda: warn_of_components(self._exchange.graph) if own.rank == 0 else None)
            except BaseException as error:
                self._presence.spread(error)
                self._exchange.close()
                raise
        self._graph, self._scheme = self._exchange.graph, chosen
        self._setup: Setup | None = None
        self._local: Local | None = None

    def diffuse(self, load: float, speed: float) -> Diffused:
        """The flow that levels the ranks' loads to the tolerance: `load` >= 0 units of work, `speed` > 0 on this one.

        The same steps and the same flow as `lb_mpi.balance` of the whole graph, to the last bit.  It begins with an
        allgather of loads and speeds, since all need their sums.  Then, in scheme direct, the root solves and tells each
        rank its part; in the others only neighbours talk, but for the stopping test, and for the sums of cg.

        ValueError on every rank for a bad load or speed on any, or a graph that is too large for the scheme.
        """
        with call("lb_mpi.diffuse"):
            return self._all(_number(load), _number(speed))

    def _all(self, load: float, speed: float) -> Diffused:
        loads, speeds = self.gather(load, speed).T
        check_loads(loads)
        setup, tolerance = self.prepare(check_speeds(speeds)), self._stop.tolerance
        before = Diffusion(setup, loads).imbalance
        if before <= tolerance or self._stop.max_steps == 0:
            deg = len(self._graph.neighbours(self._presence.comm.rank))
            return Diffused(np.zeros(deg), 0, before <= tolerance, [before])
        if self._scheme == "direct":  # what is left is rounding; to measure that would take another collective
            return Diffused(self._deal(lambda: solve(setup, loads)), 1, True, [before, 0.0])
        flow, imbalance = self._diffuse(setup, loads)
        if self._scheme == "dimension_exchange":  # its circles are long: only the root can see them all
            whole = self._collect(flow)
            flow = self._deal(lambda: cancel_cycles(self._graph, whole))
        return Diffused(flow, len(imbalance) - 1, imbalance[-1] <= tolerance, imbalance)

    def collect(self, setup: Setup, loads: Floats) -> tuple[Floats, int]:
        """Collective: of a scheme that has steps, the (E,) flow on rank 0, zeros elsewhere, and the number of steps."""
        flow, imbalance = self._diffuse(setup, loads)
        return self._collect(flow), len(imbalance) - 1

    def gather(self, *numbers: float) -> Floats:
        """Collective: everybody's k numbers, (P, k), the same on all ranks."""
        self._presence.check()
        return self._gather(np.array(numbers))

    def prepare(self, speeds: Floats, stale: float = 0.0) -> Setup:
        """Make ready for the (P,) speeds, the same on all ranks; nothing, if none has changed by more than `stale`.

        Collective.  What needs an eigensolver is found by rank 0.
        """
        if self._setup is not None and float(np.abs(speeds / self._setup.speeds - 1.0).max()) <= stale:
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
        self._local = self._setup.local(own.rank)
        return self._setup

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        self._exchange.close()

    def spread(self, error: BaseException) -> None:
        """Tell all others that this rank can't go on; not collective.  Afterwards: only `close`."""
        self._presence.spread(error)

    def __enter__(self) -> Diffuser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.spread(error)
        self.close()

    def _gather(self, numbers: Floats) -> Floats:
        comm = self._presence.comm
        everyone = np.empty((comm.size, len(numbers)))
        with self._presence.telling():
            self._presence.wait(comm.Iallgather(numbers, everyone).Test, (numbers, everyone))
        return everyone

    def _total(self, numbers: Floats) -> Floats:
        """Everybody's numbers, added up in the order in which a whole graph adds them: the same bits with every MPI.

        On many ranks by a reduction: all numbers of all ranks would be too much for each step.
        """
        if self._presence.comm.size > MOST_GATHERED:
            total = np.empty_like(numbers)
            self._presence.wait(self._presence.comm.Iallreduce(numbers, total, MPI.SUM).Test, (numbers, total))
            return total
        return np.asarray(np.ascontiguousarray(self._gather(numbers).T).sum(axis=1))

    def _diffuse(self, setup: Setup, loads: Floats) -> tuple[Floats, list[float]]:
        """Step until all ranks are balanced, or max_steps times: this rank's (deg,) flow after the step that did it.

        And the greatest imbalances up to it, the same on all ranks; that of a rank that is asked for more than it has is
        infinite.
        """
        assert self._local is not None
        rank, exchange = self._presence.comm.rank, self._exchange.exchange
        with self._presence.telling():
            one = RankDiffusion(self._local, float(loads[rank]), float(setup.mean_times(loads)[rank]), self._total)
            one, heard = self._step(one)
            return one.flow(exchange(one.potential)), heard

    def _step(self, one: RankDiffusion) -> tuple[RankDiffusion, list[float]]:
        comm, wait = self._presence.comm, self._presence.wait
        tolerance, max_steps, lag = self._stop
        asked: deque[tuple[MPI.Request, Floats, Floats, RankDiffusion]] = deque()
        heard: list[float] = []
        for step in range(max_steps + 1):
            mine, worst = np.array([one.imbalance]), np.zeros(1)
            asked.append((comm.Iallreduce(mine, worst, MPI.MAX), mine, worst, one.snapshot()))
            while len(asked) > (lag if step < max_steps else 0):
                request, _, worst, then = asked[0]
                wait(request.Test, asked)
                asked.popleft()
                heard.append(max(0.0, float(worst[0])))
                if heard[-1] <= tolerance:
                    for request, *_ in asked:
                        wait(request.Test, asked)
                    return then, heard
            if step < max_steps:
                one.step(self._exchange.exchange(one.value))
        return one, heard

    def _collect(self, flow: Floats) -> Floats:
        """(E,) flow on rank 0, from everybody's (deg,) flow; zeros elsewhere."""
        comm, graph = self._presence.comm, self._graph
        upper = flow[graph.neighbours(comm.rank) > comm.rank]  # one after the other: the order of Graph.edges
        tails, _ = graph.edges()
        whole = np.zeros(graph.n_edges)
        with self._presence.telling():
            request = comm.Igatherv(upper, [whole, np.bincount(tails, minlength=comm.size)], 0)
            self._presence.wait(request.Test, (upper, whole))
        return whole

    def _deal(self, make: Callable[[], Floats]) -> Floats:
        """Each rank's (deg,) part of the (E,) flow that rank 0 makes; what is raised there, all raise."""
        comm, graph, error = self._presence.comm, self._graph, None
        counts = graph.degrees + 1  # the flow, and before it whether there is one
        all_parts = np.zeros(counts.sum() if comm.rank == 0 else 0)
        if comm.rank == 0:
            try:
                all_parts[:] = np.insert(at_ends(graph, make()), graph.indptr[:-1], 1.0)
            except BaseException as caught:
                error = caught
        mine = np.zeros(counts[comm.rank])
        with self._presence.telling():
            request = comm.Iscatterv([all_parts, counts] if comm.rank == 0 else None, mine, 0)
            self._presence.wait(request.Test, (all_parts, mine))
        if mine[0] != 1.0:
            raise_together(comm, error)
        return mine[1:]


class _Stop(NamedTuple):
    """The bounds at which to stop."""

    tolerance: float
    max_steps: int
    lag: int


def solve(setup: Setup, loads: Floats) -> Floats:
    """The (E,) flow of scheme direct."""
    diffusion = Diffusion(setup, loads)
    diffusion.step()
    return diffusion.flow()


def diffuse(
    comm: MPI.Intracomm,
    graph: Any,
    load: float,
    speed: float,
    *,
    scheme: str = "fos",
    tau: str | None = None,
    exchange: str = METHODS[0],
    tolerance: float = 0.05,
    max_steps: int = 100_000,
) -> Diffused:
    """The flow to each neighbour in `graph` that levels `load` of every rank on `speed` of every rank; collective.

    For one time only; see `Diffuser`.
    """
    options = {"tolerance": tolerance, "max_steps": max_steps}
    with call("lb_mpi.diffuse"), Diffuser(comm, graph, scheme=scheme, tau=tau, exchange=exchange, **options) as diffuser:  # type: ignore[arg-type]
        return diffuser.diffuse(load, speed)


def _check(tolerance: float, max_steps: int, lag: int | None, size: int) -> _Stop:
    usual = (size - 1).bit_length()
    return _Stop(
        number("tolerance", tolerance, above=0.0),
        integer("max_steps", max_steps, 0),
        usual if lag is None else integer("lag", lag, 0),
    )


def _number(value: object) -> float:
    """NaN for what is no number: all ranks raise for it."""
    try:
        return number("value", value)
    except ValueError:
        return math.nan


_FAILED = -1.0


class PlannedTransfers(NamedTuple):
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

    def plan(self, work: float, speeds: Floats) -> PlannedTransfers:
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
        return PlannedTransfers(self._tell(made, error), steps)

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
