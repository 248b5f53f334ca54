"""The orders of a pool's root, which the other ranks follow one after the other, and data for all ranks."""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.common.communicator import blocking, presence_of
from lb_mpi.mpi.common.parcels import UNIT_BYTES, Buffer, Parcels, body, parcel, unit
from lb_mpi.mpi.common.shared import SharedBytes
from lb_mpi.mpi.common.tags import Tag

INLINE_BYTES = 64 << 10  # longer data is broadcast
_N_BYTES = struct.Struct("<q")  # at the start of an order: of the data that all ranks get


class Order(NamedTuple):
    """From the root: what a rank is to do next."""

    tag: int  # of Tag
    parcel: Buffer


class Orders:
    """The orders of one pool; those that have arrived wait here until the rank follows them.

    See `Broadcast`.  `close` is collective.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, firsts: MPI.Intracomm, parcels: Parcels) -> None:
        self._others, self._parcels = [rank for rank in range(comm.size) if rank != comm.rank], parcels
        self._waiting = deque[Order]()
        self._broadcast = Broadcast(comm, host, firsts)

    def receive(self, order: Order) -> None:
        """Keep an order until it is due."""
        self._waiting.append(order)

    @property
    def first(self) -> Order | None:
        """The order to follow next; None: none has arrived."""
        return self._waiting[0] if self._waiting else None

    def follow(self) -> Order:
        """Remove and return the first order."""
        return self._waiting.popleft()

    def drop(self, tag: Tag, *, all_of_them: bool) -> None:
        """Drop the orders with this tag at the front: all of them, or if another one has arrived behind them."""
        if all_of_them or any(order.tag != tag for order in self._waiting):
            while self._waiting and self._waiting[0].tag == tag:
                self._waiting.popleft()

    def read(self, expected: Tag) -> tuple[memoryview, memoryview]:
        """Follow the first order, which must be the expected one; return its header, and bytes valid until the next."""
        tag, buffer = self.follow()
        if tag != expected:
            raise ProtocolError(f"{Tag(tag).name} from the root: expected {expected.name}")
        (n_bytes,) = _N_BYTES.unpack_from(buffer.data)
        data = body(buffer)[:n_bytes] if n_bytes <= INLINE_BYTES else self._broadcast.send(n_bytes)
        return buffer.data[_N_BYTES.size :], data

    def send_all(self, tag: Tag, header: bytes, parts: list[bytes]) -> memoryview:
        """From the root, send all ranks a header and bytes, by broadcast if there are many.

        Return these bytes, which are valid until the next call.  Large `parts` are removed while they are copied.
        """
        n_bytes = sum(map(len, parts))
        inline = [b"".join(parts)] if n_bytes <= INLINE_BYTES else []
        order = parcel(_N_BYTES.pack(n_bytes) + header, inline)
        for rank in self._others:
            self._parcels.send(rank, tag, order)
        self._parcels.push()
        return memoryview(inline[0]) if inline else self._broadcast.send(n_bytes, parts)

    def close(self) -> None:
        """Free what the broadcasts use."""
        self._broadcast.close()


class Broadcast:
    """A broadcast from the root to all ranks of `comm`: one copy per host, in shared memory that grows on demand.

    `host` has the ranks on this host, `firsts` (on these) the first ones of all hosts, of which the root is the first.  All
    methods are collective.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, firsts: MPI.Intracomm) -> None:
        self._comm, self._host, self._firsts, self._wait = comm, host, firsts, presence_of(comm).wait
        self._shared: SharedBytes | None = None

    def send(self, n_bytes: int, parts: list[bytes] | None = None) -> memoryview:
        """Return the bytes of `parts` (only the root's, which are removed) on all ranks, valid until the next call."""
        size = -(-n_bytes // UNIT_BYTES) * UNIT_BYTES
        if self._shared is None or len(self._shared.array) < size:
            with blocking(self._comm):
                self._free()
            try:  # some more, since the next map may be a little larger
                self._shared = SharedBytes(self._comm, self._host, max(1 << 20, 1 << (size - 1).bit_length()))
            except OSError:  # on all ranks, of which one has no room for that
                self._shared = SharedBytes(self._comm, self._host, size)
        array = self._shared.array
        self._wait(self._host.Ibarrier().Test)  # the previous data is no longer read
        end = n_bytes
        while parts:
            part = parts.pop()
            array[end - len(part) : end] = np.frombuffer(part, np.uint8)
            end -= len(part)
        if self._firsts and self._firsts.size > 1:
            message = [array[:size], size // UNIT_BYTES, unit()]
            self._wait(self._firsts.Ibcast(message, 0).Test)
        self._wait(self._host.Ibarrier().Test)
        return array.data[:n_bytes]

    def close(self) -> None:
        """Free all communicators and windows."""
        self._free()
        if self._firsts:
            self._firsts.Free()

    def _free(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None
