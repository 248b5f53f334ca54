"""The order of an array's elements in memory, which copies of it keep: the last bits of sums depend on it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Layout(NamedTuple):
    """The order of an array's elements in memory, on which the last bits of its sums depend."""

    axes: tuple[int, ...]  # the one with the largest steps first
    steps: tuple[slice, ...]  # by axis; backwards where indices rise as addresses fall

    @classmethod
    def of(cls, array: NDArray[Any], *, rows: bool = False) -> Layout:
        """Return the layout of an array; `rows`: of its rows, so that the first axis stays the first."""
        strides = array.strides
        axes = sorted(range(array.ndim), key=lambda axis: (axis > 0 or not rows, -abs(strides[axis])))
        steps = [slice(None, None, -1 if step < 0 else 1) for step in strides]
        if rows:
            steps[0] = slice(None)
        return cls(tuple(axes), tuple(steps))

    def compact(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array as a view whose order is C's."""
        return array[self.steps].transpose(self.axes)

    def restored(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return, as a view of an array in C's order, one with this layout."""
        return np.ascontiguousarray(array).transpose(np.argsort(self.axes))[self.steps]
