"""Plans made by neighbours: no root, and no rank that knows all others.   (pure)

Jin & Wang's exchange between neighbours; for the steps see `lb_mpi.diffusion`.

Law.
- A rank knows its own numbers and those of its neighbours: speeds, work of a tick, times, potentials.  Of all ranks it
  knows sums and maxima, from one reduction in each call.  Sums are of integers, so every tree of a reduction gives the
  same bits, and all ranks decide the same.
- The planning of a rank is an actor (`Planning`), and all ranks send the same kinds of messages in the same order.  It
  waits for one source at a time, and what it sends depends only on what it has received.  So the order in which ranks go
  on does not matter.
- Both ends of an edge compute its flow from the same numbers: it differs in the sign only, to the last bit.  So a rank
  expects a loan from a neighbour exactly if the neighbour sends one.
- The flow becomes transfers on paper, before any row moves.  From the top of the flow downwards, each rank learns from
  the neighbours above it whose work they pass on, passes on that first, and then its own: lots of (owner, amount).
  The answers travel back over the same edges: which rank keeps how much.  So owners lend straight to those ranks, and
  every rank knows from whom it borrows.
- A rank lends its own rows only, and not more than it has, and does not borrow meanwhile.
- A flow has no cycles, so no rank waits for ever.
- All ranks stop after the same step: the largest imbalance is asked for now and then, and the answer is read when the
  next one is due, so that no step waits for it.

The work of a tick is fitted by relaxation along the edges: its logarithm on a rank becomes the weighted mean of what the
observations on its edges say (see `lb_mpi.balancing.knowledge`), and its observations of distant borrowers, whose work of a
tick it has from their last answers.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np

from lb_mpi.balancing.deciding import (
    FORGET,
    PRIOR,
    UNKNOWN,
    USUAL,
    BalanceReason,
    Decided,
    Levels,
    Policy,
    Queue,
    RankReport,
    RoundProblem,
    Trigger,
    failure,
    running,
)
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.transfers import Lots, Plan, take
from lb_mpi.diffusion.diffusion import MAX_STEPS
from lb_mpi.diffusion.setup import OneRank, ThreeTerm, spectrum
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.metrics import above

T_co = TypeVar("T_co", covariant=True)

UNIT = 2.0**-30  # of numbers that are summed as integers
HALF = 2**32  # each in two halves: so sums of days over a million ranks do not overflow
EVEN = 0.2  # of the tolerance: imbalance that is left by a plan
SWEEPS = 2  # exchanges in which the work of a tick is relaxed before a plan, times log2 of the number of ranks
MOMENTUM = 0.6  # of a change, added to the next: fewer sweeps are needed, and two ranks do not swap their values
NOTHING = 1e-13  # of the work of all ranks: smaller flows are rounding errors
STALLED, PATIENCE = 0.005, 4  # stop when the imbalance has not fallen by this part in so many answers


class Reduction(NamedTuple):
    """Numbers of one rank for a reduction over all; the answer is the same on all ranks."""

    sums: Ints = np.zeros(0, dtype=np.int64)
    maxima: Floats = np.zeros(0)


NEAR, ALL = -1, -2  # targets of messages beside ranks: the neighbours, and all ranks


class Next(NamedTuple):
    """Messages that a rank sends, and the source that it awaits then: a rank, NEAR or ALL; None: it goes on at once.

    (n,) numbers to NEAR go to each neighbour, or row k of (deg, n) to neighbour k, and from NEAR comes (deg, n), row k from
    neighbour k.  From ALL comes the `Reduction` of what all ranks have sent to ALL.  A rank gets a table.
    """

    sends: tuple[tuple[int, Any], ...] = ()
    awaited: int | None = None


def _exchange(numbers: Floats) -> Next:
    return Next(((NEAR, numbers),), NEAR)


def _reduce(numbers: Reduction) -> Next:
    return Next(((ALL, numbers),), ALL)


class Planning(Generic[T_co]):
    """One rank of a computation in which ranks send numbers to each other: an actor (`lb_mpi.actor`) without jobs.

    `story` says what the rank does from beginning to end: it yields what it sends and waits for, and gets what arrives.
    """

    job = None
    wake_at = math.inf

    def __init__(self, story: Generator[Next, Any, T_co]) -> None:
        self.over = False
        self.awaited: int | None = None  # a rank, NEAR or ALL
        self._story, self._arrived = story, defaultdict[int, deque[Any]](deque)

    def turn(self, _now: float, arrived: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Take what has arrived, go on until something else is awaited, and return what to send."""
        for source, message in arrived:
            self._arrived[source].append(message)
        sends = list[tuple[int, Any]]()
        while not self.over and (self.awaited is None or self._arrived[self.awaited]):
            message = None if self.awaited is None else self._arrived[self.awaited].popleft()
            try:
                more, self.awaited = self._story.send(message)
                sends += more
            except StopIteration as ended:
                self.over, self.value = True, ended.value
        if self.over and any(self._arrived.values()):
            raise ProtocolError(f"a message from {[rank for rank, some in self._arrived.items() if some]} at the end")
        return sends

    def done(self, job: Any, _result: Any) -> NoReturn:
        """Never called: there is no job."""
        raise ProtocolError(f"{job}: planning has no jobs")

    def fail(self, _error: BaseException) -> list[tuple[int, Any]]:
        """Go on: what is raised between turns is raised again when the plan is made."""
        return []


