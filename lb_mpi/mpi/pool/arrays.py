"""Large arrays of an executor's tasks, sent once to each host.

The root copies an array into an anonymous file in memory when it first pickles it.  Another host gets it from the root once:
the rank that receives it keeps such a file.  All ranks of a host map the file of one of them, read-only, by its path in
/proc.  No file outlives its process.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lb_mpi.mpi.pool.messages import dumps

_kept: dict[str, int] = {}  # descriptors of the files that this process keeps, by key
_places: dict[str, str] = {}  # their paths on this host, by key
_mapped: dict[str, NDArray[Any]] = {}  # by key


def store(key: str, data: Any) -> str:
    """Keep an array's bytes for the ranks of this host; return the path."""
    file = _kept[key] = os.memfd_create("lb_mpi")
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    return f"/proc/{os.getpid()}/fd/{file}"


def locate(places: Mapping[str, str]) -> None:
    """Note the paths of arrays on this host."""
    _places.update(places)


def forget(keys: Iterable[str]) -> None:
    """Free arrays."""
    for key in keys:
        _places.pop(key, None)
        _mapped.pop(key, None)
        if key in _kept:
            os.close(_kept.pop(key))


def mapped(key: str, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    """Return an array, read-only; pickles of tasks call it."""
    if key not in _mapped:
        with open(_places[key], "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _mapped[key] = np.ndarray(shape, dtype, memory, order=order)
    return _mapped[key]


class SharedArrays:
    """The large arrays of one executor, on the root, whose host is `host`."""

    def __init__(self, host: int) -> None:
        self._arrays: dict[int, tuple[NDArray[Any], str]] = {}  # by id, with its key; kept, so that no id is used again
        self._own = host
        self.places: dict[str, dict[int, str]] = {}  # by key and host; "" while on its way
        self.holders: set[int] = set()  # ranks that may have some

    def dumps(self, value: Any, function: Any, least_bytes: int | None) -> tuple[bytes, set[str]]:
        """Pickle a function and its arguments without arrays of at least so many bytes; return it with their keys."""
        keys = set[str]()
        if least_bytes is None:
            return dumps(value, "function", function), keys

        def reduce(array: NDArray[Any]) -> Any:
            order = "C" if array.flags.c_contiguous else "F"
            if array.nbytes < max(1, least_bytes) or array.dtype.hasobject or not array.flags.forc:
                return array.__reduce_ex__(5)
            _, key = self._arrays.setdefault(id(array), (array, secrets.token_hex(8)))
            if key not in self.places:
                self.places[key] = {self._own: store(key, array.reshape(-1, order="A").view(np.uint8))}
                locate({key: self.places[key][self._own]})
            keys.add(key)
            return mapped, (key, array.dtype, array.shape, order)

        return dumps(value, "function", function, {np.ndarray: reduce}), keys

    def missing(self, keys: Iterable[str], host: int) -> list[str]:
        """Return the keys of those that this host has not yet received."""
        return [key for key in keys if not self.places[key].get(host)]

    def read(self, key: str) -> bytes:
        """Return the bytes of an array."""
        with open(self.places[key][self._own], "rb") as file:
            return file.read()

    def close(self) -> None:
        """Free them in this process."""
        forget(self.places)
        self._arrays.clear()
