"""Diffusion on real ranks: carries `diffusion.diffusion` by neighbour exchanges; the stopping test runs beside the steps."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from types import TracebackType
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.diffusion.diffusion import Local, RankDiffusion, Setup, direct_flow, prepare
from lb_mpi.diffusion.flow import cancel_cycles
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import check_loads, check_speeds
from lb_mpi.mpi.collective import agree, agree_on
from lb_mpi.mpi.exchange import NeighbourExchange
from lb_mpi.mpi.waiting import wait


class Diffused(NamedTuple):
    """What `diffuse` found; the same on all ranks but for `flow`."""

    flow: Floats  # (deg,) work to each neighbour, < 0: from it; in the order of graph.neighbours(rank)
    steps: int  # exchanges between neighbours that the flow took; direct: 1, a collective
    converged: bool
    imbalance: list[float]  # before each step and after the last: (steps+1,)


class Diffuser:
    """A scheme on all ranks of `comm`: what depends on no load, made once by rank 0, and the neighbour exchange.

        with Diffuser(comm, graph, speed, "sos") as diffuser:
            for round in range(rounds):
                found = diffuser.diffuse(load)

    Vertex k of `graph` is rank k of `comm`; `speed` > 0 is this rank's.  Scheme and tau as for `diffusion.setup.prepare`.
    Collective, as are all methods.  Works on communicators of its own.

    The stopping test, whether all ranks were balanced after a step, is asked at once, but heard only `lag` >= 0 steps later
    (None: log2 of the number of ranks, rounded up); the steps made meanwhile are forgotten.

    ValueError or TypeError on every rank when an argument is wrong on any, or (but for `speed`) not the same on all.
    UserWarning on rank 0 for a graph that isn't connected: each component is balanced by itself.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        graph: Graph,
        speed: float,
        scheme: str = "fos",
        tau: str | None = None,
        *,
        tolerance: float = 0.05,
        max_steps: int = 100_000,
        lag: int | None = None,
    ) -> None:
        self._exchange = NeighbourExchange(comm, graph)
        self._comm = own = self._exchange.comm
        self._tolerance, self._max_steps = tolerance, max_steps
        self._lag = lag
        try:
            mine = agree(own, lambda: _check(speed, tolerance, max_steps, lag))
            agree_on(own, scheme=scheme, tau=tau, tolerance=tolerance, max_steps=max_steps, lag=lag)
            speeds = np.zeros(own.size)
            own.Allgather(mine, speeds)
            self._setup = agree(own, lambda: prepare(graph, speeds, scheme, tau) if own.rank == 0 else None)
            parts = agree(own, lambda: _parts(self._setup))
            self._local: Local = own.scatter(parts)
        except Exception:
            self._exchange.close()
            raise
        self._speeds, self._labels = speeds, graph.components()[1]
        self._speed_of_components = np.bincount(self._labels, speeds)

    def diffuse(self, load: float) -> Diffused:
        """The flow that levels the ranks' loads, `load` >= 0 units of work on this one, to the tolerance.

        The same steps and the same flow as `lb_mpi.balance` of the whole graph, to the last bit (direct: to
        rounding).  It begins with an allgather of the loads, since all need their sum.  That is all for scheme direct.  In
        the others only neighbours talk, but for the stopping test, and for the sums of cg.

        ValueError on every rank for a bad load on any.
        """
        comm, loads = self._comm, np.zeros(self._comm.size)
        wait(comm.Iallgather(np.array([_number(load)]), loads))
        check_loads(loads)
        balanced = (np.bincount(self._labels, loads) / self._speed_of_components)[self._labels]
        before = float((loads / self._speeds / np.where(balanced > 0, balanced, 1.0)).max()) - 1.0
        if before <= self._tolerance or self._max_steps == 0:
            flow = np.zeros(len(self._local.neighbours))
            return Diffused(flow, 0, before <= self._tolerance, [max(0.0, before)])
        if self._local.direct is not None:  # what is left is rounding; to measure that would take another collective
            return Diffused(direct_flow(self._local, loads), 1, True, [before, 0.0])
        one = RankDiffusion(self._local, float(loads[comm.rank]), float(balanced[comm.rank]), partial(total, comm))
        stopped, imbalance = level(comm, self._exchange, one, self._tolerance, self._max_steps, self._lag)
        flow = stopped.flow(self._exchange.exchange(stopped.potential))
        if self._local.scheme == "dimension_exchange":
            flow = self._without_cycles(flow)
        return Diffused(flow, len(imbalance) - 1, imbalance[-1] <= self._tolerance, imbalance)

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        self._exchange.close()

    def __enter__(self) -> Diffuser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _without_cycles(self, flow: Floats) -> Floats:
        # Circles are long: only the root can see them all.
        comm, setup = self._comm, self._setup
        flows = comm.gather(flow)
        given: list[Floats] | None = None
        if flows is not None and setup is not None:
            tails, heads = setup.graph.edges()
            ends = [setup.graph.neighbours(rank) > rank for rank in range(comm.size)]
            whole = np.concatenate([part[upper] for part, upper in zip(flows, ends, strict=True)])
            whole = cancel_cycles(setup.graph, whole)
            given = []
            for rank in range(comm.size):
                edges = (tails == rank) | (heads == rank)
                given.append(np.where(tails[edges] == rank, whole[edges], -whole[edges]))
        return np.asarray(comm.scatter(given))


