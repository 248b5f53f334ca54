"""The folder of saves: whenever a process or host dies, the newest committed save is complete.

    FOLDER/save-00000012/NAME      part files, written by any rank
    FOLDER/save-00000012/manifest  makes it a save; a directory without one is ignored
    FOLDER/lock                    held by the run that saves

    folder = Folder(path, "rows")
    folder.lock()                                                      rank 0
    folder.begin(12)                                                   rank 0: removes the remains of an earlier attempt
    part = folder.write(12, "heat-0003.npy", [header, rows])           any rank, after that: on disk when it returns
    folder.commit(12, {"arrays": ["heat"]}, parts)                     rank 0, after all: then removes older saves
    folder.newest(folder.saves(), lambda saved: folder.read(saved, "heat-0003.npy"))

The law, tested with a disk that fails at any operation and loses all unsynced data:

1. Before the manifest gets its name, all parts and their names are on disk: no manifest exists without them.
2. Removing a save removes its manifest first, and syncs that before a part is removed.
3. A save is removed only when two newer ones are committed, or when it is known to be damaged.

Against later disk errors, the manifest is a frame with its CRC, and contains length and CRC of each part.  It is
MessagePack after a frame of magic and format version: nothing is unpickled.

`Disk` has the few operations of a save, so that tests can replace it by a disk that fails at any of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgpack

from lb_mpi.checks import integer, path_text
from lb_mpi.errors import SaveError
from lb_mpi.files import frame, is_at, lock, naming, read_frame, sync_dir, unlock

CHUNK_BYTES = 1 << 20  # read at once


class Disk:
    """The real disk.  All methods raise OSError with the path."""

    def make_dir(self, path: Path) -> None:
        """Make a directory and its parents, synced when this returns; nothing if it exists."""
        if not path.is_dir():
            self.make_dir(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_dir(path.parent)

    def names(self, path: Path, *, own: bool = False) -> list[str]:
        """List the names in a directory, sorted; empty if there is none, or a file of that name.

        `own`: `make_dir` has made the directory.  Then a link in its place is not followed: it is not ours to empty.
        """
        if own and path.is_symlink():
            return []
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, path: Path, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a new file, synced when this returns; FileExistsError if there is one."""
        with naming(path), open(path, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def chunks(self, path: Path) -> Iterator[bytes]:
        """Read a file piece by piece."""
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def rename(self, old: Path, new: Path) -> None:
        """Rename atomically, replacing an existing file."""
        os.replace(old, new)

    def sync_dir(self, path: Path) -> None:
        """Force the names in a directory to the disk."""
        sync_dir(path)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def lock(self, path: Path) -> int:
        """Lock a file, creating it if needed; BlockingIOError if another process holds the lock, OSError for a link.

        The lock is held until the returned descriptor is passed to `unlock`, or the process ends.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            lock(file, path)
        except BaseException:
            os.close(file)
            raise
        return file

    def is_at(self, path: Path, locked: int) -> bool:
        """Return whether the locked file is still at this path, neither removed nor replaced."""
        return is_at(path, locked)

    def unlock(self, locked: int) -> None:
        """Release the lock."""
        unlock(locked)
        os.close(locked)


# --- folder -----------------------------------------------------------------------------------------------------------


T = TypeVar("T")

MAGIC, VERSION = b"lbsave", 2
MANIFEST, DRAFT, LOCK = "manifest", "manifest.new", "lock"
KEPT = 2  # committed saves
MOST = 10**15  # steps
_START = struct.Struct("<6sH")  # magic, version
_SAVE = re.compile(r"save-([0-9]{8,16})")


class PartFile(NamedTuple):
    """A file of a save, as it was written."""

    name: str
    n_bytes: int
    crc: int  # CRC-32 of the content


class Saved(NamedTuple):
    """A committed save."""

    number: int  # of the step
    meta: dict[str, Any]  # as given by the caller
    parts: dict[str, PartFile]  # by name


class Saves(NamedTuple):
    """The saves in a folder."""

    whole: list[Saved]  # with a valid manifest, newest first
    damaged: list[str]  # messages about invalid manifests
    incomplete: list[str]  # about newer directories without a manifest


def check_path(name: str, value: object) -> Path:
    """Return the path of a folder of saves, which need not exist; TypeError or ValueError for anything else."""
    path = path_text(name, value, "folder")
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"{name} = {path}: expected a folder")
    return Path(path)


class Folder:
    """The saves of one kind ("rows", "search") in the folder `path`, which is made when needed."""

    def __init__(self, path: str | Path, kind: str, disk: Disk | None = None) -> None:
        self.path, self.kind = Path(path), kind
        self._disk = disk or Disk()
        self._lock: int | None = None
        self._distrusted: set[int] = set()

    def lock(self) -> None:
        """Keep other runs from saving here until `close` or the end of the process; OSError if another one does so.

        A lock on a folder that has since been removed or replaced is given up for a new one.
        """
        if self._lock is not None and not self._disk.is_at(self.path / LOCK, self._lock):
            self.close()
        if self._lock is None:
            self._disk.make_dir(self.path)
            try:
                self._lock = self._disk.lock(self.path / LOCK)
            except BlockingIOError:
                raise OSError(f"another run saves to {self.path}") from None

    @property
    def locked(self) -> bool:
        """Return whether this process keeps other runs from saving here."""
        return self._lock is not None

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._disk.unlock(self._lock)
            self._lock = None

    def begin(self, number: int) -> None:
        """Make an empty directory for a save; ValueError unless its number is above all committed ones."""
        integer("step", number, 0, MOST)
        if self.locked:
            self.lock()
        newest = max((saved.number for saved in self._trusted()), default=-1)
        if number <= newest:
            raise ValueError(f"step = {number}: expected more than {newest}, which is saved in {self.path} already")
        if self._path_of(number).name in self._disk.names(self.path):
            self._remove(number)
        self._distrusted.discard(number)
        self._disk.make_dir(self._path_of(number))

    def write(self, number: int, name: str, chunks: Iterable[bytes | memoryview]) -> PartFile:
        """Write a part: on disk when this returns."""
        n_bytes = crc = 0

        def measured() -> Iterator[bytes | memoryview]:
            nonlocal n_bytes, crc
            for chunk in chunks:
                n_bytes, crc = n_bytes + memoryview(chunk).nbytes, zlib.crc32(chunk, crc)
                yield chunk

        self._disk.write(self._path_of(number) / name, measured())
        return PartFile(name, n_bytes, crc)

    def commit(self, number: int, meta: Mapping[str, Any], parts: Sequence[PartFile]) -> None:
        """Commit a save with these parts; then remove all but the last two.  After an OSError, it is no save.

        `meta` consists of None, bool, int, float, str, bytes, and lists and dicts of these.
        """
        path = self._path_of(number)
        packed = msgpack.packb([self.kind, number, meta, [list(part) for part in parts]], use_bin_type=True)
        kept = {number, *(saved.number for saved in self._trusted()[: KEPT - 1])}
        others = set(self._numbers()) - kept
        self._disk.write(path / DRAFT, [frame(_START.pack(MAGIC, VERSION)) + frame(packed)])
        self._disk.sync_dir(path)
        self._disk.rename(path / DRAFT, path / MANIFEST)
        try:
            self._disk.sync_dir(path)
        except OSError:  # the machine's death may leave no manifest, so that the save cannot count
            with contextlib.suppress(OSError):
                self._disk.remove(path / MANIFEST)
            raise
        for other in others:
            with contextlib.suppress(OSError):  # this save is committed; the next commit tries again
                self._remove(other)

    def discard(self, number: int) -> None:
        """Remove the parts of a save that will not be committed, as far as possible."""
        with contextlib.suppress(OSError):
            if MANIFEST not in self._disk.names(self._path_of(number), own=True):
                self._remove(number)

    def saves(self) -> Saves:
        """Read the manifests.  ValueError for a save of another kind, or of another version of the format.

        A newer directory with parts and no manifest is a save that was not completed, or whose manifest is lost.
        """
        whole, damaged, incomplete = [], [], []
        for number in self._numbers():
            names = self._disk.names(self._path_of(number), own=True)
            if MANIFEST in names:
                try:
                    whole.append(self._manifest(number))
                except SaveError as error:
                    damaged.append(str(error))
            elif names and not whole:
                incomplete.append(f"{self._path_of(number)}: incomplete, without a manifest")
        return Saves(whole, damaged, incomplete)

    def newest(self, saves: Saves, read: Callable[[Saved], T]) -> tuple[T | None, list[str]]:
        """Return the result of `read` for the newest save that it can read, and messages about newer ones.

        `read` raises SaveError for a damaged save, which is then ignored, and removed at the next commit.  Returns None
        if there is no save; SaveError if all are damaged.
        """
        wrong = list(saves.damaged)
        for saved in saves.whole:
            try:
                return read(saved), [*saves.incomplete, *wrong]
            except SaveError as error:
                wrong.append(str(error))
                self._distrusted.add(saved.number)
        if wrong:
            raise SaveError(f"no save in {self.path} can be read: {'; '.join(wrong)}")
        return None, []

    def read(self, saved: Saved, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Read bytes begin..end-1 of a part (default: all), after checking length and CRC of the whole part.

        SaveError if they differ, or the part is missing: an earlier save may be intact.
        """
        part, path = saved.parts[name], self._path_of(saved.number) / name
        end = part.n_bytes if end is None else end
        kept, at, crc = [], 0, 0
        try:
            for chunk in self._disk.chunks(path):
                kept.append(chunk[max(begin - at, 0) : max(end - at, 0)])
                at, crc = at + len(chunk), zlib.crc32(chunk, crc)
        except OSError as error:
            raise SaveError(f"{path}: can't be read ({error.strerror or error})") from None
        if at != part.n_bytes:
            raise SaveError(f"{path}: {at:,} bytes, expected {part.n_bytes:,}: truncated")
        if crc != part.crc:
            raise SaveError(f"{path}: corrupt (CRC mismatch)")
        return b"".join(kept)

    def _manifest(self, number: int) -> Saved:
        """Read a manifest; SaveError if it is damaged."""
        path = self._path_of(number) / MANIFEST
        try:
            data = b"".join(self._disk.chunks(path))
        except OSError as error:
            raise SaveError(f"{path}: can't be read ({error.strerror or error})") from None
        view = memoryview(data)
        start, at = read_frame(view, 0)
        if start is None or len(start) != _START.size or start[: len(MAGIC)] != MAGIC:
            raise SaveError(f"{path}: not a manifest of a save, or corrupt")
        if (version := _START.unpack(start)[1]) != VERSION:
            raise ValueError(f"{path} has version {version} of the format: expected {VERSION} (choose another folder)")
        payload, end = read_frame(view, at)
        if payload is None or end != len(view):
            raise SaveError(f"{path}: truncated or corrupt")
        try:
            kind, found, meta, parts = msgpack.unpackb(payload, raw=False, strict_map_key=False)
            by_name = {name: PartFile(name, int(n_bytes), int(crc)) for name, n_bytes, crc in parts}
        except Exception as error:  # a matching CRC, but not from `commit`: its content can be anything
            raise SaveError(f"{path}: not the manifest of a save ({error})") from None
        if kind != self.kind:
            raise ValueError(f"{path} is a save of {kind}: expected a save of {self.kind} (choose another folder)")
        if found != number:
            raise SaveError(f"{path}: belongs to save {found}")
        return Saved(number, meta, by_name)

    def _trusted(self) -> list[Saved]:
        return [saved for saved in self.saves().whole if saved.number not in self._distrusted]

    def _numbers(self) -> list[int]:
        """The numbers of all saves, committed or not; the newest first."""
        found = (_SAVE.fullmatch(name) for name in self._disk.names(self.path))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def _path_of(self, number: int) -> Path:
        return self.path / f"save-{number:08d}"

    def _remove(self, number: int) -> None:
        path = self._path_of(number)
        names = self._disk.names(path, own=True)
        if MANIFEST in names:
            self._disk.remove(path / MANIFEST)
        self._disk.sync_dir(path)  # also if it was removed after an error
        for name in names:
            if name != MANIFEST:
                self._disk.remove(path / name)
        self._disk.remove_dir(path)
