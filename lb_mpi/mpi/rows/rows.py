"""Rows as messages: one buffer with some rows of all columns, never pickled.

Rows are one or several numpy arrays with the same first dimension ("columns"), or a list of objects with the user's
`pack` and `unpack`.  A parcel is a header (number of rows, kind, ticks), then the rows (`lb_mpi.columns`).
Both ends know the `Spec`, so the parcel does not repeat it.

Rows move in units: single rows, or blocks of `block_rows` if the user's function must only see whole blocks.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.balancing.deciding import UNKNOWN
from lb_mpi.balancing.round import RoundKind, Rowset, count, numbers
from lb_mpi.checks import function, integer, returned, show
from lb_mpi.columns import (
    ALIGN,
    PLAIN,
    ArrayColumn,
    Column,
    ObjectColumn,
    Order,
    Orders,
    Pack,
    Reader,
    Unpack,
    check_column,
    check_form,
    check_n_rows,
    chunks_of_rows,
    copied,
    layout,
    order_by,
    ordered,
    packed,
    read_rows,
)
from lb_mpi.errors import BalanceError, ProtocolError
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.table import counted

_HEADER = struct.Struct("<qiId")  # rows, kind, checksum, ticks
HEADER_BYTES = ALIGN


class Head(NamedTuple):
    """The header of a parcel."""

    n: int  # rows
    kind: int  # of the protocol
    checksum: int = 0  # of the Spec of the rows
    ticks: float = 0.0  # time spent on the results


class Spec(NamedTuple):
    """The form, dtypes and shapes of rows; must be the same on all ranks before any are sent."""

    form: str  # "array", "tuple", "list" of arrays; "objects"
    dtypes: tuple[np.dtype[Any], ...]  # of the columns
    shapes: tuple[tuple[int, ...], ...]  # of one row of each
    n_home: int  # the first n_home columns are the rows proper; the others are read only
    block_rows: int = 0  # in a call of the user's function; 0: any number
    named: str = ""  # of rows that are a named tuple, its name

    @property
    def words(self) -> str:
        """A description for messages."""
        blocks = f" in blocks of {self.block_rows}" if self.block_rows else ""
        if self.form == "objects":
            return "objects" + blocks
        sizes = [", ".join(("n", *map(str, shape))) + "," * (not shape) for shape in self.shapes]
        columns = [f"{dtype} ({size})" for dtype, size in zip(self.dtypes, sizes, strict=True)]
        more = f" with {', '.join(columns[self.n_home :])}" if len(columns) > self.n_home else ""
        return f"{self.named or self.form} of {', '.join(columns[: self.n_home])}{more}{blocks}"

    @property
    def checksum(self) -> int:
        """A 32-bit checksum of the Spec."""
        return _checksum(self)


@functools.lru_cache(64)  # in each call
def _checksum(spec: Spec) -> int:
    dtypes = tuple(map(layout, spec.dtypes))
    return zlib.crc32(repr((spec.form, dtypes, spec.shapes, spec.n_home, spec.block_rows, spec.named)).encode())


class Rows:
    """A user's rows: n rows, as columns or objects, in n_units units.  They are never written to.

    Attributes: `spec` and its `checksum`; the `columns`, their `kinds`, as `lb_mpi.columns` moves them, and `orders` in
    memory.
    """

    def __init__(
        self,
        rows: Any,
        more: Sequence[Any] = (),
        *,
        pack: Pack | None = None,
        unpack: Unpack | None = None,
        block_rows: int | None = None,
    ) -> None:
        size = 0 if block_rows is None else integer("block_rows", block_rows, 1)
        if pack is not None or unpack is not None:
            if pack is None or unpack is None:
                raise TypeError("pack and unpack: expected both or neither")
            function("pack", pack)
            function("unpack", unpack)
        self.pack, self.unpack, self._more = pack, unpack, more
        self.orders: Orders
        positions = tuple([k for k, one in enumerate(more) if not _is_scalar(one)]) if more else ()
        if pack is not None:
            if not isinstance(rows, list):
                raise TypeError(f"rows of type {type(rows).__name__}: expected a list of objects, since pack is given")
            if positions:
                raise TypeError("more arrays: expected none beside objects (make them part of the objects)")
            form, self.orders = "objects", ((),)
            self.columns: list[Any] = [rows]
            self.spec, self.n = Spec(form, (), (), 1, size), len(rows)
            self.checksum, self.kinds = _checksum(self.spec), _kinds(self.spec, pack, unpack)
        else:
            form = _form(rows)
            named = type(rows).__qualname__ if form == "tuple" and hasattr(rows, "_make") else ""
            self.columns = [rows] if form == "array" else [*rows]
            n_home, arrays = len(self.columns), list[_Array]()
            for k in positions:
                self.columns.append(more[k])
            for column in self.columns:
                if type(column) not in PLAIN:
                    name, also = _about(len(arrays), form, n_home, positions)
                    check_column(name, column, also)
                strides = () if column.flags.c_contiguous else column.strides
                arrays.append((column.dtype, id(column.dtype), column.shape, strides))
            known = _known(form, n_home, positions, named, size, tuple(arrays))
            self.spec, self.checksum, self.kinds, self.orders, self.n = known
        self.n_units = -(-self.n // (size or 1))
        self._make = rows._make if self.spec.named else MAKERS[form]

    def of_units(self, units: Rowset) -> Rowset:
        """The rows of some units; of blocks, the last one, which may be shorter, comes last."""
        size = min(self.spec.block_rows, self.n)  # one block may have all rows
        if size <= 1:
            return units
        if isinstance(units, slice):
            return slice(units.start * size, min(units.stop * size, self.n))
        every = (np.sort(units)[:, None] * size + np.arange(size)).ravel()
        return every[every < self.n]

    def named(self, index: Rowset) -> str:
        """Name some rows of this rank, for an error in them."""
        found = numbers(index)
        return f"its row {found[0]}" if len(found) == 1 else f"its rows {found.min()}..{found.max()}"

    def block(self, index: Rowset) -> tuple[Any, ...]:
        """Copies of some rows of all columns, in the memory order of the caller's; the function may change them."""
        copies = []
        for kind, column, order in zip(self.kinds, self.columns, self.orders, strict=True):
            copies.append(kind.copy(column, index, order))
        return tuple(copies)

    def arguments(self, block: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the user's function for a block: the rows proper, then `more`, with scalars unchanged."""
        if not self._more:
            return (self._make(block),)
        n_home = self.spec.n_home
        arrays = iter(block[n_home:])
        return self._make(block[:n_home]), *(one if _is_scalar(one) else next(arrays) for one in self._more)

    def parcel(self, index: Rowset, *, kind: int) -> Buffer:
        """Pack some rows of all columns into one buffer."""
        header = _HEADER.pack(*Head(count(index), kind, self.checksum))
        return packed(header, chunks_of_rows(self.kinds, self.columns, index, self.orders))

    def joined(self, blocks: Sequence[tuple[Any, ...]], orders: Orders) -> Any:
        """The rows of blocks (at least one) in the user's form, as new columns in these memory orders."""
        each = zip(self.kinds, zip(*blocks, strict=True), orders, strict=True)
        return self._make([kind.join(parts, order) for kind, parts, order in each])


def _kinds(spec: Spec, pack: Pack | None, unpack: Unpack | None) -> tuple[Column, ...]:
    if pack is not None and unpack is not None:
        return (ObjectColumn(pack, unpack),)
    return tuple(map(ArrayColumn, spec.dtypes, spec.shapes))


_first = operator.itemgetter(0)
MAKERS: Mapping[str, Callable[[Any], Any]] = {"array": _first, "objects": _first, "tuple": tuple, "list": list}  # of columns


def _form(rows: Any) -> str:
    """Return the form of columns in `Spec`; a named tuple is a tuple."""
    return "tuple" if isinstance(rows, tuple) else "list" if isinstance(rows, list) else "array"


_Array = tuple[np.dtype[Any], int, tuple[int, ...], tuple[int, ...]]  # dtype, its id, shape, strides (): none, in C order
_Known = tuple[Spec, int, tuple[Column, ...], Orders, int]  # of rows: see `Rows`, the checksum after the Spec, n last


@functools.lru_cache(64)  # in each call; two dtypes may be equal, one of them of np.record
def _known(
    form: str, n_home: int, positions: tuple[int, ...], named: str, block_rows: int, arrays: tuple[_Array, ...]
) -> _Known:  # fmt: skip
    """Check arrays, of which those after n_home are in `more` at `positions`; return what is known of rows in them."""
    if not n_home:
        raise TypeError("rows without arrays: expected at least one")
    names = [_about(k, form, n_home, positions) for k in range(len(arrays))]
    for (name, also), (dtype, _, shape, _) in zip(names, arrays, strict=True):
        check_form(name, dtype, shape, also)
    dtypes, _, shapes, strides = zip(*arrays, strict=True)
    for (name, _), shape in zip(names, shapes, strict=True):
        check_n_rows(name, shape[0], shapes[0][0], f"as {names[0][0]} has")
    spec = Spec(form, dtypes, tuple(shape[1:] for shape in shapes), n_home, block_rows, named)
    orders = tuple(order_by(*one) if one[1] else () for one in zip(shapes, strides, strict=True))
    return spec, _checksum(spec), _kinds(spec, None, None), orders, shapes[0][0]


def _about(k: int, form: str, n_home: int, positions: tuple[int, ...]) -> tuple[str, str]:
    """Name array k of the rows and of `more`, for an error in it, and say what else is expected."""
    if k >= n_home:
        return f"more[{positions[k - n_home]}]", " or a scalar (pass other values as keyword arguments)"
    return "rows" if form == "array" else f"rows[{k}]", "; for a list of objects pass pack=, unpack="


def empty_parcel(kind: int) -> Buffer:
    """A parcel without rows."""
    return packed(_HEADER.pack(*Head(0, kind)), [])


def head(buffer: Buffer) -> Head:
    """Read the header of a parcel."""
    return Head(*_HEADER.unpack_from(buffer.data))


def columns_of(buffer: Buffer, spec: Spec, pack: Pack | None, unpack: Unpack | None) -> tuple[Any, ...]:
    """The rows in a parcel, as `Rows.block` gives them (views of the buffer)."""
    return read_rows(_kinds(spec, pack, unpack), Reader(buffer), head(buffer).n)[0]


def in_blocks(block: tuple[Any, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Cut a block of rows into blocks of `size` rows, the last one possibly shorter."""
    for first in range(0, len(block[0]), size):
        parts = (column[first : first + size] for column in block)
        yield tuple(copied(part) if isinstance(part, np.ndarray) else part for part in parts)


def _describe(result: Any) -> str:
    if isinstance(result, np.ndarray):
        kind = "an array" if type(result) in PLAIN else f"a {type(result).__name__}"
        return f"{kind} of {result.dtype} {result.shape}"
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {counted(len(result), 'object')}"
    return show(result)


class Results:
    """The results, filled in as parts arrive: new arrays, in the order of the rows at home.

    The form of the results is that of the first part computed here.  A rank that has computed nothing adopts `known`, the
    form in the last call, from the first part of this form that arrives.  Other parts from other ranks wait until the form
    is known: if need be until the round is over, since a rank with results of unknown form makes all ranks compare theirs.
    Parts with another form are dropped; the ranks detect that when they compare checksums.
    """

    def __init__(self, rows: Rows, function: Callable[..., Any], known: Spec | None = None) -> None:
        self._rows, self._function, self._known = rows, function, known
        self.spec: Spec | None = None  # None: unknown yet
        self.checksum = 0  # of the form; 0: no results yet; UNKNOWN: results of a form that this rank does not know
        self._columns: list[Any] = []
        self._early: list[tuple[Rowset, Buffer]] = []
        self._n_missing = rows.n
        if rows.pack is not None:
            self.allocate(rows.spec)

    def allocate(self, spec: Spec) -> None:
        """Allocate results of this form, in the memory order of the caller's columns."""
        checksum, self._columns = _checksum(spec), self.room(self._rows.n, spec)
        self.spec, self.checksum = spec, checksum  # last: after a Ctrl-C, results still arrive
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
        if not columns or not PLAIN.issuperset(map(type, columns)):
            raise self._returned(_describe(result), "an array, or a tuple or list of arrays")
        dtypes, shapes = list[Any](), list[Any]()
        for column in columns:
            if column.ndim < 1 or len(column) != n:
                raise self._returned(_describe(column), f"{counted(n, 'row')}, as many as it was given")
            if column.dtype.hasobject:
                raise self._returned(_describe(column), "no Python objects (for a list of objects: pack, unpack)")
            dtypes.append(column.dtype)
            shapes.append(column.shape[1:])
        spec = Spec(_form(result), tuple(dtypes), tuple(shapes), len(columns))
        if self.spec is None:
            self.allocate(spec)
        elif spec != self.spec:
            raise self._returned(spec.words, f"{self.spec.words}, as for the rows before")
        return columns

    def compare(self, everyone: Sequence[Spec | None]) -> None:
        """Adopt the form of the results of all ranks, if this rank does not know it; BalanceError if it differs."""
        known = [(rank, spec) for rank, spec in enumerate(everyone) if spec]
        first, expected = known[0]
        for rank, spec in known:
            if spec.checksum != expected.checksum:
                raise self._returned(f"{spec.words} on rank {rank}", f"{expected.words}, as on rank {first}")
        if self.spec is None:
            self.allocate(expected)

    def _returned(self, found: str, expected: str) -> BalanceError:
        return BalanceError(returned(self._function, found, expected))

    def room(self, n: int, spec: Spec | None = None) -> list[Any]:
        """New columns for n results of a form, or the known one, in the memory order of the caller's columns."""
        spec = spec or self.spec
        assert spec is not None
        if spec.form == "objects":
            return [[None] * n]
        orders = itertools.chain(self._rows.orders[: self._rows.spec.n_home], itertools.repeat(()))
        columns = []
        for dtype, shape, like in zip(spec.dtypes, spec.shapes, orders, strict=False):
            columns.append(ordered((n, *shape), dtype, _fitted(like, 1 + len(shape))))
        return columns

    def parcel(self, block: Sequence[Any], ticks: float) -> Buffer:
        """Pack checked results into one buffer, with the ticks spent on them."""
        assert self.spec is not None
        header = Head(len(block[0]), RoundKind.DONE, self.checksum, ticks)
        kinds = _kinds(self.spec, self._rows.pack, self._rows.unpack)
        return packed(_HEADER.pack(*header), chunks_of_rows(kinds, block, slice(0, header.n)))

    def put(self, index: Rowset, block: Sequence[Any]) -> None:
        """Store results of some rows."""
        self._n_missing -= len(block[0])
        if self._rows.pack is not None:
            indices = range(self._rows.n)[index] if isinstance(index, slice) else index.tolist()
            for k, item in zip(indices, block[0], strict=True):
                self._columns[0][k] = item
            return
        for column, part in zip(self._columns, block, strict=True):
            column[index] = part

    def receive(self, index: Rowset, buffer: Buffer) -> None:
        """Store results that another rank has computed."""
        checksum = head(buffer).checksum
        if self.spec is None and self._known is not None and checksum == self._known.checksum:
            self.allocate(self._known)
        if self.spec is None:
            self._early.append((index, buffer))
            self.checksum = UNKNOWN
        elif checksum == self.checksum:
            self.put(index, columns_of(buffer, self.spec, self._rows.pack, self._rows.unpack))

    @property
    def value(self) -> Any:
        """The results in the function's form; in the form of the rows if no rank has any."""
        if self.spec is None:
            form, dtypes, shapes, n, *_ = self._rows.spec
            self.allocate(Spec(form, dtypes[:n], shapes[:n], n))
        assert self.spec is not None
        if self._n_missing:
            raise ProtocolError(f"{self._n_missing} of {self._rows.n} results are missing, as {self.spec.words}")
        return MAKERS[self.spec.form](self._columns)


@functools.lru_cache(64)  # in each call
def _fitted(order: Order, ndim: int) -> Order:
    """The order of results with `ndim` axes, for rows in this order; results have no axis from its last element on."""
    axes = tuple(max(axis, ~axis) for axis in order)
    if len(axes) == ndim:
        return () if axes == tuple(range(ndim)) else axes
    is_fortran = len(axes) > 1 and axes == tuple(reversed(range(len(axes))))
    return tuple(reversed(range(ndim))) if is_fortran else ()


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float | complex | str | bytes | np.generic | None)


def scalars_of(more: Sequence[Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the scalars among the arguments of the function, which must be equal on all ranks, as text by name."""
    named = [(f"more[{k}]", one) for k, one in enumerate(more)] + sorted(options.items())
    return {name: repr(one.item() if isinstance(one, np.generic) else one) for name, one in named if _is_scalar(one)}
