"""The dispatcher of executors, on the root: it sends tasks to ranks, and gives futures their results.

One thread calls MPI.  It carries the dispatcher, an actor around the pure scheduler (`lb_mpi.pooling.scheduler`), and gives
futures their results as jobs, since their callbacks are the user's code.  The root's own tasks run in a second thread, so
that a long one delays no message.

    put -> scheduler: batches -> post: to other ranks       -> TaskResults -> take
                              -> OwnTasks, `run_submitted` here             -> scheduler: finish -> job: Resolve -> futures
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from mpi4py import MPI

from lb_mpi.errors import Error
from lb_mpi.files import warn
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.communicator import ending
from lb_mpi.mpi.common.failure import cause
from lb_mpi.mpi.common.late import hang_s
from lb_mpi.mpi.common.parcels import Buffer
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import longest_nap_s
from lb_mpi.mpi.pool.arrays import LOCK, SharedArrays, forget, reduce_future, store
from lb_mpi.mpi.pool.member import PoolActor, PoolMessage, PoolSend
from lb_mpi.mpi.pool.messages import (
    NO_MAP,
    TaskBatch,
    TaskFailure,
    batch_parcel,
    dumps,
    own_error,
    read_results,
    task_error,
)
from lb_mpi.mpi.pool.orders import Order
from lb_mpi.mpi.pool.ranks import PoolRanks, need_level
from lb_mpi.mpi.pool.running import Outcome, Process, Ran, rest_of, run_submitted
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.beginning import REASONS, PoolState, Wish
from lb_mpi.pooling.scheduler import Batch, BatchKind, Scheduler, Task, TaskQueue
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF
from lb_mpi.status import write_error
from lb_mpi.table import named_ranks

INTERRUPTED = 130  # the exit code of a program that ends by Ctrl-C
LEAVE_S = 0.5  # for the root's task to end after a failure or Ctrl-C
IDLE_S = 0.25  # between two checks for a failure while no results can arrive
POLL = 1 / 50  # of the expected time of a batch: between two polls for its results, since the root may compute beside
UPKEEP = {BatchKind.INITIALIZE: "the initializer", BatchKind.STORE: "an array"}  # that may fail


class TaskFuture(Future[Any]):
    """A future whose callbacks can't end the thread that calls them, by SystemExit for example."""

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """See `concurrent.futures.Future`, which logs an Exception of a callback."""
        super().add_done_callback(partial(_call_back, fn))

    def result(self, timeout: float | None = None) -> Any:
        """Return the result or raise the exception, also one that counts as false: `Future.result` would return None."""
        error = self.exception(timeout)
        if error is None:
            return super().result()
        try:
            raise error
        finally:
            del error, self  # in the frame that its traceback has

    def __reduce__(self) -> Any:
        """Raise an error; see `reduce_future`."""
        return reduce_future(self)


