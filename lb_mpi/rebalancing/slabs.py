"""Slabs: contiguous ranges of vertices, one for each rank, of which only the ends move.   (pure)

A cut is the cumulative work at which a range ends.  A vertex belongs to the range in which the middle of its work lies, so
each rank finds the owners of its own vertices from the work before them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.checks import integer
from lb_mpi.graph import Floats, Ints
from lb_mpi.metrics import check_comparable, check_loads, check_speeds, scaled

CLOSE = 1e-12  # relative difference of times that count as equal


def slabs(n: int, costs: ArrayLike, shares: ArrayLike) -> Ints:
    """Return the (P,) ends of P contiguous ranges of n vertices: rank r owns ends[r - 1] to ends[r] - 1, rank 0 from 0.

    costs (n,) : work of the vertices, >= 0; if all are 0, vertices count 1 each.  shares (P,) : the ranks' wanted work
    relative to each other, above 0, for example their speeds.  A range differs from its share by at most a vertex's work.
    """
    n = integer("n", n, 1)
    work, share = check_loads(costs, n, name="costs"), check_speeds(shares, name="shares")
    if not work.any():
        work = np.ones(n)
    cuts = np.cumsum(share)[:-1] / share.sum() * work.sum()
    return np.searchsorted(slab_owners(0.0, work, cuts), np.arange(len(share)), side="right")


def slab_owners(before: float, costs: Floats, cuts: Floats) -> Ints:
    """Return the (m,) ranks that own consecutive vertices of (m,) costs, of which `before` is the work of all earlier ones.

    cuts (P - 1,) : see `move_cuts`.
    """
    return np.searchsorted(cuts, before + np.cumsum(costs) - 0.5 * costs, side="right")


def move_cuts(loads: ArrayLike, shares: ArrayLike, tolerance: float) -> Floats:
    """Return (P - 1,) cuts between the ranges of P ranks that stay where they are as far as the shares allow it.

    loads (P,) : the present work of the ranges, in order.  shares (P,) : as for `slabs`.  No range gets more work than
    1 + tolerance times its share of all.  From the first to the last, each cut moves the shortest way to a point that
    leaves enough room for the ranges behind it.
    """
    work, share = check_loads(loads), check_speeds(shares, name="shares")
    most = (1.0 + tolerance) * share / share.sum() * work.sum()
    least = (
        work.sum() - np.cumsum(most[::-1])[::-1][1:]
    )  # work before each cut, at least: the ranges behind can't have more
    cuts, cut = [], 0.0
    for old, low, bound in zip(np.cumsum(work)[:-1].tolist(), least.tolist(), most.tolist(), strict=False):
        cut = min(max(old, low), cut + bound)
        cuts.append(cut)
    return np.array(cuts)


def best_ends(costs: ArrayLike, counts: ArrayLike, speeds: ArrayLike, tolerance: float = 0.0) -> Ints:
    """Return the (P,) ends of the ranges of P ranks for which the slowest rank needs the least time that one move can reach.

    costs (n,) : work of the vertices, >= 0.  counts (P,) : present numbers of vertices of the ranges, in order.
    speeds (P,) : of the ranks, above 0; ValueError for one below 1e-12 of the largest.
    Each end moves as far as the next old one at most, and a rank that has vertices keeps at least one.  Of all ends that are
    good enough, those that move little: no range needs more than the least possible time, or 1 + tolerance times the mean.

    The time is found by bisection (Pinar & Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", 2004).
    """
    work, speed = scaled(check_loads(costs))[0], scaled(check_comparable(speeds, np.size(counts)))[0]
    ranges = _Ranges(work, np.asarray(counts), speed)
    most, least = ranges.slowest, ranges.mean
    while most > least * (1.0 + CLOSE):
        middle = 0.5 * (least + most)
        if ranges.within(middle) is None:
            least = middle
        else:
            most = middle
    ends = ranges.within(max(most, (1.0 + tolerance) * ranges.mean))
    assert ends is not None
    return ends


def range_after(begin: int, vertices: Ints, given: Mapping[int, int], rank: int) -> tuple[int, int]:
    """Return this rank's range after a move; `begin`: of its range before.

    vertices (n,) : its own, in order.  `given`: numbers of vertices that it has given away, by rank; where none is left, as
    after a move that is undone, the range is empty, behind those that lower ranks have received.
    """
    if len(vertices):
        return int(vertices[0]), int(vertices[-1]) + 1
    begin += sum(n for other, n in given.items() if other < rank)
    return begin, begin


class _Ranges:
    """The ranges of a line of vertices, and where their ends may be."""

    def __init__(self, costs: Floats, counts: Ints, speeds: Floats) -> None:
        self.ends, self._speeds = np.cumsum(counts), speeds.tolist()
        self._before = np.concatenate([[0.0], np.cumsum(costs)])  # work before each vertex
        self._least = (counts > 0).astype(np.int64)  # vertices of a range
        # Each end is between the old ones beside it.
        self._low, self._high = self.ends - counts, np.append(self.ends[1:], self.ends[-1])
        self.mean = float(self._before[-1]) / float(speeds.sum())  # time of a perfect balance
        self.slowest = float((np.diff(self._before[self.ends], prepend=0.0) / speeds).max())  # at present

    def within(self, time: float) -> Ints | None:
        """Return ends with which no rank needs more than this time, each near the present one; None: there are none."""
        before, size = self._before, len(self.ends)
        good = [self.ends[-1:]] * size  # ends of each range from which the ranges behind it can go on
        for k in range(size - 1, 0, -1):
            here = np.arange(self._low[k - 1], self._high[k - 1] + 1)
            index = np.searchsorted(good[k], here + self._least[k])  # of the first end of range k
            here, first = here[index < len(good[k])], good[k][index[index < len(good[k])]]
            good[k - 1] = here[before[first] - before[here] <= self._work(time, k)]
        ends, end = np.empty_like(self.ends), 0
        for k, old in enumerate(self.ends.tolist()):
            most = int(np.searchsorted(before, before[end] + self._work(time, k), side="right")) - 1
            these = good[k][(good[k] >= end + self._least[k]) & (good[k] <= most)]
            if not len(these):
                return None
            ends[k] = end = int(these[np.abs(these - old).argmin()])
        return ends

    def _work(self, time: float, rank: int) -> float:
        """Return what a rank can do in this time; a hair more, since it is compared with rounded sums."""
        return time * (1.0 + CLOSE) * float(self._speeds[rank])
