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
from lb_mpi.knowledge import USUAL
from lb_mpi.reduction import Reduction

USUAL_STEPS = 250  # from one change to the next
HEAVY = 1.2  # times the first cut: so heavy a cut loses time in each step, until another move, from the new homes,
HEAVY_PART = 0.02  # of the time of a step: an assumption, by which another move pays after fifty times its cost
LIGHTER = 0.97  # times the cut before: such a move has made it lighter, and the next one may, too
ROUNDS = 30  # about so many messages of a rebalancing follow one another
FIRST_STEPS = 7.0  # of level ranks: the first move, whose cost is not known yet, counts as at least as long
MOST_PATIENCE = 64  # times the cost of a move that must have been lost before the next one
LEAST_PART = 0.125  # of the imbalance, that a move is to take away
STILL = 0.5  # of the saving of new parts: others that save less no longer fit
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
    before_s: float  # seconds that it would need, at its latest speed, for its load before the last move
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
    mine: RankLoad, *, checksum: int = 0, failed: bool = False, call_s: float = 0.0,
    latest: float = math.nan, before: float = math.nan, planned: float = math.nan,
) -> Reduction:  # fmt: skip
    """Return the numbers of a rank.

    `call_s`: seconds of an opportunity without a move; `latest`: its speed in the last calls; `before`: its load before the
    last move, if that may be undone; `planned`: after one that is being considered; NaN: unknown, none.
    """
    timed = not math.isnan(mine.speed)
    speed = mine.speed if timed else 0.0
    has_core = max(1.0 - mine.queued_s / mine.own_s, LEAST_CORE) if mine.own_s > 0.0 else 1.0  # of its time
    seconds = mine.load / speed if timed else 0.0
    sums = LoadSums(mine.load, speed, speed / has_core, mine.queued_s, mine.own_s, timed)
    now_s = mine.load / latest
    most = Maxima(
        failed, checksum, -checksum, not timed and mine.load > 0.0, mine.load, speed, seconds, seconds * has_core,
        -call_s, before / latest, now_s, planned / latest,
    )  # fmt: skip
    numbers = np.array(most, dtype=float)
    numbers[np.isnan(numbers)] = seconds if math.isnan(now_s) else now_s
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
    price_s: float = math.nan  # that must have been lost before the next one
    lost_s: float = math.nan  # so far, by not moving
    undo_s: float | None = None  # of the slowest rank without the last move, which is to be undone
    due: int = MOST_INTERVAL  # calls until the losses reach the cost

    @property
    def act(self) -> bool:
        """True if vertices are to move."""
        return self.reason.acts and self.before > 0.0


