"""Marks between machines: what ranks of one machine mark in their shared array, those of the others hear soon.

Each rank keeps a log of what it has marked (`MazeSearch.take_marks`).  Between two work quanta it sends the log to one rank
of every other machine, without blocking; who receives it marks the same in its machine's array.  What two machines mark
before they have heard of each other is done twice, and counted; nothing is ever lost.  So that this stays little, a rank
that the others have not heard of for too many marks waits: sends are synchronous, complete only when they are received.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from lb_mpi.mpi.waiting import Nap, barrier

Marks = npt.NDArray[np.int64]

_TAG = 1
MOST_UNDER_WAY = 2  # sends to each machine; with more the log is kept, and fills, and the search waits
REST_S = 50e-6  # for who waits


class Marking(Protocol):
    """Who marks: a `MazeSearch`."""

    def take_marks(self) -> Marks:
        """What was marked since the last call."""

    @property
    def log_is_full(self) -> bool:
        """Whether nothing more can be marked before the next call of take_marks."""

    def put_marks(self, marks: Marks) -> None:
        """Marks of another machine."""


def machine_number(comm: MPI.Intracomm, machine: MPI.Intracomm) -> int:
    """Collective: 0, 1, ... of the machines that the ranks of `comm` are on, the one of this rank."""
    leader = machine.bcast(comm.rank)
    return sorted(set(comm.allgather(leader))).index(leader)


class MarkExchange:
    """Carries the marks of `problem` between the machines that the ranks of `comm` are on.

    `machine` is the communicator of this rank's machine, all of whose ranks mark the same array.  Collective, as are
    `finish` and `close`; `exchange` is not.  Works on a duplicate of `comm`.
    """

    def __init__(self, comm: MPI.Intracomm, machine: MPI.Intracomm, problem: Marking) -> None:
        numbers = comm.allgather(machine_number(comm, machine))
        self.n_machines = max(numbers) + 1
        ranks = [[rank for rank, number in enumerate(numbers) if number == k] for k in range(self.n_machines)]
        self._targets = [there[machine.rank % len(there)] for there in ranks if comm.rank not in there]
        self._comm, self._problem = comm.Dup(), problem
        self._pending: list[tuple[MPI.Request, Marks]] = []
        self._sent = np.zeros(comm.size, dtype=np.int64)  # messages to each rank
        self._received = 0
        self._status = MPI.Status()

    def exchange(self) -> None:
        """Take in what others have marked, and send what was marked here; returns at once."""
        if not self._targets:
            self._problem.take_marks()  # nobody wants to know, but the log must not fill
            return
        self._take()
        if len(self._pending) < MOST_UNDER_WAY * len(self._targets):
            self._send()
        elif self._problem.log_is_full:
            time.sleep(REST_S)

    def finish(self) -> None:
        """When no rank marks any more: afterwards every machine has all marks."""
        self._send()
        expected = np.zeros(1, dtype=np.int64)
        request = self._comm.Ireduce_scatter_block(self._sent, expected)
        nap, counted = Nap(0.5e-3), False
        while not counted or self._received < expected[0] or self._pending:
            if self._take():
                nap.reset()
            else:
                nap.take()
            counted = counted or request.Test()
        barrier(self._comm)  # each rank receives some of what its machine is told

    def close(self) -> None:
        """Free what belongs to the MPI."""
        self._comm.Free()

    def _send(self) -> None:
        marks = self._problem.take_marks()
        for target in self._targets if len(marks) else []:
            self._pending.append((self._comm.Issend(marks, target, _TAG), marks))
            self._sent[target] += 1

    def _take(self) -> bool:
        before = self._received
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)) is not None:
            marks = np.empty(self._status.Get_count(MPI.INT64_T), dtype=np.int64)  # 65,534 rows need more than 32 bits
            message.Recv(marks)
            self._problem.put_marks(marks)
            self._received += 1
        if self._pending:
            self._pending = [(request, marks) for request, marks in self._pending if not request.Test()]
        return self._received > before
