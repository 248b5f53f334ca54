"""Pools and executors of processes within a task: threads of its own process, since all ranks run tasks already.

A rank gets what they give to a new process: locks of its own, and the key of the program's managers.
"""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import lb_mpi

Function = Callable[..., Any]
LOCKS = {"Lock": type(multiprocessing.Lock()), "RLock": type(multiprocessing.RLock())}
_thread = threading.local()


def within_task() -> bool:
    """Return whether this thread runs a task, or is one of a pool that was made in a task."""
    return lb_mpi.Pool.in_task() or getattr(_thread, "inner", False)


def begin_thread(initializer: Function | None, initargs: Iterable[Any]) -> None:
    """Begin a thread of a pool that was made in a task."""
    _thread.inner = True
    if initializer is not None:
        initializer(*initargs)


def ignored(name: str, value: object) -> None:
    """Warn of an argument that has no meaning here."""
    if value is not None:
        text = f"{name} = {value!r} is ignored: tasks run on ranks, which last as long as the program"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


class _Own(NamedTuple):
    """Stands for a lock on its way to a rank, which gets one of its own."""

    kind: str


class Beginning:
    """An initializer with its arguments: a lock among these becomes one of the rank, and managers can be reached."""

    def __init__(self, initializer: Function | None, initargs: Iterable[Any], key: bytes = b"") -> None:
        self._initializer, self._initargs = initializer, tuple(initargs)
        self._key = key or bytes(multiprocessing.current_process().authkey)

    def __call__(self) -> None:
        """Begin on this rank."""
        multiprocessing.current_process().authkey = self._key
        if self._initializer is not None:
            self._initializer(*self._initargs)

    def __reduce__(self) -> Any:
        """Return what makes it on another rank."""
        kinds = [next((kind for kind, one in LOCKS.items() if type(given) is one), "") for given in self._initargs]
        sent = tuple(_Own(kind) if kind else given for kind, given in zip(kinds, self._initargs, strict=True))
        return _beginning, (self._initializer, sent, self._key)


def _beginning(initializer: Function | None, initargs: tuple[Any, ...], key: bytes) -> Beginning:
    own = [getattr(multiprocessing, one.kind)() if isinstance(one, _Own) else one for one in initargs]
    return Beginning(initializer, own, key)
