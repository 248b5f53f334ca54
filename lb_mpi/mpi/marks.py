"""Marks between machines: what ranks of one machine mark in their shared array, those of the others hear soon.

Each rank keeps a log of what it has marked (`MazeSearch.take_marks`).  Between two work quanta it sends the log to one rank
of every other machine, without blocking; who receives it marks the same in its machine's array.  What two machines mark
before they have heard of each other is done twice, and counted; nothing is ever lost.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from lb_mpi.mpi.wait import Nap

Marks = npt.NDArray[np.int64]

_TAG = 1
FEWEST = 4096  # marks that are sent at once,
LONGEST_S = 0.5e-3  # unless they are this old
MOST_UNDER_WAY = 64  # sends; with more the log is kept, and fills: who marks faster than the network carries, waits


class Marking(Protocol):
    """Who marks: a `MazeSearch`."""

    def take_marks(self) -> Marks:
        """What was marked since the last call."""

    def put_marks(self, marks: Marks) -> None:
        """Marks of another machine."""


class MarkExchange:
    """Carries the marks of `problem` between the machines that the ranks of `comm` are on.

    `machine` is the communicator of this rank's machine, all of whose ranks mark the same array.  Collective, as are
    `finish` and `close`; `exchange` is not.  Works on a duplicate of `comm`.
    """

    def __init__(self, comm: MPI.Intracomm, machine: MPI.Intracomm, problem: Marking) -> None:
        first = machine.bcast(comm.rank)
        ranks: dict[int, list[int]] = {}
        for rank, leader in enumerate(comm.allgather(first)):
            ranks.setdefault(leader, []).append(rank)
        self._targets = [there[machine.rank % len(there)] for leader, there in ranks.items() if leader != first]
        self._comm, self._problem = comm.Dup(), problem
        self._pending: list[tuple[MPI.Request, Marks]] = []
        self._sent = np.zeros(comm.size, dtype=np.int64)  # messages to each rank
        self._received = 0
        self._log: list[Marks] = []
        self._n_logged, self._since = 0, time.perf_counter()
        self._status = MPI.Status()

    @property
    def n_machines(self) -> int:
        """Machines that the ranks are on."""
        return len(self._targets) + 1

    def exchange(self) -> None:
        """Take in what others have marked, and send what was marked here; returns at once."""
        if not self._targets:
            return
        self._take()
        if len(self._pending) >= MOST_UNDER_WAY:
            return
        new = self._problem.take_marks()
        now = time.perf_counter()
        if len(new):
            if not self._log:
                self._since = now
            self._log.append(new)
            self._n_logged += len(new)
        if self._n_logged >= FEWEST or (self._log and now - self._since > LONGEST_S):
            self._send()

    def finish(self) -> None:
        """When no rank marks any more: afterwards every machine has all marks."""
        if self._targets:
            self._log.append(self._problem.take_marks())
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

    def close(self) -> None:
        """Free what belongs to the MPI."""
        self._comm.Free()

    def _send(self) -> None:
        marks = np.concatenate(self._log)
        self._log.clear()
        self._n_logged = 0
        for target in self._targets:
            self._pending.append((self._comm.Isend(marks, target, _TAG), marks))
            self._sent[target] += 1

    def _take(self) -> bool:
        before = self._received
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)) is not None:
            marks = np.empty(self._status.Get_count(MPI.INT64_T), dtype=np.int64)
            message.Recv(marks)
            self._problem.put_marks(marks)
            self._received += 1
        if self._pending:
            self._pending = [(request, marks) for request, marks in self._pending if not request.Test()]
        return self._received > before
