"""The log of finished tasks, as bytes: what a pool that died has done is not done again.   (pure)

A log is a header and records, each of them a frame (`lb_mpi.frames`); it only grows at its end.

    header: 8 bytes of magic with the version, before the frame of (digest, n)
    record: (task numbers, their results)

What is torn or flipped ends the reading, whatever follows: a frame that can't be trusted doesn't tell where the next begins.
Nothing in a log is unpickled.  Payloads are MessagePack, with these extension types: what is read has the very types, dtypes
and bits of what was written.  A type that has none is a TypeError at once, not a surprise when the log is needed.

    data = header(digest, n) + record([3, 4], [0.5, 0.7])
    read(data, digest, n).done == {3: 0.5, 4: 0.7}
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np

from lb_mpi.checks import show
from lb_mpi.frames import frame, read_frame

MAGIC, VERSION = b"lb_mpi", 2
_START = struct.Struct("<6sH")  # magic, version
_INT64, _UINT64 = -(1 << 63), (1 << 64) - 1  # what MessagePack has for integers
TYPES = "None, bool, int, float, complex, str, bytes, tuple, list, dict, numpy arrays and numbers of them"
DEPTH = 32  # of lists in lists: reading a tuple within a tuple takes some 50 kB of stack
_TUPLE, _INT, _COMPLEX, _ARRAY, _NUMBER = range(5)  # extension types


class Log(NamedTuple):
    """What was read."""

    done: dict[int, Any]  # results by task number
    n_good: int  # bytes that can be trusted: the next record belongs there
    dropped: str  # what was dropped, in words; "": nothing


def header(digest: bytes, n: int) -> bytes:
    """The begin of a log: `digest` of the function and its n tasks."""
    return _START.pack(MAGIC, VERSION) + _frame([digest, n])


def record(numbers: Sequence[int], values: Sequence[Any]) -> bytes:
    """Results of some tasks; TypeError for one that a log can't keep, ValueError for lists in lists without end."""
    if len(numbers) != len(values):
        raise ValueError(f"{len(numbers)} task numbers, {len(values)} results: expected as many")
    return _frame([list(map(int, numbers)), [_plain(value, 0) for value in values]])


def read(data: bytes | memoryview, digest: bytes, n: int) -> Log:
    """Read a log of this digest and n tasks.

    A log that is torn in its header is as good as empty (n_good is 0: write the header anew).  ValueError for what is no
    log, is of another version, or of another function or other tasks.
    """
    if not len(data):
        return Log({}, 0, "")
    view = memoryview(data)
    _check_start(bytes(view[: _START.size]))
    payload, at = _payload(view, _START.size)
    if payload is None:
        return Log({}, 0, f"{len(view):,} bytes from the first on: the header is torn or flipped")
    _check_header(payload, digest, n)
    done: dict[int, Any] = {}
    while at < len(view):
        payload, end = _payload(view, at)
        results = None if payload is None else _results(payload, n)
        if results is None:
            return Log(done, at, f"{len(view) - at:,} bytes from byte {at:,} on: a record is torn or flipped")
        for number, value in results:
            done.setdefault(number, value)
        at = end
    return Log(done, at, "")


def _check_start(start: bytes) -> None:
    whole = _START.pack(MAGIC, VERSION)
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise ValueError(f"log begins with {start!r}: expected a log of finished tasks, {whole!r}")
    if len(start) == _START.size and start != whole:
        raise ValueError(f"log has version {_START.unpack(start)[1]}: expected {VERSION}")


def _check_header(payload: Any, digest: bytes, n: int) -> None:
    if not isinstance(payload, list) or len(payload) != 2:
        raise ValueError(f"log has the header {show(payload)}: expected a digest and a number of tasks")
    if payload[1] != n:
        raise ValueError(f"log has {show(payload[1])} tasks: expected {n}, as there are now (choose another file)")
    if payload[0] != digest:
        raise ValueError("log is of another function or other tasks: expected those of this call (choose another file)")


