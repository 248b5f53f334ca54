"""The scheduler of executors: which rank gets which tasks next.   (pure)

Law
- Each task is in exactly one place: it waits, it is due, it is at one rank, or it has ended.  A task that waits may be
  cancelled.  It is due when it has been begun, and can't be sent yet, or its rank has sent it back: then it goes before
  others.
- Ranks run batches in order, one after the other.  A rank has a second batch only while that can't make others wait.
- A batch has tasks of one function, and none of another function, or given back, are behind it: they may have to be done
  before it ends.  So a task of a function that is new is a batch, and none is behind it.
- A rank runs the initializer of an executor before its tasks, and gets them when that has succeeded.
- A task goes to a rank whose host has all its arrays.
- Of a stream, no more tasks are read than there is room for; and while one waits, no rank has none.

What happens, and what the caller does then:

    submit      a task waits
    batches     tasks and upkeep leave: send them to their ranks; executors in `ended` have ended
    finish      a rank has answered its oldest batch: give the tasks that it has run their results
    cancel      the tasks returned are cancelled
    break_      the executor has failed: the tasks returned get its error, and no more are sent

Tasks differ, and so do ranks.  Their speeds are learned from the seconds of all batches (`lb_mpi.knowledge`).  Where
costs are known, a rank of unknown speed begins with a cheap task.  Near the end a slow rank leaves long tasks to faster
ones, as in a map, but for a limited time.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.knowledge import MEMORY, RankKnowledge, Timing
from lb_mpi.pooling.copies import Copies
from lb_mpi.pooling.learning import LONG_S, wait_s

BATCH_S = 10e-3  # short tasks are sent together: as many as a rank runs in this time
BATCH_BYTES = 1 << 20
BATCH_MOST = 256  # tasks
AHEAD, MOST_AHEAD = 2, 8  # batches at a rank: the running one, and the next; more while the root can't send any
AHEAD_S, AHEAD_PART = 20e-3, 0.25  # a second one could wait so long, or for this part of the time that all ranks still need
PATIENCE = 4.0  # and so many times as long as the others should need
CHEAP = 0.25  # a rank begins with the cheapest task, if that costs less than so much of the most expensive one


class Task(NamedTuple):
    """A task of an executor."""

    payload: Any  # the caller's
    n_bytes: int = 0
    cost: float = 1.0  # expected, in average tasks of its executor
    arrays: frozenset[str] = frozenset()  # keys of large arrays that it needs
    function: Hashable = None  # what identifies it: tasks of one function are expected to be alike


class BatchKind(Enum):
    """Kinds of batches; all but TASKS are upkeep, without a task of the user's."""

    TASKS = 0
    INITIALIZE = 1  # run the initializer
    STORE = 2  # store an array for all ranks of the host
    FORGET = 3  # forget arrays


class Batch(NamedTuple):
    """Work that a rank gets in one message."""

    queue: TaskQueue
    kind: BatchKind
    tasks: tuple[Task, ...] = ()
    keys: tuple[str, ...] = ()  # of arrays


