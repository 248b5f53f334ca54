"""The messages of the searching ranks on MPI: fixed structs, sent without blocking, received as they come.

One message is a header of 40 bytes (see `_HEADER`), followed by the payload.  A payload of more than `PIECE` bytes follows
in messages of its own, since MPI counts the bytes of one in 32 bits.  All travel under one tag on a communicator of our own,
so MPI keeps the order between each two ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI

from lb_mpi.mpi.parcels import look
from lb_mpi.mpi.presence import presence_of
from lb_mpi.mpi.tags import Tag
from lb_mpi.searching.drafting import Kind, Message

PIECE = 1 << 24  # bytes; what is smaller is copied behind its header
_HEADER = struct.Struct("<iiqqdq")  # kind, source, seq, pid, load, bytes of payload


class Mailbox:
    """Non-blocking send and receive of `Message`s on `comm` (not the user's: a duplicate)."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.sent = 0  # pieces counted one by one
        self.received = 0
        self._status = MPI.Status()
        self._pending: list[
            tuple[MPI.Request, bytes | memoryview]
        ] = []  # the buffers live until their sends are complete
        self._partial: dict[int, tuple[Message, bytearray, int]] = {}  # by rank: header, payload, bytes that have come

    def post(self, destination: int, message: Message) -> None:
        """Start to send `message`; returns at once."""
        kind, source, seq, pid, load, payload = message
        header = _HEADER.pack(kind, source, seq, pid, load, len(payload))
        if len(payload) <= PIECE:
            self._send(destination, header + payload)
            return
        self._send(destination, header)
        for first in range(0, len(payload), PIECE):
            self._send(destination, memoryview(payload)[first : first + PIECE])

    def take(self) -> list[Message]:
        """All messages that have arrived; completes sends on the way."""
        messages = []
        status = self._status
        while (handle := look(self.comm, Tag.DRAFTING, status)) is not None:
            self.received += 1
            message = self._receive(handle, status.Get_source(), status.Get_count(MPI.BYTE))
            if message is not None:
                messages.append(message)
        if self._pending:
            self._pending = [(request, buffer) for request, buffer in self._pending if not request.Test()]
        return messages

    def drain(self) -> None:
        """Collective, when no rank sends any more: receive what is still under way, complete all own sends.

        What was sent and not received is summed up over all ranks until it is nothing: none need know who sent what to whom.
        """
        presence, missing = presence_of(self.comm), np.ones(1, dtype=np.int64)
        while missing[0]:
            own = np.array([self.sent - self.received], dtype=np.int64)
            request = self.comm.Iallreduce(own, missing)
            presence.wait(partial(self._take_until, request.Test), (self, own, missing))
        presence.wait(lambda: self._take_until(lambda: not self._pending), self)

    def _take_until(self, done: Callable[[], bool]) -> bool:
        """Receive; see if it's done.  A large send may need its receiver to come to an end, so all ranks receive on."""
        before = -1
        while self.received != before:
            before = self.received
            self.take()
        return done()

    def _send(self, destination: int, buffer: bytes | memoryview) -> None:
        self._pending.append((self.comm.Isend([buffer, MPI.BYTE], destination, Tag.DRAFTING), buffer))
        self.sent += 1

    def _receive(self, handle: MPI.Message, sender: int, n_bytes: int) -> Message | None:
        """The message that is complete with this one, if any."""
        if sender in self._partial:
            message, payload, n_before = self._partial.pop(sender)
            n = n_before + n_bytes
            handle.Recv([memoryview(payload)[n_before:n], MPI.BYTE])
            if n < len(payload):
                self._partial[sender] = message, payload, n
                return None
            return message._replace(payload=bytes(payload))
        buffer = bytearray(n_bytes)
        handle.Recv([buffer, MPI.BYTE])
        kind, source, seq, pid, load, n = _HEADER.unpack_from(buffer)
        message = Message(Kind(kind), source, seq, pid, load, bytes(buffer[_HEADER.size :]))
        if n == len(message.payload):
            return message
        self._partial[sender] = message, bytearray(n), 0
        return None
