"""Large arrays of an executor's tasks, sent once to each host.

The root copies an array into an anonymous file in memory when it first pickles it.  Another host gets it from the root once:
the rank that receives it keeps such a file.  All ranks of a host map the file of one of them, read-only, by its path in
/proc.  No file outlives its process.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lb_mpi.mpi.pool.messages import IN_MEMORY_ORDER, dumps, reduce_array

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
    """The large arrays of one executor, on the root, whose host is `host`.

    An array is sent once in a call, which `end_call` ends.  Then it is freed as soon as no task needs it.
    """

    def __init__(self, host: int) -> None:
        self._own = host
        self._lock = threading.RLock()  # tasks are submitted in any thread
        self._arrays: dict[int, tuple[NDArray[Any], str]] = {}  # of the call, by id, with its key; kept: no id comes twice
        self._needed = Counter[str]()  # by key: tasks that are not done
        self._ended = set[str]()  # keys of calls that have ended
        self.places: dict[str, dict[int, str]] = {}  # by key and host; "" while on its way
        self._holders: dict[str, set[int]] = {}  # by key: ranks that may have it

    def dumps(self, value: Any, function: Any, least_bytes: int | None) -> tuple[bytes, set[str]]:
        """Pickle a function and its arguments without arrays of at least so many bytes; return it with their keys.

        `done` must be called with them when the task is done.
        """
        keys = set[str]()
        if least_bytes is None:
            return dumps(value, "function", function, IN_MEMORY_ORDER), keys

        def reduce(array: NDArray[Any]) -> Any:
            order = "C" if array.flags.c_contiguous else "F"
            if array.nbytes < max(1, least_bytes) or array.dtype.hasobject or not array.flags.forc:
                return reduce_array(array)
            with self._lock:
                _, key = self._arrays.setdefault(id(array), (array, secrets.token_hex(8)))
                if key not in self.places:
                    self.places[key] = {self._own: store(key, array.reshape(-1, order="A").view(np.uint8))}
                    locate({key: self.places[key][self._own]})
                if key not in keys:
                    keys.add(key)
                    self._needed[key] += 1
            return mapped, (key, array.dtype, array.shape, order)

        try:
            return dumps(value, "function", function, {np.ndarray: reduce}), keys
        except BaseException:
            self.done(keys)
            raise

    def done(self, keys: Iterable[str]) -> None:
        """Note that a task is done."""
        with self._lock:
            self._needed.subtract(keys)

    def end_call(self) -> None:
        """Note the end of a call: the next one may change its arrays."""
        with self._lock:
            self._ended.update(key for _, key in self._arrays.values())
            self._arrays.clear()

    def free(self, *, all_calls: bool = False) -> dict[int, list[str]]:
        """Free arrays that no task needs, of calls that have ended or of all, in this process.

        Return the keys of those that other ranks must free, by rank.
        """
        by_rank: dict[int, list[str]] = {}
        with self._lock:
            freed = [*self.places] if all_calls else [key for key in self._ended if not self._needed[key]]
            for key in freed:
                del self._needed[key], self.places[key]
                for rank in self._holders.pop(key, ()):
                    by_rank.setdefault(rank, []).append(key)
            self._ended.difference_update(freed)
        forget(freed)
        return by_rank

    def missing(self, keys: Iterable[str], host: int) -> list[str]:
        """Return the keys of those that this host has not yet received."""
        return [key for key in keys if not self.places[key].get(host)]

    def note(self, rank: int, keys: Set[str]) -> None:
        """Note that a rank gets some."""
        for key in keys:
            self._holders.setdefault(key, set()).add(rank)

    def read(self, key: str) -> bytes:
        """Return the bytes of an array."""
        with open(self.places[key][self._own], "rb") as file:
            return file.read()

    def close(self) -> None:
        """Free them in this process."""
        self._arrays.clear()
        self.free(all_calls=True)
