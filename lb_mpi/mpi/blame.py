"""The error of a user's function on one rank, told on all of them."""

from __future__ import annotations

import traceback
from typing import NoReturn

from mpi4py import MPI

from lb_mpi.errors import BalanceError
from lb_mpi.mpi.rows import Rows
from lb_mpi.mpi.waiting import barrier


def blame(error: Exception, rank: int, what: str) -> Exception:
    """The error of a user's function with a note that all ranks can be told: where it was, and with which rows."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"({where.filename}:{where.lineno}, in {where.name})"
    error.add_note(f"rank {rank}, {what}: {type(error).__name__}: {error} {place}")
    return error


def raise_everywhere(comm: MPI.Comm, error: Exception | None, rows: Rows | None) -> NoReturn:
    """Collective: the same error on all ranks, that of the lowest failing one; or that their `rows` differ."""
    barrier(comm)
    note = getattr(error, "__notes__", [""])[-1] if error is not None else ""
    users = bool(note) or not isinstance(error, ValueError | TypeError)
    name = "BalanceError" if users else "ValueError" if isinstance(error, ValueError) else "TypeError"
    mine = None if error is None else (name, note or f"{error}")
    told = comm.allgather((mine, rows.spec.words if rows is not None else None))
    for rank, (failure, _) in enumerate(told):
        if failure is not None:
            name, text = failure
            kinds: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}
            kind = kinds.get(name, BalanceError)
            raise kind(text if text.startswith("rank ") else f"rank {rank}: {text}") from error
    for rank, (_, words) in enumerate(told):
        if words != told[0][1]:
            raise TypeError(f"rows of rank {rank} are {words}: expected {told[0][1]}, as on rank 0")
    raise TypeError("rows differ between ranks")
