"""The recorder of one rank's calls: clocks, places in the program, ranks behind communicators.

It carries `lb_mpi.profiling.calls.Calls` on the clocks of this rank.  Only calls of the thread that has made it are
recorded; those of others take place while that one computes.  Calls within calls (a reduction in Python that sends, say)
are part of the outer one.
"""

from __future__ import annotations

import math
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import mpi4py
from mpi4py import MPI

import lb_mpi
from lb_mpi.profiling.calls import NOBODY, Calls, CpuShare, Stream

OURS = tuple(str(Path(str(package.__file__)).parent) + "/" for package in (lb_mpi, mpi4py))
PYTHONS = (sysconfig.get_path("stdlib") + "/", "<frozen ")
SAVE_FIRST_NS, SAVE_EVERY_NS = 1_000_000_000, 5_000_000_000
_now = time.perf_counter_ns


class Known(NamedTuple):
    """What is known of a communicator."""

    peers: tuple[int, ...]  # whom its ranks, to which one sends, are in the program; NOBODY: of another program
    stream: Stream | None  # of its collectives; None: nobody to be waited for
    neighbours: int = 0  # the kind of its neighbourhood collectives in this stream


class Lines:
    """Where in the program a call has come from."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._here = str(Path.cwd()) + "/"
        self._skipped: dict[int, tuple[CodeType, bool]] = {}

    def place(self, call: str, known: dict[tuple[int, int], int]) -> int:
        """The number of the innermost line of the program above who asks; `known` is this call's own."""
        frame = sys._getframe(2)
        code = frame.f_code
        while self._skip(code) and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        key = id(code), frame.f_lasti
        number = known.get(key)
        if number is None:
            file = code.co_filename.removeprefix(self._here)
            number = known[key] = self._calls.number(file, frame.f_lineno, code.co_name, call)
        return number

    def _skip(self, code: CodeType) -> bool:
        found = self._skipped.get(id(code))
        if found is None:  # the code is kept, so that its id stays its own
            found = self._skipped[id(code)] = code, not _is_of_the_program(code.co_filename)
        return found[1]


def _is_of_the_program(file: str) -> bool:
    """False for lb_mpi, mpi4py and Python's own modules; other people's packages are parts of the program."""
    return not file.startswith(OURS) and ("/site-packages/" in file or not file.startswith(PYTHONS))


class Recorder:
    """Times what the main thread does in MPI."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.calls = Calls()
        self.lines = Lines(self.calls)
        self.pickled = 0  # bytes made by pickle in the call that is being timed
        self.status = MPI.Status()  # for calls whose status the program doesn't want
        self.unseen: set[str] = set()  # what the program does, and what is not timed
        self.save: Callable[[], None] | None = None  # to be called now and then
        self._world = world.Get_group()
        self._thread = threading.get_ident()
        self._busy = False
        self.restart()

    def restart(self) -> None:
        """The program begins."""
        self.began = _now()
        self._cpu = CpuShare(self.began, time.thread_time_ns())
        self._save_at = self.began + SAVE_FIRST_NS if self.save else math.inf

    def elsewhere(self) -> bool:
        """True when this call isn't to be timed: in another thread, or within a call."""
        if threading.get_ident() != self._thread:
            self.unseen.add("calls of threads other than the main one")
            return True
        return self._busy

    def enter(self) -> int:
        """A call begins; the time."""
        self._busy = True
        self.pickled = 0
        now = _now()
        if now > self._cpu.due:
            self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        return now

    def leave(self, number: int, entered: int, n_bytes: int = 0, whom: int = NOBODY) -> int:
        """A call has ended; the time."""
        now = _now()
        self.calls.add(number, entered, now, n_bytes + self.pickled, whom)
        if now > self._cpu.due:
            self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        if now > self._save_at and self.save is not None:
            self.save()
            self._save_at = _now() + SAVE_EVERY_NS
        self._busy = False
        return now

    def stop(self) -> tuple[int, int, float]:
        """Nanoseconds since the program began, those outside of MPI, and the latter's CPU time."""
        now = _now()
        self._cpu.look(now, time.thread_time_ns(), self.calls.in_mpi_ns)
        return now - self.began, now - self.began - self.calls.in_mpi_ns, self._cpu.outside_ns

    def known(self, comm: MPI.Comm) -> Known:
        """What is known of a communicator."""
        found: Known | None = getattr(comm, "_known", None)
        if found is None:
            found = self._look_at(comm)
            if hasattr(comm, "_known"):
                comm._known = found
        return found

    def _look_at(self, comm: MPI.Comm) -> Known:
        if comm == MPI.COMM_NULL:
            return Known((), None)
        own = peers = self._in_world(comm.Get_group())
        if comm.Is_inter():
            peers = self._in_world(comm.Get_remote_group())  # type: ignore[attr-defined]
        stream = self.calls.stream(own if peers is own else own + peers)
        if stream is None or not isinstance(comm, MPI.Topocomm):
            return Known(peers, stream)
        return Known(peers, stream, stream.kind_of([peers[rank] for rank in comm.inedges if rank >= 0]))

    def _in_world(self, group: MPI.Group) -> tuple[int, ...]:
        ranks: Sequence[int] = group.Translate_ranks(None, self._world)
        group.Free()
        return tuple(rank if rank >= 0 else NOBODY for rank in ranks)

    def peer(self, comm: MPI.Comm, rank: object) -> int:
        """The rank of the program behind a rank of a communicator; NOBODY where there is none."""
        peers = self.known(comm).peers
        return peers[rank] if isinstance(rank, int) and 0 <= rank < len(peers) else NOBODY


def n_bytes(spec: object) -> int:
    """Bytes of a buffer as mpi4py takes it; 0 where it can't be told."""
    if spec is None:
        return 0
    found = getattr(spec, "nbytes", None)
    if found is not None:
        return int(found)
    try:
        if isinstance(spec, list | tuple):
            return _of_several(spec)
        return memoryview(spec).nbytes  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError):
        return 0


def _of_several(spec: Sequence[Any]) -> int:
    """Bytes of [buffer, count or counts, (displacements,) datatype]; of the whole buffer where one of these is missing."""
    kind = MPI.Datatype.fromcode(spec[-1]) if isinstance(spec[-1], str) else spec[-1]
    if len(spec) < 3 or not isinstance(kind, MPI.Datatype) or spec[1] is None:
        return n_bytes(spec[0])
    counts = spec[1] if hasattr(spec[1], "__len__") else [spec[1]]
    if hasattr(counts[0], "__len__"):
        counts = counts[0]  # of (counts, displacements)
    return sum(int(one) for one in counts) * kind.Get_size()
