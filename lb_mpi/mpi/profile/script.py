"""A program run under the profile, on all ranks: start, program, end.

At the end, on a separate communicator, clocks are compared, collectives are split, and rank 0 receives all profiles.  The
first rank of each set splits the set's collectives, in pieces, so that no rank holds more than a few megabytes of others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from lb_mpi.files import Load, find_script, folder_of
from lb_mpi.graph import Ints
from lb_mpi.metrics import Floats, check_speeds
from lb_mpi.mpi.common.collective import agree, agree_on, duplicate
from lb_mpi.mpi.common.presence import Tag, presence_of
from lb_mpi.mpi.profile.profiled import Installed, install
from lb_mpi.mpi.profile.timed import Recorder
from lb_mpi.profiling import profile as profile_store
from lb_mpi.profiling.profile import (
    NOBODY,
    Calls,
    ClockModel,
    Profile,
    RankProfile,
    Stream,
    lateness,
    lines_of,
    offset,
    rank_from,
    rank_json,
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
    output: Path | None  # the profile's files
    speeds: Floats


def open_program(
    argv: Sequence[str], *, module: bool, output: str | None, speeds: Sequence[float] | None
) -> ProfiledProgram:
    """Collective: find the program, argv[0]; ValueError, SyntaxError or OSError on all ranks for a wrong argument."""
    own = duplicate(MPI.COMM_WORLD)
    folder = None if output is None else Path(output)

    def check() -> tuple[Load, Floats]:
        if folder is not None and own.rank == 0:
            profile_store.clear(folder)
        given = np.ones(own.size) if speeds is None else check_speeds(speeds, own.size)
        return find_script(argv[0], module=module), given

    load, checked = agree(own, check)
    agree_on(own, speeds=tuple(checked))
    return ProfiledProgram(own, load, argv, folder_of(argv[0], module=module), folder, checked)


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
        error = caught.with_traceback(_of_the_program(caught.__traceback__))
    try:
        if error is None or isinstance(error, SystemExit):
            run.end(error)
        else:
            run.leave(error)
    except BaseException as caught:
        set_abort_status(caught)
        raise
    return Ended(run.profile, error)


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frame that started the program."""
    return trace.tb_next if trace is not None else None


