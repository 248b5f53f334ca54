"""Moves of rows from the ranks that hold them to blocks in global order, and back (protocol: `saving.rows`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.graph import Ints
from lb_mpi.mpi.common.collective import agree, wait
from lb_mpi.mpi.common.waiting import SHORTEST_S
from lb_mpi.saving import rows as saving
from lb_mpi.saving.rows import Arrays, Exchange, Exchanges


def to_blocks(comm: MPI.Intracomm, index: Ints, bounds: Ints, arrays: Arrays) -> Arrays:
    """Collective: return the rows of this rank's block, in order, collected from all ranks.

    `index`: (n,) the global number of each row on this rank, within bounds.  ValueError on all ranks unless each
    global row occurs once.
    """
    return _carry(comm, saving.to_blocks(comm.rank, index, bounds, arrays))


def from_blocks(comm: MPI.Intracomm, index: Ints, bounds: Ints, blocks: Arrays) -> Arrays:
    """Collective: return the rows `index` (n,) from the blocks of all ranks; several ranks may request the same."""
    return _carry(comm, saving.from_blocks(comm.rank, index, bounds, blocks))


def _carry(comm: MPI.Intracomm, exchanges: Exchanges) -> Arrays:
    """Collective: make the exchanges; if a rank fails (memory may be short), all ranks raise."""
    came = None
    while isinstance(todo := agree(comm, partial(_next, exchanges, came)), Exchange):
        came = _exchange(comm, todo)
    return todo


def _next(exchanges: Exchanges, came: NDArray[Any] | None) -> Exchange | Arrays:
    try:
        return next(exchanges) if came is None else exchanges.send(came)
    except StopIteration as end:
        arrays: Arrays = end.value
        return arrays


def _exchange(comm: MPI.Intracomm, todo: Exchange) -> NDArray[Any]:
    """Send the first sent[0] rows to rank 0, and so on; the result begins with those from rank 0."""
    rows = np.ascontiguousarray(todo.rows)
    arrived = np.empty((int(todo.came.sum()), *rows.shape[1:]), rows.dtype)
    row_bytes = int(np.prod(rows.shape[1:], dtype=np.int64)) * rows.dtype.itemsize
    if row_bytes == 0:
        return arrived
    row = MPI.BYTE.Create_contiguous(row_bytes).Commit()
    try:
        pairs = ((rows, todo.sent), (arrived, todo.came))
        out, into = ([_bytes(array), (n, saving.starts(n)), row] for array, n in pairs)
        # All ranks have just agreed, so this waits only for copying, and MPICH copies one piece per poll.  With naps of
        # half a millisecond 4 MB took 0.4 s.
        wait(comm, comm.Ialltoallv(out, into), (rows, arrived), longest_s=SHORTEST_S)
    finally:
        row.Free()
    return arrived


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
