"""Who is awaited?  A rank that has waited for long in a call asks all others, and warns once, naming who doesn't answer.

The law: whoever waits or works on in a loop of ours answers within a quarter of a second; who is in a user's function, has
not come to the call, or is stopped, doesn't.  Of the ranks that wait only the lowest warns, so that there is one warning
in a job.  The time is LB_MPI_HANG_S seconds (60; 0: never).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from enum import IntEnum
from types import TracebackType

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.mpi.waiting import Nap

VARIABLE, HANG_S = "LB_MPI_HANG_S", 60.0
TAG = 1000  # of these messages; all others on the communicator have another one
EVERY_S = 0.25  # between two looks at them
ANSWER_S = 1.0  # that the others have to answer
MOST_NAMED = 8
LONGEST_NAP_S = 0.5e-3


class _Kind(IntEnum):
    QUESTION = 0
    WORKS = 1
    WAITS = 2
    SERVES = 3  # in no call, but would come to one


def hang_s() -> float:
    """Seconds of waiting after which to warn, as the environment says; 0: never.  ValueError for what is no such number."""
    text = os.environ.get(VARIABLE)
    if not text or not text.strip():
        return HANG_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise ValueError(f"{VARIABLE} = {show(text)}: expected seconds, 0 or more (0: never warn)")
    return seconds


class RollCall:
    """Asks and answers on `comm` (not the user's: a duplicate)."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._call = ""  # in which this rank is; "": none
        self._hang_s = 0.0
        self._warned = False
        self._number = 0  # of the last question of this rank
        self._asked_at: float | None = None
        self._answers: dict[int, int] = {}  # to that question: rank to _Kind
        self._look_at = 0.0
        self._going: list[tuple[MPI.Request, NDArray[np.int64]]] = []
        self._sent = np.zeros(comm.size, dtype=np.int64)  # messages, to each rank
        self._received = 0

    def call(self, name: str) -> AbstractContextManager[None]:
        """Be in the call `name`, which others have to come to, too: there, who waits for long asks and warns."""
        return _Within(self, name)

    def begin(self, name: str) -> None:
        """Be in the call `name` from now on; "": in none."""
        self._hang_s = hang_s() if name else 0.0
        self._call, self._warned, self._asked_at = name, False, None

    def look(self, waited_s: float = 0.0) -> None:
        """Answer, now and then; ask and warn when this rank has waited for long.  To be called in loops: costs 0.1 us."""
        now = time.perf_counter()
        if now < self._look_at:
            return
        self._look_at = now + EVERY_S
        waits = waited_s > self._hang_s / 2
        self._hear(_Kind.SERVES if not self._call else _Kind.WAITS if waits else _Kind.WORKS)
        if not self._call or self._warned or not 0.0 < self._hang_s <= waited_s:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at, self._number = now, self._number + 1
            self._answers.clear()
            for rank in range(self._comm.size):
                if rank != self._comm.rank:
                    self._send(rank, _Kind.QUESTION, self._number)
        elif now > self._asked_at + ANSWER_S:
            self._warned = True
            if not any(kind == _Kind.WAITS and rank < self._comm.rank for rank, kind in self._answers.items()):
                text = awaited(self._comm.rank, self._comm.size, self._call, waited_s, self._answers)
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def drain(self) -> None:
        """Collective, when no rank looks any more: receive what is still under way.

        A message that nobody has received might turn up on the next communicator that gets the same number.
        """
        expected = np.zeros(1, dtype=np.int64)
        request, nap = self._comm.Ireduce_scatter_block(self._sent, expected), Nap(LONGEST_NAP_S)
        while not request.Test() or self._received < expected[0] or self._going:
            self._hear(None)
            nap.take()

    def _hear(self, mine: _Kind | None) -> None:
        """Receive; answer questions, unless `mine` is None."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            heard, source = np.empty(2, dtype=np.int64), status.Get_source()
            self._comm.Recv(heard, source, TAG)
            self._received += 1
            kind, number = heard.tolist()
            if kind == _Kind.QUESTION:
                if mine is not None:
                    self._send(source, mine, number)
            elif number == self._number:
                self._answers[source] = kind
        self._going = [(request, buffer) for request, buffer in self._going if not request.Test()]

    def _send(self, rank: int, kind: _Kind, number: int) -> None:
        buffer = np.array([kind, number], dtype=np.int64)
        self._sent[rank] += 1
        self._going.append((self._comm.Isend(buffer, rank, TAG), buffer))


class _Within(signs.phase):
    """A block that is a call; not a generator, since a map comes here twice, and may be a short one."""

    def __init__(self, roll: RollCall, name: str) -> None:
        super().__init__(name)
        self._roll, self._call = roll, name

    def __enter__(self) -> None:
        self._roll.begin(self._call)
        super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._roll.begin("")


def awaited(rank: int, size: int, call: str, waited_s: float, answers: dict[int, int]) -> str:
    """Say for whom `rank` waits, from what the others have answered, by rank.   (pure)"""
    silent = [other for other in range(size) if other != rank and other not in answers]
    working = [other for other, kind in sorted(answers.items()) if kind == _Kind.WORKS]
    said = []
    if silent:
        does = "do" if len(silent) > 1 else "does"
        said.append(f"{_named(silent)} {does} not answer (not in the call, in a function of yours, or stopped)")
    if working:
        said.append(f"{_named(working)} {'are' if len(working) > 1 else 'is'} at work")
    return f"rank {rank} has waited for {waited_s:.0f} s in {call}: {'; '.join(said) or 'all other ranks wait, too'}"


def _named(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return f"rank{'s' * (len(names) > 1)} {', '.join(names[:MOST_NAMED])}{more}"