class Payback:
    """The rule that a move has to pay, and to keep what it promised, by what is measured; the same on all ranks.

    At each opportunity, the ranks measure what a step would take at their latest speeds with parts that they don't have:
    those that fitted when the imbalance began, and those before the last move.  So they know
    - what would have been saved if they had moved at once.  Once that is more than `patience` times the cost of the last
      move, they move.  It begins anew when those parts save less than half of what new ones would: speeds have changed.
    - what the last move has saved.  Once it has lost what a move costs, it is undone.  What it has lost counts twice before
      the next one: parts that were wrong are left the way they came, not for others that are as uncertain.

    The patience is 1 at first.  It doubles with a move that is undone, or for which no better parts were found, up to 64,
    and halves with one that has saved its cost when the next one comes.  A move that is undone has cost what it has lost, if
    that is more.  With patience, a move takes away 1 / patience of the imbalance, since costs may be other than they seem,
    and the speed of a rank is the median of `patience` times the usual calls.

    So a move in vain loses about three times its cost: to move, until it is noticed, and to move back.  The next one comes
    after twice as much was lost by not moving, then four times, ...
    """

    def __init__(self) -> None:
        self.patience = 1
        self.lost_s = 0.0  # by not moving at once
        self.considered = False  # a move
        self.saved_s: float | None = None  # by the last one, without its cost; None: it was undone, or there was none
        self._failed_s = 0.0  # lost by the last one that was undone

    @property
    def part(self) -> float:
        """The part of the imbalance that the next move is to take away."""
        return max(1.0 / self.patience, LEAST_PART)

    def price_s(self, cost_s: float) -> float:
        """Return the seconds that must have been lost before the next move."""
        return self.patience * max(cost_s, self._failed_s) + 2.0 * max(0.0, -(self.saved_s or 0.0))

    def measure(self, most: Maxima, calls: int, level_s: float) -> None:
        """Record the steps since the last opportunity; one would take `level_s` if all ranks were level."""
        if self.saved_s is not None:
            self.saved_s += calls * (most.before_s - most.now_s)
        if self.considered:
            self.lost_s += calls * (most.now_s - most.planned_s)
            if most.now_s - most.planned_s < STILL * (most.now_s - level_s):
                self.forget()

    def forget(self) -> None:
        """Consider no move."""
        self.considered, self.lost_s = False, 0.0

    def fails(self, cost_s: float) -> bool:
        """Return whether the last move is to be undone."""
        return self.saved_s is not None and self.saved_s < -cost_s

    def pays(self, gain_s: float, cost_s: float) -> bool:
        """Return whether to move; `gain_s`: the saving until the next opportunity."""
        self.considered = self.lost_s + gain_s <= self.price_s(cost_s)
        return not self.considered

    def moved(self, cost_s: float) -> None:
        """Record a move, but one that undoes another."""
        if self.saved_s is not None and self.saved_s > cost_s:
            self.patience, self._failed_s = max(self.patience // 2, 1), 0.0
        self.saved_s = 0.0
        self.forget()

    def in_vain(self) -> None:
        """Record a move in vain: it is undone, or no better parts were found."""
        self.patience = min(2 * self.patience, MOST_PATIENCE)
        self.forget()

    def undone(self) -> None:
        """Record that the last move was undone."""
        self._failed_s, self.saved_s = -(self.saved_s or 0.0), None
        self.in_vain()


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
        self.moves = Payback()
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

    def dropped(self, reason: BalanceReason) -> None:
        """Record a move for this reason that was dropped: no better parts were found."""
        if reason is BalanceReason.UNDONE:
            self.moves.undone()
        elif self.arguments.when != "always" and reason is not BalanceReason.CUT:
            self.moves.in_vain()

    def moved(self, cut: float, reason: BalanceReason) -> None:
        """Record a move for this reason, after which the parts have this cut; the next call is to show what it has saved."""
        if reason is BalanceReason.UNDONE:
            self.moves.undone()
        else:
            self.moves.moved(self.cost_s)
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
        self.moves.measure(most, self._calls, mean_s)
        self._calls = 0
        now = RebalanceDecision(BalanceReason.ALWAYS, before, mean_s, speed / size)
        if self._number % every:  # it was an opportunity for the arguments of the last one
            return now._replace(reason=BalanceReason.LATER)
        if when == "always":
            return now
        moves, cost_s = self.moves, self.cost_s or max(ROUNDS * totals.call_s, FIRST_STEPS * mean_s)
        if moves.fails(cost_s) and most.before_s < most.now_s:
            return now._replace(reason=BalanceReason.UNDONE, undo_s=most.seconds * most.before_s / most.now_s)
        bound = tolerance if isinstance(when, str) else when
        if when != "auto" and (moves.patience == 1 or before <= bound):
            return now._replace(reason=BalanceReason.BOUND if before > bound else BalanceReason.BELOW)
        share = queued_s / own_s if own_s > 0.0 else 0.0
        # Each hand-over would wait until both ranks have a core: it pays if it saves more than they lose by queueing.
        if when == "auto" and share > CROWDED and not most.free_s - load / free > share * most.free_s:
            return now._replace(reason=BalanceReason.CROWDED)
        return self._paying(now._replace(cost_s=cost_s, price_s=moves.price_s(cost_s)), most.seconds, bound)

    def _paying(self, now: RebalanceDecision, slowest_s: float, bound: float) -> RebalanceDecision:
        """Decide by what a move costs and saves; within the bound, only a heavy cut is worth one."""
        moves, every, reason, due = self.moves, self.arguments.every, BalanceReason.WITHIN, MOST_INTERVAL
        if now.before <= bound:
            moves.forget()
            self._cut_s += every * HEAVY_PART * slowest_s * self._heavy
            if self._cut_s > now.cost_s:
                self._cut_s, reason = 0.0, BalanceReason.CUT
        else:
            gain_s = (slowest_s - now.mean_s) * every
            reason = BalanceReason.GAIN if moves.pays(gain_s, now.cost_s) else BalanceReason.NO_GAIN
            if reason is BalanceReason.NO_GAIN:
                due = int(min(max((now.price_s - moves.lost_s) / gain_s - 1.0, 0.0), MOST_INTERVAL))
        return now._replace(reason=reason, lost_s=moves.lost_s, due=due)
