"""The file of finished tasks (see `lb_mpi.pooling.log`): read when a map begins, and written before results count."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.mpi.items import Items, encode
from lb_mpi.mpi.recorder import mark_save
from lb_mpi.pooling import log


class TaskLog:
    """The log at `path` of a function and its tasks: `done` are the results that it has, by task number.

    ValueError for what is no log, or one of another function or other tasks; OSError, also while another run writes to it.
    What is torn or flipped is dropped, with a UserWarning that tells how much.
    """

    def __init__(self, path: Any, digest: bytes, n: int) -> None:
        try:
            name = os.fspath(path)
        except TypeError:
            raise TypeError(f"log = {show(path)}: expected the name of a file") from None
        if Path(name).exists() and not Path(name).is_file():
            raise ValueError(f"log = {show(path)}: expected a file")
        self._file = open(name, "a+b")  # noqa: SIM115  (closed by `close`)
        try:
            self.done = self._begin(name, digest, n)
            self._n_written = len(self.done)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, name: str, digest: bytes, n: int) -> dict[int, Any]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{name}: another run writes to this log") from None
        self._file.seek(0)
        try:
            read = log.read(self._file.read(), digest, n)
        except ValueError as error:
            raise ValueError(f"log {name}: {error}") from None
        if read.dropped:
            warnings.warn(f"log {name}: dropped {read.dropped}", stacklevel=2)
            self._file.truncate(read.n_good)
        if not read.n_good:
            self._write(log.header(digest, n))
        return read.done

    def write(self, numbers: list[int], values: list[Any]) -> None:
        """Results of some tasks: on disk when this returns; TypeError for one of a type that a log can't keep."""
        began = time.perf_counter()
        self._write(log.record(numbers, values))
        self._n_written += len(numbers)
        signs.saved(self._n_written)
        mark_save(began, self._n_written)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())


def digest(function: Callable[..., Any], items: Items) -> bytes:
    """Tell a function and its items from others: by its name, or what pickle makes of it, and the items' bytes.

    One that can't be pickled (a lambda, a function in a function) is told by its code, its defaults and what it encloses;
    TypeError where that can't be pickled.  What is changed in the body of a function with a name is not noticed: one may
    want to mend it and go on.
    """
    found = hashlib.blake2b(digest_size=16)
    try:
        found.update(pickle.dumps(function, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        if not isinstance(function, FunctionType):
            raise TypeError(f"function = {show(function)}: expected, one to be pickled for a log ({error})") from error
        found.update(_told(function))
    for part in encode(items, np.arange(items.n, dtype=np.int64), 1):
        found.update(part)
    return found.digest()


def _told(function: FunctionType) -> bytes:
    """What a function without a name does, as bytes."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [function.__module__, function.__qualname__, function.__defaults__, function.__kwdefaults__, cells]
    try:
        return pickle.dumps(parts, pickle.HIGHEST_PROTOCOL) + _code(function.__code__)
    except Exception as error:
        why = f"what it encloses can't be pickled: {error}"
        raise TypeError(f"function = {show(function)}: expected one that a log can tell from others ({why})") from error


def _code(code: CodeType) -> bytes:
    consts = [_code(const) if isinstance(const, CodeType) else repr(const).encode() for const in code.co_consts]
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *consts])
