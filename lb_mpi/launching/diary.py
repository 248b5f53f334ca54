"""What happens to a run, written beside its records while it runs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from lb_mpi.files import create
from lb_mpi.launching.followed import SHOWN
from lb_mpi.recording.launches import FILE, RESTART, START, Happened, folder_of, line


class Diary:
    """Of one run in `folder`, which is made; None: nothing is written.  OSError when it can't be.

    `shown` : launch/run shows how the run goes, so that the program need not.

    Records of a run before, which this one would write over, are removed first: they would look like its own.  So are links
    that have the names of its files and folders, since others may have put them there.
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
        """Write that something has happened, to `rank` if that is known; a full disk does not end the run."""
        if self._folder is None:
            return
        self._start += what == RESTART
        number = int(rank) if rank.isdecimal() else -1
        with contextlib.suppress(OSError):
            os.write(self._file, line(Happened(what, time.time(), self._start, number, words)).encode())

    def variables(self) -> dict[str, str]:
        """Return the variables that tell this start's ranks where to record, and that it is shown."""
        where = {} if self._folder is None else {"LB_MPI_RECORD": os.path.join(self._folder, folder_of(self._start))}
        return where | self._shown

    def begin(self, words: str) -> None:
        """Write that a start begins."""
        self.tell(START, words)
