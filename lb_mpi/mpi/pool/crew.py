"""What the ranks of a pool keep from map to map: communicators, words, shelf, functions; and the loop in which they work.

The root sends orders (START, END, TASK and CLOSE), which each other rank follows one after the other; these send it results.
Between hosts, ranks send each other ASK and GIVE.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.emulate import throttle, throttled
from lb_mpi.mpi.common.clocks import Clocks
from lb_mpi.mpi.common.collective import allgather, duplicate
from lb_mpi.mpi.common.interrupts import Interrupts
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.presence import FAILED_AFTER_S, Presence, presence_of
from lb_mpi.mpi.common.presence import call as in_call
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Nap
from lb_mpi.mpi.pool.functions import Functions
from lb_mpi.mpi.pool.messages import numbers_parcel, read_numbers, read_steal, steal_parcel
from lb_mpi.mpi.pool.shelf import Shelf
from lb_mpi.mpi.pool.words import Words
from lb_mpi.pooling.intervals import meets
from lb_mpi.pooling.recorded import Steals
from lb_mpi.pooling.worker import Worker
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Record

MAP = "a map of lb_mpi.Pool"
TASK = "a task of lb_mpi.Pool"
INLINE_BYTES = 64 << 10  # what is larger goes over the shelf
LONGEST_NAP_S = 0.5e-3
QUICK_S = 0.3e-3  # without a nap, since maps may follow each other; others may have the core


class Post:
    """Parcels from and to the other ranks, on a communicator of their own; and how a rank waits for them."""

    def __init__(self, comm: MPI.Intracomm, news: Presence, record: Record) -> None:
        self.parcels = Parcels(comm)
        self.record = record
        self._comm, self._news = comm, news
        self._nap, self._idle_since = Nap(LONGEST_NAP_S), 0.0

    def active(self) -> None:
        """Something has happened: the next nap is short."""
        self._idle_since = 0.0
        self._nap.reset()
        self.record.enter(Phase.PROTOCOL, time.perf_counter())

    @property
    def waited_s(self) -> float:
        """For how long nothing has happened."""
        return time.perf_counter() - self._idle_since if self._idle_since else 0.0

    def nap(self, at_most: float) -> None:
        """Sleep, a little longer each time; Error when meanwhile another rank has told that it can't go on."""
        now = time.perf_counter()
        self.record.enter(Phase.WAITING, now)
        self._idle_since = self._idle_since or now
        if now < self._idle_since + QUICK_S:
            os.sched_yield()
            return
        self._nap.take(at_most)
        if now > self._idle_since + FAILED_AFTER_S:
            self._news.hear()

    def close(self) -> None:
        """Collective: drop what is under way, and free the communicator."""
        self.parcels.drain()
        self._comm.Free()


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
        self.post = Post(duplicate(comm), self.news, record)
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

    def work(
        self,
        call: str,
        over: Callable[[], bool],
        turn: Callable[[Interrupts], bool],
        until: float = math.inf,
    ) -> None:
        """Receive what arrives, and call `turn`, again and again, until `over()`, or the time `until`.

        The loop of a pool, on all of its ranks.  `turn` works for a moment, or returns False if there is nothing to do:
        then this rank sleeps.  `call` tells in what it is, where the others must come to the same.
        """
        with in_call(call, watched=True) as interrupts, running(self.post.record):
            self.post.active()
            while True:
                interrupts.check()
                self.receive()
                if over() or (until < math.inf and time.perf_counter() >= until):
                    return
                if turn(interrupts):
                    self.post.active()
                else:
                    self.post.nap(min(self.worker.wake_at, until) - time.perf_counter())

    def receive(self) -> None:
        """Take what has arrived: what a thief asks, results, and orders, which wait until they are followed."""
        signs.turn()
        self.news.look(self.post.waited_s)
        arrived, heard = self.post.parcels.take(), []
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
            self.post.parcels.send(rank, Tag.STEAL, steal_parcel(message))
        if arrived:
            self.post.active()

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
                self.post.parcels.send(rank, tag, buffer)
        if not inline:
            self.host.shelf.spread(n_bytes, parts)

    def read_all(self, buffer: Buffer) -> tuple[int, int, memoryview]:
        """What `send_all` has sent."""
        first, second, n_bytes, data = read_numbers(buffer)
        return first, second, self.host.shelf.spread(n_bytes, None) if n_bytes else data

    def close(self) -> None:
        """Free everything; after a failure of one rank alone, nothing."""

        def free() -> None:
            align(self.comm, self.post.record)
            self.post.close()
            self.host.close()

        self.clocks.end()
        self.news.close(free)
        self.post.record.enter(Phase.OUTSIDE, time.perf_counter())
