"""lb_mpi.Executor: the executor of `concurrent.futures`, whose tasks run on all ranks.

On the root, one thread calls MPI: it sends tasks and receives results.  The root's own tasks run in a second thread, so that
a long one delays no message.  The other ranks serve, as in a pool with `root=`.

    submit -> _Queue, one per executor -> _Dispatcher, one for these ranks: work     -> `run_batch` on a rank
    Future <- _settle                  <-                                    _finish <- its results
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import ctypes
import itertools
import logging
import math
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.mpi.common.failure import hint
from lb_mpi.mpi.common.late import call as in_call
from lb_mpi.mpi.common.parcels import Buffer, parcel
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.pool.arrays import SharedArrays, forget, store
from lb_mpi.mpi.pool.messages import NO_MAP, Frame, dumps, own_error, read_results, run_chunk, run_kept, task_error
from lb_mpi.mpi.pool.orders import Order
from lb_mpi.mpi.pool.script import open_session
from lb_mpi.mpi.pool.serving import BATCH_S, Process, run_batch
from lb_mpi.mpi.pool.session import PoolMessage, PoolSend, Session, SessionActor, SessionPort, need_level
from lb_mpi.mpi.pool.starting import serve
from lb_mpi.pooling.account import RankTasks, report
from lb_mpi.pooling.beginning import REASONS, PoolState, Wish
from lb_mpi.record.events import Phase
from lb_mpi.record.report import Report

P = ParamSpec("P")
T = TypeVar("T")

BATCH_BYTES = 1 << 20
BATCH_MOST = 256  # tasks
AHEAD = 2  # batches at a rank, if there are more tasks than ranks: the running one, and the next
INTERRUPTED = 130  # the exit code of a program that ends by Ctrl-C
LEAVE_S = 0.5  # for the root's task to end after a failure or Ctrl-C
ARRAYS = "arrays"  # the name of a task that frees some
IDLE_S = 0.25  # between two looks for a failure while no results can arrive


class Executor(MPIPoolExecutor):
    """Run tasks on all ranks of `comm`, through the interface of `concurrent.futures`.

    In a script that `python -m lb_mpi pool` starts, rank 0 alone runs the script, and each executor uses all ranks:

        with lb_mpi.Executor() as executor:
            results = list(executor.map(f, items))

    In any other program all ranks create the executor; ranks other than 0 serve it in the `with` statement, and get None:

        with lb_mpi.Executor(comm) as executor:
            if executor is not None:
                results = list(executor.map(f, items))

    `map` and `starmap` have the arguments of MPIPoolExecutor: timeout, chunksize, buffersize and unordered.  Futures
    are those of `concurrent.futures`, so `wait`, `as_completed` and asyncio work with them.  An exception raised by a task
    (except Ctrl-C) is the exception of its future; its cause is a `TaskError` with the rank and the traceback.
    Functions, arguments and results are pickled, even for rank 0's own tasks.

    Parameters
    ----------
    comm : an mpi4py intracommunicator, duplicated; None: all ranks.
    max_workers : number of ranks to use, at least 1; None: all.
    initializer : called as initializer(*initargs), once on each rank before its first task; if it raises, all futures that
        are not done raise BrokenExecutor, and so does `submit`.
    root_works : False: rank 0 runs no tasks, unless it is the only rank.  Its tasks run in a thread, beside the script.

    Needs MPI_THREAD_SERIALIZED on rank 0, which is checked; MPI_THREAD_MULTIPLE, the default of mpi4py, if the script itself
    calls MPI while an executor is open, or has executors of several communicators open at a time.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        max_workers: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        root_works: bool = True,
    ) -> None:
        def check(own: MPI.Intracomm) -> dict[str, Any]:
            if max_workers is not None and checks.integer("max_workers", max_workers) < 1:
                raise ValueError(f"max_workers must be greater than 0, not {show(max_workers)}")
            checks.function("initializer", initializer, optional=True)
            if own.rank == 0:
                _check_level(own)
                if initializer is not None:
                    initializers.append(dumps((initializer, tuple(initargs), {}), "initializer", initializer))
            return {}

        initializers = list[bytes]()  # at most one, on rank 0
        self._session = open_session(comm, 0, check, name="lb_mpi.Executor")
        size = self._session.ranks.size
        ranks = [*range(1, size), *([0] if root_works or size == 1 else [])]
        self._queue = _Queue(self._session.ranks.hosts, ranks[:max_workers], *initializers)
        if self._session.ranks.is_root:
            self._dispatcher: _Dispatcher | None = _dispatcher(self._session, self._queue)
            weakref.finalize(self, self._dispatcher.close, self._queue).atexit = False

    @classmethod
    def of_pool(cls, session: Session) -> Executor:
        """Make the executor of a pool's asynchronous tasks; it uses the ranks from its first task on, until a map begins."""
        made = cls.__new__(cls)
        made._session, made._queue = session, _Queue(session.ranks.hosts, [*range(1, session.ranks.size), 0], gives_way=True)
        made._dispatcher = None
        return made

    run_kept = staticmethod(run_kept)  # for several calls in one task, one of which may change the results of others

    @staticmethod
    def n_ranks() -> int:
        """Return the number of ranks that an executor uses by default."""
        return MPI.COMM_WORLD.size

    def __repr__(self) -> str:
        """Show this rank, and whether the executor is open."""
        state = "broken" if self._queue.broken is not None else "open" if self._queue.open else "shut down"
        return f"<lb_mpi.Executor: rank {self._session.ranks.rank} of {self._session.ranks.size}, {state}>"

    @property
    def num_workers(self) -> int:
        """Number of ranks that run tasks; 0 after a shutdown or a failure."""
        return len(self._queue.bound) if self._queue.open and self._queue.broken is None else 0

    @property
    def _broken(self) -> str | None:
        return None if self._queue.broken is None else str(self._queue.broken)

    def report(self) -> Report:
        """Return a report of the tasks that have ended so far, also after a shutdown (see `Pool.report`)."""
        queue = self._queue
        speeds = [s if rank in queue.bound else 0.0 for rank, s in enumerate(self._session.ranks.emulated_speeds)]
        ranks = [*queue.ran]
        return report(sum(rank.tasks for rank in ranks), queue.ended - queue.began, ranks, speeds)

    def bootup(self, wait: bool = True) -> Executor:
        """Start the initializer on all ranks now, and return the executor; `wait`: after all ranks have run it."""
        self._check("boot up")
        assert self._dispatcher is not None
        with self._dispatcher.changed:
            self._queue.boots = True
            self._dispatcher.notify()
        if wait:
            concurrent.futures.wait(self._queue.initial)
        return self

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run fn(*args, **kwargs) on some rank, and return its future.  A pickling error is the future's exception."""
        return self._submit(fn, (fn, args, kwargs))

    def submit_sharing(self, fn: Callable[[], T], least_bytes: int) -> Future[T]:
        """Run fn() on some rank; its numpy arrays of so many bytes are sent once to each host, and are read-only there.

        They must not be changed before `end_sharing`, or the end of the executor, which free them.
        """
        return self._submit(fn, (fn, (), {}), least_bytes)

    def end_sharing(self) -> None:
        """Free the arrays sent so far when their tasks are done; from now on, they are sent again."""
        self._queue.arrays.end_call()

    def _submit(self, fn: Any, call: tuple[Any, ...], least_bytes: int | None = None) -> Future[Any]:
        self._check("schedule new futures")
        future: Future[Any] = Future()
        try:
            task = _Task(future, *self._queue.arrays.dumps(call, fn, least_bytes))
        except TypeError as error:
            cause = error.__cause__ or error
            cause.add_note(str(error))
            future.set_exception(cause)
            return future
        if task.arrays:
            future.add_done_callback(lambda _: self._queue.arrays.done(task.arrays))
        while self._dispatcher is None or not self._dispatcher.put(self._queue, task):
            self._check("schedule new futures")
            self._dispatcher = _dispatcher(self._session, self._queue)  # since a map has ended the last one
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
    ) -> Iterator[T]:
        """Return an iterator of fn(*args) for the items at the same position of each iterable; see `starmap`."""
        return self.starmap(fn, zip(*iterables, strict=False), timeout, chunksize, buffersize, unordered)

    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
    ) -> Iterator[T]:
        """Return an iterator of fn(*args) for each args of `iterable`; an exception is raised where its result would be.

        timeout : seconds from this call on, after which the iterator raises TimeoutError; None: no limit.
        chunksize : number of calls in a task, >= 1.
        buffersize : number of tasks whose results are not yet yielded, at most, >= 1; None: all tasks are submitted at once.
        unordered : yield results as they arrive; without `buffersize`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None:
            if not isinstance(buffersize, int):
                raise TypeError("buffersize must be an integer or None")
            if buffersize < 1:
                raise ValueError("buffersize must be None or > 0")
            if unordered:
                raise ValueError("buffersize must be None if unordered")
        calls = iter(iterable)
        if chunksize == 1:
            return self._results(fn, calls, until, buffersize, unordered)
        chunks = ((chunk,) for chunk in iter(lambda: [*itertools.islice(calls, chunksize)], []))
        lists = self._results(partial(run_chunk, fn), chunks, until, buffersize, unordered)
        return itertools.chain.from_iterable(lists)

    def _results(
        self, fn: Callable[..., Any], calls: Iterator[Any], until: float | None, buffersize: int | None, unordered: bool
    ) -> Iterator[Any]:
        """Submit fn(*args) for the first of `calls`; return an iterator of all results, which submits the others."""
        futures = deque(self.submit(fn, *args) for args in itertools.islice(calls, buffersize))
        return _resolved(weakref.ref(self), fn, futures, calls, until, unordered)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks; `wait`: return when all are done.  A second call only waits.

        cancel_futures : cancel the tasks not yet sent to a rank.
        """
        if not self._session.ranks.is_root:
            if self._queue.open:
                self._queue.open = False
                try:
                    serve(self._session)
                finally:
                    self._session.close()
            return
        if self._dispatcher is None:
            self._queue.open = False
            return
        self._dispatcher.close(self._queue, cancel=cancel_futures)
        if wait:
            self._dispatcher.wait(self._queue)

    def __enter__(self) -> Self | Any:  # Any: None, which users need not check for in a script of rank 0 alone
        """Return the executor; on ranks that serve, serve until rank 0 shuts it down, then return None."""
        if self._session.ranks.is_root:
            return self
        self.shutdown()
        hint(Executor, "this rank has worked for the executor; put `if executor:` before what only rank 0 does")
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the executor down; at once after Ctrl-C."""
        if not self._session.ranks.is_root:
            return
        if isinstance(error, KeyboardInterrupt) and self._dispatcher is not None:
            self._dispatcher.interrupt()
        self.shutdown()

    def _check(self, what: str) -> None:
        if not self._session.ranks.is_root:
            raise Error("this rank serves the executor: expected a call on rank 0")
        if self._queue.broken is not None:
            raise BrokenExecutor(str(self._queue.broken)) from self._queue.broken.__cause__
        if not self._queue.open:
            raise RuntimeError(f"cannot {what} after shutdown")


# --- the root ---------------------------------------------------------------------------------------------------


class _Task(NamedTuple):
    future: Future[Any]
    data: bytes  # (function, args, kwargs)
    arrays: Set[str] = frozenset()  # keys of its large arrays
    what: str = ""  # of a task that one rank needs before others, and that breaks the executor if it fails


class _Queue:
    """The tasks of one executor; access needs the lock of its dispatcher."""

    def __init__(self, hosts: Sequence[int], ranks: list[int], initializer: bytes = b"", *, gives_way: bool = False) -> None:
        self.hosts = hosts  # of all ranks of the session
        self.gives_way = gives_way  # to maps, when there are no tasks
        self.arrays = SharedArrays(hosts[0])
        self.tasks = deque[_Task]()
        self.bound = {rank: deque[_Task]() for rank in ranks}  # by rank: tasks that it runs before others
        self.boots = False  # run them even without other tasks
        if initializer:
            for tasks in self.bound.values():
                tasks.append(_Task(Future(), initializer, what="the initializer"))
        self.initial = [task.future for tasks in self.bound.values() for task in tasks]
        self.n_sent = 0  # batches at ranks
        self.ran = [RankTasks() for _ in hosts]  # by rank
        self.began = self.ended = 0.0  # first batch, last result
        self.task_s = math.inf  # recent seconds per task
        self.open = True
        self.broken: BrokenExecutor | None = None

    @property
    def idle(self) -> bool:
        """True if there is nothing to send and nothing to await."""
        return not (self.tasks or self.n_sent or any(map(self._boots, self.bound)))

    def _boots(self, rank: int) -> bool:
        """Return whether the rank runs a task that is bound to it even if there are no others."""
        bound = self.bound[rank]
        return bool(bound) and (self.boots or bound[0].what == ARRAYS)

    def take(self, rank: int) -> list[_Task]:
        """Remove and return the tasks of a batch for a rank: one that is bound to it, or others; empty if there are none."""
        while self.tasks and self.tasks[0].future.cancelled():  # its arrays may be gone
            _begins(self.tasks.popleft().future)
        if self.bound[rank] and (self.tasks or self._boots(rank)):
            return [self.bound[rank].popleft()]
        if not self.tasks:
            return []
        arrays, host = self.arrays, self.hosts[rank]
        if missing := arrays.missing(self.tasks[0].arrays, host):
            return self._store(rank, missing[0], arrays.places[missing[0]])
        share = -(-len(self.tasks) // (AHEAD * len(self.bound)))
        most = min(BATCH_MOST, max(1, int(BATCH_S / max(self.task_s, 1e-6))), share)
        taken, n_bytes = list[_Task](), 0
        while self.tasks and len(taken) < most and n_bytes < BATCH_BYTES:
            task = self.tasks[0]
            if task.arrays and not task.future.cancelled() and arrays.missing(task.arrays, host):
                break
            self.tasks.popleft()
            if _begins(task.future):
                taken.append(task)
                n_bytes += len(task.data)
                if rank:
                    arrays.note(rank, task.arrays)
        return taken

    def _store(self, rank: int, key: str, places: dict[int, str]) -> list[_Task]:
        """Return the task that stores an array on the rank's host; none while another rank of that host runs it."""
        host = self.hosts[rank]
        if host in places:
            return []
        places[host] = ""
        self.arrays.note(rank, {key})
        future: Future[str] = Future()
        future.add_done_callback(lambda done: places.update({} if done.exception() else {host: done.result()}))
        return [_Task(future, dumps((store, (key, self.arrays.read(key)), {}), "function", store), what="an array")]

    def fails(self, text: str, error: BaseException) -> None:
        """Break it."""
        if self.broken is None:
            self.broken = BrokenExecutor(text)
            self.broken.__cause__ = error

    def free(self, *, all_calls: bool = False) -> bool:
        """Let all ranks forget arrays (see `SharedArrays.free`); False if no other rank has any.

        `all_calls`: at its end.
        """
        if all_calls:
            for tasks in self.bound.values():
                tasks.clear()
        by_rank = self.arrays.free(all_calls=all_calls)
        for rank, keys in by_rank.items():
            self.bound[rank].append(_Task(Future(), dumps((forget, (keys,), {}), "function", forget), what=ARRAYS))
        return bool(by_rank)


