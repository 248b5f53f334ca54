"""The neighbour exchange: every rank tells its neighbours in a graph a few numbers, and hears theirs.

Two ways to do it.  "paper" is that of Jin & Wang: send to each neighbour without blocking, then receive from each.
"neighbourhood" leaves it to the MPI: one neighbourhood collective, made once and started anew for every exchange where the
MPI can do that (MPI 4), which takes half the time; everybody tells all neighbours the same, so it is an allgather.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.checks import choice, show
from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.common.collective import agree, agree_on, duplicate
from lb_mpi.mpi.common.presence import Tag, adopt, call, presence_of
from lb_mpi.mpi.rows.process_graph import graph_of_ranks

METHODS = ("neighbourhood", "paper")
_NAME = "NeighbourExchange"


class NeighbourExchange:
    """Exchanges between neighbours in `graph`, vertex k of which is rank k of `comm`.

        with NeighbourExchange(comm, graph) as exchange:
            theirs = exchange.exchange(mine)            # (deg,), in the order of graph.neighbours(comm.rank)

    `graph` comes in any shape that `lb_mpi.as_graph` takes.  Collective, as is `close`.  Works on a communicator of its
    own.  `method` is one of METHODS; `shape` is that of what
    every rank tells, () for a number.

    ValueError or TypeError on every rank when an argument is wrong on any, or not the same on all.  A rank that leaves the
    `with` statement by an exception tells all others: `lb_mpi.Error` for who waits for it.
    """

    def __init__(
        self, comm: MPI.Intracomm, graph: Any, *, method: str = METHODS[0], shape: tuple[int, ...] = ()
    ) -> None:
        with call(_NAME):
            own = duplicate(comm)
            self.presence = presence_of(own)
            self.presence.name = self.presence.usual_call = _NAME
            try:
                self.graph = agree(own, lambda: _check(graph, own.size, method))
                agree_on(own, method=method, edges_of_graph=fingerprint(self.graph), shape=shape)
                neighbours = self.graph.neighbours(own.rank).tolist()
                self._mine, self._theirs = agree(own, lambda: (np.zeros(shape), np.zeros((len(neighbours), *shape))))
                if method != "paper":  # all ranks are here
                    self.presence = adopt(own.Create_dist_graph_adjacent(neighbours, neighbours), own)
                    own.Free()
            except BaseException as error:
                self.presence.leave(error)
                raise
        self._cell: Any = self._mine.data
        self._put = self._put_array if shape else self._put_number
        self._seen = self._theirs.view()
        self._seen.flags.writeable = False
        self._request: MPI.Prequest | None = None
        self._run = self._paper(neighbours) if method == "paper" else self._neighbourhood()

    def exchange(self, values: float | ArrayLike) -> Floats:
        """Collective: tell all neighbours `values`, of the shape that was agreed on.

        Returns theirs: a (deg, ...) array, read-only, which the next exchange overwrites.  TypeError or ValueError for
        values that won't do; they are an `lb_mpi.Error` on the ranks that wait for this one.  After that: only `close`.
        """
        self.presence.check()
        try:
            self._put(values)
            self._run()
        except BaseException as error:
            self.presence.spread(error)
            raise
        return self._seen

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        self.presence.close(self._free)

    def __enter__(self) -> NeighbourExchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.presence.spread(error)
        self.close()

    def _put_number(self, value: float | ArrayLike) -> None:
        try:
            self._cell[()] = value  # the quickest way
        except (TypeError, ValueError):
            raise TypeError(f"values = {show(value)}: expected a number") from None

    def _put_array(self, values: float | ArrayLike) -> None:
        if np.shape(values) != self._mine.shape:
            raise ValueError(f"values of shape {np.shape(values)}: expected {self._mine.shape}")
        self._mine[...] = values

    def _neighbourhood(self) -> Callable[[], None]:
        """A collective over the communicator's own graph."""
        comm, mine, theirs, wait = self.presence.comm, self._mine, self._theirs, self.presence.wait
        assert isinstance(comm, MPI.Topocomm)
        try:
            request = comm.Neighbor_allgather_init(mine, theirs)
        except NotImplementedError:  # by an MPI older than MPI 4
            return lambda: wait(comm.Ineighbor_allgather(mine, theirs).Test, self)
        start, done = request.Start, request.Test
        self._request = request

        def run() -> None:
            start()
            wait(done, self)

        return run

    def _paper(self, neighbours: list[int]) -> Callable[[], None]:
        """Non-blocking sends, then one receive after the other."""
        comm, mine, theirs, wait = self.presence.comm, self._mine, self._theirs, self.presence.wait
        tag = int(Tag.NEIGHBOUR)  # the MPI takes it sooner than an enum

        def run() -> None:
            sends = [comm.Isend(mine, neighbour, tag) for neighbour in neighbours]
            for k, neighbour in enumerate(neighbours):
                wait(comm.Irecv(theirs[k : k + 1], neighbour, tag).Test, (self, sends))
            for send in sends:
                wait(send.Test, (self, sends))

        return run

    def _free(self) -> None:
        if self._request is not None:
            self._request.Free()


def fingerprint(graph: Graph) -> int:
    """Sum up the edges of `graph` in a checksum, to compare it between ranks."""
    return zlib.crc32(graph.indices.tobytes(), zlib.crc32(graph.indptr.tobytes()))


def _check(graph: object, size: int, method: object) -> Graph:
    choice("method", method, METHODS)
    return graph_of_ranks(graph, size)
