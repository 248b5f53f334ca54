"""Rows as messages: one buffer with some rows of all columns, never pickled.

Rows are one or several numpy arrays with the same first dimension ("columns"), or a list of objects with the user's
`pack` and `unpack`.  A parcel is a header (number of rows, kind, ticks), then the rows of each column in turn, aligned.
Both ends know the `Spec`, so the parcel does not repeat it.  The memory order of columns may differ between ranks: that of
columns that are not in C order is between the header and the rows.

Rows move in units: single rows, or blocks of `block_rows` if the user's function must only see whole blocks.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.balancing.deciding import UNKNOWN
from lb_mpi.balancing.round import RoundKind, Rowset, count
from lb_mpi.checks import returned, show
from lb_mpi.errors import BalanceError, ProtocolError
from lb_mpi.mpi.common.parcels import UNIT_BYTES, Buffer, layout, parcel
from lb_mpi.table import counted

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]
Axes = tuple[int, ...]  # of an array, from the outermost to the innermost in memory; (): C order

_HEADER = struct.Struct("<qiIdq")  # rows, kind, mark, ticks, which columns are not in C order
HEADER_BYTES = UNIT_BYTES
MOST_COLUMNS = 60


class Head(NamedTuple):
    """The header of a parcel."""

    n: int  # rows
    kind: int  # of the protocol
    mark: int = 0  # of the Spec of the rows
    ticks: float = 0.0  # time spent on the results
    ordered: int = 0  # bit k: column k is not in C order


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
        sizes = [", ".join(("n", *map(str, shape))) + "," * (not shape) for shape in self.shapes]
        columns = [f"{dtype} ({size})" for dtype, size in zip(self.dtypes, sizes, strict=True)]
        more = f" with {', '.join(columns[self.n_home :])}" if len(columns) > self.n_home else ""
        return f"{self.form} of {', '.join(columns[: self.n_home])}{more}{blocks}"

    @property
    def mark(self) -> int:
        """A 32-bit checksum of the Spec."""
        return _mark(self)


@functools.lru_cache(64)  # several times in each call
def _mark(spec: Spec) -> int:
    dtypes = tuple(map(layout, spec.dtypes))
    return zlib.crc32(repr((spec.form, dtypes, spec.shapes, spec.n_home, spec.block_rows)).encode())


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
        self.axes: tuple[Axes, ...] = ()  # of each column
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
        form = _form(rows)
        names = ["rows"] if form == "array" else [f"rows[{k}]" for k in range(len(proper))]
        names += [f"more[{k}]" for k, _ in arrays]
        self.columns = [_check(*one) for one in zip([*proper, *(one for _, one in arrays)], names, strict=True)]
        self.n = len(self.columns[0])
        for column, name in zip(self.columns, names, strict=True):
            if len(column) != self.n:
                raise ValueError(f"{name} has {counted(len(column), 'row')}: expected {self.n}, as {names[0]} has")
        self.axes = tuple(map(axes_of, self.columns))
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
        columns, n = [], count(index)
        for column, axes in zip(self.columns, self.axes, strict=True):
            columns.append(_ordered((n, *column.shape[1:]), column.dtype, axes))
            _copy(column, index, columns[-1])
        return tuple(columns)

    def arguments(self, block: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the user's function for a block: the rows proper, then `more`, with scalars unchanged."""
        arrays = iter(block[self.spec.n_home :])
        return in_form(self.spec, block), *(one if _is_scalar(one) else next(arrays) for one in self._more)

    def parcel(self, index: Rowset, *, kind: int) -> Buffer:
        """Pack some rows of all columns into one buffer."""
        return _pack(self.spec, self.columns, index, Head(count(index), kind, self.spec.mark), self.pack, self.axes)


def _form(rows: Any) -> str:
    """Return the form of columns in `Spec`; a named tuple is a tuple."""
    return "tuple" if isinstance(rows, tuple) else "list" if isinstance(rows, list) else "array"


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


def axes_of(column: NDArray[Any]) -> Axes:
    """The axes from the outermost to the innermost in memory, as numpy iterates over them; (): C order.

    An axis of one element, or with the stride 0 of a broadcast array, has no place in memory: it stays where it is in C
    order.
    """
    if column.flags.c_contiguous:
        return ()
    strides = [abs(stride) if n > 1 else 0 for n, stride in zip(column.shape, column.strides, strict=True)]
    inwards: list[int] = []  # the innermost first
    for axis in reversed(range(column.ndim)):
        place = len(inwards)
        for k in reversed(range(len(inwards))):
            other = strides[inwards[k]]
            if strides[axis] and other:
                if other <= strides[axis]:
                    break
                place = k
        inwards.insert(place, axis)
    axes = tuple(reversed(inwards))
    return () if axes == tuple(range(column.ndim)) else axes


