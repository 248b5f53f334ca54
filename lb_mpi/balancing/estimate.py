"""Costs of rows and speeds of ranks, from nothing but the times of what was computed anyway.   (pure)

Law.  Rank r measures rows in its own ticks (seconds of its own clock of work); a tick of rank r is worth k_r units of work,
and g_r seconds pass while it does one.  So its speed is s_r = k_r / g_r units of work per second.
- g_r is seen by rank r alone.
- Which rank measured a row last is remembered beside the ticks: the row's cost in work is ticks * k_r with whatever k_r is
  known by now, so that better worths of ticks need no new measurement of the rows.
- Rows that rank r measures after rank q has told ticks_q / ticks_r = k_r / k_q.  The k are the least-squares fit of all
  such ratios (of their logarithms, lately seen ones first).  Ranks that never computed each other's rows are taken for
  alike; the first rows that are lent to such a rank show it.
- A tick is a second of the function's own time: CPU time, and the time in which it waits by itself (it sleeps, or a file, a
  subprocess, another thread or a GPU works for it).  That the operating system gave the core to others is no property of
  the rows.  `own_time_s` tells the one from the other, call by call: nothing of it is remembered, so that ticks of
  functions that wait and of those that compute can be set against each other on all ranks from the first call on.
- Computing can be held up but never sped up: a smaller measurement is believed at once, a larger one by and by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lb_mpi.balancing.round import Rowset, count, numbers
from lb_mpi.graph import Floats, Ints

ASLEEP = 0.2  # a function that uses the CPU for less than this part of its time is waiting, if the system tells nothing
UP = 0.7  # weight of a measurement that is larger than what was known
FORGET = 0.9  # weight of an observation after one more round with any
PRIOR = 1e-3  # of the heaviest observation: how strongly ticks of unrelated ranks are taken for alike
NEGLIGIBLE = 1e-6  # of the heaviest observation: what is lighter is dropped
DENSE = 256  # ranks up to which the fit is solved as a dense system
FEWEST = 2.0**-60  # seconds; no measured time is 0


def own_time_s(wall_s: float, cpu_s: float, gave_up: float | None, queued_s: float | None) -> float:
    """Seconds that a call takes by itself, of `wall_s` seconds in which it had the core for `cpu_s`.

    Who never gave up the core by itself (`gave_up`: how often) has not waited: CPU time.  Otherwise all time but that in
    which it would have run and had to queue for a core (`queued_s`).  None: the system doesn't tell; then all that time is
    taken for a call that hardly used the CPU, CPU time for all others.  Time in which the program was stopped is not in
    `wall_s`, nor in `gave_up`.
    """
    if gave_up == 0:
        return cpu_s
    mine_s = max(cpu_s, wall_s - (queued_s or 0.0))
    if gave_up is None or queued_s is None:
        return mine_s if cpu_s < ASLEEP * mine_s else cpu_s
    return mine_s


class Observation(NamedTuple):
    """k_other / k_own as seen in rows that both have measured."""

    other: int  # rank
    weight: float  # > 0: what the rows cost, in work
    log_ratio: float  # log(k_other / k_own)


class RowCosts:
    """The costs of n rows at home, refined by whole blocks of rows."""

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
        """Take rows that have not been measured for average ones, if any has been."""
        unknown = np.isnan(self.ticks)
        if unknown.any() and not unknown.all():
            self.ticks[unknown] = self.ticks[~unknown].mean()
            self.measured_by[unknown] = self.rank

    def work(self, worth: Floats) -> Floats:
        """(n,) costs in units of work at the (P,) worths k; NaN: not measured."""
        return np.asarray(self.ticks * worth[self.measured_by])

    def observe(self, timed: Iterable[tuple[Rowset, int, float]], worth: Floats) -> list[Observation]:
        """Blocks of rows (each row in one at most) were computed: (rows, by which rank, ticks that it took).

        The ticks of a block are spread over its rows in proportion to what they cost so far.  Returns what that tells of the
        worth of other ranks' ticks: something where most of the rows were measured here before.
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
        own = np.add.reduceat(np.where(measured_by == self.rank, before, 0.0), starts) / total
        tells = usable & (by != self.rank) & (own > 0.5)
        factor = ticks / total
        # Measured by somebody else, the rows keep their costs unless that is told about them, too.
        trusted = np.where(tells | (factor <= 1.0), factor, 1.0 + UP * (factor - 1.0))
        each = np.where(np.repeat(usable, counts), before * np.repeat(trusted, counts), np.repeat(ticks / counts, counts))
        self.ticks[index] = each
        self.measured_by[index] = np.repeat(by, counts)
        own_worth = float(worth[self.rank])
        return [
            Observation(
                int(by[k]),
                float(ticks[k] * worth[by[k]]),
                math.log(worth[by[k]] / own_worth) + math.log(total[k] / ticks[k]) / float(own[k]),
            )
            for k in np.flatnonzero(tells).tolist()
        ]


