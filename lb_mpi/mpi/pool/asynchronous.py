"""Asynchronous calls, as multiprocessing.Pool has them, on an executor: AsyncResult."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from lb_mpi.checks import show

Callback = Callable[[Any], object]


class AsyncResult:
    """The result of `apply_async`, `map_async` or `starmap_async`, with the methods of multiprocessing's."""

    def __init__(
        self,
        futures: Sequence[Future[Any]],
        gather: Callable[[list[Any]], Any],
        callback: Callback | None,
        error_callback: Callback | None,
    ) -> None:
        self._futures, self._gather = futures, gather
        self._callback, self._error_callback = callback, error_callback
        self._done: Future[Any] = Future()  # when the callback has returned, too
        self._left = len(futures)
        self._lock = threading.Lock()
        for future in futures:
            future.add_done_callback(self._count)
        if not futures:
            self._finish()

    def ready(self) -> bool:
        """Return whether it is done, and its callback has returned."""
        return self._done.done()

    def successful(self) -> bool:
        """Return whether no task has raised; ValueError before it is ready."""
        if not self.ready():
            raise ValueError(f"{show(self)} not ready: expected successful() after wait()")
        return self._done.exception() is None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is ready, for at most `timeout` seconds."""
        concurrent.futures.wait([self._done], timeout)

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise a task's exception; multiprocessing.TimeoutError after `timeout` seconds."""
        self.wait(timeout)
        if not self.ready():
            raise multiprocessing.TimeoutError
        return self._done.result()

    def _count(self, _: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            left = self._left
        if not left:
            self._finish()

    def _finish(self) -> None:
        found, error = None, None
        try:
            found = self._gather([future.result() for future in self._futures])
        except BaseException as caught:
            error = caught
        self._futures = ()
        callback = self._callback if error is None else self._error_callback
        try:
            if callback is not None:
                callback(found if error is None else error)
        finally:
            if error is None:
                self._done.set_result(found)
            else:
                self._done.set_exception(error)


def concatenated(lists: list[list[Any]]) -> list[Any]:
    """Return one list of the values of all."""
    return [value for values in lists for value in values]
