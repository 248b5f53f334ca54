"""Signs from a program to its launcher (launch/run): progress, completed saves, and whether it can save at a signal.

    signs.attend()                      # enables stack dumps, and reports the program's end
    signs.begin()                       # first call of lb_mpi: MPI is initialised, and must be finalized
    with signs.phase("search"):         # within it, other ranks may wait for it
        while working:
            signs.turn()                # progress
            ...
    signs.saved(12)                     # save 12 is complete: if the run dies, it may be restarted
    signs.saves_at_signal(True)         # at SIGUSR1 this process saves, and ends with exit code SAVED

`guard` calls `attend` when the program imports mpi4py.MPI.  A rank whose program ends early, for example by an error
before its first call of lb_mpi, waits in MPI_Finalize for the other ranks, which wait for it in lb_mpi.  So its page records
the end of the program, even without lb_mpi.

The signs are in a page of memory that the parent process (cli/run/rank.py) has created, and that host.py on its host reads
once a second.  So a sign is a write to memory, which never blocks, and the last sign of a killed program is preserved.
Without a launcher the page is private to this process, and nobody reads it.  So it is in a process that the program starts:
the launcher's belongs to the first process that opens it, as long as that lives.

Only the standard library is needed, and no other file of lb_mpi: cli/run/site/sitecustomize.py loads this one by its path.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib.util
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

SAVED = os.EX_TEMPFAIL  # 75: the exit code of a program that has saved and stopped on request
SAVE_SIGNAL = signal.SIGUSR1
STACK_SIGNAL = signal.SIGRTMAX - 5  # unlikely to be used by other code
VARIABLE = "LB_MPI_SIGNS"  # path of the page
NAME = "lb_mpi-signs"  # of its file
BYTES = 4096  # of the page; after it comes faulthandler's output
_TURNS, _N_SAVED, _SAVED, _STACK_PID, _SAVES_PID, _MPI_PID, _AT_END, _ASLEEP_NS = range(8)  # words of the page, 8 bytes each
_PHASE = slice(64, 128)  # bytes of the page: text, padded with zeros
_OWNER = 16  # the word after the phase: the process that writes here; 0: none yet


class Seen(NamedTuple):
    """The content of a page."""

    turns: int  # increases while the program makes progress
    n_saved: int  # number of saves
    saved: int  # number of the last save; only if n_saved
    stack_pid: int  # the process that writes its stack at STACK_SIGNAL; 0: none
    saves_pid: int  # the process that saves at SAVE_SIGNAL and ends; 0: none
    phase: str  # the call of lb_mpi that it is in; "": none
    mpi_pid: int = 0  # the process that has begun MPI; 0: none
    at_end: bool = False  # it has ended regularly, or finalized MPI
    asleep_s: float = 0.0  # time slept in lb_mpi so far, waiting for other ranks

    @property
    def spoke(self) -> bool:
        """Return whether the program has reached lb_mpi."""
        return any(self._replace(stack_pid=0, at_end=False))


class _Page:
    """The page of this process: private, until the launcher's is found."""

    def __init__(self) -> None:
        self.opened = False
        self.hide()
        self.begun = False
        self.pid = 0  # of the process whose end is reported
        self.phases: list[bytes] = []  # of all threads, in the order in which they began
        self.changing = threading.RLock()  # of the phases; a signal handler may begin one, too

    def hide(self) -> None:
        """Make it private."""
        self.show(memoryview(bytearray(BYTES)))

    def show(self, memory: memoryview) -> None:
        self.bytes, self.words = memory, memory.cast("Q")


_page = _Page()
os.register_at_fork(after_in_child=_page.hide)


def attend() -> None:
    """Let this process write its stack on request, and report its end."""
    _open()
    _page.pid = os.getpid()
    atexit.register(end)  # afterwards mpi4py finalizes MPI


def begin() -> None:
    """Report that the program has reached lb_mpi: MPI is initialised, and from now on it must end regularly (`end`)."""
    if not _page.begun:
        _page.begun = True
        attend()
        _page.words[_AT_END] = 0
        _page.words[_MPI_PID] = os.getpid()
    turn()


def end() -> None:
    """Report that the program ends, or that MPI is finalized; forked processes report nothing."""
    if os.getpid() == _page.pid == (_page.words[_MPI_PID] or _page.pid):
        _page.words[_AT_END] = 1


def turn() -> None:
    """Report progress."""
    _page.words[_TURNS] += 1


