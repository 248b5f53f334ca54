"""The checkpoint of a map, as bytes: a restarted pool does not repeat finished tasks.   (pure)

A checkpoint is a header and records, each a frame (`lb_mpi.files`); it only grows at its end.

    header: 8 bytes of magic with the version, before the frame of (digest, n)
    record: (task numbers, their results)

    data = header(digest(function, items, star=False), n) + record([3, 4], [0.5, 0.7])
    read(data, digest(function, items, star=False), n).done == {3: 0.5, 4: 0.7}

A truncated or corrupt frame ends the reading, since its length can't be trusted.  Nothing in a checkpoint is unpickled.
Payloads are MessagePack with extension types: values are read back with exactly their types, dtypes and bits.  An
unsupported type is a TypeError at once, not a surprise when the file is needed.

The digest identifies the function and its items in another run of the program.  A function is known by its module and
qualified name, or by the user's key; one of the program itself, whose module is always `__main__`, by the name of its file,
without the folder, which may be moved; items, and what a functools.partial or a method holds, by their pickled form, except
for parts that differ between two runs of the same program:

- The elements of a set come in the order of their hashes, which differ in each run: they are sorted.
- Padding in structured arrays holds arbitrary bytes: it is left out.
- Equal texts, tuples, arrays and the like may be one object or two: it depends on which rank has sent which results.  They
  count as two, unless a value holds itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from datetime import date, time, timedelta
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import msgpack
import numpy as np

from lb_mpi.checks import show
from lb_mpi.columns import all_axes, from_memory, in_memory, order_of
from lb_mpi.files import frame, read_frame

MAGIC, VERSION = b"lb_mpi", 3
_START = struct.Struct("<6sH")  # magic, version
_INT64, _UINT64 = -(1 << 63), (1 << 64) - 1  # the integers of MessagePack
TYPES = "None, bool, int, float, complex, str, bytes, tuple, list, dict, numpy arrays and numbers of them"
DEPTH = 32  # of nested lists: reading a nested tuple uses about 50 kB of stack
_TUPLE, _INT, _COMPLEX, _ARRAY, _NUMBER, _ORDERED, _TEXT = range(7)  # extension types


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    done: dict[int, Any]  # results by task number
    n_good: int  # number of trusted bytes: the next record belongs there
    dropped: str = ""  # description of dropped data; "": none
    start: bytes = b""  # of an empty checkpoint: what to write before the first record


def header(digest: bytes, n: int) -> bytes:
    """Return the start of a checkpoint: `digest` of the function and its n tasks."""
    return _START.pack(MAGIC, VERSION) + _frame([digest, n])


def record(numbers: Sequence[int], values: Sequence[Any]) -> bytes:
    """Return results of some tasks; TypeError for an unsupported type, ValueError for lists nested too deeply."""
    if len(numbers) != len(values):
        raise ValueError(f"{len(numbers)} task numbers, {len(values)} results: expected as many")
    return _frame([list(map(int, numbers)), [_plain(value, 0) for value in values]])


def is_storable(value: Any) -> bool:
    """Return whether `record` accepts a result."""
    try:
        record([0], [value])
    except (TypeError, ValueError):
        return False
    return True


def read(data: bytes | memoryview, digest: bytes | None, n: int) -> Checkpoint:
    """Read a checkpoint of this digest and n tasks; None: of any.

    A checkpoint with a truncated header counts as empty.  ValueError for any other file, another version, another function
    or other tasks.
    """
    if not len(data):
        return Checkpoint({}, 0, start=header(digest or b"", n))
    view = memoryview(data)
    _check_start(bytes(view[: _START.size]))
    payload, at = _payload(view, _START.size)
    if payload is None:
        dropped = f"{len(view):,} bytes from the first on: the header is torn or flipped"
        return Checkpoint({}, 0, dropped, header(digest or b"", n))
    n = _check_header(payload, digest, n)
    done: dict[int, Any] = {}
    while at < len(view):
        payload, end = _payload(view, at)
        results = None if payload is None else _results(payload, n)
        if results is None:
            return Checkpoint(done, at, f"{len(view) - at:,} bytes from byte {at:,} on: a record is torn or flipped")
        for number, value in results:
            done.setdefault(number, value)
        at = end
    return Checkpoint(done, at)


def _check_start(start: bytes) -> None:
    whole = _START.pack(MAGIC, VERSION)
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise ValueError(f"begins with {start!r}: expected a checkpoint of a map, {whole!r}")
    if len(start) == _START.size and start != whole:
        raise ValueError(f"has version {_START.unpack(start)[1]}: expected {VERSION}")


def _check_header(payload: Any, digest: bytes | None, n: int) -> int:
    """Return the number of tasks."""
    if not isinstance(payload, list) or len(payload) != 2 or type(payload[1]) is not int:
        raise ValueError(f"has the header {show(payload)}: expected a digest and a number of tasks")
    if digest is None:
        return payload[1]
    if payload[1] != n:
        raise ValueError(f"has {show(payload[1])} tasks: expected {n}, as there are now (choose another file)")
    if payload[0] != digest:
        expected = "expected those of this call, in a program of the same name (choose another file)"
        raise ValueError(f"belongs to another function or to other tasks: {expected}")
    return n


def _results(payload: Any, n: int) -> list[tuple[int, Any]] | None:
    """Return (task number, value) of a record; None if it is invalid."""
    if not (isinstance(payload, list) and len(payload) == 2 and all(isinstance(part, list) for part in payload)):
        return None
    numbers, values = payload
    if len(numbers) != len(values) or not all(type(number) is int and 0 <= number < n for number in numbers):
        return None
    return list(zip(numbers, values, strict=True))


def _frame(payload: Any) -> bytes:
    try:
        packed = _packed(payload)
    except OverflowError as error:
        raise ValueError(f"results can't be written to a checkpoint: {error}") from error
    return frame(packed)


def _packed(value: Any) -> bytes:
    """Pack a value; texts may have lone surrogates, as names of files do."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def _payload(view: memoryview, at: int) -> tuple[Any, int]:
    """Read the frame at byte `at`: return its payload and end; (None, at) if it is truncated or corrupt."""
    packed, end = read_frame(view, at)
    if packed is None:
        return None, at
    try:
        return _unpack(packed), end
    except Exception:  # not from `_frame`, but with a matching CRC: its content can be anything
        return None, at


