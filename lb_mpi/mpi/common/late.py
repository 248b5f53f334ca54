"""Late ranks: the questions what each rank does, and the warning that names those that don't answer.

A rank that has waited for LB_MPI_HANG_S seconds (60; 0: never) asks all others what they do, and warns once, naming those
that don't answer.  The law: a rank that waits or works in one of our loops answers within a quarter of a second; a rank in
a user's function, outside of lb_mpi, or stopped does not; one that compiles kernels does.  Only the lowest waiting rank
warns.
"""

from __future__ import annotations

import inspect
import os
import struct
import warnings
from enum import IntEnum
from typing import NamedTuple

from mpi4py import MPI

from lb_mpi.checks import show
from lb_mpi.compiling import compilation
from lb_mpi.mpi.common.calls import here, interrupts
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.status import write_error
from lb_mpi.table import named_ranks

VARIABLE, HANG_S = "LB_MPI_HANG_S", 60.0
ANSWER_S = 1.0  # that the others have to answer
_MESSAGE = struct.Struct("<qq112s")  # _Kind, number of the question, call


class _Kind(IntEnum):
    QUESTION = 0
    WORKS = 1
    WAITS = 2
    SERVES = 3  # in no call, but answering
    COMPILES = 4


class Answer(NamedTuple):
    """The state of another rank."""

    kind: int
    call: str


def hang_s() -> float:
    """Seconds of waiting before a warning, from the environment; 0: never.  ValueError for an invalid number."""
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


def _hang_s() -> float:
    try:
        return hang_s()
    except ValueError:  # all ranks check this as soon as they have met, and raise together
        return HANG_S


# --- questions to other ranks -----------------------------------------------------------------------------------------


class Questions:
    """Questions to the other ranks of `comm`, and their answers; unless it is `ours`, no rank can be asked.

    One thread at a time may do so: a question that two threads have found can be received by one of them only.
    """

    _warned_in = 0  # the last call, of all, in which this rank has warned

    def __init__(self, comm: MPI.Intracomm, *, ours: bool = True) -> None:
        self.comm, self._ours = comm, ours
        self.used = False  # messages may be in transit
        self._of_call = 0
        self._number = 0  # of the last question of this rank
        self._asked_at: float | None = None
        self._answers: dict[int, Answer] = {}  # to that question, by rank
        self._going: list[tuple[MPI.Request, bytes]] = []

    def warn(self, now: float, waited_s: float) -> None:
        """Ask the others when this rank has waited for long; once they have had time to answer, warn."""
        if Questions._warned_in == here.number or not here.call or not 0.0 < _hang_s() <= waited_s:
            self._asked_at = None
        elif not self._ours:
            if self.comm.rank & (self.comm.rank - 1) == 0:  # several, so that one does whichever rank is late
                Questions._warned_in = here.number
                text = f"rank {self.comm.rank} has waited for {waited_s:.0f} s in {here.call}"
                _warn(f"{text}: some rank has not called it, as all must")
        elif self._asked_at is None or self._of_call != here.number:
            self._asked_at, self._of_call, self._number = now, here.number, self._number + 1
            self._answers.clear()
            for rank in range(self.comm.size):
                if rank != self.comm.rank:
                    self._send(rank, _Kind.QUESTION, self._number, "")
        elif now > self._asked_at + ANSWER_S:
            Questions._warned_in = here.number
            if not any(one.kind == _Kind.WAITS and rank < self.comm.rank for rank, one in self._answers.items()):
                _warn(awaited(self.comm.rank, self.comm.size, here.call, waited_s, self._answers))

    def serve(self, waited_s: float) -> None:
        """Answer what the others have asked, and note what they have answered."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, Tag.QUESTION, status):
            data, source = bytearray(_MESSAGE.size), status.Get_source()
            self.comm.Recv([data, MPI.BYTE], source, Tag.QUESTION)
            self.used = True
            kind, number, name = _MESSAGE.unpack(data)
            if kind == _Kind.QUESTION:
                waits = waited_s > _hang_s() / 2
                mine = _Kind.SERVES if not here.call else _Kind.WAITS if waits else _Kind.WORKS
                mine = _Kind.COMPILES if compilation.active else mine
                self._send(source, mine, number, here.call)
            elif number == self._number:
                self._answers[source] = Answer(kind, name.rstrip(b"\0").decode(errors="replace"))
        self._going = [(request, buffer) for request, buffer in self._going if not request.Test()]

    def _send(self, rank: int, kind: _Kind, number: int, name: str) -> None:
        self.used = True
        buffer = _MESSAGE.pack(kind, number, name.encode(errors="replace"))
        self._going.append((self.comm.Isend([buffer, MPI.BYTE], rank, Tag.QUESTION), buffer))


def _warn(text: str) -> None:
    """Warn, with the line of the user's program that waits."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("lb_mpi", "contextlib"):
        frame, level = frame.f_back, level + 1
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=level)
    except RuntimeWarning:  # where warnings are errors; but this rank may no longer fail alone
        if not interrupts().committed:
            raise
        write_error(f"{text}\n")


def awaited(rank: int, size: int, name: str, waited_s: float, answers: dict[int, Answer]) -> str:
    """Describe the ranks that `rank` waits for in the call `name`, from the others' answers, by rank.   (pure)"""
    silent = [other for other in range(size) if other != rank and other not in answers]
    said = []
    if silent:
        does = "do" if len(silent) > 1 else "does"
        said.append(f"{named_ranks(silent)} {does} not answer (not in the call, computing, or stopped)")
    elsewhere: dict[str, list[int]] = {}
    working, compiling = [], []
    for other, (kind, theirs) in sorted(answers.items()):
        if kind == _Kind.COMPILES:
            compiling.append(other)
        elif kind != _Kind.SERVES and theirs != name:
            elsewhere.setdefault(theirs, []).append(other)
        elif kind == _Kind.WORKS:
            working.append(other)
    for theirs, ranks in elsewhere.items():
        said.append(f"{named_ranks(ranks)} {_are(ranks)} in {theirs}")
    if working:
        said.append(f"{named_ranks(working)} {_are(working)} at work")
    if compiling:
        said.append(f"{named_ranks(compiling)} {_are(compiling)} compiling kernels (first run only)")
    all_wait = "all other ranks are waiting, too: expected calls of the same objects in the same order"
    return f"rank {rank} has waited for {waited_s:.0f} s in {name}: {'; '.join(said) or all_wait}"


def _are(ranks: list[int]) -> str:
    return "are" if len(ranks) > 1 else "is"
