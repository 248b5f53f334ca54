"""Rules when to balance: what a rank reports, the decision, and its reason.   (pure)

Balance ("auto") when the time that it is expected to save until the next opportunity exceeds its cost:
    (seconds of the slowest rank now - seconds after) * calls until the next opportunity + losses so far  >  cost * caution
- Losses are what the skipped opportunities would have saved; small ones add up.  As in the ski-rental problem, this never
  costs more than twice the optimum, with a caution of 1.
- Caution is 1 at first.  If the last balancing has saved k times the cost of the next one, caution moves half-way to 1 / k,
  but not below 1 / 4 or above 1: where changes have lasted, the next one is expected to last (Purohit, Svitkina & Kumar
  2018, ski rental with predictions).
- "After" is the balanced time.  The fraction of the expected savings that has come true is expected of the next saving
  too.  So a balance that indivisible items rule out is not tried in every call, but is tried again some time.
- The cost is that of the last balancing, as measured: the time to decide, and to move rows in each call.
"""

from __future__ import annotations

import functools
import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from lb_mpi.checks import integer, meant, number, show
from lb_mpi.graph import Floats

UP = 0.7  # weight of a measurement larger than the known value
FORGET = 0.9  # decay of what was observed of a rank, in each later round that observes it again
KEEP = 0.5  # weight of the earlier fraction of savings that came true
HOPE = 0.01  # per call: how fast trust returns to 1
CAREFUL = 0.25  # the smallest caution
CROWDED = 0.2  # share of their time that ranks queue for cores on a crowded machine
LOAN_S = 0.3e-3  # in each call, before rows that were lent are back: the least that lending costs
FEWEST_QUICK = 3  # calls after the first decision that leaves the plan as it is
MOST_QUICK, MOST_FULL = 63, 15  # calls between two decisions, while none takes too long; and decisions in a row, if some did
MOST_CALLS = 2**31  # more than a program makes
UNKNOWN = -1  # the checksum of results that have all come from other ranks
When = str | float


def smooth(before: float, now: float) -> float:
    """Return a smoothed value: a smaller measurement at once, a larger one gradually; NaN (unknown) is replaced."""
    if math.isnan(before) or now <= before:
        return now
    return before + UP * (now - before)


class Observation(NamedTuple):
    """k_other / k_own as observed on rows that both ranks have measured."""

    other: int  # rank
    weight: float  # > 0: cost of the rows, in work
    log_ratio: float  # log(k_other / k_own)


class BalanceReason(IntEnum):
    """The reason why the distribution of rows is changed (`acts`), or not; in `words`, for the user."""

    words: str
    acts: bool

    def __new__(cls, number: int, words: str = "", acts: bool = False) -> BalanceReason:
        """Make a reason from its number, its words, and whether it acts."""
        reason = int.__new__(cls, number)
        reason._value_, reason.words, reason.acts = number, words, acts
        return reason

    UNMEASURED = 0, "plan unchanged: not all rows have been timed twice"
    WITHIN = 1, "plan unchanged: the imbalance is within the tolerance"
    LATER = 2, "plan unchanged: the next decision is due in a later call"
    ALWAYS = 3, "balanced: as requested at every decision", True
    BOUND = 4, "balanced: the imbalance is above the bound", True
    GAIN = 5, "balanced: it saves more than it costs", True
    NO_GAIN = 6, "plan unchanged: a new one would cost more than it saves"
    BELOW = 7, "plan unchanged: the imbalance is not above the bound"
    ALONE = 8, "plan unchanged: there is only one rank"
    CROWDED = 11, "plan unchanged while the ranks queue for cores"
    UNCHANGED = 10, "plan unchanged: it holds for some calls"
    CUT = 12, "balanced: the last move had left many edges between the parts", True
    HOME = 9, "rows stay at home: that is faster than lending", True
    LENDING = 13, "rows are lent: that is faster than at home"
    TRY_HOME = 14, "rows stay at home for some calls: that may be faster"
    TRY_LENDING = 15, "rows are lent for some calls: that may be faster"
    FIRST = 18, "rows stay at home: in the first calls, the ranks have hardly been uneven"
    UNDONE = 16, "undone: the last move has made the steps slower", True


class Decision(NamedTuple):
    """The decision whether to balance, and its reason."""

    reason: BalanceReason
    gain_s: float = 0.0  # expected saving until the next opportunity, before cost
    quick: int = 0  # quick calls that may follow (`lb_mpi.balancing.decider`)
    about: str = ""  # the numbers that were compared

    @property
    def act(self) -> bool:
        """True when the distribution is to be changed."""
        return self.reason.acts

    @property
    def needs_plan(self) -> bool:
        """True when the ranks are to make a new plan."""
        return self.act and self.reason is not BalanceReason.HOME


@functools.lru_cache(64)  # in each call
def words_of(decision: Decision, rows: int) -> str:
    """Say what was decided, and how many rows were lent meanwhile."""
    words = "1 row was" if rows == 1 else f"{rows:,} rows were"
    return "; ".join(filter(None, (decision.reason.words, decision.about, f"{words} lent in this call" if rows else "")))


