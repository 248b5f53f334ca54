"""Compile inner loops with numba, and print a line if that takes long.

Compiled loops are cached on disk, so only the first run on a machine compiles.  That may delay the partition of a large
graph by half a minute, without any output.

A kernel's arguments are named tuples of arrays.  numba counts a reference at each access to such an array, even in inner
loops, which takes as long as the work itself.  A function that neither creates nor keeps arrays needs no counting.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

try:
    from numba import njit as njit
    from numba.core import event
except ModuleNotFoundError as error:
    if error.name != "numba":
        raise
    raise ModuleNotFoundError("graphs need numba: pip install 'lb_mpi[graphs]'", name="numba") from error

COUNTLESS: Any = {"_nrt": False}  # numba's option is not public: if it is missing, importing this module fails

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def borrowing(kernel: Kernel) -> Kernel:
    """Compile a kernel that creates no arrays; a division by 0 gives infinity, as in numpy."""
    compiled: Kernel = njit(cache=True, error_model="numpy", **COUNTLESS)(kernel)
    return compiled


def inlined(kernel: Kernel) -> Kernel:
    """Compile a small kernel that creates no arrays, and inline it into its callers."""
    compiled: Kernel = njit(forceinline=True, **COUNTLESS)(kernel)
    return compiled


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