class _Batch(NamedTuple):
    queue: _Queue
    tasks: list[_Task]
    arguments: tuple[int, list[bytes], dict[str, str]]  # of `run_batch`


class _Quiet(NamedTuple):
    """A job of a dispatcher: to wait until another thread has changed something."""


class _DispatcherPort(SessionPort):
    """The thread of a dispatcher that calls MPI."""

    def __init__(self, dispatcher: _Dispatcher) -> None:
        super().__init__(dispatcher.session)
        self._dispatcher = dispatcher

    def post(self, sends: list[PoolSend]) -> None:
        """See `Port`; then the root's own tasks begin."""
        super().post(sends)
        self._dispatcher.begin_own()

    def run(self, job: _Quiet) -> None:
        """Wait for the other threads, and then look whether another rank has failed."""
        self.session.record.enter(Phase.OUTSIDE, time.perf_counter())
        self._dispatcher.await_news()
        self.session.presence.raise_failure()


class _Dispatcher(SessionActor):
    """The two threads of the root, for all executors of a session, until the last one has ended or a map begins."""

    over = False  # it accepts no further executor or task

    def __init__(self, session: Session, *, closes: bool) -> None:
        super().__init__(session)
        self.changed = threading.Condition()
        self._news = False  # something has changed since the last turn
        self._root = session.ranks.root
        self._process = Process.now()
        self._closes = closes  # the session, at its end
        self._wanted = False  # by a map, which waits until there are no tasks
        self._queues = deque[_Queue]()
        others = [rank for rank in range(session.ranks.size) if rank != self._root]
        self._at = {rank: deque[_Batch]() for rank in [*others, self._root]}  # sent to this rank, not yet answered
        self._mine = deque[_Batch]()  # of the root, until other ranks have theirs
        self._own: SimpleQueue[_Batch | None] = SimpleQueue()  # batches of the root; None: its thread ends
        self._stop: BaseException | None = None  # Ctrl-C, or an error of the thread that runs the root's tasks
        self.thread = threading.Thread(target=self._dispatch, name="lb_mpi.Executor")
        self._worker = threading.Thread(target=self._work, name="lb_mpi.Executor, tasks", daemon=True)

    # Any thread.

    def add(self, queue: _Queue) -> bool:
        """Serve an executor; return False if the dispatcher is over."""
        with self.changed:
            if not self.over and queue not in self._queues:
                self._queues.append(queue)
                if self._root in queue.bound and not self._worker.ident:
                    self._worker.start()
            return not self.over

    def put(self, queue: _Queue, task: _Task) -> bool:
        """Accept a task; return False if the executor is closed, or the dispatcher is over."""
        with self.changed:
            accepts = queue.open and not self.over
            if accepts:
                queue.tasks.append(task)
                self.notify()
            return accepts

    def close(self, queue: _Queue, *, cancel: bool = False) -> None:
        """Accept no more tasks from an executor."""
        cancelled = list[_Task]()
        with self.changed:
            queue.open = False
            if cancel:
                self.changed.wait_for(lambda: queue.n_sent or queue.idle, BATCH_S)  # let free ranks begin what they can
                cancelled = [task for task in queue.tasks if not task.future.running()]
                queue.tasks = deque(task for task in queue.tasks if task.future.running())
            self.notify()
        for task in cancelled:
            task.future.cancel()
            task.future.set_running_or_notify_cancel()

    def wait(self, queue: _Queue) -> None:
        """Wait until a closed executor has no more tasks; the threads end with the last executor."""
        if self._in_callback:
            return
        with self.changed:
            self.changed.wait_for(lambda: self.over or queue not in self._queues)
        if self.over:
            self.thread.join()

    def interrupt(self) -> None:
        """Drop all tasks under way, after Ctrl-C."""
        with self.changed:
            self._stop = KeyboardInterrupt()
            self.notify()

    @property
    def state(self) -> PoolState:
        """See `SessionActor`."""
        if self._in_callback:
            return PoolState.IN_TASKS
        with self.changed:
            if self.over:
                return PoolState.ENDING
            return PoolState.TASKS if all(queue.gives_way for queue in self._queues) else PoolState.EXECUTOR

    def complete(self) -> None:
        """See `SessionActor`; executors of pools give way to a map when they have no tasks."""
        with self.changed:
            self._wanted = True
            self.notify()
            self.changed.wait_for(lambda: self.state is not PoolState.TASKS)
            self._wanted = False
        if self.over:
            self.thread.join()

    def leave(self, error: BaseException | None) -> None:
        """See `SessionActor`; shut all executors down."""
        if isinstance(error, KeyboardInterrupt):
            self.interrupt()
        for queue in [*self._queues]:
            self.close(queue)
        self.thread.join()

    @property
    def _in_callback(self) -> bool:
        return threading.current_thread() in (self.thread, self._worker)

    # The thread that calls MPI.

    def _dispatch(self) -> None:
        session, worker, wait_s = self.session, self._worker, None
        try:
            with session.presence.notifying():
                try:
                    session.work(self, _DispatcherPort(self))
                except RecursionError:  # a task has lowered the limit, and is not over
                    self._process.restore()
                    raise
        except BaseException as error:
            wait_s = LEAVE_S
            with self.changed:
                self.over, queues = True, [*self._queues]
                for queue in queues:
                    queue.fails(f"lb_mpi.Executor has ended: {error or type(error).__name__}", error)
                self.notify()
            for queue in queues:
                self._drop(queue)
            if worker.ident:
                thread = ctypes.c_ulong(worker.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))
        self._own.put(None)
        if worker.ident:
            worker.join(wait_s)
            if worker.is_alive():
                _late.append(worker)
        for queue in self._queues:  # after a failure
            queue.arrays.close()
        session.end()
        _dispatchers.remove(self)
        if self._closes:
            session.close()

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """Process results, and send what can be sent."""
        sends = super().turn(now, arrived)
        with self.changed:
            self._news = False
            batches = self._batches()
        for rank, batch in batches:
            if rank != self._root:
                data = pickle.dumps(batch.arguments, pickle.HIGHEST_PROTOCOL)
                sends.append((rank, Order(Tag.TASK, parcel(b"", [data]))))
        self._mine += [batch for rank, batch in batches if rank == self._root]
        return sends

    def begin_own(self) -> None:
        """Let the root's thread run its batches, after the orders of other ranks have left: it takes Python's lock."""
        while self._mine:
            self._own.put(self._mine.popleft())

    @property
    def job(self) -> _Quiet | None:
        """Wait for the other threads where no result of another rank can arrive."""
        with self.changed:
            awaits = any(at for rank, at in self._at.items() if rank != self._root)
            return None if awaits or self.over or self._news else _Quiet()

    def done(self, _job: _Quiet, _result: None) -> list[PoolSend]:
        """See `SessionActor`."""
        return []

    def await_news(self) -> None:
        """Wait until another thread has changed something; for a while, since another rank may fail."""
        with self.changed:
            self.changed.wait_for(lambda: self._news, IDLE_S)

    def notify(self) -> None:
        """Wake all threads that wait for a change."""
        self._news = True
        self.changed.notify_all()

    def _batches(self) -> list[tuple[int, _Batch]]:
        """Make the batches that ranks can get now; note when all executors have ended."""
        if self._stop is not None:
            raise self._stop
        for queue in [*self._queues]:
            queue.open = queue.open and threading.main_thread().is_alive()  # False: the program is exiting
            queue.free()
            if queue.idle and not queue.open and not queue.free(all_calls=True):
                self._queues.remove(queue)
                queue.arrays.close()
                self.notify()
        if not self._queues or (self._wanted and all(queue.idle and queue.gives_way for queue in self._queues)):
            self.over = True
            self.notify()
        batches = []
        for n in range(AHEAD):
            for rank, at in self._at.items():
                # At each call of MPI, this thread waits for Python's lock, so the root gets its next batch in a turn.
                ahead = rank != self._root and sum(len(queue.tasks) for queue in self._queues) > len(self._at)
                if len(at) == n and (n == 0 or ahead) and (batch := self._next(rank)) is not None:
                    at.append(batch)
                    batches.append((rank, batch))
        return batches

    def _next(self, rank: int) -> _Batch | None:
        """Make the next batch for a rank, from the executors in turn; None if there is nothing to do."""
        for _ in range(len(self._queues)):
            queue = self._queues[0]
            self._queues.rotate(-1)
            waits = any(batch.queue is queue and batch.tasks[0].what for batch in self._at[rank])
            if rank in queue.bound and not waits and (tasks := queue.take(rank)):
                queue.n_sent += 1
                if not (queue.began or tasks[0].what):
                    queue.began = queue.ended = time.perf_counter()
                number = -1 if tasks[0].what else self.session.number(len(tasks))
                places = queue.arrays.places
                found = {key: places[key][queue.hosts[rank]] for task in tasks for key in task.arrays}
                return _Batch(queue, tasks, (number, [task.data for task in tasks], found))
        return None

    def take(self, source: int, results: Buffer) -> None:
        """See `SessionActor`; drop late results of a map."""
        epoch, done, frames = read_results(results)
        if epoch == NO_MAP:
            self._finish(source, done._replace(sent_bytes=results.nbytes), frames)

    # The thread of the root's own tasks.

    def _work(self) -> None:
        record = self.session.record
        try:
            while (batch := self._own.get()) is not None:
                record.hold(Phase.OWN, time.perf_counter())
                done, frames = run_batch(self.session, *batch.arguments)
                record.release(Phase.PROTOCOL, time.perf_counter())
                self._finish(self._root, done, frames)
                del batch
        except BaseException as error:  # `_dispatch` ends; it may have raised this KeyboardInterrupt itself
            with self.changed:
                self._stop = error
                self.notify()
        self.session.clocks.end()  # they were this thread's

    # Both of these threads.

    def _finish(self, rank: int, done: RankTasks, frames: list[Frame]) -> None:
        """Settle the futures of a batch; requeue its tasks that were not run."""
        queue, tasks, _ = self._at[rank][0]
        for task, frame in zip(tasks, frames, strict=False):
            _settle(task.future, frame)
        what = tasks[0].what
        if what and queue.broken is None and (error := tasks[0].future.exception()) is not None:
            text = f"{what} of lb_mpi.Executor has failed on rank {rank}: {type(error).__name__}: {error}"
            logging.getLogger("concurrent.futures").critical(text)
            queue.fails(text, error)
            self._drop(queue)
        with self.changed:
            self._at[rank].popleft()
            queue.n_sent -= 1
            if queue.broken is None:
                queue.tasks.extendleft(reversed(tasks[done.tasks :]))
            if not what:
                queue.ran[rank], queue.ended = queue.ran[rank].plus(done), time.perf_counter()
                took_s = done.busy_s / done.tasks
                queue.task_s = took_s if math.isinf(queue.task_s) else (queue.task_s + took_s) / 2
            self.notify()

    def _drop(self, queue: _Queue) -> None:
        """Let all unfinished futures of a broken executor raise its error."""
        with self.changed:
            batches = [batch for batch in itertools.chain(*self._at.values()) if batch.queue is queue]
            begun = [task.future for batch in batches for task in batch.tasks]
            for tasks in (queue.tasks, *queue.bound.values()):
                begun += [task.future for task in tasks if _begins(task.future)]
                tasks.clear()
            self.notify()
        for future in begun:
            with contextlib.suppress(InvalidStateError):  # done meanwhile
                future.set_exception(queue.broken)


