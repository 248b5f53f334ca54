"""Objects that every rank has: sent once, and then only their number."""

from __future__ import annotations

import pickle
from typing import Any

_shared: dict[tuple[int, int], Any] = {}  # by pool and number, on each rank


class Handle:
    """An object that `lb_mpi.Pool.share` has brought to all ranks: `handle.value`.  It travels as two numbers."""

    def __init__(self, pool: int, number: int) -> None:
        self._key = pool, number

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the object where it is."""
        return Handle, self._key

    @property
    def value(self) -> Any:
        """The object; LookupError when its pool was closed, or could not be unpickled on this rank."""
        if self._key not in _shared:
            raise LookupError("a shared object of a pool that was closed: expected an open one")
        value = _shared[self._key]
        if isinstance(value, _Broken):
            raise LookupError(f"a shared object can't be unpickled: {value.text}")
        return value


class _Broken:
    def __init__(self, text: str) -> None:
        self.text = text


def keep(pool: int, number: int, value: Any) -> Handle:
    """Keep an object on this rank."""
    _shared[pool, number] = value
    return Handle(pool, number)


def keep_pickled(pool: int, number: int, data: bytes | memoryview) -> Handle:
    """Keep an object that the root has sent."""
    try:
        return keep(pool, number, pickle.loads(data))
    except Exception as error:  # the user's classes may do anything when they are unpickled
        return keep(pool, number, _Broken(f"{type(error).__name__}: {error}"))


def forget(pool: int) -> None:
    """Let all objects of a pool go."""
    for key in [key for key in _shared if key[0] == pool]:
        del _shared[key]