class _ProfiledRun:
    """The profile of one run on this rank."""

    def __init__(self, program: ProfiledProgram) -> None:
        self.profile: Profile | None = None
        self._program = program
        self._look = ClockComparison(program.own)
        self._recorder = Recorder(MPI.COMM_WORLD)
        self._installed: Installed = install(self._recorder)
        self._installed.put(MPI, "Init", lambda: None)  # MPI is initialised already
        self._installed.put(MPI, "Init_thread", lambda required=0: MPI.Query_thread())
        self._finalize: Callable[[], None] = MPI.Finalize
        self._installed.put(MPI, "Finalize", self._finalize_with_profile)
        self._over = False

    def begin(self) -> None:
        """Collective: start the program on all ranks."""
        if self._program.output is not None:
            self._recorder.save = self._save
        self._program.own.Barrier()
        self._recorder.restart()

    def end(self, exits: SystemExit | None = None) -> None:
        """Collective: end the program on all ranks; a rank with an exit code ends the others if it must wait too long."""
        if self._over:  # by the program's own MPI.Finalize
            return
        mine = self._mine(complete=True)
        self._stop()
        if not _all_come(self._program.own, PATIENCE_S if exits is not None and exits.code else math.inf):
            set_abort_status(exits)
            return
        self._gather(mine)

    def leave(self, error: BaseException) -> None:
        """Note that the program has raised on this rank: leaving will end the other ranks."""
        if not self._over:
            self._save()
            self._stop()
        set_abort_status(error)

    def _finalize_with_profile(self) -> None:
        self.end()
        self._finalize()

    def _stop(self) -> None:
        self._over = True
        self._save()
        self._installed.remove()

    def _mine(self, *, complete: bool) -> RankProfile:
        total, useful, cpu = self._recorder.stop()
        rank, host = self._program.own.rank, MPI.Get_processor_name()
        lines = lines_of(self._recorder.calls)
        return RankProfile(rank, host, 1e-9 * total, 1e-9 * useful, 1e-9 * cpu, lines, complete)

    def _save(self) -> None:
        output = self._program.output
        if output is not None:
            try:
                profile_store.write_rank(output, self._program.argv[0], self._mine(complete=False))
            except OSError as error:  # no reason to end the program
                self._recorder.save = None
                self._recorder.unseen.add(f"later times of rank {self._program.own.rank} ({error})")

    def _gather(self, mine: RankProfile) -> None:
        """Collective: split the waits in collectives, and combine the profiles of all ranks on rank 0."""
        own, calls = self._program.own, self._recorder.calls
        clock = self._look.end()
        split_collectives(own, calls, clock)
        mine = RankProfile(**{**mine.__dict__, "lines": lines_of(calls)})
        mine_json = {
            **rank_json(mine),
            "unseen": sorted(self._recorder.unseen),
            "lost": calls.n_lost,
            "error_ns": clock.error_ns,
        }
        found = [json.loads(text) for text in gather(own, json.dumps(mine_json).encode())]
        own.Free()
        if found:
            ranks = until_the_end([rank_from(rank) for rank in found])
            error_s = 1e-9 * max(rank["error_ns"] for rank in found)
            self.profile = Profile(self._program.argv[0], ranks, self._program.speeds.tolist(), error_s, _notes(found))
        output = self._program.output
        if output is not None:
            with contextlib.suppress(OSError):
                profile_store.write_rank(output, self._program.argv[0], mine)


def _all_come(comm: MPI.Intracomm, patience_s: float) -> bool:
    """Return True if all ranks arrive before this one's patience ends."""
    request, until = comm.Ibarrier(), time.perf_counter() + patience_s
    presence_of(comm).wait(lambda: request.Test() or time.perf_counter() > until, request, name="")
    return request.Test()


