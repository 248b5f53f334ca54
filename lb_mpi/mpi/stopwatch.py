"""What the user's function takes, at an emulated speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lb_mpi.checks import emulated_speed as check_speed
from lb_mpi.emulate import throttle
from lb_mpi.mpi.clocks import Clocks, own_s


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of the function's own time: CPU time, and the time in which it waits by itself; see
    `lb_mpi.balancing.estimate`.
    """

    def __init__(self, emulated_speed: float) -> None:
        self.slow = throttle(check_speed(emulated_speed))
        self.warm = False  # the first call of a function may compile it, and tells nothing about rows
        self.busy_s = self.ticks = 0.0
        self.computing_s = 0.0  # of this round: busy, and what the first call took
        self.occupied_s = 0.0  # with rows in this round: busy, and all that goes with it (copying, sending, messages)
        self.rows = self.blocks = 0  # computed in this round
        self._clocks = Clocks()

    def begin(self) -> None:
        """Begin a new round, in this thread."""
        self.busy_s = self.ticks = self.computing_s = self.occupied_s = 0.0
        self.rows = self.blocks = 0
        self._clocks.begin()

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
        """Call the function; its result, and the ticks it took (NaN: not to be relied upon)."""
        before = self._clocks.before()
        result = function(*arguments)
        after = self._clocks.after()
        self.slow.charge(after.cpu_s - before.cpu_s)
        self.computing_s += after.wall_s - before.wall_s
        if not self.warm:
            self.warm = True
            self.occupied_s -= after.wall_s - before.wall_s
            return result, np.nan
        ticks = own_s(before, after)
        self.busy_s += after.wall_s - before.wall_s
        self.ticks += ticks
        return result, ticks

    @property
    def handling_s(self) -> float:
        """Seconds that a block took in this round beside being computed."""
        return max(0.0, self.occupied_s - self.busy_s) / max(1, self.blocks)

    def rest(self) -> bool:
        """Rest for a short part of the time that an emulated slow rank needs; False when it may compute."""
        seconds = self.slow.due()
        if seconds <= 0.0:
            return False
        began = time.perf_counter()
        time.sleep(seconds)
        rested = time.perf_counter() - began
        self.busy_s += rested
        self.computing_s += rested
        return True

    def end(self) -> None:
        """End the round."""
        self._clocks.end()
