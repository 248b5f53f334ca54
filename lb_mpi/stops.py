"""How long a program under launch/throttle has been stopped: told by who stops it, in a page of memory that both see.

Who is stopped can't tell that from waiting by itself: it has given up the core, and time has passed.  `Stops` makes the
page, or goes on with that of a throttle around it, and writes; `read` is for the program.

Only the standard library is needed, and no MPI.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
from collections.abc import Mapping
from typing import NamedTuple

VARIABLE = "LB_MPI_STOPS"  # where the page is
_NAME, _BYTES = "lb_mpi-stops", 4096
_STOPS, _STOPPED_NS = range(2)  # words of the page, 8 bytes each


class Seen(NamedTuple):
    """What a page says."""

    n: int = 0  # how often the program has been stopped
    seconds: float = 0.0  # for how long in all


class Stops:
    """The page of a program that is stopped now and then; `variables` are those of who stops it."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        words = _open(variables)
        self.variables = {VARIABLE: variables[VARIABLE]} if words is not None else {}  # for the program
        if words is None:
            file = os.memfd_create(_NAME)  # leaves nothing behind
            os.ftruncate(file, _BYTES)
            words = memoryview(mmap.mmap(file, _BYTES)).cast("Q")
            self.variables = {VARIABLE: f"/proc/{os.getpid()}/fd/{file}"}
        self._words = words

    def add(self, seconds: float) -> None:
        """Say, before it goes on, that the program has been stopped once more, and for how long."""
        self._words[_STOPPED_NS] += int(1e9 * seconds)
        self._words[_STOPS] += 1


def read() -> Seen:
    """Read how often and how long this program has been stopped; all zero where nobody does so."""
    words = _page()
    return Seen() if words is None else Seen(words[_STOPS], 1e-9 * words[_STOPPED_NS])


@functools.cache
def _page() -> memoryview | None:
    return _open(os.environ)


def _open(variables: Mapping[str, str]) -> memoryview | None:
    path = variables.get(VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        # On another host, or later, the same path may be anybody's file.
        if path and os.readlink(path).startswith(f"/memfd:{_NAME}"):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return memoryview(mmap.mmap(file, _BYTES)).cast("Q")
            finally:
                os.close(file)
    return None
