"""Single tasks: the root sends each to a rank that has few, and works itself while it waits for a result.

No thread: messages are looked at by whoever waits for a `Future`, and when a task is submitted.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from lb_mpi.checks import show
from lb_mpi.mpi.crew import Crew
from lb_mpi.mpi.functions import dumps
from lb_mpi.mpi.interrupts import Interrupts, held
from lb_mpi.mpi.parcels import Buffer
from lb_mpi.mpi.pool_messages import (
    Tag,
    failure_of,
    numbers_parcel,
    pack_failure,
    read_numbers,
    task_error,
    unpack_failure,
)
from lb_mpi.mpi.recorder import running
from lb_mpi.record.events import Phase

AHEAD = 2  # tasks at a rank: one that it runs, and the next


class Future:
    """The result of a submitted task, some day; of `lb_mpi.Pool.submit`."""

    def __init__(self, number: int, submitting: Submitting) -> None:
        self._number, self._submitting = number, submitting
        self._state: str = "pending"  # running, done, failed, cancelled
        self._value: Any = None

    def __repr__(self) -> str:
        """Say which task, and how far it is."""
        return f"<Future of task {self._number}: {self._state}>"

    def done(self) -> bool:
        """True when there is a result, or an error, or the task was cancelled; looks at messages."""
        self._submitting.look()
        return self.over

    @property
    def over(self) -> bool:
        """As `done`, as far as is known by now."""
        return self._state in ("done", "failed", "cancelled")

    def cancel(self) -> bool:
        """Take a task back that no rank has got yet; False when it's too late."""
        if self._state == "pending":
            self._state = "cancelled"
        return self._state == "cancelled"

    def cancelled(self) -> bool:
        """True when it was taken back."""
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
        self._submitting.wait(lambda: self.over, timeout)
        if self._state == "cancelled":
            raise RuntimeError(f"task {self._number} was cancelled")
        return self._value if self._state == "failed" else None

    def _start(self) -> None:
        self._state = "running"

    def _finish(self, value: Any, *, failed: bool) -> None:
        self._state, self._value = "failed" if failed else "done", value


class _Pending(NamedTuple):
    future: Future
    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    data: bytes


class Submitting:
    """The root's submitted tasks."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._pending: deque[_Pending] = deque()
        self._running: dict[int, Future] = {}
        self._at = dict.fromkeys((rank for rank in range(crew.size) if rank != crew.rank), 0)  # tasks, by rank
        self._n = 0

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future:
        """A new task, which is sent at once if some rank has few."""
        data = dumps((function, args, kwargs), f"function = {show(function)} or an argument of it") if self._at else b""
        future = Future(self._n, self)
        self._n += 1
        self._pending.append(_Pending(future, function, (args, kwargs), data))
        self.look()
        return future

    def look(self) -> None:
        """Take in what has come, and send what can be sent."""
        with running(self._crew.post.record):
            self._look()

    def _look(self) -> None:
        crew = self._crew
        if crew.receive():
            crew.post.active()
        for _ in range(len(crew.post.inbox)):  # results of maps stay there, in their order
            source, tag, buffer = crew.post.inbox.popleft()
            if tag == Tag.RESULT:
                crew.post.returned.append((source, buffer))
            else:
                crew.post.inbox.append((source, tag, buffer))
        while crew.post.returned:
            self._take(*crew.post.returned.popleft())
        ahead = AHEAD if len(self._pending) > len(self._at) else 1
        for n in range(ahead):
            for rank, has in self._at.items():
                if has == n and (task := self._next()) is not None:
                    self._at[rank] += 1
                    self._running[task.future._number] = task.future
                    crew.post.parcels.send(rank, Tag.TASK, numbers_parcel(task.future._number, data=task.data))

    def wait(self, over: Callable[[], bool], timeout: float | None = None) -> None:
        """Work until `over()`; TimeoutError."""
        until = float("inf") if timeout is None else time.perf_counter() + timeout
        self._crew.post.active()
        called = self._crew.news.roll.call("a task of lb_mpi.Pool")
        with called, held() as interrupts, running(self._crew.post.record):
            while True:
                interrupts.check()
                self.look()
                if over():
                    return
                if time.perf_counter() >= until:
                    raise TimeoutError(f"no result within {timeout} s")
                if rest_s := self._crew.slow.due():
                    time.sleep(rest_s)
                elif (task := self._next()) is not None:
                    self._run(task, interrupts)
                else:
                    self._crew.post.nap(until - time.perf_counter())

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
        self.wait(lambda: not self._pending and not self._running)

    def drop(self) -> None:
        """Take those tasks back that no rank has got."""
        for task in self._pending:
            task.future.cancel()
        self._pending.clear()

    def _next(self) -> _Pending | None:
        while self._pending:
            task = self._pending.popleft()
            if not task.future.cancelled():
                task.future._start()
                return task
        return None

    def _run(self, task: _Pending, interrupts: Interrupts) -> None:
        self._crew.post.record.enter(Phase.OWN, time.perf_counter())
        cpu = time.thread_time()
        (args, kwargs), future = task.arguments, task.future
        try:
            with interrupts.allowed():
                value = task.function(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed = task_error(failure_of(error, self._crew.rank), future._number)
            failed.__cause__ = error
            future._finish(failed, failed=True)
        else:
            future._finish(value, failed=False)
        self._crew.slow.charge(time.thread_time() - cpu)
        self._crew.post.active()

    def _take(self, source: int, buffer: Buffer) -> None:
        number, failed, _, data = read_numbers(buffer)
        self._at[source] -= 1
        future = self._running.pop(number)
        if failed:
            future._finish(task_error(unpack_failure(data), number), failed=True)
            return
        try:
            future._finish(pickle.loads(data), failed=False)
        except Exception as error:
            wrong = task_error(failure_of(error, source), number)
            wrong.__cause__ = error
            future._finish(wrong, failed=True)


def serve_task(crew: Crew, buffer: Buffer, interrupts: Interrupts) -> None:
    """Run a task that the root has sent, and send its result."""
    number, _, _, data = read_numbers(buffer)
    crew.slow.rest()
    crew.post.record.enter(Phase.OWN, time.perf_counter())
    cpu = time.thread_time()
    failed = False
    try:
        function, args, kwargs = pickle.loads(data)
        with interrupts.allowed():
            value = function(*args, **kwargs)
        answer = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failed, answer = True, pack_failure(failure_of(error, crew.rank))
    crew.slow.charge(time.thread_time() - cpu)
    crew.post.record.enter(Phase.PROTOCOL, time.perf_counter())
    crew.post.parcels.send(crew.root, Tag.RESULT, numbers_parcel(number, failed, data=answer))
