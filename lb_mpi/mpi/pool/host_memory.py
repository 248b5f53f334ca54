"""Memory that the ranks of a host share: the interval of each rank, and its timing."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.knowledge import Timing
from lb_mpi.pooling.stealer import Swap

_LINE = 64  # bytes of a cache line, to avoid false sharing of words
_WORD = 8  # bytes of a word, at the start of its line
_TIMING = struct.Struct("<qqdd")  # behind it
_NO_WORD = np.uint64(2**64 - 1)  # lo == hi == 2**28 - 1 in epoch 255: no rank's word


def window_of(host: MPI.Intracomm) -> MPI.Win:
    """Collective: make the window of `SharedIntervals`, for ranks that share memory."""
    return MPI.Win.Allocate_shared(_LINE, 1, comm=host)


class SharedIntervals:
    """The interval of each rank on a host, as a word (see `lb_mpi.pooling.intervals`).

    `ranks` are the numbers in the pool of those that share the window.  No rank may use it before all have made this.
    Reading a word needs no MPI call.  A stale reading makes the swap that is based on it fail.  `close` is collective.
    """

    def __init__(self, window: MPI.Win, rank: int, ranks: list[int]) -> None:
        self._slots, self._window = {one: slot for slot, one in enumerate(ranks)}, window
        lines: list[Any] = [window.Shared_query(slot)[0] for slot in range(len(ranks))]
        views = {one: memoryview(line).cast("B") for one, line in zip(ranks, lines, strict=True)}
        self._words = {one: view.cast("Q") for one, view in views.items()}
        self._words[rank][0] = 0
        self.timings = SharedTimings(views)
        self.timings[rank] = Timing()
        self._old, self._new, self._found = (np.zeros(1, dtype=np.uint64) for _ in range(3))
        window.Lock_all(MPI.MODE_NOCHECK)
        window.Sync()

    def __getitem__(self, rank: int) -> int:
        return self._words[rank][0]

    def swap(self, swap: Swap) -> bool:
        """Compare and swap; return False if the word has changed."""
        if len(self._slots) == 1:  # no other rank exists, and MPI may be slow with such a window
            self._words[swap.rank][0] = swap.new
            return True
        slot = self._slots[swap.rank]
        self._old[0], self._new[0], self._found[0] = swap.old, swap.new, _NO_WORD
        self._window.Compare_and_swap(self._new, self._old, self._found, slot, 0)
        # In shared memory it is complete, as the result shows; on a busy machine, a flush would give up the core.
        if self._found[0] == _NO_WORD:
            self._window.Flush(slot)
        return int(self._found[0]) == swap.old

    def close(self) -> None:
        """Collective: free the window."""
        self._window.Unlock_all()
        self._words.clear()
        self.timings.clear()
        self._window.Free()


class SharedTimings:
    """The timing of each rank on a host (see `lb_mpi.knowledge`), in shared memory behind its word.

    A rank may read a timing while another writes it: then parts of it are one chunk older, which does no harm.
    """

    def __init__(self, lines: dict[int, memoryview]) -> None:
        self._lines = lines

    def __getitem__(self, rank: int) -> Timing:
        return Timing(*_TIMING.unpack_from(self._lines[rank], _WORD))

    def __setitem__(self, rank: int, timing: Timing) -> None:
        _TIMING.pack_into(self._lines[rank], _WORD, *timing)

    def clear(self) -> None:
        """Forget the memory, which is about to be freed."""
        self._lines.clear()
