"""Running tasks on one rank: the user's function, item by item."""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from lb_mpi.errors import Error
from lb_mpi.handlers import install, restore
from lb_mpi.mpi.common.calls import at_work
from lb_mpi.mpi.common.carrier import end_child
from lb_mpi.mpi.common.failure import describe
from lb_mpi.mpi.common.waiting import own_s
from lb_mpi.mpi.pool import arrays
from lb_mpi.mpi.pool.messages import (
    EXACT,
    UNCHANGING,
    Call,
    TaskBatch,
    copied,
    exact,
    failure_of,
    is_unchanging,
    kept,
    pickled,
    pickled_error,
    unpicklable,
)
from lb_mpi.mpi.pool.ranks import PoolRanks
from lb_mpi.pooling.scheduler import BATCH_S
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF


class Process(NamedTuple):
    """The state of this process in which our loops go on, whatever a task does to it."""

    pid: int
    depth: int  # Python's recursion limit

    @classmethod
    def now(cls) -> Process:
        """Return it before a task."""
        return cls(os.getpid(), sys.getrecursionlimit())

    def restore(self) -> None:
        """Make it again as it was; end a child that the task has forked."""
        if os.getpid() != self.pid:
            end_child(self.pid)
        if sys.getrecursionlimit() < self.depth:
            sys.setrecursionlimit(self.depth)  # of all threads


class Alarm:
    """Raises TimeoutError in calls that last longer than `seconds`, as soon as Python code of theirs goes on.

    In the main thread only.  lb_mpi.Error if the program's own alarm timer runs.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._armed = False

    def __enter__(self) -> Alarm:
        """Replace the handler of SIGALRM."""
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            raise Error(f"timeout = {self.seconds:g}: expected none while the program's own alarm timer runs")
        install(signal.SIGALRM, self._handle_sigalrm)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore it."""
        restore(signal.SIGALRM, self._handle_sigalrm)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args)."""
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            return function(*args)
        finally:  # if it rings before the next line, the call has lasted too long
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _handle_sigalrm(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            raise TimeoutError(f"not finished after {self.seconds:g} s")


NO_ALARM = nullcontext()
SLICE_S = 2e-3  # of a batch of submitted calls, after which its results leave


def _caller(call: Call, alarm: Alarm | None) -> Callable[..., Any]:
    """Return a function that calls the user's with an item: with a timeout, and again after an exception, as `call` says."""
    once = call.function if alarm is None else partial(alarm.call, call.function)
    process = os.getpid()

    def attempts(*args: Any) -> Any:
        for _ in range(call.retries):
            with suppress(Exception):
                return once(*args)
            end_child(process)
            time.sleep(call.pause_s)
        return once(*args)

    return attempts


class Ran(NamedTuple):
    """The outcome of some tasks."""

    n: int  # number of the first tasks that have results: all of them unless one has failed, or the time is up
    values: Any  # their results, on the root; pickled on the other ranks
    failed: BaseException | None
    began: float
    wall_s: float
    work_s: float  # of its own
    cpu_s: float
    stopped_s: float = 0.0  # by launch/throttle
    others_s: float = 0.0  # CPU time of other threads of this process meanwhile


