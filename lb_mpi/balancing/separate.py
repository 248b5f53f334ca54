"""The estimator and the judge of the Balancer for programs that move their items themselves.   (pure)

Law.  An item of w units of work needs w / s seconds on a rank of speed s.  So seconds alone tell neither: a rank that needs
long may be slow, or its items heavy.  An item that has moved tells them apart.
- If rank r computed an item after rank q, then seconds_q / seconds_r = s_r / s_q.  Items that moved between the same two
  ranks in a window are one observation; `judge.Worths` fits the speeds to all observations, and recent ones weigh more.
- The work of an item is its last seconds times the speed, known now, of the rank that needed them.
- Computing can be delayed but never sped up: smaller work is accepted at once, larger work gradually.
- What changes on a rank between two windows, though its items stay, is noise, or a change that all ranks share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lb_mpi.balancing.course import FEWEST
from lb_mpi.balancing.judge import UP, BalanceReason, Decision, Trigger, Worths
from lb_mpi.checks import integer, number, show
from lb_mpi.graph import Floats, Ints
from lb_mpi.metrics import as_numbers, check_speeds, imbalance

_MEDIAN = 0.6745  # of the absolute value of a normal deviation, in standard deviations


@dataclass(frozen=True)
class Separation:
    """The work of each item and the speed of each rank, and what follows for the distribution of the items.

    The unit of work is a second on a rank of mean speed.
    """

    work: Floats  # (n,) of each item; an item without a measurement has the mean of the others
    speeds: Floats  # (P,) of each rank, relative to their mean
    loads: Floats  # (P,) work of each rank in the last window
    targets: Floats  # (P,) work that each rank should have: in proportion to its speed, with the sum of the loads
    seconds: float  # of a window if each rank has its target; no distribution needs less
    imbalance: float  # of the loads: seconds of the slowest rank / `seconds` - 1
    noise: float  # imbalance that noise alone causes (see `separate`); NaN: unknown
    linked: bool  # items have moved between all ranks, in these windows, directly or over others
    pays: bool  # True if moving items is expected to save more than it costs
    gain_s: float  # seconds that it is expected to save in a window


def separate(
    seconds: ArrayLike,
    owner: ArrayLike,
    *,
    size: int | None = None,
    speeds: ArrayLike | None = None,
    tolerance: float = 0.05,
    cost_s: float = 0.0,
) -> Separation:
    """Separate work and speed in the seconds of items on unequal ranks, for programs with a load balancer of their own.

    A balancer that evens out the measured seconds assumes equal ranks: an item that moves to a slower rank needs longer
    there.  Give it `work` for weights and `targets` (or `speeds`) for the ranks instead, and call it if `pays`.

    Parameters
    ----------
    seconds : (n,) seconds, >= 0, that each item needed in the last window; or (W, n), the last window last.  A window is
        the time between two opportunities to move items.  NaN: the item was not computed in this window.
    owner : of the same shape, 0 to P - 1: the rank that computed the item, or owned it in this window.
    size : number of ranks P; None: that of `speeds`, or else the largest owner + 1.
    speeds : (P,) relative speeds known before, above 0, such as `speeds` of the last call; None: equal.
    tolerance : an imbalance up to this one is good enough, above 0; 0.05 means 5 %.
    cost_s : seconds, >= 0, that moving costs, in all.

    The last five to ten windows are enough, if `speeds` of the last call are passed on.  Ranks between which no item has
    moved keep the speeds known before; so the first moves of the program's balancer show how fast the ranks are.

    `noise` is the imbalance that remains with perfect targets: sqrt(2 ln P) standard deviations, a bound on the expected
    maximum of P normal deviations.  The deviation is estimated from ranks whose items stayed between two windows.  An
    imbalance up to `noise` or `tolerance`, whichever is larger, does not pay.  Above it, moving pays if the time that it
    saves in a window, plus what it could have saved in earlier windows, exceeds `cost_s` (ski rental: at most twice the
    optimum).  If earlier moves saved less than expected, less is expected of the next one.

    Deterministic, without MPI: ranks that call it with the same arguments get the same result.

    Raises ValueError if a shape or a value is wrong, or if no item has been measured.
    """
    times, owners, known = _check(seconds, owner, size, speeds)
    bound = number("tolerance", tolerance, above=0.0)
    cost = number("cost_s", cost_s, least=0.0, unit="seconds")
    noise = _noise(times, owners) * math.sqrt(2.0 * math.log(len(known)))
    trigger = Trigger("auto", 1, max(bound, noise) if math.isfinite(noise) else bound)
    items, decision = _Items(times.shape[1], known), Decision(BalanceReason.UNMEASURED)
    for window in range(len(times)):
        items.observe(times[window], owners[window])
        if not items.measured.any():
            continue
        work, worth = items.work, items.worth
        loads = np.bincount(owners[window], work, len(known))
        now_s, balanced_s = float((loads / worth).max()), float(loads.sum() / worth.sum())
        if window and (owners[window] != owners[window - 1]).any():
            trigger.come_true(now_s)
        decision = trigger.decide(imbalance(loads, worth), now_s, balanced_s, cost_s=cost)
    mean = float(worth.mean())
    return Separation(
        work=work / mean,
        speeds=worth / mean,
        loads=loads / mean,
        targets=worth * balanced_s / mean,
        seconds=balanced_s,
        imbalance=imbalance(loads, worth),
        noise=noise,
        linked=items.linked,
        pays=decision.act,
        gain_s=decision.gain_s,
    )


class _Items:
    """State of the estimate of n items and P ranks after some windows."""

    def __init__(self, n: int, known: Floats) -> None:
        self.ticks = np.full(n, np.nan)  # (n,) seconds on the rank that last computed the item
        self.by = np.zeros(n, dtype=np.int64)  # (n,) that rank
        self._known = known  # (P,) speeds known before
        self._worths = Worths(len(known))  # relative to these
        self._links = np.zeros(0, dtype=np.int64)  # pairs of ranks between which items have moved, as q * P + r

    @property
    def worth(self) -> Floats:
        """(P,) work that a rank does in a second."""
        return self._known * self._worths.values

    @property
    def measured(self) -> NDArray[np.bool_]:
        """(n,) True for items with a measurement."""
        return np.asarray(~np.isnan(self.ticks))

    @property
    def work(self) -> Floats:
        """(n,) work of each item."""
        work = self.ticks * self.worth[self.by]
        return np.where(self.measured, work, work[self.measured].mean())

    @property
    def linked(self) -> bool:
        """True if items have moved between all ranks, directly or over others."""
        size = len(self.worth)
        ends = np.divmod(self._links, size)
        graph = scipy.sparse.coo_array((np.ones(len(self._links)), ends), shape=(size, size))
        return bool(scipy.sparse.csgraph.connected_components(graph, directed=False)[0] == 1)

    def observe(self, seconds: Floats, owner: Ints) -> None:
        """Add a window: (n,) seconds, NaN for items that were not computed, and (n,) owners."""
        now = np.flatnonzero(~np.isnan(seconds))
        ticks, by = np.maximum(seconds[now], FEWEST), owner[now]
        self._compare(now[by != self.by[now]], seconds, owner)
        before = self.ticks[now] * self.worth[self.by[now]] / self.worth[by]  # NaN: not known
        self.ticks[now] = np.where(ticks > before, before + UP * (ticks - before), ticks)
        self.by[now] = by

    def _compare(self, moved: Ints, seconds: Floats, owner: Ints) -> None:
        """Observe relative speeds on items that have moved."""
        moved = moved[self.measured[moved]]
        if not len(moved):
            return
        size = len(self.worth)
        pairs, which = np.unique(self.by[moved] * size + owner[moved], return_inverse=True)
        before = np.bincount(which, self.ticks[moved])
        after = np.bincount(which, np.maximum(seconds[moved], FEWEST))
        source, other = np.divmod(pairs, size)
        ratio = np.log(before / after * self._known[source] / self._known[other])
        self._worths.tell(source, other, after * self.worth[other], ratio)
        self._links = np.union1d(self._links, pairs)


def _noise(seconds: Floats, owner: Ints) -> float:
    """Relative standard deviation of a rank's seconds in a window, as seen on items that stayed; NaN: unknown."""
    deviations = list[Floats]()
    for window in range(1, len(seconds)):
        before, after = seconds[window - 1 : window + 1]
        stayed = (owner[window] == owner[window - 1]) & (before > 0.0) & (after > 0.0)
        ranks, which = np.unique(owner[window][stayed], return_inverse=True)
        if len(ranks) > 1:
            changes = np.log(np.bincount(which, after[stayed]) / np.bincount(which, before[stayed]))
            # Each change has the noise of two windows, and so has a part of their mean.
            deviations.append((changes - np.median(changes)) / math.sqrt(2.0 * (1.0 - 1.0 / len(ranks))))
    return float(np.median(np.abs(np.concatenate(deviations)))) / _MEDIAN if deviations else math.nan


