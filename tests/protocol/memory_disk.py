"""A disk in memory that dies at any operation, and then forgets or tears what wasn't forced to it.

What a machine's death leaves of it: of a file, what was synced, and of the rest any beginning; of a directory, the names
that were synced, and of the changes since then any of them.  The death of a process alone leaves everything.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


class Died(BaseException):
    """The machine has died."""


class _Inode:
    """A file."""

    def __init__(self, data: bytes = b"", synced: int = 0) -> None:
        self.data, self.synced = data, synced


class _Directory:
    """What it is called within: now, on the disk, and the changes between the two, oldest first."""

    def __init__(self, names: dict[str, object] | None = None) -> None:
        self.now, self.durable = dict(names or {}), dict(names or {})
        self.changes: list[Callable[[dict[str, object]], object]] = []

    def change(self, change: Callable[[dict[str, object]], object]) -> None:
        change(self.now)
        self.changes.append(change)


class MemoryDisk:
    """See `lb_mpi.saving.folder.Disk`; it dies before operation number `dies_at`, and those in `failing` are errors."""

    def __init__(self, dies_at: float = float("inf"), failing: range = range(0)) -> None:
        self.root = _Directory()
        self.dies_at, self.failing, self.steps = dies_at, failing, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.dies_at:
            raise Died
        if self.steps in self.failing:
            raise OSError(errno.EIO, "Input/output error")

    def _at(self, path: Path) -> object:
        node: object = self.root
        for name in path.parts[1:]:
            if not isinstance(node, _Directory) or name not in node.now:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            node = node.now[name]
        return node

    def make_dir(self, path: Path) -> None:
        self.step()
        for parent in reversed([path, *path.parents][:-1]):
            above = self._at(parent.parent)
            if parent.name not in above.now:
                made = {parent.name: _Directory()}
                above.change(lambda names, made=made: names.update(made))
                self.sync_dir(parent.parent)

    def names(self, path: Path, *, own: bool = False) -> list[str]:
        try:
            return sorted(self._at(path).now)
        except FileNotFoundError:
            return []

    def write(self, path: Path, chunks: Iterable[bytes], synced: bool = True) -> None:
        self.step()
        inode, directory = _Inode(), self._at(path.parent)
        if path.name in directory.now:
            raise FileExistsError(17, "File exists", str(path))
        directory.change(lambda names: names.update({path.name: inode}))
        for data in map(bytes, chunks):
            inode.data += data[: len(data) // 2]
            self.step()
            inode.data += data[len(data) // 2 :]
        self.step()
        inode.synced = len(inode.data) if synced else 0

    def chunks(self, path: Path) -> Iterator[bytes]:
        self.step()
        data = self._at(path).data
        yield data[:5]
        yield data[5:]

    def rename(self, old: Path, new: Path) -> None:
        self.step()
        assert old.parent == new.parent
        inode = self._at(old)

        def change(names: dict[str, object]) -> None:
            names.pop(old.name, None)
            names[new.name] = inode

        self._at(old.parent).change(change)

    def sync_dir(self, path: Path) -> None:
        self.step()
        directory = self._at(path)
        directory.durable, directory.changes = dict(directory.now), []

    def remove(self, path: Path) -> None:
        self.step()
        self._at(path)
        self._at(path.parent).change(lambda names: names.pop(path.name, None))

    def remove_dir(self, path: Path) -> None:
        assert not self._at(path).now
        self.remove(path)

    def lock(self, path: Path) -> int:
        return 0

    def is_at(self, path: Path, locked: int) -> bool:
        return True

    def after_death(self, chance: random.Random, survives: float) -> MemoryDisk:
        """The disk of the machine that has died: of what wasn't synced, each thing is there with this probability."""

        def found(node: object) -> object:
            if isinstance(node, _Inode):
                rest = len(node.data) - node.synced
                length = node.synced + (rest if survives == 1.0 else chance.randint(0, rest) if survives else 0)
                return _Inode(node.data[:length], length)
            names = dict(node.durable)
            for change in node.changes:
                if chance.random() < survives:
                    change(names)
            return _Directory({name: found(one) for name, one in names.items()})

        other = MemoryDisk()
        other.root = found(self.root)
        return other

    def damage(self, path: Path, how: str, chance: random.Random) -> None:
        """Flip a bit of a file, tear it, or lose it."""
        inode, directory = self._at(path), self._at(path.parent)
        if how == "lose":
            del directory.now[path.name], directory.durable[path.name]
        elif how == "tear":
            inode.data = inode.data[: chance.randrange(len(inode.data))]
        else:
            at, bit = chance.randrange(len(inode.data)), chance.randrange(8)
            inode.data = inode.data[:at] + bytes([inode.data[at] ^ 1 << bit]) + inode.data[at + 1 :]
        inode.synced = len(inode.data)
