"""Messages between the ranks of a pool, as parcels: a header of 64 bytes and its data.

Functions are sent once, and later found by the digest of their pickled form.  For items, see `lb_mpi.mpi.pool.arguments`.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import show
from lb_mpi.columns import Order, from_memory, in_memory, order_of
from lb_mpi.errors import Error, TaskError
from lb_mpi.mpi.common.failure import formatted, located, location, location_of
from lb_mpi.mpi.common.parcels import Buffer, body, parcel
from lb_mpi.pooling.account import RankTasks

# --- messages ---------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A function, and the way to run its tasks: function(item)."""

    function: Callable[..., Any]
    star: bool = False  # function(*item)
    keep_exceptions: bool = False  # exceptions are results
    retries: int = 0  # after an exception, on the same rank
    timeout_s: float = 0.0  # of a task; 0: none
    pause_s: float = 0.0  # before each retry


class Start(NamedTuple):
    """The start of a map, as sent by the root, before the fields of its `Call` but the function.

    What is known of ranks and tasks, the bounds of their tasks, function and items follow.
    """

    epoch: int
    chunksize: int  # 0: adaptive
    largest_first: bool  # costs are known
    lazy: bool  # items are read while tasks run, and sent in batches
    function_bytes: int  # 0: known by its digest
    digest: bytes  # of the function


class TaskBatch(NamedTuple):
    """Tasks for one rank, each pickled: items of the map under way, or else calls that were submitted to an executor."""

    number: int  # of the first; -1: not counted
    tasks: Sequence[bytes | memoryview]
    paths: Mapping[str, str] = MappingProxyType({})  # where their large arrays are on this host
    ran_s: float = 0.0  # in which tasks before these have run


class Frame(NamedTuple):
    """Results of the tasks at positions lo..hi-1; lo == hi: no more follow, of a map (a failure, or None), or of a batch."""

    lo: int
    hi: int
    data: memoryview | bytes
    seconds: float = 0.0  # of these tasks, the rank's own


START = struct.Struct("<ii??q16s??idd")
_RESULTS = struct.Struct("<iiqddqq")  # epoch, frames, RankTasks
_FRAME = struct.Struct("<qqqd")  # lo, hi, bytes, seconds
STEAL = struct.Struct("<iqqqd")
NO_MAP = -1  # as the epoch of results: those of an executor's tasks


def results_parcel(epoch: int, done: RankTasks, frames: Sequence[Frame]) -> Buffer:
    """Make the parcel of one rank's results, with all its work in this map so far."""
    table = b"".join(_FRAME.pack(lo, hi, len(data), seconds) for lo, hi, data, seconds in frames)
    return parcel(_RESULTS.pack(epoch, len(frames), *done), [table, *(frame.data for frame in frames)])


def read_results(buffer: Buffer) -> tuple[int, RankTasks, list[Frame]]:
    """Read the number of the map, the rank's work so far, and its results."""
    epoch, n, *done = _RESULTS.unpack_from(buffer.data)
    rest = body(buffer)
    frames, at = [], n * _FRAME.size
    for lo, hi, n_bytes, seconds in _FRAME.iter_unpack(rest[:at]):
        frames.append(Frame(lo, hi, rest[at : at + n_bytes], seconds))
        at += n_bytes
    return epoch, RankTasks(*done), frames


_BATCH = struct.Struct("<qqq")  # number, tasks, bytes of the paths; the sizes of the tasks follow, the tasks, the paths


def batch_parcel(batch: TaskBatch) -> Buffer:
    """Make the parcel of a batch."""
    sizes = struct.pack(f"<{len(batch.tasks)}q", *map(len, batch.tasks))
    paths = pickle.dumps(dict(batch.paths), pickle.HIGHEST_PROTOCOL) if batch.paths else b""
    return parcel(_BATCH.pack(batch.number, len(batch.tasks), len(paths)), [sizes, *batch.tasks, paths])


def read_batch(buffer: Buffer) -> TaskBatch:
    """Read the parcel of a batch."""
    number, n, n_paths = _BATCH.unpack_from(buffer.data)
    rest, tasks, at = body(buffer), list[memoryview](), 8 * n
    for size in rest[:at].cast("q"):
        tasks.append(rest[at : at + size])
        at += size
    return TaskBatch(number, tasks, pickle.loads(rest[at : at + n_paths]) if n_paths else {})


# --- arrays -----------------------------------------------------------------------------------------------------------


def reduce_array(array: NDArray[Any]) -> Any:
    """Reduce an array for pickling; unlike numpy, keep any order in memory, and the byte order of dates and long doubles."""
    dtype = array.dtype
    if not dtype.isnative and dtype.names is None and dtype.itemsize:
        return _viewed, (dtype, array.view(f"V{dtype.itemsize}"))
    if array.flags.forc:
        return array.__reduce_ex__(5)
    order = order_of(array)
    return _restored, (order, *np.ascontiguousarray(in_memory(array, order)).__reduce_ex__(5))