def slept(seconds: float) -> None:
    """Report for how long the program has just slept, waiting for other ranks."""
    _page.words[_ASLEEP_NS] += int(1e9 * seconds)


@functools.lru_cache(64)  # the few calls of lb_mpi, again and again
class phase:
    """Report that the program is in `name` (at most 64 bytes): a phase in which it works, or takes `turn`s and sleeps.

    Its begin and its end are progress.  Blocks may be nested, and those of threads may overlap: of all that have begun and
    not ended, the oldest is shown.
    """

    def __init__(self, name: str) -> None:
        self._text = name.encode(errors="replace")[: _PHASE.stop - _PHASE.start].ljust(_PHASE.stop - _PHASE.start, b"\0")

    def __enter__(self) -> None:  # not a generator: a call of map_rows may be short
        if not _page.opened:
            _open()
        with _page.changing:
            _page.phases.append(self._text)
            _page.words[_TURNS] += 1
            _page.bytes[_PHASE] = _page.phases[0]

    def __exit__(self, *_error: object) -> None:
        with _page.changing:
            _page.phases.remove(self._text)  # equal ones of two threads need not be distinguished
            _page.words[_TURNS] += 1
            _page.bytes[_PHASE] = _page.phases[0] if _page.phases else bytes(len(self._text))


def saved(number: int) -> None:
    """Report that save `number` (>= 0) is complete: a restarted program continues from it, or a later one."""
    _open()
    _page.words[_SAVED] = number
    _page.words[_N_SAVED] += 1


def saves_at_signal(able: bool) -> None:
    """Report whether SAVE_SIGNAL to this process makes it save, and then end with exit code SAVED.

    The signal may still arrive shortly after False, and should be ignored then.
    """
    _open()
    _page.words[_SAVES_PID] = os.getpid() if able else 0


def read(page: bytes) -> Seen:
    """Read the signs in a page."""
    words = memoryview(page)[:64].cast("Q")
    text = page[_PHASE].partition(b"\0")[0].decode(errors="replace")
    turns, n_saved, number, stack_pid, saves_pid, mpi_pid, at_end, asleep_ns = words
    return Seen(turns, n_saved, number, stack_pid, saves_pid, text, mpi_pid, bool(at_end), 1e-9 * asleep_ns)


def _open() -> None:
    """Find the launcher's page, the first time; if there is none, or it's gone, this process keeps a private one."""
    if _page.opened:
        return
    _page.opened = True
    path = os.environ.get(VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        # On another host, or later, the path may belong to another file.
        if not path or not os.readlink(path).startswith(f"/memfd:{NAME}"):
            return
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_APPEND)
        memory = memoryview(mmap.mmap(file, BYTES))
        owner = memory.cast("Q")[_OWNER]
        if owner not in (0, os.getpid()) and os.path.exists(f"/proc/{owner}"):
            os.close(file)
            return
        _page.show(memory)
        _page.words[_OWNER] = os.getpid()
        if threading.current_thread() is threading.main_thread():
            faulthandler.unregister(STACK_SIGNAL)  # sitecustomize.py has registered another copy of this module
            signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # needed when Python, at its end, undoes the next line
            faulthandler.register(STACK_SIGNAL, file, all_threads=True)
            _page.words[_STACK_PID] = os.getpid()


# --- the start of MPI -------------------------------------------------------------------------------------------------


_MPI = "mpi4py.MPI"


def guard() -> None:
    """Attend to the process when it imports mpi4py.MPI, and let Ctrl-C kill it meanwhile; nothing if that is imported.

    The import calls MPI_Init.  A KeyboardInterrupt raised afterwards would end the program only after MPI_Finalize, which
    waits for the other ranks, while those wait for this one.  A killed process, however, ends the job, and launch/run names
    it.  After the import, an uncaught exception ends the job, too.
    """
    if _MPI not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Find mpi4py.MPI once, with the other finders, and guard its execution."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MPI:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with _deadly():
                    attend()
                    plain(module)
                atexit.register(_end_all, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _end_all(mpi: ModuleType) -> None:
    """At the end of a program by an error, let MPI_Finalize end all ranks: the others may wait for this one in MPI."""
    if issubclass(getattr(sys, "last_type", None) or SystemExit, Exception):
        mpi._set_abort_status(1)  # as python -m mpi4py does


@contextlib.contextmanager
def _deadly() -> Iterator[None]:
    """A block in which SIGINT kills the process, unless the user has replaced Python's handler."""
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
