"""Bytes on each host that its ranks share, in an MPI shared-memory window."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.mpi.common.collective import agree

_WHERE = "/dev/shm"  # where MPI keeps shared windows on Linux; too little room there is a SIGBUS at the first touch


class SharedBytes:
    """Collective over `comm`: `n_bytes` of memory, one on each host; `host` are the ranks on this one.

    OSError on all ranks of `comm` when some host has not enough shared memory.  To be freed with `close`, collectively.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, n_bytes: int) -> None:
        agree(comm, lambda: _check_room(n_bytes))
        self._window = MPI.Win.Allocate_shared(n_bytes if host.rank == 0 else 0, 1, comm=host)
        memory: Any = self._window.Shared_query(0)[0]
        self.array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, count=n_bytes)

    def close(self) -> None:
        """Collective over the host: free the memory; `array` and its views are not to be touched any more."""
        self._window.Free()


def _check_room(n_bytes: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        room = os.statvfs(_WHERE)
        if n_bytes > room.f_bavail * room.f_frsize:
            free = room.f_bavail * room.f_frsize / 2**20
            raise OSError(f"{n_bytes / 2**20:,.0f} MiB of shared memory wanted, {free:,.0f} MiB are free")
