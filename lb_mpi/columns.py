"""Rows of arrays, sparse matrices and objects: the order of their axes in memory, and their bytes.   (pure)

Every way that rows go uses this module: they are lent, migrate, are exchanged, are rebalanced, and are saved.  Nothing is
pickled.  A payload has the orders of its arrays, then the rows of each column in turn, in aligned chunks.  Both ends know
the columns' dtypes and shapes, so a payload does not repeat them.

The law
-------
- `order_of` alone says how an array's axes lie in memory: as numpy iterates over them.  So any sum along one axis of a copy
  in this order is that of the array, to the last bit.
- An axis of one element, or with the stride 0 of a broadcast array, has no place in memory: it stays where it is in C order.
- The order travels with the rows.  A rank with two rows or more keeps its own.  A rank with one row or none can't know the
  place of the first axis: it uses the order of the rank with the most rows (`agreed`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import returned, show
from lb_mpi.errors import BalanceError
from lb_mpi.table import counted

ALIGN = 64  # bytes; also the longest header of a payload

Order = tuple[int, ...]  # of axes, from the outermost to the innermost; ~k: axis k, its last element first; (): C order
Orders = tuple[Order, ...]  # of columns; (): of one without axes
Ints = NDArray[np.int64]
Index = slice | Ints  # of some rows
Bytes = NDArray[np.uint8]
Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]


# --- order in memory --------------------------------------------------------------------------------------------------


def order_of(array: NDArray[Any]) -> Order:
    """Return the order of an array's axes in memory, by the law above."""
    return () if array.flags.c_contiguous else order_by(array.shape, array.strides)


def order_by(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """Return the order of the axes of an array with gaps, or in another order than C's."""
    strides = [stride if n > 1 else 0 for n, stride in zip(shape, strides, strict=True)]
    inwards: list[int] = []  # the innermost first
    for axis in reversed(range(len(shape))):
        position = len(inwards)
        for k in reversed(range(len(inwards))):
            other = abs(strides[inwards[k]])
            if strides[axis] and other:
                if other <= abs(strides[axis]):
                    break
                position = k
        inwards.insert(position, axis)
    order = tuple(~axis if strides[axis] < 0 else axis for axis in reversed(inwards))
    return () if order == tuple(range(len(shape))) else order


def ordered(
    shape: Sequence[int], dtype: np.dtype[Any], order: Order, buffer: memoryview | None = None, offset: int = 0
) -> NDArray[Any]:
    """Return an array without gaps whose axes have this order in memory: a new one, or in the buffer."""
    if not order:
        return np.ndarray(shape, dtype, buffer, offset)
    return from_memory(np.ndarray([shape[axis] for axis in _axes(order)], dtype, buffer, offset), order)


def in_memory(array: NDArray[Any], order: Order) -> NDArray[Any]:
    """Return an array with this order as a view whose axes lie in memory as C's."""
    return array.transpose(_axes(order))[_steps(order)] if order else array


def from_memory(view: NDArray[Any], order: Order) -> NDArray[Any]:
    """Return the array of which this is the view `in_memory`."""
    return view[_steps(order)].transpose(np.argsort(_axes(order))) if order else view


def _axes(order: Order) -> list[int]:
    return [max(axis, ~axis) for axis in order]


def _steps(order: Order) -> tuple[slice, ...]:
    return tuple(slice(None, None, -1 if axis < 0 else 1) for axis in order)


def copied(array: NDArray[Any], order: Order | None = None) -> NDArray[Any]:
    """Return a copy without gaps, in its own order or in another one, with exactly the same dtype."""
    copy = ordered(array.shape, array.dtype, order_of(array) if order is None else order)
    copy[...] = array
    return copy


def all_axes(order: Order, ndim: int) -> Order:
    """Return an order with its axes, of which C's has none."""
    return order or tuple(range(ndim))


def agreed(everyone: Sequence[tuple[int, Orders]], rank: int | None = None) -> Orders:
    """Return the orders of a rank's columns, by the law above, from the number of rows and the orders of each rank.

    rank None : of the rows of all ranks together.
    """
    if rank is not None and everyone[rank][0] > 1:
        return everyone[rank][1]
    return max(everyone, key=lambda one: one[0])[1]  # of the first such rank


LISTS = " or a list of rows of one shape"  # where `check_column` accepts one
PLAIN = frozenset({np.ndarray, np.memmap})  # arrays of no other subclass, which would lose its mask, units and the like


def check_column(name: str, value: Any, also: str = "", *, lists: bool = False, objects: bool = False) -> NDArray[Any]:
    """Return an array of rows; TypeError or ValueError for what is none, the same in all calls.

    also : what else is expected.  lists : of rows, too.  objects : an array of Python objects, too.
    """
    array: NDArray[Any] = value
    why = ""
    if type(value) not in PLAIN:
        knows_more = hasattr(value, "__array__")  # such as units, and would lose it
        try:
            array = np.asarray(value if lists and not knows_more else 0)
        except ValueError as error:  # of rows that differ in shape
            why = f" ({error})"
        if type(array) is not np.ndarray or not array.ndim:
            plain = f"{name}.filled(0.0)" if isinstance(value, np.ma.MaskedArray) else f"np.asarray({name})"
            instead = f", such as {plain}" if knows_more and not isinstance(value, np.generic) else ""
            raise TypeError(f"{name} of type {type(value).__name__}{why}: expected a numpy array{instead}{also}")
    check_form(name, array.dtype, array.shape, also, objects=objects)
    return array


def check_form(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], also: str = "", *, objects: bool = False) -> None:
    """Check the form of an array of rows; see `check_column`."""
    if not shape:
        raise ValueError(f"{name} of shape (): expected at least one dimension, the rows")
    if dtype.hasobject and not objects:
        raise TypeError(f"{name} of dtype {dtype}: expected a numpy array without Python objects{also}")


