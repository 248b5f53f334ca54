"""lb_mpi.Pool: independent tasks on all ranks of a communicator, the root among them.

This is the user's side.  `lb_mpi.mpi.pool.maps` has a map from its beginning to its end, `lb_mpi.pooling.stealer` decides
which rank runs which tasks, and `lb_mpi.mpi.pool.executor` runs the asynchronous ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.metrics import check_speeds
from lb_mpi.mpi.common.calls import at_work, in_task, interrupts
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.communicator import closed, need_mpi
from lb_mpi.mpi.common.failure import describe, hint
from lb_mpi.mpi.pool.arguments import CheckedOptions, MapOptions, check_items, check_options, reads_lazily
from lb_mpi.mpi.pool.executor import Executor, initialize
from lb_mpi.mpi.pool.maps import PoolMaps, RootMap, RootTasks
from lb_mpi.mpi.pool.member import Worker, serve
from lb_mpi.mpi.pool.ranks import MAP
from lb_mpi.mpi.pool.running import run_chunk
from lb_mpi.mpi.pool.script import open_ranks
from lb_mpi.mpi.pool.streams import RootStream
from lb_mpi.mpi.pool.within import PoolWithinTask
from lb_mpi.pooling.beginning import Act, Wish, act
from lb_mpi.record.report import Report

if TYPE_CHECKING:
    from multiprocessing.pool import AsyncResult

T = TypeVar("T")
Callback = Callable[[Any], object]


class Pool:
    """A pool runs independent tasks on all ranks of `comm`, including the root; fast ranks run more of them.

        with lb_mpi.Pool(comm) as pool:          # all ranks call its methods
            results = pool.map(f, items)         # on the root, f(item) for each item; elsewhere None
        with lb_mpi.Pool(comm, root=0) as pool:  # the other ranks serve it, and get None
            if pool:
                results = pool.map(f, items)

    In the first mode every rank already has the function, so lambdas and large models need not be sent.  In the second
    mode the function is sent once, and again only when it has changed; each rank, the root too, runs tasks on its own
    copy of it, which they may change.  Each rank owns an interval of the tasks, in proportion to its speed; a rank that
    has finished its interval steals tasks from others (see `lb_mpi.pooling.stealer`).

    Parameters
    ----------
    comm : an mpi4py intracommunicator, which is duplicated; None: all ranks (COMM_WORLD).
    root : number of the rank that alone calls the methods; None: all ranks call all methods, and rank 0 gets the
        results.
    speeds : (P,) relative speeds of the P ranks, above 0, in any unit, the same on all ranks; None: as measured in the
        earlier maps of this pool, and before in those of other pools of `comm`.
    emulated_speed : makes this rank as slow as a machine of this relative speed, above 0 and at most 1 (see
        `lb_mpi.throttle`); may differ by rank.
    initializer : called as initializer(*initargs) on each rank, once for this pool, before it is returned.

    The methods of multiprocessing.Pool are there, too.  The asynchronous ones and `apply` need `root=`, or a script that
    `python -m lb_mpi pool` runs; their tasks run as those of an `lb_mpi.Executor`, and are completed before a map begins.

    Collective.  A pool must be closed on all ranks, by `close` or at the end of a `with` block.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        root: int | None = None,
        speeds: Sequence[float] | None = None,
        emulated_speed: float = 1.0,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
    ) -> None:
        def check(own: MPI.Intracomm) -> dict[str, Any]:
            checks.emulated_speed(emulated_speed)
            if isinstance(root, MPI.Comm):
                raise TypeError("root is a communicator: expected the number of a rank, as in Pool(comm, root=0)")
            if root is not None:
                checks.integer("root", root, least=0, most=own.size - 1)
            given = None if speeds is None else check_speeds(speeds, own.size).tolist()
            checks.function("initializer", initializer, optional=True)
            if initializer is not None:
                initializer(*initargs)
            return {"speeds": given}

        initargs = tuple(initargs)
        self._ranks = open_ranks(comm, root, check, name="lb_mpi.Pool", emulated_speed=emulated_speed)
        if self._ranks.shared and initializer is not None:
            initialize(self._ranks, initializer, initargs)
        calls = self._ranks.alone and self.is_root
        self._executor = Executor.of_pool(self._ranks) if calls else None  # of asynchronous tasks
        self._maps = PoolMaps(self._ranks, speeds)
        self._closed = False

    def __reduce__(self) -> Any:
        """Return what makes the stub that a task's function has in its place (`lb_mpi.mpi.pool.within`)."""
        return PoolWithinTask, ("Pool",)

    def __repr__(self) -> str:
        """Show this rank, and whether the pool is open."""
        state = "closed" if self._closed else "failed" if self._ranks.presence.failed else "open"
        return f"<lb_mpi.Pool: rank {self._ranks.rank} of {self.size}, {state}>"

    def __bool__(self) -> bool:
        """Return True where its methods may be called: on all ranks, or on the root of a pool that the others serve."""
        return self.is_root or not self._ranks.alone

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._ranks.size

    @property
    def is_root(self) -> bool:
        """True on the root."""
        return self._ranks.is_root

    def is_master(self) -> bool:
        """Return `is_root`; programs written for schwimmbad call it by this name."""
        return self.is_root

    @staticmethod
    def in_task() -> bool:
        """Return whether this thread runs a task, map_rows or a search, in which no pool or executor can be made."""
        return in_task()

    def report(self) -> Report | None:
        """Return a `Report` of the last map, which prints as a table; None on other ranks, and before a map has ended."""
        return self._maps.report

    def map(
        self,
        function: Callable[..., T],
        *items: Any,
        costs: ArrayLike | None = None,
        to: str = "root",
        chunksize: int | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
        return_exceptions: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        key: str | None = None,
        callback: Callable[[T], object] | None = None,
        retries: int = 0,
        retry_pause: float = 0.0,
        timeout: float | None = None,
    ) -> list[T] | None:
        """Return a list of function(item) for each of the root's items, in their order, on the root; elsewhere None.

        Several iterables work as in the builtin `map`: the results are function(a, b, ...) for the items at the same
        position of each iterable, up to the end of the shortest.

        Parameters
        ----------
        function : called with one item, which it must not change; on every rank, its arrays have the same order in memory
            (but those that were read-only may be writeable).
            Its results are pickled before its next call, so it may return the same work array each time.
        items : an array, whose rows are the items; a range, or an integer n for range(n); or any iterable.  Only the
            root's items are used.
        costs : (n,) expected cost of each of the n items, finite and >= 0, in any unit; the most expensive items are
            begun first.  None: unknown; but a map of the same items as the last one of this function, or of as many
            if that one cost what the one before did, is ordered by the seconds measured there.
        to : "root", or "all" to return the results on every rank (only in a pool whose methods all ranks call).
        chunksize : number of items, >= 1, that a rank runs between two polls for messages; None: as many as it runs in 1
            to 8 ms, at least one.
        progress : a function that the root calls as progress(tasks done, all tasks) when tasks have been done, at most four
            times a second, and at the end; True: shows the progress in a line on stderr.
        return_exceptions : True: an exception that a task raises is its result; a checkpoint does not contain it, so a
            later run tries that task again.
        retries : number of times, >= 0, that a task is tried again when it has raised an exception, on the same rank.
        retry_pause : seconds, >= 0, that the rank waits before each retry.
        timeout : seconds, > 0, after which TimeoutError is raised in a task (and in each of its retries), by an alarm
            signal; None: no limit.  Only Python code can be interrupted: C code that does not return to Python goes on.
        checkpoint : name of a file, on the root, that keeps the results of finished tasks; the root writes them between
            two tasks of its own.  A later map of the same function and items, on any number of ranks, runs only the
            other tasks.  Results must be numbers, text, bytes, arrays, or tuples, lists and dicts of these.  A full disk
            ends the map with an OSError; if the file is removed, a RuntimeWarning names it.
        key : a text that identifies the function in its checkpoint; None: its module (of a script, its file's name
            without the folder) and its name, so its body may be corrected: delete the file if that changes results.  A
            lambda, or a function defined in a function, needs a key; choose another one when its results change.
        callback : a function that the root calls as callback(result) as results arrive; not of results from the checkpoint.

        Raises lb_mpi.TaskError when a task raises an exception.  The error has the index of the task, the rank and the
        remote traceback; its cause is the exception itself.  Tasks not yet begun are dropped (with a checkpoint, those that
        run are awaited, and their results kept), and the pool can still be used.  In a pool whose methods all ranks call,
        every rank raises the error; but a rank whose own task raised what is no Exception, such as SystemExit or
        KeyboardInterrupt, raises that.
        """
        options = MapOptions(
            costs=costs, to=to, chunksize=chunksize, progress=progress, return_exceptions=return_exceptions,
            checkpoint=checkpoint, key=key, callback=callback, retries=retries, retry_pause=retry_pause,
            timeout=timeout,
        )  # fmt: skip
        return self._collect(function, items, options, star=len(items) > 1)

    def starmap(
        self, function: Callable[..., T], items: Any = None, **options: Unpack[MapOptions]
    ) -> list[T] | None:
        """Return a list of function(*item) for each of the root's items; see `map` for the other arguments."""
        return self._collect(function, (items,), options, star=True)

    def imap_indexed(
        self, function: Callable[..., T], *items: Any, **options: Unpack[MapOptions]
    ) -> Iterator[tuple[int, T]]:
        """Yield (index of the item, function(item)) on the root as results arrive; nothing on the other ranks.

        The other arguments are those of `map`, except `to`.  The root itself works on tasks only while it waits for the
        next result; those of other ranks wait for the end of its own task: if tasks are long and results are needed at once,
        `Executor(root_works=False).map(..., unordered=True)` keeps the root free.  Leaving the loop early drops the tasks
        not yet begun.  Where only the root calls methods, another one may be called in the loop.

        Items of a list, a range or an array are sent at once, and all tasks may begin; results not yet yielded are kept on
        the ranks that computed them, up to 64 MiB per rank.  Another method first completes this map.

        Items of an iterator, such as a generator, are read as tasks begin, so there may be any number of them.  A rank gets
        them in batches of about 10 ms, and one batch ahead.  Costs, a checkpoint and a progress need all items, which are
        then read first.  While another method is called in the loop, this map pauses.

        buffersize : number of items, >= 1, that are read and whose results are not yet yielded, at most, as in
            `concurrent.futures.Executor.map`; None: 32 per rank, or more if tasks are short.  Any items are then read as
            tasks begin.  No argument of `map` and `starmap`.
        """
        return self._each(function, items, options, indexed=True, ordered=False)

    def imap_unordered(
        self, function: Callable[..., T], *items: Any, **options: Unpack[MapOptions]
    ) -> Iterator[T]:
        """Yield function(item) on the root as results arrive; see `imap_indexed`."""
        return self._each(function, items, options, indexed=False, ordered=False)

    def imap(
        self, function: Callable[..., T], *items: Any, **options: Unpack[MapOptions]
    ) -> Iterator[T]:
        """Yield function(item) on the root, in the order of the items; see `imap_indexed`."""
        return self._each(function, items, options, indexed=False, ordered=True)

    def apply(self, function: Callable[..., T], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> T:
        """Return function(*args, **kwds), computed on some rank."""
        result: T = self.apply_async(function, args, kwds).get()
        return result

    def apply_async(
        self,
        function: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult[Any]:
        """Begin function(*args, **kwds) on some rank, and return its multiprocessing.pool.AsyncResult.

        callback, error_callback : called with the result, or with the exception, in a thread.
        """
        from multiprocessing.pool import AsyncResult  # few programs need it, and it takes milliseconds

        result: Any = AsyncResult(_no_pool(), callback, error_callback)
        return _setting(result, [self._submitter().submit(function, *args, **(kwds or {}))])

    def map_async(
        self,
        function: Callable[..., Any],
        items: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult[Any]:
        """Begin function(item) for all items, and return the multiprocessing.pool.AsyncResult of their list.

        chunksize : number of items in a task, >= 1; None: about 16 tasks per rank.
        callback, error_callback : called with the list, or with the first exception, in a thread.
        """
        return self.starmap_async(function, zip(items), chunksize, callback, error_callback)

    def starmap_async(
        self,
        function: Callable[..., Any],
        items: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult[Any]:
        """Begin function(*item) for all items; see `map_async`."""
        from multiprocessing.pool import MapResult

        if chunksize is not None:
            chunksize = checks.integer("chunksize", chunksize, least=1)
        executor, given = self._submitter(), list(items)
        size = chunksize or max(1, len(given) // (16 * self.size))
        result: Any = MapResult(_no_pool(), size if given else 0, len(given), callback, error_callback)
        chunks = (given[lo : lo + size] for lo in range(0, len(given), size))
        return _setting(result, [executor.submit(run_chunk, function, chunk) for chunk in chunks])

    def _submitter(self) -> Executor:
        self._check_open()
        if self._executor is None:
            raise Error("asynchronous tasks: expected a pool made with root=, or a script run by python -m lb_mpi pool")
        return self._executor

    def wait(self) -> None:
        """Serve the root of a pool made with `root=` until the root closes it on all ranks; on the root, do nothing."""
        if self._closed:
            raise closed("pool")
        self._ranks.presence.check()
        if not self._ranks.alone:
            self._ranks.agree("wait", _no_wait)
        if self.is_root:
            self._ranks.bind_others()
            return
        try:
            serve(self._ranks)
        finally:
            self._free()

    def close(self) -> None:
        """Wait for all tasks, and close the pool; collective.  On ranks that serve, do so until the root closes it.

        Further calls do nothing.

        Raises lb_mpi.Error in a task or callback of this pool, which must end before.  In a script that
        `python -m lb_mpi pool` runs, a callback of an asynchronous task may close it; `join` then waits for the others.
        """
        if self._closed:
            return
        try:
            need_mpi("lb_mpi.Pool")
        except Error:
            self._closed = True
            raise
        ranks = self._ranks
        if ranks.alone and not self.is_root and not ranks.presence.failed:
            self.wait()
            return
        mine = not ranks.shared or ranks.operation is self._maps.current
        if mine and act(ranks.state, Wish.CLOSE) is Act.REFUSE:
            raise Error("close() in a task or callback of the pool: expected a call after it")
        with in_call("", last=True) as interrupts:
            try:
                if self._executor is not None:
                    with interrupts:
                        self._executor.shutdown()
                if self._maps.current is not None:
                    self._maps.current.end(dropped=True)  # nobody has asked for all results
                if not ranks.presence.failed and not ranks.alone:
                    ranks.agree("close", lambda: None)
            except BaseException as error:
                if not ranks.shared:  # the other ranks can't know that this one has closed it
                    ranks.presence.send_failure(error, alone=True)
                raise
            finally:
                self._free()

    shutdown = close

    def terminate(self) -> None:
        """Close the pool, as `close` does, and drop asynchronous tasks not yet begun."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self.close()

    def join(self) -> None:
        """Wait for all tasks, if `close` was called in a callback; ValueError before `close` or `terminate`."""
        if not self._closed:
            raise ValueError("join() of an open pool: expected close() or terminate() before")
        if self._executor is not None:
            self._executor.shutdown()

    def __enter__(self) -> Self | Any:  # Any: None, which users need not check for where all ranks call
        """Return the pool; on ranks that serve, serve until the root closes it, then return None."""
        if self._ranks.alone:
            self.wait()
        if self._ranks.alone and not self.is_root:
            root = self._ranks.root
            hint(Pool, f"this rank has worked for the pool; put `if pool:` before what only rank {root} does")
            return None
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the pool; after an exception, tell the other ranks, which may be waiting for this one."""
        others = not (self.is_root or self._ranks.alone)
        if others and isinstance(error, AttributeError | TypeError) and "NoneType" in describe(error):
            error.add_note("On this rank `map` returns None; put `if pool.is_root:` before what uses its results.")
        with in_call("", last=True) as interrupts:
            try:
                if error is not None and not self._closed:
                    self._ranks.left(error)
                if self._executor is not None:
                    with interrupts:
                        self._executor.__exit__(kind, error, trace)
            finally:
                with nullcontext() if error is None else suppress(Error):  # another rank may have failed for the same reason
                    self.close()

    def _each(
        self, function: Callable[..., Any], items: tuple[Any, ...], options: MapOptions, *, indexed: bool, ordered: bool
    ) -> Iterator[Any]:
        if options.get("to", "root") != "root":
            raise ValueError(f"to = {show(options['to'])}: expected 'root', since results come one by one")
        with self._begun(function, items, options, star=len(items) > 1, lazy=True) as begun:
            return begun.each(indexed=indexed, ordered=ordered)

    def _collect(
        self, function: Callable[..., Any], items: tuple[Any, ...], options: MapOptions, *, star: bool
    ) -> list[Any] | None:
        with self._begun(function, items, options, star=star) as begun:
            assert isinstance(begun, RootMap | Worker)  # a stream is not collected
            return begun.collect()

    @contextmanager
    def _begun(
        self, function: Callable[..., Any], items: tuple[Any, ...], options: MapOptions, *, star: bool, lazy: bool = False
    ) -> Iterator[RootTasks | Worker]:
        """Begin a map on all ranks, for a block with Ctrl-C held back; if an argument is wrong on any, all that call raise.

        `lazy`: results are yielded one by one, so items may be read while tasks run.
        """
        ranks, opened = self._ranks, ExitStack()  # closed if not all ranks begin the map

        def check() -> tuple[CheckedOptions, Any]:
            checked = check_options(function, options, star=star, lazy=lazy, alone=ranks.alone)
            if not ranks.is_root or (lazy and reads_lazily(items, checked)):
                return checked, None
            return checked, check_items(items, ordered=checked.checkpoint is not None)

        def plan(checked: CheckedOptions, given: Any) -> RootTasks | None:
            if not ranks.is_root:
                return None
            with interrupts():  # items, and what they are compared with, may have the user's code
                lazily = given is None
                return RootStream(self._maps, items, checked) if lazily else RootMap(self._maps, given, checked, opened)

        def plan_together() -> RootTasks | None:
            with interrupts(), at_work(ranks.presence.comm, "in the items of a map"):
                found = check()
            return plan(*found)

        self._check_open()
        before = check() if ranks.alone else None  # its items may use the pool, and wait for other threads that do
        with ranks.claimed(Wish.MAP), in_call(""):
            self._check_open()  # another thread may have closed it
            with opened:
                if before is not None:
                    planned, before = plan(*before), None  # what is sent is not kept here, too
                else:
                    with in_call(MAP, watched=True):
                        planned = ranks.agree("map", plan_together)
                if planned is not None:
                    planned.begin_all()
                opened.pop_all()
            if planned is not None:
                yield planned
                return
            worker = Worker(ranks)
            with ranks.presence.notifying():
                worker.carry(MAP)
                worker.begin_map(function)
            yield worker

    def _check_open(self) -> None:
        if self._closed:
            raise closed("pool")
        if self._ranks.alone and not self.is_root:
            raise Error("this rank runs tasks of the pool: expected a call on its root")

    def _free(self) -> None:
        self._closed = True
        if not self._ranks.shared:
            self._ranks.close()


def _no_pool() -> Any:
    """Return what multiprocessing's results need of their pool."""
    return SimpleNamespace(_cache={})


def _setting(result: Any, futures: list[Future[Any]]) -> AsyncResult[Any]:
    """Return a result of multiprocessing, which is set by these futures: one for each chunk of a map, in order."""
    lock = threading.Lock()

    def done(k: int, future: Future[Any]) -> None:
        try:
            outcome: tuple[bool, Any] = True, future.result()
        except BaseException as error:
            outcome = False, error
        try:
            with lock:
                result._set(k, outcome)
        except BaseException:  # a callback has raised
            result._event.set()
            raise

    for k, future in enumerate(futures):
        future.add_done_callback(partial(done, k))
    return result  # type: ignore[no-any-return]


def _no_wait() -> NoReturn:
    raise Error("wait: expected a pool made with root=")