class Trigger:
    """Decides at the end of each call whether to change the distribution for the next.

    `when`: "auto", "always" or a bound > 0 on the imbalance.  `every`: calls, >= 1, from one opportunity to the next.
    """

    def __init__(self, when: When = "auto", every: int = 1, tolerance: float = 0.05) -> None:
        self.tolerance = number("tolerance", tolerance, above=0.0)
        self.every = integer("every", every, 1, unit="calls")
        if isinstance(when, str) and when in ("auto", "always"):
            self.when: When = str(when)  # of numpy's strings, too
        else:
            try:
                self.when = number("when", when, above=0.0)
            except ValueError:
                expected = "expected 'auto', 'always' or a number > 0 (a bound on the imbalance)"
                raise ValueError(f"when = {show(when)}: {expected}{meant(when, ('auto', 'always'))}") from None
        self.cost_s = 0.0  # one-time cost of the last balancing
        self.trust = 1.0  # 0..1: fraction of the expected savings that has come true
        self.caution = 1.0  # CAREFUL..1: the part of the cost that savings and losses must exceed
        self._calls = 0
        self.lost_s = 0.0  # since the last balancing, at opportunities at which it did not seem to pay
        self._losing_s = 0.0  # at each opportunity, by the last decision
        self._expected: tuple[float, float] | None = None  # at the last balancing: slowest rank's seconds, saving
        self._saving_s = 0.0  # by the last balancing, in each call; 0.0 once the imbalance is above the tolerance again
        self._saved_s = math.nan  # by the last balancing so far; NaN: there was none

    def count(self, n: int = 1) -> int:
        """Record n calls; return how many of them are opportunities."""
        before, self._calls = self._calls, self._calls + n
        self._saved_s += n * self._saving_s
        self.trust = 1.0 - (1.0 - self.trust) * (1.0 - HOPE) ** n
        return self._calls // self.every - before // self.every

    def pass_by(self, n: int) -> None:
        """Record n calls in which nothing was decided."""
        self.lost_s += self._losing_s * self.count(n)

    def paid(self, seconds: float) -> None:
        """Record the cost of a balancing; a smaller cost than before is accepted at once."""
        self.cost_s = smooth(self.cost_s or math.nan, seconds)

    def come_true(self, now_s: float) -> None:
        """Compare the slowest rank's seconds after the last balancing with the expected saving."""
        if self._expected is not None:
            before_s, saving_s = self._expected
            true = min(1.0, max(0.0, (before_s - now_s) / saving_s))
            self.trust = KEEP * self.trust + (1.0 - KEEP) * true
            self._expected = None
            self._saving_s = true * saving_s

    def dropped(self) -> None:
        """Record that the balancing decided last is not done."""
        self._expected = None

    def decide(
        self, imbalance: float, now_s: float, balanced_s: float, moving_s: float = 0.0, cost_s: float | None = None,
    ) -> Decision:  # fmt: skip
        """Decide from the imbalance (NaN: unknown) and seconds per call: slowest rank, balanced, added by moving rows.

        `cost_s`: cost of the balancing; None: as measured for the last one.
        """
        if not self.count():
            return Decision(BalanceReason.LATER)
        self._losing_s = 0.0
        if math.isnan(imbalance) or math.isnan(balanced_s):
            return Decision(BalanceReason.UNMEASURED)
        saving_s = now_s - balanced_s
        gain_s = max(0.0, self.trust * saving_s - moving_s) * self.every
        if self.when == "always":
            return Decision(BalanceReason.ALWAYS, gain_s)
        if not isinstance(self.when, str):
            if imbalance > self.when:
                return Decision(BalanceReason.BOUND, gain_s)
            return Decision(BalanceReason.BELOW, gain_s, MOST_QUICK)
        level = imbalance <= self.tolerance
        if level:
            return Decision(BalanceReason.WITHIN, gain_s, MOST_QUICK)
        cost_s = self.cost_s if cost_s is None else cost_s
        left_s = self.caution * cost_s - self.lost_s
        self._saving_s = 0.0
        if gain_s <= left_s:
            self.lost_s += gain_s
            self._losing_s = gain_s
            n_quick = int(min(left_s / gain_s - 1.0, MOST_QUICK)) if gain_s else MOST_QUICK
            return Decision(BalanceReason.NO_GAIN, gain_s, n_quick)
        if self._saved_s > 0.0:
            least = min(1.0, max(CAREFUL, cost_s / self._saved_s))
            self.caution = KEEP * self.caution + (1.0 - KEEP) * least
        self.lost_s = self._saved_s = 0.0
        self._expected = now_s, saving_s
        return Decision(BalanceReason.GAIN, gain_s)


