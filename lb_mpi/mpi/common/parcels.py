"""Parcels: buffers of any size, sent and received without blocking, in order between each two ranks.

A parcel's length is a multiple of 64 bytes, and it is sent in units of 64 bytes: in Open MPI 5 a message's count has 32
bits, which would limit bytes to 2 GiB.

A computing rank polls rarely, so one poll must find everything that has arrived.  But MPI reads at most some 64 kB from
a socket per poll, and reports a message only when it is complete.  So a larger parcel is announced by an 8-byte message
with its size, and the receiver then polls as often as the parcel needs.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.columns import ALIGN
from lb_mpi.mpi.common.communicator import presence_of
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import LONGEST_S, Nap

UNIT_BYTES = ALIGN
POLL_BYTES = 1 << 16  # that arrive in one poll
MOST_POLLS = 64  # for one parcel in a row: the rank that it waits for may compute for long
AWAKE_S = 2 * LONGEST_S  # of a wait for the end of sends: until the receiver has ended its nap
PUSH_S = 0.1  # the longest wait for the end of sends: a receiver may compute for long
_SIZE = struct.Struct("<q")

Buffer = NDArray[np.uint8]


@functools.cache
def unit() -> MPI.Datatype:
    """Make the datatype of 64 bytes, once."""
    return MPI.BYTE.Create_contiguous(UNIT_BYTES).Commit()


def parcel(header: bytes, parts: Sequence[bytes | memoryview] = ()) -> Buffer:
    """Make a buffer of a header of at most UNIT_BYTES, then the parts; the rest of the last unit is uninitialised."""
    buffer = np.empty(-(-(UNIT_BYTES + sum(map(len, parts))) // UNIT_BYTES) * UNIT_BYTES, dtype=np.uint8)
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    at = UNIT_BYTES
    for part in parts:
        buffer[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return buffer


def body(buffer: Buffer) -> memoryview:
    """Return the part after the header."""
    return buffer.data[UNIT_BYTES:]


def probe(comm: MPI.Comm, tag: int, status: MPI.Status) -> MPI.Message | None:
    """Return the next message with this tag that has arrived from any rank; None: there is none."""
    # MPICH makes progress only if a probe finds nothing; without a second one, arrivals would wait for a whole block.
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
    """The messages that one rank sends and receives on `comm`, a duplicate of the user's."""

    def __init__(self, comm: MPI.Intracomm, tag: int = MPI.ANY_TAG) -> None:
        """Receive messages with this tag; other receivers on `comm` must use other tags."""
        self.comm, self.tag = comm, tag
        self._going: list[_Going] = []  # keeps buffers alive until their sends are complete
        self._coming: list[_Coming] = []
        self._status = MPI.Status()
        self.sent_bytes = 0
        self.unsent_bytes = 0  # of incomplete sends
        self._sent = np.zeros(comm.size, dtype=np.int64)  # parcels, to each rank
        self._received = 0

    @property
    def under_way(self) -> bool:
        """True while some send or receive is incomplete."""
        return bool(self._going or self._coming)

    def send(self, rank: int, tag: int, buffer: Buffer) -> None:
        """Start a send; returns at once."""
        at = tag
        if buffer.nbytes > POLL_BYTES:
            size, at = _SIZE.pack(buffer.nbytes), Tag.ANNOUNCED
            self._going.append(_Going(self.comm.Isend([size, MPI.BYTE], rank, tag), size))
        self._going.append(_Going(self.comm.Isend(as_units(buffer), rank, at), buffer))
        self.sent_bytes += buffer.nbytes
        self.unsent_bytes += buffer.nbytes
        self._sent[rank] += 1

    def receive(self) -> list[tuple[int, int, Buffer]]:
        """Return the arrived parcels as (source, tag, buffer), in order for each source; also completes sends."""
        while (message := probe(self.comm, self.tag, self._status)) is not None:
            self._coming.append(self._begin(message))
        arrived, coming, late = [], list[_Coming](), set[int]()
        for one in self._coming:
            if one.source in late or not _is_complete(one.request, one.buffer):
                late.add(one.source)
                coming.append(one)
            else:
                arrived.append((one.source, one.tag, one.buffer))
        self._coming = coming
        self._complete_sends()
        self._received += len(arrived)
        return arrived

    def awaited(self, within_s: float) -> list[tuple[int, int, Buffer]]:
        """Return what has arrived, after a wait for a parcel that is arriving: between hosts it needs polls all the time.

        Where computing ranks poll every 50 ms, a parcel of 1 MB arrives in 0.3 s, instead of 0.02.
        """
        nap, until, arrived = Nap(LONGEST_S), time.perf_counter() + within_s, list[tuple[int, int, Buffer]]()
        while self._coming and not arrived and (left_s := until - time.perf_counter()) > 0.0:
            nap.sleep(left_s)
            arrived = self.receive()
        return arrived

    def news(self) -> bool:
        """Return True if a parcel may have arrived."""
        return bool(self._coming) or self.comm.Iprobe(MPI.ANY_SOURCE, self.tag)

    def push(self) -> None:
        """Wait until all sends are complete, but at most `PUSH_S` seconds: for a rank that is about to compute.

        MPICH holds back what exceeds 64 messages to ranks of the same host until the sender's next call of MPI.  A message
        of more than 8 kB needs several polls of both, once the receiver has slept.
        """
        nap, began = Nap(LONGEST_S), time.perf_counter()
        self._complete_sends()
        while self._going and (waited_s := time.perf_counter() - began) < PUSH_S:
            if waited_s < AWAKE_S:
                os.sched_yield()
            else:
                nap.sleep()
            self._complete_sends()

    def drain(self) -> None:
        """Collective, after all sends: receive and drop what is still in transit, and complete this rank's sends."""
        expected = np.zeros(1, dtype=np.int64)
        request = self.comm.Ireduce_scatter_block(self._sent, expected)

        def done() -> bool:
            """Keep receiving while waiting, since a large send may need its receiver to complete."""
            while self.receive():
                pass
            return request.Test() and self._received >= expected[0] and not self.under_way

        presence_of(self.comm).wait(done, (self, expected))

    def _complete_sends(self) -> None:
        if self._going:
            self._going = [one for one in self._going if not _is_complete(*one)]
            self.unsent_bytes = sum(len(buffer) for _, buffer in self._going)

    def _begin(self, message: MPI.Message) -> _Coming:
        source, tag = self._status.Get_source(), self._status.Get_tag()
        n_bytes = self._status.Get_count(MPI.BYTE)
        if n_bytes == _SIZE.size:
            size = bytearray(_SIZE.size)
            message.Recv([size, MPI.BYTE])
            (n_bytes,) = _SIZE.unpack(size)
            buffer = np.empty(n_bytes, dtype=np.uint8)
            # Posted before the next probe, so that the content cannot be matched otherwise.
            return _Coming(source, tag, buffer, self.comm.Irecv(as_units(buffer), source, Tag.ANNOUNCED))
        buffer = np.empty(n_bytes, dtype=np.uint8)
        return _Coming(source, tag, buffer, message.Irecv(as_units(buffer)))


def as_units(buffer: Buffer) -> Any:
    """Return what MPI takes as a message of this buffer, whose length is a multiple of UNIT_BYTES."""
    return [buffer, buffer.nbytes // UNIT_BYTES, unit()]


def _is_complete(request: MPI.Request, buffer: Buffer | bytes) -> bool:
    """Return whether the request is complete, after as many polls as its size needs if nothing delays it."""
    return request.Test() or any(request.Test() for _ in range(min(len(buffer) // POLL_BYTES, MOST_POLLS)))
