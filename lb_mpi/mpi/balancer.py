"""The Balancer: rows of data computed where it's quickest, on ranks that nobody has to know the speeds of."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.balancing.estimate import RowCosts, blocks
from lb_mpi.balancing.judge import WIDTH, Judge, Report, Verdict
from lb_mpi.balancing.migrate import Plan, pick
from lb_mpi.balancing.trigger import HOME, Decision, Trigger, When, check_when
from lb_mpi.diffusion.diffusion import prepare
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.metrics import check_loads
from lb_mpi.mpi.balanced import Balanced
from lb_mpi.mpi.blame import raise_everywhere
from lb_mpi.mpi.collective import agree, agree_on
from lb_mpi.mpi.exchange import fingerprint
from lb_mpi.mpi.flows import Flows
from lb_mpi.mpi.lending import Lending
from lb_mpi.mpi.owning import Owners
from lb_mpi.mpi.process_graph import process_graph
from lb_mpi.mpi.rows import Pack, Rows, Rowset, Spec, Unpack
from lb_mpi.mpi.stopwatch import Stopwatch
from lb_mpi.mpi.waiting import wait

MOST_BLOCKS = 64  # in which a rank times its own rows
LONGEST_WAIT_S = 0.5e-3  # between two looks whether the others are done
BLOCK_S = 5e-3  # and no shorter than this, so that timing costs nothing


class Balancer:
    """Levels the work on rows of data between the ranks of `comm`, however unequal the ranks are.

        with lb_mpi.Balancer(comm) as balancer:
            for step in range(steps):
                dynamics(field)
                columns = balancer.map(physics, columns)

    Collective, as are all methods.  Works on a duplicate of `comm`: traffic of the caller is never disturbed.  Costs and
    speeds are measured (see `estimate`), in what is computed anyway.  They belong to one function: use one Balancer
    for each function whose rows are to be balanced.

    Parameters
    ----------
    graph : the process graph (see `lb_mpi.graph`), vertex k being rank k of `comm`; None: that of a Cartesian communicator,
        otherwise the most square mesh.
    scheme : one of `diffusion.setup.SCHEMES`.  "direct" (the usual one) takes a single collective, which is quickest up to
        hundreds of ranks; the others work between neighbours.
    tau : the rule for the edges' weights, see `lb_mpi.diffusion.diffusion.prepare`.
    tolerance : imbalance (Jin & Wang's I_m) that is good enough.
    when : "auto": when the time that it is expected to save until the next chance exceeds its cost; "always": at every
        chance; a number: when the imbalance is above this bound.
    every : a chance comes in every so many calls.
    speed : emulate a rank of this relative speed, 0 < speed <= 1 (see `lb_mpi.throttle`); may differ by rank.

    ValueError or TypeError on every rank when an argument is wrong on any, or (but for `speed`) not the same on all.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        graph: Graph | None = None,
        scheme: str = "direct",
        tau: str | None = None,
        tolerance: float = 0.05,
        when: When = "auto",
        every: int = 1,
        speed: float = 1.0,
    ) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"comm = {comm!r}: expected an mpi4py intracommunicator")
        # A duplicate has the topology, too, and Open MPI dies when it's asked to make another one from that.
        plain = comm.Get_topology() == MPI.UNDEFINED
        self._comm = comm.Dup() if plain else MPI.Intracomm(comm.Split(0, comm.rank))
        try:
            self.graph = agree(self._comm, lambda: process_graph(comm, graph))
            self._watch = agree(self._comm, lambda: Stopwatch(speed))
            agree(self._comm, lambda: _check(self.graph, scheme, tau, tolerance, when, every))
            agree_on(
                self._comm,
                scheme=scheme,
                tau=tau,
                tolerance=tolerance,
                when=when,
                every=every,
                edges_of_graph=fingerprint(self.graph),
            )
            self._flows = Flows(self._comm, self.graph, scheme, tau, tolerance)
        except Exception:
            self._comm.Free()
            raise
        self._judge = Judge(self._comm.size, Trigger(when, every, tolerance))
        self._owners = Owners(self._comm, self._flows, Trigger(when, every, tolerance))
        self._worth = np.ones(self._comm.size)
        self._speeds = np.ones(self._comm.size)
        self._late = np.zeros(self._comm.size)  # see judge
        self._neighbours = self.graph.neighbours(self._comm.rank).tolist()
        self._ended = math.nan  # when the last call of map came to its end
        self._spec: Spec | None = None  # of the rows of the last call, the same on all ranks
        self._costs: RowCosts | None = None
        self._home_s = 0.0  # time of this rank's own rows in the last call
        self._turn = 0
        self._calls_since = 0  # of map, since rows have changed their owner
        self._plan: Plan | None = None
        self._away: dict[int, Ints] = {}  # rows at home that are lent, by borrower
        self._sources: list[int] = []
        self.last: Balanced | None = None

    @property
    def speeds(self) -> Floats:
        """(P,) speeds as known by now, relative to their mean; the same on all ranks."""
        return np.asarray(self._speeds / self._speeds.mean())

    def map(
        self,
        function: Callable[..., Any],
        rows: Any,
        *more: Any,
        pack: Pack | None = None,
        unpack: Unpack | None = None,
    ) -> Any:
        """Apply `function` to this rank's rows: the results, in their order, as if it had been called here.

        `rows` is a numpy array, or a tuple or list of arrays with the same first dimension n; `more` are further arrays of n
        rows, which are only read.  The function is called as function(block of rows, *blocks of more) with some of the rows,
        of this or another rank, and returns as many, of the same dtypes and shapes (a tuple or list for a tuple or list).
        What it does with one row must not depend on the others in the block: then the results are bit for bit those without
        balancing.  It gets copies, in C order, and may change them; the caller's rows are never written to, and the results
        are new arrays.  It must be the same function on all ranks, and so must dtypes and shapes of one row; the number of
        rows may be any, 0 too.

        With `pack` (object to bytes) and `unpack`, `rows` is a list of objects; the function gets and returns such lists,
        and leaves the objects that it gets as they are.

        On every rank BalanceError when the function fails on any, or returns something else; ValueError or TypeError when
        the rows are no good on any, or differ between ranks.
        """
        comm = self._open()
        began_s = time.perf_counter() - self._ended
        mine: Rows | None = None
        error: Exception | None = None
        try:
            mine = _rows(function, rows, more, pack, unpack)
        except (TypeError, ValueError) as caught:
            error = caught
        else:
            self._receive(mine)
        self._watch.begin()
        lending = Lending(
            comm,
            function,
            mine,
            away=self._away,
            sources=self._sources,
            home=self._blocks(mine.n) if mine is not None else [],
            neighbours=self._neighbours,
            speeds=self._speeds,
            stopwatch=self._watch,
            error=error,
        )
        lending.run()
        began = time.perf_counter()
        told, work = self._learn(lending)
        report = Report(
            failed=float(lending.error is not None),
            mark=mine.spec.mark if mine is not None else 0.0,
            work=work,
            busy_s=self._watch.busy_s,
            ticks=self._watch.ticks,
            spent_s=lending.spent_s,
            rows=lending.rows_lent,
            bytes=lending.bytes_moved,
            helped=self._helped(lending),
            began_s=began_s,
        )
        spent_s = lending.spent_s + time.perf_counter() - began
        verdict, judging_s = self._settle(report.numbers(told))
        if verdict.error:
            self._forget()
            raise_everywhere(comm, lending.error, mine)
        assert mine is not None
        self._spec = mine.spec
        self._calls_since += 1
        decision = Decision(int(verdict.reason), verdict.gain_s)
        steps = 0
        if decision.act:
            began = time.perf_counter()
            steps = self._rebalance(home=decision.reason == HOME)
            judging_s += time.perf_counter() - began
            self._judge.trigger.paid(judging_s)
        self.last = Balanced(
            acted=decision.act,
            reason=decision.words,
            imbalance_before=verdict.imbalance_before,
            imbalance_after=verdict.imbalance_after,
            rows_moved=int(verdict.rows),
            bytes_moved=int(verdict.bytes),
            steps=steps,
            seconds=spent_s + judging_s,
            predicted_gain_s=verdict.gain_s,
        )
        self._ended = time.perf_counter()
        return lending.value

    def migrate(
        self, rows: Any, costs: ArrayLike | None = None, *, pack: Pack | None = None, unpack: Unpack | None = None
    ) -> Any:
        """Move rows to other ranks for good, so that the ranks need the same time for theirs; this rank's new rows.

        `rows` as for `map`.  `costs` (n,) >= 0 in any unit, the same on all ranks; None: as measured in the last call of
        `map` on these rows, otherwise equal.  The result has the rows that stay, in their order, and after them those that
        have come, by the rank that they come from; `rows` itself if nothing was done.

        Errors as for `map`; no rank has lost or got a row then.
        """
        comm = self._open()
        mine = agree(comm, lambda: _rows(None, rows, (), pack, unpack))
        given = agree(comm, lambda: None if costs is None else _check_costs(costs, mine.n))
        agree_on(comm, rows=mine.spec.words, costs_given=given is not None)
        known = self._costs is not None and len(self._costs) == mine.n and self._costs.known
        work = self._costs.work(self._worth) if self._costs is not None and known else None
        moved = self._owners.move(mine, given, work, self._speeds, max(1, self._calls_since))
        self.last = moved.last
        if not moved.last.acted:
            return rows
        self._owned(moved.work)
        return moved.value

    def close(self) -> None:
        """Free what belongs to the MPI; collective.  A second time does nothing."""
        if self._comm != MPI.COMM_NULL:
            self._flows.close()
            self._comm.Free()

    def __enter__(self) -> Balancer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> MPI.Intracomm:
        if self._comm == MPI.COMM_NULL:
            raise RuntimeError("the Balancer has been closed")
        return self._comm

    def _receive(self, rows: Rows) -> None:
        """Make ready for a call of `map`: what is known of the rows at home, and which of them are lent."""
        alike = self._spec is not None and rows.spec.mark == self._spec.mark
        if not alike or self._costs is None:
            self._costs = RowCosts(self._comm.rank, rows.n)
            self._watch.warm = False
            self._away = {borrower: np.zeros(0, dtype=np.int64) for borrower in self._away}
        elif len(self._costs) != rows.n:  # of as many other rows nothing is known but the mean
            mean = float(np.mean(self._costs.work(self._worth))) if len(self._costs) else np.nan
            self._costs = RowCosts(self._comm.rank, rows.n)
            self._costs.ticks[:] = mean / self._worth[self._comm.rank]
            self._pick()

    def _blocks(self, n: int) -> list[Rowset]:
        """The rows that stay at home, in blocks."""
        self._turn += 1
        count = MOST_BLOCKS
        if self._watch.warm and self._home_s > 0.0:
            count = max(1, min(MOST_BLOCKS, int(self._home_s / BLOCK_S)))
        if self._comm.size == 1:
            count = 1
        lent = sum(len(index) for index in self._away.values())
        if lent:
            staying = np.ones(n, dtype=np.bool_)
            for index in self._away.values():
                staying[index] = False
            kept = np.flatnonzero(staying)
            return [kept[part] for part in blocks(len(kept), count, self._turn)]
        parts = blocks(n, count, self._turn)
        if not self._watch.warm and n > 1 and self._comm.size > 1:  # what the first call takes tells nothing
            first = parts[0]
            parts[:1] = [slice(0, 1), *([slice(1, first.stop)] if first.stop > 1 else [])]
        return list(parts)

    def _learn(self, lending: Lending) -> tuple[list[Any], float]:
        """Take in what has been measured; the observations, and the work of the rows at home (NaN: not known)."""
        costs, told = self._costs, []
        if costs is None or lending.error is not None:
            return [], np.nan
        if not self._watch.end():
            self._costs = RowCosts(self._comm.rank, len(costs))
            self._watch.ticks = 0.0
            return [], np.nan
        self._home_s = 0.0
        for index, by, ticks in lending.timed:
            seen = costs.observe(index, by, ticks, self._worth)
            if seen is not None:
                told.append(seen)
        if self._watch.ticks > 0.0:
            home = sum(ticks for _, by, ticks in lending.timed if by == self._comm.rank and ticks == ticks)
            self._home_s = self._watch.busy_s * home / self._watch.ticks
        costs.fill()
        return told, float(costs.work(self._worth).sum())

    def _helped(self, lending: Lending) -> float:
        """Work of this rank's rows that others did beyond the plan, less what it did so for others."""
        given = sum(ticks * float(self._worth[by]) for _, by, ticks in lending.helped)
        return given - lending.help_ticks * float(self._worth[self._comm.rank])

    def _settle(self, numbers: Floats) -> tuple[Verdict, float]:
        """The root hears everybody and decides; the verdict, and the seconds that deciding took."""
        comm = self._comm
        reports = np.empty((comm.size, WIDTH))
        answer = np.empty(len(Verdict._fields) + 3 * comm.size)
        wait(comm.Igather(numbers, reports, 0), LONGEST_WAIT_S)
        began = time.perf_counter()
        if comm.rank == 0:
            verdict = self._judge.hear(reports)
            answer[:] = np.concatenate([verdict, self._judge.worth, self._judge.speeds, self._judge.late])
        judging_s = time.perf_counter() - began
        wait(comm.Ibcast(answer, 0), LONGEST_WAIT_S)
        self._worth, self._speeds, self._late = answer[len(Verdict._fields) :].reshape(3, comm.size)
        return Verdict(*answer[: len(Verdict._fields)].tolist()), judging_s

    def _rebalance(self, *, home: bool) -> int:
        """Another distribution for the calls to come; the number of steps."""
        steps = 0
        self._plan = None
        if not home:
            assert self._costs is not None
            work = float(self._costs.work(self._worth).sum() + self._late[self._comm.rank])
            self._plan, steps = self._flows.plan(work, self._speeds)
        self._pick()
        self._judge.balanced(lending=self._plan is not None and len(self._plan.amounts) > 0)
        return steps

    def _pick(self) -> None:
        """Which rows are lent by the plan."""
        self._away, self._sources = {}, []
        if self._plan is None or self._costs is None:
            return
        rank, plan = self._comm.rank, self._plan
        self._sources = plan.sources[plan.destinations == rank].tolist()
        targets = plan.destinations[plan.sources == rank].tolist()
        items = [np.zeros(0, dtype=np.int64)] * len(targets)
        if self._costs.known:
            items = pick(self._costs.work(self._worth), plan.of(rank)).items
        self._away = dict(zip(targets, items, strict=True))

    def _forget(self) -> None:
        """After an error: nothing is known of the rows, and nothing is lent."""
        self._costs, self._spec, self._plan = None, None, None
        self._away, self._sources = {}, []
        self._judge.balanced(lending=False)

    def _owned(self, work: Floats | None) -> None:
        """Rows have changed their owner: this rank's new ones cost `work`, if that is known."""
        self._forget_plan()
        self._costs = None
        if work is not None:
            self._costs = RowCosts(self._comm.rank, len(work))
            self._costs.ticks[:] = work / self._worth[self._comm.rank]

    def _forget_plan(self) -> None:
        self._plan, self._calls_since = None, 0
        self._away, self._sources = {}, []
        self._judge.balanced(lending=False)


def _rows(
    function: Any, rows: Any, more: Sequence[Any], pack: Pack | None, unpack: Unpack | None
) -> Rows:
    if function is not None and not callable(function):
        raise TypeError(f"function = {function!r}: expected a function")
    return Rows(rows, more, pack=pack, unpack=unpack)


def _check_costs(costs: ArrayLike, n: int) -> Floats:
    return check_loads(costs, n, name="costs") if n or np.size(costs) else np.zeros(0)


def _check(graph: Graph, scheme: str, tau: str | None, tolerance: float, when: When, every: int) -> None:
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0.0 < tolerance < math.inf:
        raise ValueError(f"tolerance = {tolerance!r}: expected a finite number > 0")
    check_when(when, every)
    prepare(graph, np.ones(graph.n), scheme, tau)
