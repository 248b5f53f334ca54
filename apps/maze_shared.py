"""An array on each machine that its ranks share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from lb_mpi.mpi.common.shared import SharedBytes


@contextlib.contextmanager
def shared_bytes(comm: MPI.Intracomm, machine: MPI.Intracomm, shape: tuple[int, ...]) -> Iterator[npt.NDArray[np.uint8]]:
    """Collective: an array of uint8, one on each machine; see `lb_mpi.mpi.common.collective.SharedBytes`.

    `machine` is the communicator of the ranks on this machine, as `comm.Split_type(MPI.COMM_TYPE_SHARED)` gives it.
    Freed, collectively, at the end of the block, unless that is left by an exception.
    """
    shared = SharedBytes(comm, machine, int(np.prod(shape, dtype=object)))
    yield shared.array.reshape(shape)
    shared.close()
