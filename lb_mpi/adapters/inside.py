"""Pools and executors of processes within a task: threads of its own process, since all ranks run tasks already.

A rank gets what they give to a new process: locks of its own, and the key of the program's managers.
"""

from __future__ import annotations

import functools
import multiprocessing
import platform
import threading
import warnings
from collections.abc import Callable, Iterable
from multiprocessing import managers
from typing import Any, NamedTuple

import lb_mpi
from lb_mpi.checks import show

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


class _Home(NamedTuple):
    """The host and the managers' key of the process that has made a pool.  A rank that unpickles this can reach managers."""

    host: str
    key: bytes

    def __reduce__(self) -> Any:
        return _reach, (self.host, self.key)


def _reach(host: str, key: bytes) -> _Home:
    """Take over the key; proxies of a manager that a rank of another host can't reach are refused in plain words."""
    multiprocessing.current_process().authkey = key
    if host != platform.node() and _managers.RebuildProxy is _rebuild:
        _managers.RebuildProxy = functools.partial(_rebuild_far, host)
    return _Home(host, key)


_managers: Any = managers  # typeshed lacks RebuildProxy
_rebuild = _managers.RebuildProxy


def _rebuild_far(host: str, make: Function, token: managers.Token, *args: Any) -> Any:
    """Stand for managers.RebuildProxy, by which proxies are unpickled."""
    try:
        return _rebuild(make, token, *args)
    except OSError as error:
        how = "expected multiprocessing.managers.SyncManager(address=(socket.gethostname(), 0)), and its start()"
        where = f"a manager of {host} that listens at {show(token.address)}, which {platform.node()} does not reach"
        raise lb_mpi.Error(f"{where}, as a multiprocessing.Manager does on its own host only: {how}") from error


class Beginning:
    """An initializer with its arguments: a lock among these becomes one of the rank, and managers can be reached."""

    def __init__(self, initializer: Function | None, initargs: Iterable[Any], home: _Home | None = None) -> None:
        self._initializer, self._initargs = initializer, tuple(initargs)
        self._home = home or _Home(platform.node(), bytes(multiprocessing.current_process().authkey))

    def __call__(self) -> None:
        """Begin on this rank."""
        if self._initializer is not None:
            self._initializer(*self._initargs)

    def __reduce__(self) -> Any:
        """Return what makes it on another rank; its home comes first, since unpickled proxies need it."""
        kinds = [next((kind for kind, one in LOCKS.items() if type(given) is one), "") for given in self._initargs]
        sent = tuple(_Own(kind) if kind else given for kind, given in zip(kinds, self._initargs, strict=True))
        return _beginning, (self._home, self._initializer, sent)


def _beginning(home: _Home, initializer: Function | None, initargs: tuple[Any, ...]) -> Beginning:
    own = [getattr(multiprocessing, one.kind)() if isinstance(one, _Own) else one for one in initargs]
    return Beginning(initializer, own, home)
