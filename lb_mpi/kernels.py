"""Compile inner loops with numba.

Compiled loops are cached on disk, each as soon as it is compiled, so only the first run of a user compiles, and one that is
killed loses one of them.  That may delay the partition of a large graph by half a minute (see `lb_mpi.compiling`).

A kernel's arguments are named tuples of arrays.  numba counts a reference at each access to such an array, even in inner
loops, which takes as long as the work itself.  A function that neither creates nor keeps arrays needs no counting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

try:
    from numba import njit as njit
    from numba.core import event
except ModuleNotFoundError as error:
    if error.name != "numba":
        raise
    raise ModuleNotFoundError("graphs need numba: pip install 'lb_mpi[graphs]'", name="numba") from error

from lb_mpi.compiling import compilation

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


class _Listener(event.Listener):
    """A listener to numba's compilation of kernels that are not in the cache."""

    def on_start(self, event: Any) -> None:
        """Note that a kernel begins to be compiled."""
        compilation.begin(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        """Note that its compilation has ended or failed."""
        compilation.end()


event.register("numba:compile", _Listener())  # type: ignore[no-untyped-call]
