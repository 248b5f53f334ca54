"""Messages between the ranks of a pool, as parcels: a header of 64 bytes and its data.

Functions are sent once, and later found by the digest of their pickled form.  For items, see `lb_mpi.mpi.pool.arguments`.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
import struct
import traceback
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.checks import show
from lb_mpi.errors import TaskError
from lb_mpi.mpi.common.failure import describe, place
from lb_mpi.mpi.common.parcels import Buffer, body, parcel
from lb_mpi.pooling.account import RankTasks

# --- messages ---------------------------------------------------------------------------------------------------------


class StartOrder(NamedTuple):
    """The start of a map, as sent by the root to one rank; for all ranks, their speeds, function and items follow."""

    epoch: int
    lo: int  # the rank's own tasks
    hi: int
    chunksize: int  # 0: adaptive
    largest_first: bool  # costs are known
    star: bool  # function(*item)
    keep_exceptions: bool  # exceptions are results
    function_bytes: int  # 0: known by its digest
    digest: bytes  # of the function


class Frame(NamedTuple):
    """Results of the tasks at positions lo..hi-1; lo == hi: the failure of one, after which a map's rank sends no more."""

    lo: int
    hi: int
    data: memoryview | bytes
    seconds: float = 0.0  # of these tasks by themselves


START = struct.Struct("<iiii???q16s")
_RESULTS = struct.Struct("<iiqddqq")  # epoch, frames, RankTasks
STEAL = struct.Struct("<iqqqd")
NO_MAP = -1  # as the epoch of results: those of an executor's tasks


def results_parcel(epoch: int, done: RankTasks, frames: Sequence[Frame]) -> Buffer:
    """Make the parcel of one rank's results, with all its work in this map so far."""
    table = np.array([(lo, hi, len(data), round(1e9 * seconds)) for lo, hi, data, seconds in frames], dtype=np.int64)
    return parcel(_RESULTS.pack(epoch, len(frames), *done), [table.tobytes(), *(frame.data for frame in frames)])


def read_results(buffer: Buffer) -> tuple[int, RankTasks, list[Frame]]:
    """Read the number of the map, the rank's work so far, and its results."""
    epoch, n, *done = _RESULTS.unpack_from(buffer.data)
    rest = body(buffer)
    table = np.frombuffer(rest, np.int64, count=4 * n).reshape(n, 4)
    frames, at = [], table.nbytes
    for lo, hi, n_bytes, nanoseconds in table.tolist():
        frames.append(Frame(lo, hi, rest[at : at + n_bytes], 1e-9 * nanoseconds))
        at += n_bytes
    return epoch, RankTasks(*done), frames


# --- failures ---------------------------------------------------------------------------------------------------------


class TaskFailure(NamedTuple):
    """A task that raised, or a rank that can't continue; it is sent pickled."""

    text: str  # message text
    task: int  # its number, but on the way to the root, its position in the map; -1: no task of a map
    rank: int
    traceback: str
    error: bytes  # the exception, pickled; empty if that failed


def failure_of(error: BaseException, rank: int, task: int = -1) -> TaskFailure:
    """Describe an exception."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # its own __str__ may raise
        text = f"{describe(error)} {place(error)}\n"
    return TaskFailure(f"{describe(error)} {place(error)}", task, rank, text, pickled_error(error))


def task_error(failure: TaskFailure) -> TaskError:
    """Make the error that all ranks raise; its cause is the task's exception, if that can be unpickled."""
    index = failure.task if failure.task >= 0 else None
    where = f"task {index} on rank {failure.rank}" if index is not None else f"rank {failure.rank}"
    error = TaskError(f"{where}: {failure.text}", index=index, rank=failure.rank, traceback=failure.traceback)
    try:
        error.__cause__ = pickle.loads(failure.error) if failure.error else None
    except Exception:  # an exception whose __init__ needs other arguments
        error.__cause__ = None
    return error


def own_error(error: TaskError) -> BaseException:
    """Return the task's own exception, caused by its TaskError; or the latter, if the exception was not sent."""
    own, error.__cause__ = error.__cause__, None
    if own is None:
        return error
    own.__cause__ = error
    return own


def pickled_error(error: BaseException) -> bytes:
    """Return an exception as bytes; empty if it could not be unpickled."""
    try:
        data = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:
        return b""
    return data


# --- functions --------------------------------------------------------------------------------------------------------

KEPT = 4  # functions, on each rank
_EXPECTED = "expected a function of a module, a pool whose ranks all call its methods"


Reducers = Mapping[type, Callable[[Any], Any]]  # as in copyreg.dispatch_table


def dumps(value: Any, name: str, function: Any, reducers: Reducers | None = None) -> bytes:
    """Pickle a function, or a tuple of it and its arguments, by cloudpickle if needed and installed.

    TypeError, naming the function, if that fails.
    """
    try:
        return _dumps(pickle, value, reducers)
    except Exception as error:
        what = f"{name} = {show(function)}{' or an argument of it' * (value is not function)}"
        why = f"({type(error).__name__}: {error}): {_EXPECTED}"
        try:
            import cloudpickle
        except ImportError:
            raise TypeError(f"{what} can't be pickled {why}, or cloudpickle to be installed") from error
    try:
        return _dumps(cloudpickle, value, reducers)
    except Exception as error:
        why = f"({type(error).__name__}: {error}): {_EXPECTED}"
        raise TypeError(f"{what} can't be pickled, not with cloudpickle either {why}") from error


def _dumps(module: Any, value: Any, reducers: Reducers | None) -> bytes:
    if reducers is None:
        return bytes(module.dumps(value, pickle.HIGHEST_PROTOCOL))
    buffer = io.BytesIO()
    pickler = module.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    table = ChainMap(dict(reducers), getattr(pickler, "dispatch_table", copyreg.dispatch_table))
    pickle.Pickler.dispatch_table.__set__(pickler, table)  # type: ignore[attr-defined]  # cloudpickle hides the attribute
    pickler.dump(value)
    return buffer.getvalue()


def digest_of(data: bytes) -> bytes:
    """Return the digest of a pickled function, 16 bytes."""
    return hashlib.sha256(data).digest()[:16]  # faster than others if the processor supports it


class KnownFunctions(OrderedDict[bytes, Callable[..., Any]]):
    """The last functions, by digest; sender and receivers forget the same ones."""

    def keep(self, digest: bytes, function: Callable[..., Any]) -> None:
        """Keep a function, and forget the oldest beyond `KEPT`."""
        self[digest] = function
        if len(self) > KEPT:
            self.popitem(last=False)
