"""Rows as they travel: one buffer for some rows of all columns, never pickled.

Rows are one or several numpy arrays with the same first dimension ("columns"), or a list of objects with the user's own
`pack` and `unpack`.  A parcel is a header (number of rows, kind, ticks) and then, for each column, the rows one after the
other, aligned.  Both ends know the `Spec`, so nothing else has to be told.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.graph import Ints

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]
Buffer = NDArray[np.uint8]
Rowset = slice | Ints

_HEADER = struct.Struct("<qqd")  # rows, kind, ticks
HEADER_BYTES = 64
_ALIGN = 64


class Head(NamedTuple):
    """What a parcel says of itself."""

    n: int  # rows
    kind: int  # the protocol's
    ticks: float  # that results took; of rows: the mark of their Spec


class Spec(NamedTuple):
    """What rows look like: the same on all ranks, or nothing is sent."""

    form: str  # "array", "tuple", "list" of arrays; "objects"
    dtypes: tuple[np.dtype[Any], ...]  # of the columns
    shapes: tuple[tuple[int, ...], ...]  # of one row of each
    n_home: int  # the first n_home columns are the rows proper; the others are only read

    @property
    def words(self) -> str:
        """In words, for messages."""
        if self.form == "objects":
            return "objects"
        columns = [f"{dtype} {shape}" for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        more = f" with {', '.join(columns[self.n_home :])}" if len(columns) > self.n_home else ""
        return f"{self.form} of {', '.join(columns[: self.n_home])}{more}"

    @property
    def mark(self) -> float:
        """A number that differs where the words do (32 bits, exact as a double)."""
        return float(zlib.crc32(repr((self.form, self.dtypes, self.shapes, self.n_home)).encode()))


class Rows:
    """A user's rows: n of them, as columns or objects.  They are read, never written to."""

    def __init__(
        self, rows: Any, more: Sequence[Any] = (), *, pack: Pack | None = None, unpack: Unpack | None = None
    ) -> None:
        if (pack is None) != (unpack is None):
            raise TypeError("pack and unpack: expected both or neither")
        self.pack, self.unpack = pack, unpack
        if pack is not None:
            if not isinstance(rows, list):
                raise TypeError(f"rows of type {type(rows).__name__}: expected a list of objects, since pack is given")
            if more:
                raise TypeError("more arrays: expected none beside objects (make them part of the objects)")
            self.columns: list[Any] = [rows]
            self.spec = Spec("objects", (), (), 1)
            self.n = len(rows)
            return
        proper = list(rows) if isinstance(rows, list | tuple) else [rows]
        if not proper:
            raise TypeError("rows without arrays: expected at least one")
        form = "tuple" if isinstance(rows, tuple) else "list" if isinstance(rows, list) else "array"
        self.columns = [_check(column, f"rows[{k}]" if form != "array" else "rows") for k, column in enumerate(proper)]
        self.columns += [_check(column, f"more[{k}]") for k, column in enumerate(more)]
        self.n = len(self.columns[0])
        for k, column in enumerate(self.columns):
            if len(column) != self.n:
                raise ValueError(f"array {k} has {len(column)} rows, the first {self.n}: expected equal numbers")
        dtypes, shapes = [c.dtype for c in self.columns], [c.shape[1:] for c in self.columns]
        self.spec = Spec(form, tuple(dtypes), tuple(shapes), len(proper))

    def block(self, index: Rowset) -> tuple[Any, ...]:
        """Copies of some rows of all columns, C-contiguous, that the user's function may do with as it likes."""
        if self.pack is not None:
            return (self._objects(index),)
        if isinstance(index, slice):
            return tuple(np.array(column[index], order="C") for column in self.columns)
        return tuple(np.ascontiguousarray(np.take(column, index, axis=0)) for column in self.columns)

    def parcel(self, index: Ints, *, kind: int) -> Buffer:
        """Some rows of all columns as one buffer."""
        if self.pack is not None:
            return _pack_objects([self.pack(item) for item in self._objects(index)], kind, self.spec.mark)
        buffer, views = _allocate(self.spec.dtypes, self.spec.shapes, Head(len(index), kind, self.spec.mark))
        for column, view in zip(self.columns, views, strict=True):
            np.take(column, index, axis=0, out=view, mode="clip")
        return buffer

    def _objects(self, index: Rowset) -> list[Any]:
        objects: list[Any] = self.columns[0]
        return objects[index] if isinstance(index, slice) else [objects[k] for k in index.tolist()]


def _check(column: Any, name: str) -> NDArray[Any]:
    if not isinstance(column, np.ndarray) or isinstance(column, np.ma.MaskedArray):
        raise TypeError(f"{name} of type {type(column).__name__}: expected a numpy array")
    if column.ndim < 1:
        raise ValueError(f"{name} of shape (): expected at least one dimension, the rows")
    if column.dtype.hasobject:
        raise TypeError(f"{name} of dtype {column.dtype}: expected no Python objects (for a list of objects: pack, unpack)")
    return column


def empty_parcel(kind: int) -> Buffer:
    """A parcel without rows."""
    buffer = np.zeros(HEADER_BYTES, dtype=np.uint8)
    _HEADER.pack_into(buffer.data, 0, 0, kind, 0.0)
    return buffer


def head(buffer: Buffer) -> Head:
    """What the parcel says of itself."""
    return Head(*_HEADER.unpack_from(buffer.data))


