"""Compile inner loops with numba.

Compiled loops are cached on disk, each as soon as it is compiled, so only the first run of a user compiles, and one that is
killed loses one of them.  That may delay the partition of a large graph by half a minute (see `lb_mpi.compiling`).

A kernel's arguments are named tuples of arrays.  numba counts a reference at each access to such an array, even in inner
loops, which takes as long as the work itself.  A function that neither creates nor keeps arrays needs no counting.

numba has a type for each literal integer or bool, and compiles a kernel once more for each with which another kernel calls
it, even if the variable gets other values later.  So these are global names, and each is a `constant`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar, cast

import numpy as np

from lb_mpi import __version__
from lb_mpi.compiling import compilation
from lb_mpi.handlers import install, restore

# --- Ctrl-C ------------------------------------------------------------------------------------------------------------

_pressed: list[int] = []  # signals that were held back
_handlers: list[Callable[..., Any]] = []  # at most one: that of the program, while they are held back


def _press(number: int, frame: FrameType | None) -> None:
    if _is_in_compilation(frame):  # which takes seconds, and is Python code
        _handlers[0](number, frame)
    else:
        _pressed.append(number)


def _is_in_compilation(frame: FrameType | None) -> bool:
    if "_Listener" not in globals():  # numba is being imported: half of it could never be imported again
        return False
    while frame is not None and frame.f_code not in (_Listener.on_start.__code__, _Listener.on_end.__code__):
        if frame.f_code is dispatcher.Dispatcher.compile.__code__:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back in this block, which calls kernels, until `check_interrupt`, or its end.

    A KeyboardInterrupt in a kernel that returns arrays would become a SystemError, or crash; in its compilation, it is
    raised at once.  In another thread, nothing changes.
    """
    handler = signal.getsignal(signal.SIGINT)
    if _handlers or not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    _handlers.append(handler)
    install(signal.SIGINT, _press)
    try:
        yield
    finally:
        restore(signal.SIGINT, _press)
        try:
            check_interrupt()
        finally:
            _handlers.clear()
            _pressed.clear()


def check_interrupt() -> None:
    """Handle the Ctrl-C that was held back, if any, as the program does: between two kernels."""
    if _pressed and threading.current_thread() is threading.main_thread():
        number = _pressed[-1]
        _pressed.clear()
        _handlers[0](number, None)


with held_interrupts():
    try:
        import numba
        from numba.core import caching, dispatcher, event
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise ModuleNotFoundError('graphs need numba: pip install "PATH/TO/CLONE[graphs]"', name="numba") from error

# Two options of numba's that are not documented: if one is missing, importing this module fails.
COUNTLESS: Any = {"_nrt": False}
NOT_FROM_C: Any = {"no_cfunc_wrapper": True}  # an entry for C takes a twelfth of the time to compile

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Number = TypeVar("Number", int, bool)


def constant(value: Number) -> Number:
    """Return a global constant that kernels give to each other: of numpy's type, which numba has no literals of."""
    return cast("Number", np.array(value)[()])


ZERO = constant(0)
_ours: set[CodeType] = set()  # of functions compiled by `njit`: numba tells of those of the program, too


def njit(**options: Any) -> Callable[[Kernel], Kernel]:
    """Compile a kernel as numba's `njit` does, without an entry for C; and without a cache where none can be written."""

    def compiled(kernel: Kernel) -> Kernel:
        _ours.add(kernel.__code__)
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return np.errstate(all="ignore")(kernel)  # as when compiled: numpy would warn of random numbers
        try:
            return cast("Kernel", numba.njit(**NOT_FROM_C, **options)(kernel))
        except RuntimeError:
            compilation.has_cache = False
            return cast("Kernel", numba.njit(**NOT_FROM_C, **{**options, "cache": False})(kernel))

    return compiled


def borrowing(kernel: Kernel) -> Kernel:
    """Compile a kernel that creates no arrays; a division by 0 gives infinity, as in numpy."""
    return njit(cache=True, error_model="numpy", **COUNTLESS)(kernel)


def inlined(kernel: Kernel) -> Kernel:
    """Compile a small kernel that creates no arrays, and inline it into its callers."""
    return njit(forceinline=True, **COUNTLESS)(kernel)


# --- the cache ---------------------------------------------------------------------------------------------------------

PACKAGE = Path(__file__).resolve().parent
INSTALLED = {"site-packages", "dist-packages"}


@functools.cache
def digest() -> bytes:
    """Return a digest of all files with kernels, which inline parts of each other, and of the version of numba."""
    texts = [file.read_bytes() for file in sorted(PACKAGE.rglob("*.py"))]
    kernels = [text for text in texts if re.search(rb"\b(njit|inlined|borrowing)\b", text)]
    return hashlib.sha256(b"".join([numba.__version__.encode(), *kernels])).digest()


def cache_folders() -> list[Path]:
    """Return the folders that may have the kernels of lb_mpi, the best one first."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = [Path(numba.config.CACHE_DIR, "lb_mpi", __version__)] if numba.config.CACHE_DIR else []  # type: ignore[attr-defined]
    folders += [PACKAGE / "__pycache__"] if INSTALLED.isdisjoint(PACKAGE.parts) else []
    return [*folders, Path(home, "lb_mpi", __version__)]


class KernelCache(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    """The cache of the kernels of lb_mpi: beside the sources of a clone; of an installed one, one for each version and user,
    however many environments have it.  NUMBA_CACHE_DIR comes before both.  Not public in numba either.

    numba's own cache of a kernel knows its file only.
    """

    def __init__(self, kernel: Any, file: str, folder: Path) -> None:
        self._lineno = kernel.__code__.co_firstlineno
        self._path = folder.joinpath(*Path(file).resolve().relative_to(PACKAGE).parent.parts)

    def get_cache_path(self) -> str:
        """Return the folder of the kernels of a file."""
        return str(self._path)

    def get_source_stamp(self) -> bytes:
        """Return what changes with any source that may be a part of the kernel."""
        return digest()

    @classmethod
    def from_function(cls, kernel: Any, file: str) -> Any:
        """Return the cache of a kernel of lb_mpi, in the first folder that can be written to; None for other kernels."""
        if not Path(file).resolve().is_relative_to(PACKAGE):
            return None
        for folder in cache_folders():
            cache = cls(kernel, file, folder)
            with contextlib.suppress(OSError):
                cache.ensure_cache_path()  # type: ignore[no-untyped-call]
                return cache
        raise RuntimeError("no folder for the cache")  # as numba does


caching.CompileResultCacheImpl._locator_classes.insert(0, KernelCache)  # type: ignore[arg-type]


# --- compilation -------------------------------------------------------------------------------------------------------


class _Listener(event.Listener):
    """A listener to numba's compilation of kernels that are not in the cache."""

    def on_start(self, event: Any) -> None:
        """Note that a kernel begins to be compiled."""
        if (kernel := event.data["dispatcher"].py_func).__code__ in _ours:
            compilation.begin(kernel.__name__)

    def on_end(self, event: Any) -> None:
        """Note that its compilation has ended or failed."""
        if event.data["dispatcher"].py_func.__code__ in _ours:
            compilation.end()


event.register("numba:compile", _Listener())  # type: ignore[no-untyped-call]
