"""lb_mpi.Pool: independent tasks on all ranks of a communicator, the root among them.

How tasks find their rank stands in `lb_mpi.pooling.worker`; here ranks come together, map by map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn, TypeVar, Unpack

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.errors import Error
from lb_mpi.mpi.common.collective import agree, agree_on, duplicate
from lb_mpi.mpi.common.presence import Tag, closed, presence_of
from lb_mpi.mpi.common.presence import call as in_call
from lb_mpi.mpi.pool import served
from lb_mpi.mpi.pool.crew import MAP, Crew
from lb_mpi.mpi.pool.following import Followed, follow, serve
from lb_mpi.mpi.pool.functions import pickled
from lb_mpi.mpi.pool.leading import Lead, Options, Plan, make_job, plan_map
from lb_mpi.mpi.pool.ledger import PoolReport
from lb_mpi.mpi.pool.meeting import Op, meet
from lb_mpi.mpi.pool.messages import End
from lb_mpi.mpi.pool.shift import Call
from lb_mpi.mpi.pool.submitting import Future, Leader, Submitted
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
        leader = served.leader()
        self._owns = leader is None
        if leader is not None:
            given = served.check(leader.crew, comm, root, speeds, emulated_speed)
        else:
            with in_call("lb_mpi.Pool"):
                own = duplicate(MPI.COMM_WORLD if comm is None else comm)
                try:
                    given = agree(own, lambda: served.check_pool(own.size, root, speeds, emulated_speed))
                    agree_on(own, root=root, speeds=given)
                    leader = Leader(Crew(own, root or 0, emulated_speed=emulated_speed), alone=root is not None)
                except BaseException as error:
                    presence_of(own).leave(error)
                    raise
        self._leader, self._crew, self._serves = leader, leader.crew, leader.alone
        self._speeds = Speeds(self._crew.size, given)
        self._submitted = Submitted(leader)
        self._lead: Lead | None = None  # the map of this pool that is under way, on the root
        self._closed = False
        self._report: PoolReport | None = None  # of the last map, on the root

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._crew.size

    @property
    def is_root(self) -> bool:
        """True on the root."""
        return self._crew.rank == self._crew.root

    def is_master(self) -> bool:
        """Return `is_root`, under the name that programs for schwimmbad call."""
        return self.is_root

    def report(self) -> PoolReport | None:
        """Return what became of the last map, a table when it is printed; None on other ranks, and before a map has ended.

        Its fields: n (tasks run), seconds, lower_bound_s (work / sum of the speeds), and ranks, where ranks[r] has the
        tasks, busy_s, work_s, steals and sent_bytes of rank r.
        """
        return self._report

    def map(
        self,
        function: Callable[..., T],
        *items: Any,
        costs: Any = None,
        to: str = "root",
        chunksize: int | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
        return_exceptions: bool = False,
        checkpoint: Any = None,
    ) -> list[T] | None:
        """Return function(item) for each of the root's items, in their order, on the root; None on the other ranks.

        With several iterables, as the builtin `map`: function(a, b, ...) for the items that stand at the same place of each,
        as many as the shortest has.

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
        checkpoint : name of a file, on the root, that keeps the results of finished tasks: a later map of the same
            function and items, on any number of ranks, does only the others.  Results must be numbers, text, bytes,
            arrays, or tuples, lists and dicts of them.

        Raises lb_mpi.TaskError, with index, rank and the remote traceback, and the exception as its cause, when a task
        raises: tasks not begun are dropped, and the pool can be used on.  In a pool whose methods all ranks call, it is
        raised on every rank; but the rank on which it was SystemExit or KeyboardInterrupt raises that.
        """
        call = Call(function, star=len(items) > 1, keep_exceptions=return_exceptions)
        begun = self._begin(call, *items, costs=costs, to=to, chunksize=chunksize, progress=progress, checkpoint=checkpoint)
        return begun.collect()

    def starmap(
        self,
        function: Callable[..., T],
        items: Any = None,
        *,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> list[T] | None:
        """Return function(*item) for each of the root's items; the other arguments are those of `map`."""
        call = Call(function, star=True, keep_exceptions=return_exceptions)
        return self._begin(call, items, **options).collect()

    def imap_unordered(
        self,
        function: Callable[..., T],
        *items: Any,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> Iterator[tuple[int, T]]:
        """Yield (index of the item, function(item)) on the root, as results come; nothing on the other ranks.

        The other arguments are those of `map`, but for `to`.  The tasks are begun at once; on the root they go on only
        while it asks for the next result.  What it doesn't ask for waits where it is, at most 64 MiB on each rank.  Who
        leaves the loop early drops the tasks not begun.
        """
        if options.get("to", "root") != "root":
            raise ValueError(f"to = {show(options['to'])}: expected 'root', since results come one by one")
        call = Call(function, star=len(items) > 1, keep_exceptions=return_exceptions)
        return self._begin(call, *items, **options).each()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future:
        """Hand in one task, function(*args, **kwargs), on the root of a pool made with `root=`; its `Future`.

        No thread works on it: the other ranks do, and this one while it waits for a result.
        """
        self._check_root("submit")
        return self._submitted.submit(checks.function("function", function), args, kwargs)

    def as_completed(self, futures: Iterable[Future], timeout: float | None = None) -> Iterator[Future]:
        """Yield futures of this pool as they are over; TimeoutError when none is for `timeout` seconds."""
        self._check_root("as_completed")
        return self._submitted.as_completed(futures, timeout)

    def wait(self) -> None:
        """Serve the root of a pool made with `root=` until it closes the pool, also here; on the root, do nothing."""
        crew = self._crew
        if self._closed:
            raise closed("pool")
        crew.news.check()
        if not self._serves:
            meet(crew, Op.WAIT, _no_wait)
        if self.is_root:
            return
        try:
            serve(crew)
        finally:
            self._free()

    def close(self) -> None:
        """End the pool; collective, unless the other ranks serve.  A second time, do nothing."""
        if self._closed:
            return
        crew = self._crew
        try:
            if self._lead is not None:
                self._lead.end(dropped=True)  # where nobody has asked for all results
            if crew.news.failed:
                pass
            elif not self._serves:
                meet(crew, Op.CLOSE, lambda: None)
            elif self.is_root:
                self._submitted.finish()
                if self._owns:
                    crew.send_all(Tag.CLOSE)
        except BaseException as error:
            if self._owns:  # the others can't know that this rank has closed it
                crew.news.spread(error, alone=True)
            raise
        finally:
            self._free()

    shutdown = close

    def __enter__(self) -> Any:  # checkers would want to be told that it isn't None where all ranks call
        """Return the pool; on ranks that serve, do so until the root closes it, and return None."""
        if self._serves and not self.is_root:
            self.wait()
            return None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool; after an exception, tell the other ranks, which may be waiting for this one."""
        if error is not None and not self._closed:
            if self._serves:
                self._submitted.cancel()
            else:
                self._crew.news.spread(error)
        self.close()

    def _begin(self, call: Call, *items: Any, **options: Unpack[Options]) -> Lead | Followed:
        """Bring the ranks together for a map: the root leads it, the others have followed it when this returns."""
        self._check()
        with ExitStack() as opened:  # closed when the ranks do not come to a map
            if self._serves:
                plan = self._plan(call, items, options, opened)
            else:
                with in_call(MAP, watched=True):
                    plan = meet(self._crew, Op.MAP, lambda: self._plan(call, items, options, opened))
            if plan is None:
                return self._follow(call.function)
            lead = self._lead = Lead(self._leader, plan, self._ended)
            opened.pop_all()
        return lead

    def _plan(self, call: Call, items: tuple[Any, ...], options: Options, opened: ExitStack) -> Plan | None:
        """Hold the arguments against what is expected, items and costs of the root only; None on the other ranks."""
        if self._serves and options.get("to") == "all":
            raise ValueError("to = 'all': expected 'root' in a pool whose other ranks serve")
        if not self.is_root:
            options = {**options, "costs": None, "checkpoint": None}
            make_job(call, (0,), **options)
            return None
        job = make_job(call, items, **options)
        if job.log is not None:
            opened.callback(job.log.close)
        sent = pickled(call.function) if self._serves and self.size > 1 else None
        return plan_map(self._crew, job, self._speeds.values.tolist(), sent)

    def _ended(self, lead: Lead) -> None:
        self._lead = None
        self._speeds.observe(*lead.observed())
        self._report = lead.report()

    def _follow(self, function: Callable[..., Any]) -> Followed:
        crew = self._crew
        crew.busy = True
        try:
            with crew.news.telling():
                followed = follow(crew, function)
        finally:
            crew.busy = False
        if followed.error is not None:
            if followed.end == End.FAILED:
                crew.news.together(followed.error)
            raise followed.error
        return followed

    def _check(self) -> None:
        if self._closed:
            raise closed("pool")
        self._crew.check()
        if self._crew.busy:
            raise Error(
                "a map of these ranks is under way: expected none (not in a task, nor before all results are taken)"
            )
        if self._serves and not self.is_root:
            raise Error("a pool that this rank serves: expected to be called on its root")

    def _check_root(self, name: str) -> None:
        if self._closed:
            raise closed("pool")
        self._crew.check()
        if not self._serves or not self.is_root:
            raise Error(f"{name}: expected the root of a pool made with root=")

    def _free(self) -> None:
        self._closed = True
        self._submitted.close()
        if self._owns:
            self._crew.close()


def _no_wait() -> NoReturn:
    raise Error("wait: expected a pool made with root=")