def run_tasks(
    ranks: PoolRanks, call: Call, items: Iterable[Any], n: int, *, first: int = -1, limit_s: float = math.inf
) -> Ran:
    """Run a call's tasks, at least one, up to the first that raises, or until the time is up.

    items : of these `n` tasks; UnreadableError where one can't be unpickled, which counts as that of the task.
    first : position of the first in a map; -1: they belong to no interval.
    On the root, results are copied before the next call may change them; the other ranks pickle them.
    """
    clocks, records, is_root = ranks.clocks, ranks.record is not OFF, ranks.is_root
    values, failed, process = list[Any](), None, Process.now()
    clocks.begin()
    before = clocks.read()
    if records:
        ranks.record.enter(ranks.account.phase(first), before.wall_s)
    try:
        with at_work(ranks.presence.comm), Alarm(call.timeout_s) if call.timeout_s else NO_ALARM as alarm:
            function = _caller(call, alarm) if alarm or call.retries else call.function
            for argument in items:
                try:
                    value = function(*argument) if call.star else function(argument)
                except Exception as error:
                    if not call.keep_exceptions:
                        raise
                    value = error if pickled_error(error) else RuntimeError(failure_of(error, -1).text)
                if os.getpid() != process.pid:
                    end_child(process.pid)
                if type(value) not in UNCHANGING:
                    if is_root:
                        value = copied(value)
                    elif len(values) + 1 < n:  # the last one is pickled below, before any other call
                        value = kept(value)
                values.append(value)
                if limit_s < math.inf and time.perf_counter() > before.wall_s + limit_s:
                    break
    except BaseException as error:
        failed = error
    if os.getpid() != process.pid or sys.getrecursionlimit() < process.depth:
        process.restore()
    after = clocks.read()
    work_s = own_s(before, after)
    if records:
        ranks.record.enter(Phase.PACKING, after.wall_s)
    packed: Any = values
    if values and not is_root:
        try:
            packed = pickled(pickle, values, None if is_unchanging(values[-1]) else EXACT)
        except Exception as error:
            failed = unpicklable(values.pop(), error)
            packed = exact(values)
    cpu_s = after.cpu_s - before.cpu_s
    return Ran(len(values), packed, failed, before.wall_s, after.wall_s - before.wall_s, work_s, cpu_s,
               after.stops.seconds - before.stops.seconds, after.others_s - before.others_s)  # fmt: skip


def run_kept(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Return function(*args, **options), to be pickled after further calls."""
    process = os.getpid()
    value = kept(function(*args, **options))
    end_child(process)
    return value


def run_chunk(function: Callable[..., Any], chunk: Iterable[Iterable[Any]]) -> list[Any]:
    """Return function(*args) for each args of a chunk, to be pickled."""
    return [run_kept(function, *args) for args in chunk]


# --- tasks of executors, which have a function each -------------------------------------------------------------------


Outcome = tuple[bool, bytes]  # True, and a TaskFailure, pickled; or False, and the result, pickled


def _run_submitted(rank: int, data: bytes | memoryview) -> Outcome:
    process = Process.now()
    try:
        function, args, kwargs = pickle.loads(data)
        return False, exact(function(*args, **kwargs))
    except BaseException as error:
        in_main = threading.current_thread() is threading.main_thread()
        if isinstance(error, KeyboardInterrupt) and in_main:
            raise
        if "main thread" in describe(error) and not in_main:
            how = "expected lb_mpi.Executor(root_works=False) for such tasks"
            with suppress(Exception):  # the user's class may allow no attributes
                error.add_note(f"Rank 0 runs its tasks in a thread: {how}.")
        return True, pickle.dumps(failure_of(error, rank), pickle.HIGHEST_PROTOCOL)
    finally:
        process.restore()


def run_initializer(initializer: Callable[..., Any], initargs: Iterable[Any]) -> None:
    """Call initializer(*initargs); what it returns stays on its rank, and need not be picklable."""
    initializer(*initargs)


def run_submitted(ranks: PoolRanks, batch: TaskBatch) -> Ran:
    """Run submitted calls for SLICE_S seconds, and at least one, so that results don't wait for the tasks behind them."""
    if batch.paths:
        arrays.locate(batch.paths)
    call = Call(partial(_run_submitted, ranks.rank))
    ran = run_tasks(ranks, call, batch.tasks, len(batch.tasks), limit_s=SLICE_S)
    if ran.failed is not None:  # Ctrl-C
        raise ran.failed
    if ranks.record is not OFF and batch.number >= 0:
        speed = ranks.emulated_speeds[ranks.rank]
        ranks.account.ran_submitted(batch.number, ran.n, ran.began, ran.began + ran.wall_s, ran.work_s, speed)
    return ran


def rest_of(batch: TaskBatch, ran: Ran) -> TaskBatch | None:
    """Return what is left of a batch for this rank, which has run it for less than BATCH_S; the root sends others again."""
    left, ran_s = batch.tasks[ran.n :], batch.ran_s + ran.wall_s
    return TaskBatch(batch.number + ran.n, left, batch.paths, ran_s) if left and ran_s < BATCH_S else None
