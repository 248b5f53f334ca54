"""Exceptions that are sent between ranks, and what each rank prints of them.

An exception is sent as plain text and the kind of error that the others raise.  Making that never raises, whatever the
exception does.  If all ranks raise an error, one that knows the cause prints the traceback, and each other one line.
Otherwise every rank would print the same twenty lines, interleaved with those of the others.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from concurrent.futures import BrokenExecutor
from functools import partial
from pathlib import Path
from types import CodeType, TracebackType
from typing import NamedTuple, TypeVar

import mpi4py.run
from mpi4py import MPI

from lb_mpi.errors import BalanceError, Error, SaveError, SearchError, Stopped, TaskError
from lb_mpi.mpi.common.calls import HANDLERS
from lb_mpi.signs import SAVED
from lb_mpi.status import write_error

E = TypeVar("E", bound=BaseException)
TRACEBACK_S = 0.5  # the first rank to end may end all (python -m mpi4py), so ranks with a one-line message wait

_FILES: tuple[type[Exception], ...] = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    TimeoutError,
)
_KINDS: tuple[type[Exception], ...] = (
    ValueError, TypeError, *_FILES, OSError, BalanceError, SaveError, SearchError, Error,
)  # fmt: skip
_MISTAKES = (ValueError, TypeError, OSError, Error, BrokenExecutor, KeyboardInterrupt)  # raised for a user's mistake
_NOTE = "_lb_mpi_note"
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_hints: list[tuple[type, str]] = []  # what this rank has worked for, and the hint if it continues with None in its place


class _Note:
    """Facts about an error that only this rank needs; its copy on another rank, or in a file, has none."""

    ranks: object = None  # that raise it together
    quiet = False  # another rank prints its traceback

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class Failure(NamedTuple):
    """An exception as one rank sends it to the others."""

    kind: str  # one of _KINDS
    text: str

    def error(self, rank: int) -> Exception:
        """Return the exception to raise on the ranks to which `rank` has sent it."""
        kind = next((kind for kind in _KINDS if kind.__name__ == self.kind), Error)
        return kind(self.text if self.text.startswith("rank ") else f"rank {rank}: {self.text}")


def failure(error: BaseException) -> Failure:
    """Describe an exception: for a wrong argument the bare message; otherwise kind, text and place."""
    kind = next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "")
    return Failure(kind, _text(error)) if kind else Failure("Error", cause(error))


class Failed(NamedTuple):
    """An exception on this rank, and what is sent to the others."""

    error: BaseException
    sent: Failure


def of_argument(error: Exception) -> Failed:
    """Describe a wrong argument."""
    return Failed(error, failure(error))


def of_rows(error: BaseException, rank: int, what: str) -> Failed:
    """Describe an error of the user's function: where it was raised, and the rows."""
    return Failed(error, Failure("BalanceError", f"rank {rank}, {what}: {cause(error)}"))


def of_search(error: BaseException, rank: int) -> Failed:
    """Describe an error of the user's problem."""
    return Failed(error, Failure("SearchError", f"rank {rank}: {cause(error)}"))


def cause(error: BaseException) -> str:
    """Return type, message and place of an exception; of an error of ours that names its cause, the message."""
    text = _text(error)
    if isinstance(error, BalanceError | SearchError) or (isinstance(error, Error) and text.startswith("rank ")):
        return text
    return located(error)


def describe(error: BaseException) -> str:
    """Return the type and message of an exception."""
    text = _text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def located(error: BaseException) -> str:
    """Return the type and message of an exception, and where it was raised, if that is known."""
    return f"{describe(error)} {location(error)}".rstrip()


def location(error: BaseException) -> str:
    """Return where it was raised: "(file:line, in function)"; of Ctrl-C, the code that it interrupted; "": not known."""
    try:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name not in HANDLERS]
    except Exception:
        frames = []
    if isinstance(error, KeyboardInterrupt) and (not frames or frames[-1].filename.startswith(_OURS)):
        return "(in lb_mpi)"  # it was held back
    if isinstance(error, ValueError | TypeError | Error):  # of a wrong argument: the caller's line, not our check
        frames = [frame for frame in frames if not _is_ours(frame)]
    return f"({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS) or frame.filename == contextlib.__file__


