"""The end of a round: the ranks' reports, and the root's evaluation: speeds, imbalance, whether to balance.   (pure)

Law.  A round's ticks measure what each rank computed, its own rows and others'.  Ticks * (seconds per tick) is the time
that it needs for that.  The usual seconds per tick are used, so that a single delay does not trigger balancing.  Time *
speed is the work done; so the balanced time follows without any estimate of row costs.
- Rows that a rank computed for others because it was dry were not planned: they count where they were planned.
- The kept part of planned loans (`round.kept`) counts for the planned borrower, whoever computed it.
- A rank that comes late to a round, because it needs longer between rounds, has less time for rows: it counts as if it
  had computed rows meanwhile.  A rank that comes after all could be done counts as if it came just then.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from enum import IntEnum
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from lb_mpi.balancing.estimate import Observation, Worths, smooth
from lb_mpi.balancing.migrate import Plan, direct_plan
from lb_mpi.balancing.trigger import BalanceReason, Decision, Trigger
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import imbalance

N_TOLD = 4  # observations in one report: the heaviest

_TYPES = {bool: "?", int: "<i8", float: "<f8"}  # of numbers in a message, by annotation
Records = NDArray[np.void]


def _columns(of: type) -> list[Any]:
    """The numbers of a named tuple, as fields of a dtype."""
    return [(name, _TYPES[kind]) for name, kind in get_type_hints(of).items() if kind in _TYPES]


class RankReport(NamedTuple):
    """The report of one rank after a round."""

    failed: bool  # the user's function or rows are invalid on this rank
    mark: int  # of the rows' Spec
    results: int  # mark of the results' Spec; 0: no results on this rank
    work: float  # of its rows at home, units of work; NaN: unknown
    busy_s: float  # spent on rows: computing, resting (emulated), copying, serving messages
    ticks: float  # counted meanwhile
    spent_s: float  # for packing, sending, and joining
    rows: int  # lent
    bytes: int  # sent
    helped: float = 0.0  # work of rows that others computed because they were dry, minus its own such work
    began_s: float = math.nan  # from the end of the last round to the start of this one; NaN: no last round
    told: tuple[Observation, ...] = ()  # of the worth of other ranks' ticks; only the heaviest are sent

    def fields(self) -> tuple[Any, ...]:
        """Return a tuple for an array of dtype REPORT."""
        told = sorted(self.told, key=lambda seen: -seen.weight)[:N_TOLD]
        return *self[:-1], len(told), [*told, *[(0, 0.0, 0.0)] * (N_TOLD - len(told))]


REPORT = np.dtype([*_columns(RankReport), ("n_told", "<i8"), ("told", _columns(Observation), (N_TOLD,))])


class RoundProblem(IntEnum):
    """The reason why a round has failed."""

    NONE = 0
    FAILED = 1  # a rank has failed
    DIFFER = 2  # the ranks' rows differ
    JUDGE = 3  # the root could not evaluate the reports


class Verdict(NamedTuple):
    """The root's answer to all ranks."""

    problem: RoundProblem
    decision: Decision
    imbalance_before: float  # with all rows at home; NaN: unknown
    imbalance_after: float  # actual, in this round
    rows: int  # lent, on all ranks
    bytes: int  # sent, on all ranks
    compare: bool  # results look different on some ranks, or some have none
    worth: Floats  # (P,) of a tick of each rank, in units of work
    speeds: Floats  # (P,) units of work per second
    late: Floats  # (P,) work that each rank could have done before it came
    plan: Plan | None = None  # for the next calls, if the root alone has made one

    @property
    def words(self) -> str:
        """Say what was decided, and what was lent meanwhile."""
        lent = f"; {self.rows:,} rows were lent in this call" if self.rows else ""
        return self.decision.words + lent

    def record(self) -> Records:
        """(1,) of the dtype `verdict_dtype`, with the number of transfers for a plan."""
        n_transfers = -1 if self.plan is None else len(self.plan.amounts)
        fields = (self.problem, *self.decision, *self[2:-1], n_transfers)
        return np.array([fields], dtype=verdict_dtype(len(self.worth)))


