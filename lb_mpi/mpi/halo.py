"""The halo exchange: every rank gets the values of its ghosts from the ranks that own them, in one call.

All indices are computed once (`lb_mpi.distributing.halo`), buffers and requests are made once for each kind of values
(dtype and shape
of one value) and started anew for every exchange.  Messages are the values themselves.

A rank whose values won't do tells all ranks before it raises, and whoever waits for it then raises, too.  In an exchange
that goes well this costs nothing: only a rank that has waited for a while looks for such news.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.distributing.allocation import Allocation
from lb_mpi.distributing.halo import Part
from lb_mpi.graph import Floats, Ints
from lb_mpi.mpi.waiting import Nap

LONGEST_NAP_S = 0.5e-3
QUICK_S = 0.2e-3  # without a nap, since balanced ranks are done at nearly the same time; others may have the core
NEWS_AFTER_S = 5e-3  # of waiting
STRAY_AFTER_S = 1.0  # of waiting: does a neighbour exchange something else?
_BAD_NEWS, _FIRST_TAG, _TAGS = 1, 2, 32_000  # MPI promises tags up to 32,767

_Kind = tuple[Any, tuple[int, ...]]
_abandoned: list[Any] = []  # after a failure the MPI may still write to the buffers: they stay


class _Channel(NamedTuple):
    """Buffers and requests for values of one kind."""

    tag: int
    mine: NDArray[Any]  # what is sent, rank by rank
    theirs: NDArray[Any]  # the ghosts
    receives: list[MPI.Prequest]  # one for each rank in part.ranks
    requests: list[MPI.Prequest]  # these, and one for each rank to send


class HaloPlan:
    """A rank's part of a graph, ready to exchange: made by `lb_mpi.distribute`.

        with lb_mpi.distribute(comm, graph) as plan:
            heat = begin(plan.vertices)                    # (n_local, ...) any dtype
            for step in range(steps):
                around = plan.exchange(heat)               # (n_local + n_ghosts, ...): the same, then the ghosts
                heat = compute(around, plan.indptr, plan.indices, plan.weights)

    The neighbours of owned vertex v are indices[indptr[v]:indptr[v + 1]], numbers in `around`, in the order of their
    global numbers: a sum over them in that order is the same to the last bit in any distribution.
    """

    def __init__(
        self, comm: MPI.Intracomm, part: Part, cut: float, allocation: Allocation | None = None, parts: Ints | None = None
    ) -> None:
        """Collective: everybody's own part; works on a duplicate of `comm`."""
        self.part = part
        self.cut = cut  # weights of all edges between parts, on all ranks
        self.allocation = allocation  # how many vertices (of mean weight) each rank was to get; None: wasn't computed
        self.parts = parts  # on the root: (n,) the rank of each vertex; None elsewhere
        self._comm = comm.Dup()
        self.n_halo = int(self._comm.allreduce(part.n_ghosts))  # values in an exchange, on all ranks
        self._channels: dict[_Kind, _Channel] = {}
        self._failure: str | None = None

    @property
    def vertices(self) -> Ints:
        """(n_local,) global numbers of the owned vertices, ascending."""
        return self.part.vertices

    @property
    def ghosts(self) -> Ints:
        """(n_ghosts,) global numbers of the ghosts."""
        return self.part.ghosts

    @property
    def indptr(self) -> Ints:
        """(n_local+1,) where the neighbours of each owned vertex begin."""
        return self.part.indptr

    @property
    def indices(self) -> Ints:
        """(nnz,) neighbours: owned vertices 0..n_local-1, then ghosts."""
        return self.part.indices

    @property
    def weights(self) -> Floats:
        """(nnz,) of the edges, beside `indices`."""
        return self.part.weights

    @property
    def vertex_weights(self) -> Floats:
        """(n_local,) of the owned vertices."""
        return self.part.vertex_weights

    @property
    def halo_bytes(self) -> int:
        """Bytes that an exchange of one double for each vertex sends, on all ranks together."""
        return 8 * self.n_halo

    def exchange(self, values: Any) -> NDArray[Any]:
        """Collective: `values` of the owned vertices, followed by those of the ghosts.

        values (n_local, ...): of any dtype but Python objects; the same dtype and shape of a value on all ranks.  Returns a
        new (n_local + n_ghosts, ...) array.  An array of that length (and without ghosts, any) is returned itself, its last
        n_ghosts rows filled in: nothing is copied but ghosts.

        TypeError or ValueError for values that won't do.  They, and a rank that exchanges something else, are a RuntimeError
        on the ranks that wait for it.  Afterwards the plan can only be closed.
        """
        if self._failure is not None:
            raise RuntimeError(f"plan after a failure ({self._failure}): expected close")
        if not self._comm:
            raise ValueError("a plan that was closed: expected an open one")
        try:
            array = self._check(values)
        except (TypeError, ValueError) as error:
            self._spread(str(error))
            raise
        n_local, n_ghosts = self.part.n_local, self.part.n_ghosts
        kind = array.dtype, array.shape[1:]
        channel = self._channels.get(kind) or self._open(kind)
        np.take(array, self.part.send, axis=0, out=channel.mine, mode="clip")
        if channel.requests:
            MPI.Prequest.Startall(channel.requests)
            self._complete(channel)
        if len(array) == n_local + n_ghosts:
            around = array
        else:
            around = np.empty((n_local + n_ghosts, *array.shape[1:]), array.dtype)
            around[:n_local] = array
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

    def _open(self, kind: _Kind) -> _Channel:
        dtype, shape = kind
        part = self.part
        tag = _FIRST_TAG + zlib.crc32(repr((dtype.descr, shape)).encode()) % _TAGS
        mine, outbox = _memory(len(part.send), dtype, shape)
        theirs, inbox = _memory(part.n_ghosts, dtype, shape)
        size = dtype.itemsize * math.prod(shape)
        receives, sends = [], []
        for k, rank in enumerate(part.ranks.tolist()):
            begin, end = (size * part.receive_indptr[k : k + 2]).tolist()
            receives.append(self._comm.Recv_init([inbox[begin:end], MPI.BYTE], rank, tag))
            begin, end = (size * part.send_indptr[k : k + 2]).tolist()
            sends.append(self._comm.Send_init([outbox[begin:end], MPI.BYTE], rank, tag))
        channel = self._channels[kind] = _Channel(tag, mine, theirs, receives, receives + sends)
        return channel

    def _complete(self, channel: _Channel) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < QUICK_S:
            if MPI.Prequest.Testall(channel.requests):
                return
            os.sched_yield()
        nap = Nap(LONGEST_NAP_S)
        while not MPI.Prequest.Testall(channel.requests):
            nap.take()
            waited_s = time.perf_counter() - began
            if waited_s > NEWS_AFTER_S and self._comm.Iprobe(MPI.ANY_SOURCE, _BAD_NEWS):
                self._fail(str(self._comm.recv(source=MPI.ANY_SOURCE, tag=_BAD_NEWS)))
            if waited_s > STRAY_AFTER_S and (stray := self._stray(channel)) is not None:
                told = f"rank {stray} exchanges values of another dtype or shape than rank {self._comm.rank}"
                self._spread(told)
                self._fail(told)

    def _stray(self, channel: _Channel) -> int | None:
        """The lowest rank that has sent something else, while its values were expected."""
        status = MPI.Status()
        for rank, request in zip(self.part.ranks.tolist(), channel.receives, strict=True):
            # Messages of a rank don't overtake each other: had it sent the right ones first, they would have arrived.
            other = self._comm.Iprobe(rank, MPI.ANY_TAG, status) and status.Get_tag() not in (channel.tag, _BAD_NEWS)
            if other and not request.Get_status():
                return int(rank)
        return None

    def _spread(self, text: str) -> None:
        """Tell all other ranks that this one can't go on."""
        self._failure = text
        told = text if text.startswith("rank ") else f"rank {self._comm.rank}: {text}"
        _abandoned.extend(self._comm.isend(told, k, _BAD_NEWS) for k in range(self._comm.size) if k != self._comm.rank)

    def _fail(self, text: str) -> None:
        self._failure = text
        raise RuntimeError(text)

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        if not self._comm:
            return
        failed = self._comm.allreduce(self._failure is not None, MPI.LOR)
        if failed:  # messages may be under way, which no later communicator must receive: this one stays
            _abandoned.append((self._comm, self._channels))
            self._comm = MPI.COMM_NULL  # type: ignore[assignment]
            self._channels = {}
            return
        for channel in self._channels.values():
            for request in channel.requests:
                request.Free()
        self._channels.clear()
        self._comm.Free()

    def __enter__(self) -> HaloPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _memory(n: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A new (n, *shape) array, and the same memory as bytes: not every dtype can be handed to the MPI."""
    memory = np.empty(n * dtype.itemsize * math.prod(shape), dtype=np.uint8)
    return np.ndarray((n, *shape), dtype, buffer=memory.data), memory
