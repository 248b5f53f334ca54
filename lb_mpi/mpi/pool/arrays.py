"""Large arrays of an executor's tasks, sent once to each host.

The root copies an array into an anonymous file in memory when it pickles it for the second time.  Another host gets it from
the root once: the rank that receives it keeps such a file.  All ranks of a host map the file of one of them, by its path in
/proc.  No file outlives its process.

Each task gets the array as it was when the task was submitted, and may change it: its pages are its own (copy on write).
The root finds an array by its identity, and compares it with the file: one that has changed is a new array.  It holds no
reference, so that the program may free or resize it.  Within a call of joblib, where nothing changes, arrays are read-only,
and are not compared; but tasks may write to a file that an argument maps, and open it themselves.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.errors import Error
from lb_mpi.mpi.pool.messages import EXACT, LARGE, Reducers, dumps, reduce_array
from lb_mpi.pooling.copies import Copies

LOCK = threading.RLock()  # of all that the threads of this process submit to executors, and of what becomes of it
_kept: dict[str, int] = {}  # descriptors of the files that this process keeps, by key
_paths: dict[str, str] = {}  # their paths on this host, by key
_mapped: dict[str, NDArray[Any]] = {}  # by key


def store(key: str, data: Any) -> str:
    """Keep an array's bytes for the ranks of this host; return the path."""
    file = _kept[key] = os.memfd_create(f"lb_mpi-{key}")
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    return f"/proc/{os.getpid()}/fd/{file}"


def locate(paths: Mapping[str, str]) -> None:
    """Note the paths of arrays on this host."""
    _paths.update(paths)


def _map(key: str, access: int) -> mmap.mmap:
    """Map the file of an array on this host; Error if this process does not see it."""
    path, why = _paths[key], None
    try:
        with open(path, "rb") as file:
            if f"lb_mpi-{key}" in os.readlink(f"/proc/self/fd/{file.fileno()}"):
                return mmap.mmap(file.fileno(), 0, access=access)
    except OSError as error:
        why = error
    raise Error(f"a large array is not in {path} on {platform.node()}: expected ranks that see each other in /proc") from why


def forget(keys: Iterable[str]) -> None:
    """Free arrays."""
    for key in keys:
        _paths.pop(key, None)
        _mapped.pop(key, None)
        if key in _kept:
            os.close(_kept.pop(key))


def attached(key: str, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, writeable: bool) -> NDArray[Any]:
    """Return an array of one task, which alone sees its changes; pickles of tasks call it."""
    array = np.ndarray(shape, dtype, _map(key, mmap.ACCESS_COPY), order=order)
    array.flags.writeable = writeable
    return array