def _ordered(
    shape: tuple[int, ...], dtype: np.dtype[Any], axes: Axes, buffer: memoryview | None = None, offset: int = 0
) -> NDArray[Any]:
    """A contiguous array with its axes in this order in memory: a new one, or in the buffer."""
    if not axes:
        return np.ndarray(shape, dtype, buffer, offset)
    inverse = sorted(range(len(axes)), key=axes.__getitem__)
    return np.ndarray([shape[axis] for axis in axes], dtype, buffer, offset).transpose(inverse)


def _copy(column: NDArray[Any], index: Rowset, copy: NDArray[Any]) -> None:
    """Copy some rows of a column."""
    if isinstance(index, slice) or not column.flags.c_contiguous:
        copy[...] = column[index]
    else:
        np.take(column, index, axis=0, out=copy, mode="clip")


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
        return f"a {type(result).__name__} of {counted(len(result), 'object')}"
    return show(result)


class Results:
    """The results, filled in as parts arrive: new arrays, in the order of the rows at home.

    The form of the results is that of the first part computed here.  A rank that has computed nothing adopts `known`, the
    form in the last call, from the first part of this form that arrives.  Other parts from other ranks wait until the form
    is known: if need be until the round is over, since a rank with results of unknown form makes all ranks compare theirs.
    Parts with another form are dropped; the ranks detect that when they compare marks.
    """

    def __init__(self, rows: Rows, function: Callable[..., Any], known: Spec | None = None) -> None:
        self._rows, self._function, self._known = rows, function, known
        self.spec: Spec | None = None  # None: unknown yet
        self._columns: list[Any] = []
        self._early: list[tuple[Rowset, Buffer]] = []
        self._n_missing = rows.n
        if rows.pack is not None:
            self.look_like(rows.spec)

    @property
    def mark(self) -> int:
        """The mark of the results' form; 0: no results yet; UNKNOWN: results of a form that this rank does not know."""
        if self.spec is None:
            return UNKNOWN if self._early else 0
        return self.spec.mark

    def look_like(self, spec: Spec) -> None:
        """Allocate results of this form, in the memory order of the caller's columns."""
        self.spec = spec
        self._columns = self.room(self._rows.n)
        early, self._early = self._early, []
        for index, buffer in early:
            self.receive(index, buffer)

    def check(self, result: Any, n: int) -> tuple[Any, ...]:
        """Return the columns of the function's result for n rows; BalanceError for an invalid result."""
        if self._rows.pack is not None:
            if not isinstance(result, list) or len(result) != n:
                raise self._returned(_describe(result), f"a list of {counted(n, 'object')}, as many as it was given")
            return (result,)
        columns = tuple(result) if isinstance(result, list | tuple) else (result,)
        if not columns or not all(map(_is_plain, columns)):
            raise self._returned(_describe(result), "an array, or a tuple or list of arrays")
        for column in columns:
            if column.ndim < 1 or len(column) != n:
                raise self._returned(_describe(column), f"{counted(n, 'row')}, as many as it was given")
            if column.dtype.hasobject:
                raise self._returned(_describe(column), "no Python objects (for a list of objects: pack, unpack)")
        form = _form(result)
        spec = Spec(form, tuple(c.dtype for c in columns), tuple(c.shape[1:] for c in columns), len(columns))
        if self.spec is None:
            self.look_like(spec)
        elif spec != self.spec:
            raise self._returned(spec.words, f"{self.spec.words}, as for the rows before")
        return columns

    def compare(self, everyone: Sequence[Spec | None]) -> None:
        """Adopt the form of the results of all ranks, if this rank does not know it; BalanceError if it differs."""
        known = [(rank, spec) for rank, spec in enumerate(everyone) if spec]
        first, expected = known[0]
        for rank, spec in known:
            if spec.mark != expected.mark:
                raise self._returned(f"{spec.words} on rank {rank}", f"{expected.words}, as on rank {first}")
        if self.spec is None:
            self.look_like(expected)

    def _returned(self, found: str, expected: str) -> BalanceError:
        return BalanceError(returned(self._function, found, expected))

    def room(self, n: int) -> list[Any]:
        """New columns for n results, in the memory order of the caller's columns."""
        assert self.spec is not None
        if self.spec.form == "objects":
            return [[None] * n]
        axes = itertools.chain(self._rows.axes[: self._rows.spec.n_home], itertools.repeat(()))
        columns = zip(self.spec.dtypes, self.spec.shapes, axes, strict=False)
        return [_ordered((n, *shape), dtype, _fitted(like, 1 + len(shape))) for dtype, shape, like in columns]

    def parcel(self, block: Sequence[Any], ticks: float) -> Buffer:
        """Pack checked results into one buffer, with the ticks spent on them."""
        assert self.spec is not None
        header = Head(len(block[0]), RoundKind.DONE, self.spec.mark, ticks)
        return _pack(self.spec, block, slice(0, header.n), header, self._rows.pack)

    def put(self, index: Rowset, block: Sequence[Any]) -> None:
        """Store results of some rows."""
        self._n_missing -= count(index)
        if self._rows.pack is not None:
            places = range(self._rows.n)[index] if isinstance(index, slice) else index.tolist()
            for place, item in zip(places, block[0], strict=True):
                self._columns[0][place] = item
            return
        for column, part in zip(self._columns, block, strict=True):
            column[index] = part

    def receive(self, index: Rowset, buffer: Buffer) -> None:
        """Store results that another rank has computed."""
        if self.spec is None and self._known is not None and head(buffer).mark == self._known.mark:
            self.look_like(self._known)
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
        if self._n_missing:
            raise ProtocolError(f"{self._n_missing} of {self._rows.n} results are missing, as {self.spec.words}")
        return in_form(self.spec, self._columns)