def _check(
    seconds: ArrayLike, owner: ArrayLike, size: int | None, speeds: ArrayLike | None
) -> tuple[Floats, Ints, Floats]:
    """Return (W, n) seconds and owners, and (P,) speeds known before."""
    times, owners = as_numbers("seconds", seconds), np.asarray(owner)
    if times.ndim not in (1, 2) or not times.size:
        raise ValueError(f"seconds of shape {times.shape}: expected (n,) or (windows, n), with at least one item")
    if owners.shape != times.shape or owners.dtype.kind not in "iu":
        expected = f"integers of shape {times.shape}, as seconds"
        raise ValueError(f"owner of shape {owners.shape} and dtype {owners.dtype}: expected {expected}")
    _refuse("seconds", times, (times < 0.0) | np.isinf(times), "a finite number >= 0, or NaN")
    if np.isnan(times).all():
        raise ValueError("seconds: all are NaN: expected at least one measured item")
    n_ranks = None if size is None else integer("size", size, 1)
    known = np.ones(n_ranks or max(int(owners.max()) + 1, 1)) if speeds is None else check_speeds(speeds, n_ranks)
    outside = (owners < 0) | (owners >= len(known))
    _refuse("owner", owners, outside, f"a rank, 0 to {len(known) - 1}")
    return np.atleast_2d(times), np.atleast_2d(owners).astype(np.int64), known


def _refuse(name: str, values: NDArray[Any], bad: NDArray[np.bool_], expected: str) -> None:
    """Raise ValueError if any of the `bad` is True, with the index and value of the first."""
    if bad.any():
        index = tuple(np.argwhere(bad)[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, index))}] = {show(values[index].item())}: expected {expected}")
