"""A program run under the profile, on all ranks: start, program, end.

At the end, on a separate communicator, clocks are compared, collectives are split, and rank 0 receives all profiles.  The
ranks of each set exchange the times of the set's collectives in pieces, so that no rank holds more than a few megabytes of
others.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from lb_mpi.files import Load, find_script, folder_of
from lb_mpi.graph import Ints
from lb_mpi.metrics import Floats, check_speeds
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, duplicate, gather
from lb_mpi.mpi.common.presence import Tag, presence_of
from lb_mpi.mpi.profile.profiled import Installed
from lb_mpi.mpi.profile.timed import Recorder
from lb_mpi.profiling.profile import (
    FILE,
    NOBODY,
    Calls,
    ClockModel,
    Profile,
    RankProfile,
    Stream,
    lateness,
    offset,
    until_the_end,
)

PATIENCE_S = 5.0  # for the others to end, before a rank that exits with a code ends them
ROUNDS = 20  # messages there and back per comparison with another host's clock
PIECE = 1 << 18  # collective calls of all ranks that are split at a time
_now = time.perf_counter_ns


class ProfiledProgram(NamedTuple):
    """A program found by all ranks."""

    own: MPI.Intracomm  # a duplicate of COMM_WORLD
    load: Load
    argv: Sequence[str]
    folder: str  # its import folder
    speeds: Floats


def open_program(
    argv: Sequence[str], *, module: bool, output: str | None, speeds: Sequence[float] | None
) -> ProfiledProgram:
    """Collective: find the program, argv[0]; ValueError, SyntaxError or OSError on all ranks for a wrong argument.

    The folder `output` of the profile is made, and loses an earlier profile.
    """
    own = duplicate(MPI.COMM_WORLD)

    def check() -> tuple[Load, Floats]:
        if output is not None and own.rank == 0:
            Path(output).mkdir(parents=True, exist_ok=True)
            (Path(output) / FILE).unlink(missing_ok=True)
        given = np.ones(own.size) if speeds is None else check_speeds(speeds, own.size)
        return find_script(argv[0], module=module), given

    load, checked = agree(own, check)
    agree_on(own, speeds=tuple(checked))
    return ProfiledProgram(own, load, argv, folder_of(argv[0], module=module), checked)


class Ended(NamedTuple):
    """The end of the program on this rank."""

    profile: Profile | None  # on rank 0, if all ranks have reached the end
    error: BaseException | None  # its exception, including SystemExit


def run_program(program: ProfiledProgram) -> Ended:
    """Collective: run the program as `__main__` on every rank.

    If it raises, this rank ends the others when it leaves, as under `python -m mpi4py`; if it exits with a code, only after
    waiting 5 s for the others to end.
    """
    run = _ProfiledRun(program)
    error: BaseException | None = None
    sys.argv, sys.path[0] = [*program.argv], program.folder
    main = sys.modules["__main__"] = ModuleType("__main__")
    code, names = program.load("__main__")
    main.__dict__.update(names)
    run.begin()
    try:
        exec(code, main.__dict__)
    except BaseException as caught:
        trace = caught.__traceback__
        error = caught.with_traceback(trace and trace.tb_next)  # without the frame that started the program
    try:
        if error is None or isinstance(error, SystemExit):
            run.end(error)
        else:
            run.leave(error)
    except BaseException as caught:
        set_abort_status(caught)
        raise
    return Ended(run.profile, error)


class _ProfiledRun:
    """The profile of one run on this rank."""

    def __init__(self, program: ProfiledProgram) -> None:
        self.profile: Profile | None = None
        self._program = program
        self._look = ClockComparison(program.own)
        self._recorder = Recorder(MPI.COMM_WORLD)
        self._installed = Installed(self._recorder)
        self._installed.put(MPI, "Init", lambda: None)  # MPI is initialised already
        self._installed.put(MPI, "Init_thread", lambda required=0: MPI.Query_thread())
        self._finalize: Callable[[], None] = MPI.Finalize
        self._installed.put(MPI, "Finalize", self._finalize_with_profile)
        self._over = False

    def begin(self) -> None:
        """Collective: start the program on all ranks."""
        self._program.own.Barrier()
        self._recorder.restart()

    def end(self, exits: SystemExit | None = None) -> None:
        """Collective: end the program on all ranks; a rank with an exit code ends the others if it must wait too long."""
        if self._over:  # by the program's own MPI.Finalize
            return
        total_s, useful_s, cpu_s = (1e-9 * ns for ns in self._recorder.stop())
        rank, host, lines = self._program.own.rank, MPI.Get_processor_name(), self._recorder.calls.lines
        self._stop()
        if not _all_come(self._program.own, PATIENCE_S if exits is not None and exits.code else math.inf):
            set_abort_status(exits)
            return
        self._gather(RankProfile(rank, host, total_s, useful_s, cpu_s, lines))

    def leave(self, error: BaseException) -> None:
        """Note that the program has raised on this rank: leaving will end the other ranks."""
        self._stop()
        set_abort_status(error)

    def _finalize_with_profile(self) -> None:
        self.end()
        self._finalize()

    def _stop(self) -> None:
        self._over = True
        self._installed.remove()

    def _gather(self, mine: RankProfile) -> None:
        """Collective: split the waits in collectives, and combine the profiles of all ranks on rank 0."""
        own, calls = self._program.own, self._recorder.calls
        clock = self._look.end()
        split_collectives(own, calls, clock)
        found = gather(own, (mine, self._recorder.unseen, calls.n_lost, clock.error_ns))
        own.Free()
        if found is not None:
            ranks, unseen, lost, error_ns = zip(*found, strict=True)
            notes = _notes(ranks, set().union(*unseen), sum(lost), max(error_ns))
            speeds = self._program.speeds.tolist()
            self.profile = Profile(self._program.argv[0], until_the_end(ranks), speeds, 1e-9 * max(error_ns), notes)


def _all_come(comm: MPI.Intracomm, patience_s: float) -> bool:
    """Return True if all ranks arrive before this one's patience ends."""
    request, until = comm.Ibarrier(), time.perf_counter() + patience_s
    presence_of(comm).wait(lambda: request.Test() or time.perf_counter() > until, request, name="")
    return request.Test()


