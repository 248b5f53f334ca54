"""Ctrl-C in a driver: noted while messages are sent and received, raised at once in what the user has written.

A KeyboardInterrupt between the start of a send and the line that keeps its request would leave the send half done, and in
a rank's sleep it would leave the others waiting for ever.  So a driver's loop holds it back, looks for it at each turn, and
ends as after any other error: all ranks are told.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """What came while it was held back; made by `held`."""

    def __init__(self) -> None:
        self.pending = False
        self._raising = False

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
        self._raising = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raising = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._raising:
            raise KeyboardInterrupt
        self.pending = True


class held:
    """Hold Ctrl-C back in this block.  What is still pending at its end, unless an error is on its way, is raised then.

    Where SIGINT isn't Python's own (ignored, a handler of the user's, another thread), nothing changes.
    """

    def __enter__(self) -> Interrupts:  # not a generator: a pool comes here in each map, which may be a short one
        self._interrupts = Interrupts()
        main = threading.current_thread() is threading.main_thread()
        self._holds = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._holds:
            signal.signal(signal.SIGINT, self._interrupts._note)
        return self._interrupts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if kind is None:
                self._interrupts.check()
