"""Feeding: which rank gets how many of the next items, where the items are read while tasks run.   (pure)

The root reads an item only if a rank needs one, and reads no more while `buffersize` items are read whose results have not
been taken.  It sends items in batches of about `TARGET_S`.  A rank gets its next batch while it runs the last one: a second
one, or as many as last until the root has run its own batch, in which it sends nothing.  The root itself works when all
others have what they need.

Law: a batch is done once, by the rank that got it, in the order in which it got them; of the items that are read, those
whose results have not been taken are never more than `buffersize`; a rank without items gets some as long as there are any,
and room for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.errors import ProtocolError

TARGET_S = 10e-3  # of a batch
MOST = 256  # items in a batch
AHEAD, MOST_AHEAD = 2, 8  # batches at a rank
ROOM = 32  # items for each rank, if the user gives no buffersize; more if tasks are short


class Need(NamedTuple):
    """A rank that needs items."""

    rank: int
    n: int  # at most


class Feeder:
    """The items under way to and at `ranks`, whose first is the root.

    buffersize : items read whose results have not been taken, at most; 0: enough for all ranks.
    chunksize : items in a batch; 0: adaptive.
    """

    def __init__(self, ranks: Sequence[int], *, buffersize: int = 0, chunksize: int = 0) -> None:
        self.root, *self._others = ranks
        self._buffersize, self._chunksize = buffersize, chunksize
        self._at = {rank: deque[int]() for rank in ranks}  # by rank: the number of items in each of its batches
        self._next = dict.fromkeys(ranks, chunksize or 1)  # items in its next batch
        self._item_s = dict.fromkeys(ranks, 0.0)  # of a task, in its last batch
        self._root_s = 0.0  # of the root's last batch
        self.n_read = 0  # items
        self._n_taken = 0  # results

    @property
    def under_way(self) -> bool:
        """True if a batch is not done."""
        return any(self._at.values())

    @property
    def room(self) -> int:
        """The number of items that may be read now."""
        most = self._buffersize or max(ROOM, 2 * AHEAD * max(self._next.values())) * len(self._at)
        return most - self.n_read + self._n_taken

    def need(self) -> Need | None:
        """Return the rank that needs items most; None: no rank needs any, or there is no room."""
        if (room := self.room) <= 0:
            return None
        rank = min(self._others, key=lambda one: len(self._at[one]), default=self.root)
        if not self._needs(rank):
            rank = next(filter(self._needs, self._others), self.root)
        if rank == self.root and self._at[rank]:
            return None
        return Need(rank, min(self._next[rank], max(1, room // len(self._at))))

    def _needs(self, rank: int) -> bool:
        batches = self._at[rank]
        ends_first = sum(batches) * self._item_s[rank] < self._root_s
        return len(batches) < (MOST_AHEAD if ends_first else AHEAD)

    def gave(self, rank: int, n: int) -> int:
        """Note a batch of the next n items; return the number of its first."""
        self._at[rank].append(n)
        self.n_read += n
        return self.n_read - n

    def done(self, rank: int, seconds: float) -> None:
        """Note that a rank has run the first of its batches in so many seconds."""
        if not self._at[rank]:
            raise ProtocolError(f"results of rank {rank}: expected none, since it has no items")
        n = self._at[rank].popleft()
        self._item_s[rank] = seconds / n
        if rank == self.root:
            self._root_s = seconds
        if not self._chunksize:
            fitting = int(TARGET_S / max(self._item_s[rank], 1e-9))
            self._next[rank] = max(1, min(fitting, 2 * n, MOST))

    def took(self, n: int) -> None:
        """Note that n results have been taken."""
        self._n_taken += n
