"""Where the ranks of a pool come together that all call its methods: on the same method, and on its arguments."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.mpi.common.collective import raise_together
from lb_mpi.mpi.common.recorder import running
from lb_mpi.mpi.pool.crew import Crew
from lb_mpi.record.events import Phase

T = TypeVar("T")


class Op(IntEnum):
    """What a rank calls."""

    MAP = 1
    WAIT = 2
    CLOSE = 3


def meet(crew: Crew, op: Op, make: Callable[[], T]) -> T:
    """Collective: return make() of this rank; when it raises on any rank, all ranks raise.

    ValueError on all ranks when they call different methods.
    """
    error, value = None, None
    try:
        value = make()
    except BaseException as caught:
        error = caught
    mine = np.array([error is not None, op, -op], dtype=np.int32)
    result = np.zeros_like(mine)
    name = f"{op.name.lower()} of lb_mpi.Pool"
    with running(crew.record, Phase.WAITING):
        crew.news.wait(crew.comm.Iallreduce(mine, result, MPI.MAX).Test, keep=(mine, result), name=name)
    failed, last, first = result.tolist()
    if failed:
        raise_together(crew.comm, error)
    if last != -first:
        names = [Op(one).name.lower() for one in (-first, last)]
        wrong = f"{names[0]} is called on one rank of the pool, {names[1]} on another: expected one method"
        raise crew.news.together(ValueError(wrong))
    return value  # type: ignore[return-value]