def _viewed(dtype: np.dtype[Any], raw: NDArray[Any]) -> NDArray[Any]:
    return raw.view(dtype)


def _restored(order: Order, make: Callable[..., Any], args: Any, state: Any = None) -> NDArray[Any]:
    array = make(*args)
    if state is not None:  # of objects
        array.__setstate__(state)
    return from_memory(array, order)


# --- results ----------------------------------------------------------------------------------------------------------

CHANGED = {np.void, np.object_, np.str_, np.bytes_}  # the first two may be; pickles of the others lose zeros at their ends
UNCHANGING = frozenset({type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()} - CHANGED)


def is_unchanging(value: Any) -> bool:
    """Return whether nothing can change a value: a number, a text, or a tuple of these."""
    kind = type(value)
    return kind in UNCHANGING or (kind is tuple and UNCHANGING.issuperset(map(type, value)))


def are_unchanging(values: list[Any]) -> bool:
    """Return whether nothing can change any of these values."""
    return UNCHANGING.issuperset(map(type, values)) or all(map(is_unchanging, values))  # the first without a Python loop


class PickledResult:
    """A result as the function has returned it: pickled at once, since the next call may use the same array again.

    Its pickle is that of the result.  TypeError if that can't be pickled.
    """

    __slots__ = ("_data",)

    def __init__(self, value: Any) -> None:
        try:
            self._data = exact(value)
        except Exception as error:
            raise unpicklable(value, error) from error

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        """Return what restores the result."""
        return pickle.loads, (self._data,)


def kept(value: Any) -> Any:
    """Return a result that may be pickled later, after further calls of the function."""
    if is_unchanging(value):
        return value
    return value.copy("A") if _is_plain(value) else PickledResult(value)


def _is_plain(value: Any) -> bool:
    """Return whether a copy in C's or Fortran's order, which needs a fifth of the time, is what a pickle would restore."""
    return type(value) is np.ndarray and value.flags.forc and value.flags.writeable and not value.dtype.hasobject


def copied(value: Any) -> Any:
    """Return a result of the root's own, as another rank would have sent it; TypeError if it can't be pickled."""
    if is_unchanging(value):
        return value
    if _is_plain(value):
        return value.copy("A")
    buffers: list[pickle.PickleBuffer] = []  # arrays are copied once, not twice
    try:
        data = pickled(pickle, value, EXACT, buffers.append)
    except Exception as error:
        raise unpicklable(value, error) from error
    copies = [(bytes if raw.readonly else bytearray)(raw) for raw in map(pickle.PickleBuffer.raw, buffers)]
    return pickle.loads(data, buffers=copies)


def unpicklable(value: Any, error: Exception) -> TypeError:
    """Return the error of a result that can't be pickled."""
    return TypeError(f"result of type {type(value).__name__} can't be pickled: {error}")


# --- failures ---------------------------------------------------------------------------------------------------------


class TaskFailure(NamedTuple):
    """A task that raised, or a rank that can't continue; it is sent pickled."""

    text: str  # message text
    task: int  # its number, but on the way to the root, its position in the map; -1: no task of a map
    rank: int
    traceback: str
    error: bytes  # the exception, pickled; empty if that failed
    of_file: bool = False  # the checkpoint could not be written, so this is no error of a task


def failure_of(error: BaseException, rank: int, task: int = -1, function: object = None) -> TaskFailure:
    """Describe an exception; `function`: the user's, whose result is wrong if none of the user's lines has raised it."""
    text = located(error) if location(error) else f"{located(error)} {location_of(function)}".rstrip()
    try:
        trace = formatted(error)
    except BaseException:  # its own __str__ may raise anything
        trace = f"{text}\n"
    return TaskFailure(text, task, rank, trace, pickled_error(error))


def task_error(failure: TaskFailure) -> TaskError:
    """Make the error that all ranks raise; its cause is the task's exception, if that can be unpickled."""
    index = failure.task if failure.task >= 0 else None
    where = f"task {index} on rank {failure.rank}" if index is not None else f"rank {failure.rank}"
    error = TaskError(f"{where}: {failure.text}", index=index, rank=failure.rank, traceback=failure.traceback)
    try:
        error.__cause__ = pickle.loads(failure.error) if failure.error else None
    except BaseException:  # an exception whose __init__ needs other arguments
        error.__cause__ = None
    return error


def map_error(failure: TaskFailure, rank: int, own: BaseException | None) -> BaseException:
    """Make the error that all ranks raise after a map; `own`: the first exception on this `rank`, with its traceback."""
    own = own if failure.rank == rank else None
    if failure.of_file:
        return pickle.loads(failure.error) if own is None else own
    error = task_error(failure)
    error.__cause__ = error.__cause__ if own is None else own  # a user's exception may be neither true nor false
    return error


def own_error(error: TaskError) -> BaseException:
    """Return the task's own exception, caused by its TaskError; or the latter, if the exception was not sent."""
    own, error.__cause__ = error.__cause__, None
    if own is None:
        return error
    BaseException.__setattr__(own, "__cause__", error)  # not by its class, which may allow no attributes
    return own


