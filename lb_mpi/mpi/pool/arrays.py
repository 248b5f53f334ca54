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
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lb_mpi.mpi.pool.messages import EXACT, Reducers, dumps, reduce_array
from lb_mpi.pooling.copies import Copies

LOCK = threading.RLock()  # of all that the threads of this process submit to executors, and of what becomes of it
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


def reduce_future(_future: Future[Any]) -> Any:
    """Raise an error: no future can be sent."""
    raise TypeError("an argument is a Future: expected its result (pass future.result())")


REDUCERS: Reducers = {**EXACT, Future: reduce_future}  # of the arguments of a task


class SharedArrays:
    """The large arrays of one executor, on the root; `copies` tells which hosts have them (`lb_mpi.pooling.copies`).

    An array is sent once in a call, which `end_call` ends.  Then it is freed as soon as no task needs it.
    """

    def __init__(self, copies: Copies, host: int) -> None:
        self._copies, self._own = copies, host
        self._arrays: dict[int, tuple[NDArray[Any], str]] = {}  # of the call, by id, with its key; kept: no id comes twice
        self._places: dict[str, dict[int, str]] = {}  # paths by key and host

    def dumps(self, value: Any, function: Any, least_bytes: int | None) -> tuple[bytes, frozenset[str]]:
        """Pickle a function and its arguments without arrays of at least so many bytes; return it with their keys.

        `done` must be called with them when the task is done.
        """
        if least_bytes is None:
            return dumps(value, "function", function, REDUCERS), frozenset()
        keys = set[str]()

        def reduce(array: NDArray[Any]) -> Any:
            order = "C" if array.flags.c_contiguous else "F"
            if array.nbytes < max(1, least_bytes) or array.dtype.hasobject or not array.flags.forc:
                return reduce_array(array)
            with LOCK:
                _, key = self._arrays.setdefault(id(array), (array, secrets.token_hex(8)))
                if key not in self._copies:
                    self._places[key] = {self._own: store(key, array.reshape(-1, order="A").view(np.uint8))}
                    locate({key: self._places[key][self._own]})
                    self._copies.add(key)
                if key not in keys:
                    keys.add(key)
                    self._copies.need(key)
            return mapped, (key, array.dtype, array.shape, order)

        try:
            return dumps(value, "function", function, {**REDUCERS, np.ndarray: reduce}), frozenset(keys)
        except BaseException:
            self.done(keys)
            raise

    def done(self, keys: Iterable[str]) -> None:
        """Note that a task is done."""
        with LOCK:
            self._copies.done(keys)

    def end_call(self) -> None:
        """Note the end of a call: the next one may change its arrays."""
        with LOCK:
            self._copies.end_call(key for _, key in self._arrays.values())
            self._arrays.clear()

    def put(self, key: str, host: int, path: str) -> None:
        """Note the path of an array on another host, unless the array has been freed meanwhile."""
        if key in self._places:
            self._places[key][host] = path

    def paths(self, keys: Iterable[str], host: int) -> dict[str, str]:
        """Return the paths of arrays on a host."""
        return {key: self._places[key][host] for key in keys}

    def read(self, key: str) -> bytes:
        """Return the bytes of an array."""
        with open(self._places[key][self._own], "rb") as file:
            return file.read()

    def forget(self, keys: Iterable[str]) -> None:
        """Free these in this process."""
        for key in keys:
            del self._places[key]
        forget(keys)

    def close(self) -> None:
        """Free all in this process."""
        self._arrays.clear()
        self.forget([*self._places])
