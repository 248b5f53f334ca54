"""lb_mpi.Executor: the executor of `concurrent.futures`, whose tasks run on all ranks.

This is the user's side, in any thread of the root.  `lb_mpi.mpi.pool.dispatcher` sends tasks to ranks and gives futures
their results, `lb_mpi.pooling.scheduler` decides which rank gets which tasks.  The other ranks serve, as in a pool with
`root=`.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.files import warn
from lb_mpi.mpi.common.failure import hint
from lb_mpi.mpi.pool.arguments import check_costs, name_of
from lb_mpi.mpi.pool.dispatcher import Dispatcher, Submission, Submissions, TaskFuture, check_level, dispatcher_of
from lb_mpi.mpi.pool.member import serve
from lb_mpi.mpi.pool.messages import LARGE, dumps, n_bytes_of
from lb_mpi.mpi.pool.ranks import PoolRanks
from lb_mpi.mpi.pool.running import run_chunk, run_initializer, run_kept
from lb_mpi.mpi.pool.script import open_ranks
from lb_mpi.mpi.pool.within import PoolWithinTask
from lb_mpi.pooling.account import report
from lb_mpi.pooling.scheduler import Task
from lb_mpi.record.report import Report

P = ParamSpec("P")
T = TypeVar("T")
OFTEN = (
    "function = {}: its {:.1f} MB have been sent with three tasks; expected what changes as an argument, and large data in "
    "numpy arrays, which are sent once to each host while they stay as they are, or loaded on each rank (initializer=)"
)
LEAST_COST = 0.01  # of a task, in average ones: what is expected to cost nothing does cost something


class Executor(MPIPoolExecutor):
    """Run tasks on all ranks of `comm`, through the interface of `concurrent.futures`.

    In a script that `python -m lb_mpi pool` starts, rank 0 alone runs the script, and each executor uses all ranks:

        with lb_mpi.Executor() as executor:
            results = list(executor.map(f, items))

    In any other program all ranks create the executor; ranks other than 0 serve it in the `with` statement, and get None:

        with lb_mpi.Executor(comm) as executor:
            if executor is not None:
                results = list(executor.map(f, items))

    `map` and `starmap` have the arguments of mpi4py's MPIPoolExecutor, and `costs`.  Futures
    are those of `concurrent.futures`, so `wait`, `as_completed` and asyncio work with them.  An exception raised by a task
    (except Ctrl-C) is the exception of its future; its cause is a `TaskError` with the rank and the traceback.
    Functions, arguments and results are pickled, even for rank 0's own tasks: a task has them as they were when it was
    submitted, and does not change the program's own.  Numpy arrays of at least 1 MiB in them, also those of a method's
    object, are sent once to each host, and again when they have changed.

    Parameters
    ----------
    comm : an mpi4py intracommunicator, duplicated; None: all ranks.
    max_workers : number of ranks to use, at least 1; None: all.
    initializer : called as initializer(*initargs), once on each rank before its first task; if it raises, all futures that
        are not done raise BrokenExecutor, and so does `submit`.
    root_works : False: rank 0 runs no tasks, unless it is the only rank.  Its tasks run in a thread, beside the script; one
        that holds Python's lock for long, as some compiled code does, delays the results of all ranks.

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
        """Create the executor; collective, except in a script that rank 0 runs alone."""

        def check(own: MPI.Intracomm) -> dict[str, Any]:
            if max_workers is not None and checks.integer("max_workers", max_workers) < 1:
                raise ValueError(f"max_workers must be greater than 0, not {show(max_workers)}")
            checks.function("initializer", initializer, optional=True)
            if own.rank == 0:
                check_level(own)
                if initializer is not None:
                    begin = run_initializer, (initializer, tuple(initargs)), dict[str, Any]()
                    initializers.append(dumps(begin, "initializer", initializer))
            return {}

        initializers = list[bytes]()  # at most one, on rank 0
        self._ranks = open_ranks(comm, 0, check, name="lb_mpi.Executor")
        size = self._ranks.size
        numbers = [*range(1, size), *([0] if root_works or size == 1 else [])]
        self._work = Submissions(self._ranks, numbers[:max_workers], *initializers, gives_way=False)
        self._dispatcher: Dispatcher | None = None
        if self._ranks.is_root:
            self._dispatcher = dispatcher_of(self._ranks, self._work)
            weakref.finalize(self, self._dispatcher.close, self._work).atexit = False

    @classmethod
    def of_pool(cls, ranks: PoolRanks) -> Executor:
        """Make the executor of a pool's asynchronous tasks; it uses the ranks from its first task on, until a map begins."""
        new = cls.__new__(cls)
        new._ranks = ranks
        new._work = Submissions(ranks, [*range(1, ranks.size), 0], gives_way=True)
        new._dispatcher = None
        return new

    run_kept = staticmethod(run_kept)  # for several calls in one task, one of which may change the results of others

    @staticmethod
    def n_ranks() -> int:
        """Return the number of ranks that an executor uses by default."""
        return MPI.COMM_WORLD.size

    def __reduce__(self) -> Any:
        """Return what makes the stub that a task's function has in its place (`lb_mpi.mpi.pool.within`)."""
        return PoolWithinTask, ("Executor",)

    def __repr__(self) -> str:
        """Show this rank, and whether the executor is open."""
        state = "broken" if self._work.broken is not None else "open" if self._work.queue.open else "shut down"
        return f"<lb_mpi.Executor: rank {self._ranks.rank} of {self._ranks.size}, {state}>"

    def __bool__(self) -> bool:
        """Return True on the root, where its methods may be called."""
        return self._ranks.is_root

    @property
    def num_workers(self) -> int:
        """Number of ranks that run tasks; 0 after a shutdown or a failure."""
        return len(self._work.queue.ranks) if self._work.queue.open and self._work.broken is None else 0

    @property
    def _pool(self) -> Any:  # adaptive reads its size, and that of any MPIPoolExecutor
        return SimpleNamespace(size=self.num_workers)

    @property
    def _broken(self) -> str | None:
        return None if self._work.broken is None else str(self._work.broken)

    def report(self) -> Report:
        """Return a report of the tasks that have ended so far, also after a shutdown (see `Pool.report`)."""
        work = self._work
        speeds = [s if rank in work.queue.ranks else 0.0 for rank, s in enumerate(self._ranks.emulated_speeds)]
        ran = [*work.ran]
        return report(sum(rank.tasks for rank in ran), work.ended - work.began, ran, speeds)

    def bootup(self, wait: bool = True) -> Executor:
        """Start the initializer on all ranks now, and return the executor; `wait`: after all ranks have run it."""
        self._check("boot up")
        assert self._dispatcher is not None
        self._dispatcher.initialize(self._work)
        if wait:
            concurrent.futures.wait(self._work.initial.values())
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
        self._work.arrays.end_call()

    def _submit(self, fn: Any, call: tuple[Any, ...], least_bytes: int | None = None, cost: float = 1.0) -> Future[Any]:
        self._check("schedule new futures")
        future: Future[Any] = TaskFuture()
        arrays = self._work.arrays
        try:
            data, keys = arrays.dumps(call, fn, least_bytes)
        except (TypeError, pickle.PicklingError) as error:
            cause = error if error.__cause__ is None else error.__cause__
            with suppress(Exception):  # the user's class may allow no attributes
                cause.add_note(str(error))
            future.set_exception(cause)
            return future
        if least_bytes is None and len(data) >= LARGE:
            self._warn_of_size(fn)
        if keys:
            future.add_done_callback(lambda _: arrays.done(keys))
        task = Task(Submission(future, data), len(data), cost, keys, name_of(fn, *call[1]))
        while self._dispatcher is None or not self._dispatcher.put(self._work, task):
            self._check("schedule new futures")
            self._dispatcher = dispatcher_of(self._ranks, self._work)  # since a map has ended the last one
        return future

    def _warn_of_size(self, fn: Any) -> None:
        """Warn if a function is large, and has now been sent with three tasks."""
        functions, name = self._ranks.functions, name_of(fn)
        if functions.may_be_often(name) and functions.is_often(name, n_bytes := n_bytes_of(fn)):
            warn(OFTEN.format(show(fn), 1e-6 * n_bytes))

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
        costs: Any = None,
    ) -> Iterator[T]:
        """Return an iterator of fn(*args) for the items at the same position of each iterable; see `starmap`."""
        calls = zip(*iterables, strict=False)
        return self.starmap(fn, calls, timeout, chunksize, buffersize, unordered, costs)

    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
        costs: Any = None,
    ) -> Iterator[T]:
        """Return an iterator of fn(*args) for each args of `iterable`; an exception is raised where its result would be.

        timeout : seconds from this call on, after which the iterator raises TimeoutError; None: no limit.
        chunksize : number of calls in a task, >= 1.
        buffersize : number of tasks whose results are not yet yielded, at most, >= 1; None: all tasks are submitted at once.
        unordered : yield results as they arrive; without `buffersize`.
        costs : (n,) expected cost of each of the n calls, finite and >= 0, in any unit: the most expensive ones are begun
            first.  Without `buffersize`, and with a chunksize of 1.  None: unknown.
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
        if costs is not None:
            if chunksize != 1 or buffersize is not None:
                raise ValueError("costs of single calls: expected chunksize = 1, and no buffersize")
            return self._largest_first(fn, [*iterable], costs, until, unordered)
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
        keeps = weakref.ref(self) if buffersize is None else lambda: self  # which submits the others
        return _resolved(keeps, fn, futures, calls, until, unordered)

    def _largest_first(
        self, fn: Callable[..., Any], calls: list[Iterable[Any]], costs: Any, until: float | None, unordered: bool
    ) -> Iterator[Any]:
        """Submit fn(*args) for all calls, the most expensive first; return an iterator of the results in their order."""
        expected = check_costs(costs, len(calls))
        assert expected is not None
        mean = float(expected.mean()) if expected.any() else 1.0
        futures: list[Future[Any]] = [Future()] * len(calls)
        for k in np.argsort(-expected, kind="stable").tolist():
            args = tuple(calls[k])
            futures[k] = self._submit(fn, (fn, args, {}), cost=max(LEAST_COST, float(expected[k]) / mean))
        return _resolved(weakref.ref(self), fn, deque(futures), iter(()), until, unordered)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks; `wait`: return when all are done.  A second call only waits.

        cancel_futures : cancel the tasks not yet sent to a rank.
        """
        if not self._ranks.is_root:
            if self._work.queue.open:
                self._work.queue.open = False
                try:
                    serve(self._ranks)
                finally:
                    self._ranks.close()
            return
        if self._dispatcher is None:
            self._work.queue.open = False
            return
        self._dispatcher.close(self._work, cancel=cancel_futures)
        if wait:
            self._dispatcher.wait(self._work)

    def __enter__(self) -> Self | Any:  # Any: None, which users need not check for in a script of rank 0 alone
        """Return the executor; on ranks that serve, serve until rank 0 shuts it down, then return None."""
        if self:
            self._ranks.bind_others()
            return self
        self.shutdown()
        hint(Executor, "this rank has worked for the executor; put `if executor:` before what only rank 0 does")
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Shut the executor down; at once after Ctrl-C."""
        if not self._ranks.is_root:
            return
        if isinstance(error, KeyboardInterrupt) and self._dispatcher is not None:
            self._dispatcher.interrupt()
        if error is not None:
            self._ranks.left(error)
        self.shutdown()

    def _check(self, what: str) -> None:
        if not self._ranks.is_root:
            raise Error("this rank runs tasks of the executor: expected a call on rank 0")
        if self._work.broken is not None:
            raise BrokenExecutor(str(self._work.broken)) from self._work.broken.__cause__
        if not self._work.queue.open:
            raise RuntimeError(f"cannot {what} after shutdown")


# --- for lb_mpi.Pool -------------------------------------------------------------------------------------------------


def initialize(ranks: PoolRanks, initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> None:
    """Call initializer(*initargs) on all ranks of a script but the root; lb_mpi.Error if it raises."""
    if ranks.size > 1:
        with Executor(initializer=initializer, initargs=initargs, root_works=False) as executor:
            executor.bootup()
        if (broken := executor._work.broken) is not None:  # known at the end: the futures are done a moment before
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

    It keeps the executor only if there are more calls, so that a program may drop that.
    """

    def left_s() -> float | None:
        return None if until is None else until - time.monotonic()

    try:
        if unordered:
            for future in concurrent.futures.as_completed(set(futures), left_s()):
                futures.remove(future)
                results = [future.result()]
                del future  # which keeps its result
                yield results.pop()
        while futures:
            results = [futures[0].result(left_s())]
            futures.popleft()
            if (still := executor()) is not None and (args := next(more, None)) is not None:
                futures.append(still.submit(fn, *args))
            del still
            yield results.pop()  # no reference is kept while the caller has it
    finally:
        for future in futures:
            future.cancel()
