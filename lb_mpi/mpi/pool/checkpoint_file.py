"""The file of a map's checkpoint."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lb_mpi import checks, signs
from lb_mpi.checks import show
from lb_mpi.files import is_at, lock, naming, sync_dir, unlock, warn
from lb_mpi.pooling import checkpoint


def read_checkpoint(path: str | os.PathLike[str]) -> dict[int, Any]:
    """Return the results in a map's checkpoint, by task number, in the order in which they were stored; not collective.

    A map may be writing to the file: a record that is not complete does not count.  OSError if the file can't be read,
    ValueError if it is no checkpoint.
    """
    name = _name("path", path)
    try:
        return checkpoint.read(Path(name).read_bytes(), None, 0).done
    except ValueError as error:
        raise ValueError(f"checkpoint {os.path.abspath(name)}: {error}") from None


def _name(argument: str, value: object) -> str:
    """Return the name of a file, which need not exist; TypeError or ValueError for anything else, such as a device."""
    name = checks.path_text(argument, value, "file")
    if os.path.exists(name) and not os.path.isfile(name):
        raise ValueError(f"{argument} = {show(value)}: expected a file")
    return name


class CheckpointFile:
    """The checkpoint (see `lb_mpi.pooling.checkpoint`) at `path`: read when a map begins, written before results count.

    `done` are its results, by task number.  ValueError for other files, functions or items; OSError, also if another run
    writes to it.  Truncated or corrupt parts are dropped with a UserWarning.  If the file is removed or replaced, the first
    write after that issues a RuntimeWarning, and nothing more is written.
    """

    def __init__(self, path: Any, function: Callable[..., Any], items: Any, *, star: bool, key: str | None) -> None:
        digest = checkpoint.digest(function, items, star=star, key=key)
        self._file = self._open(path)
        try:
            try:
                read = checkpoint.read(self._file.read(), digest, len(items))
            except ValueError as error:
                raise ValueError(f"checkpoint {self._name}: {error}") from None
            if read.dropped:
                warnings.warn(f"checkpoint {self._name}: dropped {read.dropped}", stacklevel=2)
                self._file.truncate(read.n_good)
            self._write(read.start)
            if read.start:
                sync_dir(os.path.dirname(self._name))  # the machine's death may leave no file of this name
        except BaseException:
            self.close()
            raise
        self.done = read.done
        self._n_written = len(self.done)

    def _open(self, path: Any) -> io.FileIO:
        """Open the file, which no other run may write to meanwhile."""
        name = _name("checkpoint", path)
        self._name = os.path.abspath(name)  # the working directory may change
        self._there = True  # the file has not been removed
        try:
            file = open(name, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)
        except OSError as error:
            raise OSError(error.errno, f"checkpoint: {error.strerror}", name) from None
        try:
            lock(file.fileno(), self._name)
        except BlockingIOError:
            file.close()
            raise OSError(f"{self._name}: another run writes to this checkpoint") from None
        file.seek(0)
        return file

    def write(self, tasks: list[int], values: list[Any]) -> None:
        """Write results to disk; TypeError for an unsupported type; OSError, with the file unchanged, if that fails."""
        data = checkpoint.record(tasks, values)
        if not self._there:
            return
        if not is_at(self._name, self._file.fileno()):
            self._there = False
            warn(f"checkpoint {self._name}: removed or replaced during the map: its results are not kept for another run")
            return
        self._write(data)
        self._n_written += len(tasks)
        signs.saved(self._n_written)

    def close(self) -> None:
        """Close the file."""
        if not self._file.closed:
            unlock(self._file.fileno())
            self._file.close()

    def _write(self, data: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        left = memoryview(data)
        with naming(self._name):
            try:
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(end)  # data after a truncated record can't be read
                raise
