"""Emulation of a slower machine: a program rests between its computations, in proportion to the CPU time it used.

A program under launch/throttle is stopped and continued from outside.  It cannot distinguish that from waiting, since
in both cases it has no core while time passes.  So the throttling process counts the stops in a page of memory
(`Stops`, which makes a page, or uses that of an enclosing throttle), and the program reads it (`read_stops`).

This module needs only the standard library, and no MPI.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple

from lb_mpi.actor import Actor, J, M
from lb_mpi.checks import emulated_speed

SLICE_S = 0.5e-3  # longest single rest, so that a resting program can still serve its messages
CREDIT_S = 5e-3  # how much delay by a late wake-up or a lost time slice is compensated
THROTTLED = "LB_MPI_THROTTLED"  # the relative speed of a program under launch/throttle, which sets it


def throttled() -> float:
    """Return the relative speed at which launch/throttle, or an emulated host, runs this program; 1.0: neither does.

    It is used to compute lower bounds; no balancing depends on it.  ValueError for an invalid number in the environment.
    """
    text: str | float = os.environ.get(THROTTLED, "1")
    with contextlib.suppress(ValueError):
        text = float(text)
    return emulated_speed(text, THROTTLED)


class throttle:
    """Limit the CPU time of this rank, to emulate a machine of relative `speed` (above 0 and at most 1).

    After c seconds of its CPU time, the rank may not compute again before c / speed seconds of wall-clock time have
    passed: it rests (1 / speed - 1) times as long as it computed.

    As a context manager, `throttle` rests at the end of each block:

        slow = lb_mpi.throttle(0.4)
        for step in range(steps):
            with slow:
                compute()

    A program that must serve messages during the rests calls `charge(cpu_s)` after it has computed, and does not
    compute again before `due()` is 0.  Time that the operating system gave to other programs counts as rest, so that
    the emulated speed is also right on a busy machine; at most 5 ms of such a delay are compensated.  Time in which the
    rank has nothing to compute, as it waits for others, does not count.

    `speed` may be a function without arguments that returns the speed of the moment, for a machine whose speed changes.

    Under launch/throttle, or on an emulated host, `speed` is relative to the speed there: the stops from outside are no
    rest.

    Raises ValueError for a speed that is not above 0 and at most 1, also if the function returns one later.
    """

    def __init__(self, speed: float | Callable[[], float], name: str = "speed") -> None:
        self._speed = emulated_speed(speed() if callable(speed) else speed, name)
        self._now, self._name = speed if callable(speed) else None, name
        self.rests = self._now is not None or self._speed != 1.0  # ever
        self._outside = throttled()
        self.cpu_s = 0.0  # CPU time charged so far
        self._ready_at = time.perf_counter()
        self._began: float | None = None  # the latest moment at which it could begin to compute, since the last charge
        self._late_s = 0.0  # by which it could begin later than allowed, at most CREDIT_S
        self._entered = 0.0

    @property
    def speed(self) -> float:
        """The current relative speed; ValueError if the function returns another number."""
        return self._speed if self._now is None else emulated_speed(self._now(), self._name)

    @property
    def cpu_share(self) -> float:
        """CPU seconds in a second of computing and rests; 1.0 if `speed` is 1.0, so that there are no rests."""
        return 1.0 if self.speed == 1.0 else self.speed * self._outside

    def charge(self, cpu_s: float) -> None:
        """Note that the program has just computed for `cpu_s` seconds of CPU time."""
        self.cpu_s += cpu_s
        began = time.perf_counter() - cpu_s if self._began is None else self._began
        self._ready_at = max(self._ready_at, began - self._late_s) + cpu_s / (self.speed * self._outside)
        self._began = None

    def due(self) -> float:
        """Return the seconds of rest that are left, but at most 0.5 ms; 0.0 if the program may compute."""
        if not self.rests or self.speed == 1.0:
            return 0.0
        now = time.perf_counter()
        if now < self._ready_at:
            return min(self._ready_at - now, SLICE_S)
        if self._began is None:
            self._late_s = min(now - self._ready_at, CREDIT_S)
        self._began = now
        return 0.0

    def around(self, actor: Actor[M, Any, Any]) -> Actor[M, Any, Any]:
        """Return the actor as on this slow rank; the actor itself if this one never rests."""
        return Slow(actor, self.due) if self.rests else actor

    def rest(self) -> None:
        """Sleep until the program may compute again."""
        while (seconds := self.due()) > 0.0:
            time.sleep(seconds)

    def __enter__(self) -> throttle:
        self._began, self._entered = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.charge(time.thread_time() - self._entered)
        if kind is None:
            self.rest()


class Rest(NamedTuple):
    """A job of a slow rank: to do nothing for so many seconds, or less."""

    seconds: float


class Slow(Generic[M, J]):
    """An actor on a slow rank, which rests when `due` says for how many seconds; an actor, too.   (pure)

    It still handles messages while it rests, but begins no job.  What a job sends is held back, and leaves when the rank has
    rested, or is over: a machine of that speed would only then be ready.
    """

    def __init__(self, actor: Actor[M, J, Any], due: Callable[[], float]) -> None:
        self.actor, self._due = actor, due
        self._rest_s = 0.0
        self._held: list[tuple[int, M]] = []

    @property
    def over(self) -> bool:
        """See `Actor`."""
        return self.actor.over and not self._held

    @property
    def job(self) -> J | Rest | None:
        """See `Actor`; while it rests, to rest."""
        return Rest(self._rest_s) if self._rest_s else self.actor.job

    @property
    def wake_at(self) -> float:
        """See `Actor`."""
        return self.actor.wake_at

    def turn(self, now: float, arrived: Iterable[tuple[int, M]]) -> list[tuple[int, M]]:
        """See `Actor`."""
        sends = self.actor.turn(now, arrived)
        self._rest_s = self._due()  # last, as a job may follow
        if self._held and (not self._rest_s or self.actor.over):
            sends, self._held = [*self._held, *sends], []
        return sends

    def done(self, job: J | Rest, result: Any) -> list[tuple[int, M]]:
        """See `Actor`."""
        if not isinstance(job, Rest):
            self._held = self.actor.done(job, result)
        return []

    def fail(self, error: BaseException) -> list[tuple[int, M]]:
        """See `Actor`."""
        return self.actor.fail(error)


# --- stopped from outside ----------------------------------------------------------------------------------------------


VARIABLE = "LB_MPI_STOPS"  # path of the page
_NAME, _BYTES = "lb_mpi-stops", 4096
_STOPS, _STOPPED_NS = range(2)  # 8-byte words of the page


class StoppedTime(NamedTuple):
    """The content of a page."""

    n: int = 0  # number of stops
    seconds: float = 0.0  # total duration


_NEVER = StoppedTime()


class Stops:
    """The page of a program that is stopped from outside; `variables`: the environment of the stopping process."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        words = _open(variables)
        self.variables = {VARIABLE: variables[VARIABLE]} if words is not None else {}  # for the program
        if words is None:
            file = os.memfd_create(_NAME)  # memory only, no file to remove
            os.ftruncate(file, _BYTES)
            words = memoryview(mmap.mmap(file, _BYTES)).cast("Q")
            self.variables = {VARIABLE: f"/proc/{os.getpid()}/fd/{file}"}
        self._words = words

    def add(self, seconds: float) -> None:
        """Add a stop of this duration, before the program continues."""
        self._words[_STOPPED_NS] += int(1e9 * seconds)
        self._words[_STOPS] += 1


def may_be_stopped() -> bool:
    """Return whether launch/throttle runs this program."""
    return _page() is not None


def read_stops() -> StoppedTime:
    """Read how often and how long this program has been stopped; zero without launch/throttle."""
    words = _page()
    return _NEVER if words is None else StoppedTime(words[_STOPS], 1e-9 * words[_STOPPED_NS])


@functools.cache
def _page() -> memoryview | None:
    return _open(os.environ)


def _open(variables: Mapping[str, str]) -> memoryview | None:
    path = variables.get(VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        # On another host, or later, the same path may be another file.
        if path and os.readlink(path).startswith(f"/memfd:{_NAME}"):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return memoryview(mmap.mmap(file, _BYTES)).cast("Q")
            finally:
                os.close(file)
    return None
