"""What the ranks of a pool tell each other, as parcels: a header of 64 bytes, and then what belongs to it."""

from __future__ import annotations

import hashlib
import pickle
import struct
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.errors import TaskError
from lb_mpi.metrics import as_numbers
from lb_mpi.mpi.common.failure import describe, place
from lb_mpi.mpi.common.parcels import Buffer, body, parcel
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.intervals import MOST
from lb_mpi.pooling.worker import Kind, Message


class End(IntEnum):
    """How a map has ended."""

    DONE = 0
    FAILED = 1
    DROPPED = 2  # its other results are not wanted


class Flag:
    """How the tasks of a map are run: bits, and no enum, whose operations cost some microseconds."""

    STAR = 1  # function(*item)
    KEEP_EXCEPTIONS = 2  # they are results
    SHELF = 4  # function and items don't follow in this parcel, but lie on the shelf
    TO_ALL = 8  # all ranks get the results


class Start(NamedTuple):
    """A map, as one rank is told of it."""

    epoch: int
    lo: int  # its own tasks
    hi: int
    flags: int
    speed: float
    chunksize: int  # 0: adaptive
    function_bytes: int  # 0: it's known, by its digest
    items_bytes: int
    digest: bytes  # of the function

    @property
    def data_bytes(self) -> int:
        """Bytes of function and items together."""
        return self.function_bytes + self.items_bytes


class Frame(NamedTuple):
    """Results of the tasks at positions lo..hi-1; or the failure of one, and then there is no more of that rank."""

    lo: int
    hi: int
    failed: bool
    data: memoryview | bytes


class Failure(NamedTuple):
    """What is told of a task that raised, or of a rank that can't go on."""

    text: str  # for the message
    position: int  # of the task; -1: none
    rank: int
    traceback: str
    error: bytes  # the exception, pickled; empty if that can't be


_START = struct.Struct("<iiiidiqq16s")
_RESULTS = struct.Struct("<iiqddqq")  # epoch, frames, RankTasks
_STEAL = struct.Struct("<iqqqd")
_NUMBERS = struct.Struct("<qqq")


def start_parcel(start: Start, parts: Sequence[bytes | memoryview]) -> Buffer:
    """Tell of a map; `parts` are function and items, unless they lie on the shelf."""
    return parcel(_START.pack(*start), parts)


def read_start(buffer: Buffer) -> Start:
    """Read what one rank is told of a map."""
    return Start(*_START.unpack_from(buffer.data))


def steal_parcel(message: Message) -> Buffer:
    """ASK or GIVE."""
    return parcel(_STEAL.pack(*message))


def read_steal(buffer: Buffer) -> Message:
    """Read an ASK or a GIVE."""
    kind, epoch, lo, hi, speed = _STEAL.unpack_from(buffer.data)
    return Message(Kind(kind), epoch, lo, hi, speed)


def results_parcel(epoch: int, done: RankTasks, frames: Sequence[Frame]) -> Buffer:
    """Results of one rank, and all that it has done in this map so far."""
    table = np.array([(lo, hi, failed, len(data)) for lo, hi, failed, data in frames], dtype=np.int64)
    return parcel(_RESULTS.pack(epoch, len(frames), *done), [table.tobytes(), *(frame.data for frame in frames)])


def read_results(buffer: Buffer) -> tuple[int, RankTasks, list[Frame]]:
    """Read the number of the map, what the rank has done so far, and its results."""
    epoch, n, *done = _RESULTS.unpack_from(buffer.data)
    rest = body(buffer)
    table = np.frombuffer(rest, np.int64, count=4 * n).reshape(n, 4)
    frames, at = [], table.nbytes
    for lo, hi, failed, n_bytes in table.tolist():
        frames.append(Frame(lo, hi, bool(failed), rest[at : at + n_bytes]))
        at += n_bytes
    return epoch, RankTasks(*done), frames


def numbers_parcel(*numbers: int, data: bytes | memoryview = b"") -> Buffer:
    """At most three numbers, and bytes, whose number is told behind them."""
    padded = [*numbers, 0, 0, 0][:3]
    return parcel(_NUMBERS.pack(*padded) + len(data).to_bytes(8, "little"), [data])


def read_numbers(buffer: Buffer) -> tuple[int, int, int, memoryview]:
    """Read three numbers, and the bytes behind them."""
    first, second, third = _NUMBERS.unpack_from(buffer.data)
    n_bytes = int.from_bytes(buffer[_NUMBERS.size : _NUMBERS.size + 8].tobytes(), "little")
    return first, second, third, body(buffer)[:n_bytes]


