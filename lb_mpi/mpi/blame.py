"""What has failed on one rank, told on all of them."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from mpi4py import MPI

from lb_mpi.errors import BalanceError
from lb_mpi.mpi.collective import Failure, describe, failure, place
from lb_mpi.mpi.waiting import barrier

_KINDS: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}


class Blame(NamedTuple):
    """An exception on this rank, and what the others are told of it."""

    error: BaseException
    told: Failure


def blame_user(error: BaseException, rank: int, what: str) -> Blame:
    """Blame what a user has written: where it was, and with which rows."""
    return Blame(error, Failure("BalanceError", f"rank {rank}, {what}: {describe(error)} {place(error)}"))


def blame_argument(error: Exception) -> Blame:
    """Blame what is wrong with an argument."""
    return Blame(error, failure(error))


def raise_everywhere(comm: MPI.Intracomm, blame: Blame | None, words: str | None) -> NoReturn:
    """Collective: raise the same error on all ranks, that of the lowest failing one; or that their rows, in `words`, differ.

    Who has raised SystemExit or KeyboardInterrupt raises that.
    """
    barrier(comm)
    everyone = comm.allgather((blame.told if blame is not None else None, words))
    error = blame.error if blame is not None else None
    if error is not None and not isinstance(error, Exception):
        raise error
    for rank, (told, _) in enumerate(everyone):
        if told is not None:
            text = told.text if told.text.startswith("rank ") else f"rank {rank}: {told.text}"
            raise _KINDS.get(told.kind, BalanceError)(text) from error
    for rank, (_, theirs) in enumerate(everyone):
        if theirs != everyone[0][1]:
            raise TypeError(f"rows of rank {rank} are {theirs}: expected {everyone[0][1]}, as on rank 0")
    raise TypeError("rows differ between ranks")
