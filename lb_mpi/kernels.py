"""Compile inner loops with numba, and print a line if that takes long.

Compiled loops are cached on disk, so only the first run on a machine compiles.  That may delay the partition of a large
graph by half a minute, without any output.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from numba import njit as njit
from numba.core import event

TOLD_S = 2.0  # longer compilation is reported

COMPILE = "numba:compile"  # numba's event: compilation of a kernel that was not in the cache


class CompilingTold(event.Listener):
    """A listener that prints one line on stderr when this process has spent TOLD_S seconds compiling, in all kernels."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """Call `tell` to print the line, at most once, possibly in another thread."""
        self._tell = tell
        self._left_s = TOLD_S
        self._n_open = 0  # compiling a kernel includes the kernels that it calls
        self._began = 0.0
        self._timer = threading.Timer(0.0, tell)

    def on_start(self, event: object) -> None:
        """Note that a kernel begins to be compiled."""
        self._n_open += 1
        if self._n_open == 1 and self._left_s > 0:
            self._began = time.monotonic()
            self._timer = threading.Timer(self._left_s, self._tell)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: object) -> None:
        """Note that its compilation has ended or failed."""
        self._n_open -= 1
        if self._n_open == 0 and self._left_s > 0:
            self._timer.cancel()
            self._left_s -= time.monotonic() - self._began


def _tell() -> None:
    print("lb_mpi: compiling kernels (first run only) ...", file=sys.stderr, flush=True)


event.register(COMPILE, CompilingTold(_tell))  # type: ignore[no-untyped-call]