def check_n_rows(name: str, n: int, expected: int, why: str) -> None:
    """Raise ValueError unless a column has as many rows as expected, and say why."""
    if n != expected:
        raise ValueError(f"{name} has {counted(n, 'row')}: expected {expected}, {why}")


def layout(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Describe a dtype so that any two with the same memory layout have equal descriptions, with the same `repr`.

    `dtype.descr` is not defined if fields are out of order or overlap.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return layout(base), shape
    fields = [(name, dtype.fields[name][1], layout(dtype.fields[name][0])) for name in dtype.names or () if dtype.fields]
    return dtype.str, dtype.itemsize, *fields


# --- bytes ------------------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Some rows of an array, with the order in which they are written."""

    array: NDArray[Any]
    rows: Ints | None = None  # None: all
    order: Order = ()


def packed(header: bytes, chunks: Sequence[Chunk]) -> Bytes:
    """Return a buffer of whole units of ALIGN bytes: a header of at most one unit, then the chunks, each aligned."""
    end, layouts = ALIGN, list[tuple[Chunk, tuple[int, ...], int]]()
    for chunk in chunks:
        shape = len(chunk.array if chunk.rows is None else chunk.rows), *chunk.array.shape[1:]
        if n_bytes := chunk.array.dtype.itemsize * math.prod(shape):
            layouts.append((chunk, shape, end))
            end += _padded(n_bytes)
    buffer = np.empty(end, dtype=np.uint8)
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    for (array, rows, order), shape, at in layouts:
        copy_rows(array, rows, ordered(shape, array.dtype, order, buffer.data, at))
    return buffer


def copy_rows(array: NDArray[Any], index: Ints | None, copy: NDArray[Any]) -> None:
    """Copy some rows of an array, or all."""
    if index is None:
        copy[...] = array
    elif array.flags.c_contiguous:
        np.take(array, index, axis=0, out=copy, mode="clip")
    else:
        copy[...] = array[index]


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN


class Reader:
    """Reads the chunks of a buffer, in the order in which they were written, as views."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer, self._at = buffer, ALIGN

    def array(self, dtype: np.dtype[Any], shape: Sequence[int], order: Order = ()) -> NDArray[Any]:
        """Return the next chunk."""
        n_bytes, at = dtype.itemsize * math.prod(shape), self._at
        self._at += _padded(n_bytes)
        return ordered(shape, dtype, order, *((self._buffer.data, at) if n_bytes else ()))

    def integers(self, n: int) -> Ints:
        """Return the next chunk, of n integers."""
        return self.array(_INT, (n,))

    def arrays(self, n: int) -> tuple[NDArray[Any], ...]:
        """Return the next n arrays of `chunks_of`."""
        kinds = self.integers(2 * n).reshape(n, 2).tolist()
        return tuple(self.array(_INT if whole else _DOUBLE, (length,)) for whole, length in kinds)


_INT, _DOUBLE, _BYTE = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.uint8)


def chunks_of(arrays: Sequence[NDArray[Any]]) -> list[Chunk]:
    """Return arrays of one dimension, of integers or doubles, as chunks that `Reader.arrays` reads."""
    kinds = np.array([(array.dtype.kind != "f", len(array)) for array in arrays], dtype=np.int64)
    return [*map(Chunk, (kinds, *arrays))]


# --- columns ----------------------------------------------------------------------------------------------------------


class Column(Protocol):
    """The kind of a value's rows, the same on all ranks."""

    @property
    def words(self) -> str:
        """A description for messages."""

    @property
    def ndim(self) -> int:
        """The number of axes whose order travels."""

    def chunks(self, value: Any, index: Index, order: Order) -> list[Chunk]:
        """Return some rows of a value as chunks."""

    def read(self, reader: Reader, n: int, order: Order) -> Any:
        """Return the next n rows; those of an array are a view."""

    def copy(self, value: Any, index: Index, order: Order) -> Any:
        """Return a copy of some rows; objects are not copied."""

    def join(self, parts: Sequence[Any], order: Order) -> Any:
        """Return the rows of all parts (at least one) as a new value."""


class ArrayColumn(NamedTuple):
    """An array's dtype, and the shape of a row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """See `Column`."""
        return _words(self)

    @property
    def ndim(self) -> int:
        """See `Column`."""
        return 1 + len(self.shape)

    def chunks(self, value: NDArray[Any], index: Index, order: Order) -> list[Chunk]:
        """See `Column`."""
        return [Chunk(value[index], None, order) if isinstance(index, slice) else Chunk(value, index, order)]

    def read(self, reader: Reader, n: int, order: Order) -> NDArray[Any]:
        """See `Column`."""
        return reader.array(self.dtype, (n, *self.shape), order)

    def copy(self, value: NDArray[Any], index: Index, order: Order) -> NDArray[Any]:
        """See `Column`."""
        n = len(range(*index.indices(len(value)))) if isinstance(index, slice) else len(index)
        some = ordered((n, *self.shape), self.dtype, order)
        if isinstance(index, slice):
            some[...] = value[index]
        else:
            copy_rows(value, index, some)
        return some

    def join(self, parts: Sequence[NDArray[Any]], order: Order) -> NDArray[Any]:
        """See `Column`; without `out`, numpy would normalise the user's byte order and padding."""
        whole = ordered((sum(map(len, parts)), *self.shape), self.dtype, order)
        return np.concatenate(parts, out=whole)


@functools.lru_cache
def _words(column: ArrayColumn) -> str:
    return f"{column.dtype} {column.shape} {layout(column.dtype)}"


class SparseColumn(NamedTuple):
    """A CSR matrix, whose rows keep their entries as they are: unsorted, repeated and zero ones too."""

    type: type[Any]
    n_columns: int
    dtype: np.dtype[Any]

    @property
    def words(self) -> str:
        """See `Column`."""
        return f"{self.type.__name__} with {self.n_columns} columns of {self.dtype}"

    @property
    def ndim(self) -> int:
        """See `Column`."""
        return 0

    def chunks(self, value: Any, index: Index, order: Order) -> list[Chunk]:
        """See `Column`."""
        some = self.copy(value, index, order)
        return [Chunk(np.diff(some.indptr).astype(np.int64)), Chunk(some.indices.astype(np.int64)), Chunk(some.data)]

    def read(self, reader: Reader, n: int, order: Order) -> Any:
        """See `Column`."""
        lengths = reader.integers(n)
        nnz = int(lengths.sum())
        indices = reader.integers(nnz)
        return self._made(lengths, indices, reader.array(self.dtype, (nnz,), order))

    def copy(self, value: Any, index: Index, order: Order) -> Any:
        """See `Column`."""
        rows = np.arange(value.shape[0])[index]
        begin = value.indptr[rows].astype(np.int64)
        lengths = value.indptr[rows + 1] - begin
        ends = np.cumsum(lengths)
        entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - lengths), lengths)
        return self._made(lengths, value.indices[entries], value.data[entries])

    def join(self, parts: Sequence[Any], order: Order) -> Any:
        """See `Column`."""
        lengths, indices, data = (
            np.concatenate(each)
            for each in zip(*((np.diff(one.indptr), one.indices, one.data) for one in parts), strict=True)
        )
        return self._made(lengths, indices, data)

    def _made(self, lengths: Ints, indices: Ints, data: NDArray[Any]) -> Any:
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        return self.type((data, indices, indptr), shape=(len(lengths), self.n_columns))


