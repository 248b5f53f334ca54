"""The history of a Balancer or a plan: the records of the last calls, and totals of all.   (pure)"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

MOST_RECORDS = 10_000

T = TypeVar("T")
TableOf = Callable[[Iterable[Any], int], str]  # of calls, of which the first has this number


class History(Sequence[T], Generic[T]):
    """The records of the last 10,000 calls, oldest first; a slice is a history, too; prints as a table.

    The table numbers the calls from 1, the first one of all.  Calls that change nothing for the same reason share a line.

    Attributes: `n_calls`, the number of all calls; `n_acted`, of those that changed the distribution; `n_moved`, rows or
    vertices moved in all calls.
    """

    def __init__(self, table: TableOf, moved: str, records: Iterable[T] = (), first: int = 1) -> None:
        self._table, self._moved = table, moved
        self._records = deque[T](maxlen=MOST_RECORDS)
        self.n_calls, self.n_acted, self.n_moved = first - 1, 0, 0
        for one in records:
            self.append(one)

    def append(self, record: Any) -> None:
        """Add the record of a call."""
        self._records.append(record)
        self.n_calls += 1
        self.n_acted += record.acted
        self.n_moved += getattr(record, self._moved)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> History[T]: ...

    def __getitem__(self, index: int | slice) -> T | History[T]:
        """Return the record of a call, or the history of some consecutive ones."""
        if not isinstance(index, slice):
            return self._records[index]
        begin, end, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"history[::{step}]: expected consecutive calls")
        return History(self._table, self._moved, itertools.islice(self._records, begin, end), self._first + begin)

    def __len__(self) -> int:
        """Return the number of records kept."""
        return len(self._records)

    def __str__(self) -> str:
        """Lay out as a table."""
        return self._table(self._records, self._first)

    def __repr__(self) -> str:
        """Show the number of calls."""
        return f"<History: calls {self._first:,} to {self.n_calls:,}>"

    @property
    def _first(self) -> int:
        return self.n_calls - len(self) + 1
