"""lb_mpi.Executor: the executor of `concurrent.futures`, whose tasks run on all ranks.

On the root, one thread calls MPI: it sends tasks and receives results.  The root's own tasks run in a second thread, so that
a long one delays no message.  The other ranks serve, as in a pool with `root=`.

    submit -> _Queue, one per executor -> _Dispatcher, one for these ranks: its two threads -> `run_batch` on a rank
    Future <- _settle                   <- _Dispatcher.finish                                <- BatchAnswer
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import itertools
import logging
import math
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.mpi.common.failure import hint
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.pool.arrays import SharedArrays, forget, store
from lb_mpi.mpi.pool.messages import batch_parcel, dumps, read_batch, task_error
from lb_mpi.mpi.pool.script import open_session
from lb_mpi.mpi.pool.serving import BATCH_S, BatchAnswer, run_batch, serve
from lb_mpi.mpi.pool.session import Operation, Session, need_level
from lb_mpi.record.events import Phase

T = TypeVar("T")

BATCH_BYTES = 1 << 20
BATCH_MOST = 256  # tasks
AHEAD = 2  # batches at a rank, if there are more tasks than ranks: the running one, and the next
LEAVE_S = 0.5  # for the root's task to end after a failure or Ctrl-C
IDLE_S = 0.25  # between two looks for a failure while there are no tasks


class Executor(concurrent.futures.Executor):
    """Run tasks on all ranks of `comm`, through the interface of `concurrent.futures`.

    In a script that `python -m lb_mpi pool` starts, rank 0 alone runs the script, and each executor uses all ranks:

        with lb_mpi.Executor() as executor:
            results = list(executor.map(f, items))

    In any other program all ranks create the executor; ranks other than 0 serve it in the `with` statement, and get None:

        with lb_mpi.Executor(comm) as executor:
            if executor is not None:
                results = list(executor.map(f, items))

    Futures are those of `concurrent.futures`, so `wait`, `as_completed` and asyncio work with them.  An exception raised by
    a task (except Ctrl-C) is the exception of its future; its cause is a `TaskError` with the rank and the traceback.
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
            ranks = [*range(1, own.size)]
            if root_works or not ranks:
                ranks.append(0)
            if max_workers is not None and checks.integer("max_workers", max_workers) < 1:
                raise ValueError(f"max_workers must be greater than 0, not {show(max_workers)}")
            checks.function("initializer", initializer, optional=True)
            data = b""
            if own.rank == 0:
                _check_level(own)
                if initializer is not None:
                    what = f"initializer = {show(initializer)} or an argument of it"
                    data = dumps((initializer, tuple(initargs), {}), what)
            chosen.extend(ranks[:max_workers])
            initializers.append(data)
            return {}

        chosen, initializers = list[int](), list[bytes]()
        self._session = open_session(comm, 0, check, name="lb_mpi.Executor")
        self._queue = _Queue(self._session.hosts, chosen, initializers[-1])
        self._begin(closes=not self._session.shared)

    @classmethod
    def of_pool(cls, session: Session) -> Executor:
        """Make the executor of a pool's asynchronous tasks, which take turns with its maps."""
        _check_level(session.presence.comm)
        made = cls.__new__(cls)
        made._session, made._queue = session, _Queue(session.hosts, [*range(1, session.size), 0], gives_way=True)
        made._begin(closes=False)
        return made

    def _begin(self, *, closes: bool) -> None:
        """Start the threads of the root, if they don't run yet; `closes`: the executor's end closes the session."""
        self._serves = not self._session.is_root
        if not self._serves:
            self._dispatcher = _dispatcher(self._session, self._queue, closes=closes)
            weakref.finalize(self, self._dispatcher.close, self._queue).atexit = False

    @staticmethod
    def n_ranks() -> int:
        """Return the number of ranks that an executor uses by default."""
        return MPI.COMM_WORLD.size

    @property
    def num_workers(self) -> int:
        """Number of ranks that run tasks; 0 after a shutdown or a failure."""
        return len(self._queue.ranks) if self._queue.open and self._queue.broken is None else 0

    @property
    def _max_workers(self) -> int:
        """Return `num_workers`, under the name that dask reads."""
        return self.num_workers

    @property
    def _broken(self) -> str | None:
        return None if self._queue.broken is None else str(self._queue.broken)

    def bootup(self, wait: bool = True) -> Executor:
        """Start the initializer on all ranks now, and return the executor; `wait`: after all ranks have run it."""
        self._check("boot up")
        queue, changed = self._queue, self._dispatcher.changed
        with changed:
            queue.boots = True
            changed.notify_all()
            changed.wait_for(lambda: not wait or queue.broken is not None or queue.ready.issuperset(queue.ranks))
        return self

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run fn(*args, **kwargs) on some rank, and return its future.  A pickling error is the future's exception."""
        what = f"function = {show(fn)} or an argument of it"
        return self._submit(lambda: (dumps((fn, args, kwargs), what), frozenset()))

    def submit_sharing(self, fn: Callable[[], T], least_bytes: int) -> Future[T]:
        """Run fn() on some rank; its numpy arrays of so many bytes are sent once to each host, and are read-only there.

        They must not be changed while the executor is open, which frees them at its end.
        """
        return self._submit(lambda: self._queue.arrays.dumps((fn, (), {}), f"function = {show(fn)}", least_bytes))

    def _submit(self, make: Callable[[], tuple[bytes, Set[str]]]) -> Future[Any]:
        self._check("schedule new futures")
        future: Future[Any] = Future()
        data, arrays = b"", cast("Set[str]", frozenset())
        try:
            data, arrays = make()
        except TypeError as error:
            cause = error.__cause__ or error
            cause.add_note(str(error))
            future.set_running_or_notify_cancel()
            future.set_exception(cause)
        with self._dispatcher.changed:
            self._check("schedule new futures")
            if data:
                self._queue.tasks.append(_Task(future, data, arrays))
                self._dispatcher.changed.notify_all()
        return future

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
    ) -> Iterator[T]:
        """Return an iterator of fn(a, b, ...) for the items at the same position of each iterable.

        Parameters
        ----------
        timeout : seconds from the call; then the iterator raises TimeoutError.
        chunksize : items in a task.  Short tasks are sent together anyway.
        buffersize : submit this many tasks, and another one per requested result; None: submit all at once.
        unordered : yield results as they arrive.
        """
        arguments = zip(*iterables, strict=False)
        return self.starmap(
            fn, arguments, timeout=timeout, chunksize=chunksize, buffersize=buffersize, unordered=unordered
        )

    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
    ) -> Iterator[T]:
        """Return an iterator of fn(*args) for each args of `iterable`; the other arguments are those of `map`."""
        until = None if timeout is None else time.monotonic() + timeout
        size = checks.integer("chunksize", chunksize, least=1)
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError(f"buffersize = {show(buffersize)}: expected an integer >= 1, or None")
        if buffersize is not None and (buffersize < 1 or unordered):
            raise ValueError(f"buffersize = {buffersize}: expected an integer >= 1, or None; None where unordered is True")
        submitted = self.submit_chunks(fn, iterable, size)
        return _results(deque(itertools.islice(submitted, buffersize)), submitted, until, unordered)

    def submit_chunks(
        self, fn: Callable[..., T], iterable: Iterable[Iterable[Any]], size: int
    ) -> Iterator[Future[list[T]]]:
        """Submit fn(*args) for each args of `iterable`, `size` in a task; yield the futures as they are requested."""
        items = iter(iterable)
        for chunk in iter(lambda: [*itertools.islice(items, size)], []):
            yield self.submit(_run_chunk, fn, chunk)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks; `wait`: return when all are done.  A second call only waits.

        cancel_futures : cancel the tasks not yet sent to a rank.
        """
        if self._serves:
            if self._queue.open:
                self._queue.open = False
                try:
                    serve(self._session)
                finally:
                    self._session.close()
            return
        self._dispatcher.close(self._queue, cancel=cancel_futures)
        if wait:
            self._dispatcher.wait(self._queue)

    def __enter__(self) -> Any:  # with another type, checkers would require a None check in a script of rank 0 alone
        """Return the executor; on ranks that serve, serve until rank 0 shuts it down, then return None."""
        if not self._serves:
            return self
        self.shutdown()
        hint("this rank has served the executor; put `if executor:` before what only rank 0 does")
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the executor down; at once after Ctrl-C."""
        if self._serves:
            return
        if isinstance(error, KeyboardInterrupt):
            self._dispatcher.interrupt()
        self.shutdown()

    def _check(self, what: str) -> None:
        if self._serves:
            raise Error("an executor that this rank serves: expected to be called on rank 0")
        if self._queue.broken is not None:
            raise BrokenExecutor(str(self._queue.broken)) from self._queue.broken.__cause__
        if not self._queue.open:
            raise RuntimeError(f"cannot {what} after shutdown")