class ObjectColumn(NamedTuple):
    """A list of objects, with the user's functions to bytes and back."""

    pack: Pack
    unpack: Unpack

    @property
    def words(self) -> str:
        """See `Column`."""
        return "objects"

    @property
    def ndim(self) -> int:
        """See `Column`."""
        return 0

    def chunks(self, value: list[Any], index: Index, order: Order) -> list[Chunk]:
        """See `Column`; BalanceError if `pack` returns no bytes."""
        parts = [self.pack(item) for item in self.copy(value, index, order)]
        for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise BalanceError(returned(self.pack, show(part), "bytes, since it is `pack`"))
        lengths = np.array([memoryview(part).nbytes for part in parts], dtype=np.int64)
        return [Chunk(lengths), Chunk(np.frombuffer(bytearray().join(parts), np.uint8))]

    def read(self, reader: Reader, n: int, order: Order) -> list[Any]:
        """See `Column`."""
        lengths = reader.integers(n)
        data = reader.array(_BYTE, (int(lengths.sum()),), order)
        ends = np.cumsum(lengths).tolist()
        return [self.unpack(data[end - size : end].tobytes()) for end, size in zip(ends, lengths.tolist(), strict=True)]

    def copy(self, value: list[Any], index: Index, order: Order) -> list[Any]:
        """See `Column`."""
        return value[index] if isinstance(index, slice) else [value[k] for k in index.tolist()]

    def join(self, parts: Sequence[list[Any]], order: Order) -> list[Any]:
        """See `Column`."""
        return [item for part in parts for item in part]


