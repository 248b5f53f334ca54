"""The halo exchange: every rank gets the values of its ghosts from the ranks that own them, in one call.

All indices are computed once (`lb_mpi.distributing.halo`).  Buffers and persistent requests are made once for each kind
of values (dtype and shape of one value); those of the MOST_KINDS kinds used last are kept.  Messages count values, not
bytes, so a message may exceed 2 GiB.

A rank with invalid values notifies all ranks before it raises, and a rank that waits for it then also raises (see
`lb_mpi.mpi.common.communicator`).
"""

from __future__ import annotations

import math
import time
import zlib
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.distributing.allocation import Allocation
from lb_mpi.distributing.halo import GraphPart
from lb_mpi.distributing.recorded import Halos
from lb_mpi.graph import Ints
from lb_mpi.mpi.common.collective import allgather
from lb_mpi.mpi.common.communicator import duplicate, presence_of, wait
from lb_mpi.mpi.common.late import call
from lb_mpi.mpi.common.parcels import layout
from lb_mpi.mpi.common.recorder import recorder
from lb_mpi.mpi.common.tags import MOST, Tag
from lb_mpi.partitioning.quality import MappingCost
from lb_mpi.record.events import Driver
from lb_mpi.record.report import Report

MOST_KINDS = 16
MOST_BYTES = 2**31 - 1  # of one value: the largest datatype in MPI 3

_Kind = tuple[Any, tuple[int, ...]]


class _Channel(NamedTuple):
    tag: int
    value: MPI.Datatype
    mine: NDArray[Any]  # to send, rank by rank
    theirs: NDArray[Any]  # the ghosts
    receives: list[MPI.Prequest]  # one for each rank in part.ranks
    requests: list[MPI.Prequest]  # these, and one send for each rank

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.value.Free()


class Worth(NamedTuple):
    """The quality of a distribution."""

    cut: float  # weights of all edges between parts
    cost: MappingCost | None = None  # seconds of computing and communicating; None: unknown
    cost_by_cut: MappingCost | None = None  # of the partition by cut alone, if the aim was another


