"""The end of a profiled run: clocks are set side by side, collectives are split, rank 0 gets all profiles.

All of it is on a communicator of our own, when the program is over.  The collectives of a set of ranks are split by the
first of them, in pieces, so that nobody holds more than a few megabytes of others.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.graph import Ints
from lb_mpi.profiling.calls import NOBODY, Calls, Clock, Stream, lateness, offset

ROUNDS = 20  # messages there and back for each look at another host's clock
PIECE = 1 << 18  # collective calls of all ranks together that are split at once
_now = time.perf_counter_ns


class Look:
    """The first look at rank 0's clock, when the program begins; `end` is the other one.  Both are collective."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        kernel = np.array([zlib.crc32(_clock_of_this_machine().encode())], dtype=np.int64)
        kernels = np.empty(comm.size, dtype=np.int64)
        comm.Allgather(kernel, kernels)
        self._others = [rank for rank in range(comm.size) if kernels[rank] != kernels[0]]  # whose clock isn't rank 0's
        self._begin = _now(), *self._look()

    def end(self) -> Clock:
        """How this rank's clock stood to rank 0's during the run."""
        begin, begin_offset, begin_error = self._begin
        end_offset, end_error = self._look()
        return Clock(begin, _now(), begin_offset, end_offset, max(begin_error, end_error))

    def _look(self) -> tuple[int, int]:
        comm = self._comm
        there, back = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        if comm.rank == 0:
            for rank in self._others:
                for _ in range(ROUNDS):
                    comm.Recv(there, rank)
                    back[0] = _now()
                    comm.Send(back, rank)
        if comm.rank not in self._others:
            return 0, 0
        sent, answered, returned = [], [], []
        for _ in range(ROUNDS):
            sent.append(_now())
            comm.Send(there, 0)
            comm.Recv(back, 0)
            returned.append(_now())
            answered.append(int(back[0]))
        return offset(sent, answered, returned)


def _clock_of_this_machine() -> str:
    """The same for all processes that share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/time")
    except OSError:
        return MPI.Get_processor_name()


def split_collectives(comm: MPI.Intracomm, calls: Calls, clock: Clock) -> None:
    """Collective: tell each place in `calls` for whom its collectives have waited."""
    streams = {_digest(stream.members): stream for stream in calls.streams.values() if len(stream)}
    for digest, n in _agreed(comm, streams):
        if digest in streams:
            waits, whom = _split(comm, streams[digest], n, clock)
            _account(calls, streams[digest], waits, whom)


def _digest(members: tuple[int, ...]) -> int:
    made = hashlib.blake2b(np.array(members, dtype=np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(made, "big") >> 1


def _agreed(comm: MPI.Intracomm, streams: dict[int, Stream]) -> list[tuple[int, int]]:
    """(digest, number of calls) of the streams that all their members have, in one order; known to all ranks."""
    rows = [[digest, len(stream.members), len(stream)] for digest, stream in streams.items()]
    told = gather(comm, np.array(rows, dtype=np.int64).reshape(-1, 3).tobytes())
    both: dict[int, tuple[int, int]] = {}  # how many ranks have it, least number of calls
    for digest, size, n in np.frombuffer(b"".join(told), dtype=np.int64).reshape(-1, 3).tolist():
        ranks, least = both.get(digest, (-size, n))
        both[digest] = ranks + 1, min(n, least)
    common = np.array(sorted((digest, n) for digest, (missing, n) in both.items() if missing == 0), dtype=np.int64)
    n_common = np.array([len(common)])
    comm.Bcast(n_common)
    table = common.reshape(-1, 2) if comm.rank == 0 else np.empty((int(n_common[0]), 2), dtype=np.int64)
    comm.Bcast(table)
    return [(digest, n) for digest, n in table.tolist()]


def _split(comm: MPI.Intracomm, stream: Stream, n: int, clock: Clock) -> tuple[Ints, Ints]:
    """This rank's waits in the first n calls of a stream, and for whom: two (n,) arrays."""
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
            comm.Send(piece, leader)
            comm.Recv(answer, leader)
        else:
            every = np.empty((len(members), *piece.shape), dtype=np.int64)
            every[0] = piece
            for row, rank in enumerate(members[1:], 1):
                comm.Recv(every[row], rank)
            waits, whom = lateness(members, every.transpose(1, 0, 2), needs)
            for row, rank in enumerate(members[1:], 1):
                comm.Send(np.stack([waits[row], whom[row]]), rank)
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
    """Collective: what each rank has, on rank 0; nothing on the others."""
    if comm.rank != 0:
        _send(comm, mine, 0)
        return []
    return [mine, *(_receive(comm, rank) for rank in range(1, comm.size))]


def _send(comm: MPI.Intracomm, data: bytes, rank: int) -> None:
    comm.Send([data, MPI.BYTE], rank)


def _receive(comm: MPI.Intracomm, rank: int) -> bytes:
    status = MPI.Status()
    message: Any = comm.Mprobe(rank, status=status)
    data = bytearray(status.Get_count(MPI.BYTE))
    message.Recv([data, MPI.BYTE])
    return bytes(data)
