"""The session of a pool: the state that its ranks keep between maps, and the one loop in which they cooperate.

The root sends orders (START, END, TASK and CLOSE), which the other ranks follow one after the other; these send results.
Ranks of different hosts exchange ASK and GIVE; on one host, they steal in shared memory.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.emulate import throttle, throttled
from lb_mpi.errors import Error, ProtocolError
from lb_mpi.mpi.common.carrier import Meter, Port, carry
from lb_mpi.mpi.common.collective import allgather, raise_on_all
from lb_mpi.mpi.common.communicator import duplicate, presence_of
from lb_mpi.mpi.common.late import call as in_call
from lb_mpi.mpi.common.parcels import UNIT_BYTES, Buffer, Parcels, body, parcel, unit
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.shared import SharedBytes
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Clocks
from lb_mpi.mpi.pool.messages import STEAL, KnownFunctions
from lb_mpi.pooling.account import RankAccount
from lb_mpi.pooling.learning import Timing
from lb_mpi.pooling.worker import StealMessage, Swap, Worker
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF

T = TypeVar("T")
MAP = "a map of lb_mpi.Pool"
TASK = "a task of lb_mpi.Executor"
_METHODS = ("map", "wait", "close")  # that all ranks call together
INLINE_BYTES = 64 << 10  # longer data is broadcast
_N_BYTES = struct.Struct("<q")  # at the start of an order: of the data that all ranks get
LEVELS = {getattr(MPI, name): f"MPI_{name}" for name in dir(MPI) if name.startswith("THREAD_")}
QUICK_S = 0.3e-3  # polling without sleep, since maps may follow each other; others may use the core


class TaskResults(NamedTuple):
    """To the root: results of a map, or of tasks of an executor."""

    parcel: Buffer


class Order(NamedTuple):
    """From the root: what a rank is to do next."""

    tag: int  # of Tag
    parcel: Buffer


PoolMessage = StealMessage | TaskResults | Order
PoolSend = tuple[int, PoolMessage]  # destination rank, message


class SessionActor:
    """An actor: one rank's work in a session, one at a time: a map, the tasks of executors, or following orders."""

    has_threads = False  # that work on it; else those that call the pool's methods do
    job: Any = None  # see `lb_mpi.actor`

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def over(self) -> bool:
        """See `lb_mpi.actor`."""
        raise NotImplementedError

    @property
    def wake_at(self) -> float:
        """See `lb_mpi.actor`."""
        return self.session.worker.wake_at

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """Keep orders until they are due, process results, and answer thieves."""
        session, steals = self.session, list[tuple[int, StealMessage]]()
        for source, message in arrived:
            if isinstance(message, StealMessage):
                steals.append((source, message))
            elif isinstance(message, TaskResults):
                self.take(source, message.parcel)
            else:
                session.orders.append(message)
        return [*session.worker.turn(now, steals)]

    def done(self, job: Any, result: Any) -> list[PoolSend]:
        """See `lb_mpi.actor`."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> list[PoolSend]:
        """See `lb_mpi.actor`; without a task, nobody else needs to know before this rank raises it."""
        raise error

    @property
    def refusal(self) -> str:
        """The error of an attempt to begin another one that this one does not allow."""
        raise NotImplementedError

    def refuses(self) -> bool:
        """Return whether this thread, which may be in a task or callback of it, can begin no other one before it ends."""
        return False

    def complete(self) -> bool:
        """On the root, complete it, so that another one can begin; return False if that must wait for the user's code."""
        return False

    def take(self, source: int, results: Buffer) -> None:
        """On the root, process results from another rank, which may belong to an earlier operation."""
        raise NotImplementedError

    def leave(self, error: BaseException | None) -> None:
        """On the root, end the operation at the end of a script, which may have raised `error`."""
        raise NotImplementedError


class SessionPort(Port[PoolMessage, Any]):
    """The messages of a session; its jobs change words in shared memory."""

    brief = (Swap,)

    def __init__(self, session: Session) -> None:
        self.session = session

    def arrived(self) -> list[tuple[int, PoolMessage]]:
        """See `Port`."""
        return [(source, _read(tag, buffer)) for source, tag, buffer in self.session.parcels.take()]

    def post(self, sends: list[PoolSend]) -> None:
        """See `Port`."""
        for rank, message in sends:
            if isinstance(message, StealMessage):
                self.session.parcels.send(rank, Tag.STEAL, parcel(STEAL.pack(*message)))
            else:
                tag = Tag.RESULTS if isinstance(message, TaskResults) else message.tag
                self.session.parcels.send(rank, tag, message.parcel)

    def run(self, job: Any) -> Any:
        """See `Port`."""
        return self.session.intervals.swap(job)