def column_of(name: str, value: Any, pack: Pack | None, unpack: Unpack | None, also: str) -> Column:
    """Return what a value's rows are; TypeError or ValueError for what has none; `also`: see `check_column`."""
    if isinstance(value, list) and pack is not None and unpack is not None:
        return ObjectColumn(pack, unpack)
    if type(value) not in PLAIN:
        import scipy.sparse  # here, since it takes 0.15 s of CPU

        if scipy.sparse.issparse(value):
            if value.format != "csr":
                raise TypeError(f"{name}, a sparse matrix in {value.format.upper()} format: expected CSR")
            if value.ndim != 2:
                raise ValueError(f"{name}, a sparse array of shape {value.shape}: expected two dimensions")
            check_column(name, value.data, also)
            return SparseColumn(type(value), value.shape[1], value.dtype)
    array = check_column(name, value, also)
    return ArrayColumn(array.dtype, array.shape[1:])


_ndim = operator.attrgetter("ndim")


def orders_of(values: Sequence[Any]) -> Orders:
    """Return the order of each value; () of one that is no array."""
    return tuple(order_of(value) if isinstance(value, np.ndarray) else () for value in values)


def chunks_of_rows(columns: Sequence[Column], values: Sequence[Any], index: Index, orders: Orders = ()) -> list[Chunk]:
    """Return some rows of values as chunks, in these orders (none: C)."""
    chunks = [Chunk(axes)] if len(axes := _encoded(tuple(map(_ndim, columns)), orders)) else []
    for column, value, order in zip(columns, values, orders or [()] * len(columns), strict=True):
        chunks += column.chunks(value, index, order)
    return chunks


def read_rows(columns: Sequence[Column], reader: Reader, n: int) -> tuple[tuple[Any, ...], Orders]:
    """Return n rows of values, written by `chunks_of_rows`, and the orders of the sender."""
    ndims, values = tuple(map(_ndim, columns)), []
    orders = _decoded(ndims, reader.array(_BYTE, (sum(ndims),)).tobytes())
    for column, order in zip(columns, orders, strict=True):
        values.append(column.read(reader, n, order))
    return tuple(values), orders


@functools.lru_cache
def _encoded(ndims: tuple[int, ...], orders: Orders) -> Bytes:
    orders = orders or ((),) * len(ndims)
    axes = [axis for ndim, order in zip(ndims, orders, strict=True) for axis in all_axes(order, ndim)]
    return np.array(axes, dtype=np.int8).view(np.uint8)


@functools.lru_cache
def _decoded(ndims: tuple[int, ...], data: bytes) -> Orders:
    axes, orders = np.frombuffer(data, np.int8).tolist(), list[Order]()
    for ndim in ndims:
        order, axes = tuple(axes[:ndim]), axes[ndim:]
        orders.append(() if order == tuple(range(ndim)) else order)
    return tuple(orders)