def level(
    comm: MPI.Intracomm,
    exchange: NeighbourExchange,
    one: RankDiffusion,
    tolerance: float,
    max_steps: int,
    lag: int | None = None,
) -> tuple[RankDiffusion, list[float]]:
    """Collective: step until all ranks are balanced, or max_steps times; the stopping test runs beside the steps.

    Returns the state after the first step that balances all ranks (or after the last), and the greatest imbalances up to it,
    the same on all ranks; that of a rank that is asked for more than it has is infinite.  `lag` as for `Diffuser`.
    """
    lag = (comm.size - 1).bit_length() if lag is None else lag
    asked: deque[tuple[MPI.Request, Floats, Floats, RankDiffusion]] = deque()
    heard: list[float] = []
    for step in range(max_steps + 1):
        mine, worst = np.array([one.imbalance]), np.zeros(1)
        request = comm.Iallreduce(mine, worst, MPI.MAX)
        asked.append((request, mine, worst, one.snapshot()))  # mpi4py doesn't keep the buffers of this one alive
        while len(asked) > (lag if step < max_steps else 0):
            request, mine, worst, state = asked.popleft()
            request.Wait()
            heard.append(max(0.0, float(worst[0])))
            if heard[-1] <= tolerance:
                for request, *_ in asked:
                    request.Wait()
                return state, heard
        if step < max_steps:
            one.step(exchange.exchange(one.value))
    return one, heard


def total(comm: MPI.Intracomm, numbers: Floats) -> Floats:
    """Everybody's numbers, added up in the order in which a whole graph adds them: the same bits with every MPI."""
    everyone = np.empty((comm.size, len(numbers)))
    comm.Allgather(numbers, everyone)
    return np.asarray(np.ascontiguousarray(everyone.T).sum(axis=1))


def diffuse(
    comm: MPI.Intracomm,
    graph: Graph,
    load: float,
    speed: float,
    scheme: str = "fos",
    tau: str | None = None,
    *,
    tolerance: float = 0.05,
    max_steps: int = 100_000,
) -> Diffused:
    """The flow to each neighbour in `graph` that levels `load` of every rank on `speed` of every rank; collective.

    For one time only; see `Diffuser`.
    """
    with Diffuser(comm, graph, speed, scheme, tau, tolerance=tolerance, max_steps=max_steps) as diffuser:
        return diffuser.diffuse(load)


def _parts(setup: Setup | None) -> list[Local] | None:
    return None if setup is None else [setup.local(rank) for rank in range(setup.graph.n)]


def _check(speed: float, tolerance: float, max_steps: int, lag: int | None) -> Floats:
    if not 0.0 < tolerance < math.inf:
        raise ValueError(f"tolerance = {tolerance!r}: expected a finite number > 0")
    if max_steps < 0:
        raise ValueError(f"max_steps = {max_steps!r}: expected at least 0")
    if lag is not None and lag < 0:
        raise ValueError(f"lag = {lag!r}: expected at least 0")
    return check_speeds([speed], name="speed")


def _number(load: float) -> float:
    """NaN for what is no number: all ranks raise for it."""
    try:
        return float(load)
    except (TypeError, ValueError):
        return math.nan