_dispatchers: list[_Dispatcher] = []  # that run
_late: list[threading.Thread] = []  # in tasks that go on after a failure or Ctrl-C


@atexit.register
def _await_tasks() -> None:
    """Wait until no task runs, since one that still runs while MPI and Python are finalized may crash.

    A program that has failed ends at once instead, with all ranks, as does one that waits here at Ctrl-C.
    """
    failed = getattr(sys, "last_value", None) is not None  # set by an exception that nobody has caught
    try:
        for thread in _late:
            thread.join(LEAVE_S if failed else None)
    except KeyboardInterrupt:
        failed = True
    if failed and any(thread.is_alive() for thread in _late) and not MPI.Is_finalized():
        sys.stdout.flush()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(INTERRUPTED)


def _dispatcher(session: Session, queue: _Queue) -> _Dispatcher:
    """Return the dispatcher that serves this queue's executor, and others of the same ranks."""
    while True:
        with session.claimed(Wish.TASKS), in_call(""):  # with Ctrl-C held back, so that what is noted also runs
            found = session.operation
            if isinstance(found, _Dispatcher):
                if found.add(queue):
                    return found
                if found.state is not PoolState.ENDING:  # a callback of its last task
                    raise Error(REASONS[found.state])
            else:
                _check_level(session.presence.comm)
                made = _Dispatcher(session, closes=not (session.shared or queue.gives_way))
                session.begin(made)
                _dispatchers.append(made)
                made.add(queue)
                made.thread.start()
                return made


