"""An array on each machine that its ranks share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from lb_mpi.mpi.collective import agree

_WHERE = "/dev/shm"  # where MPI keeps shared windows on Linux; too little room there is a SIGBUS at the first touch


@contextlib.contextmanager
def shared_bytes(
    comm: MPI.Intracomm, machine: MPI.Intracomm, shape: tuple[int, ...]
) -> Iterator[npt.NDArray[np.uint8]]:
    """Collective: an array of uint8, one on each machine, in an MPI shared-memory window.

    `machine` is the communicator of the ranks on this machine, as `comm.Split_type(MPI.COMM_TYPE_SHARED)` gives it.
    Freed, collectively, at the end of the block, unless that is left by an exception.
    Raises OSError on all ranks of `comm` when some machine has not enough shared memory.
    """
    n_bytes = int(np.prod(shape, dtype=object))

    def check() -> None:
        with contextlib.suppress(FileNotFoundError):
            room = os.statvfs(_WHERE)
            if n_bytes > room.f_bavail * room.f_frsize:
                free = room.f_bavail * room.f_frsize / 2**20
                raise OSError(f"{n_bytes / 2**20:,.0f} MiB of shared memory wanted, {free:,.0f} MiB are free")

    agree(comm, check)
    window = MPI.Win.Allocate_shared(n_bytes if machine.rank == 0 else 0, 1, comm=machine)
    memory: Any = window.Shared_query(0)[0]
    yield np.frombuffer(memory, np.uint8, count=n_bytes).reshape(shape)
    window.Free()
