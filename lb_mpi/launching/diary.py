"""Notes of events in a run, written beside its records, and a separate process that shows its progress."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lb_mpi.files import create
from lb_mpi.record.launches import FILE, RESTART, Happened, folder_of, line

SHOWN = "LB_MPI_SHOWN"  # set for ranks whose progress launch/run shows
PREFIX = ".lb_mpi-progress-"  # of a folder for records that nobody wants to keep
END_S = 3.0  # for the process to exit and restore the terminal


@contextlib.contextmanager
def followed(folder: str, *, after_s: float = 0.0, terminal: str | None = None) -> Iterator[None]:
    """Show the progress of the run recorded in `folder`, while the block runs, from `after_s` seconds on.

    It is shown on standard error, or on the terminal at the path `terminal`.  The process that shows it exits at the end of
    its standard input, which comes even if this process is killed.
    """
    argv = [sys.executable, "-m", "lb_mpi.report.live", folder]
    package = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with open(terminal, "wb") if terminal is not None else contextlib.nullcontext() as stderr:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        started.append(process)

    timer = threading.Timer(after_s, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


class Diary:
    """The notes of one run, in `folder`, which is created (OSError if it can't be); None: nothing is written.

    `shown` : launch/run shows the progress, so the program need not.

    Records of an earlier run are removed first: they would look like this run's.  So are links with the names of its files
    and folders, since others may have put them there.
    """

    def __init__(self, folder: str | None, *, shown: bool = False) -> None:
        self._shown = {SHOWN: "1"} if shown else {}
        self._folder = None if folder is None else Path(folder).absolute()
        self._start = 0
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = create(self._folder / FILE)
            for link in (path for path in self._folder.glob("restart-*") if path.is_symlink()):
                link.unlink()
            for old in (*self._folder.glob("rank*.lbrec"), *self._folder.glob("restart-*/rank*.lbrec")):
                old.unlink()

    def tell(self, what: str, words: str, rank: str = "") -> None:
        """Write that something happened, to `rank` if that is known; a full disk does not end the run."""
        if self._folder is None:
            return
        self._start += what == RESTART
        number = int(rank) if rank.isdecimal() else -1
        with contextlib.suppress(OSError):
            os.write(self._file, line(Happened(what, time.time(), self._start, number, words)).encode())

    def variables(self) -> dict[str, str]:
        """Return the variables that say where this start's ranks record, and whether launch/run shows their progress."""
        where = {} if self._folder is None else {"LB_MPI_RECORD": os.path.join(self._folder, folder_of(self._start))}
        return where | self._shown
