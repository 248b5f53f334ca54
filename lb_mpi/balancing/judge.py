"""What the root makes of the reports of all ranks: speeds, imbalance, and whether to balance.   (pure)

Law.  The ticks of a round tell what each rank computed, be it its own rows or others'.  Ticks * (seconds per tick) is the
time that it needs for that: the usual seconds per tick, so that who was held up once needs no balancing.  That time * its
speed is the work that it did; so the balanced time follows without any estimate of the costs of rows.
- What a rank did for others at the end of the round, because it was dry and they weren't, was not planned: it is counted
  where it was planned to be done.
- Who comes late to a round, because what it does in between takes it longer, has so much less time for rows: as if it had
  had rows for as long.  Who comes later than all could be done counts as if it came just then.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low
from typing import NamedTuple

import numpy as np

from lb_mpi.balancing.estimate import Observation, Worths, smooth
from lb_mpi.balancing.trigger import ALONE, HOME, UNMEASURED, Decision, Trigger
from lb_mpi.graph import Floats
from lb_mpi.metrics import imbalance

USUAL = 5  # rounds of which the median seconds per tick is taken
N_TOLD = 4  # observations in one report; of more, the heaviest are told


class Report(NamedTuple):
    """What one rank tells after a round; some observations go with it."""

    failed: float  # 1.0: the user's function or rows are no good on this rank
    mark: float  # of the rows' Spec
    work: float  # of its rows at home, units of work; NaN: not known
    busy_s: float  # seconds that it computed (rests of an emulated slow rank included)
    ticks: float  # it measured meanwhile
    spent_s: float  # seconds for packing, sending, putting together
    rows: float  # lent
    bytes: float  # sent
    helped: float = 0.0  # work of rows that others computed because they were dry, less what it computed so for others
    began_s: float = math.nan  # from the end of the last round to the begin of this one; NaN: there was none

    def numbers(self, told: list[Observation]) -> Floats:
        """As an array (WIDTH,)."""
        heaviest = sorted(told, key=lambda seen: -seen.weight)[:N_TOLD]
        flat = [float(number) for seen in heaviest for number in seen]
        return np.array([*self, *flat, *[-1.0] * (3 * N_TOLD - len(flat))])


WIDTH = len(Report._fields) + 3 * N_TOLD


class Verdict(NamedTuple):
    """What all ranks are told; P worths, P speeds and P late loads go with it."""

    error: float  # 1.0: a rank has failed; 2.0: the ranks' rows differ
    reason: float
    gain_s: float
    imbalance_before: float
    imbalance_after: float
    rows: float
    bytes: float


class Judge:
    """Knows what was reported before; lives on the root."""

    def __init__(self, size: int, trigger: Trigger) -> None:
        self.trigger = trigger
        self.speeds = np.ones(size)
        self.worth = np.ones(size)
        self.late = np.zeros(size)  # work that a rank could have done before it came
        self.lending = False
        self._worths = Worths(size)
        self._tick_s: list[deque[float]] = [deque(maxlen=USUAL) for _ in range(size)]  # seconds per tick
        self._began_s: deque[Floats] = deque(maxlen=USUAL)
        self._rounds = 0  # since all rows are known
        self._plain_s = self._moving_s = 0.0  # spent in a round without lending; and more by lending
        self._settling = False

    def balanced(self, lending: bool) -> None:
        """The next round has another distribution."""
        self.lending = self._settling = lending

    def hear(self, reports: Floats) -> Verdict:
        """What comes of the (P, WIDTH) reports of a round."""
        n = len(Report._fields)
        column = dict(zip(Report._fields, reports[:, :n].T, strict=True))
        if column["failed"].any() or (column["mark"] != column["mark"][0]).any():
            self._rounds = 0
            return Verdict(1.0 if column["failed"].any() else 2.0, UNMEASURED, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._learn(reports[:, n:].reshape(len(reports), N_TOLD, 3), column["busy_s"], column["ticks"])
        done = column["ticks"] * self.worth + column["helped"]  # as planned
        self._wait_for(column["began_s"], float(done.sum()))
        before = _imbalance(column["work"] + self.late, self.speeds)
        after = _imbalance(column["busy_s"] * self.speeds + self.late, self.speeds)
        decision = self._decide(column["work"], np.maximum(done, 0.0), float(column["spent_s"].max()))
        rows, n_bytes = float(column["rows"].sum()), float(column["bytes"].sum())
        return Verdict(0.0, decision.reason, decision.gain_s, before, after, rows, n_bytes)

    def _learn(self, told: Floats, busy_s: Floats, ticks: Floats) -> None:
        if (told[:, :, 1] > 0.0).any():
            self._worths.forget()
            for rank, seen in enumerate(told):
                for other, weight, log_ratio in seen[seen[:, 1] > 0.0].tolist():
                    self._worths.tell(rank, Observation(int(other), weight, log_ratio))
            self.worth = self._worths.fit()
        for rank in np.flatnonzero(ticks > 0.0).tolist():
            self._tick_s[rank].append(float(busy_s[rank] / ticks[rank]))
        known = [median_low(seen) for seen in self._tick_s if seen]
        usual = median_low(known) if known else 1.0
        self.speeds = self.worth / np.array([median_low(seen) if seen else usual for seen in self._tick_s])

    def _wait_for(self, began_s: Floats, work: float) -> None:
        if not np.isnan(began_s).any():
            self._began_s.append(began_s - began_s.min())
        if self._began_s:
            late_s = np.median(self._began_s, axis=0)
            self.late = self.speeds * np.minimum(late_s, end_s(work, self.speeds, late_s))

    def _decide(self, work: Floats, done: Floats, spent_s: float) -> Decision:
        if len(work) == 1:
            return Decision(ALONE)
        self._rounds = 0 if np.isnan(work).any() else self._rounds + 1
        auto = self.trigger.when == "auto"
        if self._rounds < 1 + auto:
            return self.trigger.decide(math.nan, math.nan, math.nan)
        if self.lending:
            self._moving_s = smooth(self._moving_s, max(0.0, spent_s - self._plain_s))
        else:
            self._plain_s = smooth(self._plain_s, spent_s)
        done = done + self.late
        now_s = float((done / self.speeds).max())
        balanced_s = float(done.sum() / self.speeds.sum())
        if self._settling:
            self.trigger.settle(now_s)
            self._settling = False
        if self.lending and auto:
            at_home_s = float(((work + self.late) / self.speeds).max())
            if at_home_s < now_s + self._moving_s:
                return Decision(HOME, now_s + self._moving_s - at_home_s)
        moving_s = 0.0 if self.lending else self._moving_s
        return self.trigger.decide(_imbalance(done, self.speeds), now_s, balanced_s, moving_s)


def end_s(work: float, speeds: Floats, late_s: Floats) -> float:
    """When `work`, divided at will, can be done by ranks of (P,) speeds that begin at (P,) late_s >= 0."""
    order = np.argsort(late_s)
    s, late = speeds[order], late_s[order]
    ends = (work + np.cumsum(s * late)) / np.cumsum(s)  # by the first 1, 2, .. of them
    return float(ends.min())


def _imbalance(work: Floats, speeds: Floats) -> float:
    return imbalance(work, speeds) if np.isfinite(work).all() else math.nan