def mapped(key: str, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    """Return an array, read-only; pickles of tasks call it."""
    if key not in _mapped:
        _mapped[key] = np.ndarray(shape, dtype, _map(key, mmap.ACCESS_READ), order=order)
    return _mapped[key]


def reopened(
    path: str, inode: int, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    """Return an array in a file that the program maps for writing; pickles of tasks call it.  Error without the file."""
    try:
        found = np.memmap(path, np.uint8, "r+")
        same = os.stat(path).st_ino == inode
    except (OSError, ValueError):
        same = False
    if not same:
        how = "expected a file system of all hosts, or the mode 'r'"
        raise Error(f"np.memmap of {path}, which can be written, is another or no file on {platform.node()}: {how}")
    return np.ndarray.__new__(np.memmap, shape, dtype, found, offset, strides)


def _written_file(array: NDArray[Any]) -> np.memmap[Any, Any] | None:
    """Return what maps the file in which an array lies, and which it may change; None: it is no such array."""
    owner: Any = array if isinstance(array, np.memmap) else array.base
    is_file = isinstance(owner, np.memmap) and owner.mode in ("r+", "w+") and owner.filename is not None
    return owner if is_file and array.flags.writeable and array.size and not array.dtype.hasobject else None


def _reduce_mapped(array: NDArray[Any], owner: Any) -> Any:
    start = np.frombuffer(owner._mmap, np.uint8).ctypes.data
    offset = array.ctypes.data - start + owner.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    path = os.fspath(owner.filename)
    return reopened, (path, os.stat(path).st_ino, array.dtype, offset, array.shape, array.strides)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1, order="A").view(np.uint8)


def _is_same(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    n = len(one) // 8 * 8  # by words: a comparison of all bytes needs five times as long, a digest four times
    return np.array_equal(one[:n].view(np.uint64), other[:n].view(np.uint64)) and np.array_equal(one[n:], other[n:])


def reduce_future(_future: Future[Any]) -> Any:
    """Raise an error: no future can be sent."""
    raise TypeError("an argument is a Future: expected its result (pass future.result())")


REDUCERS: Reducers = {**EXACT, Future: reduce_future}  # of the arguments of a task


KEPT = 64  # an array that so many submits have not had, of those with large arrays, is freed
SAMPLE = 64  # words of an array


class Sent(NamedTuple):
    """A large array of a task."""

    key: str  # empty: it was sent with its task
    sample: bytes  # of what it was
    at: int  # number of the last submit that had it


class SharedArrays:
    """The large arrays of one executor, on the root; `copies` tells which hosts have them (`lb_mpi.pooling.copies`).

    Within a call, which `end_call` ends, an array is sent once, and then freed as soon as no task needs it.  Arrays of other
    tasks are freed when they have changed, when further submits don't have them, and at `end`.
    """

    def __init__(self, copies: Copies, host: int) -> None:
        self._copies, self._own = copies, host
        self._arrays: dict[int, tuple[NDArray[Any], str]] = {}  # of the call, by id, with its key; kept: no id comes twice
        self._sent: dict[int, Sent] = {}  # of other tasks, by id: another array that has the same one later is compared, too
        self._n = 0  # submits
        self._paths: dict[str, dict[int, str]] = {}  # paths by key and host

    def dumps(self, value: Any, function: Any, least_bytes: int | None) -> tuple[bytes, frozenset[str]]:
        """Pickle a function and its arguments without large arrays that hosts have, or get once; return it with their keys.

        least_bytes : of a large array in a call whose arrays nobody changes; None: no such call.  `done` must be called with
        the keys when the task is done.
        """
        keys, large = set[str](), list[NDArray[Any]]()
        key_of, least = (self._key, LARGE) if least_bytes is None else (self._key_in_call, max(1, least_bytes))

        def reduce(array: NDArray[Any]) -> Any:
            if least_bytes is not None and (owner := _written_file(array)) is not None:
                return _reduce_mapped(array, owner)
            if type(array) is not np.ndarray and not array.flags.forc:
                array = np.array(array)
            if array.nbytes < least or array.dtype.hasobject or not array.flags.forc:
                return reduce_array(array)
            with LOCK:
                if least_bytes is None and not large:
                    self._end_old()
                large.append(array)  # which keeps its identity
                if not (key := key_of(array)):
                    return reduce_array(array)
                if key not in keys:
                    keys.add(key)
                    self._copies.need(key)
            made = key, array.dtype, array.shape, "C" if array.flags.c_contiguous else "F"
            return (attached, (*made, array.flags.writeable)) if least_bytes is None else (mapped, made)

        try:
            by_type: Reducers = {np.ndarray: reduce} if least_bytes is None else {np.ndarray: reduce, np.memmap: reduce}
            return dumps(value, "function", function, {**REDUCERS, **by_type}), frozenset(keys)
        except BaseException:
            self.done(keys)
            raise

    def _key_in_call(self, array: NDArray[Any]) -> str:
        _, key = self._arrays.setdefault(id(array), (array, secrets.token_hex(8)))
        if key not in self._copies:
            self._store(key, array)
        return key

    def _key(self, array: NDArray[Any]) -> str:
        """Return the key of an array; empty if it is to be sent with its task: the first time, and after each change."""
        found, key = _bytes_of(array), ""
        sample = found[:: max(1, len(found) // SAMPLE)].tobytes()
        sent = self._sent.pop(id(array), None)
        if sent is not None and sent.key in self._copies:
            if _is_same(found, _mapped[sent.key]):
                key = sent.key
            else:
                self._copies.end_call([sent.key])
        elif sent is not None and sent.sample == sample:
            self._store(key := secrets.token_hex(8), array)
            mapped(key, found.dtype, found.shape, "C")  # to compare with
        self._sent[id(array)] = Sent(key, sample, self._n)
        return key

    def _end_old(self) -> None:
        """Note a submit, and which arrays the last ones did not have."""
        self._n += 1
        while self._sent and self._sent[at := next(iter(self._sent))].at < self._n - KEPT:
            self._copies.end_call({self._sent.pop(at).key} - {""})

    def _store(self, key: str, array: NDArray[Any]) -> None:
        self._paths[key] = {self._own: store(key, _bytes_of(array))}
        locate({key: self._paths[key][self._own]})
        self._copies.add(key)

    def done(self, keys: Iterable[str]) -> None:
        """Note that a task is done."""
        with LOCK:
            self._copies.done(keys)

    def end_call(self) -> None:
        """Note the end of a call: the next one may change its arrays."""
        with LOCK:
            self._copies.end_call(key for _, key in self._arrays.values())
            self._arrays.clear()

    def end(self) -> None:
        """Note that no array is kept for further tasks."""
        with LOCK:
            self._copies.end_call({sent.key for sent in self._sent.values()} - {""})
            self._sent.clear()

    def put(self, key: str, host: int, path: str) -> None:
        """Note the path of an array on another host, unless the array has been freed meanwhile."""
        if key in self._paths:
            self._paths[key][host] = path

    def paths(self, keys: Iterable[str], host: int) -> dict[str, str]:
        """Return the paths of arrays on a host."""
        return {key: self._paths[key][host] for key in keys}

    def read(self, key: str) -> bytes:
        """Return the bytes of an array."""
        return _map(key, mmap.ACCESS_READ)[:]

    def forget(self, keys: Iterable[str]) -> None:
        """Free these in this process."""
        for key in keys:
            del self._paths[key]
        forget(keys)

    def close(self) -> None:
        """Free all in this process."""
        self._arrays.clear()
        self._sent.clear()
        self.forget([*self._paths])
