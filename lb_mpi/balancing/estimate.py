"""Costs of rows and speeds of ranks, estimated only from the times of normal computation.   (pure)

Law.  Rank r measures rows in its own ticks (seconds of its work clock).  A tick of rank r is worth k_r units of work
and lasts g_r seconds.  So the speed of rank r is s_r = k_r / g_r units of work per second.
- Only rank r can measure g_r.
- The rank that last measured a row is stored with the ticks.  The row's cost in work is ticks * k_r with the current
  k_r, so that a better k_r needs no new measurement of the rows.
- If rank r measures rows after rank q, then ticks_q / ticks_r = k_r / k_q.  The k are the least-squares fit of the
  logarithms of all such ratios; recent ones weigh more.  Ranks that never computed each other's rows are assumed equal;
  the first rows lent to such a rank correct that.
- A tick is a second of the function's own time: CPU time, and the time in which the function itself waits (it sleeps,
  or waits for a file, a subprocess, another thread or a GPU).  Time in which other programs had the core is not a
  property of the rows.  `own_time_s` separates the two in each call, so that ticks of functions that wait and of
  functions that compute are comparable from the first call on.
- Computing can be delayed but never sped up: a smaller measurement is accepted at once, a larger one gradually.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lb_mpi.balancing.round import Rowset, count, numbers
from lb_mpi.graph import Floats, Ints

ASLEEP = 0.2  # if the system reports no queueing: a function with a smaller fraction of CPU time counts as waiting
UP = 0.7  # weight of a measurement larger than the known value
BLURRED = 0.05  # of a block whose rows tell a ratio: the part that third ranks have measured, at most
FORGET = 0.9  # decay of an observation in each later round that has observations
PRIOR = 1e-3  # of the largest weight: how strongly ticks of unrelated ranks are assumed equal
NEGLIGIBLE = 1e-6  # of the largest weight: lighter observations are dropped
DENSE = 256  # ranks up to which the fit is solved as a dense system
FEWEST = 2.0**-60  # seconds; no measured time is 0


def own_time_s(wall_s: float, cpu_s: float, gave_up: float | None, queued_s: float | None) -> float:
    """Return a call's own seconds, of `wall_s` seconds in which it had the core for `cpu_s`.

    A call that never gave up the core (`gave_up`: how often) has not waited: CPU time.  Otherwise all time except that
    spent queueing for a core (`queued_s`).  None: not reported by the system; then CPU time, but all time if the call
    hardly used the CPU.  Time in which the program was stopped is neither in `wall_s` nor in `gave_up`.
    """
    if gave_up == 0:
        return cpu_s
    mine_s = max(cpu_s, wall_s - (queued_s or 0.0))
    if gave_up is None or queued_s is None:
        return mine_s if cpu_s < ASLEEP * mine_s else cpu_s
    return mine_s


class Observation(NamedTuple):
    """k_other / k_own as observed on rows that both ranks have measured."""

    other: int  # rank
    weight: float  # > 0: cost of the rows, in work
    log_ratio: float  # log(k_other / k_own)


class RowCosts:
    """The costs of n rows at home, refined from the times of whole blocks."""

    def __init__(self, rank: int, n: int) -> None:
        self.rank = rank
        self.ticks = np.full(n, np.nan)
        self.measured_by = np.full(n, rank, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ticks)

    @property
    def known(self) -> bool:
        """True when every row has been measured."""
        return not bool(np.isnan(self.ticks).any())

    def fill(self) -> None:
        """Give unmeasured rows the mean cost, if any row has been measured."""
        unknown = np.isnan(self.ticks)
        if unknown.any() and not unknown.all():
            self.ticks[unknown] = self.ticks[~unknown].mean()
            self.measured_by[unknown] = self.rank

    def work(self, worth: Floats) -> Floats:
        """(n,) costs in units of work, for (P,) worths k; NaN: not measured."""
        return np.asarray(self.ticks * worth[self.measured_by])

    def observe(self, timed: Iterable[tuple[Rowset, int, float]], worth: Floats) -> list[Observation]:
        """Update the costs from blocks of rows, each row in at most one: (rows, computing rank, ticks).

        A block's ticks are spread over its rows in proportion to their known costs.  Returns observations of the worth
        of other ranks' ticks, from blocks where most of the rows were last measured here, and hardly any by third ranks.
        """
        known = [(rows, by, ticks) for rows, by, ticks in timed if not math.isnan(ticks) and count(rows)]
        if not known:
            return []
        counts = np.array([count(rows) for rows, _, _ in known])
        starts = np.cumsum(counts) - counts
        index = np.concatenate([numbers(rows) for rows, _, _ in known])
        by = np.array([rank for _, rank, _ in known])
        ticks = np.maximum([ticks for _, _, ticks in known], FEWEST)
        measured_by = self.measured_by[index]
        before = self.ticks[index] * worth[measured_by] / np.repeat(worth[by], counts)  # in ticks of `by`
        total = np.add.reduceat(before, starts)
        usable = np.isfinite(total) & (total > 0.0)
        total[~usable] = 1.0
        own = np.add.reduceat(np.where(measured_by == self.rank, before, 0.0), starts)
        same = np.add.reduceat(np.where(measured_by == np.repeat(by, counts), before, 0.0), starts)
        remeasured = ticks - (total - own)  # of the rows that were last measured here, by the other rank
        clear = (own > 0.5 * total) & (own + same > (1.0 - BLURRED) * total) & (remeasured > 0.0)
        tells = usable & (by != self.rank) & clear
        factor = ticks / total
        # Rows that this rank measured before move only part of the way to a larger cost; others' ticks may be worth more.
        trusted = np.where(tells | (factor <= 1.0), factor, 1.0 + UP * (factor - 1.0))
        each = np.where(np.repeat(usable, counts), before * np.repeat(trusted, counts), np.repeat(ticks / counts, counts))
        self.ticks[index] = each
        self.measured_by[index] = np.repeat(by, counts)
        own_worth = float(worth[self.rank])
        return [
            Observation(
                int(by[k]),
                float(ticks[k] * worth[by[k]]),
                math.log(worth[by[k]] / own_worth) + math.log(own[k] / remeasured[k]),
            )
            for k in np.flatnonzero(tells).tolist()
        ]


def smooth(before: float, now: float, up: float = UP) -> float:
    """Return a smoothed value: a smaller measurement at once, a larger one gradually; NaN (unknown) is replaced."""
    if math.isnan(before) or now <= before:
        return now
    return before + up * (now - before)


class Worths:
    """The worths k of all ranks' ticks, from the observations of all."""

    def __init__(self, size: int) -> None:
        self.values = np.ones(size)  # (P,) k > 0; their geometric mean is 1
        # Pairs (q, r) for which q has observed r, as q * P + r, ascending; with each pair
        self._pairs = np.zeros(0, dtype=np.int64)
        self._weight = np.zeros(0)  # of the observations
        self._sum = np.zeros(0)  # weight * log(k_r / k_q)

    def tell(self, rank: Ints, other: Ints, weight: Floats, log_ratio: Floats) -> None:
        """Add the observations of one more round: (m,) ranks that made them, and the fields of (m,) `Observation`s."""
        if not len(rank):
            return
        pairs = rank * len(self.values) + other
        union = np.union1d(self._pairs, pairs)
        sums, total = np.zeros((2, len(union)))
        known, new = np.searchsorted(union, self._pairs), np.searchsorted(union, pairs)
        sums[known], total[known] = FORGET * self._weight, FORGET * self._sum
        np.add.at(sums, new, weight)
        np.add.at(total, new, weight * log_ratio)
        kept = sums > NEGLIGIBLE * sums.max()
        self._pairs, self._weight, self._sum = union[kept], sums[kept], total[kept]
        self._fit()

    def _fit(self) -> None:
        """Fit logarithms by least squares, with a weak pull towards 1 that decides between unrelated ranks."""
        size = len(self.values)
        own, other = np.divmod(self._pairs, size)
        prior = PRIOR * float(self._weight.max())
        right = np.bincount(other, self._sum, size) - np.bincount(own, self._sum, size)
        if size <= DENSE:
            links = np.zeros((size, size))
            links[own, other] = self._weight
            links += links.T
            logs = np.linalg.solve(np.diag(links.sum(axis=1) + prior) - links, right)
        else:
            one_way = scipy.sparse.coo_array((self._weight, (own, other)), shape=(size, size)).tocsr()
            both_ways = one_way + one_way.T
            diagonal = np.asarray(both_ways.sum(axis=1)).ravel() + prior
            logs = scipy.sparse.linalg.spsolve((scipy.sparse.diags_array(diagonal) - both_ways).tocsc(), right)
        self.values = np.asarray(np.exp(logs - logs.mean()))


