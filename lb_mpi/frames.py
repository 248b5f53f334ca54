"""Frames: bytes with their length and CRC, so that what is torn or flipped in a file is noticed.   (pure)

    frame: bytes of the payload (8 bytes, little-endian) | CRC-32 of these 8 and the payload (4) | payload

A frame that can't be trusted doesn't tell where the next one begins: it ends the reading, whatever follows.
"""

from __future__ import annotations

import struct
import zlib

_FRAME = struct.Struct("<QI")  # bytes of the payload, CRC-32
_LENGTH = struct.Struct("<Q")


def frame(payload: bytes) -> bytes:
    """Put bytes into a frame."""
    length = _LENGTH.pack(len(payload))
    return length + _FRAME.pack(len(payload), _crc(length, payload))[_LENGTH.size :] + payload


def read_frame(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    """Read the payload of the frame at byte `at` and where it ends; (None, at) when it is torn or flipped."""
    begin = at + _FRAME.size
    if begin > len(view):
        return None, at
    n_bytes, crc = _FRAME.unpack(view[at:begin])
    if n_bytes > len(view) - begin:
        return None, at
    payload = view[begin : begin + n_bytes]
    if _crc(_LENGTH.pack(n_bytes), payload) != crc:
        return None, at
    return payload, begin + n_bytes


def _crc(length: bytes, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(length))
