"""The process graph of a communicator: which one it is, exchanges along its edges, and ranks reordered to fit it.

In a neighbour exchange every rank sends its neighbours a few numbers, and receives theirs.  Method "paper" is that of Jin
and Wang: send to each neighbour without blocking, then receive from each.  "neighbourhood" leaves it to the MPI: one
neighbourhood collective, made once and started anew for every exchange where the MPI can do that (MPI 4), which takes half
the time.  As a rank sends all neighbours the same, it is an allgather.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.checks import choice, show
from lb_mpi.graph import Floats, Graph, host_graph, mesh, most_square_mesh
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_speeds
from lb_mpi.mpi.common.collective import agree, agree_on, duplicate, opened, wait
from lb_mpi.mpi.common.presence import Tag, adopt, call, presence_of


def graph_of_ranks(graph: Any, size: int) -> Graph:
    """The graph, in any shape that `lb_mpi.as_graph` takes; ValueError unless it has a vertex for each rank."""
    layout = as_graph(graph)
    if layout.n != size:
        raise ValueError(f"graph of {layout.n} vertices: expected {size}, one for each rank")
    return layout


def process_graph(comm: MPI.Intracomm, graph: Any, hosts: Sequence[str]) -> Graph:
    """The graph of all ranks, which are on these (P,) hosts, by name.

    For None: one that follows the hosts where some of several have more than one rank, so that work goes to a rank of the
    same host first; otherwise that of a Cartesian communicator; otherwise the most square mesh.
    """
    if graph is not None:
        return graph_of_ranks(graph, comm.size)
    if 1 < len(set(hosts)) < len(hosts):
        return host_graph(hosts)
    if isinstance(comm, MPI.Cartcomm) and comm.dim > 0:
        return grid(comm.dims, comm.periods)
    return mesh(*most_square_mesh(comm.size))


def grid(dims: Sequence[int], periods: Sequence[int]) -> Graph:
    """The process graph of a Cartesian communicator; ranks in row-major order, as the MPI has them."""
    ranks = np.arange(math.prod(dims)).reshape(dims)
    tails, heads = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for axis, (length, periodic) in enumerate(zip(dims, periods, strict=True)):
        along = np.moveaxis(ranks, axis, 0)
        tails.append(along[:-1].ravel())
        heads.append(along[1:].ravel())
        if periodic and length > 2:
            tails.append(along[-1].ravel())
            heads.append(along[0].ravel())
    return Graph.from_edges(ranks.size, np.concatenate(tails), np.concatenate(heads))


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
                self.graph = agree(own, lambda: _check_exchange(graph, own.size, method))
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


def _check_exchange(graph: object, size: int, method: object) -> Graph:
    choice("method", method, METHODS)
    return graph_of_ranks(graph, size)


def reorder_ranks(
    comm: MPI.Intracomm,
    graph: Any,
    speeds: ArrayLike,
    *,
    objective: str = "uniform",
    method: str = "swap",
    seed: int = 0,
) -> MPI.Intracomm:
    """A new communicator of the same processes: its rank k is the one that ought to sit at vertex k of `graph`.

    Collective.  `speeds` (P,) are those of the ranks of `comm`, the same on all ranks; the others as for `lb_mpi.arrange`.
    Rank 0 computes, the others are told.  Free the communicator when it isn't needed any more; `comm` stays as it is.

        placed = lb_mpi.reorder_ranks(comm, graph, comm.allgather(my_speed))
        balancer = lb_mpi.Balancer(placed, ...)

    ValueError or TypeError on every rank when an argument is wrong on any, or not the same on all.
    """
    from lb_mpi.arranging.arrange import arrange  # numba, which a Balancer doesn't need

    with opened(comm, "lb_mpi.reorder_ranks") as own:
        layout, checked, number = agree(own, lambda: _check_reordering(own.size, graph, speeds, seed))
        options: dict[str, Any] = {"objective": objective, "method": method, "seed": number}
        agree_on(own, graph=fingerprint(layout), speeds=checked.tolist(), **options)
        on_root = own.rank == 0
        found = agree(own, lambda: arrange(layout, checked, **options).vertices if on_root else None)
        places = np.empty(own.size, dtype=np.int64) if found is None else found
        wait(own, own.Ibcast(places), places)
        return MPI.Intracomm(own.Split(0, int(places[own.rank])))  # all ranks are here


def _check_reordering(size: int, graph: Any, speeds: ArrayLike, seed: int) -> tuple[Graph, Floats, int]:
    return graph_of_ranks(graph, size), check_speeds(speeds, size), checks.seed(seed)
