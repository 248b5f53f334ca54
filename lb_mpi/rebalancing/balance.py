"""The memory of a plan from call to call of `rebalance`: costs of vertices, speeds of its rank, decisions.   (pure)"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.graph import Floats
from lb_mpi.knowledge import LEAST, USUAL, MeasuredSpeeds
from lb_mpi.rebalancing.actor import RebalanceOutcome, Undo
from lb_mpi.rebalancing.deciding import (
    MOST_PATIENCE,
    GraphTotals,
    Opportunities,
    RankLoad,
    RebalanceDecision,
    report,
)
from lb_mpi.rebalancing.jobs import Built
from lb_mpi.rebalancing.record import rebalances
from lb_mpi.reduction import Reduction

MOST_LEARNED = 2.0  # factor by which an estimate of a cost changes in a move, at most
NEGLIGIBLE, MOST_COSTS = 1e-100, 1e100  # smaller costs count as 0, larger sums are errors: speeds stay finite


class PlanSpeeds(NamedTuple):
    """The numbers of a rank that are in the unit of its costs."""

    before: float  # load with its vertices before the last move; NaN: that was undone, or there was none
    recent: MeasuredSpeeds  # work per second of its own time, in the last calls
    all: deque[float]  # of all calls, also before moves

    def scaled(self, factor: float) -> PlanSpeeds:
        """Return the same in another unit."""
        speeds = deque((factor * speed for speed in self.all), self.all.maxlen)
        return PlanSpeeds(factor * self.before, MeasuredSpeeds(factor * speed for speed in self.recent), speeds)


class CostsAndSpeeds(NamedTuple):
    """The costs and speeds that a rank knows."""

    costs: Floats
    given: bool  # the costs are the caller's
    speeds: PlanSpeeds


class PlanBalance:
    """All that a plan keeps from call to call of `rebalance`: costs of its vertices, speeds of this rank, decisions."""

    def __init__(self, costs: Floats, first_cut: float = math.inf) -> None:
        self.history = rebalances()
        self.set_costs(costs)  # at first the weights of the vertices
        self.speeds = PlanSpeeds(math.nan, MeasuredSpeeds(), deque(maxlen=USUAL * MOST_PATIENCE))
        self._before: tuple[float, float] | None = None  # computed and queued until the last call; None: no call yet
        self._queued_s = self._own_s = 0.0  # since the last opportunity
        self.loads_kernels = False  # this plan moves vertices by them, and has not loaded them yet
        self.loading_s = 0.0  # in which they were loaded
        self._given = False  # the costs are the caller's
        self.waiting: Any = None  # costs of a call that was no opportunity, unchecked, for the next one without costs
        self.opportunities = Opportunities(first_cut)
        self.undo: Undo | None = None  # how the last move is undone
        self._earlier, self._earlier_load = self.speeds, 1.0  # before it
        self.planned = math.nan  # load after the move that is being considered
        self.learned = True  # what came in it

    def measure(self, own_s: float, queued_s: float, load: float) -> None:
        """Learn this rank's speed: it has computed for `own_s` seconds so far, `queued_s` of them without a core.

        load : the work since the last call.  The time before the first call does not count: functions may have been
        compiled in it.
        """
        if self._before is not None:
            since_s = own_s - self._before[0]
            self._own_s += since_s
            self._queued_s += queued_s - self._before[1]
            if since_s > 0.0 and load > 0.0:
                self.speeds.recent.add(load / since_s)
                self.speeds.all.append(load / since_s)
        self._before = own_s, queued_s

    def report(self, checksum: int = 0, failed: bool = False) -> tuple[RankLoad, Reduction]:
        """Return this rank's load and speed, with the times since the last opportunity, once; and its numbers for all ranks.

        checksum, failed : of this call, as in `report` of `deciding`.
        """
        queued_s, own_s, self._queued_s, self._own_s = self._queued_s, self._own_s, 0.0, 0.0
        speed, latest = self._measured()
        mine = RankLoad(self.load, speed, queued_s, own_s)
        return mine, report(
            mine, checksum=checksum, failed=failed, call_s=self.opportunities.call_s, latest=latest,
            before=self.speeds.before, planned=self.planned,
        )  # fmt: skip

    def decide(self, totals: GraphTotals, size: int) -> RebalanceDecision:
        """Decide, and remember the load that this rank would have after a move that is being considered."""
        decided = self.opportunities.decide(totals, size)
        if not self.opportunities.moves.considered:
            self.planned = math.nan
        elif math.isnan(self.planned) or not decided.lost_s:
            self.planned = self.speed * decided.mean_s
        return decided

    @property
    def speed(self) -> float:
        """Work per second of this rank; NaN: not measured often enough."""
        return self._measured()[0]

    def _measured(self) -> tuple[float, float]:
        """Return the speed, and that of the last calls."""
        patience, arguments = self.opportunities.moves.patience, self.opportunities.arguments
        latest = self.speeds.recent.usual(LEAST if arguments.when == "auto" else 1)
        if patience == 1 or math.isnan(latest):
            return latest, latest
        return statistics.median([*self.speeds.all][-USUAL * patience :] or [latest]), latest

    def given(self, costs: Floats) -> None:
        """Use the caller's costs of the same vertices; the first time, speeds are converted to their unit."""
        before, self.waiting = self.load, None
        self.set_costs(costs)
        if before > 0.0 and self.load > 0.0:
            if self._given:
                self.speeds = self.speeds._replace(before=self.speeds.before * self.load / before)
            else:
                self.speeds = self.speeds.scaled(self.load / before)
        self._given = True

    def set_costs(self, costs: Floats) -> None:
        """Use these (n_local,) costs: the estimated work of each vertex."""
        self.costs = np.where(costs < NEGLIGIBLE, 0.0, costs)
        self.load = float(self.costs.sum())

    def skip(self, spent: tuple[float, float], costs: Any) -> None:
        """Record a call that is no opportunity; spent : as in `measure`; costs : unchecked."""
        load = self.load
        if costs is not None:
            self.waiting, total = _copied(costs)
            load = total if self._given else load  # otherwise in another unit
        self.measure(*spent, load)

    def learn(self, rank: int) -> None:
        """Learn what the vertices cost that came in the last move, or, if none came, those that stayed.

        Their costs are estimates, unless they are given: what this rank needs longer than expected is theirs.
        """
        if self._given or self.undo is None or len(self.speeds.recent) < LEAST:
            return
        self.learned, expected, now = True, self.speeds.recent[0], self.speeds.recent.usual()
        came = self.undo.owners != rank
        if not came.any():
            came[:] = True
        work = float(self.costs[came].sum())
        if work > 0.0:
            before, missing = self.load, self.load * (expected / now - 1.0)
            self.costs[came] *= min(max(1.0 + missing / work, 1.0 / MOST_LEARNED), MOST_LEARNED)
            self.load = float(self.costs.sum())
            factor = self.load / before  # the time that the vertices before the move would take stays the same
            recent = MeasuredSpeeds([factor * now] * LEAST)
            self.speeds = self.speeds._replace(before=factor * self.speeds.before, recent=recent)

    def moved(self, built: Built, ranks: Sequence[int], outcome: RebalanceOutcome) -> None:
        """Record a move, in which `ranks` have got vertices of this one."""
        self.opportunities.moved(outcome.cut, outcome.reason)
        if outcome.reason is BalanceReason.UNDONE:
            self.set_costs(built.costs)  # of the vertices that are back; they may be known better
            known = self.load > 0.0 and self._earlier_load > 0.0  # a rank may have had no work
            earlier = self._earlier.scaled(self.load / self._earlier_load if known else 1.0)
            self.speeds, self.undo = earlier._replace(before=math.nan), None
            return
        self.undo = Undo(built.origin, ranks)
        self._earlier, self._earlier_load = self.speeds, self.load
        self.set_costs(built.costs)
        _, recent, every = self.speeds
        self.speeds = PlanSpeeds(self._earlier_load, recent.moved(), every.copy())
        self.learned = self._given

    @property
    def known(self) -> CostsAndSpeeds:
        """The costs and speeds so far."""
        return CostsAndSpeeds(self.costs, self._given, self.speeds)

    def failed(self, before: CostsAndSpeeds | None = None) -> None:
        """Forget the arguments of the failed call, which may differ between ranks; `before`: what was known before costs."""
        cost_s = self.opportunities.cost_s
        self.opportunities, self.waiting = Opportunities(self.opportunities.first_cut), None
        self.opportunities.cost_s = cost_s
        if before is not None:
            costs, self._given, self.speeds = before
            self.set_costs(costs)


def _copied(costs: Any) -> tuple[Any, float]:
    """Return a copy of costs that nobody has checked, and their sum; 0.0 if there is none."""
    try:
        copy = np.array(costs)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(copy.sum())
    except Exception:  # of the caller's class; it is raised again when the costs are checked
        return costs, 0.0
    return copy, total if NEGLIGIBLE <= total <= MOST_COSTS else 0.0
