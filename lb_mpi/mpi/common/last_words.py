"""What a rank prints when it ends by an error that all ranks raise: who knows the cause, all of it, each other a line.

Otherwise every rank prints the same twenty lines, mixed with those of the others.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from mpi4py import MPI

from lb_mpi.errors import Error, TaskError

TOLD_S = 0.5  # the first rank that ends may end all (python -m mpi4py): let who has more to tell come first


def line(error: BaseException, rank: int, size: int) -> str:
    """Return the line that is enough on this rank; "" where the whole traceback is wanted."""
    cause = error.__cause__
    knows = cause is not None and cause.__traceback__ is not None
    if isinstance(error, TaskError):  # the cause has come to the root without its traceback
        knows = knows or rank == 0
    if not isinstance(error, Error) or size == 1 or knows:
        return ""
    kind = type(error)
    return f"rank {rank}: {kind.__module__}.{kind.__qualname__}: {error}"


def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception that nobody has caught, as sys.excepthook."""
    words = ""
    if MPI.Is_initialized() and not MPI.Is_finalized():
        words = line(error, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    if words:
        print(words, file=sys.stderr, flush=True)
        time.sleep(TOLD_S)
    else:
        sys.__excepthook__(kind, error, trace)


def install() -> None:
    """Take the place of Python's own hook; one of the user's stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook
