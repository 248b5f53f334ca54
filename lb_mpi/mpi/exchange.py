"""The neighbour exchange: every rank tells its neighbours in a graph a few numbers, and hears theirs.

Two ways to do it.  "paper" is that of Jin & Wang: send to each neighbour without blocking, then receive from each.
"neighbourhood" leaves it to the MPI: one neighbourhood collective, made once and started anew for every exchange where the
MPI can do that (MPI 4), which takes half the time; everybody tells all neighbours the same, so it is an allgather.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.collective import agree, agree_on
from lb_mpi.mpi.waiting import wait

METHODS = ("neighbourhood", "paper")
LOOKS = 8  # before waiting: MPICH gives the processor away in every wait, which takes longer than a message does
_TAG = 1


class NeighbourExchange:
    """Exchanges between neighbours in `graph`, vertex k of which is rank k of `comm`.

        with NeighbourExchange(comm, graph) as exchange:
            theirs = exchange.exchange(mine)            # (deg,), in the order of graph.neighbours(comm.rank)

    Collective, as is `close`.  Works on a communicator of its own.  `method`: "neighbourhood" (the usual one), "paper".
    `patient`: who waits, sleeps, for neighbours that may be busy; otherwise the MPI waits, which is quick, but burns the
    processor, or yields it at best.

    ValueError or TypeError on every rank when an argument is wrong on any, or not the same on all.
    """

    def __init__(self, comm: MPI.Intracomm, graph: Graph, method: str | None = None, *, patient: bool = False) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"comm = {comm!r}: expected an mpi4py intracommunicator")
        own = comm.Dup()
        try:
            agree(own, lambda: _check(graph, own.size, method))
            agree_on(own, method=method, edges_of_graph=fingerprint(graph))
            self.method = method or METHODS[0]
            self.neighbours = graph.neighbours(comm.rank)
            ranks = self.neighbours.tolist()
            make = own.Dup if self.method == "paper" else partial(own.Create_dist_graph_adjacent, ranks, ranks)
            self.comm: MPI.Intracomm = make()
        finally:
            own.Free()
        self._patient = patient
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._exchange_number = self._plan(()).exchange

    def exchange(self, values: float | ArrayLike) -> Floats:
        """Collective: tell all neighbours `values`, a number or an array of any shape, the same shape on all ranks.

        Returns theirs: a (deg, ...) array, read-only, which the next exchange of this shape overwrites.
        """
        if type(values) is float:  # the usual case has to be quick
            return self._exchange_number(values)
        return self._plan(np.shape(values)).exchange(values)

    def _plan(self, shape: tuple[int, ...]) -> _Plan:
        if shape not in self._plans:
            make = _paper if self.method == "paper" else _neighbourhood
            self._plans[shape] = make(self.comm, self.neighbours.tolist(), shape, self._patient)
        return self._plans[shape]

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        for plan in self._plans.values():
            plan.free()
        self._plans.clear()
        if self.comm:  # not yet COMM_NULL
            self.comm.Free()

    def __enter__(self) -> NeighbourExchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Plan(NamedTuple):
    """Exchanges of values of one shape."""

    exchange: Callable[[ArrayLike], Floats]
    free: Callable[[], None]


def _neighbourhood(comm: MPI.Intracomm, neighbours: list[int], shape: tuple[int, ...], patient: bool) -> _Plan:
    """A collective over the communicator's own graph."""
    assert isinstance(comm, MPI.Topocomm)
    topology, mine, theirs = comm, np.zeros(shape), np.zeros((len(neighbours), *shape))
    put, seen = _writer(mine), _read_only(theirs)
    try:
        request = topology.Neighbor_allgather_init(mine, theirs)
    except NotImplementedError:  # by an MPI older than MPI 4

        def exchange_anew(values: ArrayLike) -> Floats:
            put(values)
            _complete(topology.Ineighbor_allgather(mine, theirs), patient)
            return seen

        return _Plan(exchange_anew, lambda: None)
    start, done, complete = request.Start, request.Test, partial(wait, request) if patient else request.Wait

    def exchange(values: ArrayLike) -> Floats:  # look-ups and copies would take as long as a message
        put(values)
        start()
        for _ in range(LOOKS):
            if done():
                return seen
        complete()
        return seen

    return _Plan(exchange, request.Free)


def _paper(comm: MPI.Intracomm, neighbours: list[int], shape: tuple[int, ...], patient: bool) -> _Plan:
    """Non-blocking sends, then one receive after the other."""
    mine, theirs = np.zeros(shape), np.zeros((len(neighbours), *shape))
    put, seen = _writer(mine), _read_only(theirs)

    def exchange(values: ArrayLike) -> Floats:
        put(values)
        sends = [comm.Isend(mine, neighbour, _TAG) for neighbour in neighbours]
        for k, neighbour in enumerate(neighbours):
            _complete(comm.Irecv(theirs[k : k + 1], neighbour, _TAG), patient)
        for send in sends:
            _complete(send, patient)
        return seen

    return _Plan(exchange, lambda: None)


def _writer(array: Floats) -> Callable[[ArrayLike], None]:
    """What writes values into the array; one number the quick way."""
    return partial((array.data if array.ndim == 0 else array).__setitem__, ())


def _read_only(array: Floats) -> Floats:
    view = array.view()
    view.flags.writeable = False
    return view


def _complete(request: MPI.Request, patient: bool) -> None:
    if patient:
        wait(request)
    else:
        request.Wait()


def fingerprint(graph: Graph) -> int:
    """A checksum of the edges of `graph`, to compare it between ranks."""
    return zlib.crc32(graph.indices.tobytes(), zlib.crc32(graph.indptr.tobytes()))


def _check(graph: object, size: int, method: object) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"graph = {graph!r}: expected an lb_mpi.graph.Graph")
    if graph.n != size:
        raise ValueError(f"graph of {graph.n} vertices: expected {size}, one for each rank")
    if method is not None and method not in METHODS:
        raise ValueError(f"method = {method!r}: expected one of {', '.join(METHODS)}")
