"""The root's account of a map: which tasks are done, each once, and what each rank has done for it.

Law: a result is taken once, of the map that is under way; when there are as many as tasks, the map is over, and no other
detection of the end is needed.
"""

from __future__ import annotations

from typing import NamedTuple

from lb_mpi.errors import ProtocolError


class RankTasks(NamedTuple):
    """What one rank has done in a map."""

    tasks: int = 0  # tasks run
    busy_s: float = 0.0  # wall-clock seconds in tasks, with what an emulated slower speed adds
    work_s: float = 0.0  # seconds that the tasks take by themselves: of CPU, and of waiting
    steals: int = 0  # intervals stolen, of its own host or of another
    sent_bytes: int = 0  # of messages, of all kinds


class Collector:
    """Results of one map as they come to the root."""

    def __init__(self, epoch: int, n: int) -> None:
        self.epoch = epoch
        self.missing = n
        self._done = bytearray(n)  # 1: done

    def take(self, epoch: int, lo: int, hi: int) -> bool:
        """Results of the tasks lo..hi-1 have come; False when they are of another map, and not wanted."""
        if epoch != self.epoch:
            return False
        if not 0 <= lo < hi <= len(self._done) or self._done.find(1, lo, hi) >= 0:
            raise ProtocolError(f"results of tasks {lo}..{hi - 1} of {len(self._done)}: expected each once")
        self._done[lo:hi] = b"\1" * (hi - lo)
        self.missing -= hi - lo
        return True
