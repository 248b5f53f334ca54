"""The law of the scheduler of executors, checked in every state that a small one can reach.

A scheduler is no actor: its caller submits, cancels, closes and breaks.  So its events are listed here, in `choices`.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from lb_mpi.knowledge import RankKnowledge
from lb_mpi.pooling.scheduler import AHEAD, Batch, BatchKind, Scheduler, Task, TaskQueue
from tests.protocol.explore import reach

ROOT = 0


class Small(NamedTuple):
    """A small executor: the host of each rank, the arrays of each task, and what may happen."""

    hosts: list[int]
    tasks: list[str]  # names of arrays, such as "ab"
    initializes: bool = False
    fails: bool = False  # an initializer, or a store
    cancels: bool = False  # single tasks, and all that wait
    most: int = 2  # tasks of a batch
    two: bool = True  # ranks have two batches
    buffersize: int = 0  # of a stream, whose tasks are read as ranks need some; 0: they are submitted


class Free(Scheduler):
    """A scheduler that a small executor frees of what depends on times."""

    small: Small

    def _may_have_more(self, rank: int) -> bool:
        return self.small.two and rank != ROOT and len(self.at[rank]) < AHEAD

    def _leaves(self, rank: int, queue: TaskQueue, now: float) -> bool:
        return False

    def _most(self, rank: int, queue: TaskQueue) -> tuple[int, float]:
        return self.small.most, math.inf

    def _learn(self, rank: int, units: float, seconds: float, function: Hashable, *, more: bool) -> None:
        pass


class Outside:
    """A scheduler, and what is around it: the tasks, and what each rank has done."""

    def __init__(self, small: Small) -> None:
        self.small, size = small, len(small.hosts)
        self.scheduler = Free(size, ROOT, RankKnowledge(size), blocks=bool(small.buffersize))
        self.scheduler.small = small
        self.queue = TaskQueue(
            small.hosts, range(size), ROOT, self.begins, initializes=small.initializes, more=bool(small.buffersize)
        )
        self.scheduler.queues.append(self.queue)
        self.n_submitted = self.n_taken = 0
        self.cancelled = set[int]()
        self.begun = set[int]()
        self.ended: dict[int, str] = {}
        self.initialized = set[int]()
        self.has = {(small.hosts[ROOT], key) for names in small.tasks for key in names}  # (host, key)
        self.uses = set[tuple[int, str]]()  # (rank, key): other ranks that have it in their memory
        self.over = False

    def begins(self, task: Task) -> bool:
        if task.payload in self.begun:
            raise AssertionError(f"task {task.payload} is begun twice")
        if task.payload in self.cancelled:
            self.end(task, "cancelled")
            return False
        self.begun.add(task.payload)
        return True

    def end(self, task: Task, how: str) -> None:
        assert task.payload not in self.ended, f"task {task.payload} ends twice"
        self.ended[task.payload] = how
        self.queue.copies.done(task.arrays)

    def send(self) -> None:
        """What the dispatcher does after each event."""
        scheduler = self.scheduler
        for rank, batch in scheduler.batches(0.0):
            if self.small.buffersize and rank == ROOT:
                others = [len(at) for other, at in scheduler.at.items() if other != ROOT]
                assert min(others, default=1) > 0, "the root, which blocks, goes first"
            for task in batch.tasks:
                assert task.payload in self.begun, f"task {task.payload} is sent, and may be cancelled"
                for key in task.arrays:
                    assert (self.small.hosts[rank], key) in self.has, f"rank {rank} gets a task, and has no {key}"
                    self.uses |= {(rank, key)} if rank != ROOT else set()
            if batch.tasks and self.small.initializes:
                assert rank in self.initialized, f"rank {rank} gets tasks before it is initialized"

        assert not self.small.buffersize or not len(self.queue) or all(scheduler.at.values()), "a rank has none of a stream"
        for ended in scheduler.ended:
            assert ended is self.queue
            assert len(self.ended) == self.n_submitted, "an executor ends before its tasks"
            assert not self.uses, f"an executor ends, and ranks keep arrays: {self.uses}"
            self.over = True
        scheduler.ended.clear()

    # What may happen.

    @property
    def n_wanted(self) -> int:
        return self.scheduler.wants(self.queue, self.small.buffersize - self.n_submitted + self.n_taken)

    def read(self) -> None:
        """The caller of a stream reads, as `RootStream` does: what ranks need, up to the last task."""
        for _ in range(min(self.n_wanted, len(self.small.tasks) - self.n_submitted)):
            self.submit()
        if self.n_submitted == len(self.small.tasks):
            self.queue.end()
            self.close()

    def take(self) -> None:
        self.n_taken += 1

    def submit(self) -> None:
        task = Task(self.n_submitted, arrays=frozenset(self.small.tasks[self.n_submitted]))
        self.n_submitted += 1
        for key in sorted(task.arrays):
            if key not in self.queue.copies:
                self.queue.copies.add(key)
            self.queue.copies.need(key)
            if not any(key in more for more in self.small.tasks[self.n_submitted :]):
                self.queue.copies.end_call([key])
        self.queue.add(task)

    def finish(self, rank: int, n: int, *, failed: bool = False, more: bool = False) -> None:
        batch = self.scheduler.finish(rank, n, 0.0, failed=failed, more=more)
        for task in batch.tasks[:n]:
            if not self.queue.broken:
                self.end(task, "done")
        if batch.kind == BatchKind.INITIALIZE:
            assert rank not in self.initialized, f"rank {rank} is initialized twice"
            if failed:
                self.lose()
            else:
                self.initialized.add(rank)
        if batch.kind == BatchKind.STORE:
            if failed:
                self.lose()
            else:
                assert (self.small.hosts[rank], batch.keys[0]) not in self.has, "stored twice on a host"
                self.has.add((self.small.hosts[rank], batch.keys[0]))
                self.uses.add((rank, batch.keys[0]))
        if batch.kind == BatchKind.FORGET:
            for key in batch.keys:
                self.uses.discard((rank, key))
                if self.small.hosts[rank] != self.small.hosts[ROOT]:
                    self.has.discard((self.small.hosts[rank], key))

    def lose(self) -> None:
        for task in self.scheduler.break_(self.queue):
            self.end(task, "lost")

    def close(self) -> None:
        self.queue.open = False

    def cancel_all(self) -> None:
        self.close()
        for task in self.queue.drop():
            assert task.payload not in self.begun, f"task {task.payload} was begun, and is cancelled"
            self.end(task, "cancelled")

    def choices(self) -> Iterator[Callable[[Outside], None]]:
        queue, stream = self.queue, bool(self.small.buffersize)
        if stream and queue.open and self.n_wanted:
            yield Outside.read
        if stream and self.n_taken < len(self.ended):
            yield Outside.take
        if stream:
            pass
        elif queue.open and not queue.broken and self.n_submitted < len(self.small.tasks):
            yield Outside.submit
        if queue.open and not stream:
            yield Outside.close
            if self.small.cancels:
                yield Outside.cancel_all
        if self.small.cancels:
            for task in queue.waiting:
                if task.payload not in self.cancelled:
                    yield lambda one, payload=task.payload: one.cancelled.add(payload)
        for rank, at in self.scheduler.at.items():
            if at:
                for n in range(1, len(at[0].tasks) + 1) if at[0].tasks else [1]:
                    yield lambda one, rank=rank, n=n: one.finish(rank, n)
                    if n < len(at[0].tasks):
                        yield lambda one, rank=rank, n=n: one.finish(rank, n, more=True)
                if self.small.fails and at[0].kind in (BatchKind.INITIALIZE, BatchKind.STORE) and not queue.broken:
                    yield lambda one, rank=rank: one.finish(rank, 1, failed=True)

    def key(self) -> Hashable:
        scheduler, queue = self.scheduler, self.queue
        at = tuple(tuple((one.kind, names(one), one.keys) for one in batches) for batches in scheduler.at.values())
        copies = queue.copies
        arrays = str((copies._hosts, sorted(copies._users.items()), sorted(copies._needed.items())))
        return (
            at, names(queue.waiting), names(queue.due), frozenset(queue.uninitialized), str(queue.forgets), queue.open,
            queue.broken, self.n_submitted, frozenset(self.cancelled), frozenset(self.ended.items()),
            frozenset(self.initialized), frozenset(self.has), frozenset(self.uses), arrays, self.over,
            self.n_taken,
        )  # fmt: skip

    def check_law(self) -> None:
        scheduler, queue = self.scheduler, self.queue
        batches: list[Batch] = [batch for at in scheduler.at.values() for batch in at]
        at = [task.payload for batch in batches for task in batch.tasks]
        if queue.broken:  # what was at ranks has ended with the executor's error
            at = [payload for payload in at if payload not in self.ended]
        found = Counter([*names(queue.waiting), *names(queue.due), *at, *self.ended])
        assert found == Counter(range(self.n_submitted)), f"tasks in {found}: expected each once"
        assert queue.n_sent == len(batches)
        if self.small.buffersize:
            room = self.small.buffersize - self.n_submitted + self.n_taken
            assert room >= 0, "more is read than there is room for"
            assert self.n_wanted or not room or len(queue) or all(scheduler.at.values()), "a rank has none, and none is read"
        assert queue.units == len(queue)
        assert all(len(one) <= (1 if rank == ROOT else AHEAD) for rank, one in scheduler.at.items())


def names(tasks: object) -> tuple[int, ...]:
    return tuple(task.payload for task in getattr(tasks, "tasks", tasks))


def explore(small: Small) -> int:
    """Every state, the law in each, and a way to the end of the executor from each; the number of states."""

    def successors(state: Outside) -> Iterator[Outside]:
        whole = pickle.dumps(state)
        for n, _ in enumerate(state.choices()):
            new = pickle.loads(whole)
            [*new.choices()][n](new)
            new.send()
            yield new

    def visit(state: Outside) -> bool:
        state.check_law()
        return state.over

    return reach([Outside(small)], successors, key=Outside.key, visit=visit, most_states=30_000).states
