"""Values of vertices: arrays, sparse rows and objects, which move with their vertices (`lb_mpi.columns`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from lb_mpi.checks import function
from lb_mpi.columns import (
    Chunk,
    Column,
    Index,
    Ints,
    Orders,
    Pack,
    Reader,
    SparseColumn,
    Unpack,
    agreed,
    check_n_rows,
    chunks_of_rows,
    column_of,
    orders_of,
    read_rows,
)

Rows = tuple[tuple[Any, ...], Orders]  # of all values, from one sender, with its orders


class Values:
    """The caller's values of n vertices; ValueError or TypeError if they are invalid."""

    def __init__(self, values: Sequence[Any], n: int, *, pack: Pack | None = None, unpack: Unpack | None = None) -> None:
        if (pack is None) != (unpack is None):
            raise TypeError("pack and unpack: expected both or neither")
        if pack is not None:
            function("pack", pack)
            function("unpack", unpack)
        self.given, self._n = tuple(values), n
        self._columns, forms = list[Column](), list[str]()
        for k, value in enumerate(values):
            name, meant = f"values[{k}]", "; did you mean (h,) = plan.rebalance(h)?" if isinstance(value, tuple) else ""
            column = column_of(name, value, pack, unpack, f", a CSR matrix or a list of objects with pack and unpack{meant}")
            n_rows = value.shape[0] if isinstance(column, SparseColumn) else len(value)
            check_n_rows(name, n_rows, n, "for the owned vertices (without ghosts)")
            self._columns.append(column)
            forms.append(column.words)
        self.words = ", ".join(forms) or "none"  # the forms of the values

    @functools.cached_property
    def _orders(self) -> Orders:
        """The orders in memory of the values."""
        return orders_of(self.given)

    def chunks(self, index: Index) -> list[Chunk]:
        """Return the rows of some vertices."""
        return chunks_of_rows(self._columns, self.given, index, self._orders)

    def read(self, reader: Reader, n: int) -> Rows:
        """Return the rows of n vertices of all values."""
        return read_rows(self._columns, reader, n)

    def join(self, kept: Ints, arrived: Sequence[Rows], positions: Ints) -> tuple[Any, ...]:
        """Return new values: the kept rows, then those that have arrived, at these positions."""
        # A rank keeps a vertex, so those that send any have two or more, and know their orders.
        orders = agreed([(self._n, self._orders), *((2, theirs) for _, theirs in arrived)], 0)
        made = []
        for k, (column, value, order) in enumerate(zip(self._columns, self.given, orders, strict=True)):
            whole = column.join([column.copy(value, kept, order), *(rows[k] for rows, _ in arrived)], order)
            made.append(column.copy(whole, positions, order))
        return tuple(made)
