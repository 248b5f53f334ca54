"""Bytes from one rank to all: one copy on each host, in shared memory that grows as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from lb_mpi.mpi.common.collective import SharedBytes
from lb_mpi.mpi.common.parcels import UNIT_BYTES, unit

Wait = Callable[[Callable[[], bool]], None]
LEAST = 1 << 20  # bytes


class Shelf:
    """Shared bytes of the ranks in `host`, of which `root` is the first on its host; `wait(done)` is how to wait.

    Collective, as are all its methods.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, root: int, wait: Wait) -> None:
        self._comm, self._host, self._wait = comm, host, wait
        color = 0 if host.rank == 0 else MPI.UNDEFINED
        self._leaders = MPI.Intracomm(comm.Split(color, -1 if comm.rank == root else comm.rank))  # the root is the first
        self._shared: SharedBytes | None = None

    def spread(self, n_bytes: int, parts: Sequence[bytes | memoryview] | None) -> memoryview:
        """All ranks get the bytes of `parts` (which only the root passes), valid until the next call."""
        size = -(-n_bytes // UNIT_BYTES) * UNIT_BYTES
        if self._shared is None or len(self._shared.array) < size:
            self._wait(self._comm.Ibarrier().Test)  # within the MPI, nobody would hear that a rank can't come
            self._free()
            self._shared = SharedBytes(self._comm, self._host, max(LEAST, 1 << (size - 1).bit_length()))
        array = self._shared.array
        self._together()  # nobody reads what was there before
        if parts is not None:
            at = 0
            for part in parts:
                array[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
        self._together()
        if self._leaders and self._leaders.size > 1:
            message = [array[:size], size // UNIT_BYTES, unit()]
            self._wait(self._leaders.Ibcast(message, 0).Test)
        self._together()
        return array.data[:n_bytes]

    def close(self) -> None:
        """Free all that was made."""
        self._free()
        if self._leaders:
            self._leaders.Free()

    def _together(self) -> None:
        self._wait(self._host.Ibarrier().Test)

    def _free(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None
