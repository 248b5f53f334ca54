"""Slabs: contiguous ranges of vertices, one for each rank, of which only the ends move.   (pure)

A cut is the cumulative work at which a range ends.  A vertex belongs to the range in which the middle of its work lies, so
each rank finds the owners of its own vertices from the work before them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.checks import integer
from lb_mpi.graph import Floats, Ints
from lb_mpi.metrics import check_loads, check_speeds


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
    1 + tolerance times its share of all.  From the first to the last, each cut moves the shortest way to a place that
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


def flow_between(loads: Floats, shares: Floats, tolerance: float) -> Floats:
    """Return (P + 1,) the work that goes from each rank to the next one, before rank 0 and behind the last: 0; < 0: back.

    As `move_cuts`, but work goes one rank far: a cut moves as far as the next old one at most.
    """
    old = np.concatenate([[0.0], np.cumsum(loads)])
    flow = np.zeros(len(old))
    if len(old) > 2:
        flow[1:-1] = old[1:-1] - np.clip(move_cuts(loads, shares, tolerance), old[:-2], old[2:])
    return flow


def end_owners(rank: int, costs: Floats, left: float, right: float) -> Ints:
    """Return the (n,) new owners of the vertices of `rank`, of (n,) costs: one of them stays, so that no range is empty.

    left, right : work at the beginning, for rank - 1, and at the end, for rank + 1; none if at most 0.
    """
    cuts = np.array([left if left > 0.0 else -np.inf, costs.sum() - right if right > 0.0 else np.inf])
    owners = rank - 1 + slab_owners(0.0, costs, np.maximum.accumulate(cuts))
    if len(owners) and not (owners == rank).any():
        owners[min(int(np.searchsorted(owners, rank)), len(owners) - 1)] = rank
    return owners
