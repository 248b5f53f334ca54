"""What all ranks do together: open a communicator of our own, agree that none has failed, tell each other objects.

Every call that all ranks make takes the user's communicator to `opened` (or `duplicate`) and works on what it gets; checks
its arguments within `agree`, so that all ranks raise when one does; and compares those that must be equal with `agree_on`.
Nothing here blocks: ranks that wait for a late one sleep, say for whom they wait, and obey Ctrl-C.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.mpi.common import last_words
from lb_mpi.mpi.common.failure import Failed, failure
from lb_mpi.mpi.common.interrupts import interrupts
from lb_mpi.mpi.common.presence import call, duplicate, hang_s, presence_of, wait

__all__ = ["agree", "agree_on", "allgather", "barrier", "bcast", "duplicate", "gather", "opened", "raise_together", "wait"]

T = TypeVar("T")
last_words.install()
_finalized = MPI.Comm.Create_keyval(delete_fn=lambda _comm, _key, _value: signs.end())
if MPI.Is_initialized() and not MPI.Is_finalized():
    MPI.COMM_SELF.Set_attr(_finalized, None)  # MPI.Finalize deletes it, before all else


@contextmanager
def opened(comm: MPI.Intracomm, name: str, *, watched: bool = False) -> Iterator[MPI.Intracomm]:
    """Collective: be in the call `name` for this block, with a communicator of our own, which is freed at its end.

    A rank that leaves the block by an error of its own tells all others, which raise `lb_mpi.Error`.
    """
    with call(name, watched=watched):
        own = duplicate(comm)
        presence = presence_of(own)
        try:
            agree(own, hang_s)
            yield own
        except BaseException as error:
            presence.leave(error)
            raise
        presence.close()


def agree(comm: MPI.Intracomm, make: Callable[[], T]) -> T:
    """Collective: the value of `make()`, which runs on every rank by itself; when it raises on some, every rank raises.

    The failing ranks raise their own exception (SystemExit and KeyboardInterrupt, too), the others the same kind (of
    ValueError, TypeError, OSError and those of its kinds that tell of files; otherwise `lb_mpi.Error`), with the text of
    the lowest failing rank and its number.
    """
    error: BaseException | None = None
    value: T | None = None
    try:
        with interrupts().allowed():
            value = make()
    except BaseException as caught:
        error = caught
    raise_together(comm, error)
    return value  # type: ignore[return-value]


def raise_together(comm: MPI.Intracomm, error: BaseException | Failed | None) -> None:
    """Collective: raise on every rank when `error` is one on any; see `agree`.

    With `Failed`, this rank, too, raises what the lowest failing rank has told, from its own error; but SystemExit and
    KeyboardInterrupt themselves.
    """
    told = None
    if isinstance(error, Failed):
        error, told = error
    failed = np.array([error is not None], dtype=np.int32)
    anywhere = np.zeros(1, dtype=np.int32)
    wait(comm, comm.Iallreduce(failed, anywhere, MPI.MAX), (failed, anywhere))
    if not anywhere[0]:
        return
    everyone = allgather(comm, None if error is None else told or failure(error))
    together = presence_of(comm).together
    if error is not None and (told is None or not isinstance(error, Exception)):
        raise together(error)
    for rank, theirs in enumerate(everyone):
        if theirs is not None:
            raise together(theirs.error(rank)) from error


def agree_on(comm: MPI.Intracomm, **arguments: Any) -> None:
    """Collective: ValueError on every rank, naming the argument and two ranks, unless all pass equal arguments.

    They are compared as text: what a user passes need not be fit for pickling, nor equal to itself.
    """
    mine = {name: (show(value), _digest(value)) for name, value in arguments.items()}
    for rank, theirs in enumerate(told := allgather(comm, mine)):
        for name, (text, digest) in theirs.items():
            first = told[0][name]
            if digest != first[1]:
                wrong = ValueError(f"{name} = {text} on rank {rank}: expected {first[0]}, as on rank 0")
                raise presence_of(comm).together(wrong)


def allgather(comm: MPI.Intracomm, value: T) -> list[T]:
    """Collective: the values of all ranks, on all of them."""
    data, sizes = _pickled(value), np.empty(comm.size, dtype=np.int64)
    mine = np.array([len(data)], dtype=np.int64)
    wait(comm, comm.Iallgather(mine, sizes), (mine, sizes))
    everything = np.empty(sizes.sum(), dtype=np.uint8)
    wait(comm, comm.Iallgatherv([data, MPI.BYTE], [everything, sizes, MPI.BYTE]), (data, everything))
    return _unpickled(everything, sizes)


def gather(comm: MPI.Intracomm, value: T, root: int = 0) -> list[T] | None:
    """Collective: the values of all ranks, on the root."""
    data, sizes = _pickled(value), np.zeros(comm.size, dtype=np.int64)
    mine = np.array([len(data)], dtype=np.int64)
    wait(comm, comm.Igather(mine, sizes, root), (mine, sizes))
    everything = np.empty(sizes.sum(), dtype=np.uint8)
    wait(comm, comm.Igatherv([data, MPI.BYTE], [everything, sizes, MPI.BYTE], root), (data, everything))
    return _unpickled(everything, sizes) if comm.rank == root else None


def bcast(comm: MPI.Intracomm, value: T | None, root: int = 0) -> T:
    """Collective: the root's value, on all ranks."""
    data = _pickled(value) if comm.rank == root else np.empty(0, dtype=np.uint8)
    size = np.array([len(data)], dtype=np.int64)
    wait(comm, comm.Ibcast(size, root), size)
    if comm.rank != root:
        data = np.empty(size[0], dtype=np.uint8)
    wait(comm, comm.Ibcast([data, MPI.BYTE], root), data)
    found: Any = value if comm.rank == root else pickle.loads(data.data)
    return found  # type: ignore[no-any-return]


def barrier(comm: MPI.Comm) -> None:
    """Collective: wait for all ranks."""
    wait(comm, comm.Ibarrier())


def _pickled(value: object) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)


def _unpickled(data: np.ndarray[tuple[int], np.dtype[np.uint8]], sizes: np.ndarray[Any, np.dtype[np.int64]]) -> list[Any]:
    ends = sizes.cumsum().tolist()
    return [pickle.loads(data.data[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]


def _digest(value: object) -> int:
    try:
        return zlib.crc32(repr(value).encode(errors="replace"))
    except Exception:
        return 0
