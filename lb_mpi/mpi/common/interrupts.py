"""Ctrl-C in a driver: noted while messages are sent and received, raised at once in what the user has written.

A KeyboardInterrupt between the start of a send and the line that keeps its request would leave the send half done, and in
a rank's sleep it would leave the others waiting for ever.  So a driver holds it back, looks for it at each turn, and
ends as after any other error: it tells all ranks.

There is one signal handler in a process, so there is one state, and blocks may be nested: a wait within a driver, or a
driver within a function that another driver has called.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """What came while it was held back."""

    def __init__(self) -> None:
        self.pending = False
        self._raising = False
        self._before: list[bool] = []  # by block of `allowed` or `held`: what was there outside of it

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any."""
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt

    def allowed(self) -> Interrupts:
        """Run what the user has written in a `with` block of this: there, Ctrl-C is raised at once."""
        return self

    def __enter__(self) -> None:  # not a generator: a search comes here several times in some microseconds
        if self.pending:
            self.check()
        self._before.append(self._raising)
        self._raising = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raising = self._before.pop()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._raising:
            raise KeyboardInterrupt
        self.pending = True

    def _hold(self) -> None:
        self._before.append(self._raising)
        self._raising = False

    def _release(self) -> bool:
        """True when Ctrl-C may be raised from now on."""
        self._raising = self._before.pop()
        return self._raising


_interrupts = Interrupts()  # of the main thread
_MAIN = threading.main_thread().ident


def interrupts() -> Interrupts:
    """Return the state of this thread; only the main thread is ever interrupted."""
    return _interrupts if threading.get_ident() == _MAIN else Interrupts()


class held:
    """Hold Ctrl-C back in this block.  What is still pending at its end, unless an error is on its way, is raised then.

    Where SIGINT isn't Python's own (ignored, a handler of the user's, another thread), nothing changes.
    """

    __slots__ = ("_installed", "_interrupts")

    def __enter__(self) -> Interrupts:  # not a generator: a pool comes here in each map, which may be a short one
        one = self._interrupts = interrupts()
        one._hold()
        self._installed = one is _interrupts and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._installed:
            one.pending = False
            signal.signal(signal.SIGINT, one._note)
        return one

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        one, raises = self._interrupts, self._interrupts._release()
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if raises or self._installed:
            if kind is None:
                one.check()
            elif self._installed:
                one.pending = False
