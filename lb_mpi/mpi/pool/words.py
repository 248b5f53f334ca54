"""The words of the ranks on one host (see `lb_mpi.pooling.intervals`), in shared memory, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.pooling.worker import Swap

_LINE = 64  # bytes of a cache line: ranks don't wait for each other's words
_NO_WORD = np.uint64(2**64 - 1)  # lo == hi == 2**28 - 1 in epoch 255: nobody's
_WORD, _SPEED = 0, 1  # places in a line, in units of 8 bytes


class Words(Mapping[int, int]):
    """Words by rank of `comm`, of the ranks in `host` (a communicator of ranks that share memory).

    Reading one costs no MPI call: it lies in memory.  Who acts on what was read, swaps, and learns then if it was stale.
    Collective, as is `close`.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm) -> None:
        self.ranks: list[int] = host.allgather(comm.rank)
        self._places = {rank: place for place, rank in enumerate(self.ranks)}
        self._window = MPI.Win.Allocate_shared(_LINE, 1, comm=host)
        memory: list[Any] = [self._window.Shared_query(place)[0] for place in range(host.size)]
        lines = [memoryview(line).cast("B") for line in memory]
        self._words = {rank: line.cast("Q") for rank, line in zip(self.ranks, lines, strict=True)}
        self._speeds = {rank: line.cast("d") for rank, line in zip(self.ranks, lines, strict=True)}
        self._words[comm.rank][_WORD] = 0
        self._speeds[comm.rank][_SPEED] = 1.0
        self.speeds = _Speeds(self._speeds)
        self._old, self._new, self._found = (np.zeros(1, dtype=np.uint64) for _ in range(3))
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self._window.Sync()
        host.Barrier()

    def __getitem__(self, rank: int) -> int:
        return self._words[rank][_WORD]

    def __iter__(self) -> Iterator[int]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    def swap(self, swap: Swap) -> bool:
        """Compare and swap; False when the word was another one by then."""
        if len(self.ranks) == 1:  # nobody else is there, and MPI may take its time for such a window
            self._words[swap.rank][_WORD] = swap.new
            return True
        place = self._places[swap.rank]
        self._old[0], self._new[0], self._found[0] = swap.old, swap.new, _NO_WORD
        self._window.Compare_and_swap(self._new, self._old, self._found, place, 0)
        # In shared memory it's done by now, as the answer shows; a flush would give the core away on a busy machine.
        if self._found[0] == _NO_WORD:
            self._window.Flush(place)
        return int(self._found[0]) == swap.old

    def tell_speed(self, rank: int, speed: float) -> None:
        """Tell the ranks on this host how fast this one is."""
        self._speeds[rank][_SPEED] = speed

    def close(self) -> None:
        """Collective: free the window."""
        self._window.Unlock_all()
        self._words, self._speeds = {}, {}
        self._window.Free()


class _Speeds(Mapping[int, float]):
    """What each rank has told of its speed."""

    def __init__(self, lines: dict[int, memoryview[float]]) -> None:
        self._lines = lines

    def __getitem__(self, rank: int) -> float:
        return float(self._lines[rank][_SPEED])

    def __iter__(self) -> Iterator[int]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)
