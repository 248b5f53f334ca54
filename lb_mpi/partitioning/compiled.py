"""How numba compiles the kernels that make no arrays: without counting references to those that they are given.

A kernel takes named tuples of arrays.  numba counts a reference whenever one of these arrays is looked at, in the inner
loops, too, and that takes as long as the work itself.  Who makes no array, and keeps none, needs no count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
_njit: Any = njit  # its types don't know the option _nrt


def borrowing(kernel: Kernel) -> Kernel:
    """Compile a kernel that makes no arrays."""
    compiled: Kernel = _njit(cache=True, _nrt=False)(kernel)
    return compiled


def inlined(kernel: Kernel) -> Kernel:
    """Compile a small kernel that makes no arrays, as a part of whatever calls it."""
    compiled: Kernel = _njit(forceinline=True, _nrt=False)(kernel)
    return compiled