def failure_of(error: BaseException, rank: int, position: int = -1) -> Failure:
    """What is told of an exception."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # its own __str__ may raise
        text = f"{describe(error)} {place(error)}\n"
    return Failure(f"{describe(error)} {place(error)}", position, rank, text, pickled_error(error))


def pack_failure(failure: Failure) -> bytes:
    """A failure as bytes."""
    return pickle.dumps(tuple(failure), pickle.HIGHEST_PROTOCOL)


def unpack_failure(data: bytes | memoryview) -> Failure:
    """A failure from bytes."""
    return Failure(*pickle.loads(data))


def task_error(failure: Failure, index: int | None) -> TaskError:
    """The error that all are told; its cause is the exception of the task, where that can be had."""
    where = f"task {index} on rank {failure.rank}" if index is not None else f"rank {failure.rank}"
    error = TaskError(f"{where}: {failure.text}", index=index, rank=failure.rank, traceback=failure.traceback)
    try:
        error.__cause__ = pickle.loads(failure.error) if failure.error else None
    except Exception:  # an exception whose __init__ wants other arguments
        error.__cause__ = None
    return error


def pickled_error(error: BaseException) -> bytes:
    """An exception as bytes; none where it can't be read again."""
    try:
        data = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:
        return b""
    return data


BLOCK = 256  # items in a block of a list, at most
BLOCKS_A_RANK = 8  # at least, where there are so many items

_INT64 = range(-(1 << 63), 1 << 63)  # numbers of a range that travel as such
# ItemKind; start of the range, items in a block, or bytes of (dtype, shape); step of the range, or number of blocks;
# numbers in the order of a range.
_HEADER = struct.Struct("<qqqq")


class ItemKind(IntEnum):
    """How items are kept."""

    RANGE = 1
    ARRAY = 2
    LIST = 3