def columns_of(buffer: Buffer, spec: Spec, unpack: Unpack | None, *, home: bool = False) -> tuple[Any, ...]:
    """The rows in a parcel, as `Rows.block` gives them (views of the buffer); `home`: of the rows proper only."""
    n = head(buffer).n
    if unpack is not None:
        lengths = np.ndarray(n, dtype=np.int64, buffer=buffer.data, offset=HEADER_BYTES)
        ends = (HEADER_BYTES + 8 * n + np.cumsum(lengths)).tolist()
        begins = [end - length for end, length in zip(ends, lengths.tolist(), strict=True)]
        return ([unpack(buffer[begin:end].tobytes()) for begin, end in zip(begins, ends, strict=True)],)
    last = spec.n_home if home else None
    return tuple(_views(buffer, spec.dtypes[:last], spec.shapes[:last], n))


def parcel_of(block: tuple[Any, ...], spec: Spec, pack: Pack | None, *, kind: int, ticks: float) -> Buffer:
    """A parcel of results: the rows proper only."""
    if pack is not None:
        return _pack_objects([pack(item) for item in block[0]], kind, ticks)
    last = spec.n_home
    buffer, views = _allocate(spec.dtypes[:last], spec.shapes[:last], Head(len(block[0]), kind, ticks))
    for column, view in zip(block, views, strict=True):
        view[...] = column
    return buffer


def check_result(result: Any, block: tuple[Any, ...], spec: Spec) -> tuple[Any, ...]:
    """What the user's function returned, as columns; ValueError or TypeError, saying what was expected, if it's no such."""
    n = len(block[0])
    if spec.form == "objects":
        if not isinstance(result, list) or len(result) != n:
            raise ValueError(f"function returned {_describe(result)}: expected a list of {n} objects")
        return (result,)
    columns = (result,) if spec.form == "array" else result
    if spec.form != "array" and not (isinstance(result, list | tuple) and len(result) == spec.n_home):
        raise TypeError(f"function returned {_describe(result)}: expected a {spec.form} of {spec.n_home} arrays")
    for column, dtype, shape in zip(columns, spec.dtypes, spec.shapes, strict=False):
        if not (isinstance(column, np.ndarray) and column.dtype == dtype and column.shape == (n, *shape)):
            expected = f"an array of {dtype} {(n, *shape)}, as the rows are"
            kind = TypeError if isinstance(column, np.ndarray) and column.dtype != dtype else ValueError
            raise kind(f"function returned {_describe(column)}: expected {expected}")
    return tuple(columns)


def _describe(result: Any) -> str:
    if isinstance(result, np.ndarray):
        return f"an array of {result.dtype} {result.shape}"
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {len(result)}"
    return f"{type(result).__name__}"


class Results:
    """The answer, filled in as the parts come: new arrays, rows in their order at home."""

    def __init__(self, rows: Rows) -> None:
        self._spec = rows.spec
        if rows.spec.form == "objects":
            self._columns: list[Any] = [[None] * rows.n]
        else:
            self._columns = [np.empty(c.shape, c.dtype) for c in rows.columns[: rows.spec.n_home]]

    def put(self, index: Rowset, block: tuple[Any, ...]) -> None:
        """Some rows have been computed."""
        if self._spec.form == "objects":
            places = range(len(self._columns[0]))[index] if isinstance(index, slice) else index.tolist()
            for place, item in zip(places, block[0], strict=True):
                self._columns[0][place] = item
            return
        for column, part in zip(self._columns, block, strict=True):
            column[index] = part

    @property
    def value(self) -> Any:
        """In the form of the user's rows."""
        return in_form(self._spec, self._columns)


def in_form(spec: Spec, columns: Sequence[Any]) -> Any:
    """Columns as the user's function takes them: an array, a tuple or list of arrays, a list of objects."""
    if spec.form == "tuple":
        return tuple(columns[: spec.n_home])
    return list(columns[: spec.n_home]) if spec.form == "list" else columns[0]


def concatenate(spec: Spec, blocks: Sequence[tuple[Any, ...]]) -> list[Any]:
    """New columns, block after block (at least one)."""
    if spec.form == "objects":
        return [[item for block in blocks for item in block[0]]]
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def _allocate(
    dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]], header: Head
) -> tuple[Buffer, list[NDArray[Any]]]:
    size = HEADER_BYTES
    for dtype, shape in zip(dtypes, shapes, strict=True):
        size = -(-size // _ALIGN) * _ALIGN + header.n * _row_bytes(dtype, shape)
    buffer = np.empty(size, dtype=np.uint8)
    _HEADER.pack_into(buffer.data, 0, *header)
    return buffer, _views(buffer, dtypes, shapes, header.n)


def _views(
    buffer: Buffer, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]], n: int
) -> list[NDArray[Any]]:
    views: list[NDArray[Any]] = []
    offset = HEADER_BYTES
    for dtype, shape in zip(dtypes, shapes, strict=True):
        offset = -(-offset // _ALIGN) * _ALIGN
        views.append(np.ndarray((n, *shape), dtype, buffer=buffer.data, offset=offset))
        offset += n * _row_bytes(dtype, shape)
    return views


def _row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _pack_objects(parts: list[bytes], kind: int, ticks: float) -> Buffer:
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"pack returned {type(part).__name__}: expected bytes")
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    buffer = np.empty(HEADER_BYTES + 8 * len(parts) + int(lengths.sum()), dtype=np.uint8)
    _HEADER.pack_into(buffer.data, 0, len(parts), kind, ticks)
    buffer[HEADER_BYTES : HEADER_BYTES + 8 * len(parts)] = lengths.view(np.uint8)
    buffer[HEADER_BYTES + 8 * len(parts) :] = np.frombuffer(b"".join(parts), dtype=np.uint8)
    return buffer
