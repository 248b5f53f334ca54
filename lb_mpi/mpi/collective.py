"""All ranks agree that something went well before the first of them goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from lb_mpi.mpi.waiting import barrier

T = TypeVar("T")


def agree(comm: MPI.Comm, make: Callable[[], T], *, patient: bool = False) -> T:
    """Collective: the value of `make()`, which runs on every rank by itself; when it raises an Exception on some, every
    rank raises: the failing ones their own, the others one of the same type (of ValueError, TypeError, OSError; otherwise
    RuntimeError) with the message of the lowest failing rank, and its rank.

    `patient`: who waits, sleeps, since it takes long on some ranks.
    """
    error: Exception | None = None
    value: T | None = None
    try:
        value = make()
    except Exception as caught:
        error = caught
    if patient:
        barrier(comm)
    told = comm.allgather(None if error is None else (_kind(error), str(error)))
    if error is not None:
        raise error
    for rank, failure in enumerate(told):
        if failure is not None:
            kind, text = failure
            raise kind(f"rank {rank}: {text}")
    return value  # type: ignore[return-value]


def agree_on(comm: MPI.Comm, **arguments: Any) -> None:
    """Collective: ValueError on every rank, naming the argument and two ranks, unless all pass equal arguments."""
    for rank, theirs in enumerate(told := comm.allgather(arguments)):
        for name, value in theirs.items():
            if value != told[0][name]:
                raise ValueError(f"{name} = {value!r} on rank {rank}: expected {told[0][name]!r}, as on rank 0")


def _kind(error: Exception) -> type[Exception]:
    return next((kind for kind in (ValueError, TypeError, OSError) if isinstance(error, kind)), RuntimeError)
