"""Rows in a save: each array is cut into parts of whole rows, one .npy file for each rank that has written.

    save-00000012/heat-0000.npy, heat-0001.npy, ...     np.concatenate of them is the array, in its global order
    meta: rows     how many each of the writers had
          arrays   for each name the bytes of a .npy file without rows: dtype, and shape of a row
          options  what the caller has given

A reader takes rows begin..end-1 of all, whoever has written them: their number of ranks may be another.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.saving.folder import Folder, Part, Saved

KIND = "rows"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

Arrays = dict[str, NDArray[Any]]


def check_arrays(arrays: Mapping[str, object]) -> Arrays:
    """Return arrays that can be saved together; ValueError or TypeError, naming the one that can't."""
    if not arrays:
        raise ValueError("no arrays: expected one by name at least, such as heat=heat")
    found: Arrays = {}
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if not _NAME.fullmatch(name):
            raise ValueError(f"array {show(name)}: expected a name of letters, digits and _")
        if array.dtype.hasobject:
            raise TypeError(f"{name} is an array of objects: expected numbers or text")
        if array.ndim < 1:
            raise ValueError(f"{name} = {show(arrays[name])}: expected an array of rows")
        try:
            b"".join(npy(array[:0]))
        except ValueError as error:  # names of fields in letters that it can't have
            raise TypeError(f"{name} has dtype {show(array.dtype)}: expected one for a .npy file ({error})") from None
        found[name] = array
    (first, rows), *_ = ((name, len(array)) for name, array in found.items())
    for name, array in found.items():
        if len(array) != rows:
            raise ValueError(f"{name} has {len(array)} rows: expected {rows}, as {first} has")
    return found


def check_options(options: Mapping[str, object] | None) -> dict[str, Any]:
    """Return options as they will be read: tuples are lists; TypeError for what isn't plain."""
    try:
        plain: dict[str, Any] = msgpack.unpackb(msgpack.packb(dict(options or {}), use_bin_type=True), raw=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"options = {show(options)}: expected names with numbers, text and lists ({error})") from None
    return plain


def compare_options(saved: Saved, options: Mapping[str, object], path: object) -> None:
    """ValueError unless the save was made with the same options."""
    before = saved.meta["options"]
    for name in sorted({*before, *options}):
        if name not in before or name not in options or before[name] != options[name]:
            now = show(options[name]) if name in options else "not given"
            was = show(before[name]) if name in before else "none"
            raise ValueError(f"{name} = {now}: expected {was}, as in what is saved in {path} (choose another folder)")


def shares(n: int, size: int) -> list[int]:
    """Return how many of n rows each of `size` ranks has, when all have as many (the first ones a row more)."""
    return [n // size + (rank < n % size) for rank in range(size)]


def describe_rows(rows: Sequence[int], arrays: Arrays, options: Mapping[str, object]) -> dict[str, Any]:
    """Make what the manifest says of rows: how many each rank has, and what an array without rows looks like."""
    return {
        "rows": list(rows),
        "arrays": {name: b"".join(npy(array[:0])) for name, array in arrays.items()},
        "options": dict(options),
    }


def n_rows(saved: Saved) -> int:
    """Return how many rows each array has."""
    return sum(saved.meta["rows"])


def write_rows(folder: Folder, step: int, rank: int, arrays: Arrays) -> list[Part]:
    """Write this rank's parts."""
    return [folder.write(step, _file(name, rank), npy(array)) for name, array in arrays.items()]


def read_rows(folder: Folder, saved: Saved, begin: int, end: int) -> Arrays:
    """Read rows begin..end-1 of each array; SaveError when a part of them is damaged."""
    return {name: _read(folder, saved, name, begin, end) for name in saved.meta["arrays"]}


def npy(array: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Give the content of a .npy file, piece by piece."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    yield header.getvalue()
    if array.nbytes:
        yield array.reshape(-1).view(np.uint8).data


def _read(folder: Folder, saved: Saved, name: str, begin: int, end: int) -> NDArray[Any]:
    like = np.load(io.BytesIO(saved.meta["arrays"][name]), allow_pickle=False)
    row_bytes = like.dtype.itemsize * math.prod(like.shape[1:])
    found = np.empty((end - begin, *like.shape[1:]), like.dtype)
    offset = 0
    for rank, rows in enumerate(saved.meta["rows"]):
        first, last = max(begin, offset), min(end, offset + rows)
        if first < last:
            file = _file(name, rank)
            start = saved.parts[file].n_bytes - (offset + rows - first) * row_bytes
            data = folder.read(saved, file, start, start + (last - first) * row_bytes)
            if row_bytes:
                found[first - begin : last - begin] = np.frombuffer(data, like.dtype).reshape(-1, *like.shape[1:])
        offset += rows
    return found


def _file(name: str, rank: int) -> str:
    return f"{name}-{rank:04d}.npy"