def _notes(ranks: Sequence[RankProfile], unseen: set[str], n_lost: int, error_ns: int) -> list[str]:
    """Return notes on calls that the profile does not cover."""
    notes = [f"not seen, and counted as useful: {', '.join(sorted(unseen))}"] if unseen else []
    asked = ("test", "testall", "testany", "testsome", "iprobe", "improbe")
    n = sum(line.calls for rank in ranks for line in rank.lines if line.call.lower() in asked)
    if n:
        notes.append(
            f"the program has asked {n:,} times (Test, Iprobe) instead of waiting; between, its time counts as useful"
        )
    if n_lost:
        notes.append(f'{n_lost:,} collective calls were too many to be kept: all their time is in "other MPI"')
    if error_ns:
        notes.append(f"the hosts' clocks are set side by side to +- {1e-3 * error_ns:,.0f} us")
    return notes


# --- the end: clocks, collectives, all profiles on rank 0 -------------------------------------------------------------


class ClockComparison:
    """The first comparison with rank 0's clock, at the program's start; `end` makes the second.  Both are collective."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        kernel = np.array([zlib.crc32(_clock_of_this_machine().encode())], dtype=np.int64)
        kernels = np.empty(comm.size, dtype=np.int64)
        comm.Allgather(kernel, kernels)
        self._others = [rank for rank in range(comm.size) if kernels[rank] != kernels[0]]  # with another clock
        self._begin = _now(), *self._look()

    def end(self) -> ClockModel:
        """Return the model of this rank's clock relative to rank 0's during the run."""
        begin, begin_offset, begin_error = self._begin
        end_offset, end_error = self._look()
        return ClockModel(begin, _now(), begin_offset, end_offset, max(begin_error, end_error))

    def _look(self) -> tuple[int, int]:
        comm = self._comm
        there, back = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        if comm.rank == 0:
            for rank in self._others:
                for _ in range(ROUNDS):
                    comm.Recv(there, rank, Tag.PROFILE)
                    back[0] = _now()
                    comm.Send(back, rank, Tag.PROFILE)
        if comm.rank not in self._others:
            return 0, 0
        sent, answered, returned = [], [], []
        for _ in range(ROUNDS):
            sent.append(_now())
            comm.Send(there, 0, Tag.PROFILE)
            comm.Recv(back, 0, Tag.PROFILE)
            returned.append(_now())
            answered.append(int(back[0]))
        return offset(sent, answered, returned)


def _clock_of_this_machine() -> str:
    """Return a text that all processes with the same monotonic clock share."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/time")
    except OSError:
        return MPI.Get_processor_name()


def split_collectives(comm: MPI.Intracomm, calls: Calls, clock: ClockModel) -> None:
    """Collective: find for each line of `calls` the ranks for which its collectives waited."""
    streams = {_digest(stream.members): stream for stream in calls.streams.values() if len(stream)}
    everyone = allgather(comm, {digest: len(stream) for digest, stream in streams.items()})
    for digest, stream in sorted(streams.items()):  # in the same order on all ranks
        counts = [one[digest] for one in everyone if digest in one]
        if len(counts) == len(stream.members):
            _account(calls, stream, *_split(comm, stream, min(counts), clock))


def _digest(members: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(np.array(members, dtype=np.int64).tobytes(), digest_size=8).digest()


def _split(comm: MPI.Intracomm, stream: Stream, n: int, clock: ClockModel) -> tuple[Ints, Ints]:
    """Return this rank's waits in the first n calls of a stream, and the awaited ranks: two (n,) arrays."""
    kinds, posted, entered, left = (np.array(column[:n], dtype=np.int64) for column in stream.kept[:4])
    mine = np.stack([kinds, clock.common(posted), clock.common(entered), clock.common(left)])
    group = comm.Get_group().Incl(stream.members)
    members = comm.Create_group(group, Tag.PROFILE)
    found = []
    for piece in np.array_split(mine, range(PIECE // members.size + 1, n, PIECE // members.size + 1), axis=1):
        every = np.empty((members.size, *piece.shape), dtype=np.int64)
        members.Allgather(np.ascontiguousarray(piece), every)
        found.append(lateness(members.rank, stream.members, every.transpose(1, 0, 2), stream.needs))
    members.Free()
    group.Free()
    waits, whom = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return waits, whom


def _account(calls: Calls, stream: Stream, waits: Ints, whom: Ints) -> None:
    """Add waits to the lines of their calls."""
    places = np.array(stream.kept.places[: len(waits)], dtype=np.int64)
    pairs, inverse = np.unique(np.stack([places, whom])[:, whom != NOBODY], axis=1, return_inverse=True)
    sums = np.zeros(pairs.shape[1], dtype=np.int64)
    np.add.at(sums, inverse.reshape(-1), waits[whom != NOBODY])
    for place, rank, ns in zip(*pairs.tolist(), sums.tolist(), strict=True):
        waited_s = calls.lines[place].waited_s
        waited_s[rank] = waited_s.get(rank, 0.0) + 1e-9 * ns
