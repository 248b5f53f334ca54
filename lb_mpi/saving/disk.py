"""The disk, as saves see it: the few operations of a save, so that tests can have a disk that dies at any of them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

CHUNK_BYTES = 1 << 20  # read at once


class File:
    """A file that is being written; what is not synced may be lost, or be there in part."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115  (closed at the end of the `with` block)
        self._path = path

    def write(self, data: bytes | memoryview) -> None:
        """Write at the end."""
        with _naming(self._path):
            self._file.write(data)

    def sync(self) -> None:
        """Force to the disk what was written."""
        with _naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _naming(self._path):
            self._file.close()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What fails when a file is open doesn't say which."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class Disk:
    """The real disk.  OSError from all, naming the path."""

    def make_dir(self, path: Path) -> None:
        """Make a directory and those above it, on the disk when this returns; nothing if it is there."""
        if not path.is_dir():
            self.make_dir(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_dir(path.parent)

    def names(self, path: Path, *, own: bool = False) -> list[str]:
        """List what lies in a directory, sorted; nothing if there is none, or a file of that name.

        `own`: it's one that `make_dir` has made.  A link in its place isn't: others have put it there, to be emptied.
        """
        if own and path.is_symlink():
            return []
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: Path) -> File:
        """Open a new file for writing; FileExistsError if there is one."""
        return File(path)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """Read a file, piece by piece."""
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def rename(self, old: Path, new: Path) -> None:
        """Rename at once, in place of what is there."""
        os.replace(old, new)

    def sync_dir(self, path: Path) -> None:
        """Force to the disk which names the directory has."""
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with _naming(path):
                os.fsync(opened)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that can't: there, names are written at once
                raise
        finally:
            os.close(opened)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def lock(self, path: Path) -> int:
        """Lock a file, which is made if there is none; BlockingIOError if another process has it, OSError for a link.

        It is locked until what is returned is given to `unlock`, or the process ends.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(file)
            raise
        return file

    def unlock(self, locked: int) -> None:
        """Let others lock the file."""
        os.close(locked)
