"""Plans on MPI: all ranks make one together when one is needed, by `lb_mpi.balancing.decider` and `.neighbours`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.actor import ALL, Story
from lb_mpi.balancing.decider import Decider, RootFailed
from lb_mpi.balancing.neighbours import NEAR
from lb_mpi.graph import Floats
from lb_mpi.mpi.common.calls import interrupts
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.collective import raise_on_all
from lb_mpi.mpi.common.communicator import QUICK_S, Presence
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.record.record import OFF

T = TypeVar("T")


def plan_together(presence: Presence, decider: Decider, planning: Story[T]) -> T:
    """Make a plan with all ranks, or find the levels of their loads: follow a story of `decider`, and return its value.

    An error of the root's is raised on all ranks.
    """
    port = _PlanningPort(presence, planning, decider.neighbours)
    try:
        carry(planning, port, presence, OFF, interrupts(), quick_s=QUICK_S)
        presence.wait(port.sent, port)
        return planning.value
    except RootFailed as failed:
        raise_on_all(presence.comm, failed.__cause__)
        raise
    except BaseException:
        presence.retain(port)
        raise


class _PlanningPort(Port[Any, None]):
    """The messages of a plan: to each neighbour, into a reduction, and tables of any length."""

    def __init__(self, presence: Presence, planning: Story[Any], neighbours: Sequence[int]) -> None:
        self._comm, self._planning, self._neighbours = presence.comm, planning, neighbours
        self._near: tuple[Floats, list[MPI.Request]] | None = None  # what comes from the neighbours
        self._all = deque[Reducing]()
        self._table: tuple[int, Floats, MPI.Request] | None = None  # that arrives, and from which rank
        self._sends: list[tuple[MPI.Request, Floats]] = []
        self._status = MPI.Status()

    def arrived(self) -> list[tuple[int, Any]]:
        """Return what has arrived from the source that is awaited: another one may send tables and numbers early."""
        for source in self._planning.awaited or ():
            if source == NEAR and self._near is not None:
                theirs, requests = self._near
                if MPI.Request.Testall(requests):
                    self._near = None
                    return [(NEAR, theirs)]
            elif source == ALL and self._all and self._all[0].done():
                return [(ALL, self._all.popleft().answer)]
            elif source >= 0:
                return self._receive(source)
        return []

    def post(self, sends: list[tuple[int, Any]]) -> None:
        """Start to send."""
        for target, message in sends:
            if target == NEAR:
                self._near = self._begin(message)
            elif target == ALL:
                self._all.append(Reducing(self._comm, message))
            else:
                self._send(target, np.ascontiguousarray(message))

    def sent(self) -> bool:
        """True when all that this rank has sent has left."""
        return MPI.Request.Testall([request for request, _ in self._sends])

    def _begin(self, mine: Floats) -> tuple[Floats, list[MPI.Request]]:
        """Start an exchange with each neighbour."""
        theirs = np.empty((len(self._neighbours), mine.shape[-1]))
        rows = [mine] * len(self._neighbours) if mine.ndim == 1 else np.ascontiguousarray(mine)
        for row, rank in zip(rows, self._neighbours, strict=True):
            self._send(rank, row)
        pairs = zip(theirs, self._neighbours, strict=True)
        return theirs, [self._comm.Irecv(row, rank, int(Tag.NEIGHBOUR)) for row, rank in pairs]

    def _send(self, rank: int, numbers: Floats) -> None:
        self._sends = [(request, kept) for request, kept in self._sends if not request.Test()]
        self._sends.append((self._comm.Isend(numbers, rank, int(Tag.NEIGHBOUR)), numbers))

    def _receive(self, source: int) -> list[tuple[int, Any]]:
        """Receive the next table from a rank."""
        if self._table is None:
            message = self._comm.Improbe(source, int(Tag.NEIGHBOUR), self._status)
            if message is None:
                return []
            table = np.empty(self._status.Get_count(MPI.DOUBLE))
            self._table = source, table, message.Irecv(table)
        source, table, request = self._table
        if not request.Test():
            return []
        self._table = None
        return [(source, table)]