class RankReport(NamedTuple):
    """The report of one rank after a round."""

    failed: bool = False  # the user's function or rows are invalid on this rank
    checksum: int = 0  # of the rows' Spec
    results: int = 0  # checksum of the results' Spec, or else the last known; 0: none; UNKNOWN: results of an unknown one
    work: float = math.nan  # of its rows at home, units of work; NaN: unknown
    busy_s: float = 0.0  # spent on rows: computing, resting (emulated), copying
    ticks: float = 0.0  # counted meanwhile
    spent_s: float = 0.0  # for packing, sending, and joining
    rows: int = 0  # lent
    bytes: int = 0  # sent
    home: int = 0  # units of its rows: rows, or blocks
    helped: float = 0.0  # unplanned help: work that others did for this rank, minus work that it did for others
    began_s: float = math.nan  # from the end of the last round to this one; NaN: no last round
    queued_s: float = 0.0  # without a core, of the elapsed time
    elapsed_s: float = 0.0  # between the begin and the end of this rank
    coreless_s: float = 0.0  # of busy_s, without a core
    last_s: float = math.nan  # from the end of the call before the last one to the end of the last one; NaN: unknown
    overhead_s: float = 0.0  # of it with messages, and all else that does not depend on how many rows it computed
    formed: bool = True  # it has results
    changed: bool = False  # its rows have another form than in the last round
    observed: tuple[Observation, ...] = ()  # of the work of other ranks' ticks


class RoundProblem(IntEnum):
    """The reason why a round has failed."""

    NONE = 0
    FAILED = 1  # a rank has failed
    DIFFER = 2  # the ranks' rows differ


class Decided(NamedTuple):
    """The decision on a round, the same on all ranks."""

    problem: RoundProblem
    decision: Decision
    imbalance_before: float  # with all rows at home; NaN: unknown
    imbalance_after: float  # actual, in this round
    rows: int  # lent, on all ranks
    bytes: int  # sent, on all ranks
    compare: bool  # the form of results differs between ranks, or some do not know it
    formed: bool  # some rank has results


class Levels(NamedTuple):
    """Seconds that ranks need for rows; NaN: unknown."""

    imbalance: float = math.nan  # in this round, as planned
    now_s: float = math.nan  # of the slowest rank, as planned
    home_s: float = math.nan  # of the slowest rank, if all rows were at home
    balanced_s: float = math.nan  # of each rank, if all needed the same


class Policy:
    """Decides after each round whether the distribution changes."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.lending = False
        self._rounds = 0  # since the costs of all rows are known
        self._plain_s = self._moving_s = 0.0  # spent in a round without lending; and more with lending
        self._fresh = False  # the last round was the first with its distribution
        self._quick = 0  # quick calls that were to follow the last decision
        self._full = self._pause = 0  # further full calls: before the next quick one, and after the next late one

    def changed(self, *, lending: bool) -> None:
        """Record that the next round has another distribution."""
        self.lending = self._fresh = lending

    def failed(self) -> None:
        """Record that nothing is known of the rows any longer, and all are at home."""
        self.changed(lending=False)
        self._rounds = self._quick = 0

    def decide(
        self, size: int, levels: Levels, spent_s: float, n_undecided: int = 0, *, late: bool = False
    ) -> Decision:  # fmt: skip
        """Decide for `size` ranks, one of which spent `spent_s` on packing, sending, and joining, the others less.

        `n_undecided`: calls since the last decision; `late`: a quick one took too long.
        While nothing changes, more and more quick calls follow each decision, up to the next opportunity.  After quick
        calls that took too long, more and more full ones follow.
        """
        self.trigger.pass_by(n_undecided)
        decision = self._decide(size, levels, spent_s)
        n_quick = 0
        if late:
            self._full, self._pause = self._pause, min(MOST_FULL, 2 * self._pause + 1)
        elif self._quick:
            self._pause = 0
        if self._full:
            self._full -= 1
        elif decision.quick:
            n_opportunities = -(-(min(decision.quick, 2 * self._quick + FEWEST_QUICK) + 1) // self.trigger.every)
            n_quick = min(n_opportunities * self.trigger.every - 1, MOST_CALLS)  # `every` may be any number
        self._quick = n_quick
        return decision._replace(quick=n_quick)

    def _decide(self, size: int, levels: Levels, spent_s: float) -> Decision:
        if size == 1:
            return Decision(BalanceReason.ALONE, quick=MOST_QUICK)
        self._rounds = 0 if math.isnan(levels.home_s) else self._rounds + 1
        if self._rounds < 1 + (self.trigger.when == "auto"):
            return self.trigger.decide(math.nan, math.nan, math.nan)
        if self.lending:
            self._moving_s = smooth(self._moving_s, max(0.0, spent_s - self._plain_s))
        else:
            self._plain_s = smooth(self._plain_s, spent_s)
        if self._fresh:
            self.trigger.come_true(levels.now_s)
            self._fresh = False
        moving_s = 0.0 if self.lending else max(self._moving_s, LOAN_S)
        return self.trigger.decide(levels.imbalance, levels.now_s, levels.balanced_s, moving_s)


def end_s(work: float, speeds: Floats, late_s: Floats) -> float:
    """Seconds until `work`, freely divisible, is done by ranks of (P,) speeds that start after (P,) late_s >= 0."""
    order = np.argsort(late_s)
    s, late = speeds[order], late_s[order]
    ends = (work + np.cumsum(s * late)) / np.cumsum(s)  # by the first 1, 2, .. of them
    return float(ends.min())