def _unpack(packed: bytes | memoryview, depth: int = 0) -> Any:
    if depth > DEPTH + 1:
        raise ValueError(f"tuples in tuples, more than {DEPTH} deep")

    def read_extension(kind: int, data: bytes) -> Any:
        if kind == _TUPLE:
            return tuple(_unpack(data, depth + 1))
        return _READERS[kind](data)

    return msgpack.unpackb(packed, ext_hook=read_extension, strict_map_key=False, unicode_errors="surrogatepass")


def _plain(value: Any, depth: int) -> Any:
    """Return the value as MessagePack writes it."""
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        if _INT64 <= value <= _UINT64:
            return value
        return msgpack.ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if depth > DEPTH:
        raise ValueError(f"results has lists in lists, more than {DEPTH} deep: expected fewer")
    if kind is list:
        return [_plain(one, depth + 1) for one in value]
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, _packed([_plain(one, depth + 1) for one in value]))
    if kind is dict:
        return {_plain(key, depth + 1): _plain(one, depth + 1) for key, one in value.items()}
    if kind is complex:
        return msgpack.ExtType(_COMPLEX, struct.pack("<dd", value.real, value.imag))
    if (kind is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
        if isinstance(value, np.str_ | np.bytes_):  # an array of one would drop zeros at its end
            return msgpack.ExtType(_TEXT, _packed("".join(value) if isinstance(value, str) else bytes(value)))
        if kind is np.ndarray and not value.flags.forc:
            order = all_axes(order_of(value), value.ndim)
            axes, steps = [max(axis, ~axis) for axis in order], [-1 if ~axis in order else 1 for axis in range(value.ndim)]
            return msgpack.ExtType(_ORDERED, msgpack.packb([axes, steps, _array(in_memory(value, order))]))
        return msgpack.ExtType(_ARRAY if kind is np.ndarray else _NUMBER, _array(np.asarray(value)))
    raise TypeError(_refusal(kind, " of objects" if isinstance(value, np.ndarray | np.generic) else ""))


def _refusal(kind: type, what: str = "") -> str:
    name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    return f"result of type {name}{what} can't be written to a checkpoint: expected {TYPES}{_instead(kind)}"


def _instead(kind: type) -> str:
    """Return what to use instead, for common types.

    To read a user's class, the reader would have to import whatever the file names, which is as unsafe as unpickling.
    """
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return " (such as tuple(result), or result._asdict())"
    return " (such as dataclasses.asdict(result))" if dataclasses.is_dataclass(kind) else ""


def _array(array: np.ndarray[Any, Any]) -> bytes:
    dtype = array.dtype
    if dtype.names is not None or not dtype.itemsize:
        kept = np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))
        if kept != dtype or kept.type is not dtype.type:
            back = f"it would come back as {show(kept)}"
            raise TypeError(f"result of dtype {show(dtype)} can't be written to a checkpoint: {back}")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _read_array(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False, max_header_size=len(data))  # names of any length


