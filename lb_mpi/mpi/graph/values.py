"""Values of vertices as messages: arrays, sparse rows and objects, which move with their vertices, never pickled.

A payload has, for each of the caller's values in turn, the rows of the vertices that move.  Both ends know their forms,
which are the same on all ranks, so a payload does not repeat them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from lb_mpi.checks import function, returned, show
from lb_mpi.errors import BalanceError
from lb_mpi.graph import Ints
from lb_mpi.mpi.common.parcels import Buffer, layout
from lb_mpi.table import counted

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]
_ALIGN = 8


class Column(Protocol):
    """One of the caller's values."""

    words: str  # the form of a vertex's value, the same on all ranks

    def take(self, index: Ints) -> list[bytes]:
        """Return the rows of some vertices, in chunks."""

    def read(self, reader: Reader, n: int) -> Any:
        """Return the rows of n vertices from a payload."""

    def join(self, kept: Ints, arrived: Sequence[Any], order: Ints) -> Any:
        """Return a new value: the kept rows, then those that have arrived, in this order."""


class Reader:
    """Reads the chunks of a payload, in the order in which they were written."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        self._buffer, self._at = buffer, at

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the next chunk as an array in the memory of the payload."""
        n_bytes, at = dtype.itemsize * math.prod(shape), self._at
        self._at += padded(n_bytes)
        return np.ndarray(shape, dtype, self._buffer, at) if n_bytes else np.empty(shape, dtype)

    def arrays(self, n: int) -> tuple[NDArray[Any], ...]:
        """Return the next n arrays of `chunks_of`."""
        kinds = self.integers(2 * n).reshape(n, 2).tolist()
        return tuple(self.array(np.dtype(np.int64 if whole else float), (length,)) for whole, length in kinds)

    def integers(self, n: int) -> Ints:
        """Return the next chunk as (n,) integers."""
        return self.array(np.dtype(np.int64), (n,))


