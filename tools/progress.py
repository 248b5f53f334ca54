"""How far a pytest is: a plugin (`-p tools.progress`) that notes it in the folder LB_MPI_PROGRESS, and who reads that."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

VARIABLE = "LB_MPI_PROGRESS"


class Progress(NamedTuple):
    """Where a run of tests is."""

    done: int = 0
    of: int = 0
    current: str = ""
    silent_s: float = 0.0  # since the last test ended, on any rank

    def __str__(self) -> str:
        """Write it for a line."""
        return f"{self.done} of {self.of} tests, now {self.current}" if self.current else "starting"


def read(files: Iterable[Path], began: float) -> Progress:
    """Return the progress of the ranks that write `files`, which began at `began` (as time.time())."""
    found = Progress()
    last = began
    for file in sorted(files):
        with contextlib.suppress(OSError, ValueError):  # not there yet, or half written
            last = max(last, file.stat().st_mtime)
            done, of, current = file.read_text().split(" ", 2)
            found = found if found.of else Progress(int(done), int(of), current)
    return found._replace(silent_s=time.time() - last)


class _Writer:
    """The hooks of pytest."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"{os.getpid()}.progress"
        self._done = self._of = 0

    def pytest_collection_finish(self, session: object) -> None:
        """Learn how many tests there are."""
        self._of = len(session.items)  # type: ignore[attr-defined]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins; so the one before has ended."""
        self._path.write_text(f"{self._done} {self._of} {nodeid}")

    def pytest_runtest_logfinish(self) -> None:
        """A test has ended."""
        self._done += 1


def pytest_configure(config: object) -> None:
    """Write, if there is anybody to read."""
    if folder := os.environ.get(VARIABLE):
        config.pluginmanager.register(_Writer(folder))  # type: ignore[attr-defined]