def failure(problem: RoundProblem, worth: Floats, speeds: Floats, late: Floats) -> Verdict:
    """Return the verdict on a round with a problem."""
    return Verdict(problem, Decision(BalanceReason.UNMEASURED), 0.0, 0.0, 0, 0, False, worth, speeds, late)


@functools.cache
def verdict_dtype(size: int) -> np.dtype[Any]:
    """Return the dtype of a Verdict for `size` ranks, without its plan, which travels apart; n_transfers -1: none."""
    first = [("problem", "<i8"), ("reason", "<i8"), ("gain_s", "<f8"), *_columns(Verdict)]
    each = [(name, "<f8", (size,)) for name in ("worth", "speeds", "late")]
    return np.dtype([*first, *each, ("n_transfers", "<i8")])


def verdict_of(record: Records) -> Verdict:
    """Read a Verdict from `Verdict.record`, without its plan."""
    problem, reason, gain_s, *rest, _ = record[0].item()
    return Verdict(RoundProblem(problem), Decision(BalanceReason(reason), gain_s), *rest)


class Levels(NamedTuple):
    """Seconds that ranks need for rows; NaN: unknown."""

    imbalance: float = math.nan  # in this round, as planned
    now_s: float = math.nan  # of the slowest rank, as planned
    home_s: float = math.nan  # of the slowest rank, if all rows were at home
    balanced_s: float = math.nan  # of each rank, if all needed the same


