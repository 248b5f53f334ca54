"""The record of this process, kept in a file while it runs, when LB_MPI_RECORD names a folder.

The first driver call begins it.  It is written about once a second, at the end of a time bin (see
`lb_mpi.record.record`), and when Python ends.  Writing needs no messages, so a single rank can do it.  A write error, or
a file that was removed, ends the recording with a RuntimeWarning, not the run.

Clocks: ranks of one host share a clock.  Between hosts, the lowest rank of each exchanges messages with the lowest rank
of all, when a driver begins and when it ends, at most every ALIGN_S seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import mpi4py
import numpy as np
from mpi4py import MPI

import lb_mpi
from lb_mpi.files import FRAME_BYTES, create, is_at, naming, warn
from lb_mpi.mpi.common.calls import in_task
from lb_mpi.mpi.common.collective import agree, agree_on, allgather
from lb_mpi.mpi.common.communicator import blocking
from lb_mpi.mpi.common.facts import library
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.record.events import Clock, Phase
from lb_mpi.record.record import OFF, About, Record, file_name, header, snapshot, snapshot_offset

VARIABLE = "LB_MPI_RECORD"
OWNER = "LB_MPI_RECORD_OWNER"  # the process that records itself, and the folder; set here, and inherited by its children
WRITE_S = 1.0
ALIGN_S = 10.0
ROUNDS = 16  # of ping and pong
_files: list[_File] = []  # empty, or the file of this process


class _File:
    def __init__(self, folder: Path) -> None:
        world = MPI.COMM_WORLD
        now, wall = time.perf_counter(), time.time()
        self.about = About(
            world.rank, world.size, socket.gethostname(), os.getpid(), now, wall, _versions(), " ".join(sys.argv),
            process_s=_began_s(wall),
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder.absolute() / file_name(world.rank)
        self._file = create(self._path)
        self.record = Record(now, self._on_bin)
        self._number, self._due = 0, now + WRITE_S
        self._write(header(self.about), 0)
        self.write(now)

    def write(self, now: float, *, ended: bool = False) -> None:
        """Write a snapshot; nothing in a forked process."""
        if self._file < 0 or os.getpid() != self.about.process:
            return
        if ended and not self._path.parent.exists():
            return  # the folder was made to show the progress only, and has been removed
        self._due = now + WRITE_S
        frame = snapshot(self.record, now, self._number, ended=ended)
        why = ""
        if not is_at(self._path, self._file):
            why = f"{self._path} was removed or replaced"
        else:
            try:
                at = snapshot_offset(self._number, self.about.size)
                self._write(bytes(FRAME_BYTES), at)  # a write that is cut short leaves this
                self._write(frame[FRAME_BYTES:], at + FRAME_BYTES)
                self._write(frame[:FRAME_BYTES], at)
            except OSError as error:  # no room: the previous snapshot stays
                why = str(error)
        self._number += 1
        if why:
            os.close(self._file)
            self._file = -1
            warn(f"{VARIABLE}: rank {self.about.rank} is not recorded any more: {why}")

    def _on_bin(self, now: float) -> None:
        if now >= self._due:
            self.write(now)

    def _write(self, data: bytes, at: int) -> None:
        left = memoryview(data)
        with naming(self._path):
            while left:
                n = os.pwrite(self._file, left, at)
                left, at = left[n:], at + n


def recorder(comm: MPI.Intracomm) -> Record:
    """Collective: return the record of this process, or one that does nothing if the run is not recorded.

    ValueError on every rank unless all have the same LB_MPI_RECORD; OSError if its folder is not writable.  What a task of a
    pool does on its rank alone is recorded as that task, not once more, and a process that a rank has started is not.
    """
    if comm.size == 1 and in_task():
        return OFF
    folder = os.environ.get(VARIABLE)
    owner, _, theirs = os.environ.get(OWNER, "").partition(":")
    if theirs == folder and owner != str(os.getpid()):
        folder = None
    agree_on(comm, **{VARIABLE: folder})
    if not folder:
        return OFF

    def begin() -> Record:
        if not _files:
            _files.append(_File(Path(lb_mpi._began_in, folder)))
            os.environ[OWNER] = f"{os.getpid()}:{folder}"
            atexit.register(_end)
        return _files[0].record

    record = agree(comm, begin)
    align(comm, record)
    return record


def worlds(comm: MPI.Intracomm) -> list[int]:
    """The rank in COMM_WORLD of each rank of `comm`; -1: of another world."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    found = group.Translate_ranks(None, world)
    for each in (group, world):
        each.Free()
    return [-1 if rank == MPI.UNDEFINED else int(rank) for rank in found]


