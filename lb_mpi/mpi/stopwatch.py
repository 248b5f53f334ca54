"""What the user's function takes, at an emulated speed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lb_mpi.checks import emulated_speed as check_speed
from lb_mpi.emulate import throttle

ASLEEP = 0.2  # a function that uses less CPU time than this part of its time is waiting for something,
MOSTLY = 0.75  # in most of its last calls: on a busy machine it may look so in some


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of CPU time: the operating system giving the processor to others is no property of the rows.  Where
    the function hardly uses the CPU (it sleeps, or a GPU computes), they are seconds of wall-clock time from then on.
    """

    def __init__(self, emulated_speed: float) -> None:
        self.slow = throttle(check_speed(emulated_speed))
        self.by_cpu = True
        self.warm = False  # the first call of a function may compile it, and tells nothing about rows
        self.busy_s = self.ticks = 0.0
        self._asleep: deque[bool] = deque(maxlen=16)  # for each of the last calls

    def begin(self) -> None:
        """Begin a new round."""
        self.busy_s = self.ticks = 0.0

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
        """Call the function; its result, and the ticks it took (NaN: not to be relied upon)."""
        cpu, wall = time.thread_time(), time.perf_counter()
        result = function(*arguments)
        wall_s, cpu_s = time.perf_counter() - wall, time.thread_time() - cpu
        self.slow.charge(cpu_s)
        if not self.warm:
            self.warm = True
            return result, np.nan
        self._asleep.append(cpu_s < ASLEEP * wall_s)
        ticks = cpu_s if self.by_cpu else wall_s
        self.busy_s += wall_s
        self.ticks += ticks
        return result, ticks

    def rest(self) -> bool:
        """Rest for a short part of the time that an emulated slow rank needs; False when it may compute."""
        seconds = self.slow.due()
        if seconds <= 0.0:
            return False
        began = time.perf_counter()
        time.sleep(seconds)
        self.busy_s += time.perf_counter() - began
        return True

    def end(self) -> bool:
        """End the round; False when its ticks are worth nothing, since the clock had to be changed."""
        if self.by_cpu and len(self._asleep) >= 4 and sum(self._asleep) >= MOSTLY * len(self._asleep):
            self.by_cpu = False
            return False
        return True
