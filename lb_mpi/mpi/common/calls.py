"""The calls that all ranks make on a communicator: where they differ, ranks that wait find it out, in a ring."""

from __future__ import annotations

import struct
from collections import deque

from mpi4py import MPI

from lb_mpi.mpi.common.tags import Tag

MOST_CALLS = 64  # that a rank remembers: in exchanges, one may be ahead of another by the diameter of the graph
_CALL = struct.Struct("<q120s")  # number and name


class CallOrder:
    """The calls that this rank has begun on `comm`, which all ranks make in the same order; none: they are not compared.

    If the calls of all ranks are not the same, they differ first at some number, and all come to wait with this number or
    after it: then, in the ring of all ranks, two neighbours differ there.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._n = 0
        self._names = deque[str](maxlen=MOST_CALLS)  # of the last ones
        self._n_sent = 0  # the last call that this rank has sent to the next one
        self._sent: tuple[bytes, MPI.Request] | None = None
        self._received: list[tuple[int, int, str]] = []  # not yet compared: (source, number of a call, its name)

    def begin(self, name: str) -> None:
        """Begin a call."""
        self._n += 1
        self._names.append(name)

    def compare(self) -> str | None:
        """Tell the next rank, once, which call this one waits in; return what is wrong if the previous one is in another."""
        comm = self._comm
        if self._n_sent < self._n and comm.size > 1:
            self._n_sent = self._n
            data = _CALL.pack(self._n, self._names[-1].encode())
            self._sent = data, comm.Isend([data, MPI.BYTE], (comm.rank + 1) % comm.size, Tag.CALL)
        self.receive()
        received, self._received = self._received, [one for one in self._received if one[1] > self._n]
        for source, number, theirs in received:
            back = self._n - number
            if 0 <= back < len(self._names) and theirs != (mine := self._names[-1 - back]):
                others = f"rank {source} is in {theirs}, rank {comm.rank} in {mine}"
                return f"{others}: expected the same calls on all ranks"
        return None

    def receive(self) -> None:
        """Receive what the previous rank has sent."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, Tag.CALL, status):
            data = bytearray(_CALL.size)
            self._comm.Recv([data, MPI.BYTE], status.Get_source(), Tag.CALL)
            number, name = _CALL.unpack(data)
            self._received.append((status.Get_source(), number, name.rstrip(b"\0").decode()))
