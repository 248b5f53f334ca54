"""When to balance.   (pure)

Law ("auto").  Balance when the time that it is expected to save until the next chance exceeds what it costs:
    (seconds of the slowest rank now - seconds after) * calls until the next chance + losses so far  >  cost in seconds
- Losses are what chances that were let pass would have saved: small ones add up (as one rents skis until the rents have
  added up to their price: that never costs more than twice what would have been best).
- "After" is the balanced time.  How much of the expected saving has come true so far is remembered, and as much is expected
  of the next: what items that can't be divided put out of reach is not tried for again and again, but again some time.
- What the last balancing cost is measured: the time to decide, and to move rows in each call.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lb_mpi.balancing.estimate import smooth

When = str | float

KEEP = 0.5  # weight of what has come true before
HOPE = 0.01  # per call, of what has not
UNMEASURED, WITHIN, CHANCE, ALWAYS, BOUND, GAIN, NO_GAIN, BELOW, ALONE, HOME = range(10)
_REASONS = {
    UNMEASURED: "nothing done: not all rows have been timed twice",
    WITHIN: "nothing done: the imbalance is within the tolerance",
    CHANCE: "nothing done: the next chance comes in a later call",
    ALWAYS: "balanced: asked to at every chance",
    BOUND: "balanced: the imbalance is above the bound",
    GAIN: "balanced: it saves more than it costs",
    NO_GAIN: "nothing done: it would cost more than it saves",
    BELOW: "nothing done: the imbalance is not above the bound",
    ALONE: "nothing done: there is one rank only",
    HOME: "rows stay at home from now on: lending them costs more than it saves",
}


class Decision(NamedTuple):
    """Whether to balance, and why."""

    reason: int
    gain_s: float = 0.0  # expected saving until the next chance, before cost

    @property
    def act(self) -> bool:
        """Whether the distribution is to be changed."""
        return self.reason in (ALWAYS, BOUND, GAIN, HOME)

    @property
    def words(self) -> str:
        """The reason in words."""
        return _REASONS[self.reason]


def check_when(when: When, every: int) -> None:
    """ValueError unless `when` is "auto", "always" or a bound > 0 on the imbalance, and `every` an int >= 1."""
    known = when in ("auto", "always") if isinstance(when, str) else _number(when) and 0.0 < when < math.inf
    if not known:
        raise ValueError(f"when = {when!r}: expected 'auto', 'always' or a number > 0 (a bound on the imbalance)")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every = {every!r}: expected an int >= 1 (calls)")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Trigger:
    """Decides at the end of each call whether the next is to have another distribution."""

    def __init__(self, when: When = "auto", every: int = 1, tolerance: float = 0.05) -> None:
        check_when(when, every)
        self.when, self.every, self.tolerance = when, every, tolerance
        self.cost_s = 0.0  # what the last balancing cost, once
        self.trust = 1.0  # 0..1: part of the expected savings that has come true
        self._calls = 0
        self._lost_s = 0.0  # since the last balancing, by not balancing
        self._expected: tuple[float, float] | None = None  # of the last balancing: seconds of the slowest rank, saving

    def paid(self, seconds: float) -> None:
        """What a balancing has cost; a smaller cost than before is believed at once."""
        self.cost_s = smooth(self.cost_s or math.nan, seconds)

    def settle(self, now_s: float) -> None:
        """The seconds of the slowest rank after the last balancing."""
        if self._expected is not None:
            before_s, saving_s = self._expected
            true = min(1.0, max(0.0, (before_s - now_s) / saving_s))
            self.trust = KEEP * self.trust + (1.0 - KEEP) * true
            self._expected = None

    def decide(self, imbalance: float, now_s: float, balanced_s: float, moving_s: float = 0.0) -> Decision:
        """From the imbalance as it is, the seconds of the slowest rank, those that perfect balance would take, and those
        that moving rows is going to cost in each call more than now; one number may be NaN: not known yet.
        """
        self._calls += 1
        self.trust += HOPE * (1.0 - self.trust)
        if self._calls % self.every:
            return Decision(CHANCE)
        if math.isnan(imbalance) or math.isnan(balanced_s):
            return Decision(UNMEASURED)
        saving_s = now_s - balanced_s
        gain_s = max(0.0, self.trust * saving_s - moving_s) * self.every
        if self.when == "always":
            return Decision(ALWAYS, gain_s)
        if not isinstance(self.when, str):
            return Decision(BOUND if imbalance > self.when else BELOW, gain_s)
        if imbalance <= self.tolerance:
            return Decision(WITHIN, gain_s)
        if gain_s + self._lost_s <= self.cost_s:
            self._lost_s += gain_s
            return Decision(NO_GAIN, gain_s)
        self._lost_s = 0.0
        self._expected = now_s, saving_s
        return Decision(GAIN, gain_s)
