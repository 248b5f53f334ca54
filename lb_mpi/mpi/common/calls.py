"""The calls that all ranks make on a communicator, their commits, and the failures that end them.

Where the calls of ranks differ, those that wait find it out, in a ring.
"""

from __future__ import annotations

import struct
from collections import deque

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Interrupts

MOST_CALLS = 64  # that a rank remembers: in exchanges, one may be ahead of another by the diameter of the graph
LONGEST = 1000  # bytes of the text of a failure: any MPI sends so few eagerly
_CALL = struct.Struct("<q120s")  # number and name
_STAGE = struct.Struct("<q")  # of the sender of a failure, before the text


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


class Failures:
    """The failures that ranks send each other on `comm`: any of them ends the calls of all.

    A rank's stage counts the begins and the ends of its commits, so it is odd within one.  All ranks come through the same
    stages.  A failure of a rank that is ahead of this one waits until this one is there: what that rank has ended, all can.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._stage, self._n_found = 0, 0
        self.ahead: list[tuple[int, str]] = []  # failures of ranks that were ahead: (stage, text)
        self.text: str | None = None  # of the failure that has ended the calls

    @property
    def in_commit(self) -> bool:
        """True within a commit."""
        return self._stage % 2 == 1

    def commit(self, interrupts: Interrupts, *, ends: bool = False) -> None:
        """Begin the end of a call: all ranks are ready, and then either all raise or all return what the call has changed.

        Until `end_commit`, all take part in a collective operation, and nobody runs the user's code.  A rank that fails has
        done so before its commit, and then all raise, or after its end, and then the others end theirs well.  One that fails
        within it, as without memory, never ends it: the others, which may wait for it there, raise.  To the end of the call,
        Ctrl-C waits for the next one.  `ends`: it ends at once, since no collective operation follows.
        """
        self._stage += 1 + ends
        interrupts.commit()

    def end_commit(self) -> None:
        """End a commit: all others have begun it."""
        self._stage += 1

    def note(self, text: str) -> None:
        """Note a failure, after which there are no calls."""
        self.text = text

    def send(self, text: str) -> tuple[object, ...]:
        """Send a failure to all others; return what MPI may still read."""
        data = np.frombuffer(_STAGE.pack(self._stage) + text.encode(errors="replace")[:LONGEST], dtype=np.uint8)
        others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
        return data, [self._comm.Isend([data, MPI.BYTE], rank, Tag.FAILURE) for rank in others]

    def receive(self, after: int) -> str | None:
        """Return a failure that another rank has sent, if this is at least the `after`-th time that one is found."""
        for stage, text in self.ahead:
            if stage <= self._stage:
                return text
        if not self._comm.Iprobe(MPI.ANY_SOURCE, Tag.FAILURE):
            return None
        self._n_found += 1
        status = MPI.Status()
        # Another thread may have received what was found.
        if self._n_found < after or not (found := self._comm.Improbe(MPI.ANY_SOURCE, Tag.FAILURE, status)):
            return None
        data: NDArray[np.uint8] = np.empty(status.Get_count(MPI.BYTE), dtype=np.uint8)
        found.Recv([data, MPI.BYTE])
        (stage,) = _STAGE.unpack_from(data.data)
        text = data[_STAGE.size :].tobytes().decode(errors="replace")
        if stage <= self._stage:
            return text
        self.ahead.append((stage, text))
        return None
