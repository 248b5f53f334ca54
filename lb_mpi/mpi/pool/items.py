"""The arguments of tasks as they travel: the rows of an array raw, a range as two numbers, a list in pickled blocks.

Position k of a map is item order[k]; a rank reads the blocks that it needs, and no others.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.metrics import as_numbers
from lb_mpi.pooling.intervals import MOST

BLOCK = 256  # items in a block of a list, at most
BLOCKS_A_RANK = 8  # at least, where there are so many items

_INT64 = range(-(1 << 63), 1 << 63)  # numbers of a range that travel as such
# Kind; start of the range, items in a block, or bytes of (dtype, shape); step of the range, or number of blocks; numbers in
# the order of a range.
_HEADER = struct.Struct("<qqqq")


class Kind(IntEnum):
    """How items are kept."""

    RANGE = 1
    ARRAY = 2
    LIST = 3


class Items(NamedTuple):
    """What the caller of a map has passed: a range, an array whose rows are the items, or a list."""

    of: Any
    n: int

    def some(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """The arguments of these items; rows of an array are copies."""
        return [_row(self.of[k]) for k in numbers]


def check_items(*given: Any) -> Items:
    """Check what the user passes as items, or as several iterables of arguments; TypeError or ValueError."""
    items = _check_iterable(given[0] if given else None)
    if len(given) > 1:
        items = zip(*map(_rows, map(_check_iterable, given)), strict=False)
    if not isinstance(items, range | np.ndarray):
        items = list(items)
    if (n := _length(items)) > MOST:
        count = f"{n:,}" if n in _INT64 else "more than 2**63"
        raise ValueError(f"{count} items: expected at most {MOST:,}")
    if isinstance(items, range) and not (items.start in _INT64 and items.step in _INT64):
        items = list(items)
    return Items(items, n)


def _check_iterable(items: Any) -> Any:
    if isinstance(items, bool | str | bytes) or not isinstance(items, int | np.integer | Iterable):
        raise TypeError(f"items = {show(items)}: expected a number, a range, an array or a list of items")
    if isinstance(items, int | np.integer):
        if items < 0:
            raise ValueError(f"items = {items}: expected an integer >= 0")
        return range(int(items))
    if isinstance(items, np.ndarray) and type(items) is not np.ndarray:
        raise TypeError(f"items of type {type(items).__name__}: expected an array of no subclass, or a list")
    if isinstance(items, np.ndarray) and not items.ndim:
        raise ValueError("items of shape (): expected at least one dimension, the items")
    return items


def _rows(items: Iterable[Any]) -> Iterable[Any]:
    return map(_row, items) if isinstance(items, np.ndarray) else items


def _length(items: Any) -> int:
    """Return len(items), also of a range with more numbers than len() can count."""
    if isinstance(items, range):
        return (items[-1] - items[0]) // items.step + 1 if items else 0
    return len(items)


def check_costs(costs: Any, n: int) -> NDArray[np.float64] | None:
    """What the user says that n items cost, as parts of the largest cost: the unit is any, and sums must be finite.

    ValueError, saying what was expected.
    """
    if costs is None:
        return None
    values = as_numbers("costs", costs)
    if values.shape != (n,):
        raise ValueError(f"costs of shape {values.shape}: expected ({n},), one for each item")
    if wrong := np.flatnonzero(~(np.isfinite(values) & (values >= 0))).tolist():
        raise ValueError(f"costs[{wrong[0]}] = {values[wrong[0]]}: expected a finite number >= 0")
    most = values.max(initial=0.0)
    return values / most if most else values


def encode(items: Items, order: NDArray[np.int64], size: int) -> list[bytes | memoryview]:
    """The items in the order of their positions, for `size` ranks; what can't be pickled raises, with the item's number."""
    if isinstance(items.of, range):
        numbers = order if items.n and not np.array_equal(order, np.arange(len(order))) else order[:0]
        return [_HEADER.pack(Kind.RANGE, items.of.start, items.of.step, len(numbers)), numbers.tobytes()]
    if isinstance(items.of, np.ndarray) and not items.of.dtype.hasobject:
        rows = items.of[order]
        about = pickle.dumps((rows.dtype, rows.shape), pickle.HIGHEST_PROTOCOL)
        return [_HEADER.pack(Kind.ARRAY, len(about), 0, 0), about, rows.tobytes()]
    n_block = max(1, min(BLOCK, len(order) // (size * BLOCKS_A_RANK)))
    numbers = iter(order.tolist())
    blocks = []
    while places := list(islice(numbers, n_block)):
        blocks.append(_pickled(items, places))
    ends = np.cumsum([0, *map(len, blocks)])
    return [_HEADER.pack(Kind.LIST, n_block, len(blocks), 0), ends.astype(np.int64).tobytes(), *blocks]


def _pickled(items: Items, places: list[int]) -> bytes:
    try:
        return pickle.dumps([items.of[k] for k in places], pickle.HIGHEST_PROTOCOL)
    except Exception:
        for k in places:
            try:
                pickle.dumps(items.of[k], pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                raise TypeError(f"items[{k}] can't be pickled: {type(error).__name__}: {error}") from error
        raise


class Coming:
    """Arguments by position, from what `encode` has made."""

    def __init__(self, data: memoryview) -> None:
        kind, self._first, self._second, n = _HEADER.unpack_from(data)
        self._kind, self._data = Kind(kind), data[_HEADER.size :]
        self._block, self._block_number = list[Any](), -1
        if self._kind is Kind.RANGE:
            self._numbers = np.frombuffer(self._data, np.int64, count=n)
        elif self._kind is Kind.ARRAY:
            dtype, shape = pickle.loads(self._data[: self._first])
            self._array: NDArray[Any] = np.ndarray(shape, dtype, self._data, self._first)
        else:
            self._ends = np.frombuffer(self._data, np.int64, count=self._second + 1)
            self._data = self._data[self._ends.nbytes :]

    def some(self, lo: int, hi: int) -> list[Any]:
        """The arguments of the tasks at positions lo..hi-1."""
        if self._kind is Kind.RANGE:
            places = self._numbers[lo:hi].tolist() if len(self._numbers) else range(lo, hi)
            return [self._first + self._second * k for k in places]
        if self._kind is Kind.ARRAY:
            return [_row(row) for row in self._array[lo:hi]]
        arguments = []
        for k in range(lo, hi):
            if k // self._first != self._block_number:
                self._block_number = k // self._first
                begin, end = self._ends[self._block_number : self._block_number + 2].tolist()
                self._block = pickle.loads(self._data[begin:end])
            arguments.append(self._block[k % self._first])
        return arguments


def _row(item: Any) -> Any:
    """A row of an array as the task's own; a structured number, too, is a view of the array."""
    return item.copy() if isinstance(item, np.ndarray | np.void) else item
