"""The file of finished tasks (see `lb_mpi.pooling.checkpoint`): read when a map begins, and written before results count."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import warnings
from pathlib import Path
from typing import Any

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.mpi.common.recorder import mark_save
from lb_mpi.pooling import checkpoint


class TaskLog:
    """The log at `path` of a function and its tasks: `done` are the results that it has, by task number.

    ValueError for what is no log, or one of another function or other tasks; OSError, also while another run writes to it.
    What is torn or flipped is dropped, with a UserWarning that tells how much.
    """

    def __init__(self, path: Any, digest: bytes, n: int) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
            raise TypeError(f"checkpoint = {show(path)}: expected the name of a file")
        if Path(name).exists() and not Path(name).is_file():
            raise ValueError(f"checkpoint = {show(path)}: expected a file")
        self._name = os.path.abspath(name)  # the working directory may change
        self._file = open(name, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)
        self._told = False  # that it is no longer there
        try:
            self.done = self._begin(digest, n)
            self._n_written = len(self.done)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, digest: bytes, n: int) -> dict[int, Any]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{self._name}: another run writes to this checkpoint") from None
        self._file.seek(0)
        try:
            read = checkpoint.read(self._file.read(), digest, n)
        except ValueError as error:
            raise ValueError(f"checkpoint {self._name}: {error}") from None
        if read.dropped:
            warnings.warn(f"checkpoint {self._name}: dropped {read.dropped}", stacklevel=2)
            self._file.truncate(read.n_good)
        if not read.n_good:
            self._write(checkpoint.header(digest, n))
        return read.done

    def write(self, numbers: list[int], values: list[Any]) -> None:
        """Results of some tasks: on disk when this returns; TypeError for one of a type that a log can't keep.

        OSError, naming the file, when they can't be written: the log is then as it was before.
        """
        began = time.perf_counter()
        self._write(checkpoint.record(numbers, values))
        self._check_name()
        self._n_written += len(numbers)
        signs.saved(self._n_written)
        mark_save(began, self._n_written)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)  # what follows a torn record can't be read
            raise OSError(error.errno, error.strerror, self._name) from None

    def _check_name(self) -> None:
        """Warn once when the file was removed or replaced: the results go on, but another run won't find them."""
        try:
            there = os.path.samestat(os.stat(self._name), os.fstat(self._file.fileno()))
        except OSError:
            there = False
        if not there and not self._told:
            self._told = True
            warnings.warn(f"checkpoint {self._name}: removed while it is in use; a restart will begin anew", stacklevel=2)
