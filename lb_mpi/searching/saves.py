"""A consistent cut through all ranks of a search, and the states that the ranks write at it.   (pure)

A save is the state of all ranks at one time: each rank's remaining work and partial result.  It is worthless if a piece of
work is in two states, or in none.  So no rank may work meanwhile, and no WORK may be under way.

The law
-------
- A rank is paused from PAUSE (rank 0: from `begin`) to GO.  A paused rank does no work, and splits nothing.
- Each rank counts the WORK that it has sent minus the WORK received.  A paused rank sends none, so the sum over paused ranks
  is at least the number of WORK under way, since a receipt may not be counted yet.  When all are paused and the sum is 0,
  none is under way: that is the cut.
- No rank's state is packed before that, and none resumes before all are written, or the save is given up.
- A save is committed only when every rank has written its state.  If a rank can't, or has failed, it reports that; then the
  save is given up, and the previous one stays.
- FINISH and STOP are processed at once, paused or not: the end of the search gives up the current save.

The ranks form a tree by their numbers (see `lb_mpi.searching.bound.neighbours`), and a rank reports for itself and all ranks
below it.  Messages between two ranks keep their order.

The table
---------
rank   state       when                                     does                                         next
-----  ----------  ---------------------------------------  -------------------------------------------  ----------
root   RUNNING     it is time                               number += 1; PAUSE(number) to those below    COUNTING
other  RUNNING     PAUSE(number)                            PAUSE(number) to those below                 COUNTING
other  COUNTING    all below have counted, the sum is new   COUNT(number, sum) to the one above          COUNTING
root   COUNTING    all below have counted, the sum is 0     its job is to make room                      OPENING
root   OPENING     there is room                            WRITE(number) to those below                 WRITING
root   OPENING     there is none                            GO(number) to those below                    RUNNING
other  COUNTING    WRITE(number)                            WRITE(number) to those below                 WRITING
other  WRITING     own state and those below are written    WRITTEN(number, well, receipts) to the       WRITTEN
                                                            one above
root   WRITING     all have reported their writes           its job is to commit, if all is well         COMMITTING
root   COMMITTING  committed, or failed                     GO(number) to those below                    RUNNING
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
    """The progress of a rank in a save."""

    RUNNING = 0
    COUNTING = 1
    OPENING = 2
    WRITING = 3
    WRITTEN = 4
    COMMITTING = 5


# --- what a rank writes -----------------------------------------------------------------------------------------------


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Pack one rank's data: its problem's state, and parts of work not yet absorbed."""
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
    """The file of one rank in a save."""

    rank: int
    n_bytes: int
    crc: int  # CRC-32
    best: float  # of the shared bound; 0 without one


class Store(Protocol):
    """The place of a search's saves, from the carrier, which does the jobs.  It never raises, but warns the user."""

    def open(self, number: int) -> bool:
        """Make room for the save `number`, on rank 0, before any rank writes; return False if that fails."""

    def write(self, number: int, state: bytes) -> tuple[int, int] | None:
        """Write this rank's state for the save `number` to disk; return (bytes, CRC-32), or None if that fails."""

    def commit(self, number: int, receipts: Sequence[Receipt] | None) -> None:
        """Make the save `number` of all ranks the one to resume from, on rank 0; None: give it up."""


class Open(NamedTuple):
    """A job of rank 0: make room for a save.  The result: whether there is room."""

    number: int


class Write(NamedTuple):
    """A job: write this rank's state.  The result: (bytes, CRC-32), or None if that fails."""

    number: int
    state: bytes


class Commit(NamedTuple):
    """A job of rank 0: commit a save; receipts are None if a rank could not write."""

    number: int
    receipts: Sequence[Receipt] | None


SaveJob = Open | Write | Commit


def do(job: SaveJob, store: Store) -> Any:
    """Do a job; return its result."""
    if isinstance(job, Open):
        return store.open(*job)
    return store.write(*job) if isinstance(job, Write) else store.commit(*job)


class SavedSearch(NamedTuple):
    """The states from which a search resumes."""

    states: Sequence[bytes]  # of all ranks at the time of the save
    mine: Sequence[int]  # indices of those that this rank handles
    kept: list[bytes]  # further parts of work for this rank, as packed by `Problem.split`
    best: float | None  # the shared bound; None: unknown


def share(written: Sequence[bytes], rank: int, size: int) -> SavedSearch:
    """Select from all written states those from which rank `rank` of `size` resumes."""
    parts, mine = [unpack_parts(each) for each in written], range(rank, len(written), size)
    return SavedSearch([each[0] for each in parts], mine, [part for index in mine for part in parts[index][1:]], None)


# --- the cut ----------------------------------------------------------------------------------------------------------


