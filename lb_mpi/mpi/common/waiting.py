"""Waiting without spinning: more ranks than cores is normal, so whoever waits sleeps."""

from __future__ import annotations

import time

from lb_mpi import signs

SHORTEST_S = 10e-6
PATIENCE_S = 1.0  # for which a rank that waits holds Ctrl-C back: the others may be about to come


class Nap:
    """A sleep that grows from 10 us to `longest_s` while nothing happens."""

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self._length = SHORTEST_S
        self._since = 0.0  # when the first nap began after something had happened; 0: none has

    def reset(self) -> None:
        """Something has happened: the next nap is short."""
        self._length = SHORTEST_S
        self._since = 0.0

    @property
    def waited_s(self) -> float:
        """For how long nothing has happened."""
        return time.perf_counter() - self._since if self._since else 0.0

    def take(self, at_most: float = float("inf")) -> None:
        """Sleep, a little longer each time, and at most `at_most` seconds; whoever watches is told that this rank lives."""
        signs.turn()
        began = time.perf_counter()
        self._since = self._since or began
        time.sleep(max(0.0, min(self._length, at_most)))
        signs.slept(time.perf_counter() - began)
        self._length = min(1.5 * self._length, self.longest_s)