def smooth(before: float, now: float, up: float = UP) -> float:
    """A measured value: the smaller one at once, a larger one by and by; what is not known (NaN) is replaced."""
    if math.isnan(before) or now <= before:
        return now
    return before + up * (now - before)


class Worths:
    """The worths k of all ranks' ticks, from the observations of all."""

    def __init__(self, size: int) -> None:
        self.values = np.ones(size)  # (P,) k > 0; their geometric mean is 1
        # Pairs (q, r) of which q has told something of r, as q * P + r, ascending; and beside them
        self._pairs = np.zeros(0, dtype=np.int64)
        self._weight = np.zeros(0)  # of what was told
        self._sum = np.zeros(0)  # weight * log(k_r / k_q)

    def tell(self, told: NDArray[np.void], n_told: Ints) -> None:
        """One more round: rank q has made the first n_told[q] of the observations told[q] (see `balancing.judge`)."""
        rank, place = np.nonzero(np.arange(told.shape[1]) < n_told[:, None])
        if not len(rank):
            return
        size, seen = len(self.values), told[rank, place]
        pairs = rank * size + seen["other"]
        union = np.union1d(self._pairs, pairs)
        weight, total = np.zeros((2, len(union)))
        known = np.searchsorted(union, self._pairs)
        weight[known], total[known] = FORGET * self._weight, FORGET * self._sum
        np.add.at(weight, np.searchsorted(union, pairs), seen["weight"])
        np.add.at(total, np.searchsorted(union, pairs), seen["weight"] * seen["log_ratio"])
        kept = weight > NEGLIGIBLE * weight.max()
        self._pairs, self._weight, self._sum = union[kept], weight[kept], total[kept]
        self._fit()

    def _fit(self) -> None:
        """Least squares of the logarithms; a little towards 1, which decides between ranks that nothing relates."""
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
    """The rows 0..n-1, of (n,) sizes > 0, cut into slices of 1/parts of what is left, and hardly smaller than `least`.

    So there are many short ones towards the end, where ranks wait for each other.  They begin somewhere else in each turn,
    and end where they have begun: so in time every row is told apart, and computed by the one rank and the other.
    """
    sums = np.concatenate([[0.0], np.cumsum(sizes)])
    n = len(sums) - 1
    if not n:
        return []
    begin = int(n * ((turn * 0.6180339887498949) % 1.0))  # the golden ratio: begins spread evenly
    if min(sums[begin], sums[n] - sums[begin]) < least:
        begin = 0
    slices = list[slice]()
    first, left = begin, float(sums[n])
    while not slices or first != begin % n:
        end = n if first >= begin else begin
        stop = max(int(np.searchsorted(sums, sums[first] + max(least, left // parts, 1.0), side="right")) - 1, first + 1)
        if stop >= end or sums[end] - sums[stop] < least:
            stop = _halfway(sums, first, end, 0.75 * least)
        slices.append(slice(first, stop))
        left -= float(sums[stop] - sums[first])
        first = stop % n
    return slices


def _halfway(sums: Floats, first: int, end: int, least: float) -> int:
    """The place that cuts first..end into halves, both no smaller than `least`; its end: there is none."""
    half = int(np.searchsorted(sums, 0.5 * (sums[first] + sums[end]), side="right")) - 1
    return half if first < half and min(sums[half] - sums[first], sums[end] - sums[half]) >= least else end
