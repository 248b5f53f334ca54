"""A rebalancing: one rank of a distributed graph moves vertices to its neighbours, and gets some.   (pure)

It begins when all ranks have decided that vertices move (`lb_mpi.rebalancing.deciding`).

Law.
- Every vertex is owned by one rank, before and after.  The new parts are those of a fresh distribution by the new owners.
- Messages go to old neighbours only: ranks whose parts touch, and rank - 1 and rank + 1 where one of the two touches nobody.
- A flow is the same at both ends of an edge, to the bit, but for its sign (`lb_mpi.rebalancing.flow`).
- Rows of the graph move once.  What arrives with a vertex is right: its owner knows the new owners of its neighbours.
- Vertices are chosen in steps (`lb_mpi.rebalancing.pairs`), which are the same in any order of arrivals.
- All ranks move, or none: a rank keeps its old part until the commit says that no rank has failed.  A rank that fails at any
  time takes part until then, with empty messages, so that nobody waits for it.
- Of ranks that are not its neighbours, a rank learns nothing but a few sums and maxima over all ranks, but with slabs, and
  loads, speeds and neighbours of up to 16 ranks.
- No move is committed that does not lower the time of the slowest rank, as all ranks expect it.  (A move for a lighter cut
  may leave it as it is; but then the cut is lighter.)
- Slabs stay contiguous: each rank has one range of vertices, in the order of the ranks (`lb_mpi.rebalancing.slabs`).
  Vertices go to rank - 1 and rank + 1 only, which count as neighbours.  All ranks learn all costs and speeds.
- A move is undone by another one, to the ranks that its vertices came from: these ranks count as neighbours, too.

A message of one kind goes to each neighbour, and one comes from each, in every exchange.  In the choice, both ends of a pair
know the steps.  So ranks need no numbers on their messages: the next one of a neighbour belongs to the next exchange.  A
rank that gives the choice up sends an empty message instead of the next one; it may come after a neighbour's last step.

A story (`lb_mpi.actor`) in three chapters; what is no local of it is read from outside.

    choose    stray pieces go to neighbours; ranks greet each other, level their loads by flows, and choose, pair by pair,
              the vertices that carry them.  Slabs move their ends instead, and a move is undone by the owners before it
    move      labels, which are the new owners, go ahead of the rows; each rank builds its new part
    commit    all ranks have the new parts, or all the old ones
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.actor import ALL, Await, JobFailed, Story
from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.distributing.halo import GraphPart
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Ints
from lb_mpi.rebalancing.deciding import NOISE, GraphTotals, Maxima, RankLoad, RebalanceDecision
from lb_mpi.rebalancing.flow import Flow, Levelling, level
from lb_mpi.rebalancing.jobs import Build, Built, Pack, Repair
from lb_mpi.rebalancing.messages import Links, RebalanceKind, RebalanceMessage, Steps, exchange, expected
from lb_mpi.rebalancing.moving import Owners, cut_of, labels_for, owners_now, still_touching
from lb_mpi.rebalancing.slabs import best_ends
from lb_mpi.reduction import Reduction, reduce

SLOWEST = 0.01  # of the mean speed: a rank that seems slower has hardly any work, and other things to do in its steps
TOGETHER = 16  # ranks at most that tell each other their loads, speeds and neighbours, so that each computes all flows
ROUNDED = 2.0**-30  # of the largest load or speed
FLOW_PART = 2.0 / 3.0  # of the imbalance that may be left: what the flows leave, before vertices are chosen


class Undo(NamedTuple):
    """The last move, which is to be undone."""

    owners: Ints  # (n_local,) the ranks that the vertices came from, or this one
    ranks: Sequence[int]  # that have got vertices of this one


class RebalanceOutcome(NamedTuple):
    """The outcome of a rebalancing, the same on all ranks."""

    reason: BalanceReason
    before: float  # imbalance of the loads
    after: float  # expected with the new parts
    before_s: float = math.nan  # expected time of the slowest rank, before and after
    after_s: float = math.nan
    failed: bool = False  # a rank has failed, so nothing has moved
    moved: int = 0  # vertices
    n_bytes: int = 0
    n_ghosts: int = 0
    cut: float = math.nan
    steps: int = 0  # of the flow
    spent_s: float = 0.0  # by the slowest rank, until the commit


class Rebalancing(Story[None]):
    """One rank of a rebalancing: an actor.

    costs (n_local,) : of its vertices.  `totals`, `decided`: what all ranks know and have decided.  `imbalance`: what may be
    left.  `connected`: the graph is in one piece; then all parts with vertices are connected, too.  `slabs`: the number of
    vertices of the graph if the parts are contiguous ranges, and stay so; else 0.  `undo`: where the vertices came from, if
    the last move is to be undone.
    """

    def __init__(
        self, rank: int, size: int, part: GraphPart, costs: Floats, mine: RankLoad, totals: GraphTotals,
        decided: RebalanceDecision, *, imbalance: float = 0.03, connected: bool = True, slabs: int = 0,
        undo: Undo | None = None,
    ) -> None:  # fmt: skip
        super().__init__(self._rebalance(decided, imbalance, totals.most, connected, slabs, undo))
        mean = decided.mean_speed
        speed = mean if math.isnan(mine.speed) else max(mine.speed, SLOWEST * mean)
        self.rank, self.size, self.part, self.costs, self.mine = rank, size, part, costs, mine._replace(speed=speed)
        self.failed = False  # this rank, or a neighbour, of which it has learned
        self.outcome = RebalanceOutcome(decided.reason, decided.before, decided.before)
        self.links: Links | None = None  # by which vertices are chosen
        self.built: Built | None = None  # valid if `committed`
        self.ready = False  # all ranks have built their new parts, and none has failed: it then ends well
        beside = {rank + 1, rank - 1} & {*range(size)} if slabs else {(rank + 1) % size, (rank - 1) % size} - {rank}
        if undo is not None:
            beside = {*undo.owners.tolist(), *undo.ranks} - {rank}
        self.neighbours = sorted({*part.ranks.tolist(), *beside})  # whose parts touch this one's, or which may have none

    @property
    def committed(self) -> bool:
        """True if all ranks have the new parts."""
        return self.over and self.built is not None and not self.outcome.failed and self.outcome.moved > 0

    def fail(self, error: BaseException) -> list[tuple[int, Any]]:
        """See `lb_mpi.actor`."""
        self.failed = True
        return super().fail(error)

    def _rebalance(
        self, decided: RebalanceDecision, imbalance: float, most: Maxima, connected: bool, slabs: int, undo: Undo | None
    ) -> Steps:
        began = self.now
        labels, links = None if undo is None else undo.owners, self.neighbours
        if labels is None and slabs:
            labels = yield from self._ends(slabs, most, imbalance)
        elif labels is None:
            labels, links = yield from self._choose(decided.mean_s, imbalance, connected)
        owners = yield from self._move(labels, links)
        yield from self._commit(owners, decided, imbalance, began)

    # --- the choice ---

    def _ends(self, n: int, most: Maxima, imbalance: float) -> Steps:
        """Return the new owners of this rank's vertices, of slabs of n vertices.

        Costs and speeds are rounded to integers: numpy adds them up exactly, whatever the processor.
        """
        counts, speeds, costs = np.zeros(self.size), np.zeros(self.size), np.zeros(n)
        counts[self.rank], speeds[self.rank] = self.part.n_local, round(self.mine.speed / most.speed / ROUNDED)
        costs[self.part.vertices] = np.rint(self.costs / most.load / ROUNDED)
        everyone = yield from reduce(maxima=np.concatenate([counts, speeds, costs]))
        counts, speeds, costs = np.split(everyone.maxima, [self.size, 2 * self.size])
        ends = best_ends(costs, counts.astype(np.int64), speeds, imbalance)
        return np.searchsorted(ends, self.part.vertices, side="right")

    def _choose(self, mean_s: float, imbalance: float, connected: bool) -> Steps:
        """Return the new owners of this rank's vertices, and the ranks with which it exchanges messages from now on."""
        own = owners_now(self.part, self.rank).local
        shard, labels = None, own
        with suppress(JobFailed):
            shard, labels = yield Repair(self.rank, self.part, self.costs, connected)
        others = np.unique(labels[labels != self.rank]).tolist()
        stray = {other: float(self.costs[labels == other].sum()) for other in others}
        repaired, hello, apart = yield from self._greet(labels, stray, connected)
        links, load, speed = sorted({*self.part.ranks.tolist(), *apart}), self.mine.load, self.mine.speed
        load += sum(float(work) for _, _, work in hello.values()) - sum(stray.values())
        near = sorted(still_touching(self.part, repaired, self.rank) | apart)
        tolerance = FLOW_PART * imbalance
        if self.size <= TOGETHER:
            flow = yield from self._level_together(near, load, mean_s, tolerance)
        else:
            flow = Flow(self.rank, near, load, speed, mean_s, size=self.size, tolerance=tolerance)
            yield from self._level(flow, links, tolerance)
        speeds = {other: float(hello[other][1]) for other in flow.flows}
        self.links = Links(dict(flow.flows), speeds, speed, load, (1.0 + imbalance) * speed * mean_s)
        try:
            if self.failed or shard is None:
                raise JobFailed
            from lb_mpi.rebalancing.pairs import choose  # here, since it imports numba

            labels = yield from choose(self.rank, shard, np.concatenate(repaired), self.links)
        except JobFailed:  # of this rank, or of the other one of a pair
            self.failed, labels = True, own
            yield Await((), [(other, RebalanceMessage(RebalanceKind.PAIR)) for other in links])
        return labels, links

    def _greet(self, labels: Ints, stray: Mapping[int, float], connected: bool) -> Steps:
        """Greet the neighbours.

        Return the owners without stray pieces; the neighbours' component, speed, and work of stray pieces for this rank; and
        the neighbours that no path connects with it.  Ranks greet again until no component has grown: then all ranks know
        their own, which is the lowest rank in it, and those of their neighbours.
        """
        ranks, component = self.part.ranks.tolist(), -1 if connected and len(self.part.ranks) else self.rank
        grown, greetings, period = False, 0, max(2, (self.size - 1).bit_length())
        theirs = {other: labels_for(self.part, labels, other) for other in self.neighbours}
        while True:
            about = {other: (component, self.mine.speed, stray.get(other, 0.0)) for other in self.neighbours}
            payloads = {other: (np.array(each), theirs[other]) for other, each in about.items()}
            received = yield from exchange(RebalanceKind.HELLO, payloads, self.neighbours)
            hello = {other: numbers for other, (numbers, _) in received.items()}
            if not connected:
                lowest = min([component, *(int(hello[other][0]) for other in ranks)])
                grown, component, greetings = grown or lowest < component, lowest, greetings + 1
                if greetings % period:
                    continue
                if (yield from reduce(maxima=[grown])).maxima[0]:
                    grown = False
                    continue
            ghosts = np.concatenate([*(received[other][1] for other in ranks), labels[:0]])
            apart = {other for other, (theirs, *_) in hello.items() if int(theirs) != component}
            return Owners(labels, ghosts), hello, apart

    def _level_together(self, near: Sequence[int], load: float, mean_s: float, tolerance: float) -> Steps:
        """Return this rank's flows: few ranks tell each other all that the flows depend on, and each computes them all.

        An exchange with neighbours for each step of the flow would take most of the time of a move between hosts.
        """
        about, flows = np.zeros((self.size, 3)), list[Flow]()  # of each rank: load, speed, neighbours as a mask
        about[self.rank] = load, self.mine.speed, sum(1 << other for other in near)
        about = (yield from reduce(maxima=about.ravel())).maxima.reshape(self.size, 3)
        for rank, (work, speed, mask) in enumerate(about.tolist()):
            others = [other for other in range(self.size) if int(mask) >> other & 1]
            flows.append(Flow(rank, others, work, speed, mean_s, size=self.size, tolerance=tolerance))
        level(flows, tolerance)
        self.outcome = self.outcome._replace(steps=flows[0].steps)
        return flows[self.rank]

    def _level(self, flow: Flow, links: Sequence[int], tolerance: float) -> Steps:
        """Find the flows.

        The largest residual is asked for every `period` steps, and read when the next one is due, so that no step waits for
        it.
        """
        period, levelling = max(2, (self.size - 1).bit_length()), Levelling(self.size, tolerance)
        number, rounds, asked = flow.start(), 0, list[tuple[int, Any]]()
        while True:
            number = flow.step((yield from exchange(RebalanceKind.FLOW, dict.fromkeys(links, number), links, *asked)))
            rounds, asked = rounds + 1, []
            if rounds % period:
                continue
            if rounds > period:
                residual = float((yield Await((ALL,)))[ALL].maxima[0])
                if levelling.ends(residual, flow.steps):
                    break
            asked = [(ALL, Reduction(maxima=np.array([flow.residual])))]
        self.outcome = self.outcome._replace(steps=flow.steps)

    # --- the move ---

    def _move(self, labels: Ints, links: Sequence[int]) -> Steps:
        """Move the vertices of this rank to their new owners; return the owners."""
        mine = {other: None if self.failed else labels_for(self.part, labels, other) for other in links}
        theirs = yield from self._exchange_labels(mine, links)
        self.failed = self.failed or any(each is None for each in theirs.values())
        ghosts = [] if self.failed else [theirs[other] for other in self.part.ranks.tolist()]
        owners, payloads = Owners(labels, np.concatenate([*ghosts, np.zeros(0, dtype=np.int64)]).astype(np.int64)), {}
        if not self.failed:
            leaving = {other: np.flatnonzero(labels == other) for other in links}
            if sum(map(len, leaving.values())) != np.count_nonzero(labels != self.rank):
                raise ProtocolError(f"rank {self.rank} gives vertices to ranks that are not its neighbours")
            leaving = {other: index for other, index in leaving.items() if len(index)}
            with suppress(JobFailed):
                payloads = yield Pack(self.part, self.costs, owners, leaving)
        nothing = None if self.failed else b""
        rows = {other: payloads.get(other, nothing) for other in links}
        arrived = yield from exchange(RebalanceKind.ROWS, rows, links)
        if not self.failed and all(payload is not None for payload in arrived.values()):
            arrived = {other: payload for other, payload in arrived.items() if len(payload)}
            with suppress(JobFailed):
                self.built = yield Build(self.rank, self.part, self.costs, owners, arrived)
        return owners

    def _exchange_labels(self, mine: Mapping[int, Any], links: Sequence[int]) -> Steps:
        """Exchange LABEL; PAIR of a choice that one of the two ranks has given up may come before it."""
        sends = [(other, RebalanceMessage(RebalanceKind.LABEL, labels)) for other, labels in mine.items()]
        received = yield Await(links, sends)
        while void := [source for source, message in received.items() if self._is_void(message)]:
            received |= yield Await(void)
        return expected(RebalanceKind.LABEL, received)

    def _is_void(self, message: RebalanceMessage) -> bool:
        return message.kind is RebalanceKind.PAIR and (self.failed or message.payload is None)

    # --- the commit ---

    def _commit(self, owners: Owners, decided: RebalanceDecision, imbalance: float, began: float) -> Steps:
        """End: all ranks have the new parts, or all the old ones."""
        cuts, sums, maxima = [0.0, 0.0], [0, 0, 0], [float(self.failed), 0.0, 0.0, 0.0]
        if self.built is not None and not self.failed:
            cuts = [cut_of(self.part, each) for each in (owners, owners_now(self.part, self.rank))]
            n_leaving = int(np.count_nonzero(owners.local != self.rank))
            sums = [n_leaving, self.built.n_bytes, self.built.part.n_ghosts]
            times = [load / self.mine.speed for load in (self.mine.load, float(self.built.costs.sum()))]
            maxima = [0.0, *times, self.now - began]
        total = yield from reduce(sums, maxima)
        failed, before_s, after_s, spent_s = total.maxima.tolist()
        if failed:
            self.outcome = self.outcome._replace(failed=True)
            return
        if decided.undo_s is not None:  # as measured, not as expected
            after_s = decided.undo_s
        reason, old = decided.reason, self.outcome._replace(spent_s=spent_s)
        if not is_better(reason, before_s, after_s, (1.0 + imbalance) * decided.mean_s):
            self.outcome = old._replace(before_s=before_s, after_s=before_s)
            return
        moved, n_bytes, n_ghosts = map(int, total.sums)
        after = max(0.0, after_s / decided.mean_s - 1.0)
        self.outcome = old._replace(
            after=after, before_s=before_s, after_s=after_s, moved=moved, n_bytes=n_bytes, n_ghosts=n_ghosts
        )
        self.ready = True
        new_cut, old_cut = (yield from reduce(cuts)).sums
        if may_cut(reason, new_cut, old_cut):
            self.outcome = self.outcome._replace(cut=new_cut)
        else:
            self.outcome = self.outcome._replace(after=old.before, moved=0)


def is_better(reason: BalanceReason, before_s: float, after_s: float, level_s: float) -> bool:
    """Return whether a move is expected to make the slowest rank faster; for a lighter cut, whether not slower.

    level_s : the time that an imbalance may leave.
    """
    match reason:
        case BalanceReason.CUT:
            return after_s <= max(before_s, level_s)
        case BalanceReason.ALWAYS | BalanceReason.UNDONE:
            return after_s < before_s
        case _:
            return after_s < (1.0 - NOISE) * before_s


def may_cut(reason: BalanceReason, new: float, old: float) -> bool:
    """Return whether a move may have the new cut: one for a lighter cut must have made it lighter."""
    return reason is not BalanceReason.CUT or new < old
