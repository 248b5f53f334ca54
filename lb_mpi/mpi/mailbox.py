"""The messages of the searching ranks on MPI: fixed structs, sent without blocking, received as they come.

One message is a header of 32 bytes (see `_HEADER`), followed by the payload for WORK.  All travel under one tag on a
communicator of our own, so MPI keeps the order between each two ranks.
"""

from __future__ import annotations

import struct

import numpy as np
from mpi4py import MPI

from lb_mpi.mpi.waiting import Nap
from lb_mpi.searching.drafting import Kind, Message

_HEADER = struct.Struct("<iiqqd")  # kind, source, seq, pid, load
_TAG = 1


class Mailbox:
    """Non-blocking send and receive of `Message`s on `comm` (not the user's: a duplicate)."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.sent = np.zeros(comm.size, dtype=np.int64)  # messages sent to each rank
        self.received = 0
        self._status = MPI.Status()
        self._pending: list[tuple[MPI.Request, bytes]] = []  # the buffers live until their sends are complete

    def post(self, destination: int, message: Message) -> None:
        """Start to send `message`; returns at once."""
        buffer = _HEADER.pack(message.kind, message.source, message.seq, message.pid, message.load) + message.payload
        self._pending.append((self.comm.Isend([buffer, MPI.BYTE], destination, _TAG), buffer))
        self.sent[destination] += 1

    def take(self) -> list[Message]:
        """All messages that have arrived; completes sends on the way."""
        messages = []
        status = self._status
        while (handle := self.comm.Improbe(MPI.ANY_SOURCE, _TAG, status)) is not None:
            buffer = bytearray(status.Get_count(MPI.BYTE))
            handle.Recv([buffer, MPI.BYTE])
            kind, source, seq, pid, load = _HEADER.unpack_from(buffer)
            payload = bytes(buffer[_HEADER.size :]) if len(buffer) > _HEADER.size else b""
            messages.append(Message(Kind(kind), source, seq, pid, load, payload))
        self.received += len(messages)
        if self._pending:
            self._pending = [(request, buffer) for request, buffer in self._pending if not request.Test()]
        return messages

    def drain(self) -> None:
        """Collective, when no rank sends any more: receive what is still under way, complete all own sends."""
        expected = np.zeros(1, dtype=np.int64)
        request = self.comm.Ireduce_scatter_block(self.sent, expected)
        # A large send may need its receiver to come to an end, so all ranks go on receiving while they wait.
        nap = Nap(0.5e-3)
        counted = False
        while not counted or self.received < expected[0] or self._pending:
            if not self.take():
                nap.take()
            counted = counted or request.Test()
