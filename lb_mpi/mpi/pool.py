"""lb_mpi.Pool: independent tasks on all ranks of a communicator, the root among them.

How tasks find their rank stands in `lb_mpi.pooling.worker`; here ranks come together, map by map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, TypeVar, Unpack

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.mpi import served
from lb_mpi.mpi.collective import agree, agree_on, closed, duplicate
from lb_mpi.mpi.crew import MAP, Crew
from lb_mpi.mpi.following import Followed, await_order, follow, keep_shared, serve
from lb_mpi.mpi.functions import dumps, pickled
from lb_mpi.mpi.handles import Handle, forget, keep
from lb_mpi.mpi.leading import Encoded, Job, Lead, Options, encode_job, make_job
from lb_mpi.mpi.ledger import PoolReport
from lb_mpi.mpi.meeting import Op, meet
from lb_mpi.mpi.pool_messages import Tag
from lb_mpi.mpi.shift import Call
from lb_mpi.mpi.submitting import Future, Submitting
from lb_mpi.pooling.deal import Speeds

T = TypeVar("T")


class Pool:
    """Independent tasks, run on all ranks of `comm`, the root among them; each rank takes what it can.

        with lb_mpi.Pool(comm) as pool:                 # all ranks call its methods
            results = pool.map(f, items)                # on the root: f(item) for each item, in order; elsewhere None
        with lb_mpi.Pool(comm, root=0) as pool:         # only the root goes on; the others serve, and get None
            if pool:
                results = pool.map(f, items)

    In the first way the function is at hand on each rank: lambdas, and models of any size, cost no byte.  In the second it
    is sent once, and again only when it has changed.  Every rank owns an interval of the tasks, by speed, and who has done
    its own steals from others (see `lb_mpi.pooling.worker`).

    Parameters
    ----------
    comm : an mpi4py intracommunicator, duplicated; None: all ranks.
    root : the rank that goes on alone; None: all ranks call all methods, and results come to rank 0.
    speeds : relative speeds of the ranks, above 0, the same on all; None: those that earlier maps have shown.
    emulated_speed : emulate a rank of this relative speed, above 0 and at most 1 (see `lb_mpi.throttle`); may differ by
        rank.

    Collective.  To be closed, on all ranks: `close`, or the end of a `with` block.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        root: int | None = None,
        speeds: Sequence[float] | None = None,
        emulated_speed: float = 1.0,
    ) -> None:
        self._owns = (crew := served.crew()) is None
        if crew is not None:
            self._crew, self._serves = crew, True
            given = served.check(crew, comm, root, speeds, emulated_speed)
        else:
            own = duplicate(MPI.COMM_WORLD if comm is None else comm)
            try:
                given = agree(own, lambda: served.check_pool(own.size, root, speeds, emulated_speed))
                agree_on(own, root=root, speeds=given)
            except BaseException:
                own.Free()
                raise
            self._crew, self._serves = Crew(own, root or 0, emulated_speed=emulated_speed), root is not None
        self._speeds = Speeds(self._crew.size, given)
        self._submitting = Submitting(self._crew)
        self._n_shared = 0
        self._lead: Lead | None = None  # the map that is under way, on the root
        self._busy = self._closed = False
        self.last: PoolReport | None = None  # on the root: what became of the last map

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._crew.size

    def is_master(self) -> bool:
        """True on the root."""
        return self._crew.rank == self._crew.root

    def map(
        self,
        function: Callable[[Any], T],
        items: Any = None,
        *,
        costs: Any = None,
        to: str = "root",
        chunksize: int | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
        return_exceptions: bool = False,
        log: Any = None,
    ) -> list[T] | None:
        """Return function(item) for each of the root's items, in their order, on the root; None on the other ranks.

        Parameters
        ----------
        function : called with one item; its results travel pickled.  It must not change its item.
        items : an array, whose rows are the items; an integer n or a range, for numbers; or any iterable.  Only the root's
            counts.
        costs : what each item costs, in any unit; the largest are begun first.
        to : "root", or "all": every rank returns the results (in a pool whose methods all ranks call).
        chunksize : items between two looks at messages; None: about half a millisecond's.
        progress : called on the root as progress(tasks done, tasks) four times a second; True: a line on stderr.
        return_exceptions : what a task raises is its result.
        log : the name of a file, on the root, which keeps the results of finished tasks: a later map of the same function
            and items, on any number of ranks, does only the others.  Results must be numbers, text, bytes, arrays, or
            tuples, lists and dicts of them.

        Raises lb_mpi.TaskError, with index, rank and the remote traceback, and the exception as its cause, when a task
        raises: tasks not begun are dropped, and the pool can be used on.  In a pool whose methods all ranks call, it is
        raised on every rank; but the rank on which it was SystemExit or KeyboardInterrupt raises that.
        """
        return self._all(self._start(
            Call(function, keep_exceptions=return_exceptions),
            items, costs=costs, to=to, chunksize=chunksize, progress=progress, log=log,
        ))  # fmt: skip

    def starmap(
        self, function: Callable[..., T], items: Any = None, *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> list[T] | None:
        """Return function(*item) for each of the root's items; the other arguments are those of `map`."""
        call = Call(function, star=True, keep_exceptions=return_exceptions)
        return self._all(self._start(call, items, **options))

    def imap_unordered(
        self, function: Callable[[Any], T], items: Any = None, *, return_exceptions: bool = False, **options: Unpack[Options]
    ) -> Iterator[tuple[int, T]]:
        """Yield (index of the item, function(item)) on the root, as results come; nothing on the other ranks.

        The other arguments are those of `map`, but for `to`.  The tasks are begun at once; on the root they go on only
        while it asks for the next result.  What it doesn't ask for waits where it is, at most 64 MiB on each rank.  Who
        leaves the loop early drops the tasks not begun.
        """
        if options.get("to", "root") != "root":
            raise ValueError(f"to = {show(options['to'])}: expected 'root', since results come one by one")
        return self._each(self._start(Call(function, keep_exceptions=return_exceptions), items, **options))

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future:
        """Hand in one task, function(*args, **kwargs), on the root of a pool made with `root=`; its `Future`.

        No thread works on it: the other ranks do, and this one while it waits for a result.
        """
        self._check_root("submit")
        return self._submitting.submit(checks.function("function", function), args, kwargs)

    def as_completed(self, futures: Iterable[Future], timeout: float | None = None) -> Iterator[Future]:
        """Yield futures of this pool as they are over; TimeoutError when none is for `timeout` seconds."""
        self._check_root("as_completed")
        return self._submitting.as_completed(futures, timeout)

    def share(self, value: Any = None) -> Handle:
        """Bring the root's object to all ranks, once: a handle, whose `value` it is in each task.

        The handle may be part of items, or of the function.
        """
        self._check()
        crew = self._crew
        self._n_shared += 1
        if self._serves:
            data = dumps(value, "value")
        else:
            data = meet(crew, Op.SHARE, lambda: dumps(value, "value") if self.is_master() else b"").value
        if self.is_master():
            crew.send_all(Tag.SHARE, self._n_shared, parts=[data])
            return keep(crew.number, self._n_shared, value)
        with crew.news.telling():
            return keep_shared(crew, await_order(crew, Tag.SHARE))

    def wait(self) -> None:
        """Serve the root until it closes the pool, which closes it here, too; on the root, do nothing."""
        if self.is_master():
            return
        crew = self._crew
        if self._closed:
            raise closed("pool")
        crew.news.check()
        serve(crew, meets=not self._serves)
        self._free()

    def close(self) -> None:
        """End the pool; collective, unless the other ranks serve.  A second time, do nothing."""
        if self._closed:
            return
        if self._lead is not None:  # results that nobody has asked for
            self._finish(self._lead)
        if self._crew.news.failed:
            pass
        elif not self._serves:
            meet(self._crew, Op.CLOSE)
        elif self.is_master():
            self._submitting.finish()
            if self._owns:
                self._crew.send_all(Tag.CLOSE)
        self._free()

    shutdown = close

    def __enter__(self) -> Any:  # checkers would want to be told that it isn't None where all ranks call
        """Return the pool; on ranks that serve, do so until the root closes it, and return None."""
        if self._serves and not self.is_master():
            self.wait()
            return None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool; after an exception, tell the other ranks, which may be waiting for this one."""
        if error is not None and not self._closed:
            if self._serves:
                self._submitting.drop()
            else:
                self._crew.news.spread(error)
        self.close()

    def _start(self, call: Call, items: Any, **options: Unpack[Options]) -> Lead | Followed:
        """Bring the ranks together for a map: the root leads it, the others have followed it when this returns."""
        self._check()
        crew, sent = self._crew, None
        with ExitStack() as opened:  # closed when the ranks do not come to a map
            if self._serves:
                job, encoded = self._prepare(call, items, options, opened)
                sent = pickled(call.function) if crew.size > 1 else None
            else:
                with crew.news.roll.call(MAP):
                    met = meet(crew, Op.MAP, lambda: self._prepare(call, items, options, opened))
                job, encoded = met.value
                if met.some_serve:
                    sent = meet(crew, Op.MAP, lambda: pickled(call.function) if self.is_master() else None).value
            if self.is_master():
                self._lead = Lead(crew, job, self._speeds, encoded, sent)
            opened.pop_all()
        if self._lead is None:
            return self._follow(call.function)
        self._busy = True
        return self._lead

    def _prepare(self, call: Call, items: Any, options: Options, opened: ExitStack) -> tuple[Job, Encoded]:
        """Hold the arguments against what is expected; items and costs of the root only."""
        if self._serves and options.get("to") == "all":
            raise ValueError("to = 'all': expected 'root' in a pool whose other ranks serve")
        if not self.is_master():
            items, options = 0, {**options, "costs": None, "log": None}
        job = make_job(call, items, **options)
        if job.log is not None:
            opened.callback(job.log.close)
        return job, encode_job(job, self._speeds)

    def _all(self, started: Lead | Followed) -> list[Any] | None:
        if isinstance(started, Followed):
            return list(_value(started)) if started.value is not None else _value(started)
        results: list[Any] = [None] * started.n
        with self._leading(started, results):
            started.advance(to_the_end=True)
            for numbers, values in started.take_fresh():
                for number, value in zip(numbers, values, strict=True):
                    results[number] = value
        return results

    def _each(self, started: Lead | Followed) -> Iterator[tuple[int, Any]]:
        if isinstance(started, Followed):
            _value(started)
            return
        with self._leading(started):
            while True:
                started.advance(to_the_end=False)
                fresh = started.take_fresh()
                if not fresh:
                    break
                for numbers, values in fresh:
                    yield from zip(numbers, values, strict=True)

    @contextmanager
    def _leading(self, lead: Lead, results: list[Any] | None = None) -> Iterator[None]:
        """End the map on all ranks, whatever happens in the block."""
        try:
            yield
        except GeneratorExit:
            self._finish(lead)
            raise
        except BaseException as error:
            lead.fail(error)
            self._finish(lead)
            raise
        self._finish(lead, results)
        if (wrong := lead.error(alone=self._serves)) is not None:
            raise wrong

    def _finish(self, lead: Lead, results: list[Any] | None = None) -> None:
        if self._lead is lead:
            self._lead, self._busy = None, False
            lead.finish(results)
            self.last = lead.report()

    def _follow(self, function: Callable[..., Any]) -> Followed:
        self._busy = True
        try:
            with self._crew.news.telling():
                return follow(self._crew, await_order(self._crew, Tag.START), function)
        finally:
            self._busy = False

    def _check(self) -> None:
        if self._closed:
            raise closed("pool")
        self._crew.news.check()
        if self._busy:
            raise Error("a map of this pool is under way: expected none (not in a task, nor before all results are taken)")
        if self._serves and not self.is_master():
            raise Error("a pool that this rank serves: expected to be called on its root")

    def _check_root(self, name: str) -> None:
        if self._closed:
            raise closed("pool")
        self._crew.news.check()
        if not self._serves or not self.is_master():
            raise Error(f"{name}: expected the root of a pool made with root=")

    def _free(self) -> None:
        self._closed = True
        if self._owns:
            forget(self._crew.number)
            self._crew.close()


def _value(followed: Followed) -> Any:
    if followed.error is not None:
        raise followed.error
    return followed.value
