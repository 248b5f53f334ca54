"""Waiting of a thread: its naps, and how its time is used; without MPI.

More ranks than cores are common, so a waiting rank sleeps, a little longer each time (`Nap`).

`Clocks` measure how long a thread computed, waited by itself, or queued for a core, as far as the system reports it.  A
function may use other threads (numba, BLAS, OpenMP): as long as one of them has a core, its thread does not queue, so the
CPU time of the process's other threads counts, up to the time that has gone by.  Where several threads of one process run
tasks or rows at once, each is taken to have had a core while another one had it: their queueing is underestimated.
"""

from __future__ import annotations

import math
import os
import threading
import time
from functools import cached_property
from resource import RUSAGE_THREAD, getrusage
from typing import NamedTuple

from lb_mpi import signs
from lb_mpi.emulate import StoppedTime, may_be_stopped, read_stops

LONGEST_S, FIRST = 0.5e-3, 1 / 50  # the longest nap, if few ranks share a core; the first one, as a part of the longest
POLL_S, POLLING = 40e-6, 0.2  # CPU seconds of a poll; part of a host's cores that its ranks use for polling if all wait
N_CORES = os.cpu_count() or 1  # of the host, not those of this rank: Open MPI may bind each rank to one core
N_RANKS_HERE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # on this host, as MPICH and Open MPI tell their ranks
BESIDE_S = 20e-6  # without a core, which may be the time between two clocks that are read one after the other
ASLEEP = 0.2  # if the system reports no queueing: a function with a smaller fraction of CPU time counts as waiting
PATIENCE_S = 1.0  # a waiting rank holds Ctrl-C back for this time, since the others may be about to arrive


def longest_nap_s(n_ranks: int | None = None) -> float:
    """Return the seconds of the longest nap: 0.5 ms; longer if polling would otherwise fill the cores of this host.

    `n_ranks` on it; None: as many as MPI tells its ranks.
    """
    if n_ranks is None:
        given = [os.environ.get(name, "") for name in N_RANKS_HERE]
        n_ranks = max([int(text) for text in given if text.isdecimal()], default=1)
    return max(LONGEST_S, n_ranks / N_CORES * POLL_S / POLLING)


class Nap:
    """A sleep that grows from `FIRST` of `longest_s` (None: `longest_nap_s`) to all of it while nothing happens."""

    def __init__(self, longest_s: float | None = None) -> None:
        self._longest_s = longest_s
        self.reset()

    @cached_property
    def longest_s(self) -> float:
        """Seconds of the longest nap: asked for only by a rank that naps, since a call may be short."""
        return longest_nap_s() if self._longest_s is None else self._longest_s

    def reset(self) -> None:
        """Note activity: the next nap is short."""
        self._length = 0.0

    def sleep(self, at_most: float = float("inf")) -> None:
        """Sleep, a little longer each time, but at most `at_most` seconds; also reports to a supervisor."""
        signs.turn()
        self._length = self._length or FIRST * self.longest_s
        began = time.perf_counter()
        time.sleep(max(0.0, min(self._length, at_most)))
        signs.slept(time.perf_counter() - began)
        self._length = min(1.5 * self._length, self.longest_s)


# --- clocks -----------------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """The clocks of a thread."""

    wall_s: float
    cpu_s: float
    gave_up: int  # how often it gave up the core by itself
    queued_s: float | None  # seconds waited for a core; None: not reported
    others_s: float = 0.0  # CPU time of the process's other threads
    stops: StoppedTime = StoppedTime()  # by launch/throttle


NEVER = StoppedTime()


class Clocks:
    """Reads the clocks of the thread that calls `begin`, until `end`.

    A thread that has been on a core ever since has neither waited nor queued.  So the system's report of that is read again
    only after BESIDE_S without a core: where the user's code has filled the caches, it takes as long as handling a block.
    """

    def __init__(self) -> None:
        self._queue: int | None = None  # descriptor of Linux's report of this thread's queueing
        self._thread = 0  # that called `begin`: the system's number, since Python's own may be that of an earlier thread
        self._beside_s = -math.inf  # seconds without a core when the system's report was read
        self._report: tuple[int, float | None, float] = 0, None, 0.0
        self._stops = False  # of this program, from outside

    def begin(self) -> None:
        """Start in this thread; repeated calls cost little."""
        thread = threading.get_native_id()
        if self._thread == thread:
            return
        self.end()
        self._thread, self._beside_s, self._stops = thread, -math.inf, may_be_stopped()
        try:
            self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._queue = None

    def read(self) -> Reading:
        """Read the clocks."""
        cpu_s, wall_s = time.thread_time(), time.perf_counter()
        if wall_s - cpu_s > self._beside_s + BESIDE_S:
            self._beside_s = wall_s - cpu_s
            gave_up, others_s = getrusage(RUSAGE_THREAD).ru_nvcsw, time.process_time() - time.thread_time()
            self._report = gave_up, self._queued_s(), others_s
        return Reading(wall_s, cpu_s, *self._report, read_stops() if self._stops else NEVER)

    def _queued_s(self) -> float | None:
        try:
            if self._queue is not None:
                return 1e-9 * int(os.pread(self._queue, 100, 0).split()[1])  # ns on a core, in a queue; slices
        except (OSError, IndexError):  # a /proc that is not the kernel's own may have an empty file
            pass
        return None

    def end(self) -> None:
        """Stop reading; two threads may do so at once, when a pool is closed while a task is left behind after Ctrl-C."""
        queue, self._queue, self._thread = self._queue, None, 0
        if queue is not None:
            os.close(queue)


def without_core_s(before: Reading, after: Reading) -> float:
    """Seconds between two readings in which this thread waited for a core and no thread of the process had one."""
    if before.queued_s is None or after.queued_s is None:
        return 0.0
    return max(0.0, after.queued_s - before.queued_s - (after.others_s - before.others_s))


def own_s(before: Reading, after: Reading) -> float:
    """Seconds that a call between two readings takes by itself.

    A call that never gave up the core has not waited: CPU time.  Otherwise all time except that spent queueing for a core;
    if the system does not report that, CPU time, but all time if the call hardly used the CPU.  Time in which the program
    was stopped does not count.
    """
    wall_s = after.wall_s - before.wall_s - (after.stops.seconds - before.stops.seconds)
    cpu_s = after.cpu_s - before.cpu_s
    cpu_s = max(cpu_s, min(wall_s, cpu_s + after.others_s - before.others_s))
    if after.gave_up - before.gave_up <= after.stops.n - before.stops.n:  # a stop counts as giving up the core
        return cpu_s
    if before.queued_s is None or after.queued_s is None:
        return cpu_s if cpu_s >= ASLEEP * wall_s else max(cpu_s, wall_s)
    return max(cpu_s, wall_s - without_core_s(before, after))
