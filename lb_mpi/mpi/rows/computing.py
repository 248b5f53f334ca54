"""The user's function on rows of this rank, and of others: it is called in blocks and measured, and its results stored."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lb_mpi.balancing.deciding import RankReport
from lb_mpi.balancing.round import Rowset
from lb_mpi.emulate import throttle
from lb_mpi.mpi.common.carrier import Meter
from lb_mpi.mpi.common.waiting import Clocks, own_s
from lb_mpi.mpi.rows.rows import Results, Rows, Spec, in_blocks
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF, Record


@dataclass
class Measured:
    """Seconds and ticks that a rank spent on rows."""

    computing_s: float = 0.0  # in all, with rests and the first call
    queued_s: float = 0.0  # of computing_s, without a core
    occupied_s: float = 0.0  # with rows, and all other overhead: sending, messages
    rows_s: float = 0.0  # with rows: computing and copying blocks, resting (emulated)
    ticks: float = 0.0
    called_s: float = 0.0  # in the function
    handled: int = 0  # blocks directly after another one, without messages in between
    handled_cpu_s: float = 0.0  # between those blocks and the ones before

    @property
    def overhead_s(self) -> float:
        """Seconds that do not depend on how many rows this rank computed."""
        return max(0.0, self.occupied_s - self.rows_s)

    @property
    def handling_s(self) -> float:
        """Overhead of a block in seconds, at this rank's emulated speed; 0: unknown.

        Based on CPU time, so a few blocks suffice even if the rank is interrupted now and then.
        """
        return self.handled_cpu_s / max(1, self.handled) * (self.called_s / self.ticks if self.ticks else 0.0)


class Stopwatch(Clocks, Meter):
    """Runs the user's function and measures it, at an emulated speed, in the thread that calls `begin`.

    Ticks are seconds of the function's own time, CPU and waiting; see `lb_mpi.balancing.knowledge`.
    """

    def __init__(self, emulated_speed: float | Callable[[], float]) -> None:
        super().__init__()
        self.slow = throttle(emulated_speed, "emulated_speed")
        self.warm = False  # the first call may compile the function, so its time is not used
        self.measured = Measured()  # since the last call of `collect`
        self._handled_cpu_s = 0.0  # since the function returned, without rests
        self._handling_since: float | None = None  # CPU time; None: messages were handled since the function returned

    def call(self, function: Callable[..., Any], arguments: Sequence[Any], *, first: bool = True) -> tuple[Any, float]:
        """Call the function, `first` in a block of rows; return its result, and the ticks it took (NaN: unreliable)."""
        before = self.read()
        result = function(*arguments)
        after = self.read()
        if self.slow.rests:
            self.slow.charge(after.cpu_s - before.cpu_s)
        seconds = after.wall_s - before.wall_s
        ticks, measured = own_s(before, after), self.measured
        measured.computing_s += seconds
        measured.queued_s += max(0.0, seconds - (after.stops.seconds - before.stops.seconds) - ticks)
        if not self.warm:
            self.warm = True
            measured.occupied_s -= seconds
            measured.rows_s -= seconds
            return result, np.nan
        if first and self._handling_since is not None:
            measured.handled += 1
            measured.handled_cpu_s += self._handled_cpu_s + before.cpu_s - self._handling_since
        measured.called_s += seconds
        measured.ticks += ticks
        self._handled_cpu_s, self._handling_since = 0.0, after.cpu_s
        return result, ticks

    def waited(self, _seconds: float) -> None:
        """See `Meter`: the rank has done something other than computing blocks."""
        self.handled()

    def handled(self) -> None:
        """See `Meter`; the time until the next block belongs to no block."""
        self._handling_since = None

    def collect(self) -> Measured:
        """Return the measurements since the last call, and reset them: a round is over."""
        measured, self.measured, self._handling_since = self.measured, Measured(), None
        return measured

    def worked(self, seconds: float) -> None:
        """Add time with a job, including all overhead."""
        self.measured.occupied_s += seconds
        if self._handling_since is not None:
            now = time.thread_time()
            self._handled_cpu_s, self._handling_since = self._handled_cpu_s + now - self._handling_since, now

    def rested(self, seconds: float) -> None:
        """Add a rest, including the messages handled in it: all of it counts as emulated computing, not as handling."""
        self.measured.occupied_s += seconds
        self.measured.rows_s += seconds
        self.measured.computing_s += seconds
        if self._handling_since is not None:
            self._handling_since = time.thread_time()


class Computing:
    """One rank's part of a call of `map_rows`: the user's function, its rows, their results, and what was measured.

    `form`: of the results of the last call; None: these are the first rows of their form.  `checksum`: of what must be
    equal on all ranks.  `began_s`, `last_s`: see `RankReport`.  `record`: None if nothing is recorded.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rows: Rows,
        results: Results,
        watch: Stopwatch,
        record: Record,
        *,
        form: Spec | None = None,
        checksum: int = 0,
        began_s: float = math.nan,
        last_s: float = math.nan,
    ) -> None:
        self.function, self.rows, self.results, self.watch = function, rows, results, watch
        self.record = None if record is OFF else record
        self._form, self._checksum, self._began_s, self._last_s = form, checksum, began_s, last_s
        self.n_rows = 0  # computed, of this and of other ranks
        self.spent_s = 0.0  # for packing, sending, and joining
        self.measured = Measured()  # as reported
        watch.begin()

    def own(self, index: Rowset) -> tuple[float, float]:
        """Compute rows of this rank, and store their results; return the seconds and the ticks of the function."""
        record, began = self.record, time.perf_counter()
        if record is not None:
            record.enter(Phase.PACKING, began)
        block = self.rows.block(index)
        copied = time.perf_counter()
        if record is not None:
            record.enter(Phase.OWN, copied)
        result, ticks = self.call(block)
        computed = time.perf_counter()
        if record is not None:
            record.enter(Phase.PACKING, computed)
        self.results.put(index, result)
        self.spent_s += copied - began + time.perf_counter() - computed
        return computed - copied, ticks

    def call(self, block: tuple[Any, ...]) -> tuple[Sequence[Any], float]:
        """Call the function, in blocks of the wanted size; return its results, which are valid until the next call."""
        n, size = len(block[0]), self.rows.spec.block_rows
        self.n_rows += n
        if not size:
            result, ticks = self.watch.call(self.function, self.rows.arguments(block))
            return self.results.check(result, n), ticks
        total, begin = 0.0, 0
        whole: Sequence[Any] = ()
        for part in in_blocks(block, size):
            result, ticks = self.watch.call(self.function, self.rows.arguments(part), first=not begin)
            end = begin + len(part[0])
            columns = self.results.check(result, end - begin)
            if end - begin == n:
                whole = columns
            else:  # copied at once, since the function may return its own array, the same one each time
                whole = whole or self.results.room(n)
                for column, some in zip(whole, columns, strict=True):
                    column[begin:end] = some
            total, begin = total + ticks, end
        return whole, total

    def report(self, measured: Measured, *, failed: bool, **more: Any) -> RankReport:
        """Report what this rank has measured, and what only its carrier knows; `more`: further fields."""
        self.measured, checksum = measured, self.results.checksum
        return RankReport(
            failed, self._checksum, results=checksum or (self._form.checksum if self._form is not None else 0),
            busy_s=measured.rows_s, ticks=measured.ticks, spent_s=self.spent_s, began_s=self._began_s, last_s=self._last_s,
            coreless_s=measured.queued_s, home=self.rows.n_units, formed=checksum != 0, changed=self._form is None, **more,
        )  # fmt: skip