def _call_back(fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        raise
    except BaseException as error:
        if threading.current_thread() not in [one.thread for one in [*dispatchers]]:
            raise
        logging.getLogger("concurrent.futures").error("exception calling callback for %r", future, exc_info=error)


class Submission(NamedTuple):
    """A call that was submitted: the payload of a task."""

    future: Future[Any]
    data: bytes  # (function, args, kwargs)


class Submissions:
    """The tasks and arrays that one executor has been given; its dispatcher and its user share them.

    gives_way : to maps, when there are no tasks.
    """

    def __init__(self, ranks: PoolRanks, numbers: Sequence[int], initializer: bytes = b"", *, gives_way: bool) -> None:
        self._ranks = ranks
        self.gives_way = gives_way
        self.queue = TaskQueue(ranks.hosts, numbers, ranks.root, _begins, initializes=bool(initializer))
        self.arrays = SharedArrays(self.queue.copies, ranks.hosts[ranks.root])
        self.initializer = initializer
        self.initial: dict[int, Future[Any]] = {rank: Future() for rank in numbers} if initializer else {}  # by rank
        self.ran = [RankTasks() for _ in ranks.hosts]  # by rank
        self.began = self.ended = 0.0  # first batch, last result
        self.broken: BrokenExecutor | None = None

    def packed(self, rank: int, batch: Batch) -> TaskBatch:
        """Return a batch as a rank gets it."""
        if batch.kind == BatchKind.INITIALIZE:
            return TaskBatch(-1, [self.initializer])
        if batch.kind == BatchKind.STORE:
            (key,) = batch.keys
            return TaskBatch(-1, [dumps((store, (key, self.arrays.read(key)), {}), "function", store)])
        if batch.kind == BatchKind.FORGET:
            return TaskBatch(-1, [dumps((forget, (batch.keys,), {}), "function", forget)])
        if not self.began:
            self.began = self.ended = time.perf_counter()
        number = self._ranks.number(len(batch.tasks))
        keys = {key for task in batch.tasks for key in task.arrays}
        paths = self.arrays.paths(keys, self.queue.hosts[rank]) if keys else {}
        return TaskBatch(number, [task.payload.data for task in batch.tasks], paths)

    def count(self, rank: int, done: RankTasks) -> None:
        """Count tasks that a rank has run."""
        self.ran[rank], self.ended = self.ran[rank].plus(done), time.perf_counter()

    def sends(self, n_bytes: int) -> None:
        """Count what the root has sent: functions, arguments and arrays."""
        self.ran[self._ranks.root] = self.ran[self._ranks.root].plus(RankTasks(sent_bytes=n_bytes))

    def fails(self, text: str, error: BaseException | None = None) -> None:
        """Break it: its futures get an error of this text."""
        if self.broken is None:
            self.broken = BrokenExecutor(text)
            self.broken.__cause__ = error


def _begins(task: Task) -> bool:
    """Return whether to run a task; if so it can't be cancelled any more, else its waiters learn of the cancellation."""
    return bool(task.payload.future.set_running_or_notify_cancel())


class Resolve(NamedTuple):
    """A job of a dispatcher: to give futures the results of a batch."""

    rank: int
    batch: Batch
    outcomes: list[Outcome]  # of its first tasks
    lost: list[Task]  # of an executor that the failure of upkeep has broken


class Quiet(NamedTuple):
    """A job of a dispatcher: to wait for so many seconds, or until another thread has changed something."""

    longest_s: float


class Dispatcher(PoolActor):
    """The executors of a pool's ranks, until the last one has ended or a map begins."""

    over = False  # it accepts no further executor or task

    def __init__(self, ranks: PoolRanks, *, closes: bool) -> None:
        super().__init__(ranks)
        self.changed = threading.Condition(LOCK)
        self.news = False  # something has changed since the last turn
        self._process = Process.now()
        self._closes = closes  # the ranks' communicators, at its end
        self._wanted = False  # by a map, which waits until there are no tasks
        self._scheduler = Scheduler(ranks.size, ranks.root, ranks.knowledge)
        self._open: dict[TaskQueue, Submissions] = {}  # executors, until they have ended
        self._awaited = dict[int, float]()  # by rank: when it got its first batch; inf: it has answered
        self._answers = deque[tuple[int, RankTasks, float, list[Outcome], bool]]()  # (rank, its work, own seconds, ...)
        self._unresolved = deque[Resolve]()
        self._mine = deque[TaskBatch]()  # of the root, until other ranks have theirs
        self.failure: BaseException | None = None  # by which the ranks could not be closed
        self._stop: BaseException | None = None  # Ctrl-C, or an error of the thread that runs the root's tasks
        self.thread = threading.Thread(target=self._dispatch, name="lb_mpi.Executor")
        self._own = OwnTasks(ranks, self._receive_own, self._stops)

    # Any thread.

    def add(self, given: Submissions) -> bool:
        """Accept an executor; return False if the dispatcher is over."""
        with self.changed:
            accepts = not self.over
            if accepts and given.queue not in self._open:
                self._open[given.queue] = given
                self._scheduler.queues.append(given.queue)
        if accepts and self.ranks.root in given.queue.ranks:
            self._own.begin()  # not in the lock: a thread that starts may first finalize another executor, which needs it
        return accepts

    def put(self, given: Submissions, task: Task) -> bool:
        """Accept a task; return False if the executor is closed or broken, or the dispatcher is over."""
        with self.changed:
            accepts = given.queue.open and given.broken is None and not self.over
            if accepts:
                given.queue.add(task)
                self.notify()
            return accepts

    def initialize(self, given: Submissions) -> None:
        """Run initializers even where there are no tasks."""
        with self.changed:
            given.queue.initializes_all = True
            self.notify()

    def close(self, given: Submissions, *, cancel: bool = False) -> None:
        """Accept no more tasks from an executor; `cancel` those that no rank has begun."""
        queue, cancelled = given.queue, list[Task]()
        with self.changed:
            queue.open = False
            if cancel:
                if self.state is not PoolState.IN_TASKS:  # let free ranks begin what they can
                    self.changed.wait_for(lambda: queue.n_sent or queue.is_idle or self.over, LEAVE_S)
                cancelled = queue.drop()
            self.notify()
        for task in cancelled:
            task.payload.future.cancel()
            task.payload.future.set_running_or_notify_cancel()

    def wait(self, given: Submissions) -> None:
        """Wait until a closed executor has no more tasks; the threads end with the last executor.

        Error, once, if another rank has failed, or was interrupted, as it closed.
        """
        if self.state is PoolState.IN_TASKS:
            return
        with self.changed:
            self.changed.wait_for(lambda: self.over or given.queue not in self._open)
        if self.over:
            self.thread.join()
            if (failure := self.failure) is not None:
                self.failure = None
                raise failure

    def interrupt(self) -> None:
        """Drop all tasks under way, after Ctrl-C."""
        self._stops(KeyboardInterrupt())

    def _stops(self, error: BaseException) -> None:
        with self.changed:
            self._stop = error
            self.notify()

    @property
    def state(self) -> PoolState:
        """See `PoolActor`."""
        if threading.current_thread() in (self.thread, self._own.thread):
            return PoolState.IN_TASKS
        with self.changed:
            if self.over:
                return PoolState.ENDING
            stays = any(given.queue.open and not given.gives_way for given in self._open.values())
            return PoolState.EXECUTOR if stays else PoolState.TASKS  # a closed executor ends by itself

    def complete(self) -> None:
        """See `PoolActor`; executors of pools, and closed ones, give way to a map when they have no tasks."""
        with self.changed:
            self._wanted = True
            self.notify()
            self.changed.wait_for(lambda: self.state is not PoolState.TASKS)
            self._wanted = False
        if self.over:
            self.thread.join()

    def leave(self, error: BaseException | None) -> None:
        """See `PoolActor`; shut all executors down."""
        if isinstance(error, KeyboardInterrupt):
            self.interrupt()
        self.end()

    def end(self) -> None:
        """Shut all executors down, and wait for their tasks, before MPI is finalized."""
        for given in [*self._open.values()]:
            self.close(given)
        self.thread.join()

    # The thread that calls MPI.

    def _dispatch(self) -> None:
        ranks, wait_s = self.ranks, None
        try:
            with ranks.presence.notifying():
                try:
                    self.carry()
                except RecursionError:  # a task has lowered the limit, and is not over
                    self._process.restore()
                    raise
        except BaseException as error:
            wait_s = LEAVE_S
            self._break_all(error)
        self._own.end(wait_s)
        for given in self._open.values():  # after a failure, or before a map
            given.arrays.close()
            given.queue.freed.clear()
        ranks.end()
        try:
            if self._closes:
                ranks.close()
        except BaseException as error:
            self.failure = error
        dispatchers.remove(self)  # now that this thread calls MPI no more

    def turn(self, now: float, arrived: Iterable[tuple[int, PoolMessage]]) -> list[PoolSend]:
        """Process results, and send what can be sent."""
        sends = super().turn(now, arrived)
        with self.changed:
            self.news = False
            while self._answers:
                self._finish(*self._answers.popleft())
            if self._stop is not None:
                raise self._stop
            if not threading.main_thread().is_alive():  # the program is exiting
                for given in self._open.values():
                    given.queue.open = False
            batches = [(rank, self.of(one), self.of(one).packed(rank, one)) for rank, one in self._scheduler.batches(now)]
            if batches:
                self.changed.notify_all()
            self._end_executors()
        for rank, given, batch in batches:
            if rank == self.ranks.root:
                self._mine.append(batch)
            else:
                sends.append((rank, Order(Tag.TASK, parcel := batch_parcel(batch))))
                given.sends(parcel.nbytes)
                self._awaited.setdefault(rank, now)
        if self._awaited:
            self._warn_of_silent_ranks(now)
        if not sends:
            self._begin_own()
        return sends

    def _warn_of_silent_ranks(self, now: float) -> None:
        """Warn, once, of ranks that have had a task for long, and may not serve: they have never sent a result."""
        for rank in self.ranks.helpers & self._awaited.keys():
            self._awaited[rank] = math.inf
        since, longest_s = min(self._awaited.values()), hang_s()
        if 0.0 < longest_s < now - since:
            silent = sorted(rank for rank, at in self._awaited.items() if at == since)
            how = "expected its `with` block, or shutdown(), on all ranks"
            what = f"got a first task of lb_mpi.Executor {now - since:.0f} s ago: it is long, or"
            warn(f"{named_ranks(silent)} {what} not answered: {how}")
            self._awaited = dict.fromkeys(self._awaited, math.inf)

    def receive_results(self, source: int, results: Buffer) -> None:
        """See `PoolActor`; drop late results of a map."""
        epoch, done, frames = read_results(results)
        if epoch == NO_MAP:
            frame, *last = frames
            done = done._replace(sent_bytes=results.nbytes)
            self._answers.append((source, done, frame.seconds, pickle.loads(frame.data), not last))

    def _receive_own(self, ran: Ran, more: bool) -> None:
        """Accept the results of a batch from the root's thread; `more` of it follow."""
        with self.changed:
            done, own_s = RankTasks(ran.n, ran.wall_s, ran.work_s), ran.work_s + ran.stopped_s
            self._answers.append((self.ranks.root, done, own_s, ran.values, more))
            self.notify()

    @property
    def wake_at(self) -> float:
        """See `PoolActor`."""
        return self._scheduler.wake_at

    @property
    def job(self) -> Resolve | Quiet | None:
        """Resolve futures; or wait for other threads, and for ranks whose results can't arrive soon."""
        with self.changed:
            if self._unresolved:
                return self._unresolved[0]
            if self.over or self.news or self._answers:
                return None
            next_s = self._scheduler.seconds_to_next()
            if next_s is None:
                longest_s = IDLE_S
            elif (longest_s := min(IDLE_S, POLL * next_s)) <= longest_nap_s():
                return None
            return Quiet(max(0.0, min(longest_s, self._scheduler.wake_at - time.perf_counter())))

    def done(self, job: Resolve | Quiet, _result: None) -> list[PoolSend]:
        """See `PoolActor`."""
        if isinstance(job, Resolve):
            with self.changed:
                self._unresolved.popleft()
                self.news = True
        return []

    def run(self, job: Resolve | Quiet) -> None:
        """Give futures their results; or wait for another thread, for a while: then another rank may have failed."""
        if isinstance(job, Resolve):
            resolve(job, self.of(job.batch))
            return
        if self.ranks.record is not OFF:
            self.ranks.record.enter(Phase.OUTSIDE, time.perf_counter())
        with self.changed:
            self.changed.wait_for(lambda: self.news, job.longest_s)
        self.ranks.presence.raise_failure()

    def idle(self) -> bool:
        """See `Port`."""
        return not self.news and super().idle()

    def post(self, sends: list[PoolSend]) -> None:
        """See `Port`; then the root's own tasks begin."""
        super().post(sends)
        self._begin_own()

    def _begin_own(self) -> None:
        """Let the root's thread run its batches, after the orders of other ranks have left: it takes Python's lock."""
        while self._mine:
            self._own.put(self._mine.popleft())

    def notify(self) -> None:
        """Wake all threads that wait for a change."""
        self.news = True
        self.changed.notify_all()

    def of(self, batch: Batch) -> Submissions:
        """Return the executor of a batch."""
        return self._open[batch.queue]

    def _finish(self, rank: int, done: RankTasks, own_s: float, outcomes: list[Outcome], more: bool) -> None:
        """Note the results of the oldest batch of a rank; `more` of it follow."""
        (failed, data), lost = outcomes[0], list[Task]()
        batch = self._scheduler.finish(rank, done.tasks, own_s, failed=failed, more=more)
        given = self.of(batch)
        if batch.kind == BatchKind.TASKS:
            given.count(rank, done)
        elif batch.kind in UPKEEP and failed and given.broken is None:
            failure: TaskFailure = pickle.loads(data)
            given.fails(f"{UPKEEP[batch.kind]} of lb_mpi.Executor has failed on rank {rank}: {failure.text}")
            lost = self._scheduler.break_(batch.queue)
        elif batch.kind == BatchKind.STORE and not failed:
            given.arrays.put(batch.keys[0], given.queue.hosts[rank], pickle.loads(data))
        self._unresolved.append(Resolve(rank, batch, outcomes, lost))

    def _end_executors(self) -> None:
        """End the executors that have no task left; note when there are none, or when a map wants the ranks."""
        for given in self._open.values():
            if given.queue.freed:
                given.arrays.forget(given.queue.freed)
                given.queue.freed.clear()
        if self._unresolved:
            return
        if self._wanted:
            for given in self._open.values():
                if given.gives_way and given.queue.is_idle:
                    given.arrays.end()
                    given.queue.free()
        for queue in self._scheduler.ended:
            self._open.pop(queue).arrays.close()
            self.notify()
        self._scheduler.ended.clear()
        idle = all(given.gives_way and given.queue.is_idle for given in self._open.values())
        if not self._open or (self._wanted and idle):
            self.over = True
            self.notify()

    def _break_all(self, error: BaseException) -> None:
        """Let all futures whose results have not arrived raise this error of the dispatcher."""
        lost = list[tuple[Submissions, list[Resolve], list[Task]]]()
        with self.changed:
            self.over = True
            for queue, given in self._open.items():
                given.fails(f"lb_mpi.Executor has ended: {str(error) or type(error).__name__}", error)
                unresolved = [one for one in self._unresolved if one.batch.queue is queue]
                tasks = [task for one in unresolved for task in (*one.batch.tasks, *one.lost)]
                lost.append((given, unresolved, tasks + self._scheduler.break_(queue)))
            self.notify()
        for given, unresolved, tasks in lost:
            for one in unresolved:
                with contextlib.suppress(BaseException):  # which may be the error itself
                    resolve(one, given)
            _fail(given, tasks)


class OwnTasks:
    """The thread that runs the root's own tasks; `receive(ran, more)` gets results, `stop(error)` its own error."""

    def __init__(
        self,
        ranks: PoolRanks,
        receive: Callable[[Ran, bool], None],
        stop: Callable[[BaseException], None],
    ) -> None:
        self._ranks, self._receive, self._stop = ranks, receive, stop
        self._batches: SimpleQueue[TaskBatch | None] = SimpleQueue()  # None: the thread ends
        self.thread = threading.Thread(target=self._work, name="lb_mpi.Executor, tasks", daemon=True)

    def begin(self) -> None:
        """Begin, unless it has begun."""
        if not self.thread.ident:
            self.thread.start()

    def put(self, batch: TaskBatch) -> None:
        """Run a batch when those before are done."""
        self._batches.put(batch)

    def end(self, wait_s: float | None) -> None:
        """End when all batches are done; wait for so long (None: as long as it takes)."""
        self._batches.put(None)
        if self.thread.ident:
            self.thread.join(wait_s)
            if self.thread.is_alive():
                _late.append(self.thread)

    def _work(self) -> None:
        record, records = self._ranks.record, self._ranks.record is not OFF
        try:
            while (batch := self._batches.get()) is not None:
                while batch is not None:
                    if records:
                        record.pin(Phase.OWN, time.perf_counter())
                    ran = run_submitted(self._ranks, batch)
                    if records:
                        record.release(Phase.PROTOCOL, time.perf_counter())
                    batch = rest_of(batch, ran)
                    self._receive(ran, batch is not None)
                    del ran
        except BaseException as error:
            self._stop(error)
        self._ranks.clocks.end()  # they were this thread's


# --- futures ----------------------------------------------------------------------------------------------------------


def resolve(job: Resolve, given: Submissions) -> None:
    """Give futures the results of a batch; after the failure of upkeep, all of its executor get that error."""
    if job.batch.kind == BatchKind.TASKS:
        for task, outcome in zip(job.batch.tasks, job.outcomes, strict=False):
            _resolve(task.payload.future, *outcome)
    elif job.batch.kind == BatchKind.INITIALIZE:
        _resolve(given.initial[job.rank], *job.outcomes[0])
    failed, data = job.outcomes[0]
    if job.lost or (job.batch.kind in UPKEEP and failed):
        assert given.broken is not None
        if given.broken.__cause__ is None:
            given.broken.__cause__ = _error(data)
            logging.getLogger("concurrent.futures").critical(str(given.broken))
        _fail(given, job.lost)


def _resolve(future: Future[Any], failed: bool, data: bytes) -> None:
    try:
        value = _error(data) if failed else pickle.loads(data)
    except BaseException as error:  # the user's classes may raise anything; Ctrl-C is the main thread's
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


def _fail(given: Submissions, tasks: Iterable[Task]) -> None:
    """Let the futures of these tasks, and those of initializers, raise the error of their broken executor."""
    futures = [task.payload.future for task in tasks]
    for future in [*futures, *given.initial.values()]:
        with contextlib.suppress(InvalidStateError):  # done meanwhile
            if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
                future.set_exception(given.broken)


# --- the end ----------------------------------------------------------------------------------------------------------

dispatchers: list[Dispatcher] = []  # that run
_late: list[threading.Thread] = []  # in tasks that go on after a failure or Ctrl-C


def _end_executors() -> None:
    for one in [*dispatchers]:
        one.end()
        if one.failure is not None:  # nobody is there to raise it
            write_error(f"lb_mpi.Executor: {cause(one.failure)}\n")


ending.append(_end_executors)


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
        print(end="", flush=True)
        write_error("")
        MPI.COMM_WORLD.Abort(INTERRUPTED)


def dispatcher_of(ranks: PoolRanks, given: Submissions) -> Dispatcher:
    """Return the dispatcher of these ranks, with this executor among those that it serves."""
    while True:
        with ranks.claimed(Wish.TASKS), in_call(""):  # with Ctrl-C held back, so that what is noted also runs
            found = ranks.operation
            if isinstance(found, Dispatcher):
                if found.add(given):
                    return found
                if found.state is not PoolState.ENDING:  # a callback of its last task
                    raise Error(REASONS[found.state])
            else:
                check_level(ranks.presence.comm)
                one = Dispatcher(ranks, closes=not (ranks.shared or given.gives_way))
                ranks.begin(one)
                dispatchers.append(one)
                one.add(given)
                one.thread.start()
                return one


def check_level(comm: MPI.Intracomm) -> None:
    """Raise an error if MPI allows only the main thread to call it."""
    several = any(one.ranks.presence.comm != comm for one in [*dispatchers])
    needed = MPI.THREAD_MULTIPLE if several else MPI.THREAD_SERIALIZED
    need_level(needed, "lb_mpi.Executor calls it from a thread" + ", one for each communicator" * several)
