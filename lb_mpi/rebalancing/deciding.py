"""The decision whether a graph is rebalanced, and the calls in which it is made.   (pure)

In a call that is an opportunity, all ranks report: a reduction adds up a few numbers of each.  All decide the same, and
vertices move (`lb_mpi.rebalancing.actor`) or not.  Other calls end at once.

Law.
- Calls are opportunities, and decisions are equal, on all ranks: both depend on reductions only, whose results have the same
  bits on all ranks.  The sums are of integers, so every tree of a reduction gives the same.
- If arguments are wrong on a rank, or differ between ranks, all ranks notice it at the same opportunity.
- With "auto", opportunities are as frequent as it pays.  In the calls between, no rank communicates or checks arguments;
  costs are kept for the next opportunity.

An opportunity costs the time `call_s`.  Rare ones delay the reaction to a change, by half an interval on average.  If a
change comes every T steps of the program, and half of the time is lost until it is noticed, both losses together are least
with an interval of sqrt(4 T call_s / step_s) calls, where `step_s` is the time of the slowest rank.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from lb_mpi.balancing.deciding import CROWDED, BalanceReason, When, smooth
from lb_mpi.knowledge import JUMP, USUAL
from lb_mpi.reduction import Reduction

USUAL_STEPS = 250  # from one change to the next
HEAVY = 1.2  # times the first cut: so heavy a cut loses time in each step, until another move, from the new homes,
HEAVY_PART = 0.02  # of the time of a step: an assumption, by which another move pays after fifty times its cost
LIGHTER = 0.97  # times the cut before: such a move has made it lighter, and the next one may, too
ROUNDS = 30  # about so many messages of a rebalancing follow one another
LEAST_PART = 0.125  # of the imbalance, that a move is to take away
PAUSE = 64  # opportunities after moves in vain
MOST_MEMORY = 64  # times the usual number of calls of which the speeds of ranks are the median
STILL = 0.5  # of the saving of new parts: others that save less no longer fit
MOST_SAVED = 8.0  # times the cost of a move, that count of what earlier ones have saved: changes may become shorter
NOISE = 0.01  # of the time of a step: a move that is expected to save less, or costs as much, is not worth it
LEAST_CORE = 0.1  # of its time, that a rank counts as having a core
MOST_INTERVAL = 64  # calls from one opportunity to the next


class RankLoad(NamedTuple):
    """A rank's load and speed, as it reports them."""

    load: float  # estimated work of its vertices
    speed: float  # work per second; NaN: not measured yet
    queued_s: float = 0.0  # without a core, of `own_s`
    own_s: float = 0.0  # computed since the last opportunity


class LoadSums(NamedTuple):
    """The sums over all ranks."""

    load: float
    speed: float  # of the ranks that have been timed
    free: float  # their speeds if they never queued for a core
    queued_s: float
    own_s: float
    n_timed: float


class Maxima(NamedTuple):
    """The maxima over all ranks."""

    failed: float  # its arguments are wrong
    checksum: float  # of what must be the same on all ranks
    minus_checksum: float
    unmeasured: float  # it has work, and has not been timed
    load: float
    speed: float
    seconds: float  # that it needs for its load
    free_s: float  # of these, with a core
    minus_call_s: float  # seconds of an opportunity at which nothing moves
    grown_s: float  # seconds that it needs, if it got vertices in the last move
    home_s: float  # seconds that it would need, at its latest speed, for its load before the first move
    now_s: float  # and for that of now
    planned_s: float  # and for that after a move which is being considered


class GraphTotals(NamedTuple):
    """The sums and maxima over all ranks."""

    sums: LoadSums
    most: Maxima

    @property
    def differs(self) -> bool:
        """True if the ranks have given different arguments."""
        return self.most.checksum != -self.most.minus_checksum

    @property
    def call_s(self) -> float:
        """Seconds of an opportunity at which nothing moves, without waiting for late ranks; 0.0: not known yet."""
        return max(0.0, -self.most.minus_call_s)

    @property
    def interval(self) -> int:
        """The number of calls from one opportunity to the next, at least 1, with "auto"."""
        step_s = self.most.seconds
        calls = math.sqrt(4.0 * USUAL_STEPS * self.call_s / step_s) if step_s > 0.0 else 0.0
        return int(min(max(1.0, calls), MOST_INTERVAL))


