"""Compilation of kernels by this process: it is shown in a line, and other ranks that ask get an answer.

A kernel takes seconds to compile, and all of them a minute or more.  Meanwhile a thread shows the progress, and calls the
functions in `meanwhile`: on MPI, one that answers other ranks, which wait for this one.  numba is not needed here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lb_mpi import signs
from lb_mpi.status import StatusLine, line_width

SHOWN_S = 2.0  # of compilation in all, before it is shown
EVERY_S = 0.25

meanwhile: list[Callable[[], None]] = []  # called by a thread, every EVERY_S seconds


class Compilation:
    """The compilation of this process: its kernels one after another, each with those that it calls."""

    def __init__(self) -> None:
        self.n_done = 0  # kernels
        self.has_cache = True  # otherwise each run compiles
        self.spent_s = 0.0
        self._open: list[str] = []  # names of kernels: the first one calls the second, ...
        self._began = 0.0
        self._shown = False
        self._line = StatusLine()
        self._ended = threading.Event()
        self._thread = threading.Thread()

    @property
    def active(self) -> bool:
        """True while a kernel is compiled."""
        return bool(self._open)

    def begin(self, name: str) -> None:
        """Note that a kernel begins to be compiled."""
        self._open.append(name)
        if len(self._open) == 1:
            self._began = time.monotonic()
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(self._ended,), daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Note that the kernel that began last has been compiled, or has failed."""
        self._open.pop()
        self.n_done += 1
        if not self._open:
            self._ended.set()
            self._thread.join()
            self.spent_s += time.monotonic() - self._began
            self._line.clear()

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(EVERY_S):
            signs.turn()
            for call in meanwhile:
                call()
            self._show(self.spent_s + time.monotonic() - self._began)

    def _show(self, seconds: float) -> None:
        if seconds < SHOWN_S:
            return
        name = "".join(self._open[:1])  # of none, if it has just ended
        when = "first run only" if self.has_cache else "in each run: no folder for their cache, such as NUMBA_CACHE_DIR"
        text = f"lb_mpi: compiling kernels ({when}): {self.n_done} done, {seconds:.0f} s, now {name}"
        first, self._shown = not self._shown, True
        self._line.show(text, last=first and not line_width())


compilation = Compilation()
