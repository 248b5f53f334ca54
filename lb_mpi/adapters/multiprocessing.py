"""In place of multiprocessing.Pool: lb_mpi.Pool, with its arguments and errors.

The ProcessPoolExecutor of concurrent.futures uses multiprocessing, so it is replaced, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing.context
import multiprocessing.pool
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

import lb_mpi
from lb_mpi.adapters import futures
from lb_mpi.adapters.inside import Beginning, begin_thread, ignored, within_task

Function = Callable[..., Any]
pools: Any = multiprocessing.pool


class ProcessPool(lb_mpi.Pool):
    """Replaces multiprocessing.Pool: raises a task's own exception, and accepts `chunksize` by position.

    Within a task it is a pool of one thread.
    """

    def __new__(
        cls,
        processes: int | None = None,
        initializer: Function | None = None,
        initargs: Iterable[Any] = (),
        *_: Any,
        **__: Any,
    ) -> Any:
        """Return a new one."""
        if within_task():
            return pools.ThreadPool(1, begin_thread, (initializer, initargs))
        return super().__new__(cls)

    def __init__(
        self,
        processes: int | None = None,
        initializer: Function | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        ignored("maxtasksperchild", maxtasksperchild)
        super().__init__(initializer=Beginning(initializer, initargs))
        self._processes = self.size  # which samplers read

    def map(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None, callback: Function | None = None
    ) -> Any:
        """See multiprocessing; `callback` is called with each result, as in schwimmbad's MultiPool."""
        try:
            return super().map(func, _items(iterable), chunksize=_size(chunksize), callback=callback)
        except lb_mpi.TaskError as error:
            _raise_own(error)

    def starmap(self, func: Function, iterable: Iterable[Any], chunksize: int | None = None) -> Any:  # type: ignore[override]
        """See multiprocessing."""
        try:
            return super().starmap(func, _items(iterable), chunksize=_size(chunksize))
        except lb_mpi.TaskError as error:
            _raise_own(error)

    def apply(self, func: Function, args: Iterable[Any] = (), kwds: Any = None) -> Any:
        """See multiprocessing."""
        return super().apply(func, args, kwds)

    def apply_async(self, func: Function, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """See multiprocessing."""
        return super().apply_async(func, *args, **options)

    def map_async(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None, *args: Any, **options: Any
    ) -> Any:
        """See multiprocessing."""
        return super().map_async(func, iterable, _size(chunksize), *args, **options)

    def starmap_async(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None, *args: Any, **options: Any
    ) -> Any:
        """See multiprocessing."""
        return super().starmap_async(func, iterable, _size(chunksize), *args, **options)

    def imap(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None
    ) -> Iterator[Any]:
        """See multiprocessing."""
        return _Outcomes(super().imap(partial(_attempt, func), _items(iterable), chunksize=_size(chunksize)))

    def imap_unordered(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None
    ) -> Iterator[Any]:
        """See `imap`."""
        return _Outcomes(super().imap_unordered(partial(_attempt, func), _items(iterable), chunksize=_size(chunksize)))


def _items(given: Iterable[Any]) -> Iterable[Any]:
    """Return items that Pool takes as they are: a text is an iterable, an array subclass knows its items."""
    kind = type(given)
    as_list = isinstance(given, str | bytes | bytearray) or (isinstance(given, np.ndarray) and kind is not np.ndarray)
    by_index = not hasattr(kind, "__iter__") and hasattr(kind, "__getitem__")
    return list(given) if as_list or by_index else given


def _size(chunksize: int | None) -> int | None:
    """Return a chunksize that Pool takes: True is an integer, as it is for multiprocessing."""
    return int(chunksize) if isinstance(chunksize, bool) else chunksize


class _Raised(NamedTuple):
    """The result of a task that has raised."""

    error: Any  # an exception, once it is unpickled


def _attempt(function: Function, item: Any) -> Any:
    """Return function(item), or the exception that it or pickling raises, whose traceback on this rank becomes its cause."""
    try:
        result = function(item)
    except Exception as error:
        raised = _Raised(pools.ExceptionWithTraceback(error, error.__traceback__))
        try:
            pickle.loads(pickle.dumps(raised))
        except Exception as why:
            return _Raised(pools.MaybeEncodingError(why, error))
        return raised
    try:
        return lb_mpi.Executor.run_kept(lambda: result)
    except TypeError as why:
        return _Raised(pools.MaybeEncodingError(why.__cause__, result))


class _Outcomes(Iterator[Any]):
    """Results, or instead of one the exception of its task, after which the iterator goes on."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, however long it takes."""
        ignored("timeout", timeout)
        return next(self)

    def __next__(self) -> Any:
        try:
            result = next(self._results)
        except lb_mpi.TaskError as error:
            _raise_own(error)
        if isinstance(result, _Raised):
            if isinstance(result.error, StopIteration):  # which would end the caller's loop, as if all were done
                raise RuntimeError("a task raised StopIteration") from result.error
            raise result.error
        return result


def _raise_own(error: lb_mpi.TaskError) -> NoReturn:
    """Raise the task's own exception, caused by its TaskError; or the latter, if that was not sent, or is no Exception."""
    own = error.__cause__
    if not isinstance(own, Exception):
        raise error
    error.__cause__ = None
    raise own from error


def _refuse_sharing(given: object) -> None:
    """Raise an error of a lock, a queue, a value, ... that is sent to another rank; multiprocessing may inherit it."""
    if multiprocessing.context.get_spawning_popen() is None:
        instead = "tasks that return what the script then prints, writes or counts (imap_unordered)"
        raise lb_mpi.Error(
            f"a {type(given).__name__} of multiprocessing can't be shared between ranks: expected {instead}"
        )


def replace_processes() -> None:
    """Use it in place of multiprocessing's own pool."""
    futures.replace_processes()
    multiprocessing.context.assert_spawning = _refuse_sharing  # type: ignore[assignment]
    _replace_in(multiprocessing)
    if importlib.util.find_spec("multiprocess") is not None:  # multiprocessing with dill, which pathos uses, too
        importlib.import_module("multiprocess.pool")
        _replace_in(importlib.import_module("multiprocess"))


def _replace_in(package: Any) -> None:
    again = ModuleType(package.pool.__name__)  # another one, since ThreadPool looks for its base class in its own
    vars(again).update(vars(package.pool), Pool=ProcessPool)
    sys.modules[again.__name__] = package.pool = again
    package.Pool = ProcessPool
    package.context.BaseContext.Pool = staticmethod(ProcessPool)