def report(
    mine: RankLoad, *, checksum: int = 0, failed: bool = False, call_s: float = 0.0, grown: bool = False,
    latest: float = math.nan, home: float = math.nan, planned: float = math.nan,
) -> Reduction:  # fmt: skip
    """Return the numbers of a rank.

    `call_s`: seconds of an opportunity without a move; `grown`: it got vertices in the last move; `latest`: its speed in the
    last calls; `home`: its load before the first move; `planned`: after one that is being considered; NaN: unknown, none.
    """
    timed = not math.isnan(mine.speed)
    speed = mine.speed if timed else 0.0
    has_core = max(1.0 - mine.queued_s / mine.own_s, LEAST_CORE) if mine.own_s > 0.0 else 1.0  # of its time
    seconds = mine.load / speed if timed else 0.0
    sums = LoadSums(mine.load, speed, speed / has_core, mine.queued_s, mine.own_s, timed)
    now_s = mine.load / latest
    most = Maxima(
        failed, checksum, -checksum, not timed and mine.load > 0.0, mine.load, speed, seconds, seconds * has_core,
        -call_s, now_s if grown else 0.0, home / latest, now_s, planned / latest,
    )  # fmt: skip
    numbers = np.array(most, dtype=float)
    numbers[np.isnan(numbers)] = seconds
    return Reduction(sums, numbers)


def totals_of(reduced: Reduction) -> GraphTotals:
    """Return the totals, from the reduction of all reports."""
    return GraphTotals(LoadSums(*reduced.sums), Maxima(*reduced.maxima.tolist()))


class Arguments(NamedTuple):
    """The arguments of a call, checked, that must be the same on all ranks."""

    when: When = "auto"
    every: int = 1
    tolerance: float = 0.05
    imbalance: float = 0.03


ARGUMENTS = Arguments()


class RebalanceDecision(NamedTuple):
    """The decision, the same on all ranks, and what it follows from."""

    reason: BalanceReason
    before: float = math.nan  # imbalance of the loads
    mean_s: float = math.nan  # the time of each rank in perfect balance
    mean_speed: float = math.nan
    cost_s: float = math.nan  # expected cost of a move
    lost_s: float = math.nan  # so far, by not moving
    undo_s: float | None = None  # of the slowest rank before the last move, which is to be undone
    due: int = MOST_INTERVAL  # calls until the losses reach the cost

    @property
    def act(self) -> bool:
        """True if vertices are to move."""
        return self.reason.acts and self.before > 0.0


class Promises:
    """The moves of a plan, compared with what was measured after them, the same on all ranks.

    Costs and speeds are estimates, and may be wrong: if no costs are given, a rank with expensive vertices looks slow.  So a
    move is undone if a rank that got vertices now needs longer than the slowest rank before it.  After one that was in vain,
    as also one for which no better parts were found, the next one takes away half as much of the imbalance.  After two in a
    row, nothing moves until the time of the slowest rank changes, or for 64 opportunities, then 128, ...
    """

    def __init__(self) -> None:
        self.part = 1.0  # of the imbalance, that the next move is to take away
        self._before_s: float | None = None  # of the slowest rank before the last move, not yet compared
        self._in_vain = 0  # in a row
        self._pause = 0  # opportunities until the next move
        self._paused_s = 0.0  # of the slowest rank when the pause began

    def make(self, before_s: float) -> None:
        """Record a move, before which the slowest rank needed this time: it promises to be faster."""
        self._before_s = before_s

    def breach(self, slowest_s: float) -> None:
        """Record a move that was undone, or that no better parts were found."""
        self._in_vain += 1
        self.part = max(0.5 * self.part, LEAST_PART)
        self._pause, self._paused_s = PAUSE << min(self._in_vain - 2, 4) if self._in_vain > 1 else 0, slowest_s

    def compare(self, grown_s: float) -> float | None:
        """Compare the last move with what ranks need that got vertices; return the time before, if it is to be undone."""
        before_s, self._before_s = self._before_s, None
        if before_s is None:
            return None
        if grown_s > before_s * (1.0 + NOISE):
            self.breach(before_s)
            return before_s
        self._in_vain, self.part = 0, min(1.0, 2.0 * self.part)
        return None

    def forbid(self, slowest_s: float) -> bool:
        """Return whether a move has to wait."""
        if self._pause and not slowest_s / JUMP <= self._paused_s <= slowest_s * JUMP:
            self._in_vain, self._pause, self.part = 0, 0, 1.0
        self._pause = max(0, self._pause - 1)
        return self._pause > 0


