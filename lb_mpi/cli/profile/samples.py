"""The lines that a rank runs while the others wait, from samples.

A thread looks every 10 ms at the main thread, which is in a line of the program, or in MPI.  A sample stands for the time
since the one before it.  At the end all ranks compare their samples by one clock: a second in a line during which half of
the other ranks are in MPI counts as half a second for which this line is awaited.  Compare blame shifting: Tallent,
Adhianto, Mellor-Crummey, Scalable identification of load imbalance in parallel executions using call path profiles, SC 2010.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lb_mpi.cli.profile.profile import Busy
from lb_mpi.graph import Ints
from lb_mpi.metrics import Floats

PERIOD_S = 10e-3
MOST_SAMPLES = 1 << 18  # then every second one is dropped: 12 bytes each
BINS = 1 << 13  # of the time of the program
MOST_LINES = 100  # of a rank, sent to rank 0
IN_MPI = -1
# After this time the main thread lets the sampler run.  By Python's 5 ms, it ran only where the main thread waited or was in
# a function that lets other threads run, so a short call of numpy got the time of all the Python before it.
SWITCH_S = 1e-5
Place = tuple[str, int, str]  # file, line, function


class Samples(NamedTuple):
    """The samples of the main thread."""

    times: Ints  # ns
    places: Ints  # index in `names`; IN_MPI
    names: Sequence[Place]


class Sampler:
    """Take samples of the main thread, in its own thread; `current_line` returns a line of the program, or None in MPI."""

    def __init__(self, current_line: Callable[[], Place | None]) -> None:
        self._current_line = current_line
        self._names: dict[Place, int] = {}
        self._times, self._places = array("q"), array("l")
        self._period_s, self._over, self._before_s = PERIOD_S, threading.Event(), sys.getswitchinterval()
        self._thread = threading.Thread(target=self._run, name="lb_mpi profile", daemon=True)

    def start(self) -> None:
        """Begin to take samples."""
        self._times.append(time.perf_counter_ns())
        self._places.append(IN_MPI)
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def stop(self) -> Samples:
        """End; return the samples, of which the first is the start."""
        self._over.set()
        self._thread.join()
        sys.setswitchinterval(self._before_s)
        return Samples(np.array(self._times, np.int64), np.array(self._places, np.int64), [*self._names])

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            place = self._current_line()
            self._times.append(time.perf_counter_ns())
            self._places.append(IN_MPI if place is None else self._names.setdefault(place, len(self._names)))
            if len(self._times) >= MOST_SAMPLES:
                del self._times[1::2], self._places[1::2]
                self._period_s *= 2.0


def in_bins(samples: Samples, edges: Ints) -> Floats:
    """Return (B,) seconds outside of MPI between the (B + 1,) edges, by the clock of the samples."""
    spent = np.diff(samples.times, prepend=samples.times[0]) * (samples.places != IN_MPI)
    seconds: Floats = np.diff(np.interp(edges, samples.times, np.cumsum(spent))) * 1e-9
    return seconds


def busy_lines(samples: Samples, edges: Ints, others: Floats) -> list[Busy]:
    """Return the lines of this rank, the most awaited first; `others` : (B,) fraction, 0 to 1, of other ranks in MPI."""
    width_s = np.diff(edges) * 1e-9
    awaited = np.interp(samples.times, edges, np.concatenate([[0.0], np.cumsum(others * width_s)]))
    computing = samples.places != IN_MPI
    places, n = samples.places[computing], len(samples.names)
    seconds = np.bincount(places, np.diff(samples.times, prepend=samples.times[0])[computing] * 1e-9, n)
    awaited_s = np.bincount(places, np.diff(awaited, prepend=awaited[0])[computing], n)
    sums = zip(samples.names, seconds.tolist(), awaited_s.tolist(), strict=True)
    found = [Busy(*name, *of_line) for name, *of_line in sums]
    return sorted(found, key=lambda one: (-one.awaited_s, -one.seconds))[:MOST_LINES]