def _read(tag: int, buffer: Buffer) -> PoolMessage:
    if tag == Tag.STEAL:
        return StealMessage(*STEAL.unpack_from(buffer.data))
    return TaskResults(buffer) if tag == Tag.RESULTS else Order(tag, buffer)


class _Rests(Meter):
    """Counts the rests of an emulated slow rank."""

    def __init__(self, account: RankAccount) -> None:
        self._account = account

    def rested(self, seconds: float) -> None:
        """See `Meter`."""
        self._account.rested(seconds)


class Session:
    """The ranks of `comm` (a duplicate of the user's, freed by `close`), led by `root`; collective, as is `close`.

    `alone`: only the root runs the user's code, and the others serve it until it calls `close`.  `host`: the ranks of this
    host, by default those that share memory; for tests.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        root: int,
        *,
        alone: bool,
        emulated_speed: float = 1.0,
        host: MPI.Intracomm | None = None,
    ) -> None:
        self.record = recorder(comm)
        self.root, self.alone = root, alone
        self.is_root = comm.rank == root
        self.shared = False  # by all pools and executors of a script
        self.rank, self.size = comm.rank, comm.size
        self.epoch = 0  # of the last map, on the root
        self.operation: SessionActor | None = None  # under way
        self.lock = threading.RLock()  # held by the thread that works on an operation, or begins one
        self.n_tasks = 0  # tasks of executors sent so far, on the root
        self.orders: deque[Order] = deque()  # that this rank has yet to follow
        self.presence = presence_of(comm)
        self.presence.name = "pool"
        self.throttle = throttle(emulated_speed)
        self.functions = KnownFunctions()
        self.clocks = Clocks()
        self.parcels = Parcels(duplicate(comm))
        self.account = RankAccount(self.record, worlds(comm))
        key = -1 if comm.rank == root else comm.rank  # the root is the first on its host
        if host is None:
            together = comm.Split_type(MPI.COMM_TYPE_SHARED, key)
        else:
            together = comm.Split(host.allreduce(comm.rank, MPI.MIN), key)
        self._host = MPI.Intracomm(together)
        mine: list[int] = self._host.allgather(comm.rank)
        self.intervals = SharedIntervals(self._host, mine)
        self.speeds = [1.0] * comm.size  # of all ranks, as measured by the root
        self.broadcast = Broadcast(comm, self._host, root)
        known: list[tuple[int, float]] = allgather(comm, (min(mine), emulated_speed * throttled()))
        self.hosts = [first for first, _ in known]  # of each rank: the lowest rank on its host
        self.emulated_speeds = [speed for _, speed in known]  # for the lower bound
        hosts: dict[int, list[int]] = {}
        for rank, first in enumerate(self.hosts):
            hosts.setdefault(first, []).append(rank)
        others = [ranks for ranks in hosts.values() if comm.rank not in ranks]
        timings = self.intervals.timings
        self.worker = Worker(comm.rank, mine, others, words=self.intervals, timings=timings, speeds=self.speeds)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Wait until no other thread uses these ranks, and keep them from others in this block."""
        if not MPI.Is_thread_main():
            need_level(MPI.THREAD_SERIALIZED, "lb_mpi.Pool is used in a thread")
        while True:
            operation = self.operation
            if operation is not None and operation.refuses():
                raise Error(operation.refusal)
            if operation is not None and operation.has_threads:
                operation.complete()  # not in the lock, which a callback of its tasks may need
            with self.lock:
                if self.operation is None or not self.operation.has_threads:
                    yield
                    return

    def check(self) -> None:
        """Complete the operation under way, if any; raise an error if that can't be now, or after a failure anywhere."""
        self.presence.check()
        if (operation := self.operation) is not None and not operation.complete():
            raise Error(operation.refusal)

    def agree(self, method: str, make: Callable[[], T]) -> T:
        """Collective: return make() of this rank; all ranks raise if it raises on any, or if they call different methods."""
        presence = self.presence
        error, value = None, None
        try:
            value = make()
        except BaseException as caught:
            error = caught
        number = _METHODS.index(method)
        mine = np.array([error is not None, number, -number], dtype=np.int32)
        result = np.zeros_like(mine)
        with running(self.record, Phase.WAITING):
            request = presence.comm.Iallreduce(mine, result, MPI.MAX)
            presence.wait(request.Test, keep=(mine, result), name=f"{method} of lb_mpi.Pool")
        failed, last, first = result.tolist()
        if failed:
            raise_on_all(presence.comm, error)
        if last != -first:
            names = f"{_METHODS[-first]} is called on one rank of the pool, {_METHODS[last]} on another"
            raise presence.on_all(ValueError(f"{names}: expected one method"))
        return value  # type: ignore[return-value]

    def work(self, operation: SessionActor, port: SessionPort, call: str = "") -> None:
        """Receive messages and work until the operation is over; `call`: its name, if all ranks must reach it."""
        with in_call(call, watched=True) as interrupts, running(self.record):
            carry(
                operation, port, self.presence, self.record, self.throttle, interrupts, meter=_Rests(self.account),
                quick_s=QUICK_S,
            )  # fmt: skip

    def send_all(self, tag: Tag, headers: Sequence[bytes], parts: Sequence[bytes | memoryview] = ()) -> memoryview:
        """From the root, send each rank its header, and all ranks the same bytes, by broadcast if there are many.

        Return these bytes, which are valid until the next call.
        """
        n_bytes = sum(map(len, parts))
        inline = [b"".join(parts)] if n_bytes <= INLINE_BYTES else []
        for rank, header in enumerate(headers):
            if rank != self.rank:
                self.parcels.send(rank, tag, parcel(_N_BYTES.pack(n_bytes) + header, inline))
        self.parcels.push()
        return memoryview(inline[0]) if inline else self.broadcast.send(n_bytes, parts)

    def on_all(self, error: BaseException) -> BaseException:
        """Mark an error that all ranks raise if all of them call the pool's methods."""
        return error if self.alone else self.presence.on_all(error, getattr(error, "rank", self.rank))

    def next_order(self, expected: Tag) -> tuple[memoryview, memoryview]:
        """Return header and bytes of the next order, which must be the expected one; the bytes are valid until the next."""
        tag, buffer = self.orders.popleft()
        if tag != expected:
            raise ProtocolError(f"{Tag(tag).name} from the root: expected {expected.name}")
        (n_bytes,) = _N_BYTES.unpack_from(buffer.data)
        data = body(buffer)[:n_bytes] if n_bytes <= INLINE_BYTES else self.broadcast.send(n_bytes)
        return buffer.data[_N_BYTES.size :], data

    def close(self) -> None:
        """Free everything; nothing after a failure of one rank alone."""

        def free() -> None:
            align(self.presence.comm, self.record)
            if self.record is not OFF and any(allgather(self.presence.comm, self.account.submitted is not None)):
                self.account.close(time.perf_counter(), self.emulated_speeds[self.rank])
            self.parcels.drain()
            self.parcels.comm.Free()
            self.broadcast.close()
            self.intervals.close()
            self._host.Free()

        with in_call(""):
            if self.alone and self.is_root and not self.presence.failed:
                self.send_all(Tag.CLOSE, [b""] * self.size)
            self.clocks.end()
            self.presence.close(free)
            self.record.enter(Phase.OUTSIDE, time.perf_counter())