class Items(NamedTuple):
    """What the caller of a map has passed: a range, an array whose rows are the items, or a list."""

    of: Any
    n: int

    def some(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """The arguments of these items; rows of an array are copies."""
        return [_row(self.of[k]) for k in numbers]


def check_items(*given: Any) -> Items:
    """Check what the user passes as items, or as several iterables of arguments; TypeError or ValueError."""
    items = _check_iterable(given[0] if given else None)
    if len(given) > 1:
        items = zip(*map(_rows, map(_check_iterable, given)), strict=False)
    if not isinstance(items, range | np.ndarray):
        items = list(items)
    if (n := _length(items)) > MOST:
        count = f"{n:,}" if n in _INT64 else "more than 2**63"
        raise ValueError(f"{count} items: expected at most {MOST:,}")
    if isinstance(items, range) and not (items.start in _INT64 and items.step in _INT64):
        items = list(items)
    return Items(items, n)


def _check_iterable(items: Any) -> Any:
    if isinstance(items, bool | str | bytes) or not isinstance(items, int | np.integer | Iterable):
        raise TypeError(f"items = {show(items)}: expected a number, a range, an array or a list of items")
    if isinstance(items, int | np.integer):
        if items < 0:
            raise ValueError(f"items = {items}: expected an integer >= 0")
        return range(int(items))
    if isinstance(items, np.ndarray) and type(items) is not np.ndarray:
        raise TypeError(f"items of type {type(items).__name__}: expected an array of no subclass, or a list")
    if isinstance(items, np.ndarray) and not items.ndim:
        raise ValueError("items of shape (): expected at least one dimension, the items")
    return items


def _rows(items: Iterable[Any]) -> Iterable[Any]:
    return map(_row, items) if isinstance(items, np.ndarray) else items


def _length(items: Any) -> int:
    """Return len(items), also of a range with more numbers than len() can count."""
    if isinstance(items, range):
        return (items[-1] - items[0]) // items.step + 1 if items else 0
    return len(items)


def check_costs(costs: Any, n: int) -> NDArray[np.float64] | None:
    """What the user says that n items cost, as parts of the largest cost: the unit is any, and sums must be finite.

    ValueError, saying what was expected.
    """
    if costs is None:
        return None
    values = as_numbers("costs", costs)
    if values.shape != (n,):
        raise ValueError(f"costs of shape {values.shape}: expected ({n},), one for each item")
    if wrong := np.flatnonzero(~(np.isfinite(values) & (values >= 0))).tolist():
        raise ValueError(f"costs[{wrong[0]}] = {values[wrong[0]]}: expected a finite number >= 0")
    most = values.max(initial=0.0)
    return values / most if most else values


def encode(items: Items, order: NDArray[np.int64], size: int) -> list[bytes | memoryview]:
    """The items in the order of their positions, for `size` ranks; what can't be pickled raises, with the item's number."""
    if isinstance(items.of, range):
        numbers = order if items.n and not np.array_equal(order, np.arange(len(order))) else order[:0]
        return [_HEADER.pack(ItemKind.RANGE, items.of.start, items.of.step, len(numbers)), numbers.tobytes()]
    if isinstance(items.of, np.ndarray) and not items.of.dtype.hasobject:
        rows = items.of[order]
        about = pickle.dumps((rows.dtype, rows.shape), pickle.HIGHEST_PROTOCOL)
        return [_HEADER.pack(ItemKind.ARRAY, len(about), 0, 0), about, rows.tobytes()]
    n_block = max(1, min(BLOCK, len(order) // (size * BLOCKS_A_RANK)))
    numbers = iter(order.tolist())
    blocks = []
    while places := list(islice(numbers, n_block)):
        blocks.append(_pickled(items, places))
    ends = np.cumsum([0, *map(len, blocks)])
    return [_HEADER.pack(ItemKind.LIST, n_block, len(blocks), 0), ends.astype(np.int64).tobytes(), *blocks]


def _pickled(items: Items, places: list[int]) -> bytes:
    try:
        return pickle.dumps([items.of[k] for k in places], pickle.HIGHEST_PROTOCOL)
    except Exception:
        for k in places:
            try:
                pickle.dumps(items.of[k], pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                raise TypeError(f"items[{k}] can't be pickled: {type(error).__name__}: {error}") from error
        raise


class Coming:
    """Arguments by position, from what `encode` has made."""

    def __init__(self, data: memoryview) -> None:
        kind, self._first, self._second, n = _HEADER.unpack_from(data)
        self._kind, self._data = ItemKind(kind), data[_HEADER.size :]
        self._block, self._block_number = list[Any](), -1
        if self._kind is ItemKind.RANGE:
            self._numbers = np.frombuffer(self._data, np.int64, count=n)
        elif self._kind is ItemKind.ARRAY:
            dtype, shape = pickle.loads(self._data[: self._first])
            self._array: NDArray[Any] = np.ndarray(shape, dtype, self._data, self._first)
        else:
            self._ends = np.frombuffer(self._data, np.int64, count=self._second + 1)
            self._data = self._data[self._ends.nbytes :]

    def some(self, lo: int, hi: int) -> list[Any]:
        """The arguments of the tasks at positions lo..hi-1."""
        if self._kind is ItemKind.RANGE:
            places = self._numbers[lo:hi].tolist() if len(self._numbers) else range(lo, hi)
            return [self._first + self._second * k for k in places]
        if self._kind is ItemKind.ARRAY:
            return [_row(row) for row in self._array[lo:hi]]
        arguments = []
        for k in range(lo, hi):
            if k // self._first != self._block_number:
                self._block_number = k // self._first
                begin, end = self._ends[self._block_number : self._block_number + 2].tolist()
                self._block = pickle.loads(self._data[begin:end])
            arguments.append(self._block[k % self._first])
        return arguments


def _row(item: Any) -> Any:
    """A row of an array as the task's own; a structured number, too, is a view of the array."""
    return item.copy() if isinstance(item, np.ndarray | np.void) else item


KEPT = 4  # functions, on each rank
_EXPECTED = "expected a function of a module, a pool whose ranks all call its methods"


class Sent(NamedTuple):
    """A function as bytes."""

    digest: bytes  # 16 of them
    data: bytes


def pickled(function: Callable[..., Any]) -> Sent:
    """Pickle a function, with cloudpickle where that is needed and installed; TypeError where it can't be done."""
    data = dumps(function, f"function = {show(function)}")
    return Sent(hashlib.sha256(data).digest()[:16], data)  # quicker than others where the processor helps


def dumps(value: Any, what: str) -> bytes:
    """Pickle what has functions in it; TypeError, about `what`, where it can't be done."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        try:
            import cloudpickle
        except ImportError:
            why = f"{type(error).__name__}: {error}"
            raise TypeError(f"{what} can't be pickled ({why}): {_EXPECTED}, or cloudpickle to be installed") from error
    try:
        return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise TypeError(f"{what} can't be pickled, not with cloudpickle either ({why}): {_EXPECTED}") from error


class Functions:
    """The last functions, by digest; sender and receivers forget the same ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def keep(self, digest: bytes, function: Callable[..., Any]) -> None:
        """Know it from now on, and forget the oldest beyond `KEPT`."""
        self._known[digest] = function
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    def __getitem__(self, digest: bytes) -> Callable[..., Any]:
        return self._known[digest]