def _check_level(comm: MPI.Intracomm) -> None:
    """Raise an error if MPI allows only the main thread to call it."""
    several = any(one.session.presence.comm != comm for one in [*_dispatchers])
    needed = MPI.THREAD_MULTIPLE if several else MPI.THREAD_SERIALIZED
    need_level(needed, "lb_mpi.Executor calls it from a thread" + ", one for each communicator" * several)


def initialize(session: Session, initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> None:
    """Call initializer(*initargs) on all ranks of a script but the root; lb_mpi.Error if it raises."""
    if session.ranks.size > 1:
        with Executor(initializer=initializer, initargs=initargs, root_works=False) as executor:
            executor.bootup()
        if (broken := executor._queue.broken) is not None:  # known at the end: the futures are done a moment before
            raise Error(str(broken)) from broken.__cause__


# --- futures ----------------------------------------------------------------------------------------------------------


def _resolved(
    executor: Callable[[], Executor | None],
    fn: Callable[..., Any],
    futures: deque[Future[Any]],
    more: Iterator[Any],
    until: float | None,
    unordered: bool,
) -> Iterator[Any]:
    """Yield the results of futures, and submit one more call for each; at its end, cancel those not yet begun.

    It does not keep the executor, so that a program may drop that.
    """

    def left_s() -> float | None:
        return None if until is None else until - time.monotonic()

    try:
        if unordered:
            for future in concurrent.futures.as_completed(set(futures), left_s()):
                futures.remove(future)
                yield future.result()
        while futures:
            result = futures[0].result(left_s())
            futures.popleft()
            if (still := executor()) is not None and (args := next(more, None)) is not None:
                futures.append(still.submit(fn, *args))
            del still
            yield result
    finally:
        for future in futures:
            future.cancel()


def _begins(future: Future[Any]) -> bool:
    """Return whether to run a task; if so it can't be cancelled any more, else its waiters learn of the cancellation."""
    return future.running() or future.set_running_or_notify_cancel()


def _settle(future: Future[Any], frame: Frame) -> None:
    failed = frame.lo == frame.hi
    try:
        value = _error(frame.data) if failed else pickle.loads(frame.data)
    except Exception as error:
        failed, value = True, error
    with contextlib.suppress(InvalidStateError):  # its executor was broken meanwhile
        if failed:
            future.set_exception(value)
        else:
            future.set_result(value)


def _error(data: bytes | memoryview) -> BaseException:
    """Return the exception of a task, whose cause has its traceback."""
    failure = pickle.loads(data)
    error = task_error(failure)
    error.add_note(failure.traceback)
    return own_error(error)
