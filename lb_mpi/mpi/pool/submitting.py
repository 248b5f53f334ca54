"""Submitted tasks: the root sends each to a rank that has few, and runs some itself while it waits.

There is no thread: messages are received while a map or a `Future` is awaited, and when a task is submitted.  All pools of a
script that rank 0 runs alone share one `TaskQueue`.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from lb_mpi.checks import show
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.recorder import running
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.pool.messages import dumps, failure_of, read_task, task_error, task_parcel
from lb_mpi.mpi.pool.root import RootMap
from lb_mpi.mpi.pool.session import TASK, Session

AHEAD = 2  # tasks at a rank: the running one, and the next


class Future:
    """A submitted task and, once it has ended, its result; returned by `lb_mpi.Pool.submit`."""

    def __init__(self, number: int, queue: TaskQueue, unfinished: dict[int, Future]) -> None:
        self._number, self._queue, self._unfinished = number, queue, unfinished
        self._state: str = "pending"  # running, done, failed, cancelled
        self._value: Any = None
        unfinished[number] = self

    def __repr__(self) -> str:
        """Return the task's number and state, as text."""
        return f"<Future of task {self._number}: {self._state}>"

    def done(self) -> bool:
        """Return True if the task has a result or an error, or was cancelled; receives messages that have arrived."""
        if not self.over:
            self._queue.look()
        return self.over

    @property
    def over(self) -> bool:
        """True if the task is known to be `done`; receives no messages."""
        return self._state in ("done", "failed", "cancelled")

    def cancel(self) -> bool:
        """Cancel the task if no rank has received it yet; return True if it is cancelled, False if it is too late."""
        if self._state == "pending":
            self._end("cancelled", "")
        return self._state == "cancelled"

    def running(self) -> bool:
        """Return True if a rank has received the task, and it has not ended."""
        return self._state == "running"

    def cancelled(self) -> bool:
        """Return True if the task was cancelled, or its pool was closed before the task ended."""
        return self._state == "cancelled"

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it; `timeout` in seconds, None: no limit.

        Meanwhile this rank works on other tasks, so the call may take longer than `timeout`.

        Raises lb_mpi.TaskError if the task raised an exception, TimeoutError if there is no result in time,
        RuntimeError if the task was cancelled.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; return the lb_mpi.TaskError of the task, or None if it has a result."""
        if not self.over:
            self._queue.wait(lambda: self.over, timeout)
        if self._state == "cancelled":
            raise RuntimeError(f"task {self._number} was cancelled{self._value}")
        return self._value if self._state == "failed" else None

    def _end(self, state: str, value: Any) -> None:
        if not self.over:
            self._state, self._value = state, value
            del self._unfinished[self._number]


def cancel_all(unfinished: dict[int, Future], *, also_running: bool) -> None:
    """Cancel the tasks that no rank has received; `also_running`: all of them, since their pool is closed."""
    for future in [*unfinished.values()]:
        if also_running or not future.running():
            future._end("cancelled", ": the pool was closed")


class _Pending(NamedTuple):
    future: Future
    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    data: bytes


class TaskQueue:
    """The submitted tasks of a session, on its root; it also works on the map under way while it waits for them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.map: RootMap | None = None
        self.ends = ExitStack()  # closed with the script, before the other ranks end
        self._pending: deque[_Pending] = deque()
        self._running: dict[int, Future] = {}  # at other ranks
        self._at = dict.fromkeys((rank for rank in range(session.size) if rank != session.rank), 0)  # tasks, by rank
        self._n = 0
        session.take_result = self._take

    def submit(
        self, unfinished: dict[int, Future], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future:
        """Add a task, sent at once if a rank has few; it stays in `unfinished` until it is over."""
        data = dumps((function, args, kwargs), f"function = {show(function)} or an argument of it") if self._at else b""
        future = Future(self._n, self, unfinished)
        self._n += 1
        self._pending.append(_Pending(future, function, (args, kwargs), data))
        self.look()
        return future

    def look(self) -> None:
        """Receive messages, and send what can be sent."""
        self.session.check_lent()
        with running(self.session.record):
            self.session.presence.look()
            self.session.receive()
            self._send()

    def wait(self, over: Callable[[], bool], timeout: float | None = None) -> None:
        """Work until `over()`; TimeoutError after `timeout` seconds."""
        self.session.check_lent()
        self.session.work(TASK, over, self._turn, math.inf if timeout is None else time.perf_counter() + timeout)
        if not over():
            raise TimeoutError(f"no result within {timeout} s")

    def close(self) -> None:
        """End the map under way, and begin no more tasks."""
        if self.map is not None:
            self.map.end(dropped=True)
        self._pending.clear()

    def _turn(self, interrupts: Interrupts) -> bool:
        self._send()
        within_a_task = self.session.worker.chunk is not None  # a task of the map
        if self.map is not None and not within_a_task and self.map.turn(interrupts):
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
                    self.session.parcels.send(rank, Tag.TASK, task_parcel(task.future._number, False, task.data))

    def _next(self) -> _Pending | None:
        while self._pending:
            task = self._pending.popleft()
            if not task.future.over:
                task.future._state = "running"
                return task
        return None

    def _run(self, task: _Pending, interrupts: Interrupts) -> None:
        session, future, (args, kwargs) = self.session, task.future, task.arguments
        try:
            with session.task(future._number), interrupts.allowed():
                value = task.function(*args, **kwargs)
        except BaseException as error:
            failed = task_error(failure_of(error, session.rank), future._number)
            failed.__cause__ = error
            future._end("failed", failed)
            if isinstance(error, KeyboardInterrupt):
                raise
        else:
            future._end("done", value)

    def _take(self, source: int, tag: int, buffer: Buffer) -> None:
        """Process results from another rank: of a map, or of a submitted task."""
        if tag == Tag.RESULTS:
            if self.map is not None:
                self.map.take(source, buffer)
            return
        number, failed, data = read_task(buffer)
        self._at[source] -= 1
        future = self._running.pop(number)
        try:
            value = pickle.loads(data)
        except Exception as error:
            wrong = task_error(failure_of(error, source), number)
            wrong.__cause__ = error
            future._end("failed", wrong)
            return
        if failed:
            future._end("failed", task_error(value, number))
        else:
            future._end("done", value)