LOT = 2  # numbers: owner, work


class _Placed(NamedTuple):
    """A lot that stays with a rank: what its owner learns of it, as numbers."""

    owner: float
    borrower: float
    work: float
    tick_work: float  # of the borrower
    speed: float
    time: float  # of the borrower, as planned, in seconds
    n_owners: float  # that lend to the borrower


Planned = tuple[Plan, int]  # the transfers of one rank, and the number of steps


class _Sums(NamedTuple):
    work: int  # of rows at home, and what could have been done before the rank came
    done: int  # as planned
    busy: int  # actual
    speed: int
    rows: int  # lent
    bytes: int  # sent
    queued: int  # for cores
    elapsed: int
    free: int  # speed of ranks that do not queue


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
    free_s: float  # as home_s, if no rank queued for a core


def _whole(value: float) -> int:
    return round(value / UNIT)


def _halves(sums: _Sums) -> Ints:
    """(2 n,) the high and the low half of each number."""
    return np.array([divmod(each, HALF) for each in sums], dtype=np.int64).ravel()


def _joined(halves: Ints) -> _Sums:
    return _Sums(*(high * HALF + low for high, low in halves.reshape(-1, 2).tolist()))


def momentum(graph: Graph, scheme: str) -> float:
    """Return the weight of the second order: 1 for "fos"; for "sos" the optimum for equal speeds.

    With Jin and Wang's tau both converge whatever the speeds are.
    """
    if scheme == "fos":
        return 1.0
    degrees = np.maximum(*(graph.degrees[ends] for ends in graph.edges())) + 1.0
    return 2.0 / (1.0 + math.sqrt(1.0 - (1.0 - min(1.0, spectrum(graph, np.ones(graph.n), 1.0 / degrees).low)) ** 2))


