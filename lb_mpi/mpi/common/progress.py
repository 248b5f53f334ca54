"""A line on stderr that tells how far it is."""

from __future__ import annotations

import sys
import time

LINE_S = 10.0  # where there is no terminal: a line so often


class ProgressLine:
    """Called as (done, of): "123 of 2,000 tasks, 12 s, about 180 s left"; rewritten in place on a terminal."""

    def __init__(self) -> None:
        self._began = self._told = time.perf_counter()

    def __call__(self, done: int, of: int) -> None:
        """Tell it, if it is time."""
        now = time.perf_counter()
        terminal = sys.stderr.isatty()
        if not terminal and now < self._told + LINE_S and done < of:
            return
        self._told = now
        spent = now - self._began
        left = f", about {spent / done * (of - done):,.0f} s left" if 0 < done < of else ""
        line = f"{done:,} of {of:,} tasks, {spent:,.0f} s{left}"
        end = "\n" if done == of or not terminal else ""
        sys.stderr.write(f"\r{line}\x1b[K{end}" if terminal else f"{line}\n")
        sys.stderr.flush()
