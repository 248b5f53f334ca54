"""Rows in a save: each array is cut into parts of complete rows, one .npy file per writing rank.

    save-00000012/heat-0000.npy, heat-0001.npy, ...     their concatenation is the array, in its global order
    meta: rows     number of rows of each writer
          arrays   for each name the bytes of a .npy file without rows: dtype, and shape of a row
          axes     for each name the order of the array's axes in memory (`columns.Order`), which `restored` gives to what
                   is read
          options  as given by the caller

A reader reads rows begin..end-1 of the whole array, whichever ranks wrote them; the number of ranks may differ.

Two stories (`lb_mpi.actor`) move rows from the ranks that hold them to blocks in global order, and back.  Rank r's block is
the rows bounds[r]..bounds[r+1]-1.  An `Exchange` is sent to ALL, and from ALL come the rows that have arrived.   (pure)

The law
-------
- All ranks make the same exchanges in the same order, and each receives as much as it expects.
- So counts are exchanged first: one row for each rank; then, to request rows, their numbers; then each array in turn.
- In an exchange rows are ordered by rank, and for one rank in the order of the numbers.
- Blocks: row k is at position k - bounds[r] of block r, and each position is filled once.  Otherwise all ranks raise
  ValueError before any array is sent, with the first such row.
- Back: rank r gets the rows of its index in that order; several ranks may request the same rows.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from lb_mpi.actor import ALL, Await
from lb_mpi.checks import show
from lb_mpi.columns import LISTS, Orders, all_axes, check_column, check_n_rows, copied
from lb_mpi.errors import SaveError
from lb_mpi.graph import Ints
from lb_mpi.reduction import reduce
from lb_mpi.saving.folder import Folder, PartFile, Saved

KIND = "rows"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

Arrays = dict[str, NDArray[Any]]


def check_arrays(arrays: Mapping[str, object]) -> Arrays:
    """Return arrays that can be saved together; ValueError or TypeError naming an array that cannot."""
    if not arrays:
        raise ValueError("no arrays: expected at least one by name, such as heat=heat")
    found: Arrays = {}
    for name in sorted(arrays):
        if not _NAME.fullmatch(name):
            raise ValueError(f"array {show(name)}: expected a name of letters, digits and _")
        array = check_column(name, arrays[name], LISTS, lists=True)
        try:
            back = np.load(io.BytesIO(b"".join(npy(array[:0]))), allow_pickle=False).dtype
        except ValueError as error:  # a field name that .npy cannot represent, or fields in another order than in memory
            raise TypeError(f"{name} has dtype {show(array.dtype)}: expected one for a .npy file ({error})") from None
        if (back, back.type) != (array.dtype, array.dtype.type):
            raise TypeError(f"{name} has dtype {show(array.dtype)}: expected one for a .npy file (it would become {back})")
        found[name] = array
    (first, rows), *_ = ((name, len(array)) for name, array in found.items())
    for name, array in found.items():
        check_n_rows(name, len(array), rows, f"as {first} has")
    return found


def check_options(options: Mapping[str, object] | None) -> dict[str, Any]:
    """Return options as they will be read, with tuples as lists; TypeError for values that are not plain."""
    try:
        packed = msgpack.packb(dict(options or {}), use_bin_type=True, default=_plain)
        plain: dict[str, Any] = msgpack.unpackb(packed, raw=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"options = {show(options)}: expected names with numbers, text and lists ({error})") from None
    return plain


def _plain(value: object) -> object:
    if isinstance(value, np.number | np.bool_):
        return value.item()
    raise TypeError(f"{type(value).__name__} is none of these")


def comparable(value: Any) -> Any:
    """Return a value of options such that equal ones have one repr: 1, 1.0 and True, NaN and NaN, names in any order."""
    if isinstance(value, dict):
        return {name: comparable(value[name]) for name in sorted(value, key=repr)}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    return int(value) if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()) else value


def compare_options(saved: Saved, options: Mapping[str, object], path: object) -> None:
    """Raise ValueError unless the save was made with the same options."""
    before = saved.meta["options"]
    for name in sorted({*before, *options}):
        if name not in before or name not in options or differ(before[name], options[name]):
            now = show(options[name]) if name in options else "not given"
            was = show(before[name]) if name in before else "none"
            raise ValueError(f"{name} = {now}: expected {was}, as in what is saved in {path} (choose another folder)")


def differ(one: Any, other: Any) -> bool:
    """Return whether two values of options are not equal."""
    return repr(comparable(one)) != repr(comparable(other))


def shares(n: int, size: int) -> list[int]:
    """Return each rank's number of rows if n rows are divided equally (the first ranks may have one more)."""
    return [n // size + (rank < n % size) for rank in range(size)]


def describe_rows(
    rows: Sequence[int], arrays: Arrays, orders: Orders, options: Mapping[str, object]
) -> dict[str, Any]:
    """Make the manifest's description of rows: the number on each rank, and each array's dtype, shape of a row and order."""
    return {
        "rows": list(rows),
        "arrays": {name: b"".join(npy(array[:0])) for name, array in arrays.items()},
        "axes": {name: all_axes(order, arrays[name].ndim) for name, order in zip(arrays, orders, strict=True)},
        "options": dict(options),
    }


def n_rows(saved: Saved) -> int:
    """Return the number of rows of each array."""
    return sum(saved.meta["rows"])


def write_rows(folder: Folder, step: int, rank: int, arrays: Arrays) -> list[PartFile]:
    """Write this rank's parts."""
    return [folder.write(step, _file(name, rank), npy(array)) for name, array in arrays.items()]


def read_rows(folder: Folder, saved: Saved, begin: int, end: int) -> Arrays:
    """Read rows begin..end-1 of each array; SaveError if a part with them is damaged."""
    return {name: _read(folder, saved, name, begin, end) for name in saved.meta["arrays"]}


def restored(saved: Saved, arrays: Arrays) -> Arrays:
    """Return rows with the order in memory that the saved arrays had."""
    axes = saved.meta.get("axes", {})
    return {name: copied(array, tuple(axes[name])) if name in axes else array for name, array in arrays.items()}


def npy(array: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield the content of a .npy file, piece by piece."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    yield header.getvalue()
    if array.nbytes:
        yield array.reshape(-1).view(np.uint8).data


def _read(folder: Folder, saved: Saved, name: str, begin: int, end: int) -> NDArray[Any]:
    try:
        like = np.load(io.BytesIO(saved.meta["arrays"][name]), allow_pickle=False)
    except Exception as error:  # a matching CRC, but not from `describe_rows`: its content can be anything
        raise SaveError(f"{folder.path}: save {saved.number} has no dtype for {name} ({error})") from None
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


# --- reorder ----------------------------------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """The rows that a rank sends, and the number that it receives."""

    rows: NDArray[Any]  # (sum of sent, ...) those for rank 0 first
    sent: Ints  # (size,) rows for each rank
    received: Ints  # (size,) rows from each rank


Exchanges = Generator[Await, Any, Arrays]


def starts(counts: Ints) -> Ints:
    """Return where the rows for (from) each rank begin, (size,)."""
    return np.cumsum(counts) - counts


def to_blocks(rank: int, index: Ints, bounds: Ints, arrays: Arrays) -> Exchanges:
    """Return the rows of this rank's block, collected from all ranks.

    `index`: (n,) the global number of each row on this rank, within bounds; arrays are (n, ...).  ValueError on all ranks
    unless each global row occurs once.
    """
    order, sent = _by_owner(index, bounds)
    received = yield from _counts(sent)
    numbers = yield from exchange(index[order], sent, received)
    n = int(bounds[rank + 1] - bounds[rank])
    offsets = numbers - bounds[rank]
    times = np.bincount(offsets, minlength=n)
    wrong = np.flatnonzero(times != 1)
    first = float(wrong[0] + bounds[rank]) if len(wrong) else math.inf
    number = -(yield from reduce(maxima=[-first])).maxima[0]
    if number < math.inf:
        all_times = int((yield from reduce([times[wrong[0]] if first == number else 0])).sums[0])
        raise ValueError(f"index: row {number:.0f} occurs {all_times} times on all ranks together: expected once")
    blocks = {}
    for name, array in arrays.items():
        block = np.empty((n, *array.shape[1:]), array.dtype)
        block[offsets] = yield from exchange(array[order], sent, received)
        blocks[name] = block
    return blocks


def from_blocks(rank: int, index: Ints, bounds: Ints, blocks: Arrays) -> Exchanges:
    """Return the rows `index` (n,), within bounds, from the blocks of all ranks."""
    order, wanted = _by_owner(index, bounds)
    asked = yield from _counts(wanted)
    numbers = yield from exchange(index[order], wanted, asked)
    offsets = numbers - bounds[rank]
    arrays = {}
    for name, block in blocks.items():
        array = np.empty((len(index), *block.shape[1:]), block.dtype)
        array[order] = yield from exchange(block[offsets], asked, wanted)
        arrays[name] = array
    return arrays


def exchange(rows: NDArray[Any], sent: Ints, received: Ints) -> Generator[Await, Any, NDArray[Any]]:
    """Exchange (n, ...) rows, sent (size,) to each rank and received (size,) from each; return those that have arrived."""
    arrived: NDArray[Any] = (yield Await((ALL,), ((ALL, Exchange(rows, sent, received)),)))[ALL]
    return arrived


def _by_owner(index: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """Return an order of the rows that groups them by owner, and the number for each owner."""
    owner = np.searchsorted(bounds, index, side="right") - 1
    return np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(bounds) - 1)


def _counts(counts: Ints) -> Generator[Await, Any, Ints]:
    """Send each rank its count; return those that have arrived."""
    once = np.ones_like(counts)
    return (yield from exchange(counts, once, once))
