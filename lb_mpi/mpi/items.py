"""The arguments of tasks as they travel: the rows of an array raw, a range as three numbers, a list in pickled blocks.

Position k of a map is item order[k]; a rank reads the blocks that it needs, and no others.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.pooling.intervals import MOST

BLOCK = 256  # items in a block of a list, at most
BLOCKS_A_RANK = 8  # at least, where there are so many items

_HEADER = struct.Struct(
    "<qqqq"
)  # kind, items in a block or start of the range, number of blocks or its step, bytes ahead


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


def check_items(items: Any) -> Items:
    """What the user passes as `items`; TypeError or ValueError, saying what was expected."""
    if isinstance(items, bool | str | bytes):
        raise TypeError(f"items = {show(items)}: expected a number, a range, an array or a list of items")
    if isinstance(items, int | np.integer):
        if items < 0:
            raise ValueError(f"items = {items}: expected an integer >= 0")
        items = range(int(items))
    if isinstance(items, np.ndarray) and type(items) is not np.ndarray:
        raise TypeError(f"items of type {type(items).__name__}: expected an array of no subclass, or a list")
    if isinstance(items, np.ndarray) and not items.ndim:
        raise ValueError("items of shape (): expected at least one dimension, the items")
    if not isinstance(items, range | np.ndarray):
        if not isinstance(items, Iterable):
            raise TypeError(f"items = {show(items)}: expected a number, a range, an array or a list of items")
        items = list(items)
    if len(items) > MOST:
        raise ValueError(f"{len(items):,} items: expected at most {MOST:,}")
    return Items(items, len(items))


def check_costs(costs: Any, n: int) -> NDArray[np.float64] | None:
    """What the user says that n items cost; TypeError or ValueError, saying what was expected."""
    if costs is None:
        return None
    try:
        values = np.array(costs, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"costs = {show(costs)}: expected {n} numbers >= 0") from None
    if values.shape != (n,):
        raise ValueError(f"costs of shape {values.shape}: expected ({n},), one for each item")
    if wrong := np.flatnonzero(~(np.isfinite(values) & (values >= 0))).tolist():
        raise ValueError(f"costs[{wrong[0]}] = {values[wrong[0]]}: expected a finite number >= 0")
    return values


def encode(items: Items, order: NDArray[np.int64], size: int) -> list[bytes | memoryview]:
    """The items in the order of their positions, for `size` ranks; what can't be pickled raises, with the item's number."""
    if isinstance(items.of, range):
        numbers = order if items.n and not np.array_equal(order, np.arange(len(order))) else order[:0]
        return [_HEADER.pack(Kind.RANGE, items.of.start, items.of.step, len(numbers)), numbers.tobytes()]
    if isinstance(items.of, np.ndarray) and not items.of.dtype.hasobject:
        file = io.BytesIO()
        np.lib.format.write_array(file, np.ascontiguousarray(items.of[order]), allow_pickle=False)
        return [_HEADER.pack(Kind.ARRAY, 0, 0, 0), file.getbuffer()]
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
            file = io.BytesIO(self._data[:2048].tobytes())  # the array itself is not copied
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            n_values = int(np.prod(shape, dtype=np.int64))
            self._array = np.frombuffer(self._data, np.uint8, offset=file.tell())[: n_values * dtype.itemsize]
            self._array = self._array.view(dtype).reshape(shape)
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
    return item.copy() if isinstance(item, np.ndarray) else item
