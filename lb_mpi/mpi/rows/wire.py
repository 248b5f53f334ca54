"""What the rounds of a Balancer send each other: each round gets its own parcels, in their order."""

from __future__ import annotations

import struct

from mpi4py import MPI

from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.rows.rows import HEADER_BYTES

_NUMBER = struct.Struct("<q")
_AT = HEADER_BYTES - _NUMBER.size  # in the header of a parcel, behind what it says of its rows


class Wire:
    """Parcels on `comm` (not the user's: a duplicate), from round to round.

    A rank that has heard that a round is over may be in the next one before another has heard it.  So a parcel bears the
    number of its round: what comes too early is kept, and what comes too late, which means nothing then, is dropped.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._parcels = Parcels(comm, Tag.LENDING)
        self._number = 0
        self._early: list[tuple[int, Buffer]] = []
        self._sent_before = 0

    def begin(self) -> None:
        """Begin the next round."""
        self._number += 1
        self._sent_before = self._parcels.sent_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent in this round."""
        return self._parcels.sent_bytes - self._sent_before

    def send(self, rank: int, buffer: Buffer) -> None:
        """Start to send in this round; returns at once."""
        _NUMBER.pack_into(buffer.data, _AT, self._number)
        self._parcels.send(rank, Tag.LENDING, buffer)

    def take(self) -> list[tuple[int, Buffer]]:
        """Return what has arrived for this round, as (source, parcel), those of one source in their order."""
        arrived = self._early + [(source, buffer) for source, _, buffer in self._parcels.take()]
        self._early = []
        if not arrived:
            return arrived
        mine = []
        for source, buffer in arrived:
            (number,) = _NUMBER.unpack_from(buffer.data, _AT)
            if number == self._number:
                mine.append((source, buffer))
            elif number > self._number:
                self._early.append((source, buffer))
        return mine

    def drain(self) -> None:
        """Collective, between rounds: receive and drop what is still under way."""
        self._parcels.drain()
