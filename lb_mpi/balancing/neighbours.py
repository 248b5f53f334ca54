"""Plans made by neighbours: no root, and no rank that knows all others.   (pure)

Jin & Wang's exchange between neighbours; for the steps see `lb_mpi.diffusion`.

Law.
- A rank knows its own numbers and those of its neighbours: speeds, worths of ticks, times, potentials.  Of all ranks it
  knows sums and maxima, from one reduction in each call.  Sums are of integers, so every tree of a reduction gives the
  same bits, and all ranks decide the same.
- A plan is a generator on each rank, and all ranks yield the same kinds of requests in the same order.  What a rank
  sends to a neighbour depends only on what it has received.  So the order in which ranks go on does not matter.
- Both ends of an edge compute its flow from the same numbers: it differs in the sign only, to the last bit.  So a rank
  expects a loan from a neighbour exactly if the neighbour sends one.
- A rank lends its own rows only, and not more than it has: rows move over one edge in a round.
- All ranks stop after the same step: the largest imbalance is asked for now and then, and the answer is read when the
  next one is due, so that no step waits for it.

The worths of ticks are fitted by relaxation along the edges: the logarithm of a rank's worth becomes the weighted mean
of what the observations on its edges say (see `lb_mpi.balancing.estimate`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.estimate import FORGET, PRIOR
from lb_mpi.balancing.judge import USUAL, Levels, Policy, RankReport, RoundProblem, Verdict, failure
from lb_mpi.balancing.migrate import Plan
from lb_mpi.balancing.trigger import BalanceReason, Trigger
from lb_mpi.checks import choice
from lb_mpi.diffusion.diffusion import MAX_STEPS
from lb_mpi.diffusion.setup import AUTO, OneRank, ThreeTerm, spectrum
from lb_mpi.graph import Floats, Graph, Ints

UNIT = 2.0**-30  # of numbers that are summed as integers
SWEEPS = 8  # exchanges in which the worths are relaxed before a plan
STALLED = 0.005  # relative fall of the imbalance between two answers below which more steps are not worth it
NEAR_SCHEMES = ("fos", "sos")  # need nothing from all ranks in a step


class Reduction(NamedTuple):
    """Numbers of one rank for a reduction over all; the answer is the same on all ranks."""

    sums: Ints
    maxima: Floats


class LoadExchange(NamedTuple):
    """A request: send row k of (deg, n) numbers to neighbour k.  The answer: (deg, n), row k from neighbour k."""

    numbers: Floats


class Ask(NamedTuple):
    """A request: begin a reduction; no answer yet."""

    numbers: Reduction


class Await(NamedTuple):
    """A request: wait for the reduction that was asked for first; the answer is a `Reduction`."""


Request = LoadExchange | Ask | Await
Planning = Generator[Request, Any, tuple[Plan, int]]  # the transfers of one rank, and the number of steps


class _Sums(NamedTuple):
    work: int  # of rows at home, and what could have been done before the rank came
    done: int  # as planned
    busy: int  # actual
    speed: int
    rows: int  # lent
    bytes: int  # sent


class _Maxima(NamedTuple):
    failed: float
    mark: float
    mark_low: float  # the largest -mark
    results: float
    results_low: float
    unknown: float  # the costs of some rows are not known
    home_s: float  # for its rows at home
    now_s: float  # as planned
    busy_s: float  # actual
    spent_s: float
    planned_s: float  # to make the last plan
    first: float  # it has no earlier round
    early_s: float  # the largest -began_s


def _whole(value: float) -> int:
    return round(value / UNIT)


def momentum(graph: Graph, scheme: str) -> float:
    """Return the weight of the second order: 1 for "fos"; for "sos" the optimum for equal speeds; "auto": "fos".

    With Jin and Wang's tau both converge whatever the speeds are.
    """
    if choice("scheme", scheme, (*NEAR_SCHEMES, AUTO)) != "sos":
        return 1.0
    degrees = np.maximum(*(graph.degrees[ends] for ends in graph.edges())) + 1.0
    return 2.0 / (1.0 + math.sqrt(1.0 - (1.0 - min(1.0, spectrum(graph, np.ones(graph.n), 1.0 / degrees).low)) ** 2))


def _pairs(omega: float) -> Iterator[tuple[float, float]]:
    yield 1.0, 0.0
    while True:
        yield omega, omega - 1.0


PLANS = ("root", "neighbours")


def chosen_plan(graph: Graph, scheme: str, plan: str) -> str:
    """Return who makes the plans: `plan`, or the root for "auto"; ValueError for other words."""
    if choice("plan", plan, (*PLANS, AUTO)) == "neighbours":
        choice("scheme", scheme, (*NEAR_SCHEMES, AUTO))
    return "root" if plan == AUTO else plan


class NeighbourJudge:
    """Judges the rounds of `course`, one of `size` ranks, and makes plans; `omega`: see `momentum`."""

    def __init__(self, course: Course, size: int, trigger: Trigger, omega: float = 1.0) -> None:
        self.policy = Policy(trigger)
        self._course, self._size, self._omega = course, size, omega
        near = len(course.neighbours)
        self._mine, self._near = course.place, np.array([course.known.index(rank) for rank in course.neighbours], dtype=int)
        self._seen = np.zeros((near, 2))  # by neighbour q: weight, and weight * log(k_q / k of this rank)
        self._tick_s: deque[float] = deque(maxlen=USUAL)  # seconds per tick in the last rounds
        self._late_s: deque[float] = deque(maxlen=USUAL)  # after the first rank that came
        self._began_s = self._planned_s = 0.0

    def changed(self, *, lending: bool, seconds: float) -> None:
        """Record that the next round has another distribution, which this rank needed `seconds` to plan."""
        self.policy.changed(lending=lending)
        self._planned_s = seconds

    @property
    def _late(self) -> float:
        return float(self._course.late[self._mine])

    @property
    def _speed(self) -> float:
        usual = sorted(self._tick_s)[(len(self._tick_s) - 1) // 2] if self._tick_s else 1.0
        return float(self._course.worth[self._mine]) / usual

    def report(self, report: RankReport) -> Reduction:
        """Learn from this rank's report; return what all ranks learn of it."""
        course, late = self._course, self._late
        if report.ticks > 0.0:
            self._tick_s.append(report.busy_s / report.ticks)
        if report.told:
            self._seen *= FORGET
            for seen in report.told:
                self._seen[np.searchsorted(self._near, seen.other)] += seen.weight, seen.weight * seen.log_ratio
        speed, first = self._speed, math.isnan(report.began_s)
        self._began_s = 0.0 if first else report.began_s
        unknown = math.isnan(report.work)
        work = 0.0 if unknown else report.work + late
        done = max(0.0, report.ticks * float(course.worth[self._mine]) + report.helped) + late
        busy = report.busy_s * speed + late
        sums = _Sums(_whole(work), _whole(done), _whole(busy), _whole(speed), report.rows, report.bytes)
        maxima = _Maxima(
            report.failed, report.mark, -report.mark, report.results, -report.results, unknown, work / speed, done / speed,
            busy / speed, report.spent_s, self._planned_s, first, -self._began_s,
        )  # fmt: skip
        return Reduction(np.array(sums), np.array(maxima, dtype=float))

    def hear(self, all_ranks: Reduction) -> Verdict:
        """Judge the round from the reports of all ranks; the decision is the same on all ranks."""
        course, policy = self._course, self.policy
        total, most = _Sums(*all_ranks.sums.tolist()), _Maxima(*all_ranks.maxima.tolist())
        if most.failed or most.mark != -most.mark_low:
            policy.failed()
            problem = RoundProblem.FAILED if most.failed else RoundProblem.DIFFER
            return failure(problem, course.worth, course.speeds, course.late)
        if self._planned_s or most.planned_s:
            policy.trigger.paid(most.planned_s)
            self._planned_s = 0.0
        balanced_s, mean_s = total.done / total.speed, total.work / total.speed
        known = not most.unknown
        levels = Levels(_above(most.now_s, balanced_s), most.now_s, most.home_s, balanced_s) if known else Levels()
        decision = policy.decide(self._size, levels, most.spent_s)
        course.mean_speed = total.speed * UNIT / self._size
        if decision.reason is BalanceReason.HOME:
            policy.changed(lending=False)
        if not most.first:
            self._late_s.append(self._began_s + most.early_s)
        speeds, late = course.speeds.copy(), course.late.copy()
        speeds[self._mine] = self._speed
        if self._late_s:
            late[self._mine] = self._speed * min(float(np.median(self._late_s)), balanced_s)
        before, after = _above(most.home_s, mean_s) if known else math.nan, _above(most.busy_s, total.busy / total.speed)
        compare = most.results != -most.results_low
        return Verdict(
            RoundProblem.NONE, decision, before, after, total.rows, total.bytes, compare, course.worth, speeds, late
        )

    def levels(self, load: float) -> Generator[Request, Any, tuple[float, float, float]]:
        """Imbalance, seconds of the slowest rank, and balanced seconds, for the loads of all ranks (NaN: no finite sum)."""
        most_s, total, total_speed = yield from self._totals(load, self._speed)
        return _above(most_s, total / total_speed), most_s, total / total_speed

    def plan(self, work: float, *, permanent: bool = False) -> Planning:
        """Plan the transfers that level the ranks, of which this one has rows with `work`.

        `permanent`: of rows that change their owner, in any unit of work; otherwise for the next rounds.
        """
        course, near, size = self._course, self._near, self._size
        if not permanent:
            before = float(course.worth[self._mine])
            yield from self._relax()
            work *= float(course.worth[self._mine]) / before  # it was measured in this rank's own ticks, mostly
        late = 0.0 if permanent else self._late
        speed, load, degree = self._speed, work + late, float(len(near))
        theirs = yield LoadExchange(_to_all(near, speed, degree))
        degrees, speeds = theirs[:, 1], course.speeds.copy()
        speeds[self._mine], speeds[near] = speed, theirs[:, 0]
        course.speeds = speeds
        tau = np.minimum(speed, speeds[near]) / (np.maximum(degree, degrees) + 1.0)  # the paper's
        _, total, total_speed = yield from self._totals(load, speed)
        mean = total / total_speed
        ends = OneRank(course.rank, np.array(course.neighbours, dtype=np.int64), tau)
        scheme = ThreeTerm(ends, load / speed, speed, mean, _pairs(self._omega))
        period, steps, last = max(1, (size - 1).bit_length()), 0, math.inf
        tolerance = self.policy.trigger.tolerance
        while True:
            excess = math.inf if scheme.time < 0.0 else _above(scheme.time, mean)
            yield Ask(Reduction(np.zeros(0, dtype=np.int64), np.array([excess])))
            for _ in range(period):
                ends.heard = (yield LoadExchange(_to_all(near, scheme.time)))[:, 0]
                scheme.step()
            steps += period
            worst = float((yield Await()).maxima[0])
            if worst <= tolerance or worst > (1.0 - STALLED) * last or steps >= MAX_STEPS:
                break
            last = worst
        theirs = yield LoadExchange(_to_all(near, scheme.potential, scheme.time))
        ends.heard = theirs[:, 0]
        return self._transfers(scheme, theirs[:, 1], degrees, work, nothing=1e-13 * total), steps

    def _totals(self, load: float, speed: float) -> Generator[Request, Any, tuple[float, float, float]]:
        """Seconds of the slowest rank, sum of the loads, sum of the speeds.  The sums are in units of the largest number."""
        yield Ask(Reduction(np.zeros(0, dtype=np.int64), np.array([load / speed, load, speed])))
        most_s, *units = (UNIT * (yield Await()).maxima).tolist()
        parts = [round(of / unit) if 0.0 < unit < math.inf else 0 for of, unit in zip((load, speed), units, strict=True)]
        yield Ask(Reduction(np.array(parts), np.zeros(0)))
        total, total_speed = (n * unit for n, unit in zip((yield Await()).sums.tolist(), units, strict=True))
        return most_s / UNIT, total, total_speed

    def _relax(self) -> Generator[Request, Any, None]:
        course, near = self._course, self._near
        theirs = yield LoadExchange(self._seen)
        weight, ratio = self._seen[:, 0] + theirs[:, 0], float(self._seen[:, 1].sum() - theirs[:, 1].sum())
        whole = float(weight.sum()) * (1.0 + PRIOR)
        log = math.log(course.worth[self._mine])
        for _ in range(SWEEPS):
            logs = (yield LoadExchange(_to_all(near, log)))[:, 0]
            if whole > 0.0:  # half-way, so that two ranks do not swap their values
                log = 0.5 * (log + (float(weight @ logs) - ratio) / whole)
        worth = course.worth.copy()
        worth[self._mine] = math.exp(log)
        worth[near] = (yield LoadExchange(_to_all(near, worth[self._mine])))[:, 0]
        course.worth = worth

    def _transfers(
        self, scheme: ThreeTerm, times: Floats, degrees: Floats, work: float, *, nothing: float
    ) -> Plan:
        """Return the transfers over this rank's edges; amounts from other ranks are what they would like to lend."""
        course, flow = self._course, scheme.flow()
        rank, neighbours = course.rank, np.array(course.neighbours, dtype=np.int64)
        moving = np.abs(flow) > nothing
        order = np.lexsort((-flow, np.where(flow > 0.0, rank, neighbours)))
        order = order[moving[order]]
        out, others, amounts = flow[order] > 0.0, neighbours[order], np.abs(flow[order])
        leaving = float(amounts[out].sum())  # of work that passes this rank, only what it has itself
        amounts[out] *= min(1.0, work / leaving if leaving else 1.0)
        speed, theirs = course.speeds[self._mine], course.speeds[self._near][order]
        return Plan(
            np.where(out, rank, others),
            np.where(out, others, rank),
            amounts,
            margins=np.where(out, speed, theirs) * np.where(out, 1.0, -1.0) * (scheme.time - times[order]),
            shares=np.where(out, degrees[order] * speed / theirs, len(neighbours) * theirs / speed),  # at most so many
            seconds=np.zeros(len(order)),  # nothing of a loan is kept at home: neighbours help at once
        )


def _above(value: float, mean: float) -> float:
    return max(0.0, value / mean - 1.0) if mean > 0.0 else 0.0


def _to_all(near: Ints, *numbers: float) -> Floats:
    return np.tile(numbers, (len(near), 1))
