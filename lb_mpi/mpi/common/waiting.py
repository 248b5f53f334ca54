"""Waiting of a thread: its naps, when Ctrl-C may interrupt it, and how its time is used; without MPI.

More ranks than cores are common, so a waiting rank sleeps, a little longer each time (`Nap`).

A KeyboardInterrupt between the start of a send and the line that keeps its request would leave the send half done, and
in a rank's sleep it would leave the others waiting for ever.  So a driver holds Ctrl-C back (`defer`) while it sends and
receives, checks for it at each turn, and then ends as after any other error: it notifies all ranks.  In the user's code
Ctrl-C is raised at once.  A process has one signal handler, so there is one state.  Blocks may be nested: a wait within
a driver, or a driver within a function that another driver has called.

A call that has succeeded returns its value.  Once all ranks are sure to end it well (`commit`), Ctrl-C waits, and is raised
in the next call (but for exchanges of a plan), at the end of a close, or at the end of the program; or at the next Ctrl-C in
the user's code, which counts as the same.  Otherwise this rank would keep the old state where all others have the new one.

A case remains: Ctrl-C that arrives while an iterator that is dropped ends its map is printed and lost, as in any finalizer.

`Clocks` measure how long a thread computed, waited by itself, or queued for a core, as far as the system reports it.  A
function may use other threads (numba, BLAS, OpenMP): as long as one of them has a core, its thread does not queue, so the
CPU time of the process's other threads counts, up to the time that has gone by.  Where several threads of one process run
tasks or rows at once, each is taken to have had a core while another one had it: their queueing is underestimated.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`, which makes enums of all handlers: 20 us in each call
import math
import os
import threading
import time
from functools import cached_property
from resource import RUSAGE_THREAD, getrusage
from types import FrameType, TracebackType
from typing import NamedTuple

from lb_mpi import signs
from lb_mpi.emulate import StoppedTime, may_be_stopped, read_stops
from lb_mpi.handlers import install, restore

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


# --- Ctrl-C ------------------------------------------------------------------------------------------------------------


class Interrupts:
    """The Ctrl-C that arrived while it was held back.

    `with interrupts:` is a block of the user's code, in which Ctrl-C is raised at once.
    """

    def __init__(self) -> None:
        self.pending = False
        self.committed = False  # to the end of the block of `defer` it waits
        self._raising = True
        self._before: list[tuple[bool, bool]] = []  # stack: the two states outside of each such block, or one of `defer`

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any, before a `commit`."""
        if self.pending and not self.committed:
            self.pending = False
            raise KeyboardInterrupt

    def forget(self) -> None:
        """Forget the Ctrl-C that was held back: in a forked child, which has got none."""
        self.pending = False

    def commit(self) -> None:
        """Let Ctrl-C wait for the next call, in this block of `defer`: all ranks are sure to end this one well."""
        self.committed = bool(self._before)

    def wait(self) -> None:
        """Let a KeyboardInterrupt that was raised too late to stop this call wait for the next one."""
        self.pending = True

    def __enter__(self) -> None:  # not a generator: a search enters several times within microseconds
        if self.pending:
            self.check()
        self._before.append((self._raising, self.committed))
        self._raising = not self.committed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raising, self.committed = self._before.pop()

    def defer(self) -> bool:
        """Hold Ctrl-C back until `release`; return whether this is the outermost block with Python's own handler of SIGINT.

        With any other handler (ignored, a user's), or in another thread, nothing changes.
        """
        outermost = not self._before
        self._before.append((self._raising, self.committed))
        self._raising = False
        if self is not _interrupts or not outermost:
            return False
        handler = _signal.getsignal(_signal.SIGINT)
        if handler is _signal.default_int_handler:
            install(_signal.SIGINT, self._handle_sigint)
            return True
        return bool(handler == self._handle_sigint)  # which stays while a Ctrl-C waits

    def release(self, installed: bool, *, failed: bool, last: bool = False) -> None:
        """Restore the previous SIGINT handler if `defer` installed ours; after a `last` call, raise a pending Ctrl-C.

        An error that is being raised replaces the Ctrl-C.  A handler that the user's code has installed meanwhile stays.
        """
        self._raising, self.committed = self._before.pop()
        if installed and failed:
            self.pending = False
        if installed and (last or not self.pending):
            restore(_signal.SIGINT, self._handle_sigint)
        if last and installed:
            self.check()

    def _handle_sigint(self, _number: int, frame: FrameType | None) -> None:
        if self._raising and (frame is None or frame.f_code.co_filename != __file__):  # not half way in or out of a block
            self.pending = False
            raise KeyboardInterrupt
        self.pending = True


HANDLERS = (Interrupts._handle_sigint.__name__, "_handle_sigalrm")  # innermost frames of errors that interrupt user code
_interrupts = Interrupts()  # of the main thread
_MAIN = threading.main_thread().ident
os.register_at_fork(after_in_child=_interrupts.forget)


def interrupts() -> Interrupts:
    """Return the state of this thread; only the main thread is ever interrupted."""
    return _interrupts if threading.get_ident() == _MAIN else Interrupts()


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
