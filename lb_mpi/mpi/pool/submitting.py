"""What the root has under way: a map, at most, and single tasks, each of which it sends to a rank that has few.

No thread: messages are looked at by whoever waits for a map or a `Future`, and when a task is submitted.  All pools of a
script that rank 0 runs alone share one `Leader`.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

from lb_mpi.checks import show
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.presence import Tag, closed
from lb_mpi.mpi.common.recorder import running
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.pool.crew import TASK, Crew
from lb_mpi.mpi.pool.functions import dumps
from lb_mpi.mpi.pool.messages import failure_of, numbers_parcel, read_numbers, task_error, unpack_failure
from lb_mpi.record.events import Phase

AHEAD = 2  # tasks at a rank: one that it runs, and the next
CLOSED = ": the pool was closed"  # why a task was cancelled


class Future:
    """The result of a submitted task, some day; of `lb_mpi.Pool.submit`."""

    def __init__(self, number: int, submitted: Submitted) -> None:
        self._number, self._submitted = number, submitted
        self._state: str = "pending"  # running, done, failed, cancelled
        self._value: Any = None
        submitted.unfinished[number] = self

    def __repr__(self) -> str:
        """Say which task, and how far it is."""
        return f"<Future of task {self._number}: {self._state}>"

    def done(self) -> bool:
        """True when there is a result, or an error, or the task was cancelled; looks at messages."""
        self._submitted.look()
        return self.over

    @property
    def over(self) -> bool:
        """As `done`, as far as is known by now."""
        return self._state in ("done", "failed", "cancelled")

    def cancel(self) -> bool:
        """Take a task back that no rank has got yet; False when it's too late."""
        if self._state == "pending":
            self._end("cancelled", "")
        return self._state == "cancelled"

    def running(self) -> bool:
        """True when a rank has got it, and it is not over."""
        return self._state == "running"

    def cancelled(self) -> bool:
        """True when it was taken back, or its pool was closed before it was done."""
        return self._state == "cancelled"

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result; this rank works on other tasks meanwhile, so it may come later than `timeout` seconds.

        Raises lb_mpi.TaskError when the task has raised, TimeoutError, or RuntimeError when it was cancelled.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does, and return the error, or None."""
        self._submitted.wait(lambda: self.over, timeout)
        if self._state == "cancelled":
            raise RuntimeError(f"task {self._number} was cancelled{self._value}")
        return self._value if self._state == "failed" else None

    def _start(self) -> None:
        self._state = "running"

    def _end(self, state: str, value: Any) -> None:
        if not self.over:
            self._state, self._value = state, value
            del self._submitted.unfinished[self._number]


class Submitted:
    """The tasks that were submitted to one pool."""

    def __init__(self, leader: Leader) -> None:
        self.unfinished: dict[int, Future] = {}  # by number
        self._leader, self._closed = leader, False

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future:
        """A new task, which is sent at once if some rank has few."""
        return self._leader.submit(self, function, args, kwargs)

    def look(self) -> None:
        """Take in what has come, and send what can be sent."""
        if not self._closed:
            self._leader.look()

    def wait(self, over: Callable[[], bool], timeout: float | None = None) -> None:
        """Work until `over()`; TimeoutError."""
        if not self._closed:
            self._leader.wait(over, timeout)
        elif not over():  # a future of another pool
            raise closed("pool")

    def as_completed(self, futures: Iterable[Future], timeout: float | None = None) -> Iterator[Future]:
        """The futures, as they are over."""
        left = set(futures)
        while left:
            self.wait(lambda: any(future.over for future in left), timeout)
            ready = [future for future in left if future.over]
            left.difference_update(ready)
            yield from ready

    def finish(self) -> None:
        """Wait for all tasks."""
        if self.unfinished:
            self.wait(lambda: not self.unfinished)

    def cancel(self) -> None:
        """Take those tasks back that no rank has got, since the pool is about to be closed."""
        for future in [*self.unfinished.values()]:
            if not future.running():
                future._end("cancelled", CLOSED)

    def close(self) -> None:
        """Cancel all that is not done: the pool is closed, and nobody can wait any more."""
        self._closed = True
        for future in [*self.unfinished.values()]:
            future._end("cancelled", CLOSED)


class _Pending(NamedTuple):
    future: Future
    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    data: bytes


class Led(Protocol):
    """A map that is under way."""

    def take(self, source: int, buffer: Buffer) -> None:
        """Results have come from another rank."""

    def turn(self, interrupts: Interrupts) -> bool:
        """Work on it for a moment; False when there is nothing to do."""

    def end(self, *, dropped: bool) -> None:
        """Tell all ranks that it is over, and, if `dropped`, that the other results are not wanted."""


class Leader:
    """The root's map and submitted tasks; `alone`: only the root goes on, the other ranks serve it."""

    def __init__(self, crew: Crew, *, alone: bool) -> None:
        self.crew, self.alone = crew, alone
        self.map: Led | None = None
        self.ends = ExitStack()  # what is to be ended with the script, before the other ranks are
        self._pending: deque[_Pending] = deque()
        self._running: dict[int, Future] = {}  # at other ranks
        self._at = dict.fromkeys((rank for rank in range(crew.size) if rank != crew.rank), 0)  # tasks, by rank
        self._n = 0
        crew.take_result = self._take

    def submit(
        self, of: Submitted, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future:
        """A new task, which is sent at once if some rank has few."""
        data = dumps((function, args, kwargs), f"function = {show(function)} or an argument of it") if self._at else b""
        future = Future(self._n, of)
        self._n += 1
        self._pending.append(_Pending(future, function, (args, kwargs), data))
        self.look()
        return future

    def look(self) -> None:
        """Take in what has come, and send what can be sent."""
        self.crew.check_lent()
        with running(self.crew.record):
            self.crew.news.look()
            self.crew.receive()
            self._send()

    def wait(self, over: Callable[[], bool], timeout: float | None = None) -> None:
        """Work until `over()`; TimeoutError."""
        self.crew.check_lent()
        self.crew.work(TASK, over, self._turn, math.inf if timeout is None else time.perf_counter() + timeout)
        if not over():
            raise TimeoutError(f"no result within {timeout} s")

    def close(self) -> None:
        """End the map that is under way, and begin no more tasks."""
        if self.map is not None:
            self.map.end(dropped=True)
        self._pending.clear()

    def _turn(self, interrupts: Interrupts) -> bool:
        self._send()
        crew = self.crew
        if self.map is not None and crew.worker.chunk is None and self.map.turn(interrupts):  # not within a task of it
            return True
        if (task := self._next()) is None:
            return False
        self._run(task, interrupts)
        return True

    def _send(self) -> None:
        ahead = AHEAD if len(self._pending) > len(self._at) else 1
        for n in range(ahead):
            for rank, has in self._at.items():
                if has == n and (task := self._next()) is not None:
                    self._at[rank] += 1
                    self._running[task.future._number] = task.future
                    self.crew.parcels.send(rank, Tag.TASK, numbers_parcel(task.future._number, data=task.data))

    def _next(self) -> _Pending | None:
        while self._pending:
            task = self._pending.popleft()
            if not task.future.over:
                task.future._start()
                return task
        return None

    def _run(self, task: _Pending, interrupts: Interrupts) -> None:
        self.crew.record.enter(Phase.OWN, time.perf_counter())
        cpu = time.thread_time()
        (args, kwargs), future = task.arguments, task.future
        try:
            with interrupts.allowed():
                value = task.function(*args, **kwargs)
        except BaseException as error:
            failed = task_error(failure_of(error, self.crew.rank), future._number)
            failed.__cause__ = error
            future._end("failed", failed)
            if isinstance(error, KeyboardInterrupt):
                raise
        else:
            future._end("done", value)
        self.crew.slow.charge(time.thread_time() - cpu)

    def _take(self, source: int, tag: int, buffer: Buffer) -> None:
        """Take in results that have come from another rank."""
        if tag == Tag.RESULT:
            self._take_result(source, buffer)
        elif self.map is not None:
            self.map.take(source, buffer)

    def _take_result(self, source: int, buffer: Buffer) -> None:
        number, failed, _, data = read_numbers(buffer)
        self._at[source] -= 1
        future = self._running.pop(number)
        if failed:
            future._end("failed", task_error(unpack_failure(data), number))
            return
        try:
            value = pickle.loads(data)
        except Exception as error:
            wrong = task_error(failure_of(error, source), number)
            wrong.__cause__ = error
            future._end("failed", wrong)
        else:
            future._end("done", value)
