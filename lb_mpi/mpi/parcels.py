"""Parcels on their way: buffers of any size, sent and received without blocking, in order between each two ranks.

A parcel's length is a multiple of 64 bytes, and it travels as so many units of 64 bytes: the count of a message is 32 bits
in Open MPI 5, which as bytes would end at 2 GiB.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.mpi.waiting import Nap

UNIT_BYTES = 64

Buffer = NDArray[np.uint8]


@functools.cache
def unit() -> MPI.Datatype:
    """Make the datatype of 64 bytes, once."""
    return MPI.BYTE.Create_contiguous(UNIT_BYTES).Commit()


class _Coming(NamedTuple):
    source: int
    tag: int
    buffer: Buffer
    request: MPI.Request


class Parcels:
    """What one rank sends and receives on `comm` (not the user's: a duplicate)."""

    def __init__(self, comm: MPI.Intracomm, tag: int = MPI.ANY_TAG) -> None:
        """Receive what bears this tag; who else receives on `comm` at the same time has another."""
        self._comm, self.tag = comm, tag
        self._going: list[tuple[MPI.Request, Buffer]] = []  # the buffers live until their sends are complete
        self._coming: list[_Coming] = []
        self._status = MPI.Status()
        self.sent_bytes = 0
        self.unsent_bytes = 0  # of sends that are not complete
        self._sent = np.zeros(comm.size, dtype=np.int64)  # parcels, to each rank
        self._received = 0

    @property
    def under_way(self) -> bool:
        """Something that was begun to be sent or received is not complete."""
        return bool(self._going or self._coming)

    def send(self, rank: int, tag: int, buffer: Buffer) -> None:
        """Start to send; returns at once."""
        message = [buffer, buffer.nbytes // UNIT_BYTES, unit()]
        self._going.append((self._comm.Isend(message, rank, tag), buffer))
        self.sent_bytes += buffer.nbytes
        self.unsent_bytes += buffer.nbytes
        self._sent[rank] += 1

    def take(self) -> list[tuple[int, int, Buffer]]:
        """Return what has arrived, as (source, tag, buffer), those of one source in their order; completes sends."""
        status = self._status
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, self.tag, status)) is not None:
            buffer = np.empty(status.Get_count(unit()) * UNIT_BYTES, dtype=np.uint8)
            receive = message.Irecv([buffer, buffer.nbytes // UNIT_BYTES, unit()])
            self._coming.append(_Coming(status.Get_source(), status.Get_tag(), buffer, receive))
        arrived, coming, late = [], list[_Coming](), set[int]()
        for one in self._coming:
            if one.source in late or not one.request.Test():
                late.add(one.source)
                coming.append(one)
            else:
                arrived.append((one.source, one.tag, one.buffer))
        self._coming = coming
        if self._going:
            self._going = [(request, buffer) for request, buffer in self._going if not request.Test()]
            self.unsent_bytes = sum(buffer.nbytes for _, buffer in self._going)
        self._received += len(arrived)
        return arrived

    def drain(self) -> None:
        """Collective, when no rank sends any more: receive and drop what is still under way, complete all own sends."""
        expected = np.zeros(1, dtype=np.int64)
        request = self._comm.Ireduce_scatter_block(self._sent, expected)
        # A large send may need its receiver to come to an end, so all ranks go on receiving while they wait.
        nap, counted = Nap(0.5e-3), False
        while not counted or self._received < expected[0] or self.under_way:
            counted = counted or request.Test()
            if not self.take():
                nap.take()