def _results(payload: Any, n: int) -> list[tuple[int, Any]] | None:
    """(Task number, value) of a record; None when it is none."""
    if not (isinstance(payload, list) and len(payload) == 2 and all(isinstance(part, list) for part in payload)):
        return None
    numbers, values = payload
    if len(numbers) != len(values) or not all(type(number) is int and 0 <= number < n for number in numbers):
        return None
    return list(zip(numbers, values, strict=True))


def _frame(payload: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(payload, use_bin_type=True)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ValueError(f"results can't be written to a log: {error}") from error
    return frame(packed)


def _payload(view: memoryview, at: int) -> tuple[Any, int]:
    """What the frame at byte `at` holds, and where it ends; (None, at) when it is torn or flipped."""
    packed, end = read_frame(view, at)
    if packed is None:
        return None, at
    try:
        return _unpack(packed), end
    except Exception:  # not what `_frame` writes, but with a fitting CRC: anything may be wrong with it
        return None, at


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _unpack(packed: bytes | memoryview, depth: int = 0) -> Any:
    if depth > DEPTH + 1:
        raise ValueError(f"tuples in tuples, more than {DEPTH} deep")

    def read_extension(kind: int, data: bytes) -> Any:
        if kind == _TUPLE:
            return tuple(_unpack(data, depth + 1))
        return _READERS[kind](data)

    return msgpack.unpackb(packed, ext_hook=read_extension, strict_map_key=False, raw=False)


def _plain(value: Any, depth: int) -> Any:
    """The value as MessagePack writes it."""
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        return value if _INT64 <= value <= _UINT64 else msgpack.ExtType(_INT, _big(value))
    if depth > DEPTH:
        raise ValueError(f"results has lists in lists, more than {DEPTH} deep: expected fewer")
    if kind is list:
        return [_plain(one, depth + 1) for one in value]
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, _pack([_plain(one, depth + 1) for one in value]))
    if kind is dict:
        return {_plain(key, depth + 1): _plain(one, depth + 1) for key, one in value.items()}
    if kind is complex:
        return msgpack.ExtType(_COMPLEX, struct.pack("<dd", value.real, value.imag))
    if (kind is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
        return msgpack.ExtType(_ARRAY if kind is np.ndarray else _NUMBER, _array(np.asarray(value)))
    raise TypeError(_refusal(kind, " of objects" if isinstance(value, np.ndarray | np.generic) else ""))


def check_returns(function: Callable[..., Any]) -> None:
    """TypeError when a function says of itself that it returns a named tuple or a dataclass, which a log can't keep."""
    if isinstance(kind := getattr(function, "__annotations__", {}).get("return"), str):
        kind = getattr(function, "__globals__", {}).get(kind)
    if isinstance(kind, type) and _instead(kind):
        raise TypeError(_refusal(kind))


def _refusal(kind: type, what: str = "") -> str:
    name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    return f"result of type {name}{what} can't be written to a log: expected {TYPES}{_instead(kind)}"


def _instead(kind: type) -> str:
    """Say what to return, where that is easily told.

    To read a class of the user's, one would have to import what the file names: as bad as to unpickle it.
    """
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return " (such as tuple(result), or result._asdict())"
    return " (such as dataclasses.asdict(result))" if dataclasses.is_dataclass(kind) else ""


def _big(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _array(array: np.ndarray[Any, Any]) -> bytes:
    dtype = array.dtype
    if dtype.names is not None or not dtype.itemsize:
        kept = np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))
        if kept != dtype or kept.type is not dtype.type:
            raise TypeError(f"result of dtype {show(dtype)} can't be written to a log: it would come back as {show(kept)}")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _read_array(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False, max_header_size=len(data))  # names of any length


_READERS: dict[int, Callable[[bytes], Any]] = {
    _INT: lambda data: int.from_bytes(data, "little", signed=True),
    _COMPLEX: lambda data: complex(*struct.unpack("<dd", data)),
    _ARRAY: _read_array,
    _NUMBER: lambda data: _read_array(data)[()],
}
