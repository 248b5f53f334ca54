"""What the user's function takes, at an emulated speed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.balancing.estimate import own_time_s
from lb_mpi.checks import emulated_speed as check_speed
from lb_mpi.emulate import throttle

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not on Linux

    def _gave_up() -> int | None:
        return None
else:

    def _gave_up() -> int | None:
        return getrusage(RUSAGE_THREAD).ru_nvcsw


class _Look(NamedTuple):
    """The clocks of this thread."""

    wall_s: float
    cpu_s: float
    gave_up: int | None  # how often it has given up the core by itself; None: the system doesn't tell
    queued_s: float | None  # that it has waited for a core; None: likewise


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of the function's own time: CPU time, and the time in which it waits by itself; see
    `lb_mpi.balancing.estimate`.
    """

    def __init__(self, emulated_speed: float) -> None:
        self.slow = throttle(check_speed(emulated_speed))
        self.warm = False  # the first call of a function may compile it, and tells nothing about rows
        self.busy_s = self.ticks = 0.0
        self._queue: int | None = None  # descriptor of what Linux tells of this thread's queueing

    def begin(self) -> None:
        """Begin a new round, in this thread."""
        self.busy_s = self.ticks = 0.0
        try:
            self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._queue = None

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
        """Call the function; its result, and the ticks it took (NaN: not to be relied upon)."""
        before = self._look()
        result = function(*arguments)
        after = self._look()
        wall_s, cpu_s = after.wall_s - before.wall_s, after.cpu_s - before.cpu_s
        self.slow.charge(cpu_s)
        if not self.warm:
            self.warm = True
            return result, np.nan
        ticks = own_time_s(
            wall_s, cpu_s, _difference(before.gave_up, after.gave_up), _difference(before.queued_s, after.queued_s)
        )
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

    def end(self) -> None:
        """End the round."""
        if self._queue is not None:
            os.close(self._queue)
            self._queue = None

    def _look(self) -> _Look:
        queued_s = None
        if self._queue is not None:
            fields = os.pread(self._queue, 100, 0).split()  # nanoseconds on a core, nanoseconds in a queue, time slices
            queued_s = 1e-9 * int(fields[1])
        return _Look(time.perf_counter(), time.thread_time(), _gave_up(), queued_s)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
