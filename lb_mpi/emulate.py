"""Emulate a slower machine: a program that rests between its computations, in proportion to the CPU time it used."""

from __future__ import annotations

import time
from types import TracebackType

from lb_mpi.checks import emulated_speed

SLICE_S = 0.5e-3  # longest single rest, so that a resting program can still serve its messages
CREDIT_S = 5e-3  # how far a late wake-up or a lost time slice may be made good


class throttle:
    """Emulate a rank of relative `speed` (0 < speed <= 1): after c seconds of own CPU time it may not compute again
    before c / speed seconds of wall-clock time have passed, that is, it rests (1 / speed - 1) times as long as it computed.

    As a context manager, with the rest at the end of each block:

        slow = lb_mpi.throttle(0.4)
        for step in range(steps):
            with slow:
                compute()

    A program that must serve messages meanwhile calls `charge(cpu_s)` after it has computed, and does not compute again
    before `due()` is 0.  Time that the operating system gave to others counts as rest, so that on a busy machine the
    emulated speed stays what was asked for; at most 5 ms of lateness are made good.
    """

    def __init__(self, speed: float) -> None:
        self.speed = emulated_speed(speed, "speed")
        self.cpu_s = 0.0  # CPU time charged so far
        self._ready_at = time.perf_counter()
        self._entered = 0.0

    def charge(self, cpu_s: float) -> None:
        """The program has just computed for `cpu_s` seconds of CPU time."""
        self.cpu_s += cpu_s
        began = time.perf_counter() - cpu_s
        self._ready_at = max(self._ready_at, began - CREDIT_S) + cpu_s / self.speed

    def due(self) -> float:
        """Seconds of rest that are left, in slices of at most 0.5 ms; 0.0 when the program may compute."""
        if self.speed == 1.0:
            return 0.0
        return min(max(self._ready_at - time.perf_counter(), 0.0), SLICE_S)

    def rest(self) -> None:
        """Sleep until the program may compute again."""
        while (seconds := self.due()) > 0.0:
            time.sleep(seconds)

    def __enter__(self) -> throttle:
        self._entered = time.thread_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.charge(time.thread_time() - self._entered)
        if kind is None:
            self.rest()
