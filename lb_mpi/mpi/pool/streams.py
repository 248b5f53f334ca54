"""A map whose items are read while its tasks run: any number of them, one by one, from a generator, for example.

    caller's frame   RootStream: read items; take the next result
    root             carry: the scheduler's batches leave; run its own; receive results
    others           Worker: run the batches that arrive, and send their results

Where only the root calls methods, a stream pauses while another map uses the ranks: the batches under way are completed, and
nothing more is read until the next result is requested.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.pool.arguments import CheckedOptions, iterate, name_of
from lb_mpi.mpi.pool.maps import PoolMaps, RootTasks
from lb_mpi.mpi.pool.member import Arrived, PoolMessage, PoolSend
from lb_mpi.mpi.pool.messages import Frame, TaskBatch, TaskFailure, batch_parcel, exact, read_results
from lb_mpi.mpi.pool.orders import Order
from lb_mpi.mpi.pool.ranks import MAP
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.beginning import Wish
from lb_mpi.pooling.scheduler import BATCH_BYTES, Batch, Scheduler, Task, TaskQueue

ROOM = 32  # items for each rank, if the user gives no buffersize; more if tasks are short


class RootStream(RootTasks):
    """A stream on its root; the payload of a task: its position, and its item, pickled."""

    def __init__(self, maps: PoolMaps, items: Sequence[Any], options: CheckedOptions) -> None:
        super().__init__(maps, options.call)
        ranks = self.ranks
        self._options, self._ordered = options, False
        self._items: Iterator[Any] | None = iterate(items)  # None: all are read
        self._items_error: Exception | None = None  # raised in the place of the item that could not be read
        self._scheduler = Scheduler(
            ranks.size, ranks.root, maps.knowledge, name_of(options.call.function), blocks=True
        )  # fmt: skip
        self._queue = TaskQueue(
            ranks.hosts, range(ranks.size), ranks.root, lambda _: True, chunksize=options.chunksize, more=True
        )
        self._scheduler.queues.append(self._queue)
        self.pickle_function()
        self._n_read = self._n_taken = 0
        self._room = ROOM  # for each rank
        self._undelivered = deque[tuple[list[int], list[Any]]]()  # (positions, results), not yet delivered
        self._tasks = deque[list[int]]()  # positions of the results that are to be unpickled
        self._early: dict[int, Any] = {}  # results that wait for earlier ones
        self._fresh = deque[tuple[int, Any]]()  # (position, result), to be taken
        self._n_in_order = 0
        self._seconds = 0.0  # in which it was under way, up to the last pause
        self._before = [RankTasks()] * ranks.size  # by rank: the work up to the last pause

    def begin_all(self) -> None:
        """Begin it on all ranks, or go on after a pause."""
        self.send_start([0] * (self.ranks.size + 1), [], chunksize=self._options.chunksize, lazy=True)

    def _results(self, *, indexed: bool, ordered: bool) -> Iterator[Any]:
        self._ordered = ordered
        with self._ending():
            with self._yielding():
                yield
            while True:
                self._deliver()
                with self._yielding():
                    while self._fresh:
                        self._n_taken += 1
                        position, value = self._fresh.popleft()
                        yield (position, value) if indexed else value
                if self.failure is not None or (not self.under_way and self._is_complete):  # in this order
                    self._finish()
                    self._raise_items_error()
                    return
                self._read()
                with self._claimed(), in_call(MAP, watched=True) as interrupts, self._ending():
                    if self._undelivered or self.failure is not None:  # another thread's map has made it pause meanwhile
                        continue
                    if not self.under_way:
                        self.pickle_function()
                        self.begin_all()
                    self.work(interrupts)
                    if self._is_complete:
                        self._raise_items_error()
                        self.end()

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Keep the ranks from other threads in this block, in which the stream is under way, or may begin again."""
        while True:
            if not self.under_way:
                with self.ranks.claimed(Wish.MAP):
                    yield
                    return
            with self.ranks.lock:
                if self.under_way:  # else another thread's map has made it pause
                    yield
                    return

    @property
    def _n_wanted(self) -> int:
        """The number of items to read now: as many as some rank needs, and there is room for.

        The root runs its own tasks while it has nothing else to do, and none of them waits for more items than this room.
        """
        if self._items is None:
            return 0
        room = self._options.buffersize or self._room * self.ranks.size
        mine = [_positions(batch)[0] for batch in self._scheduler.at[self.ranks.rank]]
        return self._scheduler.wants(self._queue, room - self._n_read + min([self._n_taken, *mine]))

    def _read(self) -> None:
        """Read items; in the caller's frame, with no lock, since it is the user's code: another thread may go on.

        If one can't be read, the results of those before it come first, as with the builtin map.
        """
        read, n_bytes = list[Task](), 0
        with self.ranks.lock:
            n = self._n_wanted
        while self._items is not None and len(read) < n and n_bytes < BATCH_BYTES:
            try:
                item = next(self._items)
                data = self._pickled(item)
            except Exception as error:
                self._items = None
                if not isinstance(error, StopIteration):
                    self._items_error = error
                break
            read.append(Task((self._n_read, data), len(data)))
            self._n_read += 1
            n_bytes += len(data)
        with self.ranks.lock:
            for task in read:
                self._queue.add(task)
            if self._items is None:
                self._queue.end()

    def _pickled(self, item: Any) -> bytes:
        try:
            return exact(item)
        except Exception as error:
            raise TypeError(f"items[{self._n_read}] can't be pickled: {type(error).__name__}: {error}") from error

    def _raise_items_error(self) -> None:
        if self._items_error is not None:
            raise self._items_error

    @property
    def complete_for_others(self) -> bool:
        """See `RootTasks`: it pauses when nothing of it is under way."""
        return self.failure is not None or not (self._arrived or self._queue.n_sent)

    def _deliver(self) -> None:
        """Pass results to the callback, and let the caller take them; in the caller's frame, with no lock."""
        while self._undelivered:
            positions, values = self._undelivered.popleft()
            if self._options.callback is not None:
                with self._calling():
                    for value in values:
                        self._options.callback(value)
            if not self._ordered:
                self._fresh.extend(zip(positions, values, strict=True))
                continue
            self._early.update(zip(positions, values, strict=True))
            while self._n_in_order in self._early:
                self._fresh.append((self._n_in_order, self._early.pop(self._n_in_order)))
                self._n_in_order += 1

    # The actor.

    @property
    def _is_complete(self) -> bool:
        """True if all items are read, and all their results are delivered."""
        return self._items is None and self._queue.is_idle and not (self._arrived or self._undelivered)

    @property
    def over(self) -> bool:
        """True if there is something for the caller to do, or if it can pause for another thread."""
        if not self.calls:
            return self.complete_for_others
        if self.failure is not None or self._undelivered or self._is_complete:
            return True
        return not self._arrived and self._n_wanted > 0

    @property
    def wake_at(self) -> float:
        """See `PoolActor`."""
        return self._scheduler.wake_at

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """See `PoolActor`; send batches."""
        sends = super().turn(now, arrived)
        if self.failure is not None or not self.calls:  # or it pauses
            return sends
        for rank, batch in self._scheduler.batches(now):
            self._room = max(self._room, 4 * len(batch.tasks))
            if rank != self.ranks.rank:
                sends.append((rank, Order(Tag.TASK, batch_parcel(_packed(batch)))))
        return sends

    @property
    def job(self) -> Any:
        """Results to unpickle, or else a batch of the root's own."""
        if self.over:
            return None
        if self._arrived:
            return Arrived(self._arrived)
        mine = self._scheduler.at[self.ranks.rank]
        return _packed(mine[0]) if mine else None

    def position(self, job: Any, k: int) -> int:
        """See `Member`."""
        return _positions(self._scheduler.at[self.ranks.rank][0])[k]

    def done(self, job: Any, result: Any) -> list[PoolSend]:
        """See `Member`."""
        if not isinstance(job, Arrived):
            return super().done(job, result)
        for _, _, values in self.unpacked(result):
            self._undelivered.append((self._tasks.popleft(), values))
        return []

    def position_in(self, frame: Frame, k: int) -> int:
        """See `RootTasks`."""
        return self._tasks[0][k]

    def put(self, lo: int, hi: int, values: list[Any], seconds: float) -> None:
        """See `Member`."""
        self._undelivered.append((self._finish_batch(self.ranks.rank, hi - lo, seconds), values))

    def receive_results(self, source: int, results: Buffer) -> None:
        """See `RootTasks`; each rank sends the results of its batches one by one."""
        epoch, done, frames = read_results(results)
        if epoch != self._epoch:
            return
        self._rank_tasks[source] = done
        tasks = _positions(self._scheduler.at[source][0]) if self._scheduler.at[source] else []
        for frame in frames:
            if frame.lo < frame.hi:
                self._tasks.append(self._finish_batch(source, frame.hi - frame.lo, frame.seconds))
                self._arrived.append((source, frame))
            else:
                failure: TaskFailure = pickle.loads(frame.data)
                at = failure.task - tasks[0] if failure.task >= 0 else -1
                self.fail_task(failure._replace(task=tasks[at] if at >= 0 else -1), None)

    def _finish_batch(self, rank: int, n: int, seconds: float) -> list[int]:
        """Note that a rank has run the first n tasks of its oldest batch; return their positions."""
        return _positions(self._scheduler.finish(rank, n, seconds))[:n]

    def _end(self, results: list[Any] | None, *, dropped: bool) -> None:
        self._dropped = dropped
        self._rank_tasks[self.ranks.rank] = self.done_tasks
        self.send_end(pickle.dumps(None if dropped else self.failure, pickle.HIGHEST_PROTOCOL))
        self._seconds += time.perf_counter() - self._began
        self._before = [one.plus(more) for one, more in zip(self._before, self._rank_tasks, strict=True)]
        self._rank_tasks = [RankTasks()] * len(self._before)
        self._maps.ended(sum(rank.tasks for rank in self._before), self._seconds, self._before, self.threads_s)


def _positions(batch: Batch) -> list[int]:
    return [task.payload[0] for task in batch.tasks]


def _packed(batch: Batch) -> TaskBatch:
    return TaskBatch(batch.tasks[0].payload[0], [task.payload[1] for task in batch.tasks])