class TaskQueue:
    """The tasks of one executor, which runs them on `ranks`; `hosts[r]` is the number of the host of rank r.

    `begins(task)` returns whether to run a task, which then can't be cancelled any more.
    """

    def __init__(
        self, hosts: Sequence[int], ranks: Sequence[int], root: int, begins: Callable[[Task], bool], *,
        initializes: bool = False, chunksize: int = 0, more: bool = False,
    ) -> None:  # fmt: skip
        self.hosts, self.ranks = hosts, ranks
        self.chunksize = chunksize  # tasks of a batch; 0: adaptive
        self.more = more  # tasks are read while others run, so nobody knows how many are left
        self.copies = Copies(hosts[root], root)
        self._begins = begins
        self.waiting = deque[Task]()
        self.due = deque[Task]()  # begun; they go first
        self.n_given_back = 0  # the first ones of these
        self.units = 0.0  # cost of all tasks that wait or are due
        self.uninitialized = {*ranks} if initializes else set[int]()
        self.forgets: dict[int, list[str]] = {}  # by rank: keys of arrays
        self.freed: list[str] = []  # keys of arrays to forget on the root, which removes them from this list
        self.initializes_all = False  # initializers also run where there are no tasks
        self.open = True
        self.broken = False
        self.n_sent = 0  # batches at ranks

    def __len__(self) -> int:
        return len(self.waiting) + len(self.due)

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to send and nothing to await."""
        return not (self.waiting or self.due or self.n_sent or self.forgets or (self.initializes_all and self.uninitialized))

    @property
    def next_task(self) -> Task:
        """The next task."""
        return (self.due or self.waiting)[0]

    def add(self, task: Task) -> None:
        """Let a task wait."""
        self.waiting.append(task)
        self.units += task.cost

    def end(self) -> None:
        """Note that all tasks have been read."""
        self.more = False

    def upkeep(self, rank: int) -> Batch | None:
        """Return what a rank must do before it gets further tasks, or without any."""
        if rank in self.uninitialized and (self.initializes_all or len(self)):
            self.uninitialized.remove(rank)
            return Batch(self, BatchKind.INITIALIZE)
        if rank in self.forgets:
            return Batch(self, BatchKind.FORGET, keys=tuple(self.forgets.pop(rank)))
        return None

    def begin_cheapest(self) -> None:
        """Let the last task go first, the cheapest one, for a rank of unknown speed; unless all cost about the same."""
        if not self.due and self.waiting and self.waiting[-1].cost < CHEAP * self.waiting[0].cost:
            self.waiting.rotate(1)

    def next_batch(self, rank: int, most: int, most_units: float) -> Batch | None:
        """Remove and return tasks for a rank, at least one if there is any: at most so many, of about this cost.

        If its host lacks an array that they need, return the upkeep that stores it; None while another rank stores it.
        """
        taken, n_bytes, units, missing = list[Task](), 0, 0.0, None
        while len(taken) < most and n_bytes < BATCH_BYTES and (task := self.head()) is not None:
            if taken and (units + task.cost > most_units or task.function != taken[0].function):
                break
            if task.arrays and (missing := self.copies.missing(task.arrays, self.hosts[rank])) is not None:
                break
            taken.append(self.due.popleft())
            self.n_given_back = max(0, self.n_given_back - 1)
            self.units -= task.cost
            if task.arrays:
                self.copies.use(task.arrays, rank)
            n_bytes, units = n_bytes + task.n_bytes, units + task.cost
        if taken:
            return Batch(self, BatchKind.TASKS, tuple(taken))
        if missing is None or self.copies.is_on_its_way(missing, self.hosts[rank]):
            return None
        self.copies.send(missing, rank, self.hosts[rank])
        return Batch(self, BatchKind.STORE, keys=(missing,))

    def head(self) -> Task | None:
        """Return the next task, which is due from now on; drop cancelled ones before it."""
        while not self.due and self.waiting:
            task = self.waiting.popleft()
            if self._begins(task):
                self.due.append(task)
            else:
                self.units -= task.cost
        return self.due[0] if self.due else None

    def give_back(self, tasks: Sequence[Task]) -> None:
        """Let tasks that a rank has not run go before others."""
        if not self.broken:
            self.due.extendleft(reversed(tasks))
            self.n_given_back += len(tasks)
            self.units += sum(task.cost for task in tasks)

    def drop(self) -> list[Task]:
        """Remove and return the tasks that wait."""
        dropped = [*self.waiting]
        self.waiting.clear()
        self.units = sum(task.cost for task in self.due)
        return dropped

    def free(self, *, all_calls: bool = False) -> None:
        """Let all ranks forget arrays (see `Copies.free`)."""
        if not (all_calls or self.copies.ended):
            return
        freed, by_rank = self.copies.free(all_calls=all_calls)
        self.freed += freed
        for rank, keys in by_rank.items():
            self.forgets.setdefault(rank, []).extend(keys)


class Scheduler:
    """The tasks of all executors that use these ranks; something may be known of the ranks, and of tasks of `function`.

    The root sends messages beside its tasks: its turn comes after the others', and gets no second batch.  `blocks`: it sends
    none while it runs its own tasks, so the others first get what lasts until then.
    """

    def __init__(
        self, size: int, root: int, knowledge: RankKnowledge, function: Hashable = None, *, blocks: bool = False
    ) -> None:
        self._root, self._blocks = root, blocks
        self.queues = deque[TaskQueue]()
        self.at: dict[int, deque[Batch]] = {rank: deque() for rank in range(size)}
        self._knowledge, self._function = knowledge, function
        knowledge.begin(function)
        self._timings = dict[int, Timing]()  # not yet in `knowledge`
        self._known = knowledge.estimate(range(size), {})
        self._ran = dict[Hashable, tuple[float, float]]()  # by function of an executor: cost, and its seconds at speed 1
        self._first: dict[int, tuple[Batch, float]] = {}  # by rank: its oldest batch, and since when it runs that
        self._now: float | None = None  # when batches were asked for last
        self._left_at: dict[int, float] = {}  # by rank: since when it leaves tasks to others
        self.ended: list[TaskQueue] = []  # the caller removes them
        self.wake_at = math.inf  # when a rank has left tasks to others for long enough

    def batches(self, now: float) -> list[tuple[int, Batch]]:
        """Return (rank, batch) of what can be sent at this time, in order, and note which executors have ended.

        now : seconds, from any start.
        """
        for queue in self.queues:
            queue.free()
        batches = self._send(now)
        while self._retire():
            batches += self._send(now)
        return batches

    def _send(self, now: float) -> list[tuple[int, Batch]]:
        if not any(map(len, self.queues)):
            self._left_at.clear()
        self.wake_at, self._now = math.inf, now
        for rank, at in self.at.items():
            if at and (rank not in self._first or self._first[rank][0] is not at[0]):
                self._first[rank] = at[0], now
        sent = []
        for rank in self._free():
            batch = self._next(rank, now)
            if batch is not None:
                batch.queue.n_sent += 1
                self.at[rank].append(batch)
                if len(self.at[rank]) == 1:
                    self._first[rank] = batch, now
                self._left_at.pop(rank, None)
                sent.append((rank, batch))
        return sent

    def _free(self) -> Iterator[int]:
        """Yield ranks that may have a further batch: first those that have none, and fast ones before slow ones."""
        speeds, root = self._knowledge.speeds if self._known is None else self._known.speeds, self._root
        ranks = sorted(self.at, key=lambda rank: (self._blocks and rank == root, -speeds[rank], rank == root))
        for n, rank in itertools.product(range(MOST_AHEAD if self._blocks else AHEAD), ranks):
            if len(self.at[rank]) == n and (n == 0 or self._may_have_more(rank)):
                yield rank

    def wants(self, queue: TaskQueue, room: int) -> int:
        """Return how many tasks to read for a rank that could have some, and finds none, or too few; 0: for none.

        room : number of tasks that may be read; a rank gets its part of them, so that all have some.
        """
        if room <= 0:
            return 0
        now = self._now
        wanting = (
            rank for rank in self._free() if not len(queue) or (now is not None and self._leaves(rank, queue, now))
        )
        most = next((math.ceil(min(self._most(rank, queue))) for rank in wanting), 0)
        return min(most, max(1, room // len(self.at)))

    def _retire(self) -> bool:
        """Remove the executors that have ended: closed, idle, and without arrays; return whether ranks must forget some."""
        forgets = False
        for queue in [*self.queues]:
            if not queue.open and queue.is_idle:
                queue.free(all_calls=True)
                if queue.forgets:
                    forgets = True
                else:
                    self.queues.remove(queue)
                    self.ended.append(queue)
        return forgets

    def finish(self, rank: int, n: int, seconds: float, *, failed: bool = False, more: bool = False) -> Batch:
        """Return the batch that a rank has answered, after it has run the first `n` of its tasks in `seconds`.

        failed : an initializer or a store.
        more : the rank runs the others now; else they are given back.
        """
        if not self.at[rank]:
            raise ProtocolError(f"results from rank {rank}, which has no batch")
        batch = self.at[rank].popleft()
        self._first.pop(rank, None)  # which would keep its results
        queue = batch.queue
        if more:
            self.at[rank].appendleft(batch._replace(tasks=batch.tasks[n:]))
            batch = batch._replace(tasks=batch.tasks[:n])
        else:
            queue.n_sent -= 1
        if batch.kind == BatchKind.STORE:
            queue.copies.stored(batch.keys[0], queue.hosts[rank], well=not failed)
        elif batch.kind == BatchKind.TASKS:
            if not 0 < n <= len(batch.tasks):
                raise ProtocolError(f"{n} results from rank {rank}: expected 1 to {len(batch.tasks)}")
            queue.give_back(batch.tasks[n:])
            self._learn(rank, sum(task.cost for task in batch.tasks[:n]), seconds, batch.tasks[0].function, more=more)
        return batch

    def break_(self, queue: TaskQueue) -> list[Task]:
        """Send no more tasks of an executor; return all that have not ended."""
        lost = [*queue.drop(), *queue.due]
        queue.due.clear()
        queue.uninitialized.clear()
        queue.units, queue.broken = 0.0, True
        return lost + [task for at in self.at.values() for batch in at if batch.queue is queue for task in batch.tasks]

    def seconds_to_next(self) -> float | None:
        """Return how long another rank is expected to need for a batch, the shortest; 0: unknown; None: none has a batch."""
        others = [(rank, at[0]) for rank, at in self.at.items() if at and rank != self._root]
        if not others or self._known is None:
            return 0.0 if others else None
        return min(self._seconds(rank, batch) for rank, batch in others)

    def _next(self, rank: int, now: float) -> Batch | None:
        """Return the next batch for a rank, from the executors in turn; None if there is nothing to do."""
        for _ in range(len(self.queues)):
            queue = self.queues[0]
            self.queues.rotate(-1)
            if rank not in queue.ranks or any(one.queue is queue and one.kind != BatchKind.TASKS for one in self.at[rank]):
                continue
            if (upkeep := queue.upkeep(rank)) is not None:
                return upkeep
            if not len(queue) or self._leaves(rank, queue, now):
                continue
            if rank not in self._timings and not self._knowledge.knows(rank):
                queue.begin_cheapest()
            ahead = {task.function for batch in self.at[rank] for task in batch.tasks[:1]} - {None}  # may wait for the next
            if ahead and (queue.n_given_back or queue.next_task.function not in ahead):
                continue  # before it is begun
            if (task := queue.head()) is None or (ahead and task.function not in ahead):
                continue
            if (batch := queue.next_batch(rank, *self._most(rank, queue))) is not None:
                return batch
        return None

    def _most(self, rank: int, queue: TaskQueue) -> tuple[int, float]:
        """Return how many tasks a rank gets at most, and of which cost: for a short time, and half of its share."""
        known = self._known
        if queue.chunksize:
            return queue.chunksize, math.inf
        if known is None or self._is_new(function := queue.next_task.function if len(queue) else None):
            return 1, math.inf
        speed = known.speeds[rank]
        share = speed / sum(known.speeds[one] for one in queue.ranks) / AHEAD
        most = BATCH_MOST if queue.more else min(BATCH_MOST, math.ceil(len(queue) * share))
        return most, BATCH_S * speed / self._task_s(function)

    def _may_have_more(self, rank: int) -> bool:
        """Return whether a rank that has batches may have another one: without it, it would wait for each order."""
        known, more = self._known, any(queue.more for queue in self.queues)
        if rank == self._root or known is None or not (more or sum(map(len, self.queues)) > len(self.at)):
            return False
        if any(self._is_new(task.function) for batch in self.at[rank] for task in batch.tasks[:1]):
            return False
        seconds = sum(self._seconds(rank, batch) for batch in self.at[rank])
        if len(self.at[rank]) >= AHEAD:
            return seconds < known.task_s / known.speeds[self._root]
        if more:  # at least until the root has run a batch of its own
            return seconds < max(AHEAD_S, AHEAD * known.task_s / known.speeds[self._root])
        rest_s = sum(queue.units for queue in self.queues) * known.task_s / sum(known.speeds.values())
        return seconds < max(AHEAD_S, AHEAD_PART * rest_s if len(self._ran) < 2 else 0.0)

    def _is_new(self, function: Hashable) -> bool:
        return function is not None and function not in self._ran

    def _task_s(self, function: Hashable) -> float:
        """Return the seconds of an average task of a function at speed 1."""
        assert self._known is not None
        if len(self._ran) < 2 or function not in self._ran:
            return self._known.task_s
        units, seconds = self._ran[function]
        return max(1e-9, seconds / units)

    def _seconds(self, rank: int, batch: Batch) -> float:
        """Return how long a rank is expected to need for a batch, of which it may be in a long task."""
        assert self._known is not None
        variation = self._known.variation if len(self._ran) < 2 else 1.0  # of one function
        units = sum(task.cost for task in batch.tasks) + variation
        return units * self._task_s(batch.tasks[0].function if batch.tasks else None) / self._known.speeds[rank]

    def _leaves(self, rank: int, queue: TaskQueue, now: float) -> bool:
        """Return whether a rank leaves the tasks to faster ones, which need less time for them than it would lose."""
        known = self._known
        if known is None or self.at[rank] or len(queue.ranks) == 1:
            return False
        if known.task_s < LONG_S * known.speeds[rank]:
            return False
        speeds = {one: known.speeds[one] for one in queue.ranks}
        under_way = {one: self._units_left(one, now) for one in queue.ranks}
        longest_s = wait_s(known._replace(speeds=speeds), rank, queue.units, queue.next_task.cost, under_way)
        if not longest_s:
            return False
        until = self._left_at.setdefault(rank, now) + PATIENCE * longest_s
        if now >= until:
            return False
        self.wake_at = min(self.wake_at, until)
        return True

    def _units_left(self, rank: int, now: float) -> float:
        """Return the cost that is left of the batches at a rank."""
        known, at = self._known, self.at[rank]
        if not at or known is None:
            return 0.0
        batch, began = self._first.get(rank, (at[0], now))
        ran = (now - began) * known.speeds[rank] / known.task_s if batch is at[0] else 0.0
        units = [sum([task.cost for task in one.tasks]) for one in at]
        return max(0.0, units[0] - ran) + sum(units[1:])

    def _learn(self, rank: int, units: float, seconds: float, function: Hashable, *, more: bool) -> None:
        """Learn from tasks of a cost of `units` in all that a rank has run; later, if there is `more`."""
        timings, knowledge, units = self._timings, self._knowledge, max(units, 1e-9)
        timings[rank] = timings.get(rank, Timing()).added(seconds, units)
        if more:
            return
        idle = not any(self.at.values()) and not any(map(len, self.queues))
        if idle or sum(timing.n for timing in timings.values()) > MEMORY * len(self.at):
            knowledge.observe(self._function, timings)
            timings.clear()
        self._known = knowledge.estimate(range(len(self.at)), timings)
        if function is not None:
            before = self._ran.get(function, (0.0, 0.0))
            keeps = 0.5 if before[0] > MEMORY else 1.0
            seconds *= 1.0 if self._known is None else self._known.speeds[rank]
            self._ran[function] = keeps * before[0] + units, keeps * before[1] + seconds
