"""The messages of the searching ranks as parcels: a header, and then the payload."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from lb_mpi.mpi.common.parcels import Buffer, Parcels, body, parcel
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.searching.drafting import Kind, Message, Send

_HEADER = struct.Struct("<iiqqdq")  # kind, source, seq, pid, load, bytes of payload


def pack(message: Message) -> Buffer:
    """Return the parcel of a message."""
    kind, source, seq, pid, load, payload = message
    return parcel(_HEADER.pack(kind, source, seq, pid, load, len(payload)), [payload])


def unpack(buffer: Buffer) -> Message:
    """Return the message in a parcel."""
    kind, source, seq, pid, load, n = _HEADER.unpack_from(buffer.data)
    return Message(Kind(kind), source, seq, pid, load, bytes(body(buffer)[:n]))


def send(parcels: Parcels, sends: Iterable[Send]) -> None:
    """Start to send messages; returns at once."""
    for destination, message in sends:
        parcels.send(destination, Tag.DRAFTING, pack(message))


def take(parcels: Parcels) -> list[tuple[int, Message]]:
    """Return the (source, message) that have arrived, those of one source in their order."""
    return [(source, unpack(buffer)) for source, _, buffer in parcels.take()]
