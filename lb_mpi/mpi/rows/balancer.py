"""The Balancer: rows of data are computed on the ranks that finish them soonest; rank speeds are measured."""

from __future__ import annotations

import functools
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import signs
from lb_mpi.balancing.decider import Decider, RootPlanner
from lb_mpi.balancing.deciding import Decided, Trigger, When, words_of
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.neighbours import NeighbourPlanner, momentum
from lb_mpi.balancing.record import Balanced, Loans, balances
from lb_mpi.balancing.round import Learned, Timed
from lb_mpi.checks import choice
from lb_mpi.checks import function as check_function
from lb_mpi.columns import Pack, Unpack
from lb_mpi.diffusion.setup import AUTO, MOST_DIRECT, prepare, rows_scheme
from lb_mpi.errors import BalanceError, Error
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.mpi.common.calls import Interrupts, at_work, call
from lb_mpi.mpi.common.carrier import carry, end_child
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, meet, raise_difference, raise_on_all
from lb_mpi.mpi.common.communicator import QUICK_S, duplicate, presence_of
from lb_mpi.mpi.common.failure import Failed, of_argument, of_rows
from lb_mpi.mpi.common.late import hang_s
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.speeds import known_speeds
from lb_mpi.mpi.rows.computing import Computing, Stopwatch
from lb_mpi.mpi.rows.lending import RoundPort, RowsDiffer, Wire
from lb_mpi.mpi.rows.migrating import ORDERS, check_costs, migrate
from lb_mpi.mpi.rows.plans import plan_together
from lb_mpi.mpi.rows.process_graph import fingerprint, process_graph
from lb_mpi.mpi.rows.rows import Results, Rows, Spec, scalars_of
from lb_mpi.record.events import Phase
from lb_mpi.record.report import Report
from lb_mpi.table import counted

R = TypeVar("R")
HOME_S = 2e-3  # of waiting without naps: ranks that stay at home end at nearly the same time
BETWEEN = "between rows"  # said of an error that none of the user's functions has raised


