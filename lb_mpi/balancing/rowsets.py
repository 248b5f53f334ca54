"""Sets of rows of one rank.   (pure)"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lb_mpi.graph import Ints

Rowset = slice | Ints  # from start to stop, or their numbers


def count(rows: Rowset) -> int:
    """Count the rows of a set."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def cut(rows: Rowset, begin: int, end: int) -> Rowset:
    """Take those from `begin` to `end` of the rows of a set."""
    return slice(rows.start + begin, rows.start + end) if isinstance(rows, slice) else rows[begin:end]


def numbers(rows: Rowset) -> Ints:
    """Name the rows of a set: (n,)."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def join(blocks: Sequence[Rowset]) -> Rowset:
    """Put the rows of some blocks together, those of the last block first."""
    joined = blocks[-1]
    for block in reversed(blocks[:-1]):
        if isinstance(joined, slice) and isinstance(block, slice) and joined.stop == block.start:
            joined = slice(joined.start, block.stop)
        else:
            joined = np.concatenate([numbers(joined), numbers(block)])
    return joined
