"""A map whose items are read while its tasks run: any number of them, one by one, from a generator, for example.

    caller's frame   RootStream: read a batch; take the next result
    root             carry: send batches, run its own, receive results
    others           WorkerStream: run the batches that arrive, and send their results

`lb_mpi.pooling.feeding` decides which rank gets how many items.  Where only the root calls methods, a stream pauses while
another map uses the ranks: the batches under way are completed, and nothing more is read until the next result is requested.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lb_mpi.mpi.common.late import call as in_call
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import interrupts
from lb_mpi.mpi.pool.arguments import CheckedOptions, MapCall, iterate
from lb_mpi.mpi.pool.maps import Arrived, MapPort, PoolMaps, RootTasks, WorkerMap, sent_function
from lb_mpi.mpi.pool.messages import (
    ItemBatch,
    batch_parcel,
    exact,
    read_batch,
)
from lb_mpi.mpi.pool.orders import Order
from lb_mpi.mpi.pool.running import Ran
from lb_mpi.mpi.pool.session import MAP, PoolMessage, PoolSend
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.beginning import Wish
from lb_mpi.pooling.feeding import Feeder

BATCH_BYTES = 1 << 20  # a batch that is as large gets no more items


class RootStream(RootTasks):
    """A stream on its root.

    `ordered`: results are taken in the order of the items.
    """

    def __init__(
        self, maps: PoolMaps, call: MapCall, items: Sequence[Any], options: CheckedOptions, *, ordered: bool
    ) -> None:
        super().__init__(maps, call)
        ranks = self.session.ranks
        self._chunksize, self._callback, self._ordered = options.chunksize, options.callback, ordered
        self._items: Iterator[Any] | None = iterate(items)  # None: all are read
        order = [ranks.root, *(rank for rank in range(ranks.size) if rank != ranks.root)]
        self._feeder = Feeder(order, buffersize=options.buffersize, chunksize=options.chunksize)
        self._function = sent_function(self.session, call)
        self._port = MapPort(self.session, call)
        self._going = deque[PoolSend]()  # batches for other ranks, which one thread adds and another one may send meanwhile
        self._mine = deque[ItemBatch]()  # of the root itself
        self._came: list[tuple[int, list[Any]]] = []  # (position of the first, results), not yet delivered
        self._early: dict[int, Any] = {}  # results that wait for earlier ones
        self._fresh = deque[tuple[int, Any]]()  # (position, result), to be taken
        self._n_in_order = 0
        self._pausing = False
        self._seconds = 0.0  # in which it was under way, up to the last pause
        self._before = [RankTasks()] * ranks.size  # by rank: the work up to the last pause

    def begin_all(self) -> None:
        """Begin it on all ranks, or go on after a pause."""
        self.tell_start([0] * (self.session.ranks.size + 1), [], chunksize=self._chunksize, lazy=True)

    def _results(self) -> Iterator[tuple[int, Any]]:
        with self._ending():
            yield -1, None
            while True:
                while self._fresh:
                    self._feeder.took(1)
                    yield self._fresh.popleft()
                if self.failure is not None or (self._is_complete and not self.under_way):
                    self._finish()
                    return
                self._read()
                with self._claimed(), in_call(""), self._ending():
                    if not self.under_way:
                        self._function = sent_function(self.session, self._call)
                        self.begin_all()
                    self._work()
                    if self._is_complete:
                        self.end()

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Keep the ranks from other threads in this block, in which the stream is under way, or may begin again."""
        while True:
            if not self.under_way:
                with self.session.claimed(Wish.MAP):
                    yield
                    return
            with self.session.lock:
                if self.under_way:  # else another thread's map has made it pause
                    yield
                    return

    def _read(self) -> None:
        """Read items for the rank that needs some most; in the caller's frame, with no lock, since it is the user's code."""
        need = None if self._items is None else self._feeder.need()
        batch, n_bytes = list[bytes](), 0
        while need is not None and self._items is not None and len(batch) < need.n and n_bytes < BATCH_BYTES:
            try:
                item = next(self._items)
            except StopIteration:
                self._items = None
                break
            batch.append(self._pickled(item, self._feeder.n_read + len(batch)))
            n_bytes += len(batch[-1])
        if need is None or not batch:
            return
        given = ItemBatch(self._feeder.gave(need.rank, len(batch)), [*batch])
        if need.rank == self.session.ranks.rank:
            self._mine.append(given)
        else:
            self._going.append((need.rank, Order(Tag.TASK, batch_parcel(given))))

    def _pickled(self, item: Any, number: int) -> bytes:
        try:
            return exact(item)
        except Exception as error:
            raise TypeError(f"items[{number}] can't be pickled: {type(error).__name__}: {error}") from error

    def _work(self) -> None:
        """Work until there are results, or items to read; then call the caller's function with the results."""
        self._thread = threading.get_ident()
        try:
            self.session.work(self, self._port, MAP)
            came, self._came = self._came, []
            for first, values in came:
                if self._callback is not None:
                    with interrupts().allowed():
                        for value in values:
                            self._callback(value)
                self._deliver(first, values)
        finally:
            self._thread = 0

    def _deliver(self, first: int, values: list[Any]) -> None:
        if not self._ordered:
            self._fresh.extend(enumerate(values, first))
            return
        self._early.update(enumerate(values, first))
        while self._n_in_order in self._early:
            self._fresh.append((self._n_in_order, self._early.pop(self._n_in_order)))
            self._n_in_order += 1

    def complete(self) -> None:
        """See `SessionActor`: pause."""
        with in_call(""):
            self._pausing = True
            try:
                while self._feeder.under_way and self.failure is None:
                    self._work()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._pausing = False
                self.end()
            if isinstance(self.failed, KeyboardInterrupt):
                raise self.failed

    # The actor.

    @property
    def _is_complete(self) -> bool:
        """True if all items are read, and all their results are delivered."""
        return self._items is None and not (self._feeder.under_way or self._arrived or self._came)

    @property
    def over(self) -> bool:
        """True if there is something for the caller to do."""
        if self.failure is not None or self._came or self._is_complete:
            return True
        if self._arrived or self._going:
            return False
        if self._pausing:
            return not self._feeder.under_way
        return self._items is not None and self._feeder.need() is not None

    @property
    def wake_at(self) -> float:
        """See `lb_mpi.actor`."""
        return float("inf")

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """See `SessionActor`; send batches."""
        sends = super().turn(now, arrived)
        while self._going:
            sends.append(self._going.popleft())
        return sends

    @property
    def job(self) -> ItemBatch | Arrived | None:  # type: ignore[override]
        """Results to unpickle, or else a batch of the root's own."""
        if self.over:
            return None
        return Arrived(self._arrived) if self._arrived else self._mine[0] if self._mine else None

    def done(self, job: ItemBatch | Arrived, result: Any) -> list[PoolSend]:  # type: ignore[override]
        """See `LocalMap`."""
        if isinstance(job, Arrived):
            for source, frame, values in self.unpacked(result):
                self._feeder.done(source, frame.seconds / self.session.ranks.emulated_speeds[source])
                self._came.append((frame.lo, values))
            return []
        self._mine.popleft()
        ran: Ran = result
        self._feeder.done(self.session.ranks.rank, ran.wall_s)
        self.ran(job.first, len(job.items), ran)
        return []

    def put(self, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """See `LocalMap`."""
        self._came.append((lo, values))

    def flush(self, now: float, *, idle: bool) -> list[PoolSend]:
        """See `LocalMap`; the root sends no results."""
        return []

    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        self._dropped = dropped
        self._rank_tasks[self.session.ranks.rank] = self.done_tasks
        self.tell_end(pickle.dumps(None if dropped else self.failure, pickle.HIGHEST_PROTOCOL))
        n, busy_s = np.array([(rank.tasks, rank.busy_s) for rank in self._rank_tasks]).T
        self._maps.speeds.observe(n, None, busy_s)
        self._seconds += time.perf_counter() - self._began
        self._before = [one.plus(more) for one, more in zip(self._before, self._rank_tasks, strict=True)]
        self._rank_tasks = [RankTasks()] * len(self._before)
        self._maps.ended(sum(rank.tasks for rank in self._before), self._seconds, self._before)


class WorkerStream(WorkerMap):
    """A stream on a rank other than the root: it runs the batches that arrive."""

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """See `SessionActor`; drop the batches not begun when the root has ended the stream, or after a failure here."""
        sends = super().turn(now, arrived)
        self.session.orders.drop(Tag.TASK, all_of_them=self.failed is not None)
        return sends

    @property
    def over(self) -> bool:
        """True when the root has ended the stream."""
        order = self.session.orders.first
        return order is not None and order.tag != Tag.TASK

    @property
    def job(self) -> ItemBatch | None:  # type: ignore[override]
        """The next batch."""
        order = self.session.orders.first
        return None if self.over or order is None else read_batch(order.parcel)

    def done(self, job: ItemBatch, result: Ran) -> list[PoolSend]:  # type: ignore[override]
        """See `LocalMap`."""
        self.session.orders.follow()
        self.ran(job.first, len(job.items), result)
        return []
