"""Between rounds: what one rank lends next, what it learns from a round, how a verdict changes the plan.   (pure)

The caller's loop, on MPI (`lb_mpi.mpi.rows.balancer`) and on a virtual clock (`lb_mpi.balancing.simulate`), is

    round = course.begin(n, mark)
    the loop of an actor (`lb_mpi.virtual`)
      in it, with LEARNED: told = course.learn(learned, ...)   # goes to the root in a RankReport
    course.hear(verdict of the root, round.learned.late_ticks)
    if verdict.decision.act:
        course.follow(plan)                             # None: all rows stay at home from now on

A call of `map_rows` is a round.  A plan stays in force until the next one.  If the number of rows changes, the rows to
lend are chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lb_mpi.balancing.estimate import Observation, RowCosts, blocks
from lb_mpi.balancing.judge import Verdict
from lb_mpi.balancing.migrate import Plan, pick
from lb_mpi.balancing.round import LEAST, Learned, Round, Rowset, Timed, count, cut, kept, shortest_s
from lb_mpi.graph import Floats, Ints

BLOCKS = 64  # a block at home is 1/BLOCKS of the remaining rows, but not much shorter than BLOCK_S
FEWEST = 8  # minimum of that divisor, where blocks are expensive to handle
LIGHTEST = 0.5  # of the mean: minimum size of a row when blocks are cut
HANDLING = 0.03  # fraction of the time of rows at home that may go into handling their blocks


class Told(NamedTuple):
    """The findings of one rank from a round."""

    work: float = math.nan  # of its rows, in units of work; NaN: unknown
    helped: float = 0.0  # work of its rows done by others beyond the plan, minus its own such work for others
    seen: tuple[Observation, ...] = ()  # of the worth of other ranks' ticks
    took: float = math.nan  # units of work of its rows in this round alone, unsmoothed; NaN: unknown


class Course:
    """One rank from round to round; `neighbours` are those on the process graph.

    `known`: the ranks of which it knows worths and speeds: all, or itself, its neighbours, and others that it has met.
    """

    def __init__(self, rank: int, known: Sequence[int], neighbours: list[int]) -> None:
        self.rank, self.known, self.neighbours = rank, known, neighbours
        self.place = known.index(rank)  # in the arrays below
        # Of the known ranks, as in the last `Verdict`.  Broadcast views, since there may be many ranks.
        self.worth, self.speeds, self.late = (np.broadcast_to(value, len(known)) for value in (1.0, 1.0, 0.0))
        self.mean_speed = math.nan  # of all ranks; NaN: of the known ranks
        self.n_calls = 0  # rounds since rows last changed their owner
        self.costs: RowCosts | None = None
        self.mark: int | None = None  # of the rows that the costs describe
        self.plan: Plan | None = None  # by which rows are lent; None: they stay at home
        self.lent: dict[int, Rowset] | None = None  # by borrower, as planned; None: not chosen yet
        self._n_planned = 0  # rows that this rank had when the plan was made
        self._n_lending = 0  # rounds with planned loans of rows with the current mark
        self._kept = 0.0  # part of the planned loans that stays at home in this round, for dry ranks
        self._n_rounds = 0
        self._late_ticks = 0.0  # spent on borrowed rows in the last round, after this rank had sent LEARNED
        self._row_s = 0.0  # of a row at home in the last round, with all overhead; 0: unknown
        self._handling_s = 0.0  # overhead of a block at home; 0: unknown

    @property
    def work_of_rows(self) -> float:
        """The units of work of this rank's rows."""
        assert self.costs is not None
        return float(self.costs.work(self.worth).sum())

    @property
    def work(self) -> float:
        """This rank's load in units of work: its rows, and what it could have done before it came."""
        return self.work_of_rows + float(self.late[self.place])

    @property
    def relative_speeds(self) -> Floats:
        """The speeds of the known ranks, relative to the mean of all."""
        mean = self.speeds.mean() if math.isnan(self.mean_speed) else self.mean_speed
        return np.asarray(self.speeds / mean)

    @property
    def is_lending(self) -> bool:
        """Rows are lent by a plan."""
        return self.plan is not None and len(self.plan.amounts) > 0

    def knows(self, mark: int) -> bool:
        """True when costs are known for rows with this `mark`."""
        return mark == self.mark and self.costs is not None

    def begin(self, n: int, mark: int, *, warm: bool = True) -> Round:
        """Return the next round, of n rows with this `mark`; not `warm`: the first block's time is unreliable."""
        if not self.knows(mark) or self.costs is None:
            self.costs, self.mark, self._row_s, self._handling_s = RowCosts(self.place, n), mark, 0.0, 0.0
            self.lent, self._n_lending = None, 0
        elif len(self.costs) != n:  # the rows are others: only the mean is still of use
            mean = float(np.mean(self.costs.work(self.worth))) if len(self.costs) else np.nan
            self.costs = RowCosts(self.place, n)
            self.costs.ticks[:] = mean / self.worth[self.place]
            self.lent = None
        if self.plan is not None and self.is_lending:  # equal on all ranks, so that they agree
            now = kept(self._n_lending, self.plan.longest_s)
            if now != self._kept:
                self.lent, self._kept = None, now
            self._n_lending += 1
        self._pick()
        self._n_rounds += 1
        self.n_calls += 1
        sizes = self._sizes(n)
        return self._round(self._blocks(sizes, warm=warm), sizes)

    def failed(self) -> Round:
        """Return the next round for a rank with invalid rows: it fails from the start."""
        self._n_rounds += 1
        self._pick()
        round = self._round([])
        round.fail()
        return round

    def learn(self, learned: Learned, busy_s: float, ticks: float, handling_s: float = 0.0) -> Told:
        """Record what was measured in a round that has not failed.

        This rank spent `busy_s` seconds on rows, in which it counted `ticks`.  Each block had an overhead of
        `handling_s` (0: unknown, keep the previous value).
        """
        assert self.costs is not None
        place = {rank: self.known.index(rank) for rank in {timed.by for timed in learned.timed}}
        timed = [Timed(rows, place[by], ticks, helped) for rows, by, ticks, helped in learned.timed]
        seen = self.costs.observe([each[:3] for each in timed], self.worth)
        known = [each for each in timed if not math.isnan(each.ticks)]
        given = sum(timed.ticks * float(self.worth[timed.by]) for timed in known if timed.helped)
        own = [timed for timed in known if timed.by == self.place]
        n_known = sum(count(timed.rows) for timed in known)
        took = sum(timed.ticks * float(self.worth[timed.by]) for timed in known)
        n_own = sum(count(timed.rows) for timed in own)
        self._row_s = busy_s * sum(timed.ticks for timed in own) / (ticks * n_own) if ticks > 0.0 and n_own else 0.0
        self._handling_s = handling_s or self._handling_s
        self.costs.fill()
        own_worth = float(self.worth[self.place])
        helped_work = given - learned.help_ticks * own_worth
        # The kept part of planned loans was planned for the borrowers: count it there, whoever computed it.
        lent = sum(timed.ticks * float(self.worth[timed.by]) for timed in known if timed.by != self.place) - given
        helped_work += (learned.planned_ticks * own_worth - lent) * self._kept / (1.0 - self._kept)
        whole = took * len(self.costs) / n_known if n_known else math.nan
        return Told(float(self.costs.work(self.worth).sum()), helped_work, tuple(seen), whole)

    def hear(self, verdict: Verdict, late_ticks: float = 0.0) -> None:
        """Apply the root's verdict; `late_ticks` of this rank in the round that is over."""
        self.worth, self.speeds, self.late = verdict.worth, verdict.speeds, verdict.late
        self._late_ticks = late_ticks
        if verdict.problem:  # nothing is known of the rows, and none is lent
            self.own(None)

    def follow(self, plan: Plan | None) -> None:
        """From the next round on, lend rows by this plan, which all ranks have; None: all rows stay at home."""
        self._n_planned = len(self.costs) if self.costs is not None else 0
        # The rows are chosen when the next round begins, so that no rank waits for that now.
        self.plan, self.lent = plan, None

    def meet(self, others: Mapping[int, tuple[float, float]]) -> None:
        """Know these ranks, by rank the worth of a tick and the speed, beside itself and its neighbours.

        Other distant ranks are forgotten, unless they have measured rows of this rank.
        """
        near, measured_by = 1 + len(self.neighbours), np.zeros(0, dtype=np.int64)
        if self.costs is not None:
            measured_by = self.costs.measured_by
        old = [k for k in np.unique(measured_by).tolist() if k >= near]
        about = {self.known[k]: (float(self.worth[k]), float(self.speeds[k])) for k in old}
        about.update({rank: told for rank, told in others.items() if rank not in self.known[:near]})
        known = [*self.known[:near], *about]
        if self.costs is not None and old:
            place = {rank: k for k, rank in enumerate(known)}
            moved = np.array([place.get(rank, 0) for rank in self.known])
            self.costs.measured_by = moved[measured_by]
        worth, speeds = np.array([*about.values()]).reshape(-1, 2).T
        self.worth, self.speeds = np.append(self.worth[:near], worth), np.append(self.speeds[:near], speeds)
        self.late = np.append(self.late[:near], np.zeros(len(about)))
        self.known = known

    def own(self, work: Floats | None) -> None:
        """Rows have changed their owner: none is lent; `work`: (n,) costs of this rank's new rows, if known."""
        self.follow(None)
        self.costs, self.n_calls, self._n_lending, self._kept = None, 0, 0, 0.0
        if work is not None:
            self.costs = RowCosts(self.place, len(work))
            self.costs.ticks[:] = work / self.worth[self.place]

    def _round(self, home: list[Rowset], sizes: Floats | None = None) -> Round:
        lenders = [] if self.plan is None else self.plan.to(self.rank)
        near = not isinstance(self.known, range)
        asked = [*lenders, *self.neighbours] if near else self.neighbours
        return Round(
            self.rank, home, lent=self.lent or {}, lenders=lenders, neighbours=asked,
            speeds=dict(zip(self.known, self.speeds.tolist(), strict=True)) if near else self.speeds,
            help_ticks=self._late_ticks, handling_s=self._handling_s, sizes=sizes,
        )  # fmt: skip

    def _pick(self) -> None:
        if self.lent is not None:
            return
        self.lent = {}
        if self.plan is None or self.costs is None:
            return
        mine = self.plan.of(self.rank)
        if not len(mine.amounts):
            return
        if self._n_planned and len(self.costs) != self._n_planned:  # keep the planned fraction
            mine = replace(mine, amounts=mine.amounts * (len(self.costs) / self._n_planned))
        mine = replace(mine, amounts=mine.amounts * (1.0 - self._kept))
        items: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(mine.amounts)
        if self.costs.known:
            items = pick(self.costs.work(self.worth), mine).items
        self.lent = dict(zip(mine.destinations.tolist(), items, strict=True))

    def _blocks(self, sizes: Floats, *, warm: bool) -> list[Rowset]:
        """Divide the rows that stay at home into blocks; the first one is short, so that dry ranks are served soon."""
        n = len(sizes)
        if len(self.worth) == 1:
            return [slice(0, n)] if n else []
        kept: Rowset = slice(0, n)
        lent = [rows for rows in (self.lent or {}).values() if not isinstance(rows, slice) and len(rows)]
        if lent:
            staying = np.ones(n, dtype=np.bool_)
            staying[np.concatenate(lent)] = False
            kept = np.flatnonzero(staying)
        least, divisor = min(LEAST, max(1, n // BLOCKS)), BLOCKS
        first = LEAST
        if warm and self._row_s > 0.0:
            first = least = max(1, int(shortest_s(self._handling_s) / self._row_s))
            divisor = _divisor(count(kept) * self._row_s, self._handling_s)
        parts: list[Rowset] = list(blocks(sizes[kept], divisor, self._n_rounds, least))
        if parts and count(parts[0]) >= 2 * first:
            parts[:1] = [cut(parts[0], 0, first), cut(parts[0], first, count(parts[0]))]
        return parts if isinstance(kept, slice) else [kept[part] for part in parts]

    def _sizes(self, n: int) -> Floats:
        """(n,) size of each row when blocks are cut: its cost relative to the mean, at least LIGHTEST.

        A row that was cheap may become expensive, as in weather that moves.
        """
        if self.costs is None or not self.costs.known:
            return np.ones(n)
        work = self.costs.work(self.worth)
        mean = float(work.sum()) / max(1, n)
        return np.asarray(np.maximum(work / mean, LIGHTEST)) if mean > 0.0 else np.ones(n)


def _divisor(seconds: float, handling_s: float) -> int:
    """The divisor k: a block at home is 1/k of the rows left, which need `seconds`; handling one costs `handling_s`.

    There are then about 4 k blocks.
    """
    most = HANDLING * seconds / (4.0 * handling_s) if handling_s > 0.0 else math.inf
    return int(min(max(most, FEWEST), BLOCKS))