def pickled_error(error: BaseException) -> bytes:
    """Return an exception as bytes; empty if it could not be unpickled."""
    try:
        data = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except BaseException:  # its own __reduce__ may raise anything
        return b""
    return data


# --- functions --------------------------------------------------------------------------------------------------------

KEPT = 4  # functions, on each rank
_EXPECTED = "expected a function of a module, a pool whose ranks all call its methods"


Reducers = Mapping[type, Callable[[Any], Any]]  # as in copyreg.dispatch_table
EXACT: Reducers = {  # so that a task sees an array as f(item) would, and the root a result as the task has returned it
    np.ndarray: reduce_array,
    np.str_: lambda text: (np.str_, ("".join(text),)),  # str(text) would drop the zeros
    np.bytes_: lambda data: (np.bytes_, (bytes(data),)),
}


def dumps(
    value: Any, name: str, function: Any, reducers: Reducers | None = None, out_of_band: Any = None
) -> bytes:
    """Pickle a function, or a tuple of it and its arguments, by cloudpickle if needed and installed; see `pickled`.

    PicklingError, naming the function, if that fails.  An lb_mpi.Error says by itself what is wrong.
    """
    try:
        return pickled(pickle, value, reducers, out_of_band)
    except Error:
        raise
    except Exception as error:
        what = f"{name} = {show(function)}{' or an argument of it' * (value is not function)}"
        why = f"({type(error).__name__}: {error}): {_EXPECTED}"
        try:
            import cloudpickle
        except ImportError:
            raise pickle.PicklingError(f"{what} can't be pickled {why}, or cloudpickle (pip install cloudpickle)") from error
    try:
        return pickled(cloudpickle, value, reducers, out_of_band)
    except Exception as error:
        why = f"({type(error).__name__}: {error}): {_EXPECTED}"
        raise pickle.PicklingError(f"{what} can't be pickled, not with cloudpickle either {why}") from error


def exact(value: Any) -> bytes:
    """Pickle an item or a result."""
    return pickled(pickle, value, None if is_unchanging(value) else EXACT)  # a pickler with reducers costs 10 us


def pickled(module: Any, value: Any, reducers: Reducers | None, out_of_band: Any = None) -> bytes:
    """Pickle a value by `module`, pickle or cloudpickle, and objects of some types by these reducers.

    `out_of_band` is given the buffers of arrays, if it isn't None, and they are not pickled.
    """
    if reducers is None:
        return bytes(module.dumps(value, pickle.HIGHEST_PROTOCOL))
    buffer = io.BytesIO()
    pickler = module.Pickler(buffer, pickle.HIGHEST_PROTOCOL, buffer_callback=out_of_band)
    table = {**getattr(pickler, "dispatch_table", copyreg.dispatch_table), **reducers}  # a ChainMap costs 2 us an object
    pickle.Pickler.dispatch_table.__set__(pickler, table)  # type: ignore[attr-defined]  # cloudpickle hides the attribute
    pickler.dump(value)
    return buffer.getvalue()


def digest_of(function: Callable[..., Any]) -> bytes:
    """Return the digest of a function as pickled, 16 bytes; its arrays are not copied.  PicklingError as `dumps`."""
    found = hashlib.sha256()  # fast if the processor supports it
    for part in _parts_of(function):
        found.update(part)
    return found.digest()[:16]


def n_bytes_of(function: Callable[..., Any]) -> int:
    """Return the bytes of a function as pickled."""
    return sum(map(len, _parts_of(function)))


def _parts_of(function: Callable[..., Any]) -> list[bytes | memoryview]:
    buffers: list[pickle.PickleBuffer] = []
    data = dumps(function, "function", function, {}, buffers.append)
    return [data, *(buffer.raw() for buffer in buffers)]


LARGE, OFTEN = 1 << 20, 3  # bytes of a function that should not be sent in each map; sends of one that are noticed


class KnownFunctions(OrderedDict[bytes, Any]):
    """The last functions, by digest, pickled until their first use; sender and receivers forget the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self._sends = Counter[Hashable]()  # of large ones, by name

    def may_be_often(self, name: Hashable) -> bool:
        """Return whether that warning is still to come."""
        return self._sends[name] < OFTEN

    def is_often(self, name: Hashable, n_bytes: int) -> bool:
        """Count a send of a function with this name; return whether this is the one at which a warning is due."""
        if n_bytes >= LARGE:
            self._sends[name] += 1
        return n_bytes >= LARGE and self._sends[name] == OFTEN

    def store(self, digest: bytes, function: Callable[..., Any] | bytes) -> None:
        """Keep a function, and forget the oldest beyond `KEPT`."""
        self[digest] = function
        if len(self) > KEPT:
            self.popitem(last=False)

    def load(self, digest: bytes) -> Callable[..., Any]:
        """Return a function; one that could not be unpickled is tried again, since its module may be there by now."""
        if isinstance(function := self[digest], bytes):
            function = self[digest] = pickle.loads(function)
        return function  # type: ignore[no-any-return]
