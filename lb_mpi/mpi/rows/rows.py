"""Rows as messages: one buffer with some rows of all columns, never pickled.

Rows are one or several numpy arrays with the same first dimension ("columns"), or a list of objects with the user's
`pack` and `unpack`.  A parcel is a header (number of rows, kind, ticks), then the rows of each column in turn, aligned.
Both ends know the `Spec`, so the parcel does not repeat it.

Rows move in units: single rows, or blocks of `block_rows` if the user's function must only see whole blocks.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.balancing.round import RoundKind, Rowset, count, numbers
from lb_mpi.checks import show
from lb_mpi.mpi.common.parcels import UNIT_BYTES, Buffer, parcel

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]

_HEADER = struct.Struct("<qiIdq")  # rows, kind, mark, ticks, which columns are in Fortran order
HEADER_BYTES = UNIT_BYTES
MOST_COLUMNS = 60


class Head(NamedTuple):
    """The header of a parcel."""

    n: int  # rows
    kind: int  # of the protocol
    mark: int = 0  # of the Spec of the rows
    ticks: float = 0.0  # time spent on the results
    fortran: int = 0  # bit k: column k is in Fortran order


class Spec(NamedTuple):
    """The form, dtypes and shapes of rows; must be the same on all ranks before any are sent."""

    form: str  # "array", "tuple", "list" of arrays; "objects"
    dtypes: tuple[np.dtype[Any], ...]  # of the columns
    shapes: tuple[tuple[int, ...], ...]  # of one row of each
    n_home: int  # the first n_home columns are the rows proper; the others are read only
    block_rows: int = 0  # in a call of the user's function; 0: any number

    @property
    def words(self) -> str:
        """A description for messages."""
        blocks = f" in blocks of {self.block_rows}" if self.block_rows else ""
        if self.form == "objects":
            return "objects" + blocks
        columns = [f"{dtype} {shape}" for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        more = f" with {', '.join(columns[self.n_home :])}" if len(columns) > self.n_home else ""
        return f"{self.form} of {', '.join(columns[: self.n_home])}{more}{blocks}"

    @property
    def mark(self) -> int:
        """A 32-bit checksum of the Spec."""
        dtypes = tuple((dtype.str, dtype.descr if dtype.names else (), dtype.itemsize) for dtype in self.dtypes)
        return zlib.crc32(repr((self.form, dtypes, self.shapes, self.n_home, self.block_rows)).encode())


class Rows:
    """A user's rows: n rows, as columns or objects, in n_units units.  They are never written to."""

    def __init__(
        self,
        rows: Any,
        more: Sequence[Any] = (),
        *,
        pack: Pack | None = None,
        unpack: Unpack | None = None,
        block_rows: int = 0,
    ) -> None:
        if (pack is None) != (unpack is None):
            raise TypeError("pack and unpack: expected both or neither")
        for name, value in (("pack", pack), ("unpack", unpack)):
            if value is not None and not callable(value):
                raise TypeError(f"{name} = {show(value)}: expected a function")
        self.pack, self.unpack, self._more = pack, unpack, more
        self.fortran = 0
        arrays = [(k, one) for k, one in enumerate(more) if not _is_scalar(one)]
        if pack is not None:
            if not isinstance(rows, list):
                raise TypeError(f"rows of type {type(rows).__name__}: expected a list of objects, since pack is given")
            if arrays:
                raise TypeError("more arrays: expected none beside objects (make them part of the objects)")
            self.columns: list[Any] = [rows]
            self.spec = Spec("objects", (), (), 1, block_rows)
            self.n = len(rows)
            return
        proper = list(rows) if isinstance(rows, list | tuple) else [rows]
        if not proper:
            raise TypeError("rows without arrays: expected at least one")
        if len(proper) + len(arrays) > MOST_COLUMNS:
            raise TypeError(f"rows and more: {len(proper) + len(arrays)} arrays: expected at most {MOST_COLUMNS}")
        form = "tuple" if isinstance(rows, tuple) else "list" if isinstance(rows, list) else "array"
        self.columns = [_check(column, f"rows[{k}]" if form != "array" else "rows") for k, column in enumerate(proper)]
        self.columns += [_check(column, f"more[{k}]") for k, column in arrays]
        self.n = len(self.columns[0])
        for k, column in enumerate(self.columns):
            if len(column) != self.n:
                raise ValueError(f"array {k} has {len(column)} rows, the first {self.n}: expected equal numbers")
            self.fortran |= _is_fortran(column) << k
        dtypes, shapes = [c.dtype for c in self.columns], [c.shape[1:] for c in self.columns]
        self.spec = Spec(form, tuple(dtypes), tuple(shapes), len(proper), block_rows)

    @property
    def n_units(self) -> int:
        """The number of units."""
        return -(-self.n // max(1, self.spec.block_rows))

    def of_units(self, units: Rowset) -> Rowset:
        """The rows of some units; of blocks, the last one, which may be shorter, comes last."""
        size = self.spec.block_rows
        if size <= 1:
            return units
        if isinstance(units, slice):
            return slice(units.start * size, min(units.stop * size, self.n))
        every = (np.sort(units)[:, None] * size + np.arange(size)).ravel()
        return every[every < self.n]

    def block(self, index: Rowset) -> tuple[Any, ...]:
        """Copies of some rows of all columns, in the memory order of the caller's; the function may change them."""
        if self.pack is not None:
            return (_items(self.columns[0], index),)
        columns = []
        for k, column in enumerate(self.columns):
            order: Any = "F" if self.fortran >> k & 1 else "C"
            if isinstance(index, slice):
                columns.append(np.array(column[index], order=order))
            else:
                columns.append(np.asarray(np.take(column, index, axis=0), order=order))
        return tuple(columns)

    def arguments(self, block: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the user's function for a block: the rows proper, then `more`, with scalars unchanged."""
        arrays = iter(block[self.spec.n_home :])
        return in_form(self.spec, block), *(one if _is_scalar(one) else next(arrays) for one in self._more)

    def parcel(self, index: Rowset, *, kind: int) -> Buffer:
        """Pack some rows of all columns into one buffer."""
        header = Head(count(index), kind, self.spec.mark, fortran=self.fortran)
        return _pack(self.spec, self.columns, index, header, self.pack)


def _check(column: Any, name: str) -> NDArray[Any]:
    if not _is_plain(column):
        objects = "; for a list of objects pass pack=, unpack=" if name.startswith("rows[") else ""
        if name.startswith("more"):
            objects = " or a scalar (pass other values as keyword arguments)"
        raise TypeError(f"{name} of type {type(column).__name__}: expected a numpy array (no subclass){objects}")
    if column.ndim < 1:
        raise ValueError(f"{name} of shape (): expected at least one dimension, the rows")
    if column.dtype.hasobject:
        raise TypeError(f"{name} of dtype {column.dtype}: expected no Python objects (for a list of objects: pack, unpack)")
    plain: NDArray[Any] = column
    return plain


def _is_plain(array: object) -> bool:
    """True for plain arrays: subclasses would lose masks, units and the like."""
    return type(array) is np.ndarray or type(array) is np.memmap


def _is_fortran(column: NDArray[Any]) -> bool:
    """True when the first index runs fastest in memory."""
    rising = all(one <= other for one, other in zip(column.strides, column.strides[1:], strict=False))
    return column.ndim > 1 and rising and not column.flags.c_contiguous


def empty_parcel(kind: int) -> Buffer:
    """A parcel without rows."""
    return parcel(_HEADER.pack(*Head(0, kind)))


def head(buffer: Buffer) -> Head:
    """Read the header of a parcel."""
    return Head(*_HEADER.unpack_from(buffer.data))


def columns_of(buffer: Buffer, spec: Spec, unpack: Unpack | None) -> tuple[Any, ...]:
    """The rows in a parcel, as `Rows.block` gives them (views of the buffer)."""
    about = head(buffer)
    if unpack is not None:
        lengths = np.ndarray(about.n, dtype=np.int64, buffer=buffer.data, offset=HEADER_BYTES)
        ends = (HEADER_BYTES + 8 * about.n + np.cumsum(lengths)).tolist()
        return ([unpack(buffer[end - n : end].tobytes()) for end, n in zip(ends, lengths.tolist(), strict=True)],)
    return tuple(_views(buffer, spec, about))


def in_blocks(block: tuple[Any, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Cut a block of rows into blocks of `size` rows, the last one possibly shorter; size 0: do not cut."""
    if not size:
        yield block
        return
    for first in range(0, len(block[0]), size):
        parts = (column[first : first + size] for column in block)
        yield tuple(np.array(part) if isinstance(part, np.ndarray) else part for part in parts)


def _describe(result: Any) -> str:
    if isinstance(result, np.ndarray):
        kind = "an array" if _is_plain(result) else f"a {type(result).__name__}"
        return f"{kind} of {result.dtype} {result.shape}"
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {len(result)}"
    return f"{type(result).__name__}"


class Results:
    """The results, filled in as parts arrive: new arrays, in the order of the rows at home.

    The form of the results is known from the first part computed here.  Earlier parts from other ranks wait until then.
    Parts with another form are dropped; the ranks detect that when they compare marks.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.spec: Spec | None = None  # None: unknown yet
        self._columns: list[Any] = []
        self._early: list[tuple[Rowset, Buffer]] = []
        if rows.pack is not None:
            self.look_like(rows.spec)

    @property
    def mark(self) -> int:
        """The mark of the results' form; 0: no results yet."""
        if self.spec is not None:
            return self.spec.mark
        return head(self._early[0][1]).mark if self._early else 0

    def look_like(self, spec: Spec) -> None:
        """Allocate results of this form, in the memory order of the caller's columns."""
        n, self.spec = self._rows.n, spec
        if spec.form == "objects":
            self._columns = [[None] * n]
            return
        fortran = self._rows.fortran & ((1 << self._rows.spec.n_home) - 1)
        self._columns = [
            np.empty((n, *shape), dtype, "F" if fortran >> k & 1 else "C")
            for k, (dtype, shape) in enumerate(zip(spec.dtypes, spec.shapes, strict=True))
        ]
        early, self._early = self._early, []
        for index, buffer in early:
            self.receive(index, buffer)

    def check(self, result: Any, n: int) -> tuple[Any, ...]:
        """Return the columns of the function's result for n rows; ValueError or TypeError for an invalid result."""
        if self._rows.pack is not None:
            if not isinstance(result, list) or len(result) != n:
                raise ValueError(f"function returned {_describe(result)}: expected a list of {n} objects")
            return (result,)
        columns = tuple(result) if isinstance(result, list | tuple) else (result,)
        if not columns or not all(map(_is_plain, columns)):
            raise TypeError(f"function returned {_describe(result)}: expected an array, or a tuple or list of arrays")
        for column in columns:
            if column.ndim < 1 or len(column) != n:
                raise ValueError(f"function returned {_describe(column)}: expected {n} rows, as many as it was given")
            if column.dtype.hasobject:
                raise TypeError(f"function returned {_describe(column)}: expected no Python objects")
        form = type(result).__name__ if isinstance(result, list | tuple) else "array"
        spec = Spec(form, tuple(c.dtype for c in columns), tuple(c.shape[1:] for c in columns), len(columns))
        if self.spec is None:
            self.look_like(spec)
        elif spec != self.spec:
            raise TypeError(f"function returned {spec.words}: expected {self.spec.words}, as for the rows before")
        return columns

    def joined(self, blocks: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Join checked results of several calls."""
        assert self.spec is not None
        return blocks[0] if len(blocks) == 1 else tuple(concatenate(self.spec, blocks))

    def parcel(self, block: tuple[Any, ...], ticks: float) -> Buffer:
        """Pack checked results into one buffer, with the ticks spent on them."""
        assert self.spec is not None
        header = Head(len(block[0]), RoundKind.DONE, self.spec.mark, ticks)
        return _pack(self.spec, block, slice(0, header.n), header, self._rows.pack)

    def put(self, index: Rowset, block: tuple[Any, ...]) -> None:
        """Store results of some rows."""
        if self._rows.pack is not None:
            places = range(self._rows.n)[index] if isinstance(index, slice) else index.tolist()
            for place, item in zip(places, block[0], strict=True):
                self._columns[0][place] = item
            return
        for column, part in zip(self._columns, block, strict=True):
            column[index] = part

    def receive(self, index: Rowset, buffer: Buffer) -> None:
        """Store results that another rank has computed."""
        if self.spec is None:
            self._early.append((index, buffer))
        elif head(buffer).mark == self.spec.mark:
            self.put(index, columns_of(buffer, self.spec, self._rows.unpack))

    @property
    def value(self) -> Any:
        """The results in the function's form; in the form of the rows if no rank has any."""
        if self.spec is None:
            form, dtypes, shapes, n, _ = self._rows.spec
            self.look_like(Spec(form, dtypes[:n], shapes[:n], n))
        assert self.spec is not None
        return in_form(self.spec, self._columns)


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float | complex | str | bytes | np.generic | None)


def in_form(spec: Spec, columns: Sequence[Any]) -> Any:
    """Columns in the user's form: an array, a tuple or list of arrays, or a list of objects."""
    if spec.form == "tuple":
        return tuple(columns[: spec.n_home])
    return list(columns[: spec.n_home]) if spec.form == "list" else columns[0]


def concatenate(spec: Spec, blocks: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Join blocks (at least one) into new columns of exactly the same dtypes."""
    if spec.form == "objects":
        return [[item for block in blocks for item in block[0]]]
    columns = []
    for parts in zip(*blocks, strict=True):
        # Without `out`, numpy would normalise the user's byte order and padding.
        whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
        columns.append(np.concatenate(parts, out=whole))
    return columns


def _items(objects: list[Any], index: Rowset) -> list[Any]:
    return objects[index] if isinstance(index, slice) else [objects[k] for k in index.tolist()]


def _pack(spec: Spec, columns: Sequence[Any], index: Rowset, header: Head, pack: Pack | None) -> Buffer:
    """Pack some rows of all columns into one buffer; of objects, first the (n,) numbers of bytes."""
    if pack is not None:
        parts = [pack(item) for item in _items(columns[0], index)]
        for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise TypeError(f"pack returned {type(part).__name__}: expected bytes")
        lengths = np.array([memoryview(part).nbytes for part in parts], dtype=np.int64)
        return parcel(_HEADER.pack(*header), [lengths.tobytes(), b"".join(parts)])
    buffer, places = np.empty(_begins(spec, header.n)[-1], dtype=np.uint8), numbers(index)
    for column, view in zip(columns, _views(buffer, spec, header), strict=True):
        np.take(column, places, axis=0, out=view, mode="clip")
    _HEADER.pack_into(buffer.data, 0, *header)
    return buffer


def _views(buffer: Buffer, spec: Spec, about: Head) -> list[NDArray[Any]]:
    """The columns of a parcel."""
    views: list[NDArray[Any]] = []
    places = zip(spec.dtypes, spec.shapes, _begins(spec, about.n), strict=False)
    for k, (dtype, shape, begin) in enumerate(places):
        order: Any = "F" if about.fortran >> k & 1 else "C"
        views.append(np.ndarray((about.n, *shape), dtype, buffer=buffer.data, offset=begin, order=order))
    return views


def _begins(spec: Spec, n: int) -> list[int]:
    """The bytes at which the columns of n rows begin in a parcel, aligned; and its size."""
    begins = [HEADER_BYTES]
    for dtype, shape in zip(spec.dtypes, spec.shapes, strict=True):
        n_bytes = n * dtype.itemsize * math.prod(shape)
        begins.append(begins[-1] - (-n_bytes // UNIT_BYTES) * UNIT_BYTES)
    return begins
