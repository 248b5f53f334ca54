"""One consistent cut of all ranks of a search, and what each rank writes at it.   (pure)

A save is what all ranks have at one time: each its work in hand and its partial result.  It is worth nothing when a piece of
work is in two of them, or in none: no rank may work meanwhile, and no WORK may be under way.

The law
-------
- A rank is paused from PAUSE (rank 0: from `begin`) to GO.  A paused rank does no work, and splits nothing.
- Each rank counts the WORK that it has sent less that which has come to it.  A paused rank sends none, so the sum over
  paused ranks is the number of WORK under way, or more, since what has come may not be counted yet.  When all are paused and
  the sum is 0, none is under way: that is the cut.
- No rank's state is taken before that, and none goes on before all are written, or the save is given up.
- A save is committed only when every rank has written its state.  One that can't, or that has failed, says so: then the save
  is given up, and the one before stays.
- FINISH and STOP are served at once, paused or not: with the end of the search a save that is at hand is given up.

The ranks stand in a tree by their numbers (see `lb_mpi.searching.bound.neighbours`), and what a rank says is of all ranks
below it and itself.  Messages between two ranks keep their order.

The table
---------
rank   state       when                                     does                                         next
-----  ----------  ---------------------------------------  -------------------------------------------  ----------
root   RUNNING     it is time                               number += 1; PAUSE(number) to those below    COUNTING
other  RUNNING     PAUSE(number)                            PAUSE(number) to those below                 COUNTING
other  COUNTING    all below have counted, the sum is new   COUNT(number, sum) to the one above          COUNTING
root   COUNTING    all below have counted, the sum is 0     (the driver makes room for it)               OPENING
root   OPENING     there is room                            WRITE(number) to those below                 WRITING
root   OPENING     there is none                            GO(number) to those below                    RUNNING
other  COUNTING    WRITE(number)                            WRITE(number) to those below                 WRITING
other  WRITING     own state and those below are written    WRITTEN(number, well, receipts) to the       WRITTEN
                                                            one above
root   WRITING     all have written, or said they can't     (if all is well, the driver commits)         COMMITTING
root   COMMITTING  committed, or it can't be                GO(number) to those below                    RUNNING
other  COUNTING,   GO(number)                               GO(number) to those below                    RUNNING
       WRITTEN
any    RUNNING,    COUNT(number) of a save given up         drop it: WORK has come from a rank that      the same
       COUNTING                                             goes on to one that still counts
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from lb_mpi.errors import ProtocolError
from lb_mpi.searching.bound import neighbours
from lb_mpi.searching.drafting import Kind, Message, Send

KINDS = (Kind.PAUSE, Kind.COUNT, Kind.WRITE, Kind.WRITTEN, Kind.GO)
_RECEIPT = struct.Struct("<iqqd")
_N_BYTES = struct.Struct("<q")


class SaveState(IntEnum):
    """The progress of a rank with a save."""

    RUNNING = 0
    COUNTING = 1
    OPENING = 2
    WRITING = 3
    WRITTEN = 4
    COMMITTING = 5


class Cut:
    """One rank's part in the saves of a search; rank 0 begins one every `every_s` seconds (inf: never by itself).

    What the driver does for it, between two turns:

        if cut.to_open:
            make room for cut.number; send what cut.opened(well) returns
        if cut.to_write:
            write what this rank has; cut.wrote(receipt), or cut.wrote(None) when that can't be
        if cut.to_commit:
            commit cut.receipts, which all ranks have given, unless it's None; send what cut.ended() returns

    A receipt is bytes of any kind that describe what was written; all of one search are of the same length.
    """

    def __init__(self, rank: int, size: int, every_s: float = math.inf) -> None:
        self.rank, self.every_s = rank, every_s
        self.below = [other for other in neighbours(rank, size) if other > rank]
        self.above = next((other for other in neighbours(rank, size) if other < rank), None)
        self.state = SaveState.RUNNING
        self.number = 0  # of the save at hand, or of the last one
        self.under_way = 0  # WORK messages that this rank has sent less those that have come to it
        self.at = every_s  # when the next save is to begin, at rank 0
        self.receipts: bytes | None = b""  # of this rank and those below it that have written; None: one of them can't
        self._counted: dict[int, int] = {}  # by rank below: the last sum that it has sent
        self._sent: int | None = None  # the last sum that was sent
        self._awaited: set[int] = set()  # ranks, this one or below it, whose WRITTEN is still to come

    @property
    def paused(self) -> bool:
        """This rank has to keep still."""
        return self.state is not SaveState.RUNNING

    @property
    def to_write(self) -> bool:
        """The driver is to write this rank's state."""
        return self.state is SaveState.WRITING and self.rank in self._awaited

    @property
    def to_open(self) -> bool:
        """All keep still, and the driver (of rank 0) is to make room for what they will write."""
        return self.state is SaveState.OPENING

    @property
    def to_commit(self) -> bool:
        """All is written, and the driver (of rank 0) is to commit it, unless a rank couldn't."""
        return self.state is SaveState.COMMITTING

    def begin(self) -> list[Send]:
        """Begin a save, at rank 0; nothing happens when one is at hand."""
        if self.paused:
            return []
        return self._pause(self.number + 1)

    def receive(self, message: Message) -> list[Send]:
        """Serve one of the `KINDS`."""
        kind, source, number = message.kind, message.source, message.seq
        if source in self.below and kind is Kind.COUNT and (number, self.paused) < (self.number, True):
            return []
        if source in self.below and number == self.number and kind in (Kind.COUNT, Kind.WRITTEN):
            self._from_below(message)
            return []
        if source == self.above:
            if kind is Kind.PAUSE and self.state is SaveState.RUNNING and number > self.number:
                return self._pause(number)
            if number == self.number and kind is Kind.WRITE and self.state is SaveState.COUNTING:
                return self._write()
            if number == self.number and kind is Kind.GO and self.state in (SaveState.COUNTING, SaveState.WRITTEN):
                return self._go()
        raise self._impossible(message)

    def settle(self) -> list[Send]:
        """All that had arrived is served: report what is new."""
        if self.state is SaveState.COUNTING and len(self._counted) == len(self.below):
            total = self.under_way + sum(self._counted.values())
            if self.above is None:
                self.state = SaveState.OPENING if total == 0 else SaveState.COUNTING
                return []
            if total != self._sent:
                self._sent = total
                return [(self.above, Message(Kind.COUNT, self.rank, self.number, total))]
        if self.state is SaveState.WRITING and not self._awaited:
            if self.above is not None:
                self.state = SaveState.WRITTEN
                well, receipts = int(self.receipts is not None), self.receipts or b""
                return [(self.above, Message(Kind.WRITTEN, self.rank, self.number, well, payload=receipts))]
            self.state = SaveState.COMMITTING
        return []

    def opened(self, well: bool, now: float) -> list[Send]:
        """There is room for the save, at rank 0: all write; or there can't be any."""
        return self._write() if well else self.ended(now)

    def wrote(self, receipt: bytes | None) -> None:
        """This rank's state is written, or (None) it can't be."""
        self._add(self.rank, receipt)

    def ended(self, now: float) -> list[Send]:
        """The save is committed, at rank 0, or can't be: all go on; the next one begins `every_s` later."""
        self.at = now + self.every_s
        return self._go()

    def _pause(self, number: int) -> list[Send]:
        self.state, self.number = SaveState.COUNTING, number
        self._counted, self._sent = {}, None
        return self._to_below(Kind.PAUSE)

    def _write(self) -> list[Send]:
        self.state, self.receipts, self._awaited = SaveState.WRITING, b"", {self.rank, *self.below}
        return self._to_below(Kind.WRITE)

    def _go(self) -> list[Send]:
        self.state = SaveState.RUNNING
        return self._to_below(Kind.GO)

    def _to_below(self, kind: Kind) -> list[Send]:
        return [(rank, Message(kind, self.rank, self.number)) for rank in self.below]

    def _from_below(self, message: Message) -> None:
        if self.state is SaveState.COUNTING and message.kind is Kind.COUNT:
            self._counted[message.source] = message.pid
        elif self.state is SaveState.WRITING and message.source in self._awaited and message.kind is Kind.WRITTEN:
            self._add(message.source, message.payload if message.pid else None)
        else:
            raise self._impossible(message)

    def _add(self, rank: int, receipts: bytes | None) -> None:
        self._awaited.discard(rank)
        self.receipts = None if receipts is None or self.receipts is None else self.receipts + receipts

    def _impossible(self, message: Message) -> ProtocolError:
        return ProtocolError(f"rank {self.rank} in {self.state.name} (save {self.number}) got {message}")


# --- what a rank writes -----------------------------------------------------------------------------------------------


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
    """The file that one rank has written for a save."""

    rank: int
    n_bytes: int
    crc: int  # CRC-32
    best: float  # of the bound that is shared; without one 0


class Store(Protocol):
    """The place that a search is saved to; the driver's.  It never raises, but warns the user."""

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


class SavedSearch(NamedTuple):
    """The states that a search goes on from."""

    states: Sequence[bytes]  # of all ranks that were there when it was saved
    mine: Sequence[int]  # those that this rank handles
    kept: list[bytes]  # parts of work for this rank beside, as `Problem.split` packs them
    best: float | None  # of the bound that is shared; None: not known


def share(written: Sequence[bytes], rank: int, size: int) -> SavedSearch:
    """Select the states that rank `rank` of `size` goes on from, of all that were written."""
    parts, mine = [unpack_parts(each) for each in written], range(rank, len(written), size)
    return SavedSearch([each[0] for each in parts], mine, [part for index in mine for part in parts[index][1:]], None)


class SearchSaves:
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