class Cut:
    """One rank's part in the saves of a search; rank 0 begins one every `every_s` seconds (inf: only on request).

    `job` is the current job, for the carrier; a rank has one at most.
    """

    def __init__(self, rank: int, size: int, every_s: float = math.inf) -> None:
        self.rank, self.every_s = rank, every_s
        self.below = [other for other in neighbours(rank, size) if other > rank]
        self.above = next((other for other in neighbours(rank, size) if other < rank), None)
        self.state = SaveState.RUNNING
        self.number = 0  # of the current save, or of the last one
        self.under_way = 0  # WORK messages that this rank has sent minus those it has received
        self.at: float | None = every_s  # time of the next save, at rank 0; None: a save has ended, and no turn has followed
        self.stopping = False  # the search ends after the next save
        self.kept: list[bytes] = []  # parts of work of an earlier run, absorbed when this rank has no other
        self.job: SaveJob | None = None
        self.receipts: bytes | None = b""  # of this rank and those below it that have written; None: one has failed
        self._counted: dict[int, int] = {}  # by rank below: its last sum
        self._sent: int | None = None  # the last sum that was sent
        self._awaited: set[int] = set()  # this rank and those below it whose WRITTEN is outstanding

    @property
    def paused(self) -> bool:
        """True if this rank must pause."""
        return self.state is not SaveState.RUNNING

    @property
    def stopped(self) -> bool:
        """True if the last save of a stopping search is over, whether or not it succeeded."""
        return self.stopping and not self.paused

    def stop(self) -> None:
        """Save as soon as possible, then end the search; on rank 0."""
        self.at, self.stopping = 0.0, True

    def due(self, now: float) -> bool:
        """Return whether a save is due, at rank 0; after another one, `every_s` seconds begin in the first turn."""
        if self.at is None:
            self.at = now + self.every_s
        return now >= self.at

    def begin(self) -> list[Send]:
        """Begin a save, at rank 0; do nothing during another one."""
        return [] if self.paused else self._pause(self.number + 1)

    def receive(self, message: Message) -> list[Send]:
        """Process one of the `KINDS`."""
        kind, source, number, state = message.kind, message.source, message.seq, self.state
        if source in self.below and kind is Kind.COUNT and (number, self.paused) < (self.number, True):
            return []
        if source in self.below and number == self.number:
            if kind is Kind.COUNT and state is SaveState.COUNTING:
                self._counted[source] = message.pid
                return []
            if kind is Kind.WRITTEN and state is SaveState.WRITING and source in self._awaited:
                self._add(source, message.payload if message.pid else None)
                return []
        elif source == self.above:
            if kind is Kind.PAUSE and state is SaveState.RUNNING and number > self.number:
                return self._pause(number)
            if number == self.number and kind is Kind.WRITE and state is SaveState.COUNTING:
                return self._write()
            if number == self.number and kind is Kind.GO and state in (SaveState.COUNTING, SaveState.WRITTEN):
                return self._go()
        raise ProtocolError(f"rank {self.rank} in {state.name} (save {self.number}) got {message}")

    def settle(self, state: Callable[[], bytes | None]) -> list[Send]:
        """Report what is new, and choose the job, after processing all that had arrived; return the messages to send.

        `state()` packs this rank's state; it is None after a failure.
        """
        self.job, sends = None, self._report()
        if self.state is SaveState.WRITING and self.rank in self._awaited:
            if (packed := state()) is not None:
                self.job = Write(self.number, packed)
            else:
                self._add(self.rank, None)
                sends += self._report()
        if self.state is SaveState.OPENING:
            self.job = Open(self.number)
        elif self.state is SaveState.COMMITTING:
            rows = None if self.receipts is None else _RECEIPT.iter_unpack(self.receipts)
            self.job = Commit(self.number, None if rows is None else sorted(Receipt(*each) for each in rows))
        return sends

    def done(self, job: SaveJob, result: Any, best: float) -> list[Send]:
        """Process the result of a job; `best`: of the shared bound.  Return the messages to send, in order."""
        self.job = None
        if isinstance(job, Open) and result:
            return self._write()
        if isinstance(job, Write):
            self._add(self.rank, None if result is None else _RECEIPT.pack(self.rank, *result, best))
            return []
        self.at = None  # the save is over, committed or not
        return self._go()

    def _report(self) -> list[Send]:
        if self.state is SaveState.COUNTING and len(self._counted) == len(self.below):
            total = self.under_way + sum(self._counted.values())
            if self.above is None:
                self.state = SaveState.OPENING if total == 0 else SaveState.COUNTING
            elif total != self._sent:
                self._sent = total
                return [(self.above, Message(Kind.COUNT, self.rank, self.number, total))]
        elif self.state is SaveState.WRITING and not self._awaited:
            self.state = SaveState.COMMITTING if self.above is None else SaveState.WRITTEN
            if self.above is not None:
                well, receipts = int(self.receipts is not None), self.receipts or b""
                return [(self.above, Message(Kind.WRITTEN, self.rank, self.number, well, payload=receipts))]
        return []

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

    def _add(self, rank: int, receipts: bytes | None) -> None:
        self._awaited.discard(rank)
        self.receipts = None if receipts is None or self.receipts is None else self.receipts + receipts
