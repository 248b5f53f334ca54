"""Arrays as programs have them: any order of axes in memory, backwards, broadcast, with gaps, of any dtype, read-only.

`draw` draws what all ranks have, and `Drawn.rows` are some of the rows: one, none or many, in the same order in memory on
every rank.  `Drawn.wrong` compares rows that lb_mpi has moved with those of one rank that has them all, bit for bit, and so
their sums along each axis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.columns import order_of

DTYPES = ("f8", "f8", "f8", "f4", ">f4", "c16", "i2")
LENGTHS = {1: [1], 2: [1, 2, 9, 33, 150], 3: [1, 9, 33], 4: [1, 2, 9]}  # of axes of arrays with so many
Rows = NDArray[Any]


class Drawn(NamedTuple):
    """N rows, of which each rank may have some."""

    values: Rows  # (N, ...) in C order
    axes: tuple[int, ...]  # from the outermost to the innermost in memory
    steps: tuple[int, ...]  # by axis: -1 backwards, 2 with gaps
    broadcast: tuple[bool, ...]  # by axis: stride 0
    readonly: bool

    def rows(self, numbers: NDArray[np.int64]) -> Rows:
        """Return the rows with these numbers."""
        some = self.values[numbers]
        memory = np.zeros([some.shape[axis] * abs(self.steps[axis]) for axis in self.axes], some.dtype)
        array = memory.transpose(np.argsort(self.axes))[tuple(slice(None, None, step) for step in self.steps)]
        array[...] = some
        once = tuple(slice(0, 1) if stays else slice(None) for stays in self.broadcast)
        array = np.broadcast_to(array[once if len(some) else ...], some.shape)
        array.flags.writeable = not self.readonly and 0 not in array.strides
        return array

    def wrong(self, found: Any, numbers: NDArray[np.int64], *, numbers_in_order: bool = True) -> str:
        """Say what is wrong with rows that have been moved; "": nothing.

        numbers_in_order False : rows that are numbers, in an array of one axis, may have lost their direction in memory.
        """
        whole, expected = self.rows(np.arange(len(self.values))), self.values[numbers]
        if type(found) is not np.ndarray or (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return f"{self}: {type(found).__name__} of {found.dtype} {found.shape}"
        if found.tobytes() != expected.tobytes():
            return f"{self}: other values"
        if len(found) < 2 or (found.ndim == 1 and not numbers_in_order):
            return ""
        gaps = 2 in self.steps or any(self.broadcast)
        for axis in range(1, found.ndim):
            for sums in (np.sum,) if gaps else (np.sum, _einsum):  # einsum has another loop for arrays with gaps
                if sums(found, axis).tobytes() != sums(whole, axis)[numbers].tobytes():
                    return f"{self}: other sums along axis {axis}, strides {whole.strides} and {found.strides}"
        same = order_of(found) == order_of(whole)
        return "" if same else f"{self}: order {order_of(found)}, not {order_of(whole)}"

    def __str__(self) -> str:
        shape, words = self.values.shape, f"{self.values.dtype}, axes {self.axes}, steps {self.steps}"
        return f"{shape} of {words}, broadcast {self.broadcast}, read-only {self.readonly}"


def _einsum(array: Rows, axis: int) -> Rows:
    """Return sums along an axis; einsum goes through it in its direction in memory."""
    axes = list(range(array.ndim))
    return np.asarray(np.einsum(array, axes, [one for one in axes if one != axis]))


def draw(rng: np.random.Generator, n: int) -> Drawn:
    """Draw n rows."""
    ndim = int(rng.choice([1, 2, 2, 3, 3, 4]))
    shape = (n, *rng.choice(LENGTHS[ndim], ndim - 1).tolist())
    broadcast = tuple(bool(stays) for stays in rng.random(ndim) < 0.25)
    values = rng.standard_normal([1 if stays else size for stays, size in zip(broadcast, shape, strict=True)])
    dtype = np.dtype(str(rng.choice(DTYPES)))
    values = np.ascontiguousarray(np.broadcast_to(values * 100.0, shape).astype(dtype))
    steps = tuple(int(step) for step in rng.choice([1, 1, 1, -1, 2], ndim))
    return Drawn(values, tuple(rng.permutation(ndim).tolist()), steps, broadcast, bool(rng.random() < 0.25))


def draw_counts(rng: np.random.Generator, size: int) -> list[int]:
    """Draw the number of rows of each rank: one has two or more, the others often one or none."""
    counts = rng.choice([0, 1, 1, 2, 9], size).tolist()
    counts[rng.integers(size)] = int(rng.choice([2, 30]))
    return [int(n) for n in counts]