class NeighbourDecider:
    """Decides on the rounds of `knowledge`, one of `size` ranks, and makes plans; `omega`: see `momentum`."""

    def __init__(self, knowledge: Knowledge, size: int, trigger: Trigger, omega: float = 1.0) -> None:
        self.policy = Policy(trigger)
        self._knowledge, self._size, self._omega = knowledge, size, omega
        # By known rank q: weight, and weight * log(k_q / k of this rank).
        self._seen = np.zeros((len(knowledge.known) - 1, 2))
        self._tick_s: deque[float] = deque(maxlen=USUAL)  # seconds per tick in the last rounds
        self._late_s: deque[float] = deque(maxlen=USUAL)  # after the first rank that came
        self._began_s = self._planned_s = 0.0

    def changed(self, *, lending: bool, seconds: float | None = None) -> None:
        """Record that the next round has another distribution, which this rank needed `seconds` to plan (None: unknown)."""
        self.policy.changed(lending=lending)
        self._planned_s = self._planned_s if seconds is None else seconds

    @property
    def neighbours(self) -> list[int]:
        """The ranks of the neighbours."""
        return self._knowledge.neighbours

    @property
    def _near(self) -> slice:
        """The neighbours in the arrays of `Knowledge`; this rank is at 0."""
        return slice(1, 1 + len(self.neighbours))

    @property
    def _late(self) -> float:
        return float(self._knowledge.late[0])

    @property
    def _speed(self) -> float:
        usual = sorted(self._tick_s)[(len(self._tick_s) - 1) // 2] if self._tick_s else 1.0
        return float(self._knowledge.tick_work[0]) / usual

    def report(self, report: RankReport) -> Reduction:
        """Learn from this rank's report; return what all ranks learn of it."""
        knowledge, late = self._knowledge, self._late
        if report.ticks > 0.0:
            self._tick_s.append(report.busy_s / report.ticks)
        if report.observed:
            self._seen *= FORGET
            for seen in report.observed:
                self._seen[seen.other - 1] += seen.weight, seen.weight * seen.log_ratio
        speed, first = self._speed, math.isnan(report.began_s)
        self._began_s = 0.0 if first else report.began_s
        unknown = math.isnan(report.work)
        work = 0.0 if unknown else report.work + late
        done = max(0.0, report.ticks * float(knowledge.tick_work[0]) + report.helped) + late
        busy = report.busy_s * speed + late
        free = speed / running(report.queued_s / report.elapsed_s if report.elapsed_s else 0.0)
        whole = (_whole(value) for value in (report.queued_s, report.elapsed_s, free))
        sums = _Sums(_whole(work), _whole(done), _whole(busy), _whole(speed), report.rows, report.bytes, *whole)
        maxima = _Maxima(
            report.failed, report.mark, -report.mark, report.results, -report.results, unknown, work / speed, done / speed,
            busy / speed, report.spent_s, self._planned_s, first, -self._began_s, work / free,
        )  # fmt: skip
        return Reduction(_halves(sums), np.array(maxima, dtype=float))

    def decide(self, all_ranks: Reduction) -> Decided:
        """RootDecider the round from the reports of all ranks; the decision is the same on all ranks."""
        knowledge, policy = self._knowledge, self.policy
        total, most = _joined(all_ranks.sums), _Maxima(*all_ranks.maxima.tolist())
        if most.failed or most.mark != -most.mark_low:
            policy.failed()
            problem = RoundProblem.FAILED if most.failed else RoundProblem.DIFFER
            return failure(problem, len(knowledge.known))
        if self._planned_s or most.planned_s:
            policy.trigger.paid(most.planned_s)
            self._planned_s = 0.0
        balanced_s, mean_s = total.done / total.speed, total.work / total.speed
        known = not most.unknown
        levels = Levels(above(most.now_s, balanced_s), most.now_s, most.home_s, balanced_s) if known else Levels()
        queue = Queue(total.queued / total.elapsed, most.free_s, total.work / total.free) if total.elapsed else Queue()
        decision = policy.decide(self._size, levels, most.spent_s, queue)
        knowledge.mean_speed = total.speed * UNIT / self._size
        if decision.reason is BalanceReason.HOME:
            policy.changed(lending=False)
        if not most.first:
            self._late_s.append(self._began_s + most.early_s)
        speeds, late = knowledge.speeds.copy(), knowledge.late.copy()
        speeds[0] = self._speed
        if self._late_s:
            late[0] = self._speed * min(float(np.median(self._late_s)), balanced_s)
        before, after = above(most.home_s, mean_s) if known else math.nan, above(most.busy_s, total.busy / total.speed)
        compare = most.results != -most.results_low or most.results == UNKNOWN
        return Decided(
            RoundProblem.NONE, decision, before, after, total.rows, total.bytes, compare, knowledge.tick_work, speeds, late
        )

    def levels(self, load: float) -> Planning[Levels]:
        """Find the levels of the loads of all ranks; NaN: they have no finite sum."""
        return Planning(self._levels(load))

    def plan(self, moving: float | None = None) -> Planning[Planned]:
        """Plan the transfers that level the ranks, for the next rounds.

        `moving`: this rank's work, in any unit, if rows change their owner.
        """
        return Planning(self._plan(moving))

    def _levels(self, load: float) -> Generator[Next, Any, Levels]:
        most_s, total, total_speed = yield from self._totals(load, self._speed)
        return Levels(above(most_s, total / total_speed), most_s, balanced_s=total / total_speed)

    def _plan(self, moving: float | None) -> Generator[Next, Any, Planned]:
        knowledge, near, size = self._knowledge, len(self._knowledge.neighbours), self._size
        if moving is None:
            yield from self._relax()
        late, work = (self._late, knowledge.work_of_rows) if moving is None else (0.0, moving)
        speed, load, degree = self._speed, work + late, float(near)
        theirs = yield _exchange(np.array([speed, degree]))
        speeds = knowledge.speeds.copy()
        speeds[0], speeds[self._near] = speed, theirs[:, 0]
        knowledge.speeds = speeds
        tau = np.minimum(speed, theirs[:, 0]) / (np.maximum(degree, theirs[:, 1]) + 1.0)  # the paper's
        _, total, total_speed = yield from self._totals(load, speed)
        mean = total / total_speed
        ends = OneRank(knowledge.rank, np.array(knowledge.neighbours, dtype=np.int64), tau)
        weights = chain([(1.0, 0.0)], repeat((self._omega, self._omega - 1.0)))
        scheme = ThreeTerm(ends, load / speed, speed, mean, weights)
        period, steps, best, waited = max(1, (size - 1).bit_length()), 0, math.inf, 0
        tolerance = EVEN * self.policy.trigger.tolerance
        while True:
            excess = math.inf if scheme.time < 0.0 else above(scheme.time, mean)
            yield Next(((ALL, Reduction(maxima=np.array([excess]))),))
            for _ in range(period):
                ends.received = (yield _exchange(np.array([scheme.time])))[:, 0]
                scheme.step()
            steps += period
            worst = float((yield Next(awaited=ALL)).maxima[0])
            waited = 0 if worst < (1.0 - STALLED) * best or worst == math.inf else waited + 1
            best = min(best, worst)
            if worst <= tolerance or waited == PATIENCE or steps >= MAX_STEPS:
                break
        ends.received = (yield _exchange(np.array([scheme.potential])))[:, 0]
        kept = yield from self._pass_on(scheme.flow(), work, scheme.time, nothing=NOTHING * total)
        if moving is None:
            self._meet([_Placed(*row) for row in kept.tolist() if row[0] == knowledge.rank])
        return self._transfers(kept, scheme.time), steps

    def _totals(self, load: float, speed: float) -> Generator[Next, Any, tuple[float, float, float]]:
        """Seconds of the slowest rank, sum of the loads, sum of the speeds.  The sums are in units of the largest number."""
        most = yield _reduce(Reduction(maxima=np.array([load / speed, load, speed])))
        most_s, *units = (UNIT * most.maxima).tolist()
        parts = [round(of / unit) if 0.0 < unit < math.inf else 0 for of, unit in zip((load, speed), units, strict=True)]
        sums = (yield _reduce(Reduction(np.array(parts)))).sums
        total, total_speed = (n * unit for n, unit in zip(sums.tolist(), units, strict=True))
        return most_s / UNIT, total, total_speed

    def _relax(self) -> Generator[Next, Any, None]:
        """Fit the work of a tick of this rank, and learn that of its neighbours."""
        knowledge, near = self._knowledge, len(self._knowledge.neighbours)
        theirs = yield _exchange(self._seen[:near])
        weight, ratio = self._seen[:, 0].copy(), float(self._seen[:, 1].sum() - theirs[:, 1].sum())
        weight[:near] += theirs[:, 0]
        whole = float(weight.sum()) * (1.0 + PRIOR)
        logs, before = np.log(knowledge.tick_work), math.log(knowledge.tick_work[0])
        for _ in range(SWEEPS * (self._size - 1).bit_length()):
            logs[self._near] = (yield _exchange(np.array([logs[0]])))[:, 0]
            if whole > 0.0:
                mean = (float(weight @ logs[1:]) - ratio) / whole
                logs[0], before = mean + MOMENTUM * (logs[0] - before), logs[0]
        tick_work = np.exp(logs)
        tick_work[self._near] = (yield _exchange(np.array([tick_work[0]])))[:, 0]
        knowledge.tick_work = tick_work

    def _pass_on(self, flow: Floats, work: float, time: float, *, nothing: float) -> Generator[Next, Any, Floats]:
        """Turn the (deg,) flow from this rank into transfers; (n, 7) each a `_Placed`, of which it is owner or borrower.

        `time`: seconds that this rank needs afterwards.
        """
        knowledge, near = self._knowledge, self.neighbours
        above, below = np.flatnonzero(flow < -nothing), np.flatnonzero(flow > nothing)
        lots: Lots = deque()
        via: dict[int, int] = {}  # by owner: a neighbour that has passed on its work
        for k in above.tolist():
            for owner, amount in (yield Next(awaited=near[k])).reshape(-1, LOT).tolist():
                lots.append((owner, amount))
                via.setdefault(owner, k)
        if work > nothing:
            lots.append((knowledge.rank, work))  # the rest of it stays at home
        for k in below[np.argsort(-flow[below], kind="stable")].tolist():
            yield Next(((near[k], np.array(take(lots, float(flow[k]), nothing)).reshape(-1, LOT)),))
        staying: dict[int, float] = {}
        for owner, amount in lots:
            if owner != knowledge.rank:
                staying[owner] = staying.get(owner, 0.0) + amount
        tick_work, speed = float(knowledge.tick_work[0]), self._speed
        mine = tick_work, speed, time, len(staying)
        kept = [_Placed(owner, knowledge.rank, amount, *mine) for owner, amount in staying.items()]
        table = np.array(kept).reshape(-1, len(_Placed._fields))
        for k in below.tolist():
            table = np.concatenate([table, (yield Next(awaited=near[k])).reshape(-1, len(_Placed._fields))])
        through = np.array([via.get(owner, -1) for owner in table[:, 0].tolist()])
        for k in above.tolist():
            yield Next(((near[k], table[through == k]),))
        return np.asarray(table[(table[:, :2] == knowledge.rank).any(axis=1)])

    def _meet(self, kept: Sequence[_Placed]) -> None:
        """Know the borrowers of this rank's rows."""
        knowledge = self._knowledge
        before = dict(zip(knowledge.known[1:], self._seen, strict=True))
        knowledge.note_others({int(one.borrower): (one.tick_work, one.speed) for one in kept})
        self._seen = np.array([before.get(rank, (0.0, 0.0)) for rank in knowledge.known[1:]]).reshape(-1, 2)

    def _transfers(self, kept: Floats, time: float) -> Plan:
        """Return the transfers from and to this rank; those to it say only which ranks lend."""
        speed = self._speed
        kept = kept[np.lexsort((-kept[:, 2], kept[:, 0]))]
        owners, borrowers, amounts, _, speeds, times, n_owners = kept.T
        return Plan(
            owners.astype(np.int64),
            borrowers.astype(np.int64),
            amounts,
            margins=speed * (time - times),
            shares=n_owners * speed / speeds,
            seconds=np.zeros(len(kept)),  # nothing of a loan is kept at home: neighbours help at once
        )