def _read_ordered(data: bytes) -> Any:
    axes, steps, array = msgpack.unpackb(data)
    return from_memory(_read_array(array), tuple(axis if steps[axis] > 0 else ~axis for axis in axes))


def _read_text(data: bytes) -> Any:
    text = msgpack.unpackb(data, unicode_errors="surrogatepass")
    return np.str_(text) if isinstance(text, str) else np.bytes_(text)


_READERS: dict[int, Callable[[bytes], Any]] = {
    _INT: lambda data: int.from_bytes(data, "little", signed=True),
    _COMPLEX: lambda data: complex(*struct.unpack("<dd", data)),
    _ARRAY: _read_array,
    _ORDERED: _read_ordered,
    _TEXT: _read_text,
    _NUMBER: lambda data: _read_array(data)[()],
}


PROTOCOL = 4  # of pickle: later ones encode whether an array is writable
KEPT_BYTES, SHORT = 256, 8  # digests of smaller values are found again; a tuple of so few numbers is part of what holds it
_INLINE = frozenset({type(None), bool, int, float})
_SMALL = (type, FunctionType, BuiltinFunctionType, date, time, timedelta)  # pickled in a few bytes


def digest(function: Callable[..., Any], items: Any, *, star: bool, key: str | None = None) -> bytes:
    """Return a digest of function(item), or with `star` function(*item), of all items; TypeError where that can't be done.

    `key` identifies the function; None: its module and qualified name, so a user may correct its body and go on.  What is
    defined in `__main__` has the name of the program's file.
    """
    if type(items) is np.ndarray:
        items = np.ascontiguousarray(items)
    by_name = "a function that its module has under its name, or key= with a text that identifies it"
    parts = [
        _digest(function, "function", by_name) if key is None else _of(("key", key)),
        _digest(items, "items", "values that a checkpoint can identify"),
    ]
    return hashlib.blake2b(b"".join([bytes([star]), *parts]), digest_size=16).digest()


def _digest(value: Any, name: str, expected: str) -> bytes:
    try:
        return _of(value)
    except Exception as error:  # the user's classes may raise anything when they are pickled
        raise TypeError(f"{name} = {show(value)}: expected {expected} ({type(error).__name__}: {error})") from error


def _of(value: Any) -> bytes:
    try:
        return _Digests().of(value)
    except (_CyclicError, RecursionError):  # pickle's own memory of objects ends where a value holds itself
        found = hashlib.blake2b(digest_size=16)
        _Pickler(found.update).dump(value)
        return found.digest()


class _CyclicError(Exception):
    """A value holds itself."""


