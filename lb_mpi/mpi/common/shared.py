"""Memory that the ranks of a host share."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.mpi.common.collective import raise_on_all
from lb_mpi.mpi.common.communicator import blocking

_WHERE = "/dev/shm"  # of MPI's shared windows on Linux; without enough room there, the first access is a SIGBUS


class SharedBytes:
    """Collective over `comm`: `n_bytes` of memory on each host, shared by its ranks, which are those of `host`.

    OSError on all ranks of `comm` if a host has not enough shared memory.  `close` frees it, collectively.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, n_bytes: int) -> None:
        short: OSError | None = None
        try:  # not by `agree`, which would raise a Ctrl-C that is held back
            _check_room(n_bytes)
        except OSError as error:
            short = error
        raise_on_all(comm, short)
        with blocking(comm):
            self._window = MPI.Win.Allocate_shared(n_bytes if host.rank == 0 else 0, 1, comm=host)
        memory: Any = self._window.Shared_query(0)[0]
        self.array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, count=n_bytes)

    def close(self) -> None:
        """Collective over the host: free the memory; `array` and its views must not be used afterwards."""
        self._window.Free()


def _check_room(n_bytes: int) -> None:
    with suppress(FileNotFoundError):
        room = os.statvfs(_WHERE)
        if n_bytes > room.f_bavail * room.f_frsize:
            free = room.f_bavail * room.f_frsize / 2**20
            raise OSError(f"{n_bytes / 2**20:,.0f} MiB of shared memory needed, {free:,.0f} MiB are free")
