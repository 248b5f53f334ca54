"""Rows go from the ranks that hold them to blocks in global order, and back.   (pure)

Rank r's block is the rows bounds[r]..bounds[r+1]-1.  Each rank runs one of the generators below.  It gives the exchanges
that are to be made, is sent the rows that have come, and returns its arrays.

The law
-------
- All ranks make the same exchanges in the same order, and what one sends to another is as much as that one expects.
- So counts go first: one row for each rank.  Where rows are wanted, their numbers go next, and then each array in turn.
- In an exchange rows stand by rank, those for (from) rank 0 first, and among those of one rank in the order of the numbers.
- Blocks: row k is at place k - bounds[r] of block r, and each place is filled once.  Where it isn't, the block's rank
  raises ValueError before any array is sent, with the first such row.
- Back: rank r has the rows of its index in that order, though several ranks may want the same ones.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.graph import Ints
from lb_mpi.saving.rows import Arrays


class Exchange(NamedTuple):
    """What a rank sends, and how much it is to get."""

    rows: NDArray[Any]  # (sum of sent, ...) those for rank 0 first
    sent: Ints  # (size,) rows for each rank
    came: Ints  # (size,) rows from each rank


Exchanges = Generator[Exchange, NDArray[Any], Arrays]


def starts(counts: Ints) -> Ints:
    """Return where the rows for (from) each rank begin, (size,)."""
    return np.cumsum(counts) - counts


def to_blocks(rank: int, index: Ints, bounds: Ints, arrays: Arrays) -> Exchanges:
    """Return the rows of this rank's block, from wherever they are.

    `index`: (n,) the global number of each row that this rank has, within bounds; arrays are (n, ...).  ValueError, on
    one rank at least, unless each row of all is there once.
    """
    order, sent = _by_owner(index, bounds)
    came = yield _counts(sent)
    numbers = yield Exchange(index[order], sent, came)
    n = int(bounds[rank + 1] - bounds[rank])
    places = numbers - bounds[rank]
    times = np.bincount(places, minlength=n)
    if len(wrong := np.flatnonzero(times != 1)):
        number, times_there = int(wrong[0] + bounds[rank]), int(times[wrong[0]])
        raise ValueError(f"index: row {number} is there {times_there} times on all ranks together: expected once")
    blocks = {}
    for name, array in arrays.items():
        block = np.empty((n, *array.shape[1:]), array.dtype)
        block[places] = yield Exchange(array[order], sent, came)
        blocks[name] = block
    return blocks


def from_blocks(rank: int, index: Ints, bounds: Ints, blocks: Arrays) -> Exchanges:
    """Return the rows `index` (n,), within bounds, from the blocks that all ranks have."""
    order, wanted = _by_owner(index, bounds)
    asked = yield _counts(wanted)
    numbers = yield Exchange(index[order], wanted, asked)
    places = numbers - bounds[rank]
    arrays = {}
    for name, block in blocks.items():
        array = np.empty((len(index), *block.shape[1:]), block.dtype)
        array[order] = yield Exchange(block[places], asked, wanted)
        arrays[name] = array
    return arrays


def _by_owner(index: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """An order of the rows in which each rank's stand together, and how many it has."""
    owner = np.searchsorted(bounds, index, side="right") - 1
    return np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(bounds) - 1)


def _counts(counts: Ints) -> Exchange:
    """Tell each rank its count."""
    once = np.ones_like(counts)
    return Exchange(counts, once, once)