def padded(n_bytes: int) -> int:
    """Round up to a multiple of the alignment."""
    return -(-n_bytes // _ALIGN) * _ALIGN


def chunk(array: NDArray[Any]) -> bytes:
    """Return an array as bytes, padded."""
    data = array.tobytes()
    return data + bytes(padded(len(data)) - len(data))


def chunks_of(arrays: Sequence[NDArray[Any]]) -> list[bytes]:
    """Return arrays of one dimension, of integers or doubles, as chunks that `Reader.arrays` reads."""
    kinds = np.array([(array.dtype.kind != "f", len(array)) for array in arrays], dtype=np.int64)
    return [one for one in map(chunk, (kinds, *arrays)) if one]


class _Array:
    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.words = _words(array.dtype, array.shape[1:])

    def take(self, index: Ints) -> list[bytes]:
        return [chunk(np.array([self._array.flags.fnc], dtype=np.int64)), chunk(self._array[index])]

    def read(self, reader: Reader, n: int) -> tuple[bool, NDArray[Any]]:
        """Return whether the sender has Fortran order, and the rows."""
        return bool(reader.integers(1)[0]), reader.array(self._array.dtype, (n, *self._array.shape[1:]))

    def join(self, kept: Ints, arrived: Sequence[tuple[bool, NDArray[Any]]], order: Ints) -> NDArray[Any]:
        whole = np.empty((len(order), *self._array.shape[1:]), self._array.dtype)  # concatenate alone would change the dtype
        np.concatenate([self._array[kept], *(rows for _, rows in arrived)], out=whole)
        flags = self._array.flags
        any_order = flags.c_contiguous and flags.f_contiguous  # of at most one row: the order is that of the senders
        memory: Literal["F", "K"] = "F" if any_order and any(fortran for fortran, _ in arrived) else "K"
        ordered = np.empty_like(self._array, order=memory, shape=whole.shape, subok=False)
        ordered[...] = whole[order]
        return ordered


@functools.lru_cache
def _words(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype} {shape} {layout(dtype)}"


class _Rows:
    """A CSR matrix."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.words = f"{type(matrix).__name__} with {matrix.shape[1]} columns of {matrix.dtype}"

    def take(self, index: Ints) -> list[bytes]:
        some = self._of(index)
        return [chunk(np.diff(some.indptr).astype(np.int64)), chunk(some.indices.astype(np.int64)), chunk(some.data)]

    def read(self, reader: Reader, n: int) -> Any:
        lengths = reader.integers(n)
        nnz = int(lengths.sum())
        indices = reader.integers(nnz)
        return self._made(lengths, indices, reader.array(self._matrix.dtype, (nnz,)))

    def join(self, kept: Ints, arrived: Sequence[Any], order: Ints) -> Any:
        parts = [self._of(kept), *arrived]
        lengths, indices, data = (
            np.concatenate(each)
            for each in zip(*((np.diff(one.indptr), one.indices, one.data) for one in parts), strict=True)
        )
        return _rows(self._made(lengths, indices, data), order)

    def _of(self, index: Ints) -> Any:
        return _rows(self._matrix, index)

    def _made(self, lengths: Ints, indices: Ints, data: NDArray[Any]) -> Any:
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        return type(self._matrix)((data, indices, indptr), shape=(len(lengths), self._matrix.shape[1]))


def _rows(matrix: Any, index: Ints) -> Any:
    """Return some rows with their entries as they are: unsorted, repeated and zero ones too."""
    begin = matrix.indptr[index].astype(np.int64)
    lengths = matrix.indptr[index + 1] - begin
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.arange(indptr[-1]) + np.repeat(begin - indptr[:-1], lengths)
    return type(matrix)((matrix.data[entries], matrix.indices[entries], indptr), shape=(len(index), matrix.shape[1]))


class _Objects:
    """A list of objects, with the user's functions."""

    words = "objects"

    def __init__(self, objects: list[Any], pack: Pack, unpack: Unpack) -> None:
        self._objects, self._pack, self._unpack = objects, pack, unpack

    def take(self, index: Ints) -> list[bytes]:
        parts = []
        for k in index.tolist():
            part = self._pack(self._objects[k])
            if not isinstance(part, bytes | bytearray | memoryview):
                raise BalanceError(returned(self._pack, show(part), "bytes, since it is `pack`"))
            parts.append(bytes(part))
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        return [chunk(lengths), chunk(np.frombuffer(b"".join(parts) or bytes(1), np.uint8)[: lengths.sum()])]

    def read(self, reader: Reader, n: int) -> list[Any]:
        lengths = reader.integers(n)
        data = reader.array(np.dtype(np.uint8), (int(lengths.sum()),)).tobytes()
        ends = np.cumsum(lengths).tolist()
        return [self._unpack(data[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]

    def join(self, kept: Ints, arrived: Sequence[list[Any]], order: Ints) -> list[Any]:
        whole = [self._objects[k] for k in kept.tolist()]
        for some in arrived:
            whole += some
        return [whole[k] for k in order.tolist()]


class Values:
    """The caller's values of n vertices; ValueError or TypeError if they are invalid."""

    def __init__(self, values: Sequence[Any], n: int, *, pack: Pack | None = None, unpack: Unpack | None = None) -> None:
        if (pack is None) != (unpack is None):
            raise TypeError("pack and unpack: expected both or neither")
        self._pack = None if pack is None else function("pack", pack)
        self._unpack = None if unpack is None else function("unpack", unpack)
        self.given = tuple(values)
        self._columns: list[Column] = [self._column(value, k, n) for k, value in enumerate(values)]

    @property
    def words(self) -> str:
        """The forms of the values, for messages."""
        return ", ".join(one.words for one in self._columns) or "none"

    def take(self, index: Ints) -> list[bytes]:
        """Return the rows of some vertices, in chunks."""
        return [part for one in self._columns for part in one.take(index)]

    def read(self, reader: Reader, n: int) -> list[Any]:
        """Return the rows of n vertices of all values from a payload."""
        return [one.read(reader, n) for one in self._columns]

    def join(self, kept: Ints, arrived: Sequence[list[Any]], order: Ints) -> tuple[Any, ...]:
        """Return new values: the kept rows, then those that have arrived, in this order."""
        return tuple(one.join(kept, [some[k] for some in arrived], order) for k, one in enumerate(self._columns))

    def _column(self, value: Any, place: int, n: int) -> Column:
        name = f"values[{place}]"
        if type(value) not in (list, np.ndarray) and scipy.sparse.issparse(value):  # whose import takes 0.15 s of CPU
            if value.format != "csr":
                raise TypeError(f"{name}, a sparse matrix in {value.format.upper()} format: expected CSR")
            if value.ndim != 2:
                raise ValueError(f"{name}, a sparse array of shape {value.shape}: expected two dimensions")
            _check_rows(name, value.shape[0], n)
            return _Rows(value)
        if isinstance(value, list):
            if self._pack is None or self._unpack is None:
                raise TypeError(f"{name} of type list without pack and unpack: expected both, or an array")
            _check_rows(name, len(value), n)
            return _Objects(value, self._pack, self._unpack)
        if type(value) not in (np.ndarray, np.memmap):
            kinds = "a numpy array (no subclass), a CSR matrix or a list of objects"
            unpacked = "; did you mean (h,) = plan.rebalance(h)?" if isinstance(value, tuple) else ""
            raise TypeError(f"{name} of type {type(value).__name__} ({show(value)}): expected {kinds}{unpacked}")
        if value.dtype.hasobject:
            raise TypeError(f"{name} of dtype {value.dtype}: expected numbers, or a list of objects with pack and unpack")
        if value.ndim < 1:
            raise ValueError(f"{name} of shape (): expected {n} rows, for the owned vertices")
        _check_rows(name, len(value), n)
        return _Array(value)


def _check_rows(name: str, found: int, n: int) -> None:
    if found != n:
        raise ValueError(f"{name} has {counted(found, 'row')}: expected {n}, for the owned vertices (without ghosts)")
