"""One rank from round to round: costs of its rows, what it lends and computes next, what it learns.   (pure)

The caller's loop, on MPI (`lb_mpi.mpi.rows.lending`) and on a virtual clock (`lb_mpi.cli.simulate.rows`), is

    round = knowledge.begin(n, checksum)
    the loop of an actor (`lb_mpi.actor`)
      in it, with SETTLED: decider.report(report, learned)   # learns from it, unless the call is a quick one
      in it, before OVER:  decided = decider.decide(reports of all ranks)
    if decided.decision.needs_plan:
        decider.follow(plan)

A call of `map_rows` is a round.  A plan stays in force until the next one.  If the number of rows changes, the rows to
lend are chosen again.

Law of costs and speeds, which are estimated only from the times of normal computation.  Rank r measures rows in its own
ticks (seconds of its work clock).  A tick of rank r is k_r units of work and lasts g_r seconds.  So the speed of
rank r is s_r = k_r / g_r units of work per second.
- Only rank r can measure g_r.
- The rank that last measured a row is stored with the ticks.  The row's cost in work is ticks * k_r with the current
  k_r, so that a better k_r needs no new measurement of the rows.
- If rank r measures rows after rank q, then ticks_q / ticks_r = k_r / k_q.  The k are the least-squares fit of the
  logarithms of all such ratios (`decider.fit`); recent ones of a rank weigh more than its earlier ones.
- What is new in such a ratio counts for the part 1 / (1 + v), where v is the variance of log(measured / known) of the rows
  that their owner measures again: where costs change from call to call, a ratio is no property of ranks.
- In the first round nobody measures rows of others again.  The rows that each rank has measured are compared instead, as
  if all cost the same: for a rank that owns all rows, this may be all that it ever learns of a borrower.
- Rows that come home from a borrower have often been chosen by chance.  They count only if the borrower has needed much
  more or less time for its rows than before, which may be due to the rows or to the borrower, and all of them say that it
  was the borrower.
- A tick is a second of the function's own time: CPU time, and the time in which the function itself waits (it sleeps,
  or waits for a file, a subprocess, another thread or a GPU).  Time in which other programs had the core is not a
  property of the rows.  The carrier separates the two in each call (`lb_mpi.mpi.common.waiting.own_s`), so that
  ticks of functions that wait and of functions that compute are comparable from the first call on.
- Computing can be delayed but never sped up: a smaller measurement is accepted at once, a larger one gradually.

Law of `pick`, which chooses rows for the transfers of one rank, closest to the planned amounts.  A rounding remainder is
carried over to the rank's next transfer.  After the last transfer it stays in the loads, from which the next round's flow
is made: no separate account can grow.
- A row exceeds the planned amount only if the receiver then ends earlier than the giver would have ended with it, even if
  all givers of this receiver do the same.  So the longest time among the ranks that take part falls in every round.  A
  row heavier than the difference stays, and none moves back and forth.
- A row that is heavier than each planned amount, and than all that is to stay, fits nowhere.  It goes to the receiver that
  ends first with it, if that is earlier than the giver would end; the giver's other transfers are so much smaller.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lb_mpi.balancing.deciding import FORGET, UP, Observation, RankReport
from lb_mpi.balancing.round import BLOCK_S, LEAST, Learned, Round, Rowset, count, cut, numbers, shortest_s
from lb_mpi.balancing.transfers import Plan
from lb_mpi.graph import Floats, Ints

BLOCKS = 64  # a block at home is 1/BLOCKS of the remaining rows, but not much shorter than BLOCK_S
LEAST_DIVISOR = 8  # minimum of that divisor, where blocks are expensive to handle
LONG, KEEPING = 2, 16  # that divisor in a quick call; and where a part of the planned loans stays at home for dry ranks
EVEN = 0.1  # imbalance of a call up to which the next full one may have blocks as long as a quick one
LIGHTEST = 0.5  # of the mean: minimum size of a row when blocks are cut
HANDLING = 0.03  # fraction of the time of rows at home that may go into handling their blocks
HALVINGS = 3  # maximum number of halvings of the part kept of planned loans: 1/2, 1/4, 1/8
KEPT_S = 16 * BLOCK_S  # minimum time of the kept part on its borrower; the owner may be slow, with long blocks
BLURRED = 0.05  # of a block whose rows tell a ratio: the part that third ranks have measured, at most
BLIND = 0.25  # part of the first planned loans that stays at home for dry ranks, if speeds are known from elsewhere only
SEVERAL, CLEAR = 2, math.log(1.5)  # blocks that come home, and by how much each is off, if the borrower's speed has changed
FAINT = 0.1  # weight of a ratio of different rows, in that of the same ones
FEWEST = 2.0**-60  # seconds; no measured time is 0


class CallCost:
    """The ticks of a call of the function beyond those of its rows, as of many small operations of numpy.

    A row measured in a block of m rows seems to cost the m-th part of that more than it does.  So a block of such rows takes
    more ticks than expected if it is shorter than the blocks before, and fewer if it is longer.  What rows of changing cost
    might seem to say is not believed: the estimate is two of its standard errors below the least squares.
    """

    def __init__(self) -> None:
        self.ticks = 0.0
        self._sums = np.zeros(4)  # of 1, missing^2, missing * excess, excess^2

    def observe(self, missing: Floats, excess: Floats) -> None:
        """Observe (m,) blocks: the part of a call that their expected ticks lack, and the ticks in excess of these."""
        self._sums *= FORGET
        self._sums += np.array([len(missing), missing @ missing, missing @ excess, excess @ excess])
        n, square, product, variation = self._sums.tolist()
        if n > 1.0 and square > 0.0:
            error = math.sqrt(max(0.0, variation - product**2 / square) / (n - 1.0) / square)
            self.ticks = max(0.0, product / square - 2.0 * error)


class RowCosts:
    """The costs of n rows at home, refined from the times of whole blocks; `call`: the cost of a call."""

    def __init__(self, rank: int, n: int, call: CallCost | None = None) -> None:
        self.rank, self.call = rank, call or CallCost()
        self.ticks = np.full(n, np.nan)
        self.measured_by = np.full(n, rank, dtype=np.int64)
        self._parts = np.zeros(n)  # of a call, in the ticks of each row
        self._repeated = np.zeros(2)  # ticks of its rows measured here again; ticks * log(measured / known)^2
        self._suspected = set[int]()  # borrowers that have needed much longer or shorter for the same rows

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

    def work(self, tick_work: Floats) -> Floats:
        """(n,) costs in units of work, for (P,) work k of a tick; NaN: not measured."""
        return np.asarray(self.ticks * tick_work[self.measured_by])

    def observe(self, timed: Iterable[tuple[Rowset, int, float]], tick_work: Floats) -> tuple[list[Observation], Floats]:
        """Update the costs from blocks of rows, each row in at most one: (rows, computing rank, ticks).

        `tick_work`: (P,) work of a tick of each rank.  A block's ticks are spread over its rows in proportion to their known
        costs.  Returns observations of the work of other ranks' ticks, from blocks where most of the rows were last
        measured here, or by another rank and now here, and hardly any by third ranks; and the (P,) work of a tick with
        these observations.
        """
        known = [(rows, by, ticks) for rows, by, ticks in timed if not math.isnan(ticks) and count(rows)]
        if not known:
            return [], tick_work
        counts = np.array([count(rows) for rows, _, _ in known])
        starts = np.cumsum(counts) - counts
        index = np.concatenate([numbers(rows) for rows, _, _ in known])
        by = np.array([rank for _, rank, _ in known])
        ticks = np.maximum([ticks for _, _, ticks in known], FEWEST)
        measured_by = self.measured_by[index]
        before = self.ticks[index] * tick_work[measured_by] / np.repeat(tick_work[by], counts)  # in ticks of `by`
        total = np.add.reduceat(before, starts)
        usable = np.isfinite(total) & (total > 0.0)
        total[~usable] = 1.0

        def expected(rank: int, same: Floats | float) -> tuple[NDArray[np.bool_], Floats, Floats]:
            """Blocks of which this rank has measured most rows, beside `same`; ticks that it expects, and those measured."""
            its = np.add.reduceat(np.where(measured_by == rank, before, 0.0), starts)
            measured = ticks - (total - its)
            return usable & (its > 0.5 * total) & (its + same > (1.0 - BLURRED) * total) & (measured > 0.0), its, measured

        same = np.add.reduceat(np.where(measured_by == np.repeat(by, counts), before, 0.0), starts)
        again = usable & (same > (1.0 - BLURRED) * total)
        gain = self._repeat(ticks[again & (by == self.rank)], total[again & (by == self.rank)])
        clear, own, measured = expected(self.rank, same)
        informs = clear & (by != self.rank)
        ratios = np.log(tick_work / tick_work[self.rank])
        weight = ticks * tick_work[by]
        observed = [
            Observation(int(by[k]), float(weight[k]), float(ratios[by[k]]) + gain * math.log(own[k] / measured[k]))
            for k in np.flatnonzero(informs).tolist()
        ]
        for rank in self._suspected & set(measured_by.tolist()):  # its rows have come home
            clear, its, measured = expected(rank, own)
            returned = clear & (by == self.rank)
            excess = np.log(measured[returned] / its[returned])
            if len(excess) >= SEVERAL and (excess.min() > CLEAR or excess.max() < -CLEAR):
                informs |= returned
                self._suspected.discard(rank)
                observations = zip(weight[returned].tolist(), (ratios[rank] + gain * excess).tolist(), strict=True)
                observed += [Observation(rank, *one) for one in observations]
        for rank in set(by[again & (by != self.rank)].tolist()):
            its = again & (by == rank)
            off = abs(math.log(ticks[its].sum() / total[its].sum())) > CLEAR
            self._suspected = self._suspected | {rank} if off else self._suspected - {rank}
        if observed:  # weigh with them the rows of one block that different ranks have measured
            tick_work = _as_observed(tick_work, self.rank, observed)
            before = self.ticks[index] * tick_work[measured_by] / np.repeat(tick_work[by], counts)
            total = np.where(usable, np.add.reduceat(before, starts), 1.0)
        factor = ticks / total
        plain = usable & (by == self.rank) & (own > (1.0 - BLURRED) * total)
        self.call.observe((1.0 - np.add.reduceat(self._parts[index], starts))[plain], (ticks - total)[plain])
        self._parts[index] = np.repeat(1.0 / counts, counts)
        # Rows that this rank measured before move only part of the way to a larger cost; others' ticks may be more work.
        trusted = np.where(informs | (factor <= 1.0), factor, 1.0 + UP * (factor - 1.0))
        each = np.where(np.repeat(usable, counts), before * np.repeat(trusted, counts), np.repeat(ticks / counts, counts))
        self.ticks[index] = each
        self.measured_by[index] = np.repeat(by, counts)
        return observed, tick_work

    def _repeat(self, ticks: Floats, known: Floats) -> float:
        """Record (m,) measured and known ticks of blocks; return the part of a ratio that counts, above 0, at most 1."""
        self._repeated *= FORGET
        if len(ticks):
            logs = np.log(ticks / known)
            if len(ticks) > 1:  # all of them more, or less: this rank has changed, not its rows
                logs = (logs - np.average(logs, weights=ticks)) * math.sqrt(len(ticks) / (len(ticks) - 1))
            self._repeated += ticks.sum(), ticks @ logs**2
        whole, varied = self._repeated.tolist()
        return whole / (whole + varied) if whole else 1.0

    def compare(self, timed: Sequence[tuple[Rowset, int, float]]) -> list[Observation]:
        """Compare the ranks by (rows, rank, ticks) of rows measured for the first time, as if all rows cost the same.

        A rank whose rows took less than BLOCK_S is left out: its time would be mostly noise.
        """
        n, ticks = np.zeros((2, 1 + max((by for _, by, _ in timed), default=0)))
        for rows, by, its_ticks in timed:
            if not math.isnan(its_ticks):
                n[by] += count(rows)
                ticks[by] += max(its_ticks, FEWEST)
        if not len(n) > self.rank or ticks[self.rank] < BLOCK_S:
            return []
        row = ticks[self.rank] / n[self.rank]
        others = [by for by in np.flatnonzero(ticks >= BLOCK_S).tolist() if by != self.rank]
        return [Observation(by, FAINT * row * min(n[by], n[self.rank]), math.log(row * n[by] / ticks[by])) for by in others]


def _as_observed(tick_work: Floats, rank: int, observed: Sequence[Observation]) -> Floats:
    """Return the (P,) work of a tick, with what `rank` itself has observed in this round: means by weight."""
    other = np.array([one.other for one in observed])
    weight, log_ratio = np.array([one[1:] for one in observed]).T
    sums = np.bincount(other, weight, len(tick_work))
    seen = sums > 0.0
    tick_work = tick_work.copy()
    tick_work[seen] = tick_work[rank] * np.exp(np.bincount(other, weight * log_ratio, len(tick_work))[seen] / sums[seen])
    return tick_work


class Picked(NamedTuple):
    """The items that one rank sends."""

    items: list[Ints]  # for each transfer of the rank, in the order of its plan: indices of items, ascending
    unsent: float  # planned work that rounding keeps here; negative: sent beyond the plan


def pick(costs: Floats, transfers: Plan) -> Picked:
    """Choose items to send, of (n,) costs >= 0 in units of work, for the transfers of one rank; each item at most once.

    Heavy items go first, so that few are moved; items without a cost stay.
    """
    order = np.argsort(-costs, kind="stable")
    order = order[costs[order] > 0]
    heavy, unsent = _heavy(costs, order, transfers)
    order = order[sum(map(len, heavy.values())) :]
    items: list[Ints] = []
    for k, (amount, margin, share) in enumerate(
        zip(transfers.amounts.tolist(), transfers.margins.tolist(), transfers.shares.tolist(), strict=True)
    ):
        if k in heavy:
            items.append(np.sort(heavy[k]))
            continue
        bound = amount + max(0.0, (margin + unsent) / (share + 1.0))  # where giver and receiver end together
        wanted = amount + unsent
        taken, sent = _fill(costs[order], min(wanted, bound))
        left = np.flatnonzero(~taken)
        if len(left):
            lightest = float(costs[order[left[-1]]])
            too_much = max(0.0, sent + lightest - amount)
            if lightest < 2.0 * (wanted - sent) and share * too_much < margin + wanted - sent:
                taken[left[-1]] = True
                sent += lightest
        items.append(np.sort(order[taken]))
        order = order[~taken]
        unsent = wanted - sent
    return Picked(items, unsent)


def _heavy(costs: Floats, order: Ints, transfers: Plan) -> tuple[dict[int, list[int]], float]:
    """Choose transfers for the first items of `order` that are too heavy to stay, and for any transfer.

    Each goes where it is done first, if that is earlier than here.  Returns the items by transfer, and the planned work of
    all of those transfers, minus these items.
    """
    amounts, left = transfers.amounts, transfers.amounts.copy()
    keeps = float(costs.sum() - amounts.sum())
    most = max(keeps, float(amounts.max(initial=0.0)))
    heavy = dict[int, list[int]]()
    for item in order.tolist():
        if costs[item] <= most or not len(amounts):
            break
        late = transfers.shares * (costs[item] - left) - transfers.margins
        first = int(late.argmin())
        if late[first] >= costs[item] - keeps:
            break
        heavy.setdefault(first, []).append(item)
        left[first] -= costs[item]
    return heavy, float(sum(left[k] for k in heavy))


def _fill(costs: Floats, amount: float) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], float]:
    """Choose from descending costs, in turn, each that still fits into the amount; (n,) chosen, and their sum."""
    taken = np.zeros(len(costs), dtype=np.bool_)
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    sent, begin = 0.0, 0
    while True:  # each turn takes a run of items; less room is left than its last item took
        begin = max(begin, int(np.searchsorted(-costs, -(amount - sent))))
        end = int(np.searchsorted(sums, sums[begin] + (amount - sent), side="right")) - 1
        if end <= begin:
            return taken, sent
        taken[begin:end] = True
        sent += float(sums[end] - sums[begin])
        begin = end


class HomeTimes(NamedTuple):
    """Seconds at home in the last round; 0: unknown."""

    row_s: float = 0.0  # of a row, with all overhead
    handling_s: float = 0.0  # overhead of a block
    call_s: float = 0.0  # of a call of the function, beyond its rows

    @property
    def block_s(self) -> float:
        """Seconds of a block beyond its rows."""
        return self.handling_s + self.call_s


class PlanMade(NamedTuple):
    """The knowledge when the plan was made."""

    n_rows: int = 0  # of this rank
    blind: bool = False  # no costs: the plan is in rows


class Knowledge:
    """One rank from round to round; `neighbours` are those on the process graph.

    `known`: the ranks of which it knows the work of a tick and the speed: all, or itself, its neighbours, and others to
    which it has lent rows.
    """

    def __init__(self, rank: int, known: Sequence[int], neighbours: list[int]) -> None:
        self.rank, self.known, self.neighbours = rank, known, neighbours
        self.index = known.index(rank)  # of this rank in arrays of the known ranks
        # Of the known ranks: work of a tick, speed, and work that each could have done before it came.  Broadcast views,
        # since there may be many ranks.
        self.tick_work, self.speeds, self.late = (np.broadcast_to(value, len(known)) for value in (1.0, 1.0, 0.0))
        self.mean_speed = math.nan  # of all ranks; NaN: of the known ranks
        self.n_rounds = 0  # since rows last changed their owner
        self.costs: RowCosts | None = None
        self.checksum: int | None = None  # of the rows that the costs describe; None: there are none
        self.plan: Plan | None = None  # by which rows are lent; None: they stay at home
        self.lent: dict[int, Rowset] | None = None  # by borrower, as planned; None: not chosen yet
        self._made = PlanMade()
        self._n_lending = 0  # rounds with planned loans of rows with the current checksum
        self._learned: Learned | None = None  # in the last call; None: it was at home, where no rank helps another
        self.last_work = math.nan  # units of work of its rows in the last round alone, unsmoothed; NaN: unknown
        self._times = HomeTimes()
        self._even = False  # the last full call was balanced
        self._quick: tuple[Floats, list[Rowset]] | None = None  # in quick calls: sizes of rows, blocks at home

    @property
    def work_of_rows(self) -> float:
        """The units of work of this rank's rows."""
        assert self.costs is not None
        return float(self.costs.work(self.tick_work).sum())

    def measured(self, n: int) -> Floats | None:
        """(n,) units of work of this rank's n rows; None unless all of them have been measured."""
        known = self.costs is not None and self.costs.known and len(self.costs) == n
        return self.costs.work(self.tick_work) if known and self.costs is not None else None

    @property
    def home_s(self) -> float:
        """The seconds of its rows in the last round, if it had computed them alone; NaN: unknown."""
        return self.last_work / float(self.speeds[self.index])

    @property
    def relative_speeds(self) -> Floats:
        """The speeds of the known ranks, relative to the mean of all."""
        mean = self.speeds.mean() if math.isnan(self.mean_speed) else self.mean_speed
        return np.asarray(self.speeds / mean)

    @property
    def is_lending(self) -> bool:
        """Rows are lent by a plan."""
        return self.plan is not None and len(self.plan.amounts) > 0

    @property
    def _kept(self) -> float:
        """The part of the planned loans that stays at home in this round, for dry ranks; the same on all ranks."""
        if self._made.blind:
            return BLIND
        return kept(max(0, self._n_lending - 1), self.plan.longest_s) if self.plan is not None and self.is_lending else 0.0

    def describe(self, n: int, checksum: int) -> None:
        """Begin a round of n rows with this `checksum`: what is known of the costs of other rows is forgotten."""
        self.n_rounds += 1
        self._learned = None
        if self.costs is None or checksum != self.checksum:
            self.costs, self.checksum, self._times = RowCosts(self.index, n), checksum, HomeTimes()
            self.lent, self._n_lending, self._quick = None, 0, None
        elif len(self.costs.ticks) != n:  # the rows are others: only the mean is still of use
            mean = float(np.mean(self.costs.work(self.tick_work))) if len(self.costs) else np.nan
            self.costs = RowCosts(self.index, n, self.costs.call)
            self.costs.ticks[:] = mean / self.tick_work[self.index]
            self.lent = None

    def begin(self, n: int, checksum: int, *, warm: bool = True, objects: bool = False, quick: bool = False) -> Round:
        """Return the next round, of n rows with this `checksum`, arrays or `objects`.

        Not `warm`: the first block's time is unreliable.  `quick`: as planned in the last full call, and in long blocks.
        """
        help_ticks = 0.0 if self._learned is None else self._learned.late_ticks
        self.describe(n, checksum)
        if not quick:
            before = self._kept
            self._n_lending += self.is_lending
            if self._kept != before:
                self.lent = None
        if self.lent is None:
            self.lent, self._quick = self._pick(), None
        known = self._quick if quick else None
        if known is None:
            sizes = self._sizes(n)
            known = sizes, self._blocks(sizes, warm=warm, quick=quick)
        (sizes, blocks_home), self._quick = known, known if quick else None
        lenders = [] if self.plan is None else self.plan.to(self.rank)
        near = not isinstance(self.known, range)
        asked = [*lenders, *self.neighbours] if near else self.neighbours
        round = Round(
            self.rank, blocks_home, lent=self.lent or {}, lenders=lenders, neighbours=asked,
            speeds=dict(zip(self.known, self.speeds.tolist(), strict=True)) if near else self.speeds,
            help_ticks=help_ticks, handling_s=self._times.block_s, sizes=sizes, usual_s=self._times.row_s,
            objects=objects, quick=quick,
        )  # fmt: skip
        self._learned = round.learned
        return round

    def learn(self, learned: Learned, report: RankReport) -> RankReport:
        """Learn from what was measured in a round that is no quick one; return the report with what is known of its rows."""
        self.last_work = math.nan
        if report.failed:
            return report
        assert self.costs is not None
        busy_s, ticks = report.busy_s, report.ticks
        index = {rank: self.known.index(rank) for rank in {timed.by for timed in learned.timed}}
        timed = [(rows, index[by], its_ticks) for rows, by, its_ticks, _ in learned.timed]
        first = bool(np.isnan(self.costs.ticks).all())
        seen, self.tick_work = self.costs.observe(timed, self.tick_work)
        if first:
            seen = self.costs.compare(timed)
        self.costs.fill()
        work = lent = given = own_ticks = 0.0  # lent: of all rows that others have computed; given: beyond the plan
        n_known = n_own = 0  # rows
        for rows, by, its_ticks, helped in learned.timed:
            if not math.isnan(its_ticks):
                n, each = count(rows), its_ticks * float(self.tick_work[index[by]])
                work, n_known = work + each, n_known + n
                if by == self.rank:
                    own_ticks, n_own = own_ticks + its_ticks, n_own + n
                else:
                    lent += each
                if helped:
                    given += each
        self._times = HomeTimes(
            busy_s * own_ticks / (ticks * n_own) if ticks > 0.0 and n_own else 0.0,
            learned.handled_s or self._times.handling_s,
            self.costs.call.ticks * busy_s / ticks if ticks > 0.0 else self._times.call_s,
        )
        own_tick_work = float(self.tick_work[self.index])
        helped_work = given - learned.help_ticks * own_tick_work
        # The kept part of planned loans was planned for the borrowers: count it there, whoever computed it.
        planned = learned.planned_ticks * own_tick_work - (lent - given)
        helped_work += planned * self._kept / (1.0 - self._kept)
        self.last_work = work * len(self.costs) / n_known if n_known else math.nan
        return report._replace(work=self.work_of_rows, helped=helped_work, observed=tuple(seen))

    def know(self, speeds: Floats, late: Floats, imbalance: float) -> None:
        """Know the speeds of the known ranks, and the work that each could have done before it came, after a full call."""
        self.speeds, self.late, self._even = speeds, late, imbalance <= EVEN

    def follow(self, plan: Plan | None) -> None:
        """From the next round on, lend rows by this plan, which all ranks have; None: all rows stay at home."""
        self._made = PlanMade(len(self.costs) if self.costs is not None else 0)
        # The rows are chosen when the next round begins, so that no rank waits for that now.
        self.plan, self.lent = plan, None

    def follow_blind(self, plan: Plan, speeds: Floats) -> None:
        """Lend rows by this plan of numbers of rows in the first round, as ranks have (P,) speeds from elsewhere."""
        self.follow(plan)
        self.tick_work, self.speeds, self._made = np.ones(len(speeds)), speeds, self._made._replace(blind=True)

    def note_others(self, others: Mapping[int, tuple[float, float]]) -> None:
        """Know these ranks, by rank the work of a tick and the speed, beside itself and its neighbours.

        Other distant ranks are forgotten, unless they have measured rows of this rank.
        """
        near, measured_by = 1 + len(self.neighbours), np.zeros(0, dtype=np.int64)
        if self.costs is not None:
            measured_by = self.costs.measured_by
        old = [k for k in sorted(set(measured_by.tolist())) if k >= near]
        about = {self.known[k]: (float(self.tick_work[k]), float(self.speeds[k])) for k in old}
        about.update({rank: each for rank, each in others.items() if rank not in self.known[:near]})
        known = [*self.known[:near], *about]
        if self.costs is not None and old:
            index = {rank: k for k, rank in enumerate(known)}
            moved = np.array([index.get(rank, 0) for rank in self.known])
            self.costs.measured_by = moved[measured_by]
        tick_work, speeds = np.array([*about.values()]).reshape(-1, 2).T
        self.tick_work, self.speeds = np.append(self.tick_work[:near], tick_work), np.append(self.speeds[:near], speeds)
        self.late = np.append(self.late[:near], np.zeros(len(about)))
        self.known = known

    def own(self, work: Floats | None) -> None:
        """Rows have changed their owner: none is lent; `work`: (n,) costs of this rank's new rows, if known."""
        self.follow(None)
        self.n_rounds = self._n_lending = 0
        if work is None:
            self.costs = self.checksum = None
        else:
            self.costs = RowCosts(self.index, len(work))
            self.costs.ticks[:] = work / self.tick_work[self.index]

    def _pick(self) -> dict[int, Rowset]:
        """Choose the rows to lend, by borrower."""
        if self.plan is None or self.costs is None:
            return {}
        mine = self.plan.of(self.rank)
        if not len(mine.amounts):
            return {}
        n_rows, blind = self._made
        if n_rows and len(self.costs) != n_rows:  # keep the planned fraction
            mine = replace(mine, amounts=mine.amounts * (len(self.costs) / n_rows))
        mine = replace(mine, amounts=mine.amounts * (1.0 - self._kept))
        work = np.ones(len(self.costs)) if blind else self.measured(len(self.costs))
        items = [np.zeros(0, dtype=np.int64)] * len(mine.amounts) if work is None else pick(work, mine).items
        return dict(zip(mine.destinations.tolist(), items, strict=True))

    def _blocks(self, sizes: Floats, *, warm: bool, quick: bool) -> list[Rowset]:
        """Divide the rows that stay at home into blocks.

        In a full call the first one is short: dry ranks get rows soon.  In a quick call it has half of the rows; three
        quarters if ranks end at nearly the same time.
        """
        n = len(sizes)
        kept = self._staying(n)
        if len(self.tick_work) == 1:
            return [kept] if count(kept) else []
        row_s, block_s = self._times.row_s, self._times.block_s
        shortest = shortest_s(block_s, quick=quick) / row_s if row_s > 0.0 else 0.0
        parts: list[Rowset]
        if quick:
            halves = blocks(sizes[kept], KEEPING if self._kept else LONG, 0, shortest or n / BLOCKS)
            if self._even and not self._kept and len(halves) > 1:
                halves[:2] = [slice(0, halves[1].stop)]
            parts = [*halves]
        else:
            first, least, divisor = LEAST, min(LEAST, max(1, n // BLOCKS)), BLOCKS
            if warm and shortest:
                first = least = max(1, int(shortest))
                divisor = _divisor(count(kept) * row_s, block_s, LONG if self._even else LEAST_DIVISOR)
            parts = [*blocks(sizes[kept], divisor, self.n_rounds, least)]
            if parts and count(parts[0]) >= 2 * first:
                parts[:1] = [cut(parts[0], 0, first), cut(parts[0], first, count(parts[0]))]
        return parts if isinstance(kept, slice) else [kept[part] for part in parts]

    def _staying(self, n: int) -> Rowset:
        """Return those of n rows that are not lent by the plan."""
        lent = [rows for rows in (self.lent or {}).values() if not isinstance(rows, slice) and len(rows)]
        if not lent:
            return slice(0, n)
        staying = np.ones(n, dtype=np.bool_)
        staying[np.concatenate(lent)] = False
        return np.flatnonzero(staying)

    def _sizes(self, n: int) -> Floats:
        """(n,) size of each row when blocks are cut: its cost relative to the mean, at least LIGHTEST.

        A row that was cheap may become expensive, as in weather that moves.
        """
        work = self.measured(n)
        mean = 0.0 if work is None else float(work.sum()) / max(1, n)
        return np.asarray(np.maximum(work / mean, LIGHTEST)) if work is not None and mean > 0.0 else np.ones(n)


def _divisor(seconds: float, handling_s: float, least: int) -> int:
    """The divisor k: a block at home is 1/k of the rows left, which need `seconds`; handling one costs `handling_s`.

    There are then about 4 k blocks.  `least`: the minimum of k.
    """
    most = HANDLING * seconds / (4.0 * handling_s) if handling_s > 0.0 else math.inf
    return int(min(max(most, least), BLOCKS))


def kept(n_before: int, loan_s: float) -> float:
    """The part of a planned loan that stays at home for the first dry rank, after `n_before` rounds with planned loans.

    Plans rest on estimates, and a loan that was sent cannot be divided.  So half is kept at first, and less in each
    later round, as estimates improve.  `loan_s`: seconds by which the longest loan exceeds its borrower's own rows.
    A loan of 10 s keeps 5 s at home in its first round, then 2.5 s, then 1.25 s.  Nothing is kept where requesting the part
    would take about as long as computing it.
    """
    rest: float = 0.5 ** min(1 + n_before, HALVINGS)
    return rest if rest * loan_s >= KEPT_S else 0.0


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