class HaloPlan:
    """A rank's part of a graph, ready to exchange values with its neighbours; returned by `lb_mpi.distribute`.

        with lb_mpi.distribute(comm, graph) as plan:
            heat = begin(plan.vertices)                    # (n_local, ...) any dtype
            for step in range(steps):
                around = plan.exchange(heat)               # (n_local + n_ghosts, ...): the same, then the ghosts
                heat = compute(around, plan.indptr, plan.indices, plan.weights)

    The neighbours of the owned vertex v are indices[indptr[v]:indptr[v + 1]].  These are indices into `around`, in the
    order of the neighbours' global numbers, so a sum in this order is the same to the last bit in any distribution.

    `allocation.counts` is the number of vertices of mean weight that each rank was meant to get.  The parts may deviate
    from it by up to `imbalance` (3 %), since a lighter cut is worth more than a few vertices.

    Attributes
    ----------
    vertices : (n_local,) global numbers of the owned vertices, ascending.
    ghosts : (n_ghosts,) global numbers of the ghosts: vertices of other ranks with a neighbour on this rank.
    indptr : (n_local+1,) positions in `indices` where the neighbours of each owned vertex begin.
    indices : (nnz,) the neighbours: 0..n_local-1 are owned vertices, larger numbers are ghosts.
    weights : (nnz,) weights of the edges, in the order of `indices`.
    vertex_weights : (n_local,) weights of the owned vertices.
    cost : an `lb_mpi.MappingCost`, the time of the partition; None if it is not known, as without `unit_s`.
    cost_by_cut : with aim="time", the `lb_mpi.MappingCost` of the partition by cut alone; otherwise None.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        part: GraphPart,
        worth: Worth,
        allocation: Allocation | None = None,
        parts: Ints | None = None,
        emulated_speed: float = 1.0,
    ) -> None:
        """Make the plan of this rank's part; collective; works on a duplicate of `comm`."""
        self.part = part
        self.vertices, self.ghosts, self.vertex_weights = part.vertices, part.ghosts, part.vertex_weights
        self.indptr, self.indices, self.weights = part.indptr, part.indices, part.weights
        self.cut, self.cost, self.cost_by_cut = worth  # on all ranks
        self.allocation = allocation  # target numbers of vertices of mean weight; None: not computed
        self.parts = parts  # on the root: (n,) the rank of each vertex; None elsewhere
        own = duplicate(comm)
        self._presence = presence_of(own)
        self._presence.name, self._presence.usual_call = "plan", "plan.exchange"
        record = recorder(own)
        how = {"vertices": part.n_local, "weight": float(part.vertex_weights.sum()), "cut": float(self.cut)}
        record.use("exchange", how)
        counts = np.ones(comm.size) if allocation is None else allocation.counts  # in proportion to the ranks' speeds
        self._halos = Halos(record, float(counts[comm.rank] / counts.mean()) if counts.any() else 1.0, emulated_speed)
        mine, total = np.array([part.n_ghosts]), np.zeros(1, dtype=np.int64)
        wait(own, own.Iallreduce(mine, total), (mine, total))
        self.n_halo = int(total[0])  # values in an exchange, on all ranks
        self._channels: dict[_Kind, _Channel] = {}  # the one used last is last; the same order on all ranks

    def __repr__(self) -> str:
        """Show the size of this rank's part."""
        n, ghosts = len(self.vertices), len(self.ghosts)
        return f"<lb_mpi.HaloPlan: {n:,} vertices and {ghosts:,} ghosts on this rank, cut {self.cut:g}>"

    @property
    def halo_bytes(self) -> int:
        """The bytes that all ranks together send to exchange one double per vertex."""
        return 8 * self.n_halo

    def exchange(self, values: Any) -> NDArray[Any]:
        """Return the `values` of the owned vertices, followed by those of the ghosts.  Collective.

        Parameters
        ----------
        values : (n_local, ...) array of any dtype except Python objects; dtype and shape of one value must be the same
            on all ranks.  Or an (n_local + n_ghosts, ...) array, whose last n_ghosts rows are overwritten.

        Returns a new (n_local + n_ghosts, ...) array.  If `values` already has this length (also if there are no
        ghosts), `values` itself is returned, and nothing but the ghosts is copied.

        Raises TypeError or ValueError for invalid values.  The ranks that wait for a rank with such values, or for one
        that exchanges values of another kind, raise `lb_mpi.Error`.  After an error the plan can only be closed.
        """
        self._presence.check()
        self._halos.begin(time.perf_counter(), time.thread_time())
        try:
            return self._exchange(values)
        except BaseException as error:
            self._presence.send_failure(error)
            raise
        finally:
            self._halos.end(time.perf_counter(), time.thread_time())

    def report(self) -> Report:
        """Return the size and times of each rank's part so far, the same on all ranks; collective; prints as a table."""
        self._presence.check()
        part, comm = self.part, self._presence.comm
        with call("lb_mpi.HaloPlan.report"), self._presence.notifying():
            ranks = allgather(comm, self._halos.rank(comm.rank, part.n_local, part.n_ghosts))
            return Report(Driver.EXCHANGE, self._halos.n, tuple(ranks))

    def _exchange(self, values: Any) -> NDArray[Any]:
        array = self._check(values)
        n_local, n_ghosts = self.part.n_local, self.part.n_ghosts
        channel = self._channel((array.dtype, array.shape[1:]))
        np.take(array, self.part.send, axis=0, out=channel.mine, mode="clip")
        requests = channel.requests
        if requests:
            MPI.Prequest.Startall(requests)
            self._presence.wait(lambda: MPI.Prequest.Testall(requests), channel, late=lambda: self._stray(channel))
        if len(array) == n_local + n_ghosts:
            around = array
        else:
            around = np.empty((n_local + n_ghosts, *array.shape[1:]), array.dtype)
            around[:n_local] = array
        if n_ghosts:
            around[n_local:] = channel.theirs
        return around

    def _check(self, values: Any) -> NDArray[Any]:
        array = np.asarray(values)
        n_local, n_all = self.part.n_local, self.part.n_local + self.part.n_ghosts
        if array.dtype.hasobject or isinstance(values, np.ma.MaskedArray):
            raise TypeError(f"values of {type(values).__name__}, {array.dtype}: expected an array without Python objects")
        if array.ndim < 1 or len(array) not in (n_local, n_all):
            expected = f"{n_local} rows, for the owned vertices, or {n_all} with ghosts"
            raise ValueError(f"values of shape {array.shape}: expected {expected}")
        if len(array) == n_all and n_all > n_local and not array.flags.writeable:
            raise ValueError("values with room for ghosts that can't be written to: expected a writeable array")
        return array

    def _channel(self, kind: _Kind) -> _Channel:
        channel = self._channels.pop(kind, None)
        if channel is None:
            if len(self._channels) == MOST_KINDS:
                self._channels.pop(next(iter(self._channels))).free()
            channel = self._open(*kind)
        self._channels[kind] = channel
        return channel

    def _open(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Channel:
        part, comm = self.part, self._presence.comm
        size = dtype.itemsize * math.prod(shape)
        if size > MOST_BYTES:
            raise ValueError(f"values of {size} bytes each: expected at most {MOST_BYTES}")
        tag = Tag.HALO + zlib.crc32(repr((layout(dtype), shape)).encode()) % (MOST + 1 - Tag.HALO)
        mine, outbox = _memory(len(part.send), dtype, shape)
        theirs, inbox = _memory(part.n_ghosts, dtype, shape)
        value = MPI.BYTE.Create_contiguous(size).Commit()
        receives, sends = [], []
        for k, rank in enumerate(part.ranks.tolist()):
            begin, end = part.receive_indptr[k : k + 2].tolist()
            receives.append(comm.Recv_init([inbox[size * begin : size * end], end - begin, value], rank, tag))
            begin, end = part.send_indptr[k : k + 2].tolist()
            sends.append(comm.Send_init([outbox[size * begin : size * end], end - begin, value], rank, tag))
        return _Channel(tag, value, mine, theirs, receives, receives + sends)

    def _stray(self, channel: _Channel) -> str | None:
        """Name the lowest rank that has sent something else than the expected values; None if there is none."""
        status, comm = MPI.Status(), self._presence.comm
        for rank, request in zip(self.part.ranks.tolist(), channel.receives, strict=True):
            # Messages of a rank keep their order: had it sent the expected ones first, they would have arrived.
            other = comm.Iprobe(rank, MPI.ANY_TAG, status) and Tag.HALO <= status.Get_tag() != channel.tag
            if other and not request.Get_status():
                return f"rank {rank} exchanges values of another dtype or shape than rank {comm.rank}"
        return None

    def close(self) -> None:
        """Free the MPI resources; collective.  Further calls do nothing."""
        self._halos.close(time.perf_counter(), time.thread_time())
        self._presence.close(self._free)

    def _free(self) -> None:
        for channel in self._channels.values():
            channel.free()
        self._channels.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._presence.leaving(error):
            self.close()


def _memory(n: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A new (n, *shape) array, and its memory as bytes, since MPI does not accept every dtype."""
    memory = np.empty(n * dtype.itemsize * math.prod(shape), dtype=np.uint8)
    return np.ndarray((n, *shape), dtype, buffer=memory.data), memory
