"""What the user's function takes, at an emulated speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lb_mpi.emulate import Varying, throttle
from lb_mpi.mpi.common.waiting import Clocks, own_s


class Measured:
    """What a rank did with rows."""

    def __init__(self) -> None:
        self.occupied_s = 0.0  # computing, resting (emulated), and all that goes with it: copying, sending, messages
        self.computing_s = 0.0  # of it, computing and resting
        self.ticks = 0.0
        self.called_s = 0.0  # in the function
        self.handled = 0  # blocks that came straight after another one, without any message
        self.handled_cpu_s = 0.0  # between these and the ones before

    @property
    def handling_s(self) -> float:
        """Seconds that a block takes beside being computed, on this rank as slow as it is; 0: not known.

        By CPU time: a few blocks tell it, even where the rank is stopped now and then.
        """
        return self.handled_cpu_s / max(1, self.handled) * (self.called_s / self.ticks if self.ticks else 0.0)


class Stopwatch:
    """Runs the user's function and measures it, at an emulated speed.

    Ticks are seconds of the function's own time: CPU time, and the time in which it waits by itself; see
    `lb_mpi.balancing.estimate`.
    """

    def __init__(self, emulated_speed: float | Varying) -> None:
        self.slow = throttle(emulated_speed, "emulated_speed")
        self.warm = False  # the first call of a function may compile it, and tells nothing about rows
        self.computing_s = 0.0  # of this round, with what the first call took
        self.rows = 0  # computed in this round
        self._measured = Measured()
        self._handled_cpu_s = 0.0  # since the function returned, without rests
        self._handling_since: float | None = None  # CPU time; None: there were messages since the function returned
        self._begins = False  # a block: the next call is its first
        self._clocks = Clocks()

    def begin(self) -> None:
        """Begin a new round, in this thread."""
        self.computing_s, self.rows = 0.0, 0
        self.disturbed()
        self._clocks.begin()

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
        """Call the function; its result, and the ticks it took (NaN: not to be relied upon)."""
        before = self._clocks.before()
        result = function(*arguments)
        after = self._clocks.after()
        self.slow.charge(after.cpu_s - before.cpu_s)
        seconds = after.wall_s - before.wall_s
        self.computing_s += seconds
        measured = self._measured
        if not self.warm:
            self.warm = True
            measured.occupied_s -= seconds
            return result, np.nan
        if self._begins and self._handling_since is not None:
            measured.handled += 1
            measured.handled_cpu_s += self._handled_cpu_s + before.cpu_s - self._handling_since
        ticks = own_s(before, after)
        measured.computing_s += seconds
        measured.called_s += seconds
        measured.ticks += ticks
        self._begins, self._handled_cpu_s, self._handling_since = False, 0.0, after.cpu_s
        return result, ticks

    def occupy(self, seconds: float) -> None:
        """The rank was occupied with rows for so long, with computing and with all else that it takes."""
        self._measured.occupied_s += seconds

    def block(self, rows: int) -> None:
        """A block of rows is about to be computed."""
        self.rows += rows
        self._begins = True

    def disturbed(self) -> None:
        """The rank has done something else than one block after the other."""
        self._handling_since = None

    @property
    def handling_s(self) -> float:
        """Seconds that a block took beside being computed, so far; 0: not known."""
        return self._measured.handling_s

    def tell(self) -> Measured:
        """What was measured since this was asked the last time."""
        measured, self._measured = self._measured, Measured()
        return measured

    def rests(self, *, begins: bool) -> None:
        """Note that a rest of an emulated slow rank begins, or has ended: it is no handling of blocks."""
        if self._handling_since is None:
            return
        if begins:
            self._handled_cpu_s += time.thread_time() - self._handling_since
        else:
            self._handling_since = time.thread_time()

    def rested(self, seconds: float) -> None:
        """The rank has rested for so long, in which it has looked at its messages: all that is emulated computing."""
        measured = self._measured
        measured.occupied_s += seconds
        measured.computing_s += seconds
        self.computing_s += seconds

    def end(self) -> None:
        """End the round."""
        self._clocks.end()
