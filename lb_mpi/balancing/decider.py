"""Decides after each call of `map_rows`, on all ranks together, and lets the root make the plan.   (pure)

Law.  A round's ticks measure what each rank computed, its own rows and others'.  Ticks * (seconds per tick) is the time
that it needs for that.  The usual seconds per tick are used, so that a single delay does not trigger balancing.  Time *
speed is the work done; so the balanced time follows without any estimate of row costs.
- All that a rank knows of all others is a few sums and maxima, from one reduction in each call (`lb_mpi.reduction`).  They
  have the same bits on all ranks, so all ranks decide the same.
- As long as no plan lends rows, a rank that needs less time than others has cheaper rows, or is faster: whichever explains
  more is believed.  After that, speeds are known.
- Rows that a rank computed for others because it was dry were not planned: they count where they were planned.
- The kept part of planned loans (`knowledge.kept`) counts for the planned borrower, whoever computed it.
- A rank that comes late to a round, because it needs longer between rounds, has less time for rows: it counts as if it
  had computed rows meanwhile.  So does one that is longer busy with messages, which take their time however few rows it
  computes.  A rank that comes after all could be done counts as if it came just then.
- Only for a plan do more numbers travel: here those of each rank to the root, and the plan to all; in
  `lb_mpi.balancing.neighbours` between neighbours.

Law of quick calls, in which nothing is learned or decided.  A decision says how many of them follow.  Rows are lent in them
as before, blocks are long, dry ranks are helped, and most numbers are missing in the reduction.
- All ranks make the same calls quick: that depends on decisions and sums only.
- A plan changes at the end of a full call only, so on all ranks before the same call.
- If a rank fails, or ranks have rows or results of different forms, all ranks know it at the end of the same call.
- If a call takes much longer than expected, the next one is a full call.  While ranks queue for cores, slow calls are
  expected and ignored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import scipy

from lb_mpi.actor import Await, Story
from lb_mpi.balancing.deciding import (
    CROWDED,
    FORGET,
    UNKNOWN,
    BalanceReason,
    Decided,
    Decision,
    Levels,
    Policy,
    RankReport,
    RoundProblem,
    Trigger,
)
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.round import Learned
from lb_mpi.balancing.transfers import Plan, direct_plan, plan_of
from lb_mpi.balancing.ways import RECENT, Choice, Stay, Ways
from lb_mpi.errors import Error
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.knowledge import USUAL, WEAK, KnownSpeeds, MeasuredSpeeds
from lb_mpi.metrics import above
from lb_mpi.reduction import NONE, Reduction, reduce

PRIOR = 1e-3  # of the largest weight: how strongly ticks of unrelated ranks are assumed equal
DENSE = 256  # ranks up to which the fit is solved as a dense system
LATE, LATE_S = 0.05, 0.5e-3  # a quick call takes too long if it exceeds the usual imbalance by this part, and these seconds
ROOT = 0
UNCHANGED = Decision(BalanceReason.UNCHANGED)


class RootFailed(Error):
    """The root could not make a plan: raised on all ranks, on the root with the error as the cause."""


Planned = tuple[Plan, int]  # the transfers, of all ranks or of this one; and the number of steps
Plot = Generator[Await, Any, Planned]


class _Sums(NamedTuple):
    """Sums over all ranks."""

    work: float  # of rows at home, and what could have been done before the rank came
    done: float  # as planned
    busy: float  # actual
    speed: float
    queued: float  # for cores
    elapsed: float
    home_rate: float  # rows at home in a second
    rows: float  # lent
    bytes: float  # sent
    home: float  # rows

    @property
    def even_s(self) -> float:
        """Seconds of each rank if all needed the same, while no rank has computed rows of others.

        Ranks may be uneven since the costs of their rows differ, or their speeds: whichever explains more.
        """
        return min(self.work / self.speed, self.home / self.home_rate if self.home_rate else math.inf)


class _Maxima(NamedTuple):
    failed: float
    checksum: float
    checksum_low: float  # the largest -checksum
    results: float
    results_low: float
    unknown: float  # the costs of some rows are not known
    home_s: float  # for its rows at home
    now_s: float  # as planned
    busy_s: float  # actual
    spent_s: float
    planned_s: float  # to make the last plan
    first: float  # it has no earlier round
    formed: float  # it has results
    changed: float  # its rows have another form than in the last round
    elapsed_s: float  # without the usual overhead
    last_s: float  # 0: unknown
    early_s: float  # the largest -began_s, with the overhead


class Decider:
    """Decides on the rounds of `knowledge`, one of `size` ranks; a subclass makes the plans."""

    def __init__(self, knowledge: Knowledge, size: int, trigger: Trigger) -> None:
        self.policy = Policy(trigger)
        self.quick_left = 0  # quick calls that follow
        self._n_undecided, self._too_long = 0, False  # calls since the last decision; whether the last one took too long
        self._before, self._usual = math.nan, 0.0  # imbalance in the last full call: with all rows at home, and actual
        self.ways = Ways(trigger.tolerance, auto=trigger.when == "auto" and size > 1)
        self._knowledge, self._size = knowledge, size
        self._seen: dict[int, tuple[float, float]] = {}  # by rank q: weight, and weight * log(k_q / k of this rank)
        self._tick_rates, self._tick_rate = MeasuredSpeeds(), 1.0  # ticks per second in the last rounds; their median
        self._late_s: deque[float] = deque(maxlen=USUAL)  # after the first rank that came
        self._stayed_s: deque[float] = deque(maxlen=RECENT)  # busy, in the last calls at home
        self._began_s = self._planned_s = 0.0
        self._learns = True  # in the call that ends

    def follow(self, plan: Plan | None, seconds: float | None = None) -> None:
        """From the next round on, lend rows by this plan, which all ranks have; None: all rows stay at home.

        `seconds` that this rank needed to plan; None: unknown.
        """
        self._knowledge.follow(plan)
        self.changed(lending=plan is not None)  # the same on all ranks: this one may lend nothing
        self._planned_s = self._planned_s if seconds is None else seconds

    def changed(self, *, lending: bool) -> None:
        """Record that the next round has another distribution."""
        self.policy.changed(lending=lending)

    @property
    def at_home(self) -> bool:
        """In the next call, no rank lends or asks."""
        return self.ways.home or (self._size == 1 and self.quick_left > 0)

    @property
    def learns(self) -> bool:
        """Costs and speeds are learned in the next call: it is no quick one, nor at home after the first ones."""
        return not self.quick_left and (self.ways.learning or not self.ways.home)

    @property
    def neighbours(self) -> list[int]:
        """The ranks of the neighbours."""
        return self._knowledge.neighbours

    @property
    def _late(self) -> float:
        return float(self._knowledge.late[self._knowledge.index])

    @property
    def _tick_work(self) -> float:
        return float(self._knowledge.tick_work[self._knowledge.index])

    @property
    def _speed(self) -> float:
        return self._tick_work * self._tick_rate

    def report(self, report: RankReport, learned: Learned | None = None) -> Reduction:
        """Learn from this rank's report, unless nothing is learned in this call; return what all ranks learn of it.

        `learned`: what the rank has measured of rows; None: the report has it.
        """
        knowledge, home, self._learns = self._knowledge, self.ways.home, self.learns
        if learned is not None and self._learns:
            report = knowledge.learn(learned, report)
        late, tick_work = float(knowledge.late[knowledge.index]), float(knowledge.tick_work[knowledge.index])
        own_s = report.busy_s
        if home or self.ways.learning:  # waiting for a core is mostly noise, no reason to lend; in calls not in busy_s, too
            own_s = max(report.ticks, report.busy_s - report.coreless_s)
        if report.ticks > 0.0 and not self.quick_left:
            self._tick_rate = self._tick_rates.add(report.ticks / own_s)
        if report.observed:  # only what is observed again is forgotten: a borrower may keep its rows for long
            again = {knowledge.known[one.other] for one in report.observed}
            for rank in again & self._seen.keys():
                weight, total = self._seen[rank]
                self._seen[rank] = (FORGET * weight, FORGET * total)
            for index, weight, log_ratio in report.observed:
                before = self._seen.get(other := knowledge.known[index], (0.0, 0.0))
                self._seen[other] = before[0] + weight, before[1] + weight * log_ratio
        speed, first = tick_work * self._tick_rate, math.isnan(report.began_s)
        self._began_s = 0.0 if first else report.began_s + report.overhead_s
        unknown = math.isnan(report.work)
        work = 0.0 if unknown else report.work + late
        if not home:
            self._stayed_s.clear()
        else:
            self._stayed_s.append(report.busy_s)
            work = work if self.ways.learning else median(self._stayed_s) * speed + late  # noise does not last
        done = (own_s * speed if home else max(0.0, report.ticks * tick_work + report.helped)) + late
        busy = report.busy_s * speed + late
        sums = _Sums(
            work, done, busy, speed, report.queued_s, report.elapsed_s, report.home * speed / work if work > 0.0 else 0.0,
            report.rows, report.bytes, report.home,
        )  # fmt: skip
        maxima = _Maxima(
            report.failed, report.checksum, -report.checksum, report.results, -report.results, unknown,
            work / speed, done / speed, busy / speed, report.spent_s, self._planned_s, first, report.formed, report.changed,
            report.elapsed_s - report.overhead_s + late / speed, 0.0 if math.isnan(report.last_s) else report.last_s,
            -self._began_s,
        )  # fmt: skip
        return Reduction(sums, np.array([*maxima, *self._more()] if self._learns else maxima, dtype=float))

    def decide(self, all_ranks: Reduction) -> Decided:
        """Decide on the round from the reports of all ranks, and learn from them; the decision is the same on all ranks."""
        knowledge, policy, own = self._knowledge, self.policy, self._knowledge.index
        n = len(_Maxima._fields)
        total, most = _Sums(*all_ranks.sums), _Maxima(*all_ranks.maxima[:n].tolist())
        if most.failed or most.checksum != -most.checksum_low:
            policy.failed()
            self.restart()
            knowledge.own(None)  # nothing is known of the rows, and none is lent
            problem = RoundProblem.FAILED if most.failed else RoundProblem.DIFFER
            return Decided(problem, Decision(BalanceReason.UNMEASURED), 0.0, 0.0, 0, 0, False, False)
        compare, formed = most.results != -most.results_low or most.results == UNKNOWN, bool(most.formed)
        after = above(most.busy_s, total.busy / total.speed)
        last_s = most.last_s or math.nan
        if not self._learns:
            decision = self._end_quick(total, most, last_s)
            if most.changed:
                self.restart()
                self.ways.lend()  # a program may have several forms in turn
            elif compare:
                self.quick_left = 0
            before = after if self.ways.home else self._before
            return Decided(RoundProblem.NONE, decision, before, after, int(total.rows), int(total.bytes), compare, formed)
        balanced_s, mean_s = total.done / total.speed, total.work / total.speed
        if self._planned_s or most.planned_s:
            policy.trigger.paid(most.planned_s)
            self._planned_s = 0.0
        known = not most.unknown
        even_s = balanced_s if policy.lending else min(balanced_s, total.even_s)
        levels = Levels(above(most.now_s, even_s), most.now_s, most.home_s, even_s) if known else Levels()
        if self.ways.learning:
            decision = self._end_first(total, levels, most.spent_s, last_s)
        else:
            lending, decision = policy.lending, self._ask(levels, most.spent_s)
            home_s = levels.home_s if most.first else levels.home_s - most.early_s
            choice = self.ways.lent(last_s, home_s, planned=decision.act, lending=lending)
            decision = decision if choice is None else self._choose(decision, choice)
        knowledge.mean_speed = total.speed / self._size
        if not most.first:
            self._late_s.append(self._began_s + most.early_s)
        speeds, late = knowledge.speeds.copy(), knowledge.late.copy()
        speeds[own] = self._speed
        if self._late_s:
            late[own] = self._speed * min(median(self._late_s), balanced_s)
        before = above(most.home_s, mean_s) if known else math.nan
        knowledge.know(speeds, late, after)
        decided = Decided(RoundProblem.NONE, decision, before, after, int(total.rows), int(total.bytes), compare, formed)
        self.quick_left, self._before, self._usual = 0 if compare else decision.quick, before, after
        return self._learn_more(decided, all_ranks.maxima[n:])

    def _more(self) -> Floats:
        """Return the numbers of this rank whose maxima all learn in a full call, beside `_Maxima`."""
        return NONE

    def _learn_more(self, decided: Decided, more: Floats) -> Decided:
        """Learn from these maxima; return the decision with that."""
        return decided

    def begin(self, n: int) -> Story[Planned] | None:
        """Plan the first round, in which this rank has `n` rows, if speeds are known from elsewhere; see `begun`."""
        return None

    def begun(self, plan: Plan) -> None:
        """Follow the plan of `begin`."""
        raise NotImplementedError

    def learned(self) -> KnownSpeeds | None:
        """Return the speeds that this rank knows of all, for other doors."""
        return None

    def restart(self) -> None:
        """Begin as at first: nothing is known of the rows."""
        self.quick_left = 0
        self.ways.restart()

    def _end_quick(self, total: _Sums, most: _Maxima, last_s: float) -> Decision:
        """End a quick call, or one at home; the decision."""
        self._n_undecided += 1
        if self.ways.home:
            even_s, own = total.even_s, above(most.now_s, total.done / total.speed)
            choice = self.ways.stayed(last_s, own, most.home_s, even_s)
        else:
            mean_s = total.busy / total.speed
            queued = total.queued / total.elapsed if total.elapsed else 0.0
            self._too_long = queued <= CROWDED and most.elapsed_s > (1.0 + self._usual + LATE) * mean_s + LATE_S
            self.quick_left = 0 if self._too_long else self.quick_left - 1
            choice = self.ways.lent(last_s)
        return UNCHANGED if choice is None else self._choose(UNCHANGED, choice)

    def _end_first(self, total: _Sums, levels: Levels, spent_s: float, last_s: float) -> Decision:
        """End one of the first calls; the decision."""
        decision = self._ask(levels, spent_s)
        pays = decision.reason is not BalanceReason.NO_GAIN
        uneven, numbers = self.ways.learned(last_s, above(levels.home_s, total.even_s), pays=pays)
        first = pays and numbers and not uneven
        return (Decision(BalanceReason.FIRST) if first else decision)._replace(quick=0, about=numbers)

    def _ask(self, levels: Levels, spent_s: float) -> Decision:
        """Ask for the decision on a full call."""
        n_undecided, late, self._n_undecided, self._too_long = self._n_undecided, self._too_long, 0, False
        return self.policy.decide(self._size, levels, spent_s, n_undecided, late=late)

    def _choose(self, decision: Decision, choice: Choice) -> Decision:
        """Return the decision that a choice makes of another one; at home for long, there is no plan."""
        if decision.act:
            self.policy.trigger.dropped()
        if self.ways.home:
            self.quick_left = 0
        if choice.way is Stay.HOME:
            self.follow(None)
        gain_s = abs(choice.home_s - choice.lending_s) * choice.n_calls
        return Decision(BalanceReason[choice.way.name], gain_s, 0 if self.ways.home else decision.quick, str(choice))

    def levels(self, load: float) -> Story[Levels]:
        """Find the levels of the loads of all ranks; NaN: they have no finite sum."""
        return Story(self._levels(load))

    def plan(self, moving: float | None = None) -> Story[Planned]:
        """Plan the transfers that level the ranks, for the next rounds.

        `moving`: this rank's work, in any unit, if rows change their owner.
        """
        return Story(self._plan(moving))

    def _plan(self, moving: float | None) -> Plot:
        raise NotImplementedError

    def _levels(self, load: float) -> Generator[Await, Any, Levels]:
        most_s, total, total_speed = yield from self._totals(load, self._speed)
        return Levels(above(most_s, total / total_speed), most_s, balanced_s=total / total_speed)

    def _totals(self, load: float, speed: float) -> Generator[Await, Any, tuple[float, float, float]]:
        """Seconds of the slowest rank, sum of the loads, sum of the speeds."""
        (total, total_speed), most = yield from reduce([load, speed], [load / speed])
        return float(most[0]), total, total_speed


class RootPlanner(Decider):
    """The root solves for the flow on `graph`, whose vertex k is rank k, from numbers of all ranks."""

    def __init__(self, knowledge: Knowledge, graph: Graph, trigger: Trigger, known: KnownSpeeds | None = None) -> None:
        super().__init__(knowledge, graph.n, trigger)
        self._graph = graph
        used = known is not None and known.complete and trigger.when == "auto" and graph.n > 1
        self._prior = np.array(known.speeds) if known is not None and used else None  # (P,) until the first round is over
        self.restart()
        self._observed = set[int]()  # ranks, on the root

    def restart(self) -> None:
        """See `Decider`: where speeds are known, rows are lent at once."""
        super().restart()
        if self._prior is not None:
            self.ways.lend()

    def begin(self, n: int) -> Story[Planned] | None:
        """See `Decider`: each row counts as a unit of work."""
        if self._prior is None:
            return None
        self._knowledge.tick_work = self._prior
        return self.plan(float(n))

    def begun(self, plan: Plan) -> None:
        """See `Decider`."""
        assert self._prior is not None
        self._knowledge.follow_blind(plan, self._prior)
        self.changed(lending=True)

    def learned(self) -> KnownSpeeds | None:
        """See `Decider`: the root knows them after a plan for which ranks have computed rows of each other."""
        if not self._observed:
            return None
        unsure = [WEAK if rank in self._observed else 1.0 for rank in range(self._size)]
        return KnownSpeeds(tuple(self._knowledge.speeds.tolist()), tuple(unsure))

    def _more(self) -> Floats:
        """See `Decider`: the speed of each rank."""
        speeds = np.zeros(self._size)
        speeds[self._knowledge.rank] = self._speed
        return speeds

    def _learn_more(self, decided: Decided, more: Floats) -> Decided:
        """See `Decider`."""
        self._knowledge.speeds = more
        prior, self._prior = self._prior, None
        if prior is None or math.isnan(decided.imbalance_before):  # costs are still unknown on some rank
            return decided
        decision = Decision(BalanceReason.GAIN, about="the first plan was made without the costs of rows")
        return decided._replace(decision=decision)

    def _plan(self, moving: float | None) -> Plot:
        knowledge, size = self._knowledge, self._size
        seen, late = np.zeros((0, 4)), 0.0
        if moving is None:
            seen = np.array([(knowledge.rank, other, *each) for other, each in self._seen.items()]).reshape(-1, 4)
            late = self._late
        work = knowledge.work_of_rows if moving is None else moving
        mine = np.concatenate([[work, late, self._speed, self._tick_work], seen.ravel()])
        if knowledge.rank == ROOT:
            everyone = [mine]
            for other in range(1, size):
                everyone.append((yield Await((other,)))[other])
            numbers, answer = np.array([one[:4] for one in everyone]).T, np.zeros(0)
            failed = None
            try:
                answer = self._solve(numbers, np.concatenate([one[4:] for one in everyone]))
            except BaseException as error:  # the others wait for an answer, an empty one
                failed = error
            yield Await(sends=[(other, answer) for other in range(1, size)])
            if failed is not None:
                raise RootFailed from failed
        else:
            answer = (yield Await((ROOT,), ((ROOT, mine),)))[ROOT]
            if not len(answer):
                raise RootFailed
        knowledge.tick_work, knowledge.speeds = answer[:size].copy(), answer[size : 2 * size].copy()
        knowledge.mean_speed = float(knowledge.speeds.mean())
        return plan_of(answer[2 * size :]), 1

    def _solve(self, numbers: Floats, seen: Floats) -> Floats:
        """Return the work of a tick and the speed of each rank, and the plan, in a row."""
        work, late, speeds, tick_work = numbers
        own, other, weight, total = seen.reshape(-1, 4).T
        self._observed.update(own.astype(int).tolist(), other.astype(int).tolist())
        fitted = fit(self._size, own.astype(np.int64), other.astype(np.int64), weight, total) if len(own) else tick_work
        better = fitted / tick_work  # work was reported with the old work of a tick, mostly that of the rank's own ticks
        plan = direct_plan(self._graph, (work + late) * better, speeds * better)
        return np.concatenate([fitted, speeds * better, plan.table().ravel()])


def fit(size: int, own: Ints, other: Ints, weight: Floats, total: Floats) -> Floats:
    """(P,) work k of a tick of each rank, > 0, whose geometric mean is 1: least squares of its logarithms.

    Rank own[j] has observed rank other[j]; total is weight * log(k_other / k_own).  A weak pull towards 1 decides between
    unrelated ranks.
    """
    prior = PRIOR * float(weight.max())
    right = np.bincount(other, total, size) - np.bincount(own, total, size)
    if size <= DENSE:  # without scipy.sparse, whose import would take seconds of a slow rank's first plan
        dense = np.zeros((size, size))
        np.add.at(dense, (own, other), weight)
        dense += dense.T
        logs = np.linalg.solve(np.diag(dense.sum(axis=1) + prior) - dense, right)
    else:
        links = scipy.sparse.coo_array((weight, (own, other)), shape=(size, size)).tocsr()
        links = links + links.T
        laplacian = scipy.sparse.diags_array(np.asarray(links.sum(axis=1)).ravel() + prior) - links
        logs = scipy.sparse.linalg.spsolve(laplacian.tocsc(), right)
    return np.asarray(np.exp(logs - logs.mean()))
