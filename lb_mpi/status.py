"""A line about what is under way, on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import time

SHOWN_S, LINE_S = 0.2, 10.0  # before the line changes: on a terminal, and elsewhere


def line_width() -> int:
    """Return the width of a line on the terminal, which must not wrap; 0: standard error is none that can rewrite a line."""
    with contextlib.suppress(OSError, ValueError):  # it is no terminal, or not a file
        if os.environ.get("TERM") != "dumb" and sys.stderr is not None:
            return max(os.get_terminal_size(sys.stderr.fileno()).columns - 1, 0)
    return 0


def write_error(text: str) -> None:
    """Write on standard error at once; nothing where that is closed, since Python began or by the program."""
    if sys.stderr is not None and not sys.stderr.closed:
        sys.stderr.write(text)
        sys.stderr.flush()


class StatusLine(contextlib.AbstractContextManager["StatusLine"]):
    """A line that is rewritten in place on a terminal; elsewhere there is a new one every `LINE_S` seconds.

    As a context manager, it is removed from a terminal at the end of the block.

    `after_s` : time before the first line
    """

    def __init__(self, after_s: float = 0.0) -> None:
        self._due = time.monotonic() + (after_s if line_width() else LINE_S)
        self._shown = False  # on a terminal

    def show(self, text: str, *, last: bool = False) -> bool:
        """Show the text if that is due, or as the `last` one, which stays; return whether it was shown."""
        now, width = time.monotonic(), line_width()
        if now < self._due and not last:
            return False
        self._due = now + (SHOWN_S if width else LINE_S)
        self._shown = width > 0 and not last
        end = "" if self._shown else "\n"
        write_error(f"\r{text[:width]}\x1b[K{end}" if width else f"{text}\n")
        return True

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._shown:
            self._shown = False
            write_error("\r\x1b[K")

    def __exit__(self, *_: object) -> None:
        self.clear()
