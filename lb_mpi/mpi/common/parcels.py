"""Parcels on their way: buffers of any size, sent and received without blocking, in order between each two ranks.

A parcel's length is a multiple of 64 bytes, and it travels in units of 64 bytes: the count of a message is 32 bits
in Open MPI 5, which as bytes would end at 2 GiB.

A computing rank polls rarely, so one poll must find everything that has arrived.  An MPI reads some 64 kB from a socket
per poll, however much there is, and reports a message when it has all of it.  So a larger parcel is announced by a message
of 8 bytes, its size, and its receiver polls as often as the parcel needs.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.mpi.common.presence import Tag, presence_of

UNIT_BYTES = 64
LOOK_BYTES = 1 << 16  # that come in one look
MOST_LOOKS = 64  # at a parcel in a row: the rank that it waits for may compute for long
_SIZE = struct.Struct("<q")

Buffer = NDArray[np.uint8]


@functools.cache
def unit() -> MPI.Datatype:
    """Make the datatype of 64 bytes, once."""
    return MPI.BYTE.Create_contiguous(UNIT_BYTES).Commit()


def parcel(header: bytes, parts: Sequence[bytes | memoryview] = ()) -> Buffer:
    """Make a buffer of a header of at most UNIT_BYTES, and what follows it; the rest of the last unit is left as it is."""
    buffer = np.empty(-(-(UNIT_BYTES + sum(map(len, parts))) // UNIT_BYTES) * UNIT_BYTES, dtype=np.uint8)
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    at = UNIT_BYTES
    for part in parts:
        buffer[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return buffer


def body(buffer: Buffer) -> memoryview:
    """Return what follows the header."""
    return buffer.data[UNIT_BYTES:]


def look(comm: MPI.Comm, tag: int, status: MPI.Status) -> MPI.Message | None:
    """Return the next message that has come from anywhere, with this tag; None: there is none."""
    # MPICH receives what has come only when it has found nothing; without a second look it would wait for a whole block.
    return comm.Improbe(MPI.ANY_SOURCE, tag, status) or comm.Improbe(MPI.ANY_SOURCE, tag, status)


class _Going(NamedTuple):
    request: MPI.Request
    buffer: Buffer | bytes


class _Coming(NamedTuple):
    source: int
    tag: int
    buffer: Buffer
    request: MPI.Request


class Parcels:
    """The messages that one rank sends and receives on `comm` (not the user's: a duplicate)."""

    def __init__(self, comm: MPI.Intracomm, tag: int = MPI.ANY_TAG) -> None:
        """Receive what bears this tag; who else receives on `comm` at the same time has another."""
        self.comm, self.tag = comm, tag
        self._going: list[_Going] = []  # the buffers live until their sends are complete
        self._coming: list[_Coming] = []
        self._status = MPI.Status()
        self.sent_bytes = 0
        self.unsent_bytes = 0  # of sends that are not complete
        self._sent = np.zeros(comm.size, dtype=np.int64)  # parcels, to each rank
        self._received = 0

    @property
    def n_sent(self) -> int:
        """The number of parcels that were sent."""
        return int(self._sent.sum())

    @property
    def under_way(self) -> bool:
        """Something that was begun to be sent or received is not complete."""
        return bool(self._going or self._coming)

    def send(self, rank: int, tag: int, buffer: Buffer) -> None:
        """Start to send; returns at once."""
        at = tag
        if buffer.nbytes > LOOK_BYTES:
            size, at = _SIZE.pack(buffer.nbytes), Tag.ANNOUNCED
            self._going.append(_Going(self.comm.Isend([size, MPI.BYTE], rank, tag), size))
        self._going.append(_Going(self.comm.Isend(_as_units(buffer), rank, at), buffer))
        self.sent_bytes += buffer.nbytes
        self.unsent_bytes += buffer.nbytes
        self._sent[rank] += 1

    def take(self) -> list[tuple[int, int, Buffer]]:
        """Return what has arrived, as (source, tag, buffer), those of one source in their order; completes sends."""
        while (message := look(self.comm, self.tag, self._status)) is not None:
            self._coming.append(self._receive(message))
        arrived, coming, late = [], list[_Coming](), set[int]()
        for one in self._coming:
            if one.source in late or not _is_complete(one.request, one.buffer):
                late.add(one.source)
                coming.append(one)
            else:
                arrived.append((one.source, one.tag, one.buffer))
        self._coming = coming
        if self._going:
            self._going = [one for one in self._going if not _is_complete(*one)]
            self.unsent_bytes = sum(len(buffer) for _, buffer in self._going)
        self._received += len(arrived)
        return arrived

    def drain(self) -> None:
        """Collective, when no rank sends any more: receive and drop what is still under way, complete all own sends."""
        expected = np.zeros(1, dtype=np.int64)
        request = self.comm.Ireduce_scatter_block(self._sent, expected)

        def done() -> bool:
            """A large send may need its receiver to come to an end, so all ranks go on receiving while they wait."""
            while self.take():
                pass
            return request.Test() and self._received >= expected[0] and not self.under_way

        presence_of(self.comm).wait(done, (self, expected))

    def _receive(self, message: MPI.Message) -> _Coming:
        """Begin to receive a parcel that has come, or was announced."""
        source, tag = self._status.Get_source(), self._status.Get_tag()
        n_bytes = self._status.Get_count(MPI.BYTE)
        if n_bytes == _SIZE.size:
            size = bytearray(_SIZE.size)
            message.Recv([size, MPI.BYTE])
            (n_bytes,) = _SIZE.unpack(size)
            buffer = np.empty(n_bytes, dtype=np.uint8)
            # Its place is taken before anything else is looked for: it can't be taken for something else.
            return _Coming(source, tag, buffer, self.comm.Irecv(_as_units(buffer), source, Tag.ANNOUNCED))
        buffer = np.empty(n_bytes, dtype=np.uint8)
        return _Coming(source, tag, buffer, message.Irecv(_as_units(buffer)))


def _as_units(buffer: Buffer) -> list[object]:
    return [buffer, buffer.nbytes // UNIT_BYTES, unit()]


def _is_complete(request: MPI.Request, buffer: Buffer | bytes) -> bool:
    """Return whether it has come, or left, after as many looks as it needs if nothing delays it."""
    return request.Test() or any(request.Test() for _ in range(min(len(buffer) // LOOK_BYTES, MOST_LOOKS)))