def running(record: Record, phase: Phase = Phase.PROTOCOL) -> contextlib.AbstractContextManager[None]:
    """Record the phases of a driver in such a block, one after the other; at its end restore the previous phase."""
    return _NOT_RUNNING if record is OFF else _Running(record, phase)


_NOT_RUNNING = contextlib.nullcontext()


class _Running:
    def __init__(self, record: Record, phase: Phase) -> None:
        self._record, self._phase = record, phase

    def __enter__(self) -> None:
        self._before = self._record.phase
        self._record.enter(self._phase, time.perf_counter())

    def __exit__(self, *_: object) -> None:
        self._record.enter(self._before, time.perf_counter())


def align(comm: MPI.Intracomm, record: Record) -> None:
    """Collective: measure how the clocks of several hosts differ, if that is due."""
    if record is OFF:
        return
    now = time.perf_counter()
    due = not record.clocks or now > record.clocks[-1].at + ALIGN_S
    found: list[tuple[str, bool]] = allgather(comm, (socket.gethostname(), due))
    hosts = [host for host, _ in found]
    if len(set(hosts)) > 1 and any(due for _, due in found):
        with blocking(comm):
            offset_s, error_s = compare_clocks(comm, hosts)
        record.clock(Clock(time.perf_counter(), worlds(comm)[0], offset_s, error_s))


def compare_clocks(comm: MPI.Intracomm, hosts: Sequence[str]) -> tuple[float, float]:
    """Collective: return the seconds to add to this rank's `perf_counter` for that of rank 0, and their error.

    hosts : (P,) the host of each rank; ranks on one host share a clock.
    """
    first: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        first.setdefault(host, rank)
    mine = None
    for leader in list(first.values())[1:]:
        if comm.rank == leader:
            mine = _ask(comm)
        elif comm.rank == 0:
            _answer(comm, leader)
    return allgather(comm, mine)[first[hosts[comm.rank]]] or (0.0, 0.0)


def _ask(comm: MPI.Intracomm) -> tuple[float, float]:
    """Ask rank 0 repeatedly for its time; return what to add to the own clock, by the fastest answer, and the error."""
    theirs, best = np.zeros(1), (0.0, float("inf"))
    for _ in range(ROUNDS):
        began = time.perf_counter()
        comm.Send(theirs, 0, Tag.CLOCK)
        comm.Recv(theirs, 0, Tag.CLOCK)
        ended = time.perf_counter()
        best = min(best, (float(theirs[0]) - 0.5 * (began + ended), 0.5 * (ended - began)), key=lambda one: one[1])
    return best


def _answer(comm: MPI.Intracomm, leader: int) -> None:
    mine = np.zeros(1)
    for _ in range(ROUNDS):
        comm.Recv(mine, leader, Tag.CLOCK)
        mine[0] = time.perf_counter()
        comm.Send(mine, leader, Tag.CLOCK)


def _began_s(now_s: float) -> float:
    """Return when this process began, in seconds since 1970, like `now_s`; 0: unknown."""
    with contextlib.suppress(OSError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return now_s - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


def _versions() -> str:
    mpi = library(MPI.Get_library_version())
    return f"Python {platform.python_version()}, mpi4py {mpi4py.__version__}, {mpi}, lb_mpi {lb_mpi.__version__}"


def _end() -> None:
    for file in _files:
        file.write(time.perf_counter(), ended=True)