def location_of(function: object) -> str:
    """Return where a function is defined; "": not known."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return f"({code.co_filename}:{code.co_firstlineno}, in {code.co_name})" if isinstance(code, CodeType) else ""


def formatted(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, without our frames, unless the mistake may be ours."""
    found = traceback.TracebackException.from_exception(error)
    _trim(found, error)
    return "".join(found.format())


def _trim(found: traceback.TracebackException, error: BaseException) -> None:
    frames = found.stack
    if frames and not (_is_ours(frames[-1]) and not isinstance(error, _MISTAKES)):
        frames[:] = [frame for frame in frames if not _is_ours(frame)] or frames[-1:]
    for other, its in ((found.__cause__, error.__cause__), (found.__context__, error.__context__)):
        if other is not None and its is not None:
            _trim(other, its)
    its = error.__cause__
    if found.__cause__ is not None and its is not None and _is_check(found.__cause__.stack) and _text(its) in _text(error):
        found.__cause__ = None  # the error says all of it


def _is_check(frames: traceback.StackSummary) -> bool:
    """Return whether a check of ours has raised, with no code of the user's in between."""
    return all(_is_ours(frame) for frame in frames) and bool(frames) and (frames[-1].line or "").startswith("raise ")


def share(error: BaseException, ranks: object) -> None:
    """Note that all of these ranks raise this error together, so that none sends it."""
    _note_of(error).ranks = ranks


def quiet(error: E) -> E:
    """Note that another rank prints the traceback of this error, so that this rank prints a line."""
    _note_of(error).quiet = True
    return error


def hint(kind: type, text: str) -> None:
    """Print this hint with an AttributeError of None that `kind`, a Pool for example, would not raise."""
    _hints[:] = [(kind, text)]


def is_of_all(error: BaseException, ranks: object) -> bool:
    """Return whether all of these ranks raise it together."""
    found = _note_of(error).ranks
    return found is ranks and found is not None


def is_shared(error: BaseException) -> bool:
    """Return whether all ranks of some communicator raise it together."""
    return _note_of(error).ranks is not None


def _note_of(error: BaseException) -> _Note:
    found = None
    with contextlib.suppress(Exception):  # the user's class may allow no attributes: then it is sent once more
        found = getattr(error, _NOTE, None)
        if not isinstance(found, _Note):
            found = _Note()
            setattr(error, _NOTE, found)
    return found or _Note()


def _text(error: BaseException) -> str:
    try:
        return str(error).encode(errors="backslashreplace").decode()  # a lone surrogate, as in a file's name, can't be sent
    except BaseException as caught:
        return f"(its text can't be had: str() raised {type(caught).__name__})"


# --- what a rank prints -----------------------------------------------------------------------------------------------


def line(error: BaseException, rank: int, size: int) -> str:
    """Return the line to print on this rank; "" if the whole traceback is needed."""
    if isinstance(error, AttributeError) and error.obj is None and error.name:  # by hand, it has no name
        for kind, text in _hints:
            if hasattr(kind, error.name):
                return f"rank {rank}: {located(error)}: {text}"
    if size > 1 and rank > 0 and isinstance(error, KeyboardInterrupt):  # which mpiexec has passed to all
        return f"rank {rank}: {located(error)}"
    if not isinstance(error, Stopped) and (size == 1 or not _note_of(error).quiet):
        return ""
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"rank {rank}: {module}{kind.__qualname__}: {error}"


def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception, as sys.excepthook; after Stopped, the program ends with exit code SAVED."""
    text = ""
    if MPI.Is_initialized() and not MPI.Is_finalized():
        text = line(error, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    if text:
        write_error(f"{text}\n")  # in one write, so that the lines of several ranks do not mix
        time.sleep(TRACEBACK_S / 2 if isinstance(error, KeyboardInterrupt) else TRACEBACK_S)  # Ctrl-C reaches all at once
    if isinstance(error, Stopped):
        if any(frame.f_code.co_filename == mpi4py.run.__file__ for frame, _ in traceback.walk_tb(trace)):
            MPI._set_abort_status(SAVED)  # python -m mpi4py would abort with 1
        sys.last_type = SystemExit  # see `signs.guard`
        raise SystemExit(SAVED)  # Python ends with this code
    if text:
        return
    if isinstance(error, TaskError) and error.__cause__ is not None and error.__cause__.__traceback__ is None:
        write_error(f"On rank {error.rank}:\n{error.traceback}\n")
    write_error(formatted(error.with_traceback(trace)))


def install() -> None:
    """Replace Python's own hook, but not a user's."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook
