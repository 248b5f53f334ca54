"""The ranks of a pool: what they keep between maps, and the one loop in which they cooperate.

The root sends orders (START, END, TASK and CLOSE), which the other ranks follow one after the other; these send results.
Ranks of different hosts exchange ASK and GIVE; on one host, they steal in shared memory.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi.emulate import throttle, throttled
from lb_mpi.errors import Error
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.mpi.common.calls import bind
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.carrier import Meter
from lb_mpi.mpi.common.collective import allgather, raise_on_all
from lb_mpi.mpi.common.communicator import blocking, duplicate, ending, presence_of
from lb_mpi.mpi.common.failure import cause
from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.speeds import known_speeds
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Clocks
from lb_mpi.mpi.pool.host_memory import SharedIntervals, window_of
from lb_mpi.mpi.pool.messages import KnownFunctions
from lb_mpi.mpi.pool.orders import Orders
from lb_mpi.pooling.account import RankAccount
from lb_mpi.pooling.beginning import REASONS, Act, PoolState, Wish, act
from lb_mpi.pooling.intervals import MAPS
from lb_mpi.pooling.stealer import Stealer
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF

T = TypeVar("T")
MAP = "a map of lb_mpi.Pool"
TASK = "a task of lb_mpi.Executor"
_METHODS = ("map", "wait", "close")  # that all ranks call together
LEVELS = {getattr(MPI, name): f"MPI_{name}" for name in dir(MPI) if name.startswith("THREAD_")}


class _Rests(Meter):
    """Counts the rests of an emulated slow rank."""

    def __init__(self, account: RankAccount) -> None:
        self._account = account

    def rested(self, seconds: float) -> None:
        """See `Meter`."""
        self._account.rested(seconds)


class UnderWay(Protocol):
    """The use of the ranks of a pool, one at a time: a map, or the tasks of executors."""

    @property
    def state(self) -> PoolState:
        """The state of the ranks while this is under way, for the thread that asks."""

    def complete(self) -> None:
        """Wait until it is over, or its state has changed; on ranks other than the root, only the root ends it."""

    def leave(self, error: BaseException | None, /) -> None:
        """On the root, end it at the end of a script, which may have raised an error."""


class PoolRanks:
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
        self.presence = presence_of(comm)
        self.presence.name = "pool"
        self.throttle = throttle(emulated_speed)
        self.functions = KnownFunctions()
        self.clocks = Clocks()
        self.parcels = Parcels(duplicate(comm))
        self.account = RankAccount(self.record, worlds(comm))
        self.meter = _Rests(self.account) if self.throttle.rests else None
        key = -1 if comm.rank == root else comm.rank  # the root is the first on its host
        with blocking(comm):
            if host is None:
                together = comm.Split_type(MPI.COMM_TYPE_SHARED, key)
            else:
                together = comm.Split(host.allreduce(comm.rank, MPI.MIN), key)
            self._host = MPI.Intracomm(together)
            mine: list[int] = self._host.allgather(comm.rank)
            leaders = comm.Split(0 if self._host.rank == 0 else MPI.UNDEFINED, key)  # of each host
            window = window_of(self._host)
        # A rank without memory raises here, not in the block, where the others would wait for it in MPI.
        self.intervals = SharedIntervals(window, comm.rank, mine)
        self.orders = Orders(comm, self._host, MPI.Intracomm(leaders), self.parcels)
        known: list[tuple[int, float]] = allgather(comm, (min(mine), emulated_speed * throttled()))
        firsts, emulated = zip(*known, strict=True)
        self.rank, self.size, self.root, self.alone = comm.rank, comm.size, int(root), alone
        self.is_root = self.rank == self.root
        self.hosts: tuple[int, ...] = firsts  # of each rank: the lowest rank on its host
        self.emulated_speeds: tuple[float, ...] = emulated  # of each rank
        hosts: dict[int, list[int]] = {}
        for rank, first in enumerate(firsts):
            hosts.setdefault(first, []).append(rank)
        others = [ranks for ranks in hosts.values() if comm.rank not in ranks]
        self.knowledge = RankKnowledge(comm.size)  # of the root
        if (prior := known_speeds(comm, emulated_speed)) is not None:
            self.knowledge.believe(*prior)
        self.presence.speeds.add(self.knowledge.learned)
        self.known = RankKnowledge(comm.size)  # what the root knew when the map began
        timings = self.intervals.timings
        self.stealer = Stealer(comm.rank, mine, others, words=self.intervals, timings=timings, knowledge=self.known)
        self.shared = False  # by all pools and executors of a script
        self.helpers = set[int]()  # ranks that have sent results, to the root
        self._free_others = list[Callable[[], None]]()  # at most one: see `bind_others`
        if alone and comm.rank != root:
            _servers.add(self)
        self.operation: UnderWay | None = None
        self.lock = threading.RLock()  # held by the thread that works on an operation, or begins one
        self._n_maps = self._n_tasks = 0
        self._left_by = ""  # the error by which the root, alone, has left the user's block

    # What is under way.

    @property
    def state(self) -> PoolState:
        """The state of these ranks, for this thread."""
        if self.presence.failed or not self.presence.comm:
            return PoolState.UNUSABLE
        operation = self.operation
        return PoolState.IDLE if operation is None else operation.state

    @contextmanager
    def claimed(self, wish: Wish) -> Iterator[None]:
        """Wait until this thread may begin what it wants to, and keep the ranks from other threads in this block."""
        if not MPI.Is_thread_main():
            need_level(MPI.THREAD_SERIALIZED, "lb_mpi.Pool is used in a thread")
        while True:
            with self.lock:
                state, operation = self.state, self.operation
                what = act(state, wish)
                if what is Act.REFUSE:
                    raise Error(REASONS[state])
                if what is Act.RAISE or wish is Wish.MAP:  # which needs all ranks
                    self.presence.check()
                if what is Act.COMPLETE and operation is not None:
                    operation.complete()
                if what is not Act.WAIT:
                    yield
                    return
            if operation is not None:
                operation.complete()  # not in the lock, which a callback of its tasks may need

    def begin(self, operation: UnderWay) -> None:
        """Note what is under way now."""
        self.operation = operation

    def end(self) -> None:
        """Note that nothing is under way."""
        self.operation = None

    def share(self) -> None:
        """Note that all pools and executors of a script use these ranks."""
        self.shared = True

    def bind_others(self) -> None:
        """Note, on the root, that the other ranks serve from now on, so that they reach no other collective call."""
        if self.size > 1 and not self._free_others and self.presence.comm:
            why = "while the other ranks serve a pool or an executor that is open"
            self._free_others.append(bind(self.presence.comm, why, here=False))

    def serve(self) -> None:
        """Note that this rank serves."""
        _servers.discard(self)

    def end_without_serving(self) -> None:
        """Tell the root that this rank ends its program, without having called `close`, or worked for it."""
        if not self.presence.failed and self.presence.comm:
            how = "expected its `with` block on all ranks, or close() or shutdown(), or wait()"
            text = f"rank {self.rank} has ended its program without working for the pool or executor: {how}"
            self.presence.send_failure(Error(text), alone=True)

    def next_map(self) -> int:
        """Return the number of a new map, on the root; after the last number, the first comes again."""
        self._n_maps = self._n_maps % MAPS + 1
        return self._n_maps

    def number(self, n: int) -> int:
        """Number the next `n` tasks of executors, on the root; return the first number."""
        self._n_tasks += n
        return self._n_tasks - n

    # What all ranks do.

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
        with running(self.record, Phase.WAITING), presence.notifying():  # a rank that is interrupted may catch that
            request = presence.comm.Iallreduce(mine, result, MPI.MAX)
            presence.wait(request.Test, keep=(mine, result), name=f"{method} of lb_mpi.Pool")
        failed, last, first = result.tolist()
        if failed:
            raise_on_all(presence.comm, error)
        if last != -first:
            names = f"{_METHODS[-first]} is called on one rank of the pool, {_METHODS[last]} on another"
            raise presence.on_all(ValueError(f"{names}: expected one method"))
        return value  # type: ignore[return-value]

    def on_all(self, error: BaseException, by: int) -> BaseException:
        """Mark an error of rank `by` that all ranks raise if all of them call the pool's methods."""
        return error if self.alone else self.presence.on_all(error, by)

    def left(self, error: BaseException) -> None:
        """Note that this rank leaves the user's block by an error, which the others raise, now or at CLOSE.

        Ranks that serve would go on as after a regular end, and may wait for this one for ever.  But in a script they serve
        the next pool, too; and SystemExit, or Ctrl-C, which reaches all ranks, is no error.
        """
        if not self.alone:
            self.presence.send_failure(error)
        elif isinstance(error, Exception) and not self.shared:
            self._left_by = f"rank {self.rank}: {cause(error)}"

    def close(self) -> None:
        """Free everything; nothing after a failure of one rank alone."""

        def free() -> None:
            align(self.presence.comm, self.record)
            if self.record is not OFF and any(allgather(self.presence.comm, self.account.submitted is not None)):
                self.account.close(time.perf_counter(), self.emulated_speeds[self.rank])
            self.parcels.drain()
            with blocking(self.presence.comm):
                self.parcels.comm.Free()
                self.orders.close()
                self.intervals.close()
                self._host.Free()

        with in_call(""):
            while self._free_others:
                self._free_others.pop()()
            _servers.discard(self)
            if self.alone and self.is_root and not self.presence.failed:
                self.orders.send_all(Tag.CLOSE, b"", [self._left_by.encode(errors="replace")])
            self.clocks.end()
            self.presence.close(free)
            self.record.enter(Phase.OUTSIDE, time.perf_counter())


_servers = set[PoolRanks]()  # of this rank, which has yet to serve them


@atexit.register
def _end_without_serving() -> None:
    for ranks in [*_servers]:
        if not MPI.Is_finalized():
            ranks.end_without_serving()


ending.append(_end_without_serving)


def need_level(needed: int, why: str) -> None:
    """Raise an error if MPI allows fewer threads to call it than `needed`; `why` is the reason in its text."""
    if MPI.Query_thread() < needed:
        how = "mpi4py.rc.thread_level, set before `from mpi4py import MPI`"
        raise Error(f"MPI gives {LEVELS[MPI.Query_thread()]}: {why}, and needs {LEVELS[needed]} ({how})")
