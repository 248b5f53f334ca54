"""What the ranks of a pool keep from map to map: communicators, words, shelf, functions; and how they work together.

The root sends orders (START, END, TASK and CLOSE), which each other rank follows one after the other; these send it results.
Between hosts, ranks send each other ASK and GIVE.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from mpi4py import MPI

from lb_mpi.emulate import throttle, throttled
from lb_mpi.errors import Error
from lb_mpi.mpi.common.carrier import Carrier, Part, Spent
from lb_mpi.mpi.common.collective import allgather, duplicate
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.presence import Presence, Tag, presence_of
from lb_mpi.mpi.common.presence import call as in_call
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.waiting import Clocks, Interrupts
from lb_mpi.mpi.pool.functions import Functions
from lb_mpi.mpi.pool.messages import numbers_parcel, read_numbers, read_steal, steal_parcel
from lb_mpi.mpi.pool.shelf import Shelf
from lb_mpi.mpi.pool.words import Words
from lb_mpi.pooling.account import Steals
from lb_mpi.pooling.intervals import meets
from lb_mpi.pooling.worker import Worker
from lb_mpi.record.events import Phase

MAP = "a map of lb_mpi.Pool"
TASK = "a task of lb_mpi.Pool"
INLINE_BYTES = 64 << 10  # what is larger goes over the shelf
QUICK_S = 0.3e-3  # without a nap, since maps may follow each other; others may have the core


class _Turns(Part):
    """What a rank of a pool does until it is over: a part of a map, submitted tasks, or nothing but to wait for orders."""

    def __init__(
        self, crew: Crew, over: Callable[[], bool], work: Callable[[Interrupts], bool], until: float
    ) -> None:
        self._crew, self._over, self._work, self._until = crew, over, work, until

    @property
    def over(self) -> bool:
        return self._over() or (self._until < math.inf and time.perf_counter() >= self._until)

    @property
    def wake_at(self) -> float:
        return min(self._crew.worker.wake_at, self._until)

    def turn(self, _now: float) -> bool:
        return self._crew.receive()

    def work(self, interrupts: Interrupts) -> bool:
        return self._work(interrupts)

    def spent(self, how: Spent, seconds: float) -> None:
        if how is Spent.RESTING:
            self._crew.rested_s += seconds


class Host:
    """What the ranks of one host share: words, and a shelf; collective over all ranks, as is `close`."""

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, root: int, news: Presence) -> None:
        self._comm = host
        self.words = Words(comm, host)
        self.shelf = Shelf(comm, host, root, news.wait)

    def close(self) -> None:
        """Free it."""
        self.shelf.close()
        self.words.close()
        self._comm.Free()


class Crew:
    """The ranks of `comm` (not the user's: a duplicate, which `close` frees), led by `root`; collective, as is `close`.

    `host`: tells the ranks of this host, for tests; usually those that share memory.
    """

    def __init__(
        self, comm: MPI.Intracomm, root: int, *, emulated_speed: float = 1.0, host: MPI.Intracomm | None = None
    ) -> None:
        record = recorder(comm)
        self.root = root
        self.epoch = 0  # of the last map, on the root
        self.busy = False  # a map is under way
        self.lent_to = ""  # what calls MPI for these ranks from its own thread; empty: nothing does
        self.orders: deque[tuple[int, Buffer]] = (
            deque()
        )  # of the root, which this rank has not yet followed: (tag, parcel)
        self.take_result: Callable[[int, int, Buffer], None]  # on the root: (source, tag, parcel)
        self.news = presence_of(comm)
        self.news.name = "pool"
        self.slow = throttle(emulated_speed)
        self.emulated_speeds: list[float] = allgather(comm, emulated_speed * throttled())  # for the lower bound
        self.functions = Functions()
        self.clocks = Clocks()
        self.rested_s = 0.0  # over all maps, as an emulated slow rank
        self._traffic = duplicate(comm)  # of parcels
        self.parcels = Parcels(self._traffic)
        self.record = record
        self._carrier = Carrier(self.news, record, self.slow, quick_s=QUICK_S)
        self.steals = Steals(record, worlds(comm))
        key = -1 if comm.rank == root else comm.rank
        if host is None:
            together = comm.Split_type(MPI.COMM_TYPE_SHARED, key)
        else:
            together = comm.Split(host.allreduce(comm.rank, MPI.MIN), key)
        self.host = Host(comm, MPI.Intracomm(together), root, self.news)
        mine = self.host.words.ranks
        hosts: dict[int, list[int]] = {}
        for rank, first in enumerate(allgather(comm, min(mine))):
            hosts.setdefault(first, []).append(rank)
        others = [ranks for ranks in hosts.values() if comm.rank not in ranks]
        self.worker = Worker(comm.rank, mine, others, words=self.host.words, speeds=self.host.words.speeds)

    @property
    def comm(self) -> MPI.Intracomm:
        """All ranks."""
        return self.news.comm

    @property
    def rank(self) -> int:
        """This rank."""
        return self.worker.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.emulated_speeds)

    def check(self) -> None:
        """Error after a failure on any rank, and while these ranks are lent."""
        self.news.check()
        self.check_lent()

    def check_lent(self) -> None:
        """Error while something else calls MPI for these ranks."""
        if self.lent_to:
            raise Error(f"these ranks work for {self.lent_to}, which is open: expected its shutdown before")

    def work(
        self,
        call: str,
        over: Callable[[], bool],
        work: Callable[[Interrupts], bool],
        until: float = math.inf,
    ) -> None:
        """Receive what arrives, and `work` for a moment, again and again, until `over()`, or the time `until`.

        `work` returns False if there is nothing to do: then this rank sleeps.  `call` tells in what it is, where the others
        must come to the same.
        """
        with in_call(call, watched=True) as interrupts, running(self.record):
            self._carrier.carry(_Turns(self, over, work, until), interrupts)

    def receive(self) -> bool:
        """Take what has arrived: what a thief asks, results, and orders, which wait until they are followed."""
        arrived, heard = self.parcels.take(), []
        for source, tag, buffer in arrived:
            if tag == Tag.STEAL:
                message = read_steal(buffer)
                heard.append((source, message))
                if message.epoch == self.worker.epoch:
                    self.steals.given(source, time.perf_counter(), message)
            elif tag in (Tag.RESULTS, Tag.RESULT):
                self.take_result(source, tag, buffer)
            else:
                self.orders.append((tag, buffer))
        for rank, message in self.worker.turn(time.perf_counter(), heard) if heard else ():
            self.parcels.send(rank, Tag.STEAL, steal_parcel(message))
        return bool(arrived)

    def meet(self, epoch: int) -> None:
        """Wait for all ranks before a map whose number wants that (see `lb_mpi.pooling.intervals`)."""
        if meets(epoch):
            self.news.wait(self.comm.Ibarrier().Test)

    def send_all(self, tag: Tag, first: int = 0, second: int = 0, parts: Sequence[bytes | memoryview] = ()) -> None:
        """From the root: two numbers and some bytes to all others."""
        n_bytes = sum(map(len, parts))
        inline = n_bytes <= INLINE_BYTES
        buffer = numbers_parcel(first, second, 0 if inline else n_bytes, data=b"".join(parts) if inline else b"")
        for rank in range(self.size):
            if rank != self.rank:
                self.parcels.send(rank, tag, buffer)
        if not inline:
            self.host.shelf.spread(n_bytes, parts)

    def read_all(self, buffer: Buffer) -> tuple[int, int, memoryview]:
        """What `send_all` has sent."""
        first, second, n_bytes, data = read_numbers(buffer)
        return first, second, self.host.shelf.spread(n_bytes, None) if n_bytes else data

    def close(self) -> None:
        """Free everything; after a failure of one rank alone, nothing."""

        def free() -> None:
            align(self.comm, self.record)
            self.parcels.drain()
            self._traffic.Free()
            self.host.close()

        self.clocks.end()
        self.news.close(free)
        self.record.enter(Phase.OUTSIDE, time.perf_counter())