# --- the root ---------------------------------------------------------------------------------------------------


class _Task(NamedTuple):
    future: Future[Any]
    data: bytes  # (function, args, kwargs)
    arrays: Set[str] = frozenset()  # keys of its large arrays


class _Queue:
    """The tasks of one executor; access needs the lock of its dispatcher."""

    def __init__(self, hosts: list[int], ranks: list[int], initializer: bytes = b"", *, gives_way: bool = False) -> None:
        self.ranks = ranks  # that may run its tasks
        self.hosts = hosts  # of all ranks of the session
        self.arrays = SharedArrays(hosts[0])
        self.gives_way = gives_way  # to maps, when there are no tasks
        self.initializer = initializer  # it, initargs and {}; empty: none
        self.begun = set[int]() if initializer else {*ranks}  # ranks to which the initializer was sent
        self.ready = {*self.begun}  # ranks that have run it
        self.boots = False  # run the initializer even without tasks
        self.tasks = deque[_Task]()
        self.n_sent = 0  # batches at ranks
        self.task_s = math.inf  # recent seconds per task
        self.open = True
        self.frees = False  # closed, and no rank needs its arrays any more
        self.broken: BrokenExecutor | None = None

    @property
    def idle(self) -> bool:
        """True if there is nothing to send and nothing to await."""
        boots = self.boots and len(self.begun) < len(self.ranks)
        return not (self.tasks or self.n_sent or boots or (self.arrays.holders and not self.open))

    def first(self, rank: int) -> tuple[bytes, str]:
        """Return the call that this rank makes before its next tasks (empty: none), and the key of the array it stores."""
        if rank not in self.begun and (self.tasks or self.boots):
            self.begun.add(rank)
            return self.initializer, ""
        arrays, host = self.arrays, self.hosts[rank]
        if self.tasks and (missing := arrays.missing(self.tasks[0].arrays, host)):
            key = missing[0]
            if host in arrays.places[key]:  # on its way
                return b"", ""
            arrays.places[key][host] = ""
            arrays.holders.add(rank)
            return dumps((store, (key, arrays.read(key)), {}), "an array"), key
        self.frees = self.frees or not (self.open or self.tasks or self.n_sent)
        if self.frees and rank in arrays.holders:
            arrays.holders.remove(rank)
            return dumps((forget, ([*arrays.places],), {}), "arrays"), ""
        return b"", ""

    def take(self, rank: int) -> list[_Task]:
        """Remove and return the tasks of a batch for a rank; empty if there are none."""
        share = -(-len(self.tasks) // (AHEAD * len(self.ranks)))
        most = min(BATCH_MOST, max(1, int(BATCH_S / max(self.task_s, 1e-6))), share)
        taken, n_bytes = list[_Task](), 0
        while self.tasks and len(taken) < most and n_bytes < BATCH_BYTES:
            if self.arrays.missing(self.tasks[0].arrays, self.hosts[rank]):
                break
            task = self.tasks.popleft()
            if _begins(task):
                taken.append(task)
                n_bytes += len(task.data)
                if task.arrays and rank:
                    self.arrays.holders.add(rank)
        return taken


class _Batch(NamedTuple):
    number: int  # of its first task
    queue: _Queue
    rank: int
    first: bytes  # see `run_batch`
    key: str  # of the array that it stores; empty: none
    tasks: list[_Task]

    @property
    def arguments(self) -> tuple[bytes, list[bytes], dict[str, str]]:
        """Return the arguments of `run_batch`."""
        host = self.queue.hosts[self.rank]
        keys = {key for task in self.tasks for key in task.arrays}
        places = {key: self.queue.arrays.places[key][host] for key in keys}
        return self.first, [task.data for task in self.tasks], places


class _Dispatcher(Operation):
    """The threads of the root, for all executors of a session; `closes`: the last one closes it."""

    def __init__(self, session: Session, *, closes: bool) -> None:
        self.changed = threading.Condition()
        self._closes = closes
        self.over = False  # it accepts no further executor
        self._session = session
        self._queues = deque[_Queue]()
        self._at = dict.fromkeys((rank for rank in range(session.size) if rank != session.root), 0)  # batches, by rank
        self._sent: dict[int, _Batch] = {}  # by number, including the root's
        self._stop: BaseException | None = None  # Ctrl-C, or an error of the thread that runs the root's tasks
        self._turned = threading.Event()  # the thread that calls MPI has finished a turn
        self.thread = threading.Thread(target=self._dispatch, name="lb_mpi.Executor")
        self._worker = threading.Thread(target=self._work, name="lb_mpi.Executor, tasks", daemon=True)

    def add(self, queue: _Queue) -> bool:
        """Serve an executor; return False if the dispatcher is over."""
        with self.changed:
            if not self.over:
                self._queues.append(queue)
                if self._session.root in queue.ranks and not self._worker.ident:
                    self._worker.start()
                self.changed.notify_all()
            return not self.over

    def close(self, queue: _Queue, *, cancel: bool = False) -> None:
        """Accept no more tasks from an executor."""
        cancelled = list[_Task]()
        with self.changed:
            queue.open = False
            if cancel:
                self.changed.wait_for(lambda: queue.n_sent or queue.idle, BATCH_S)  # let free ranks begin what they can
                cancelled = [task for task in queue.tasks if not task.future.running()]
                queue.tasks = deque(task for task in queue.tasks if task.future.running())
            self.changed.notify_all()
        for task in cancelled:
            task.future.cancel()
            task.future.set_running_or_notify_cancel()

    def wait(self, queue: _Queue) -> None:
        """Wait until a closed executor has no more tasks; the threads end with the last executor."""
        if self._in_callback():
            return
        with self.changed:
            self.changed.wait_for(lambda: self.over or queue not in self._queues)
        if self.over:
            self.thread.join()

    @property
    def refusal(self) -> str:
        """See `Operation`."""
        if self._gives_way():
            return "a callback of an asynchronous task of these ranks: expected the map after it"
        return "these ranks work for an lb_mpi.Executor, which is open: expected its shutdown before"

    def refuses(self) -> bool:
        """See `Operation`."""
        return self._in_callback() or not self._gives_way()

    def _in_callback(self) -> bool:
        return threading.current_thread() in (self.thread, self._worker)

    def settle(self) -> None:
        """See `Operation`; an executor that the user has opened is not waited for."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or self._is_idle() or not self._gives_way())

    def complete(self) -> bool:
        """See `Operation`; true if it is idle, and serves no executor that the user has opened."""
        with self.changed:
            if not (self._gives_way() and self._is_idle()):
                return False
            self._session.operation = None
            return True

    def interrupt(self) -> None:
        """Drop all tasks under way, after Ctrl-C."""
        with self.changed:
            self._stop = KeyboardInterrupt()
            self.changed.notify_all()

    def leave(self, error: BaseException | None) -> None:
        """See `Operation`; shut all executors down."""
        if isinstance(error, KeyboardInterrupt):
            self.interrupt()
        for queue in [*self._queues]:
            self.close(queue)
            self.wait(queue)

    def _dispatch(self) -> None:
        """Run the thread that calls MPI."""
        session = self._session
        try:
            with session.presence.telling():
                while self._goes_on():
                    with session.lock:
                        self._serve()
        except BaseException as error:
            with self.changed:
                self.over = True
                self.changed.notify_all()
            for queue in self._queues:
                self._break(queue, f"lb_mpi.Executor has ended: {error or type(error).__name__}", error)
            if self._worker.ident:  # a task that still runs while Python exits may crash it
                thread = ctypes.c_ulong(self._worker.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))
                self._worker.join(LEAVE_S)
            for queue in self._queues:
                queue.arrays.close()
        else:
            if self._worker.ident:
                self._worker.join()
        if session.operation is self:
            session.operation = None
        _dispatchers.pop(session)  # which would keep the memory of a closed pool
        if self._closes:
            session.close()

    def _serve(self) -> None:
        """Send tasks and receive results until there are none, or an executor ends."""
        session = self._session
        with self.changed:
            if self._gives_way() and self._is_idle():
                return
        if session.operation is not self:
            session.check()
            with self.changed:
                session.operation = self
                self.changed.notify_all()
        while True:
            session.work("", self._pauses, self._turn)
            session.presence.look()
            session.presence.raise_failure()
            with self.changed:
                if self._stop is not None or not self._gives_way():
                    return
                self._remove_ended()
                if self._is_idle():
                    session.operation = None
                    return

    def _gives_way(self) -> bool:
        with self.changed:
            return all(queue.gives_way for queue in self._queues)

    def _is_idle(self) -> bool:
        with self.changed:
            return all(queue.idle for queue in self._queues)

    def _pauses(self) -> bool:
        """True if there is nothing to send or to await, or an executor has ended."""
        with self.changed:
            ended = any(queue.idle and not queue.open for queue in self._queues)
            return ended or self._stop is not None or all(queue.idle for queue in self._queues)

    def _goes_on(self) -> bool:
        """Wait for work; return False when all executors are shut down."""
        with self.changed:
            if all(queue.idle and queue.open for queue in self._queues) and self._stop is None:
                self.changed.wait(IDLE_S)
            if self._stop is not None:
                raise self._stop
            self._remove_ended()
            return not self.over

    def _remove_ended(self) -> None:
        for queue in [*self._queues]:
            queue.open = queue.open and threading.main_thread().is_alive()  # False: the program is exiting
            if queue.idle and not queue.open:
                self._queues.remove(queue)
                queue.arrays.close()
        self.over = not self._queues
        self.changed.notify_all()

    def _turn(self, _: Interrupts) -> bool:
        """Send what can be sent; results were received just before."""
        batches = list[_Batch]()
        with self.changed:
            for n in range(AHEAD):
                for rank, has in self._at.items():
                    many = sum(len(queue.tasks) for queue in self._queues) > len(self._at)
                    if has == n and (n == 0 or many) and (batch := self._next(rank)) is not None:
                        self._at[rank] += 1
                        batches.append(batch)
        for batch in batches:
            data = pickle.dumps(batch.arguments, pickle.HIGHEST_PROTOCOL)
            self._session.parcels.send(batch.rank, Tag.TASK, batch_parcel(batch.number, data))
        self._turned.set()
        return bool(batches)

    def take(self, source: int, tag: int, parcel: Buffer) -> None:
        """See `Operation`; drop late results of a map."""
        if tag != Tag.RESULT:
            return
        number, data = read_batch(parcel)
        self._at[source] -= 1
        self._finish(number, pickle.loads(data))

    def _work(self) -> None:
        """Run the thread of the root's own tasks."""
        try:
            while (batch := self._await()) is not None:
                record = self._session.record
                record.hold(Phase.OWN, time.perf_counter())
                answer = run_batch(self._session, batch.number, *batch.arguments)
                record.release(Phase.PROTOCOL, time.perf_counter())
                self._finish(batch.number, answer)
                del batch
                if self._at:  # at each call of MPI, the other thread would wait for Python's lock
                    self._turned.clear()
                    self._turned.wait(BATCH_S)
        except BaseException as error:  # `_dispatch` ends; it may have raised this KeyboardInterrupt itself
            with self.changed:
                self._stop = error
                self.changed.notify_all()
        self._session.clocks.end()  # they were this thread's

    def _await(self) -> _Batch | None:
        """Wait for tasks for the root; None: there will be none."""
        with self.changed:
            while not self.over:
                ours = self._session.operation is self  # else a map is under way
                if ours and (batch := self._next(self._session.root)) is not None:
                    return batch
                self.changed.wait()
        return None

    def _next(self, rank: int) -> _Batch | None:
        """Make the next batch for a rank, from the executors in turn; None if there is nothing to do."""
        for _ in range(len(self._queues)):
            queue = self._queues[0]
            self._queues.rotate(-1)
            if rank not in queue.ranks:
                continue
            first, key = queue.first(rank)
            tasks = queue.take(rank)
            if tasks or first:
                queue.n_sent += 1
                number = self._session.n_tasks
                self._session.n_tasks += max(1, len(tasks))
                self._sent[number] = batch = _Batch(number, queue, rank, first, key, tasks)
                return batch
        return None

    def _finish(self, number: int, answer: BatchAnswer) -> None:
        """Settle the futures of a batch; requeue its tasks that were not run."""
        _, queue, rank, _, key, tasks = self._sent[number]
        for task, outcome in zip(tasks, answer.outcomes, strict=False):
            _settle(task.future, *outcome)
        n = len(answer.outcomes)
        failed, data = answer.first
        if failed:
            error = _error(data)
            what = "an array" if key else "the initializer"
            text = f"{what} of lb_mpi.Executor has failed on rank {rank}: {type(error).__name__}: {error}"
            if queue.broken is None:
                logging.getLogger("concurrent.futures").critical(text)
            self._break(queue, text, error)
        with self.changed:
            del self._sent[number]
            queue.n_sent -= 1
            queue.ready.add(rank)
            if key and not failed:
                queue.arrays.places[key][queue.hosts[rank]] = pickle.loads(data)
            if queue.broken is None:
                queue.tasks.extendleft(reversed(tasks[n:]))
            if n:
                took_s = answer.seconds / n
                queue.task_s = took_s if math.isinf(queue.task_s) else (queue.task_s + took_s) / 2
            self.changed.notify_all()

    def _break(self, queue: _Queue, text: str, error: BaseException) -> None:
        """Let all unfinished futures of an executor raise BrokenExecutor."""
        with self.changed:
            queue.broken = BrokenExecutor(text)
            queue.broken.__cause__ = error
            queue.boots = False
            tasks = [*queue.tasks, *(task for batch in self._sent.values() if batch.queue is queue for task in batch.tasks)]
            queue.tasks.clear()
            self.changed.notify_all()
        for task in tasks:
            if _begins(task):
                with contextlib.suppress(InvalidStateError):  # done meanwhile
                    task.future.set_exception(queue.broken)


_dispatchers: dict[Session, _Dispatcher] = {}  # that run, by session
_lock = threading.Lock()


def _dispatcher(session: Session, queue: _Queue, *, closes: bool) -> _Dispatcher:
    """Return the dispatcher that serves this queue's executor, and others of the same ranks."""
    with _lock:
        found = _dispatchers.get(session)
        if found is not None and session.operation is found and found.add(queue):
            return found
        with session.claimed():
            if session.operation is not found or found is None:
                session.check()
            if found is None or not found.add(queue):
                if found is not None:
                    found.thread.join()
                found = session.dispatcher = _dispatchers[session] = _Dispatcher(session, closes=closes)
                found.add(queue)
                found.thread.start()
            if not queue.gives_way:
                session.operation = found
        return found


def _check_level(comm: MPI.Intracomm) -> None:
    """Raise an error if MPI allows only the main thread to call it."""
    several = any(one.thread.is_alive() for other, one in [*_dispatchers.items()] if other.presence.comm != comm)
    needed = MPI.THREAD_MULTIPLE if several else MPI.THREAD_SERIALIZED
    need_level(needed, "lb_mpi.Executor calls it from a thread" + ", one for each communicator" * several)


def initialize(session: Session, initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> None:
    """Call initializer(*initargs) on all ranks of a script but the root; lb_mpi.Error if it raises."""
    if session.size > 1:
        with Executor(initializer=initializer, initargs=initargs, root_works=False) as executor:
            broken = executor.bootup()._queue.broken
        if broken is not None:
            raise Error(str(broken)) from broken.__cause__


# --- futures ----------------------------------------------------------------------------------------------------------


def _run_chunk(function: Callable[..., Any], chunk: list[Iterable[Any]]) -> list[Any]:
    return [function(*args) for args in chunk]


def _begins(task: _Task) -> bool:
    """Return whether to run a task; if so it can't be cancelled any more, else its waiters learn of the cancellation."""
    future = task.future
    finished = future.done() and not future.cancelled()
    return future.running() or (not finished and future.set_running_or_notify_cancel())


def _settle(future: Future[Any], failed: bool, data: bytes) -> None:
    with contextlib.suppress(InvalidStateError):  # its executor was broken meanwhile
        try:
            value = None if failed else pickle.loads(data)
        except Exception as error:
            future.set_exception(error)
            return
        if failed:
            future.set_exception(_error(data))
        else:
            future.set_result(value)


def _error(data: bytes) -> BaseException:
    """Return the exception of a task, caused by a TaskError with the traceback, or only the TaskError if it wasn't sent."""
    failure = pickle.loads(data)
    told = task_error(failure, None)
    told.add_note(failure.traceback)
    error, told.__cause__ = told.__cause__, None
    if error is None:
        return told
    error.__cause__ = told
    return error


def _results(
    futures: deque[Future[list[T]]], later: Iterator[Future[list[T]]], until: float | None, unordered: bool
) -> Iterator[T]:
    """Yield the results of some futures, and of one of `later` for each; cancel those not requested."""
    waiting = {*futures} if unordered else set()

    def left_s() -> float | None:
        return None if until is None else until - time.monotonic()

    try:
        if unordered:
            futures.clear()
            for future in concurrent.futures.as_completed({*waiting}, left_s()):
                waiting.discard(future)
                yield from _emptied(future.result())
        while futures:
            values = futures[0].result(left_s())
            futures.popleft()
            futures.extend(itertools.islice(later, 1))
            yield from _emptied(values)
    finally:
        for future in (*futures, *waiting):
            future.cancel()


def _emptied(values: list[T]) -> Iterator[T]:
    """Yield values, and keep no reference to them."""
    values.reverse()
    while values:
        yield values.pop()
