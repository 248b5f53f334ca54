"""The results of a map on its root: counted, written to the checkpoint, and taken by the caller.

The loop calls `put`, and asks whether something is `due`; then it returns.  The caller's functions are called where the
caller takes results: never in another thread, whose map completes this one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lb_mpi.mpi.pool.arguments import Progress
from lb_mpi.mpi.pool.checkpoint_file import CheckpointFile
from lb_mpi.mpi.pool.plan import ChunkRun
from lb_mpi.pooling.account import Collector
from lb_mpi.pooling.checkpoint import is_storable

REPORT_S = 0.25
FLUSH_S = 20e-3  # how long results wait for others to be sent along, or written to the checkpoint


class Gathering:
    """The results of a map, whose position k is task order[k].

    With a checkpoint, results can be taken when they are on disk, some milliseconds after their arrival.
    `keep_exceptions`: exceptions are results, which are not written, so that a later run tries their tasks again.
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
        self._unwritten: list[tuple[ChunkRun, list[Any]]] = []
        self._fresh = deque[tuple[Sequence[int], list[Any]]]()  # (task numbers, values), to be taken
        self._stored = [] if file is None else list(file.done)  # tasks with results from an earlier run
        if file is not None and file.done:
            self._fresh.append((self._stored, list(file.done.values())))
        self._order, self._collector = order, Collector(0, len(order))
        self._callback, self._progress = callback, progress
        self._file, self._keep_exceptions = file, keep_exceptions
        self._n_reported = len(order)  # not done, when progress was called last
        self._reported = time.perf_counter()
        self._write_at = 0.0
        self.refused: tuple[int, int] | None = None  # (rank, position) of a task whose result the checkpoint can't store

    @property
    def has_calls(self) -> bool:
        """True if there are functions of the caller's."""
        return self._callback is not None or self._progress is not None

    @property
    def keeps(self) -> bool:
        """True if there is a checkpoint."""
        return self._file is not None

    @property
    def complete(self) -> bool:
        """True if all results have arrived, and are written."""
        return not (self._collector.missing or self._unwritten)

    def put(self, source: int, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """Accept the results of the tasks at positions lo..hi-1 from rank `source`; together they took `seconds`."""
        self._collector.take(0, lo, hi)
        self.runs.append(run := ChunkRun(lo, hi, seconds, source))
        if self._file is None:
            self._fresh.append((self._order[lo:hi], values))
        else:
            self._unwritten.append((run, values))

    def due(self, now: float, *, idle: bool) -> bool:
        """Return whether results are to be written, some together if there may soon be more; the root may be `idle`."""
        return bool(self._unwritten) and (idle or now > self._write_at)

    def calls(self, now: float) -> bool:
        """Return whether the caller's frame is due: for the callback, or for the progress.

        An idle root stays in the loop, where it may warn of a late rank.
        """
        return (self._callback is not None and bool(self._fresh)) or self._reports(now)

    def _reports(self, now: float) -> bool:
        some = self._progress is not None and self._collector.missing < self._n_reported
        return some and now > self._reported + REPORT_S

    def write(self) -> None:
        """Write results to the checkpoint, if there is one; raise what the file raises."""
        if not self._unwritten:
            return
        assert self._file is not None
        found = [pair for run, values in self._unwritten for pair in zip(range(run.lo, run.hi), values, strict=True)]
        if self._keep_exceptions:
            found = [(position, value) for position, value in found if not isinstance(value, Exception)]
        try:
            self._file.write([self._order[position] for position, _ in found], [value for _, value in found])
        except (TypeError, ValueError):
            for position in [k for k, value in found if not is_storable(value)][:1]:
                self.refused = next((run.rank, position) for run in self.runs if run.lo <= position < run.hi)
            raise
        self._fresh.extend((self._order[run.lo : run.hi], values) for run, values in self._unwritten)
        self._unwritten = []
        self._write_at = time.perf_counter() + FLUSH_S

    @property
    def has_fresh(self) -> bool:
        """True if results can be taken."""
        return bool(self._fresh)

    def take(self) -> tuple[Sequence[int], list[Any]]:
        """Return (task numbers, values) of results that were not taken before."""
        return self._fresh.popleft()

    def call(self, tasks: Sequence[int], values: list[Any]) -> None:
        """Call the caller's functions: the callback with results, the progress now and then."""
        if self._callback is not None and tasks is not self._stored:
            for value in values:
                self._callback(value)
        if self._reports(time.perf_counter()):
            self.tell_progress()
            self._reported = time.perf_counter()  # after the call, which may take long

    def tell_progress(self) -> None:
        """Call the caller's progress, if there is one."""
        if self._progress is not None:
            self._n_reported = self._collector.missing
            self._progress(len(self._order) - self._n_reported, len(self._order))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