def blocks(sizes: ArrayLike, parts: int, turn: int, least: float = 1.0) -> list[slice]:
    """Cut the rows 0..n-1, of (n,) sizes > 0, into slices of 1/parts of the rest, hardly smaller than `least`.

    So the slices get short towards the end, where ranks wait for each other.  Each turn begins at another row and wraps
    around, so that in time each row is measured separately and on different ranks.
    """
    sums = [0.0, *np.cumsum(sizes).tolist()]
    n = len(sums) - 1
    if not n:
        return []
    begin = int(n * ((turn * 0.6180339887498949) % 1.0))  # golden ratio: begins are spread evenly
    if min(sums[begin], sums[n] - sums[begin]) < least:
        begin = 0
    slices = list[slice]()
    first, left = begin, sums[n]
    while not slices or first != begin % n:
        end = n if first >= begin else begin
        stop = max(bisect_right(sums, sums[first] + max(least, left // parts, 1.0)) - 1, first + 1)
        if stop >= end or sums[end] - sums[stop] < least:
            stop = _halfway(sums, first, end, 0.75 * least)
        slices.append(slice(first, stop))
        left -= sums[stop] - sums[first]
        first = stop % n
    return slices


def _halfway(sums: list[float], first: int, end: int, least: float) -> int:
    """Return where to cut first..end into halves, both no smaller than `least`; `end` if there is no such place."""
    half = bisect_right(sums, 0.5 * (sums[first] + sums[end])) - 1
    return half if first < half and min(sums[half] - sums[first], sums[end] - sums[half]) >= least else end
