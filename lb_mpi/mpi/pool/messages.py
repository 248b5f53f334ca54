"""What the ranks of a pool tell each other, as parcels: a header of 64 bytes, and then what belongs to it."""

from __future__ import annotations

import pickle
import struct
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from lb_mpi.errors import TaskError
from lb_mpi.mpi.common.failure import describe, place
from lb_mpi.mpi.common.parcels import Buffer, body, parcel
from lb_mpi.pooling.account import RankTasks
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
