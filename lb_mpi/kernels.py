"""Compile inner loops with numba, and print a line when that takes long.

Compiled loops are cached on disk, so only the first run on a machine compiles.  A large graph's partition then waits half
a minute for its kernels, without a word on why.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from numba import njit as njit
from numba.core import event

TOLD_S = 2.0  # compiling that takes longer is told

COMPILE = "numba:compile"  # numba's event: a kernel was not in the cache, and is compiled


class CompilingTold(event.Listener):
    """Prints one line on stderr when this process has spent TOLD_S seconds compiling, in one kernel or several."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """`tell` prints the line; it is called at most once, maybe in another thread."""
        self._tell = tell
        self._left_s = TOLD_S
        self._n_open = 0  # a kernel's compiling includes that of the kernels that it calls
        self._began = 0.0
        self._timer = threading.Timer(0.0, tell)

    def on_start(self, event: object) -> None:
        """A kernel begins to be compiled."""
        self._n_open += 1
        if self._n_open == 1 and self._left_s > 0:
            self._began = time.monotonic()
            self._timer = threading.Timer(self._left_s, self._tell)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: object) -> None:
        """It is compiled, or has failed to be."""
        self._n_open -= 1
        if self._n_open == 0 and self._left_s > 0:
            self._timer.cancel()
            self._left_s -= time.monotonic() - self._began


def _tell() -> None:
    print("lb_mpi: compiling kernels (first run only) ...", file=sys.stderr, flush=True)


event.register(COMPILE, CompilingTold(_tell))  # type: ignore[no-untyped-call]