class _Digests:
    """Digests of a value and of all that it holds, by content: equal parts may be one object or several."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes, int]] = {}  # by id: an object, which stays, its digest and its bytes
        self._open = set[int]()  # ids of the objects around this one
        self._n_bytes = 0

    def of(self, value: Any) -> bytes:
        """Return the digest of a value; that of a large one is found once, wherever it is held."""
        found = self._known.get(id(value)) or self._find(value)
        self._n_bytes += found[2]
        return found[1]

    def _find(self, value: Any) -> tuple[Any, bytes, int]:
        if id(value) in self._open:
            raise _CyclicError
        hashed, outside = hashlib.blake2b(digest_size=16), self._n_bytes

        def write(data: Any) -> None:
            hashed.update(data)
            self._n_bytes += len(data)

        self._open.add(id(value))
        self._n_bytes = 0
        _Pickler(write, self.of).dump(value)
        self._open.remove(id(value))
        found = value, hashed.digest(), self._n_bytes
        self._n_bytes = outside
        if found[2] > KEPT_BYTES:
            self._known[id(value)] = found
        return found


class _Pickler(pickle.Pickler):
    """A pickler that replaces objects with `digest`'s own descriptions; `part(value)`: the digest of what a value holds."""

    def __init__(self, write: Callable[[Any], None], part: Callable[[Any], bytes] | None = None) -> None:
        super().__init__(SimpleNamespace(write=write), PROTOCOL)
        self.fast = part is not None  # no object is remembered
        self._part, self._is_part = part, False

    def persistent_id(self, value: Any) -> Any:
        """Return the replacement of the value; None: pickle it as usual."""
        kind = type(value)
        if kind in _INLINE:
            return None
        is_part, self._is_part = self._is_part, True
        if getattr(value, "__module__", None) == "__main__" and _is_named(value):
            return _program(), pickle.dumps(value, PROTOCOL)
        if kind is str:
            return value.encode("utf-8", "surrogatepass")
        if isinstance(value, set | frozenset):
            return kind, sorted(map(_of, value)), getattr(value, "__dict__", None)
        if isinstance(value, np.ndarray | np.void) and value.dtype.names is not None:
            if (replaced := _without_padding(value)) is not None:
                return replaced
        elif isinstance(value, np.generic):
            return kind, value.dtype.str, value.tobytes()
        whole = not is_part or self._part is None
        if kind is np.ndarray and value.dtype.names is None and not value.dtype.hasobject:
            if whole or value.nbytes <= KEPT_BYTES:
                order: Any = "F" if value.flags.fnc else "C"
                return kind, value.dtype.str, value.shape, order, value.tobytes(order)
        elif whole or isinstance(value, _SMALL) or (kind is bytes and len(value) <= KEPT_BYTES) or _is_short(value):
            return None
        assert self._part is not None
        return int.from_bytes(self._part(value), "little")


def _program() -> str:
    """Return the name of the program's file, or of the folder of a `__main__.py`; "" if there is none, as in a notebook."""
    path = getattr(sys.modules["__main__"], "__file__", None) or ""
    name = os.path.splitext(os.path.basename(path))[0]
    return name if name != "__main__" else os.path.basename(os.path.dirname(os.path.abspath(path)))


def _is_named(value: Any) -> bool:
    """Return whether a value is pickled as its name: also what a decorator, such as functools.cache, makes of a function."""
    by_name = isinstance(value, FunctionType | type)
    return by_name or (callable(value) and isinstance(value.__reduce_ex__(PROTOCOL), str))


def _is_short(value: Any) -> bool:
    return type(value) is tuple and len(value) <= SHORT and _INLINE.issuperset(map(type, value))


def _without_padding(value: Any) -> Any:
    from numpy.lib.recfunctions import repack_fields  # late: it brings numpy.ma

    dtype = repack_fields(value.dtype, recurse=True)
    if dtype.itemsize == value.dtype.itemsize:
        return None
    return type(value), value.dtype, value.astype(dtype)