def need_level(needed: int, why: str) -> None:
    """Raise an error if MPI allows fewer threads to call it than `needed`; `why` is the reason in its text."""
    if MPI.Query_thread() < needed:
        how = "mpi4py.rc.thread_level, set before `from mpi4py import MPI`"
        raise Error(f"MPI gives {LEVELS[MPI.Query_thread()]}: {why}, and needs {LEVELS[needed]} ({how})")


# --- memory that the ranks of a host share ----------------------------------------------------------------------------

_LINE = 64  # bytes of a cache line, to avoid false sharing of words
_WORD = 8  # bytes of a word, at the start of its line
_TIMING = struct.Struct("<qqdd")  # behind it
_NO_WORD = np.uint64(2**64 - 1)  # lo == hi == 2**28 - 1 in epoch 255: no rank's word


class SharedIntervals:
    """The interval of each rank on a host, as a word (see `lb_mpi.pooling.intervals`).

    `host` is a communicator of ranks that share memory, `ranks` their numbers in the session.  Reading a word needs no MPI
    call.  A stale reading makes the swap that is based on it fail.  Collective, as is `close`.
    """

    def __init__(self, host: MPI.Intracomm, ranks: list[int]) -> None:
        self._places = {rank: place for place, rank in enumerate(ranks)}  # in the window
        self._window = MPI.Win.Allocate_shared(_LINE, 1, comm=host)
        lines: list[Any] = [self._window.Shared_query(place)[0] for place in range(host.size)]
        views = {rank: memoryview(line).cast("B") for rank, line in zip(ranks, lines, strict=True)}
        self._words = {rank: view.cast("Q") for rank, view in views.items()}
        self._words[ranks[host.rank]][0] = 0
        self.timings = SharedTimings(views)
        self.timings[ranks[host.rank]] = Timing()
        self._old, self._new, self._found = (np.zeros(1, dtype=np.uint64) for _ in range(3))
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self._window.Sync()
        host.Barrier()

    def __getitem__(self, rank: int) -> int:
        return self._words[rank][0]

    def swap(self, swap: Swap) -> bool:
        """Compare and swap; return False if the word has changed."""
        if len(self._places) == 1:  # no other rank exists, and MPI may be slow with such a window
            self._words[swap.rank][0] = swap.new
            return True
        place = self._places[swap.rank]
        self._old[0], self._new[0], self._found[0] = swap.old, swap.new, _NO_WORD
        self._window.Compare_and_swap(self._new, self._old, self._found, place, 0)
        # In shared memory it is complete, as the result shows; on a busy machine, a flush would give up the core.
        if self._found[0] == _NO_WORD:
            self._window.Flush(place)
        return int(self._found[0]) == swap.old

    def close(self) -> None:
        """Collective: free the window."""
        self._window.Unlock_all()
        self._words.clear()
        self.timings.clear()
        self._window.Free()


