"""A disk in memory for saved searches, and the law of what is on it."""

import zlib
from collections import Counter
from collections.abc import Sequence

from lb_mpi.searching.saves import Receipt, unpack_parts
from tests.pile import children, saved_by, unpack


class Died(Exception):
    """All ranks are gone."""


class Disk:
    """What ranks have written, by save and rank, and which saves count."""

    def __init__(self) -> None:
        self.written: dict[tuple[int, int], bytes] = {}
        self.committed: dict[int, tuple[bytes, ...]] = {}
        self.room = 0  # the save that there is a directory for

    def key(self) -> tuple[object, ...]:
        return (tuple(sorted(self.written.items())), tuple(self.committed.items()), self.room)

    @property
    def newest(self) -> tuple[bytes, ...] | None:
        """The states to go on from."""
        return self.committed[max(self.committed)] if self.committed else None


class MemoryStore:
    """What one rank sees of the disk; `base` numbers of saves were used by earlier runs."""

    def __init__(self, disk: Disk, rank: int, *, size: int, base: int = 0, full: bool = False) -> None:
        self.disk, self.rank, self.size, self.base, self.full = disk, rank, size, base, full

    def open(self, number: int) -> bool:
        assert self.rank == 0
        if not self.full:
            self.disk.room = self.base + number
        return not self.full

    def write(self, number: int, state: bytes) -> tuple[int, int] | None:
        if self.full:
            return None
        assert self.disk.room == self.base + number, f"no room for save {self.base + number}"
        self.disk.written[(self.base + number, self.rank)] = state
        return len(state), zlib.crc32(state)

    def commit(self, number: int, receipts: Sequence[Receipt] | None) -> None:
        if self.full or receipts is None:
            return
        assert [receipt.rank for receipt in receipts] == list(range(self.size)), f"receipts of {receipts}"
        states = tuple(self.disk.written[(self.base + number, rank)] for rank in range(self.size))
        for receipt, state in zip(receipts, states, strict=True):
            assert (receipt.n_bytes, receipt.crc) == (len(state), zlib.crc32(state)), f"{receipt} is of another state"
        self.disk.committed[self.base + number] = states
        for at in list(self.disk.written):
            if at[0] <= self.base + number:
                del self.disk.written[at]


def check_saved(states: Sequence[bytes], limit: int) -> None:
    """AssertionError unless each piece of work of `Pile(limit)` is in exactly one place of a save."""
    parts = [unpack_parts(state) for state in states]
    both = [saved_by(state) for state, *_ in parts]
    done = [item for _, items in both for item in items]
    counts = Counter(done) + Counter(item for items, _ in both for item in items)
    counts += Counter(item for _, *kept in parts for part in kept for item in unpack(part))
    expected = Counter(child for item in done for child in children(item, limit))
    expected[1] += 1
    assert counts == expected, f"saved without {expected - counts}, or twice {counts - expected}"
