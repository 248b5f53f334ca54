"""The results of a map on its root: counted, written to the checkpoint, and passed to the caller's functions.

The loop calls `put`, and asks whether something is `due`.  It then returns to the caller's frame, which calls the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lb_mpi.mpi.pool.arguments import Progress
from lb_mpi.mpi.pool.checkpoint_file import CheckpointFile
from lb_mpi.mpi.pool.plan import ChunkRun
from lb_mpi.pooling.account import Collector
from lb_mpi.pooling.checkpoint import is_storable

REPORT_S = 0.25
FLUSH_S = 20e-3  # how long results wait for others to be sent along, or written to the checkpoint


class _Results(NamedTuple):
    lo: int  # of the tasks at positions lo..hi-1
    hi: int
    values: list[Any]


class Gathering:
    """The results of a map, whose position k is task order[k].

    With a checkpoint, results count when they are on disk, some milliseconds after their arrival.  `keep_exceptions`:
    exceptions are results, which are not written, so that a later run tries their tasks again.
    """

    def __init__(
        self,
        order: Sequence[int],
        *,
        callback: Callable[[Any], object] | None,
        progress: Progress | None,
        file: CheckpointFile | None,
        keep_exceptions: bool,
    ) -> None:
        self.runs: list[ChunkRun] = []  # in order of arrival
        self.fresh: list[tuple[Sequence[int], list[Any]]] = []  # (task numbers, values), in order of arrival
        if file is not None:
            self.fresh.append((list(file.done), list(file.done.values())))
        self._order, self.collector = order, Collector(0, len(order))
        self._callback, self._progress = callback, progress
        self._file, self._keep_exceptions = file, keep_exceptions
        self._came: list[_Results] = []  # to be written and delivered
        self._written: list[_Results] = []  # to be delivered
        self._n_reported = len(order)  # not done, when progress was called last
        self._reported = time.perf_counter()
        self._deliver_at = 0.0
        self.refused: tuple[int, int] | None = None  # (rank, position) of a task whose result the checkpoint can't store

    @property
    def keeps(self) -> bool:
        """True if there is a checkpoint."""
        return self._file is not None

    def put(self, source: int, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """Take the results of the tasks at positions lo..hi-1 from rank `source`; together they took `seconds`."""
        self.runs.append(ChunkRun(lo, hi, seconds, source))
        if self._file is None and self._callback is None:
            self._count(lo, hi, values)
        else:
            self._came.append(_Results(lo, hi, values))

    def due(self, now: float, *, idle: bool) -> bool:
        """Return whether the caller's frame is due: for results, for a file some together, or for the progress.

        An idle root stays in the loop, where it may warn of a late rank.
        """
        if self._came and (idle or self._file is None or now > self._deliver_at):
            return True
        some = self._progress is not None and self.collector.missing < self._n_reported
        return some and now > self._reported + REPORT_S

    def write(self) -> None:
        """Write results to the checkpoint, if there is one; raise what the file raises."""
        came, self._came = self._came, []
        if came:
            self._deliver_at = time.perf_counter() + FLUSH_S
        if came and self._file is not None:
            found = [pair for lo, hi, values in came for pair in zip(range(lo, hi), values, strict=True)]  # by position
            if self._keep_exceptions:
                found = [(position, value) for position, value in found if not isinstance(value, Exception)]
            try:
                self._file.write([self._order[position] for position, _ in found], [value for _, value in found])
            except (TypeError, ValueError):
                for position in [k for k, value in found if not is_storable(value)][:1]:
                    self.refused = next((run.rank, position) for run in self.runs if run.lo <= position < run.hi)
                raise
        self._written += came

    def deliver(self) -> None:
        """Pass what is written to the callback, and report the progress now and then."""
        written, self._written = self._written, []
        for lo, hi, values in written:
            if self._callback is not None:
                for value in values:
                    self._callback(value)
            self._count(lo, hi, values)
        if time.perf_counter() > self._reported + REPORT_S:
            self.tell_progress()
            self._reported = time.perf_counter()  # after the call, which may take long

    def tell_progress(self) -> None:
        """Call the caller's progress, if there is one."""
        if self._progress is not None:
            self._n_reported = self.collector.missing
            self._progress(len(self._order) - self._n_reported, len(self._order))

    def take_fresh(self) -> list[tuple[Sequence[int], list[Any]]]:
        """Return the results that have not been taken."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _count(self, lo: int, hi: int, values: list[Any]) -> None:
        self.collector.take(0, lo, hi)
        self.fresh.append((self._order[lo:hi], values))