class SharedTimings:
    """The timing of each rank on a host (see `lb_mpi.pooling.learning`), in shared memory behind its word.

    A rank may read a timing while another writes it: then parts of it are one chunk older, which does no harm.
    """

    def __init__(self, lines: dict[int, memoryview]) -> None:
        self._lines = lines

    def __getitem__(self, rank: int) -> Timing:
        return Timing(*_TIMING.unpack_from(self._lines[rank], _WORD))

    def __setitem__(self, rank: int, timing: Timing) -> None:
        _TIMING.pack_into(self._lines[rank], _WORD, *timing)

    def clear(self) -> None:
        """Forget the memory, which is about to be freed."""
        self._lines.clear()


class Broadcast:
    """A broadcast from the root to all ranks of `comm`: one copy per host, in shared memory that grows on demand.

    `root` is the first rank in `host`, the ranks on its host.  Collective, as are all its methods.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, root: int) -> None:
        self._comm, self._host, self._wait = comm, host, presence_of(comm).wait
        color = 0 if host.rank == 0 else MPI.UNDEFINED
        self._firsts = MPI.Intracomm(comm.Split(color, -1 if comm.rank == root else comm.rank))  # the root is first
        self._shared: SharedBytes | None = None

    def send(self, n_bytes: int, parts: Sequence[bytes | memoryview] = ()) -> memoryview:
        """Return the bytes of `parts` (passed only by the root) on all ranks, valid until the next call."""
        size = -(-n_bytes // UNIT_BYTES) * UNIT_BYTES
        if self._shared is None or len(self._shared.array) < size:
            self._wait(self._comm.Ibarrier().Test)  # a blocking call would hide that a rank has failed
            self._free()
            self._shared = SharedBytes(self._comm, self._host, max(1 << 20, 1 << (size - 1).bit_length()))
        array = self._shared.array
        self._wait(self._host.Ibarrier().Test)  # the previous data is no longer read
        at = 0
        for part in parts:
            array[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        self._wait(self._host.Ibarrier().Test)
        if self._firsts and self._firsts.size > 1:
            message = [array[:size], size // UNIT_BYTES, unit()]
            self._wait(self._firsts.Ibcast(message, 0).Test)
        self._wait(self._host.Ibarrier().Test)
        return array.data[:n_bytes]

    def close(self) -> None:
        """Free all communicators and windows."""
        self._free()
        if self._firsts:
            self._firsts.Free()

    def _free(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None