def _notes(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return notes on calls that the profile does not cover."""
    unseen = sorted({what for rank in found for what in rank["unseen"]})
    notes = [f"not seen, and counted as useful: {', '.join(unseen)}"] if unseen else []
    asked = {"Test", "test", "Testall", "testall", "Testany", "testany", "Testsome", "testsome"}
    asked |= {"Iprobe", "iprobe", "Improbe", "improbe"}
    n = sum(line["calls"] for rank in found for line in rank["lines"] if line["call"] in asked)
    if n:
        notes.append(
            f"the program has asked {n:,} times (Test, Iprobe) instead of waiting; between, its time counts as useful"
        )
    if lost := sum(rank["lost"] for rank in found):
        notes.append(f'{lost:,} collective calls were too many to be kept: all their time is in "other MPI"')
    if error_ns := max(rank["error_ns"] for rank in found):
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
    """Collective: find for each place in `calls` the ranks for which its collectives waited."""
    streams = {_digest(stream.members): stream for stream in calls.streams.values() if len(stream)}
    for digest, n in _agreed(comm, streams):
        if digest in streams:
            waits, whom = _split(comm, streams[digest], n, clock)
            _account(calls, streams[digest], waits, whom)


def _digest(members: tuple[int, ...]) -> int:
    made = hashlib.blake2b(np.array(members, dtype=np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(made, "big") >> 1


def _agreed(comm: MPI.Intracomm, streams: dict[int, Stream]) -> list[tuple[int, int]]:
    """Return (digest, number of calls) of the streams that all their members have, in the same order on all ranks."""
    rows = [[digest, len(stream.members), len(stream)] for digest, stream in streams.items()]
    found = gather(comm, np.array(rows, dtype=np.int64).reshape(-1, 3).tobytes())
    both: dict[int, tuple[int, int]] = {}  # number of ranks that have it, least number of calls
    for digest, size, n in np.frombuffer(b"".join(found), dtype=np.int64).reshape(-1, 3).tolist():
        ranks, least = both.get(digest, (-size, n))
        both[digest] = ranks + 1, min(n, least)
    common = np.array(sorted((digest, n) for digest, (missing, n) in both.items() if missing == 0), dtype=np.int64)
    n_common = np.array([len(common)])
    comm.Bcast(n_common)
    table = common.reshape(-1, 2) if comm.rank == 0 else np.empty((int(n_common[0]), 2), dtype=np.int64)
    comm.Bcast(table)
    return [(digest, n) for digest, n in table.tolist()]


def _split(comm: MPI.Intracomm, stream: Stream, n: int, clock: ClockModel) -> tuple[Ints, Ints]:
    """Return this rank's waits in the first n calls of a stream, and the awaited ranks: two (n,) arrays."""
    members, leader = stream.members, stream.members[0]
    kept = stream.kept
    kinds, posted, entered, left = (np.array(column[:n], dtype=np.int64) for column in kept[:4])
    mine = np.stack([kinds, clock.common(posted), clock.common(entered), clock.common(left)])
    needs = [stream.needs]
    if comm.rank == leader:
        needs += [json.loads(_receive(comm, rank)) for rank in members[1:]]
    else:
        _send(comm, json.dumps(stream.needs).encode(), leader)
    result = np.zeros((2, n), dtype=np.int64)
    length = max(1, PIECE // len(members))
    for first in range(0, n, length):
        piece = np.ascontiguousarray(mine[:, first : first + length])
        answer = np.empty((2, piece.shape[1]), dtype=np.int64)
        if comm.rank != leader:
            comm.Send(piece, leader, Tag.PROFILE)
            comm.Recv(answer, leader, Tag.PROFILE)
        else:
            every = np.empty((len(members), *piece.shape), dtype=np.int64)
            every[0] = piece
            for row, rank in enumerate(members[1:], 1):
                comm.Recv(every[row], rank, Tag.PROFILE)
            waits, whom = lateness(members, every.transpose(1, 0, 2), needs)
            for row, rank in enumerate(members[1:], 1):
                comm.Send(np.stack([waits[row], whom[row]]), rank, Tag.PROFILE)
            answer[:] = waits[0], whom[0]
        result[:, first : first + length] = answer
    return result[0], result[1]


def _account(calls: Calls, stream: Stream, waits: Ints, whom: Ints) -> None:
    """Add waits to the places of their calls."""
    places = np.array(stream.kept.places[: len(waits)], dtype=np.int64)
    pairs, inverse = np.unique(np.stack([places, whom])[:, whom != NOBODY], axis=1, return_inverse=True)
    sums = np.zeros(pairs.shape[1], dtype=np.int64)
    np.add.at(sums, inverse.reshape(-1), waits[whom != NOBODY])
    for place, rank, ns in zip(*pairs.tolist(), sums.tolist(), strict=True):
        waited = calls.places[place].waits
        waited[rank] = waited.get(rank, 0) + ns


def gather(comm: MPI.Intracomm, mine: bytes) -> list[bytes]:
    """Collective: return each rank's bytes on rank 0, and nothing on the others."""
    if comm.rank != 0:
        _send(comm, mine, 0)
        return []
    return [mine, *(_receive(comm, rank) for rank in range(1, comm.size))]


def _send(comm: MPI.Intracomm, data: bytes, rank: int) -> None:
    comm.Send([data, MPI.BYTE], rank, Tag.PROFILE)


def _receive(comm: MPI.Intracomm, rank: int) -> bytes:
    status = MPI.Status()
    message: Any = comm.Mprobe(rank, Tag.PROFILE, status)
    data = bytearray(status.Get_count(MPI.BYTE))
    message.Recv([data, MPI.BYTE])
    return bytes(data)