def _fitted(axes: Axes, ndim: int) -> Axes:
    """The order of results with `ndim` axes, for rows in this order."""
    if len(axes) == ndim:
        return axes
    is_fortran = len(axes) > 1 and axes == tuple(reversed(range(len(axes))))
    return tuple(reversed(range(ndim))) if is_fortran else ()


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float | complex | str | bytes | np.generic | None)


def scalars_of(more: Sequence[Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the scalars among the arguments of the function, which must be equal on all ranks, as text by name."""
    named = [(f"more[{k}]", one) for k, one in enumerate(more)] + sorted(options.items())
    return {name: repr(one.item() if isinstance(one, np.generic) else one) for name, one in named if _is_scalar(one)}


def in_form(spec: Spec, columns: Sequence[Any]) -> Any:
    """Columns in the user's form: an array, a tuple or list of arrays, or a list of objects."""
    if spec.form == "tuple":
        return tuple(columns[: spec.n_home])
    return list(columns[: spec.n_home]) if spec.form == "list" else columns[0]


def concatenate(spec: Spec, blocks: Sequence[tuple[Any, ...]], axes: Sequence[Axes] = ()) -> list[Any]:
    """Join blocks (at least one) into new columns of exactly the same dtypes, in these memory orders (none: C)."""
    if spec.form == "objects":
        return [[item for block in blocks for item in block[0]]]
    columns = []
    for parts, order in zip(zip(*blocks, strict=True), axes or [()] * len(blocks[0]), strict=True):
        # Without `out`, numpy would normalise the user's byte order and padding.
        whole = _ordered((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype, order)
        columns.append(np.concatenate(parts, out=whole))
    return columns


def _items(objects: list[Any], index: Rowset) -> list[Any]:
    return objects[index] if isinstance(index, slice) else [objects[k] for k in index.tolist()]


def _pack(
    spec: Spec, columns: Sequence[Any], index: Rowset, header: Head, pack: Pack | None, axes: Sequence[Axes] = ()
) -> Buffer:
    """Pack some rows of all columns, in these memory orders (none: C); of objects, first the (n,) numbers of bytes."""
    if pack is not None:
        parts = [pack(item) for item in _items(columns[0], index)]
        for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise BalanceError(returned(pack, show(part), "bytes, since it is `pack`"))
        lengths = np.array([memoryview(part).nbytes for part in parts], dtype=np.int64)
        return parcel(_HEADER.pack(*header), [lengths.tobytes(), b"".join(parts)])
    header = header._replace(ordered=sum(bool(order) << k for k, order in enumerate(axes)))
    buffer = np.empty(_begins(spec, header)[-1], dtype=np.uint8)
    _HEADER.pack_into(buffer.data, 0, *header)
    orders = bytes(itertools.chain.from_iterable(axes))
    buffer[HEADER_BYTES : HEADER_BYTES + len(orders)] = np.frombuffer(orders, np.uint8)
    for column, view in zip(columns, _views(buffer, spec, header), strict=True):
        _copy(column, index, view)
    return buffer


def _views(buffer: Buffer, spec: Spec, about: Head) -> list[NDArray[Any]]:
    """The columns of a parcel."""
    views: list[NDArray[Any]] = []
    at = HEADER_BYTES  # of the order of the next column
    for k, (dtype, shape, begin) in enumerate(zip(spec.dtypes, spec.shapes, _begins(spec, about), strict=False)):
        n_axes = 1 + len(shape) if about.ordered >> k & 1 else 0
        views.append(_ordered((about.n, *shape), dtype, tuple(buffer[at : at + n_axes].tolist()), buffer.data, begin))
        at += n_axes
    return views


def _begins(spec: Spec, about: Head) -> list[int]:
    """The bytes at which the columns begin in a parcel with this header, aligned; and its size."""
    n_axes = sum(1 + len(shape) for k, shape in enumerate(spec.shapes) if about.ordered >> k & 1)
    begins = [HEADER_BYTES + _whole_units(n_axes)]
    for dtype, shape in zip(spec.dtypes, spec.shapes, strict=True):
        begins.append(begins[-1] + _whole_units(about.n * dtype.itemsize * math.prod(shape)))
    return begins


def _whole_units(n_bytes: int) -> int:
    return -(-n_bytes // UNIT_BYTES) * UNIT_BYTES
