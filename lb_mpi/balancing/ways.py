"""Rows at home, or lent: which way the next calls go, by the time that both ways have taken.   (pure)

At home, each rank computes its own rows in one block.  Nobody asks for rows, nothing is lent, and one reduction ends the
call.  What lending costs (messages, blocks, waiting for a core) no model knows on every machine, so both ways are tried: a
few calls at home, a few with lending.  The faster way is kept, for more and more calls, before the other one is tried again.

Law.
- All numbers come from the reduction at the end of a call, so all ranks choose the same.
- A call takes the time from the end of the call before to its own end, on the slowest rank.  A way takes the median of its
  last calls.
- Home is tried only where it may be faster: if calls at home, as predicted, take hardly longer than the same calls with
  lending have taken, by the medians; also where each call changes the plan.  So unequal machines do not pay for trials.
- In the first call, rows are lent, since it may be long, or the only one.  The next ones are at home, unless the ranks are
  more uneven, by their own time, than chance explains: after n calls, by 30 % / n.  All ranks learn from these calls.  Once
  30 % / n is less than the tolerance, the first calls are over, and rows stay at home.
- Later, lending is tried only where the ranks are uneven at home, by more than the tolerance: by the median of what each
  rank needed in the last calls, since noise does not last.
- A trial that took longer than predicted corrects the next predictions of its way: by all that it took longer, and
  by a quarter of that after each time that no trial has followed.
- At home, each call tells how uneven the ranks are.  If that grows, lending is tried at once; but not if they only wait for
  cores, which is mostly noise.
- A trial ends early if it is clearly slower.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from statistics import median
from typing import NamedTuple

from lb_mpi.metrics import above
from lb_mpi.table import percent

TRIAL, FEWEST = 6, 2  # calls of a trial; those after which one that is clearly slower ends
SLOWER = 1.1  # clearly: so many times as slow as the other way
RECENT = 9  # calls whose median is the time of a way
SHORTEST, LONGEST = 8, 64  # calls for which the faster way is kept
FADE = 0.25  # of the error of a prediction, after each time that no trial has followed
MARGIN = 0.05  # home is tried if it is predicted to take at most so much longer
FIRST = 0.3  # imbalance in the first call above which rows go on being lent; after n calls, an n-th of it
CHANGED, SURE = 0.2, 2  # growth of the imbalance at home, in so many calls in a row, after which lending is tried


class Stay(Enum):
    """A choice for the next calls."""

    TRY_HOME = 0
    TRY_LENDING = 1
    HOME = 2
    LENDING = 3


class Choice(NamedTuple):
    """The way of the next calls, and the numbers that were compared; as text, both."""

    way: Stay
    n_calls: int
    home_s: float  # a call at home: measured, or in TRY_HOME predicted
    lending_s: float  # a call with lending: measured, or in TRY_LENDING predicted

    def __str__(self) -> str:
        """Name the numbers."""
        home, lending = (f"{1e3 * seconds:.3g} ms" for seconds in (self.home_s, self.lending_s))
        home += " as predicted" * (self.way is Stay.TRY_HOME)
        lending += " as predicted" * (self.way is Stay.TRY_LENDING)
        return f"at home {home}, with lending {lending}: for {self.n_calls} calls"


class Ways:
    """The ways of the calls so far; not `auto`: rows are always lent."""

    def __init__(self, tolerance: float, *, auto: bool) -> None:
        self._auto, self._tolerance = auto, tolerance
        self.restart()

    def restart(self) -> None:
        """Begin with lending: nothing is known of the rows."""
        self.home = False  # the way of the next call
        self.learning = self._auto  # it is one of the first ones: all ranks learn from it, though it may be at home
        self._n_learned = 0  # of those calls
        self._left, self._trial = TRIAL, False  # calls until the other way may be tried, or until the trial ends
        self._n_chosen, self._home_chosen = SHORTEST, False  # for how many calls a way was chosen last, and which one
        self._lent, self._stayed = (deque[float](maxlen=RECENT) for _ in range(2))  # seconds of calls of both ways
        self._last: deque[float] | None = None  # where the seconds of the last call belong; None: nowhere
        self._home_s = deque[float](maxlen=RECENT)  # of calls at home, as predicted in the last full calls
        self._error_s = {Stay.TRY_HOME: 0.0, Stay.TRY_LENDING: 0.0}  # measured - predicted, in the last trials
        self._tried: tuple[Stay, float] = (Stay.TRY_LENDING, math.inf)  # the last trial, and its predicted seconds
        self._own = deque[float](maxlen=SURE)  # imbalances of the last calls at home
        self._usual = math.inf  # the smallest of `_own` when the ways were compared last

    def lend(self) -> None:
        """Lend rows from now on: the first calls are over."""
        self.home = self.learning = False
        self._left = TRIAL

    def learned(self, last_s: float, imbalance: float, *, pays: bool = True) -> tuple[bool, str]:
        """Record one of the first calls; return whether the ranks are too uneven to be at home, and the numbers.

        `last_s`: see `lent`.  `imbalance`: by their own time; NaN: unknown.  Not `pays`: lending would cost
        more than it saves.
        """
        self._note(last_s)
        if math.isnan(imbalance):
            self.home = False
            return False, ""
        self._n_learned += 1
        most = max(self._tolerance, FIRST / self._n_learned)
        uneven = pays and imbalance > most
        self.home = not uneven
        if not uneven and most <= self._tolerance:
            self.learning, self._left, self._usual = False, 0, imbalance
        if uneven:
            self.lend()
        return uneven, f"imbalance at home {percent(imbalance)}, lending begins above {percent(most)}"

    def lent(self, last_s: float, home_s: float = math.nan, *, planned: bool = False, lending: bool = True) -> Choice | None:
        """Record a call with lending, and choose the way of the next ones; None: it stays.

        `last_s`: seconds of the call before; NaN: unknown.  `home_s`: of a call at home, as predicted; NaN: as before.
        `planned`: the next call follows a new plan.  `lending`: this one followed a plan.
        """
        self._note(last_s)
        if not math.isnan(home_s):
            self._home_s.append(home_s)
        if planned and not lending:  # what was measured so far was something else
            self._left, self._last = max(self._left, TRIAL), None
            self._lent.clear()
            return None
        if self._trial:
            return self._compare(self._lent, self._stayed)
        if not self._auto or self._left > 0 or len(self._lent) < FEWEST or not self._home_s:
            return None
        home_s, lending_s = median(self._home_s), median(self._lent)
        most_s = (1.0 + MARGIN) * lending_s
        if home_s > most_s or not self._promises(Stay.TRY_HOME, home_s, most_s):
            return None
        self._usual = math.inf
        return self._try(Stay.TRY_HOME, self._stayed, Choice(Stay.TRY_HOME, TRIAL, home_s, lending_s))

    def stayed(self, last_s: float, own: float, slowest_s: float, even_s: float) -> Choice | None:
        """Record a call at home; see `lent`.

        `own`: its imbalance, without waiting for cores.  `slowest_s`: of the slowest rank in the last ones; `even_s` if all
        ranks needed the same.
        """
        self._note(last_s)
        self._own.append(own)
        uneven = len(self._own) == SURE and min(self._own) > self._usual + CHANGED
        if self._trial:
            return self._compare(self._stayed, self._lent)
        if len(self._stayed) < FEWEST or (not uneven and (self._left > 0 or above(slowest_s, even_s) <= self._tolerance)):
            return None
        if uneven:  # what calls took before that does not matter any longer
            self._stayed = deque(list(self._stayed)[1 - SURE :], maxlen=RECENT)
        home_s = median(self._stayed)
        lending_s = home_s - (slowest_s - even_s)
        if not self._promises(Stay.TRY_LENDING, lending_s, home_s):
            return None
        return self._try(Stay.TRY_LENDING, self._lent, Choice(Stay.TRY_LENDING, TRIAL, home_s, lending_s))

    def _promises(self, way: Stay, predicted_s: float, most_s: float) -> bool:
        """Return whether a trial would take at most `most_s`, as corrected; if not, the present way is kept once more."""
        if predicted_s + self._error_s[way] <= most_s:
            return True
        self._error_s[way] *= FADE
        self._extend()
        return False

    def _extend(self) -> None:
        """Choose the present way again, for twice as many calls."""
        self._left = self._n_chosen = min(LONGEST, 2 * self._n_chosen) if self.home is self._home_chosen else SHORTEST
        self._home_chosen = self.home

    def _note(self, last_s: float) -> None:
        """Note the seconds of the call before, and where those of this one belong: of the first call of a trial, nowhere."""
        if self._last is not None and not math.isnan(last_s):
            self._last.append(last_s)
        first = self._trial and self._left == TRIAL
        self._last = None if first else self._stayed if self.home else self._lent
        self._left -= 1

    def _try(self, way: Stay, seconds: deque[float], choice: Choice) -> Choice:
        """Begin a trial, whose calls take `seconds`."""
        self.home, self._trial, self._left = way is Stay.TRY_HOME, True, TRIAL
        self._tried = way, choice.home_s if self.home else choice.lending_s
        seconds.clear()
        return choice

    def _compare(self, tried: deque[float], other: deque[float]) -> Choice | None:
        """Compare the ways at the end of a trial, and keep the faster one."""
        slower = len(tried) >= FEWEST and median(tried) > SLOWER * median(other)
        if not slower and (self._left > 0 or len(tried) < FEWEST):
            return None
        home_s, lending_s = median(self._stayed), median(self._lent)
        self.home, self._trial = home_s <= lending_s, False
        self._extend()
        way, predicted_s = self._tried
        self._error_s[way] = max(0.0, median(tried) - predicted_s)
        if self.home:
            self._usual = min(self._own)
        return Choice(Stay.HOME if self.home else Stay.LENDING, self._left, home_s, lending_s)
