"""What the saves of a search are for one rank: when to keep still, and what to write.   (pure)

The cut itself, and its law, stand in `lb_mpi.searching.cut`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from lb_mpi.searching.cut import Cut
from lb_mpi.searching.drafting import Send

_RECEIPT = struct.Struct("<iqqd")
_N_BYTES = struct.Struct("<q")


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Pack what one rank writes: its problem's state, and parts of work that it hasn't taken in yet."""
    return b"".join(_N_BYTES.pack(len(part)) + part for part in parts)


def unpack_parts(packed: bytes) -> list[bytes]:
    """Undo `pack_parts`."""
    parts, at = [], 0
    while at < len(packed):
        (n,) = _N_BYTES.unpack_from(packed, at)
        at += _N_BYTES.size + n
        parts.append(packed[at - n : at])
    return parts


class Receipt(NamedTuple):
    """What one rank has written for a save."""

    rank: int
    n_bytes: int
    crc: int  # CRC-32
    best: float  # of the bound that is shared; without one 0


class Store(Protocol):
    """Where a search is saved; the driver's.  Nothing that it does raises: it tells the user by itself."""

    def open(self, number: int) -> bool:
        """Make room for the save `number`, on rank 0, before any rank writes; False when it can't be."""

    def write(self, number: int, state: bytes) -> tuple[int, int] | None:
        """Write this rank's state for the save `number`, for good; returns (bytes, CRC-32), or None when it can't be."""

    def commit(self, number: int, receipts: Sequence[Receipt] | None) -> None:
        """Make the save `number` of all ranks the one to resume from, on rank 0; None: give it up."""


class Open(NamedTuple):
    """A job of rank 0: make room for a save.  The result: whether there is some."""

    number: int

    def run(self, store: Store) -> bool:
        """Do it."""
        return store.open(self.number)


class Write(NamedTuple):
    """A job: write this rank's state.  The result: (bytes, CRC-32), or None when that can't be."""

    number: int
    state: bytes

    def run(self, store: Store) -> tuple[int, int] | None:
        """Do it."""
        return store.write(self.number, self.state)


class Commit(NamedTuple):
    """A job of rank 0: commit what all ranks have written; without receipts some rank could not."""

    number: int
    receipts: Sequence[Receipt] | None

    def run(self, store: Store) -> None:
        """Do it."""
        store.commit(self.number, self.receipts)


class Saved(NamedTuple):
    """What a search goes on from."""

    states: Sequence[bytes]  # of all ranks that were there when it was saved
    mine: Sequence[int]  # which of them this rank takes in hand
    kept: list[bytes]  # parts of work for this rank beside, as `Problem.split` packs them
    best: float | None  # of the bound that is shared; None: not known


def share(written: Sequence[bytes], rank: int, size: int) -> Saved:
    """What rank `rank` of `size` goes on from, of all that was written."""
    parts, mine = [unpack_parts(each) for each in written], range(rank, len(written), size)
    return Saved([each[0] for each in parts], mine, [part for index in mine for part in parts[index][1:]], None)


class Saves:
    """The saves of one rank's search, every `every_s` seconds (inf: only when `stop` is called)."""

    def __init__(self, rank: int, size: int, every_s: float) -> None:
        self.cut = Cut(rank, size, every_s)
        self.stopping = False  # the search is to end after the next save
        self.kept: list[bytes] = []  # parts of work of an earlier run, taken in when there is no other
        self.job: Open | Write | Commit | None = None

    def stop(self) -> None:
        """Save as soon as that can be, and end the search then; on rank 0."""
        self.cut.at, self.stopping = 0.0, True

    @property
    def stopped(self) -> bool:
        """The save after which the search is to end has come to an end, well or not."""
        return self.stopping and not self.cut.paused

    def settle(self, state: Callable[[], bytes | None]) -> list[Send]:
        """Choose the next job at the end of a turn; returns what is to be sent.  A rank has failed if `state()` is None."""
        cut, self.job = self.cut, None
        sends = cut.settle()
        if cut.to_write:
            if (packed := state()) is not None:
                self.job = Write(cut.number, packed)
            else:
                cut.wrote(None)
                sends += cut.settle()
        if cut.to_open:
            self.job = Open(cut.number)
        elif cut.to_commit:
            rows = None if cut.receipts is None else _RECEIPT.iter_unpack(cut.receipts)
            self.job = Commit(cut.number, None if rows is None else sorted(Receipt(*each) for each in rows))
        return sends

    def done(self, job: Open | Write | Commit, result: Any, now: float, best: float) -> list[Send]:
        """Take in what has come of a job; `best`: of the bound that is shared.  Returns what is to be sent, in order."""
        self.job = None
        if isinstance(job, Open):
            return self.cut.opened(result, now)
        if isinstance(job, Write):
            self.cut.wrote(None if result is None else _RECEIPT.pack(self.cut.rank, *result, best))
            return []
        return self.cut.ended(now)