class Balancer:
    """A Balancer distributes the work on rows of data over the ranks of `comm`, however unequal the ranks are.

        with lb_mpi.Balancer(comm) as balancer:
            for step in range(steps):
                dynamics(field)
                columns = balancer.map_rows(physics, columns)

    The constructor and all methods are collective.  The Balancer works on a duplicate of `comm`, so the caller's
    messages are never disturbed.  It measures costs of rows and speeds of ranks during normal computation (see
    `lb_mpi.balancing.knowledge`).  The measurements belong to one function: use a separate Balancer for each function
    whose rows are to be balanced.

    Parameters
    ----------
    comm : an mpi4py intracommunicator of P ranks.
    graph : the process graph of P vertices, in any form that `lb_mpi.as_graph` accepts; vertex k is rank k of `comm`.
        None: if there are several hosts and some of them have several ranks, a graph that follows the hosts, so that
        work first goes to a rank on the same host (`lb_mpi.graph.host_graph`); otherwise the graph of a Cartesian
        communicator, or else the most square mesh.  For fos and sos: a hypercube of the ranks, in the order of their
        hosts.
    scheme : how ranks find who lends to whom.  "direct": rank 0 (the root) solves for the flow of work, from the loads of
        all ranks.  "fos" and "sos": diffusion of first order (Jin and Wang's, with their weights) or second order: each
        rank exchanges numbers with its neighbours only, which also pass on who lends to whom.  With all schemes, all
        ranks decide together when to do so, from a few sums and maxima.  "auto": "direct" up
        to 512 ranks, and in graphs of a large diameter; otherwise "fos" or "sos".
    tolerance : an imbalance (Jin and Wang's I_m) up to this one is good enough, above 0; 0.05 means 5 %.
    when : when the plan changes.  "auto": if the time that a change is expected to save until the next opportunity
        exceeds its cost; and rows stay at home where calls are faster then, as measured (`lb_mpi.balancing.ways`).
        "always": at every opportunity; a number above 0: if the imbalance is above this bound.
    every : number of calls, >= 1, between two opportunities to change the plan; 1: in every call.
    emulated_speed : makes this rank as slow as a machine of this relative speed, above 0 and at most 1 (see
        `lb_mpi.throttle`), or a function that returns the speed of the moment; may differ by rank.

    Attributes: `graph`, the process graph; `last`, a `Balanced` that says what the last call did and why (None before
    the first call); `history`, the same for all calls; `counts`, (P,) the numbers of rows of all ranks after the last
    call of `migrate`, if it kept their order, otherwise None.

    Raises ValueError or TypeError on every rank if an argument is wrong on any rank, or if an argument other than
    `emulated_speed` differs between ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        graph: Any = None,
        scheme: str = AUTO,
        tolerance: float = 0.05,
        when: When = "auto",
        every: int = 1,
        emulated_speed: float | Callable[[], float] = 1.0,
    ) -> None:
        with call("lb_mpi.Balancer"):
            own = duplicate(comm)
            self._presence = presence_of(own)
            self._presence.name = "Balancer"
            try:
                meet(own, "lb_mpi.Balancer")
                hosts = allgather(own, MPI.Get_processor_name())
                short = scheme in ("fos", "sos") or (scheme == AUTO and own.size > MOST_DIRECT)

                def check() -> tuple[Graph, Stopwatch, Trigger, str]:
                    layout = process_graph(comm, graph, hosts, short=short)
                    return layout, Stopwatch(emulated_speed), *_check(tolerance, when, every, layout, scheme)

                self.graph, self._watch, trigger, used = agree(own, check)
                settings = {"scheme": scheme, "tolerance": trigger.tolerance, "when": trigger.when, "every": trigger.every}
                agree_on(own, **settings, edges_of_graph=fingerprint(self.graph))
                self._loans = Loans(recorder(own), worlds(own), own.rank)
                self._running = running(self._loans.record)
                self._wire, self._at_work = Wire(own), at_work(own, "in a function of map_rows")
                near = self.graph.neighbours(own.rank).tolist()
                if used == "direct":
                    self._knowledge = Knowledge(own.rank, range(own.size), near)
                    known = known_speeds(own, self._watch.slow.speed)
                    self._decider: Decider = RootPlanner(self._knowledge, self.graph, trigger, known)
                    self._presence.speeds.add(self._decider.learned)
                else:
                    self._knowledge = Knowledge(own.rank, [own.rank, *near], near)
                    omega = agree(own, lambda: momentum(self.graph, used))
                    self._decider = NeighbourPlanner(self._knowledge, own.size, trigger, omega)
            except BaseException as error:
                self._presence.close(error=error)
                raise
        self._loans.record.use("map_rows", {**settings, "neighbours": near})
        self._migration = Trigger(trigger.when, trigger.every, trigger.tolerance)
        self.history = balances()
        self.counts: Ints | None = None
        self._migrated = 0, 0  # calls, rows on all ranks
        self._form: Spec | None = None  # of the results of the last call
        self._calling = Lock()  # held in a call, since the user's function must not begin another one

    def __repr__(self) -> str:
        """Show this rank, the number of calls, and whether the Balancer is open."""
        presence = self._presence
        state = "failed" if presence.failed else "closed" if presence.comm == MPI.COMM_NULL else "open"
        calls = counted(self.history.n_calls, "call")
        return f"<lb_mpi.Balancer: rank {presence.rank} of {self.graph.n}, {calls}, {state}>"

    @property
    def last(self) -> Balanced | None:
        """The record of the last call, with the reason of its decision; None before the first call."""
        return self.history[-1] if len(self.history) else None

    @property
    def speeds(self) -> Floats:
        """(P,) speeds of the ranks as measured so far, relative to their mean; the same on all ranks.

        With fos and sos: of this rank, its neighbours, and ranks to which it has lent rows; NaN for all others.
        """
        speeds = np.full(self.graph.n, np.nan)
        speeds[np.asarray(self._knowledge.known)] = self._knowledge.relative_speeds
        return speeds

    def map_rows(
        self,
        function: Callable[..., R],
        rows: Any,
        *more: Any,
        pack: Pack | None = None,
        unpack: Unpack | None = None,
        block_rows: int | None = None,
        **options: Any,
    ) -> R:
        """Apply `function` to this rank's rows, in blocks, and return the results in the order of the rows.

        Parameters
        ----------
        function : called as function(block of rows, *more, **options).  The rows of a block belong to this rank or to
            another one.  Returns as many rows as the block has: an array, or a tuple or list of arrays (instead of a
            named tuple, `map_rows` returns a plain one).  Their dtypes and the shapes of one row may be any, but must be the
            same for all blocks of a call of `map_rows`, on all ranks.
        rows : (n, ...) numpy array, or a tuple or list of arrays with the same first dimension n; of a named tuple the
            function gets one, too.  n may be 0, and may differ between ranks; dtypes and shapes of one row must be the same
            on all ranks.
        more : further arrays of n rows, which are only read, and of which the function gets the same rows as of `rows`;
            and scalars, which are passed on unchanged.
        pack, unpack : functions from an object to bytes and back, for a list of objects as `rows`.  The function then
            gets and returns lists of objects, and must not change the objects that it gets.
        block_rows : number of rows, >= 1, in each block (see below); None: any number.
        options : keyword arguments, which are passed on to the function unchanged.

        Function, scalars and keyword arguments must be the same on all ranks, since another rank may compute the row; that
        is checked for scalars, also as keyword arguments.  Pass what differs by row as an array, such as
        np.arange(first, first + n) for its number.  A rank without rows gets empty arrays of the dtypes and shapes that the
        function returns (if no rank has rows, those of `rows`: the function is not called then).

        The function gets copies without gaps, whose axes have the same order in memory as those of the arrays (C, Fortran
        or any other), and may change them.  It may return the same array each time.  Objects that it returns are kept,
        so it must not change them later.  The caller's rows are never written to, and the results are new arrays, with the
        axes in the order of those of the rows, whatever order the function returns.

        The results are bit for bit those of function(such a copy of all rows), if the result for a row depends neither on
        the other rows in its block nor on their number.  With rows that have gaps, such as one of three components,
        function(rows) itself may differ from them in the last bits, as row @ weights and einsum do.  The condition holds
        for loops over rows, elementwise operations, and sums along a row, with one exception: if the first axis of `rows`
        is not the outermost in memory (as in Fortran order), numpy adds the numbers of a row in another order when a block
        has a single row.  It does not hold for a matrix product (rows @ weights), where the last bits depend on the number
        of rows.  For such functions use `block_rows`: the blocks of a rank then begin at its rows 0, block_rows,
        2 block_rows, ... (the last block may be shorter), and the results are bit for bit those of the calls on these
        blocks, whichever rank computes them.

        Raises BalanceError on every rank if the function fails on any rank, or returns something else (but what is no
        Exception, such as SystemExit or KeyboardInterrupt, is raised again on its rank), also if it calls this Balancer;
        ValueError or TypeError on every rank if the rows are invalid on any rank, or they or scalars differ between ranks.
        """
        self._check_idle()
        self._presence.begin("lb_mpi.Balancer.map_rows")
        knowledge, watch = self._knowledge, self._watch
        began_s = (began := time.perf_counter()) - self._loans.ended
        mine, failed, scalars = _NO_ROWS, None, dict[str, str]()
        called: Any = function
        with call("lb_mpi.Balancer.map_rows", watched=True) as interrupts, self._running, self._calling, self._at_work:
            try:
                try:
                    if not callable(called):
                        check_function("function", called)
                    mine = Rows(rows, more, pack=pack, unpack=unpack, block_rows=block_rows)
                    scalars = scalars_of(more, options) if more or options else scalars
                except Exception as caught:
                    failed = of_argument(caught)
                if options and not failed:
                    called = functools.partial(function, **options)
                results, known = Results(mine, function, self._form), (checksum := mine.checksum) == knowledge.checksum
                watch.warm = watch.warm and known
                computing = Computing(
                    called, mine, results, watch, self._loans.record, form=self._form if known else None,
                    checksum=zlib.crc32(repr(scalars).encode(errors="replace"), checksum),
                    began_s=began_s, last_s=self._loans.last_s,
                )  # fmt: skip
                warning = None
                if self._decider.at_home:
                    decided, failed = self._stay(computing, interrupts, failed)
                else:
                    decided, failed, warning = self._lend(computing, interrupts, failed)
                last = self._finish(decided, failed, computing, scalars, interrupts)
                if warning is not None:  # of a late rank, after this one has reported
                    raise warning
                value: R = results.value
            except BaseException as error:
                self._presence.send_failure(error)
                raise
            n_rows, took = (mine.n, computing.n_rows), computing.measured
            self._loans.mapped(began, time.perf_counter(), last, knowledge, n_rows, took.computing_s, took.queued_s)
            self._form = results.spec
        return value

    def migrate(
        self,
        rows: R,
        *,
        costs: ArrayLike | None = None,
        order: str = "appended",
        pack: Pack | None = None,
        unpack: Unpack | None = None,
    ) -> R:
        """Move rows permanently to other ranks, so that all ranks need the same time; return this rank's new rows.

        Parameters
        ----------
        rows : as for `map_rows`: several arrays are passed, and come back, as a tuple.
        costs : (n,) cost of each row, >= 0, in any unit that is the same on all ranks; None: as measured in the last
            call of `map_rows` on these rows (with blocks of single rows), otherwise equal.
        order : "appended": any rows may go to any rank.  The result has the rows that stay, in their order, and after
            them the rows received, in the order of the ranks that sent them.  "kept": the rows of rank 0, then those of
            rank 1, and so on, keep this order; only the ends of the ranks' ranges move, and no farther than needed.
            `counts` then has the numbers of rows of all ranks.  For rows whose neighbours are in the rows before and
            after them.
        pack, unpack : as for `map_rows`.

        The result is `rows` itself if no rank has moved anything.

        Errors as for `map_rows`; after an error no rank has lost or received a row.  A Ctrl-C that comes too late to stop
        all ranks is raised in the next call.
        """
        self._check_idle()
        self._presence.begin("lb_mpi.Balancer.migrate")
        comm, knowledge = self._presence.comm, self._knowledge
        with call("lb_mpi.Balancer.migrate"), self._calling, self._presence.notifying():  # to the end: see `commit`
            mine = agree(comm, lambda: Rows(rows, pack=pack, unpack=unpack))
            given = agree(comm, lambda: None if costs is None else check_costs(costs, mine.n))
            agree(comm, lambda: choice("order", order, ORDERS))
            agree_on(comm, rows=mine.spec.words, costs_given=given is not None, order=order)
            began = time.perf_counter()
            self._wire.drain()
            with self._running:
                last, value, self.counts = migrate(
                    comm, knowledge, self._decider, self._migration, mine, given, order=order
                )
            if last.acted:
                self._decider.restart()
                self._migrated = self._migrated[0] + 1, self._migrated[1] + last.rows_moved
            self.history.append(last)
            self._loans.migrated(began, time.perf_counter(), last, knowledge)
            return value if last.acted else rows

    def report(self) -> Report:
        """Return the rows and times of each rank in the calls so far, the same on all ranks; prints as a table."""
        self._check_idle()
        self._presence.begin("lb_mpi.Balancer.report")
        with call("lb_mpi.Balancer.report"), self._calling, self._presence.notifying():
            found = self._loans.report(allgather(self._presence.comm, self._loans.rank))
        n_calls, n_rows = self._migrated
        if not n_calls:
            return found
        return replace(found, note=f"{counted(n_rows, 'row')} migrated in {counted(n_calls, 'call')}")

    def close(self) -> None:
        """Free the MPI resources; collective.  Further calls do nothing."""
        self._check_idle()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._check_idle()
        self._close(error)

    def _close(self, error: BaseException | None = None) -> None:
        self._watch.end()
        with call("lb_mpi.Balancer.close", last=True):
            self._presence.close(self._free, error=error)

    def _free(self) -> None:
        align(self._presence.comm, self._loans.record)
        self._wire.drain()

    def _check_idle(self) -> None:
        if self._calling.locked():
            raise Error("a call of this Balancer is under way: expected none (not in its function, pack or unpack)")

    def _stay(
        self, computing: Computing, interrupts: Interrupts, failed: Failed | None
    ) -> tuple[Decided, Failed | None]:  # fmt: skip
        """Compute all rows of this rank in one block; return what is decided, and this rank's failure.

        No rows are lent, so no protocol is needed: a rank that fails says so in the reduction, and all ranks raise.
        """
        presence, decider, rows = self._presence, self._decider, computing.rows
        record, watch, began, learned = computing.record, computing.watch, time.perf_counter(), Learned()
        self._knowledge.describe(rows.n_units, rows.checksum)
        if rows.n and failed is None:
            process, begun = os.getpid(), False
            try:
                with interrupts:
                    begun = True
                    _, ticks = computing.own(slice(0, rows.n))
                learned.timed.append(Timed(slice(0, rows.n_units), presence.rank, ticks, helped=False))
            except BaseException as error:
                failed = of_rows(error, presence.rank, rows.named(slice(0, rows.n)) if begun else BETWEEN)
            if os.getpid() != process:
                end_child(process)
        ended = time.perf_counter()
        watch.measured.rows_s += ended - began
        if watch.slow.rests:
            self._loans.record.enter(Phase.RESTING, ended)
            while (rest_s := watch.slow.due()) and not interrupts.pending:
                time.sleep(rest_s)
                signs.turn()
                presence.answer()
            watch.rested(time.perf_counter() - ended)
        if failed is None and interrupts.pending:
            failed = of_rows(KeyboardInterrupt(), presence.rank, BETWEEN)
        report = computing.report(watch.collect(), failed=failed is not None)
        reducing = self._wire.reducing
        reducing.begin(decider.report(report, learned))
        if record is not None:
            record.enter(Phase.WAITING, time.perf_counter())
        presence.answer()
        presence.wait(reducing.done, reducing, quick_s=HOME_S)
        if record is not None:
            record.enter(Phase.PROTOCOL, time.perf_counter())
        return decider.decide(reducing.answer), failed

    def _lend(
        self, computing: Computing, interrupts: Interrupts, failed: Failed | None
    ) -> tuple[Decided, Failed | None, Warning | None]:  # fmt: skip
        """Compute rows of this rank and of others in a round; return what is decided, this rank's failure, and a warning."""
        knowledge, presence, rows, watch = self._knowledge, self._presence, computing.rows, computing.watch
        decider, n = self._decider, rows.n_units
        if (planning := decider.begin(n)) is not None:  # the first call, and the speeds are known
            decider.begun(plan_together(presence, decider, planning)[0])
        self._wire.begin()
        objects, quick = rows.pack is not None, decider.quick_left > 0
        round = knowledge.begin(n, rows.checksum, warm=watch.warm, objects=objects, quick=quick)
        if failed:
            round.fail()
        port = RoundPort(self._wire, knowledge, round, computing, self._loans, decider)
        try:
            carry(watch.slow.around(round), port, presence, self._loans.record, interrupts, quick_s=QUICK_S)
        except BaseException:
            presence.retain(port)
            raise
        assert port.decided is not None
        failed, error = failed or port.failed, round.error
        if failed is None and error is not None and not isinstance(error, RowsDiffer):
            failed = of_rows(error, round.rank, BETWEEN)
        return port.decided, failed, error if isinstance(error, Warning) else None

    def _finish(
        self, decided: Decided, failed: Failed | None, computing: Computing, scalars: dict[str, str], interrupts: Interrupts
    ) -> Balanced:  # fmt: skip
        """Commit the call; return its record."""
        planned_s, steps, act = 0.0, 0, decided.decision.reason.acts
        if act or decided.problem or decided.compare:
            with self._presence.committing():
                planned_s, steps = self._follow(decided, failed, computing, scalars)
        else:
            self._presence.commit(interrupts, ends=True)
        if decided.formed and computing.results.spec is None and self._form is not None:
            computing.results.allocate(self._form)
        last = Balanced(
            act, words_of(decided.decision, decided.rows), decided.imbalance_before, decided.imbalance_after, decided.rows,
            decided.bytes, steps, computing.spent_s + planned_s, decided.decision.gain_s,
        )  # fmt: skip
        self.history.append(last)
        return last

    def _follow(
        self, decided: Decided, failed: Failed | None, computing: Computing, scalars: dict[str, str]
    ) -> tuple[float, int]:  # fmt: skip
        """Collective: follow the decision of all ranks, or raise; return the seconds and the steps of a plan."""
        planned_s, steps, presence, decider = 0.0, 0, self._presence, self._decider
        if decided.problem:
            raise_on_all(presence.comm, failed)
            raise_difference(presence.comm, {"rows": computing.rows.spec.words, **scalars})
        if decided.decision.needs_plan:
            began = time.perf_counter()
            self._loans.record.enter(Phase.PROTOCOL, began)
            plan, steps = plan_together(presence, decider, decider.plan())
            planned_s = time.perf_counter() - began
            decider.follow(plan, planned_s)
        if decided.compare:
            self._agree_on_results(computing.results)
        return planned_s, steps

    def _agree_on_results(self, results: Results) -> None:
        """Collective: BalanceError on all ranks if the form of results differs; ranks that do not know it adopt it."""
        everyone = allgather(self._presence.comm, results.spec)
        try:
            results.compare(everyone)
        except BalanceError as error:
            raise self._presence.on_all(error) from None


_NO_ROWS = Rows(np.zeros(0))


def _check(tolerance: float, when: Any, every: Any, graph: Graph, scheme: str) -> tuple[Trigger, str]:
    hang_s()
    prepare(graph, np.ones(graph.n), "direct")  # warns of components
    return Trigger(when, every, tolerance), rows_scheme(graph, scheme)
