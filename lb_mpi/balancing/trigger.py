"""The decision when to balance.   (pure)

Law ("auto").  Balance when the time that it is expected to save until the next chance exceeds its cost:
    (seconds of the slowest rank now - seconds after) * calls until the next chance + losses so far  >  cost in seconds
- Losses are what the skipped chances would have saved; small ones add up.  As in the ski-rental problem, this never
  costs more than twice the optimum.
- "After" is the balanced time.  The fraction of the expected savings that has come true is expected of the next saving
  too.  So a balance that indivisible items rule out is not tried in every call, but is tried again some time.
- The cost is that of the last balancing, as measured: the time to decide, and to move rows in each call.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from lb_mpi.balancing.estimate import smooth
from lb_mpi.checks import integer, number, show

When = str | float

KEEP = 0.5  # weight of the earlier fraction of savings that came true
HOPE = 0.01  # per call: how fast trust returns to 1


class BalanceReason(IntEnum):
    """The reason why the distribution of rows is changed, or not; in `words`, for the user."""

    words: str

    def __new__(cls, number: int, words: str = "") -> BalanceReason:
        """Make a reason from its number and its words."""
        reason = int.__new__(cls, number)
        reason._value_, reason.words = number, words
        return reason

    UNMEASURED = 0, "plan unchanged: not all rows have been timed twice"
    WITHIN = 1, "plan unchanged: the imbalance is within the tolerance"
    CHANCE = 2, "plan unchanged: the next decision is due in a later call"
    ALWAYS = 3, "balanced: as requested at every decision"
    BOUND = 4, "balanced: the imbalance is above the bound"
    GAIN = 5, "balanced: it saves more than it costs"
    NO_GAIN = 6, "plan unchanged: a new one would cost more than it saves"
    BELOW = 7, "plan unchanged: the imbalance is not above the bound"
    ALONE = 8, "plan unchanged: there is only one rank"
    HOME = 9, "rows stay with their owners from now on: lending costs more than it saves"


class Decision(NamedTuple):
    """The decision whether to balance, and its reason."""

    reason: BalanceReason
    gain_s: float = 0.0  # expected saving until the next chance, before cost

    @property
    def act(self) -> bool:
        """True when the distribution is to be changed."""
        return self.reason in (BalanceReason.ALWAYS, BalanceReason.BOUND, BalanceReason.GAIN, BalanceReason.HOME)

    @property
    def words(self) -> str:
        """The reason in words."""
        return self.reason.words


class Trigger:
    """Decides at the end of each call whether to change the distribution for the next.

    `when`: "auto", "always" or a bound > 0 on the imbalance.  `every`: calls, >= 1, between two decisions.
    """

    def __init__(self, when: When = "auto", every: int = 1, tolerance: float = 0.05) -> None:
        self.tolerance = number("tolerance", tolerance, above=0.0)
        self.every = integer("every", every, 1, unit="calls")
        self.when = when
        if not isinstance(when, str) or when not in ("auto", "always"):
            try:
                self.when = number("when", when, above=0.0)
            except ValueError:
                expected = "expected 'auto', 'always' or a number > 0 (a bound on the imbalance)"
                raise ValueError(f"when = {show(when)}: {expected}") from None
        self.cost_s = 0.0  # one-time cost of the last balancing
        self.trust = 1.0  # 0..1: fraction of the expected savings that has come true
        self._calls = 0
        self._lost_s = 0.0  # by not balancing since the last balancing
        self._expected: tuple[float, float] | None = None  # at the last balancing: slowest rank's seconds, saving

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

    def decide(
        self, imbalance: float, now_s: float, balanced_s: float, moving_s: float = 0.0, cost_s: float | None = None
    ) -> Decision:
        """Decide from the imbalance (NaN: unknown) and seconds per call: slowest rank, balanced, added by moving rows.

        `cost_s`: cost of the balancing; None: as measured for the last one.
        """
        self._calls += 1
        self.trust += HOPE * (1.0 - self.trust)
        if self._calls % self.every:
            return Decision(BalanceReason.CHANCE)
        if math.isnan(imbalance) or math.isnan(balanced_s):
            return Decision(BalanceReason.UNMEASURED)
        saving_s = now_s - balanced_s
        gain_s = max(0.0, self.trust * saving_s - moving_s) * self.every
        if self.when == "always":
            return Decision(BalanceReason.ALWAYS, gain_s)
        if not isinstance(self.when, str):
            return Decision(BalanceReason.BOUND if imbalance > self.when else BalanceReason.BELOW, gain_s)
        if imbalance <= self.tolerance:
            return Decision(BalanceReason.WITHIN, gain_s)
        if gain_s + self._lost_s <= (self.cost_s if cost_s is None else cost_s):
            self._lost_s += gain_s
            return Decision(BalanceReason.NO_GAIN, gain_s)
        self._lost_s = 0.0
        self._expected = now_s, saving_s
        return Decision(BalanceReason.GAIN, gain_s)
