"""Rows go from the ranks that hold them to blocks in global order, and back: rank r has rows bounds[r]..bounds[r+1]-1."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.graph import Ints
from lb_mpi.mpi.collective import agree
from lb_mpi.mpi.waiting import SHORTEST_S, wait
from lb_mpi.saving.rows import Arrays


def to_blocks(comm: MPI.Intracomm, index: Ints, bounds: Ints, arrays: Arrays) -> Arrays:
    """Collective: the rows of this rank's block, in their order, from wherever they are.

    `index`: (n,) the global number of each row that this rank has, within bounds.  ValueError on all ranks unless each row
    of all is there once.
    """
    order, sent = _by_owner(index, bounds)
    came = _told(comm, sent)
    local = _exchange(comm, index[order], sent, came) - bounds[comm.rank]
    n = int(bounds[comm.rank + 1] - bounds[comm.rank])

    def check() -> None:
        times = np.bincount(local, minlength=n)
        if len(wrong := np.flatnonzero(times != 1)):
            number, times_there = int(wrong[0] + bounds[comm.rank]), int(times[wrong[0]])
            raise ValueError(f"index: row {number} is there {times_there} times on all ranks together: expected once")

    agree(comm, check)
    blocks = {}
    for name, array in arrays.items():
        block = np.empty((n, *array.shape[1:]), array.dtype)
        block[local] = _exchange(comm, array[order], sent, came)
        blocks[name] = block
    return blocks


def from_blocks(comm: MPI.Intracomm, index: Ints, bounds: Ints, blocks: Arrays) -> Arrays:
    """Collective: the rows `index` (n,), which may be wanted by several ranks, from the blocks that all have."""
    order, wanted = _by_owner(index, bounds)
    asked = _told(comm, wanted)
    local = _exchange(comm, index[order], wanted, asked) - bounds[comm.rank]
    arrays = {}
    for name, block in blocks.items():
        array = np.empty((len(index), *block.shape[1:]), block.dtype)
        array[order] = _exchange(comm, block[local], asked, wanted)
        arrays[name] = array
    return arrays


def _by_owner(index: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """An order of the rows in which each rank's stand together, and how many it has."""
    owner = np.searchsorted(bounds, index, side="right") - 1
    return np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(bounds) - 1)


def _told(comm: MPI.Intracomm, counts: Ints) -> Ints:
    theirs = np.empty_like(counts)
    wait(comm.Ialltoall(counts, theirs))
    return theirs


def _exchange(comm: MPI.Intracomm, rows: NDArray[Any], sent: Ints, came: Ints) -> NDArray[Any]:
    """Send the first sent[0] rows to rank 0, and so on; what came from rank 0 is first."""
    rows = np.ascontiguousarray(rows)
    arrived = np.empty((int(came.sum()), *rows.shape[1:]), rows.dtype)
    row_bytes = int(np.prod(rows.shape[1:], dtype=np.int64)) * rows.dtype.itemsize
    if row_bytes == 0:
        return arrived
    row = MPI.BYTE.Create_contiguous(row_bytes).Commit()
    try:
        out, into = ([_bytes(array), (n, np.cumsum(n) - n), row] for array, n in ((rows, sent), (arrived, came)))
        # All ranks are here, they have just told their counts: what is awaited is the copying, and MPICH copies a piece at a
        # look.  With naps of half a millisecond 4 MB took 0.4 s.
        wait(comm.Ialltoallv(out, into), SHORTEST_S)
    finally:
        row.Free()
    return arrived


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
