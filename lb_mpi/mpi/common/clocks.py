"""What a thread's time goes into: computing, waiting by itself, or queueing for a core, as far as the system tells."""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from lb_mpi import stops
from lb_mpi.balancing.estimate import own_time_s

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not on Linux

    def _gave_up() -> int | None:
        return None
else:

    def _gave_up() -> int | None:
        return getrusage(RUSAGE_THREAD).ru_nvcsw


class Look(NamedTuple):
    """The clocks of a thread."""

    wall_s: float
    cpu_s: float
    gave_up: int | None  # how often it has given up the core by itself; None: the system doesn't tell
    queued_s: float | None  # that it has waited for a core; None: likewise
    stops: stops.Seen = stops.Seen()  # by launch/throttle


class Clocks:
    """Looks at the clocks of the thread that calls `begin`, until `end`."""

    def __init__(self) -> None:
        self._queue: int | None = None  # descriptor of what Linux tells of this thread's queueing
        self._thread = 0  # whose it is

    def begin(self) -> None:
        """From now on, in this thread; again and again costs little."""
        if self._thread == threading.get_ident():
            return
        self.end()
        self._thread = threading.get_ident()
        try:
            self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._queue = None

    def before(self) -> Look:
        """Look at the clocks before something is run."""
        wall_s = time.perf_counter()  # first here and last in `after`: what is read lies within
        return Look(wall_s, *self._within())

    def after(self) -> Look:
        """Look at the clocks when it has been run."""
        within = self._within()
        return Look(time.perf_counter(), *within)

    def _within(self) -> tuple[float, int | None, float | None, stops.Seen]:
        queued_s = None
        if self._queue is not None:
            fields = os.pread(self._queue, 100, 0).split()  # nanoseconds on a core, nanoseconds in a queue, time slices
            queued_s = 1e-9 * int(fields[1])
        return time.thread_time(), _gave_up(), queued_s, stops.read()

    def end(self) -> None:
        """Look no more."""
        if self._queue is not None:
            os.close(self._queue)
        self._queue, self._thread = None, 0


def own_s(before: Look, after: Look) -> float:
    """Seconds that what was run between two looks takes by itself; see `lb_mpi.balancing.estimate.own_time_s`."""
    n_stops, stopped_s = after.stops.n - before.stops.n, after.stops.seconds - before.stops.seconds
    gave_up = _difference(before.gave_up, after.gave_up)
    return own_time_s(
        after.wall_s - before.wall_s - stopped_s,
        after.cpu_s - before.cpu_s,
        None if gave_up is None else max(0, gave_up - n_stops),  # to be stopped counts as giving up the core
        _difference(before.queued_s, after.queued_s),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
