"""The Balancer: rows of data computed where it's quickest, on ranks that nobody has to know the speeds of."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.judge import Judge
from lb_mpi.balancing.record import Balanced, History, Loans, Shares
from lb_mpi.balancing.trigger import BalanceReason, Trigger, When, check_when
from lb_mpi.checks import choice, integer, number
from lb_mpi.checks import function as check_function
from lb_mpi.diffusion.setup import AUTO, prepare
from lb_mpi.emulate import Varying
from lb_mpi.errors import BalanceError
from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.common.carrier import Carrier
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, duplicate, raise_together
from lb_mpi.mpi.common.failure import Failed, of_argument
from lb_mpi.mpi.common.presence import call, hang_s, presence_of
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.rows.diffuse import Central, planner
from lb_mpi.mpi.rows.lending import Hearing, Lending, Stopwatch, Wire
from lb_mpi.mpi.rows.migrating import check_costs, migrate
from lb_mpi.mpi.rows.process_graph import METHODS, fingerprint, process_graph
from lb_mpi.mpi.rows.rows import Pack, Results, Rows, Unpack
from lb_mpi.record.events import Phase


class Balancer:
    """Levels the work on rows of data between the ranks of `comm`, however unequal the ranks are.

        with lb_mpi.Balancer(comm) as balancer:
            for step in range(steps):
                dynamics(field)
                columns = balancer.map_rows(physics, columns)

    Collective, as are all methods.  Works on a duplicate of `comm`: traffic of the caller is never disturbed.  Costs and
    speeds are measured (see `lb_mpi.balancing.estimate`), in what is computed anyway.  They belong to one function: use one
    Balancer for each function whose rows are to be balanced.

    Parameters
    ----------
    graph : the process graph, vertex k being rank k of `comm` (anything that `lb_mpi.as_graph` takes); None: where several
        ranks share a host, and there are other hosts, one that follows the hosts, so that work goes to a rank of the same
        host first (`lb_mpi.graph.host_graph`); otherwise that of a Cartesian communicator, or the most square mesh.
    scheme : how the flow of work is found: "direct" (solved on the root, exact), "fos" (Jin and Wang's first-order scheme),
        "sos" (second order), "chebyshev", "ops" (optimal polynomial), "cg" (conjugate gradients), "dimension_exchange"; or
        "auto": "direct" up to 512 ranks, above that on most graphs "fos" or "cg", which work between neighbours.
    tau : the edges' weights: "paper" (Jin and Wang's), "scaled" (the paper's, times the optimal factor) or "uniform"; None:
        the usual one of the scheme (see `lb_mpi.diffusion.setup.prepare`).
    exchange : how neighbours exchange their loads: "neighbourhood" (a neighbourhood collective) or "paper" (a send and a
        receive for each neighbour).  Steps and flows are the same; scheme "direct" exchanges nothing.
    tolerance : imbalance (Jin and Wang's I_m) that is good enough, above 0.
    when : "auto": when the time that it is expected to save until the next chance exceeds its cost; "always": at every
        chance; a number: when the imbalance is above this bound.
    every : a chance comes in every so many calls.
    emulated_speed : be a rank of this relative speed, above 0 and at most 1 (see `lb_mpi.throttle`); may differ by rank.

    Attributes: `graph`; `last`, what the last call did and why (None before the first); `history`, of all calls.

    ValueError or TypeError on every rank when an argument is wrong on any, or (but for `emulated_speed`) not the same.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        graph: Any = None,
        scheme: str = AUTO,
        tau: str | None = None,
        exchange: str = METHODS[0],
        tolerance: float = 0.05,
        when: When = "auto",
        every: int = 1,
        emulated_speed: float | Varying = 1.0,
    ) -> None:
        with call("lb_mpi.Balancer"):
            own = duplicate(comm)
            self._presence = presence_of(own)
            self._presence.name = "Balancer"
            try:
                hosts = allgather(own, MPI.Get_processor_name())
                self.graph = agree(own, lambda: process_graph(comm, graph, hosts))
                self._watch = agree(own, lambda: Stopwatch(emulated_speed))
                bound, policy, calls = agree(own, lambda: _check(tolerance, when, every, exchange, self.graph, scheme, tau))
                same = {"scheme": scheme, "tau": tau, "tolerance": bound, "when": policy, "every": calls}
                agree_on(own, **same, edges_of_graph=fingerprint(self.graph), method=exchange)
                self._loans = Loans(recorder(own), worlds(own), own.rank)
                self._planner = planner(own, self.graph, scheme, tau, bound, exchange)
                self._wire = Wire(own)
            except BaseException as error:
                self._presence.leave(error)
                raise
        self._loans.use(self.graph, same)
        self._judge: Judge | None = None
        if own.rank == 0:
            direct = self._planner.direct if isinstance(self._planner, Central) else None
            self._judge = Judge(own.size, Trigger(policy, calls, bound), direct)
        self._course = Course(own.rank, own.size, self.graph.neighbours(own.rank).tolist())
        self._migration = Trigger(policy, calls, bound)
        self.history = History()

    @property
    def last(self) -> Balanced | None:
        """The record of the last call, with its reason; None before the first."""
        return self.history[-1] if len(self.history) else None

    @property
    def speeds(self) -> Floats:
        """(P,) speeds as known by now, relative to their mean; the same on all ranks."""
        return np.asarray(self._course.speeds / self._course.speeds.mean())

    def map_rows(
        self,
        function: Callable[..., Any],
        rows: Any,
        *more: Any,
        pack: Pack | None = None,
        unpack: Unpack | None = None,
        block_rows: int | None = None,
        **options: Any,
    ) -> Any:
        """Apply `function` to this rank's rows, in blocks: the results, in their order, as if it had been called here.

        `rows` is a numpy array, or a tuple or list of arrays with the same first dimension n; `more` are further arrays of
        n rows, which are only read, and scalars.  The function is called as function(block of rows, *more, **options) with
        some of the rows, of this or another rank, and the same rows of the arrays in `more`; scalars and keyword arguments
        are passed on as they are.  It returns as many rows: an array, or a tuple or list of arrays, of any dtypes and shapes
        of one row, which must be the same in all calls and on all ranks.  A rank without rows gets empty arrays of those
        dtypes and shapes (those of `rows` when no rank has rows: then the function isn't called).

        The function gets copies, in C or Fortran order as the arrays are, and may change them; the caller's rows are never
        written to, and the results are new arrays.  Function, scalars and keyword arguments must be the same on all ranks,
        and so must dtypes and shapes of one row; the number of rows may be any, 0 too.

        The results are bit for bit those of function(rows), if what the function does with a row depends neither on the
        other rows in the block nor on how many they are.  That is so for loops over rows, operations by element, and sums
        along a row; not for a product of matrices (rows @ weights), where the last bits depend on the number of rows.  For
        such functions there is `block_rows`: each call then gets just so many rows, those from 0, block_rows,
        2 block_rows, ... of their rank (the last ones may be fewer), and the results are bit for bit those of these calls,
        wherever they are made.

        With `pack` (object to bytes) and `unpack`, `rows` is a list of objects; the function gets and returns such lists,
        and leaves the objects that it gets as they are.

        On every rank BalanceError when the function fails on any, or returns something else (SystemExit and
        KeyboardInterrupt are raised again where they came from); ValueError or TypeError when the rows are no good on any,
        or differ.
        """
        comm, course, watch = self._open(), self._course, self._watch
        began_s = (began := time.perf_counter()) - self._loans.ended
        mine, failed = _NO_ROWS, None
        try:
            check_function("function", function)
            mine = _rows(rows, more, pack, unpack, block_rows)
        except Exception as caught:
            failed = of_argument(caught)
        if failed is None and not course.knows(mine.spec.mark):
            watch.warm = False
        with call("lb_mpi.Balancer.map_rows", watched=True) as interrupts, running(self._loans.record):
            watch.begin()
            self._wire.begin()
            hearing = Hearing(comm, self._judge)
            bound = functools.partial(function, **options) if options else function
            lending = Lending(self._wire, course, bound, mine, watch, self._loans, hearing, began_s, failed)
            try:
                Carrier(self._presence, self._loans.record, watch.slow).carry(lending, interrupts)
                watch.end()
                self._finish(lending, hearing, mine)
            except BaseException as error:
                self._presence.spread(error)
                if self._presence.failed:
                    self._presence.abandon(lending, hearing)
                raise
            ended, took, n_rows = time.perf_counter(), lending.told.took, (mine.n, lending.n_computed)
            self._loans.mapped(began, ended, self.history[-1], course, n_rows, watch.computing_s, took, watch.queued_s)
        return lending.results.value

    def migrate(
        self, rows: Any, costs: ArrayLike | None = None, *, pack: Pack | None = None, unpack: Unpack | None = None
    ) -> Any:
        """Move rows to other ranks for good, so that the ranks need the same time for theirs; this rank's new rows.

        `rows` as for `map_rows`.  `costs` (n,) >= 0 in any unit, the same on all ranks; None: as measured in the last call
        of `map_rows` on these rows (with blocks of single rows), otherwise equal.  The result has the rows that stay, in
        their order, and after them those that have come, by the rank that they come from; `rows` itself if nothing was done.

        Errors as for `map_rows`; no rank has lost or got a row then.
        """
        comm, course = self._open(), self._course
        with call("lb_mpi.Balancer.migrate"), self._presence.telling():
            mine = agree(comm, lambda: _rows(rows, (), pack, unpack, None))
            given = agree(comm, lambda: None if costs is None else check_costs(costs, mine.n))
            agree_on(comm, rows=mine.spec.words, costs_given=given is not None)
            known = course.costs is not None and course.costs.known and len(course.costs) == mine.n
            work = course.costs.work(course.worth) if known and course.costs is not None else None
            began = time.perf_counter()
            self._wire.drain()
            with running(self._loans.record):
                calls = max(1, course.n_calls)
                last, value, work = migrate(comm, self._planner, self._migration, mine, given, work, course.speeds, calls)
        self.history.append(last)
        self._loans.migrated(began, time.perf_counter(), last, course)
        if not last.acted:
            return rows
        course.own(work)
        if self._judge is not None:
            self._judge.forget()
        return value

    def report(self) -> Shares:
        """Say what each rank had, computed and waited in the calls so far; prints as a table.  The same on all ranks."""
        comm = self._open()
        with call("lb_mpi.Balancer.report"), self._presence.telling():
            return self._loans.shares(allgather(comm, self._loans.share))

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        with call("lb_mpi.Balancer.close"):
            self._presence.close(self._free)

    def __enter__(self) -> Balancer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # this rank may be the only one that leaves: it tells those that wait for it
            self._presence.spread(error)
        self.close()

    def _free(self) -> None:
        align(self._presence.comm, self._loans.record)
        self._wire.drain()
        self._planner.close()

    def _open(self) -> MPI.Intracomm:
        self._presence.check()
        return self._presence.comm

    def _finish(self, lending: Lending, hearing: Hearing, mine: Rows) -> None:
        """After a round: hear the verdict, and change the distribution if it says so."""
        course = self._course
        verdict, judging_s = hearing.verdict(), hearing.judging_s
        course.hear(verdict, lending.round.learned.late_ticks)
        if verdict.problem:
            self._raise(lending.failed, mine.spec.words)
        steps = 0
        if verdict.decision.act:
            began = time.perf_counter()
            self._loans.record.enter(Phase.PROTOCOL, began)
            plan, steps = verdict.plan, 1  # the root alone has made it; or, by the other schemes, all make it together
            if verdict.decision.reason is BalanceReason.HOME:
                plan, steps = None, 0
            elif plan is None:
                plan, steps = self._planner.plan(course.work, verdict.speeds)
            course.follow(plan)
            judging_s += time.perf_counter() - began
            if self._judge is not None:
                self._judge.changed(lending=course.is_lending, seconds=judging_s)
        self.history.append(
            Balanced(
                acted=verdict.decision.act,
                reason=verdict.words,
                imbalance_before=verdict.imbalance_before,
                imbalance_after=verdict.imbalance_after,
                rows_moved=verdict.rows,
                bytes_moved=verdict.bytes,
                steps=steps,
                seconds=lending.spent_s + judging_s,
                predicted_gain_s=verdict.decision.gain_s,
            )
        )
        if verdict.compare:
            self._agree_on_results(lending.results)

    def _agree_on_results(self, results: Results) -> None:
        """Collective: results look alike on all ranks, also on those that have none; otherwise BalanceError on all."""
        everyone = [(rank, spec) for rank, spec in enumerate(allgather(self._presence.comm, results.spec)) if spec]
        first, expected = everyone[0]
        for rank, spec in everyone:
            if spec.mark != expected.mark:
                words = f"function returned {spec.words} on rank {rank}: expected {expected.words}, as on rank {first}"
                raise self._presence.together(BalanceError(words))
        if results.spec is None:
            results.look_like(expected)

    def _raise(self, failed: Failed | None, words: str) -> NoReturn:
        """Collective: raise what a rank has failed with on all ranks; or that their rows, in `words`, differ."""
        comm = self._presence.comm
        raise_together(comm, failed)
        everyone = allgather(comm, words)
        wrong = TypeError("rows differ between ranks")
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                wrong = TypeError(f"rows of rank {rank} are {theirs}: expected {everyone[0]}, as on rank 0")
                break
        raise self._presence.together(wrong)

_NO_ROWS = Rows(np.zeros(0))


def _rows(rows: Any, more: Sequence[Any], pack: Pack | None, unpack: Unpack | None, block_rows: int | None) -> Rows:
    n = 0 if block_rows is None else integer("block_rows", block_rows, 1)
    return Rows(rows, more, pack=pack, unpack=unpack, block_rows=n)


def _check(
    tolerance: float, when: object, every: object, exchange: object, graph: Graph, scheme: str, tau: str | None
) -> tuple[float, When, int]:
    bound = number("tolerance", tolerance, above=0.0)
    policy, calls = check_when(when, every)
    prepare(graph, np.ones(graph.n), scheme, tau)
    choice("method", exchange, METHODS)
    hang_s()
    return bound, policy, calls