class Policy:
    """Decides after each round whether the distribution changes, and when all rows go home."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.lending = False
        self._rounds = 0  # since the costs of all rows are known
        self._plain_s = self._moving_s = 0.0  # spent in a round without lending; and more with lending
        self._fresh = False  # the last round was the first with its distribution

    def changed(self, *, lending: bool, seconds: float | None = None) -> None:
        """Record that the next round has another distribution, which took `seconds` to decide on (None: not known)."""
        self.lending = self._fresh = lending
        if seconds is not None:
            self.trigger.paid(seconds)

    def failed(self) -> None:
        """Record that nothing is known of the rows any longer, and all are at home."""
        self.changed(lending=False)
        self._rounds = 0

    def decide(self, size: int, levels: Levels, spent_s: float) -> Decision:
        """Decide for `size` ranks, one of which spent `spent_s` on packing, sending, and joining, the others less."""
        if size == 1:
            return Decision(BalanceReason.ALONE)
        self._rounds = 0 if math.isnan(levels.home_s) else self._rounds + 1
        auto = self.trigger.when == "auto"
        if self._rounds < 1 + auto:
            return self.trigger.decide(math.nan, math.nan, math.nan)
        if self.lending:
            self._moving_s = smooth(self._moving_s, max(0.0, spent_s - self._plain_s))
        else:
            self._plain_s = smooth(self._plain_s, spent_s)
        if self._fresh:
            self.trigger.come_true(levels.now_s)
            self._fresh = False
        if self.lending and auto and levels.home_s < levels.now_s + self._moving_s:
            return Decision(BalanceReason.HOME, levels.now_s + self._moving_s - levels.home_s)
        moving_s = 0.0 if self.lending else self._moving_s
        return self.trigger.decide(levels.imbalance, levels.now_s, levels.balanced_s, moving_s)


USUAL = 5  # rounds over which the median of seconds per tick is taken


class Judge:
    """Evaluates the reports on the root, and makes the plans; vertex k of `graph` is rank k."""

    def __init__(self, graph: Graph, trigger: Trigger) -> None:
        size = graph.n
        self.policy, self._graph = Policy(trigger), graph
        self.speeds = np.ones(size)
        self.late = np.zeros(size)  # work that a rank could have done before it came
        self._worths = Worths(size)
        self._tick_s = np.full((USUAL, size), np.nan)  # seconds per tick in the last rounds, newest last
        self._began_s: deque[Floats] = deque(maxlen=USUAL)

    def hear(self, reports: Records) -> Verdict:
        """Judge the (P,) reports of a round."""
        failed, worth_before = reports["failed"].any(), self._worths.values
        if failed or (reports["mark"] != reports["mark"][0]).any():
            self.policy.failed()
            return failure(RoundProblem.FAILED if failed else RoundProblem.DIFFER, worth_before, self.speeds, self.late)
        worth = self._learn(reports)
        done = np.maximum(reports["ticks"] * worth + reports["helped"], 0.0)  # as planned
        self._wait_for(reports["began_s"], float(done.sum()))
        before = _imbalance(reports["work"] + self.late, self.speeds)
        after = _imbalance(reports["busy_s"] * self.speeds + self.late, self.speeds)
        decision = self.policy.decide(len(reports), self._levels(reports["work"], done), float(reports["spent_s"].max()))
        moved = int(reports["rows"].sum()), int(reports["bytes"].sum())
        compare = bool((reports["results"] != reports["results"][0]).any())
        plan = None
        if decision.act and decision.reason is not BalanceReason.HOME:
            # Work was reported with the old worths, mostly that of the rank's own ticks.
            plan = direct_plan(self._graph, reports["work"] * (worth / worth_before) + self.late, self.speeds)
        return Verdict(
            RoundProblem.NONE, decision, before, after, *moved, compare, worth, self.speeds, self.late, plan
        )

    def _learn(self, reports: Records) -> Floats:
        """Return the (P,) worths of a tick of each rank, and update the speeds."""
        rank, place = np.nonzero(np.arange(N_TOLD) < reports["n_told"][:, None])
        seen = reports["told"][rank, place]
        self._worths.tell(rank, seen["other"], seen["weight"], seen["log_ratio"])
        ticks, measured = reports["ticks"], reports["ticks"] > 0.0
        self._tick_s[:-1, measured] = self._tick_s[1:, measured]
        self._tick_s[-1, measured] = reports["busy_s"][measured] / ticks[measured]
        usual = _median_low(self._tick_s)
        known = np.sort(usual[~np.isnan(usual)])
        usual[np.isnan(usual)] = known[(len(known) - 1) // 2] if len(known) else 1.0
        self.speeds = self._worths.values / usual
        return self._worths.values

    def _wait_for(self, began_s: Floats, work: float) -> None:
        if not np.isnan(began_s).any():
            self._began_s.append(began_s - began_s.min())
        if self._began_s:
            late_s = np.median(self._began_s, axis=0)
            self.late = self.speeds * np.minimum(late_s, end_s(work, self.speeds, late_s))

    def _levels(self, work: Floats, done: Floats) -> Levels:
        if np.isnan(work).any():
            return Levels()
        done = done + self.late
        home_s = float(((work + self.late) / self.speeds).max())
        balanced_s = float(done.sum() / self.speeds.sum())
        return Levels(_imbalance(done, self.speeds), float((done / self.speeds).max()), home_s, balanced_s)


def end_s(work: float, speeds: Floats, late_s: Floats) -> float:
    """Seconds until `work`, freely divisible, is done by ranks of (P,) speeds that start after (P,) late_s >= 0."""
    order = np.argsort(late_s)
    s, late = speeds[order], late_s[order]
    ends = (work + np.cumsum(s * late)) / np.cumsum(s)  # by the first 1, 2, .. of them
    return float(ends.min())


def _imbalance(work: Floats, speeds: Floats) -> float:
    return imbalance(work, speeds) if np.isfinite(work).all() else math.nan


def _median_low(table: Floats) -> Floats:
    """(P,) lower medians of the columns of a (K, P) table, ignoring NaN; NaN for columns without numbers."""
    ordered = np.sort(table, axis=0)  # NaN last
    n = np.count_nonzero(~np.isnan(table), axis=0)
    return np.asarray(ordered[np.maximum(n - 1, 0) // 2, np.arange(table.shape[1])])
