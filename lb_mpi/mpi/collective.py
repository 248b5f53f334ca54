"""The one place for the user's communicator, and for what all ranks have to agree on before they go on.

Every door takes the user's communicator to `duplicate` and works on what it gets; checks its arguments within `agree`, so
that all ranks raise when one does; and compares those that must be equal with `agree_on`.  An exception travels between
ranks as plain text (`Failure`), made by `describe` and `place`, which never raise whatever the exception does.
"""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.mpi import last_words
from lb_mpi.mpi.waiting import barrier, wait

T = TypeVar("T")
last_words.install()
_finalized = MPI.Comm.Create_keyval(delete_fn=lambda _comm, _key, _value: signs.end())
if MPI.Is_initialized() and not MPI.Is_finalized():
    MPI.COMM_SELF.Set_attr(_finalized, None)  # MPI.Finalize deletes it, before all else

_FILES: tuple[type[Exception], ...] = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    TimeoutError,
)
_KINDS: tuple[type[Exception], ...] = (ValueError, TypeError, *_FILES, OSError)


class Failure(NamedTuple):
    """What one rank tells the others of an exception."""

    kind: str  # of _KINDS, or "Error"
    text: str


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Collective: a communicator of our own, of the same ranks, without topology; to be freed by who has asked for it.

    TypeError for what is no intracommunicator, ValueError for one that has been freed.
    """
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm = {show(comm)}: expected an mpi4py intracommunicator")
    if comm == MPI.COMM_NULL:
        raise ValueError("comm = COMM_NULL: expected a communicator that has not been freed")
    signs.begin()
    if comm.Get_topology() == MPI.UNDEFINED:
        return MPI.Intracomm(comm.Dup())
    # A duplicate would have the topology, too, and Open MPI dies when it's asked to make another one from that.
    return MPI.Intracomm(comm.Split(0, comm.rank))


def agree(comm: MPI.Intracomm, make: Callable[[], T], *, patient: bool = False) -> T:
    """Collective: the value of `make()`, which runs on every rank by itself; when it raises on some, every rank raises.

    The failing ranks raise their own exception (SystemExit and KeyboardInterrupt, too), the others the same kind (of
    ValueError, TypeError, OSError and those of its kinds that tell of files; otherwise `lb_mpi.Error`), with the text of
    the lowest failing rank and its number.
    `patient`: who waits, sleeps, since it takes long on some ranks.
    """
    error: BaseException | None = None
    value: T | None = None
    try:
        value = make()
    except BaseException as caught:
        error = caught
    if patient:
        barrier(comm)
    raise_together(comm, error)
    return value  # type: ignore[return-value]


def raise_together(comm: MPI.Intracomm, error: BaseException | None) -> None:
    """Collective: raise on every rank when `error` is one on any; see `agree`."""
    failed = np.array([error is not None], dtype=np.int32)
    anywhere = np.zeros(1, dtype=np.int32)
    wait(comm.Iallreduce(failed, anywhere, MPI.MAX))
    if not anywhere[0]:
        return
    told = comm.allgather(None if error is None else failure(error))
    if error is not None:
        raise error
    for rank, theirs in enumerate(told):
        if theirs is not None:
            raise_as(theirs, rank)


def raise_as(told: Failure, rank: int) -> NoReturn:
    """Raise what `rank` has told."""
    kind = next((kind for kind in _KINDS if kind.__name__ == told.kind), Error)
    raise kind(told.text if told.text.startswith("rank ") else f"rank {rank}: {told.text}")


def agree_on(comm: MPI.Intracomm, **arguments: Any) -> None:
    """Collective: ValueError on every rank, naming the argument and two ranks, unless all pass equal arguments.

    They are compared as text: what a user passes need not be fit for pickling, nor equal to itself.
    """
    mine = {name: (show(value), _digest(value)) for name, value in arguments.items()}
    for rank, theirs in enumerate(told := comm.allgather(mine)):
        for name, (text, digest) in theirs.items():
            first = told[0][name]
            if digest != first[1]:
                raise ValueError(f"{name} = {text} on rank {rank}: expected {first[0]}, as on rank 0")


def closed(name: str) -> ValueError:
    """Make the error of what is used after its `close`."""
    return ValueError(f"a {name} that was closed: expected an open one")


def failure(error: BaseException) -> Failure:
    """What is told of an exception: the bare message of what is wrong with an argument, all that is known of the others."""
    if isinstance(error, Error):
        return Failure("Error", _text(error))
    kind = next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "")
    return Failure(kind, _text(error)) if kind else Failure("Error", f"{describe(error)} {place(error)}")


def describe(error: BaseException) -> str:
    """Say in words what was raised: its type and message.  Never raises."""
    text = _text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place(error: BaseException) -> str:
    """Say where it was raised: "(file:line, in function)".  Never raises."""
    try:
        frames = traceback.extract_tb(error.__traceback__)
    except Exception:
        frames = traceback.StackSummary()
    return f"({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else "(place unknown)"


def _digest(value: object) -> int:
    try:
        return zlib.crc32(repr(value).encode(errors="replace"))
    except Exception:
        return 0


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        text.encode()  # a lone surrogate can't be sent
    except BaseException as caught:
        return f"(its text can't be had: str() raised {type(caught).__name__})"
    return text
