"""What the saves of a search are for one rank: when to keep still, and what to write.   (pure)

The cut itself, and its law, stand in `lb_mpi.searching.cut`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

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

    def commit(self, number: int, receipts: Sequence[Receipt]) -> None:
        """Make the save `number` of all ranks the one to resume from, on rank 0."""


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

    def stop(self) -> None:
        """Save as soon as that can be, and end the search then; on rank 0."""
        self.cut.at, self.stopping = 0.0, True

    @property
    def stopped(self) -> bool:
        """The save after which the search is to end has come to an end, well or not."""
        return self.stopping and not self.cut.paused

    @property
    def due(self) -> bool:
        """There is something for `save` to do."""
        return self.cut.to_open or self.cut.to_write or self.cut.to_commit

    def save(self, store: Store, now: float, state: Callable[[], bytes | None], best: float) -> list[Send]:
        """Do what is to be done now; returns what is to be sent, in order.  A rank has failed whose `state()` is None."""
        cut = self.cut
        if cut.to_open:
            return cut.opened(store.open(cut.number), now)
        if cut.to_write:
            packed = state()
            written = None if packed is None else store.write(cut.number, packed)
            cut.wrote(None if written is None else _RECEIPT.pack(cut.rank, *written, best))
            return []
        if cut.receipts is not None:
            store.commit(cut.number, sorted(Receipt(*each) for each in _RECEIPT.iter_unpack(cut.receipts)))
        return cut.ended(now)
