"""Compile inner loops with numba, and print a line, since that takes long.

Compiled loops are cached on disk, so only the first run on a machine compiles.  That may delay the partition of a large
graph by half a minute, without any output.

A kernel's arguments are named tuples of arrays.  numba counts a reference at each access to such an array, even in inner
loops, which takes as long as the work itself.  A function that neither creates nor keeps arrays needs no counting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit as njit
from numba.core import event

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


class _Notice(event.Listener):
    """Print one line on stderr when this process compiles a kernel of ours that was not in the cache."""

    _printed = False

    def on_start(self, event: Any) -> None:
        if not self._printed and event.data["dispatcher"].py_func.__module__.startswith(("lb_mpi.", "apps.")):
            self._printed = True
            print("lb_mpi: compiling kernels (first run only) ...", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]
