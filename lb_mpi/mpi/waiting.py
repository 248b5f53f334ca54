"""Waiting without spinning: more ranks than cores is normal, so whoever waits sleeps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.mpi.interrupts import held

SHORTEST_S = 10e-6
PATIENCE_S = 1.0
_abandoned: list[object] = []  # the MPI may still write to their buffers: they stay


class Nap:
    """A sleep that grows from 10 us to `longest_s` while nothing happens."""

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self._length = SHORTEST_S
        self._since = 0.0  # when the first nap began after something had happened; 0: none has

    def reset(self) -> None:
        """Something has happened: the next nap is short."""
        self._length = SHORTEST_S
        self._since = 0.0

    @property
    def waited_s(self) -> float:
        """For how long nothing has happened."""
        return time.perf_counter() - self._since if self._since else 0.0

    def take(self, at_most: float = float("inf")) -> None:
        """Sleep, a little longer each time, and at most `at_most` seconds; whoever watches is told that this rank lives."""
        signs.turn()
        began = time.perf_counter()
        self._since = self._since or began
        time.sleep(max(0.0, min(self._length, at_most)))
        signs.slept(time.perf_counter() - began)
        self._length = min(1.5 * self._length, self.longest_s)


def wait(request: MPI.Request, longest_s: float = 0.5e-3, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Complete `request`, asleep most of the time; between naps, do what is to be done `meanwhile`.

    Ctrl-C is held back for a second, since the other ranks may be about to complete it, too; then it is raised.
    """
    nap = Nap(longest_s)
    with held() as interrupts:
        interrupted_at = math.inf
        try:
            while not request.Test():
                meanwhile()
                nap.take()
                if interrupts.pending:
                    interrupted_at = min(interrupted_at, time.perf_counter())
                    if time.perf_counter() > interrupted_at + PATIENCE_S:
                        interrupts.check()
        except BaseException:
            abandon(request)
            raise


def abandon(request: MPI.Request, *buffers: object) -> None:
    """Keep a request that will never be completed, and its buffers."""
    _abandoned.append((request, buffers))


def barrier(comm: MPI.Comm, longest_s: float = 1e-3) -> None:
    """A barrier in which the waiting ranks sleep (for long waits, as when one rank compiles)."""
    wait(comm.Ibarrier(), longest_s)
