"""Our handlers of signals, which a forked child takes back.

A child that goes on with the user's code must die of a SIGTERM at which its parent saves: multiprocessing, which ends its
workers so, waits for ever.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`, which makes enums of all handlers: 20 us in each call
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_replaced: dict[int, list[Any]] = {}  # by signal: the handlers that ours have replaced, the program's first


def install(number: int, handler: Any) -> None:
    """Replace the handler of a signal, in the main thread, until `restore`."""
    _replaced.setdefault(number, []).append(_signal.signal(number, handler))


def restore(number: int, handler: Any) -> None:
    """Undo `install`, but not in a child, which has taken it back; a handler that the user's code has installed stays."""
    if stack := _replaced.get(number):
        before = stack.pop()
        if _signal.getsignal(number) == handler:
            _signal.signal(number, before)


@contextmanager
def deferred() -> Iterator[list[int]]:
    """Let all handlers of signals wait for the end of this block.  In other threads than the main one, none ever runs.

    The list contains the signals that arrived; a caller that has handled them removes them.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    found = {number: _signal.getsignal(number) for number in range(1, _signal.NSIG)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    ended = False

    def defer(number: int, frame: FrameType | None) -> None:
        if ended:  # another handler has raised before this one was restored
            handlers[number](number, frame)
        else:
            arrived.append(number)

    try:
        for number in handlers:
            _signal.signal(number, defer)
        yield arrived
    finally:
        ended = True
        try:
            for number, handler in handlers.items():
                if _signal.getsignal(number) == defer:
                    _signal.signal(number, handler)
        finally:
            if arrived:
                _raise_all({*arrived})


def _raise_all(numbers: set[int]) -> None:
    """Raise signals: those that are blocked meanwhile reach their handlers even if one of these raises an error."""
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            _signal.raise_signal(number)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def _restore_in_child() -> None:
    """In a forked child, restore the program's handlers."""
    for number, stack in _replaced.items():
        if stack and stack[0] is not None:  # it was installed by C code
            _signal.signal(number, stack[0])
    _replaced.clear()


os.register_at_fork(after_in_child=_restore_in_child)
