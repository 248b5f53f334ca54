"""Where the ranks of a pool come together that all call its methods: what they call, and that none has failed by then."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.mpi.collective import raise_together
from lb_mpi.mpi.crew import Crew
from lb_mpi.mpi.recorder import running
from lb_mpi.record.events import Phase


class Op(IntEnum):
    """What a rank calls."""

    SERVE = 0  # wait: whatever the others call
    MAP = 1
    SHARE = 2
    CLOSE = 3


LEAST = -max(Op) - 1  # below the negative of any


class Met(NamedTuple):
    """What ranks know of each other when they have come together."""

    value: Any  # this rank's
    some_serve: bool
    op: Op  # of those that don't serve


def meet(crew: Crew, op: Op, make: Callable[[], Any] = lambda: None) -> Met:
    """Collective: make() of this rank, when no rank's raises; otherwise all ranks raise.

    ValueError on all ranks when they call different methods.
    """
    error, value = None, None
    try:
        value = make()
    except BaseException as caught:
        error = caught
    serves = op == Op.SERVE
    mine = np.array([error is not None, serves, op, LEAST if serves else -op], dtype=np.int32)
    result = np.zeros_like(mine)
    with running(crew.post.record, Phase.WAITING):
        crew.news.wait(crew.comm.Iallreduce(mine, result, MPI.MAX).Test, keep=(mine, result))
    failed, some_serve, last, first = result.tolist()
    if failed:
        raise_together(crew.comm, error)
    if last != -first:
        names = [Op(one).name.lower() for one in (-first, last)]
        raise ValueError(f"{names[0]} is called on one rank of the pool, {names[1]} on another: expected the same on all")
    return Met(value, bool(some_serve), op if last == op else Op(last))