class Payback:
    """The rule that a move has to pay, with "auto", by what is measured; the same on all ranks.

    At each opportunity, the ranks measure what a step would take at their latest speeds with parts that they don't have:
    those that fitted when the imbalance began, and the first ones.  So they know
    - what would have been saved if they had moved at once.  Once that is more than the cost of the last move, they move.  It
      begins anew when those parts save less than half of what new ones would: the speeds have changed again.
    - what all moves so far have saved, less their costs.  If that is negative at the next move, changes were too short: from
      then on, the speed of a rank is the median of twice as many calls; of half as many, where moves have paid.
    """

    def __init__(self) -> None:
        self.memory = 1  # times the usual number of calls of which the speeds of ranks are the median
        self.lost_s = 0.0  # by not moving at once
        self.considered = False  # a move
        self._saved_s = 0.0  # by all moves, less their costs

    def measure(self, most: Maxima, calls: int, level_s: float) -> None:
        """Record the steps since the last opportunity; one would take `level_s` if all ranks were level."""
        self._saved_s += calls * (most.home_s - most.now_s)
        self.lost_s += calls * (most.now_s - most.planned_s)
        if self.considered and most.now_s - most.planned_s < STILL * (most.now_s - level_s):
            self.forget()

    def forget(self) -> None:
        """Consider no move."""
        self.considered, self.lost_s = False, 0.0

    def pays(self, gain_s: float, cost_s: float) -> bool:
        """Return whether to move; `gain_s`: the saving until the next opportunity."""
        if self.lost_s + gain_s <= cost_s:
            self.considered = True
            return False
        if self._saved_s < 0.0:
            self.memory = min(2 * self.memory, MOST_MEMORY)
        elif self._saved_s > cost_s:
            self.memory = max(self.memory // 2, 1)
        self._saved_s = min(max(self._saved_s, -MOST_SAVED * cost_s), MOST_SAVED * cost_s) - cost_s
        self.forget()
        return True


class Opportunities:
    """The opportunities of a plan, and what is decided at them, the same on all ranks.

    A vertex moves at most one rank in a move, so a large move leaves a heavy cut.  Later moves refine it, once the parts
    have held for long enough to pay for them, until one improves the cut by less than 3 %.
    """

    def __init__(self, first_cut: float = math.inf, arguments: Arguments = ARGUMENTS) -> None:
        self.first_cut = first_cut or math.inf  # 0, as of one part, or infinite: no cut is heavy
        self.arguments = arguments  # of the last opportunity
        self.cost_s = 0.0  # of a move, as measured
        self._heavy = False  # the cut after the last move, and another one may make it lighter
        self._cut = math.inf  # after the last move
        self._cut_s = 0.0  # lost by it since then
        self.promises = Promises()
        self.payback = Payback()
        self._number = 0  # of the call
        self._calls = 0  # since the last opportunity
        self.before = math.nan  # imbalance at the last one
        self._calls_s = deque[float](maxlen=USUAL)  # seconds of this rank's last ones at which nothing moved
        self.call_s = 0.0  # of the quickest of those: the others were longer by chance
        self._skipped = 0  # calls until the next one

    def skips(self) -> bool:
        """Begin a call; return True if it is no opportunity."""
        self._number += 1
        self._calls += 1
        if not self._skipped and self._number % self.arguments.every == 0:
            return False
        self._skipped = max(0, self._skipped - 1)
        return True

    def record_call(self, seconds: float) -> None:
        """Record how long this rank's last one took, at which nothing moved."""
        self._calls_s.append(seconds)
        self.call_s = min(self._calls_s)

    def paid(self, seconds: float) -> None:
        """Record what a move has cost, also one that was dropped."""
        self.cost_s = smooth(self.cost_s or math.nan, seconds)

    def moved(self, cut: float, reason: BalanceReason) -> None:
        """Record a move for this reason, after which the parts have this cut; the next call is to show what it has saved."""
        if self.arguments.when != "always" and reason is not BalanceReason.CUT:
            self._skipped = 1
        helps = reason is not BalanceReason.CUT or cut < LIGHTER * self._cut
        self._heavy, self._cut = cut > HEAVY * self.first_cut and helps, cut
        self._cut_s = 0.0

    def decide(self, totals: GraphTotals, size: int) -> RebalanceDecision:
        """Decide at this opportunity, and when the next one comes; `size`: the number of ranks."""
        decided = self._decided(totals, size)
        self.before, reason = decided.before, decided.reason
        self._heavy = self._heavy and reason is not BalanceReason.CUT
        self._skipped = 0
        if self.arguments.when == "auto" and reason not in (BalanceReason.UNMEASURED, BalanceReason.ALONE):
            # Where a saving is about to exceed the cost, the next opportunity is when it does.
            self._skipped = min(totals.interval - 1, decided.due)
        return decided

    def _decided(self, totals: GraphTotals, size: int) -> RebalanceDecision:
        (when, every, tolerance, _), most = self.arguments, totals.most
        load, speed, free, queued_s, own_s, n_timed = totals.sums
        if size == 1:
            return RebalanceDecision(BalanceReason.ALONE)
        if most.unmeasured or not speed > 0.0:
            return RebalanceDecision(BalanceReason.UNMEASURED)
        missing = size / n_timed  # a rank without vertices counts as one of mean speed, until it is measured
        speed, free = speed * missing, free * missing
        mean_s = load / speed
        before = max(0.0, most.seconds / mean_s - 1.0) if mean_s > 0.0 else 0.0
        self.payback.measure(most, self._calls, mean_s)
        self._calls = 0
        now = RebalanceDecision(BalanceReason.ALWAYS, before, mean_s, speed / size)
        if self._number % every:  # it was an opportunity for the arguments of the last one
            return now._replace(reason=BalanceReason.LATER)
        if when == "always":
            return now
        if (undo_s := self.promises.compare(most.grown_s)) is not None:
            return now._replace(reason=BalanceReason.UNDONE, undo_s=undo_s)
        bound = tolerance if isinstance(when, str) else when
        if self.promises.forbid(most.seconds) and before > bound:
            return now._replace(reason=BalanceReason.IN_VAIN)
        if when != "auto":
            return now._replace(reason=BalanceReason.BOUND if before > bound else BalanceReason.BELOW)
        share = queued_s / own_s if own_s > 0.0 else 0.0
        # Each hand-over would wait until both ranks have a core: it pays if it saves more than they lose by queueing.
        # Parts that are worse than the first ones may move all the same: an earlier move was a mistake.
        worse = most.now_s > (1.0 + NOISE) * most.home_s
        if share > CROWDED and not worse and not most.free_s - load / free > share * most.free_s:
            return now._replace(reason=BalanceReason.CROWDED)
        return self._auto(now, most.seconds, self.cost_s or ROUNDS * totals.call_s)

    def _auto(self, now: RebalanceDecision, slowest_s: float, cost_s: float) -> RebalanceDecision:
        """Decide with "auto"; `cost_s`: of a move, as measured, or guessed before the first one."""
        payback, (_, every, tolerance, _) = self.payback, self.arguments
        reason, due = BalanceReason.WITHIN, MOST_INTERVAL
        if now.before <= tolerance:
            payback.forget()
            self._cut_s += every * HEAVY_PART * slowest_s * self._heavy
            if self._cut_s > cost_s:
                self._cut_s, reason = 0.0, BalanceReason.CUT
        else:
            gain_s = (slowest_s - now.mean_s) * every
            reason = BalanceReason.GAIN if payback.pays(gain_s, cost_s) else BalanceReason.NO_GAIN
            if reason is BalanceReason.NO_GAIN:
                due = int(min((cost_s - payback.lost_s) / gain_s - 1.0, MOST_INTERVAL))
        return now._replace(reason=reason, cost_s=cost_s, lost_s=payback.lost_s, due=due)
