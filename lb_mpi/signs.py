"""Signs that a program gives to who has started it (launch/run): it goes on, something was saved, it can save at a signal.

    signs.attend()                      # from here on its stack can be had, and its end is told
    signs.begin()                       # it has come to a call of lb_mpi: MPI has begun, and has to be finalized
    with signs.phase("search"):         # from here on it's a hang if nothing happens for long
        while working:
            signs.turn()                # it goes on
            ...
    signs.saved(12)                     # save 12 is complete: a run that dies may be started again
    signs.saves_at_signal(True)         # SIGUSR1 to this process: it saves, and ends with exit code SAVED

The signs lie in a page of memory that the process before the program has made (launching/rank.py) and host.py of its host
looks at once a second.  So a sign is a write to memory, which never blocks, and the last sign is known even of a
program that was killed.  Without a launcher the page belongs to this process alone, and is not read.

Only the standard library is needed, and no MPI.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import mmap
import os
import signal
import threading
from types import TracebackType
from typing import NamedTuple

SAVED = os.EX_TEMPFAIL  # 75: the exit code of a program that has saved and stopped, since it was told to
SAVE_SIGNAL = signal.SIGUSR1
STACK_SIGNAL = signal.SIGRTMAX - 5  # unlikely to be used by others
VARIABLE = "LB_MPI_SIGNS"  # where the page is
NAME = "lb_mpi-signs"  # of its file
BYTES = 4096  # of the page; behind it is what faulthandler has written
_TURNS, _N_SAVED, _SAVED, _STACK_PID, _SAVES_PID, _MPI_PID, _AT_END, _ASLEEP_NS = range(8)  # words of the page, 8 bytes each
_PHASE = slice(64, 128)  # bytes of the page: text, padded with zeros


class Seen(NamedTuple):
    """The content of a page."""

    turns: int  # grows while the program goes on
    n_saved: int  # how often something was saved
    saved: int  # number of the last save; only if n_saved
    stack_pid: int  # the process that writes its stack at STACK_SIGNAL; 0: none
    saves_pid: int  # the process that saves at SAVE_SIGNAL and ends; 0: none
    phase: str  # what it is in, where it must go on; "": nowhere of the kind
    mpi_pid: int = 0  # the process that has begun MPI; 0: none
    at_end: bool = False  # it has come to its regular end, or finalized MPI
    asleep_s: float = 0.0  # time slept in lb_mpi so far, waiting for other ranks

    @property
    def spoke(self) -> bool:
        """The program has come to lb_mpi."""
        return any(self._replace(stack_pid=0, at_end=False))


class _Page:
    """The page of this process: its own, until one has been found."""

    def __init__(self) -> None:
        self.opened = False
        self.begun = False
        self.pid = 0  # of the process whose end is told
        self.show(memoryview(bytearray(BYTES)))

    def show(self, memory: memoryview) -> None:
        self.bytes, self.words = memory, memory.cast("Q")


_page = _Page()


def attend() -> None:
    """Let this process give its stack when it is asked, and say when it comes to its end."""
    _open()
    _page.pid = os.getpid()
    atexit.register(end)  # afterwards mpi4py finalizes MPI


def begin() -> None:
    """Say that the program has come to lb_mpi: MPI has begun, and from here on it must come to a regular end (`end`)."""
    if not _page.begun:
        _page.begun = True
        attend()
        _page.words[_AT_END] = 0
        _page.words[_MPI_PID] = os.getpid()
    turn()


def end() -> None:
    """Say that the program comes to its end, or that MPI is finalized; a process that it has forked says nothing."""
    if os.getpid() == _page.pid == (_page.words[_MPI_PID] or _page.pid):
        _page.words[_AT_END] = 1


def turn() -> None:
    """Say that the program goes on."""
    _page.words[_TURNS] += 1


def slept(seconds: float) -> None:
    """Say for how long the program has just slept, waiting for other ranks."""
    _page.words[_ASLEEP_NS] += int(1e9 * seconds)


class phase:
    """Say that the program is in `name` (at most 64 bytes): there, `turn` is called every now and then, or it computes.

    Blocks may be nested: the outermost name is shown.
    """

    def __init__(self, name: str) -> None:
        self._name = _padded(name)

    def __enter__(self) -> None:
        _open()
        self._before = bytes(_page.bytes[_PHASE])
        if not self._before[0]:
            _page.bytes[_PHASE] = self._name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _page.words[_TURNS] += 1
        _page.bytes[_PHASE] = self._before


def saved(number: int) -> None:
    """Say that save `number` (>= 0) is complete: from it, or a later one, the program goes on when it's started again."""
    _open()
    _page.words[_SAVED] = number
    _page.words[_N_SAVED] += 1


def saves_at_signal(able: bool) -> None:
    """Say whether SAVE_SIGNAL to this process makes it save, and then end with exit code SAVED.

    The signal may still come a moment after False: let it be ignored then.
    """
    _open()
    _page.words[_SAVES_PID] = os.getpid() if able else 0


def read(page: bytes) -> Seen:
    """Read what a page says."""
    words = memoryview(page)[: _PHASE.start].cast("Q")
    text = page[_PHASE].partition(b"\0")[0].decode(errors="replace")
    turns, n_saved, number, stack_pid, saves_pid, mpi_pid, at_end, asleep_ns = words
    return Seen(turns, n_saved, number, stack_pid, saves_pid, text, mpi_pid, bool(at_end), 1e-9 * asleep_ns)


def _padded(name: str) -> bytes:
    size = _PHASE.stop - _PHASE.start
    return name.encode(errors="replace")[:size].ljust(size, b"\0")


def _open() -> None:
    """Find the launcher's page, the first time; where there is none, or it's gone, this process keeps its own."""
    if _page.opened:
        return
    _page.opened = True
    path = os.environ.get(VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        # On another host, or later, the same path may be another file.
        if not path or not os.readlink(path).startswith(f"/memfd:{NAME}"):
            return
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_APPEND)
        _page.show(memoryview(mmap.mmap(file, BYTES)))
        if threading.current_thread() is threading.main_thread():
            faulthandler.unregister(STACK_SIGNAL)  # launching/beginning.py has registered another copy of this module
            signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # so it is when Python, at its end, takes the next line back
            faulthandler.register(STACK_SIGNAL, file, all_threads=True)
            _page.words[_STACK_PID] = os.getpid()
