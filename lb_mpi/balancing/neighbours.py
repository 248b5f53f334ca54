"""Plans made by neighbours: no root, and no rank that knows all others.   (pure)

Jin & Wang's exchange between neighbours; for the steps see `lb_mpi.diffusion`.

Law.
- A rank knows its own numbers and those of its neighbours: speeds, work of a tick, times, potentials; of all ranks it knows
  sums and maxima (`lb_mpi.balancing.decider`).
- Both ends of an edge compute its flow from the same numbers: it differs in the sign only, to the last bit.  So a rank
  expects a loan from a neighbour exactly if the neighbour sends one.
- The flow becomes transfers on paper, before any row moves.  From the top of the flow downwards, each rank learns from
  the neighbours above it whose work they pass on, passes on that first, and then its own: lots of (owner, amount).
  The answers travel back over the same edges: which rank keeps how much.  So owners lend straight to those ranks, and
  every rank knows from whom it borrows.
- A rank lends its own rows only, and not more than it has, and does not borrow meanwhile.
- A flow has no cycles, so no rank waits for ever.
- All ranks stop after the same step: the largest imbalance is asked for now and then, and the answer is read when the
  next one is due, so that no step waits for it.

The work of a tick is fitted by relaxation along the edges: its logarithm on a rank becomes the weighted mean of what the
observations on its edges say (see `lb_mpi.balancing.knowledge`), and its observations of distant borrowers, whose work of a
tick it has from their last answers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.actor import ALL, Await
from lb_mpi.balancing.decider import PRIOR, Decider, Plot
from lb_mpi.balancing.deciding import Trigger
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.transfers import Lots, Plan, withdraw
from lb_mpi.diffusion.diffusion import MAX_STEPS
from lb_mpi.diffusion.setup import OneRank, ThreeTerm, spectrum
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import above
from lb_mpi.reduction import Reduction

EVEN = 0.2  # of the tolerance: imbalance that is left by a plan
SWEEPS = 2  # exchanges in which the work of a tick is relaxed before a plan, times log2 of the number of ranks
MOMENTUM = 0.6  # of a change, added to the next: fewer sweeps are needed, and two ranks do not swap their values
NOTHING = 1e-13  # of the work of all ranks: smaller flows are rounding errors
STALLED, PATIENCE = 0.005, 4  # stop when the imbalance has not fallen by this part in so many answers
LOT = 2  # numbers: owner, work
NEAR = -1  # instead of a rank: the neighbours


class _Placed(NamedTuple):
    """A lot that stays with a rank: what its owner learns of it, as numbers."""

    owner: float
    borrower: float
    work: float
    tick_work: float  # of the borrower
    speed: float
    time: float  # of the borrower, as planned, in seconds
    n_owners: float  # that lend to the borrower


def exchange(numbers: Floats) -> Generator[Await, Any, Floats]:
    """Send numbers to the neighbours, and return theirs: (deg, n), row k from neighbour k.

    (n,) numbers go to each neighbour; of (deg, n), row k goes to neighbour k.
    """
    theirs: Floats = (yield Await((NEAR,), ((NEAR, numbers),)))[NEAR]
    return theirs


def momentum(graph: Graph, scheme: str) -> float:
    """Return the weight of the second order: 1 for "fos"; for "sos" the optimum for equal speeds.

    With Jin and Wang's tau both converge whatever the speeds are.
    """
    if scheme == "fos":
        return 1.0
    degrees = np.maximum(*(graph.degrees[ends] for ends in graph.edges())) + 1.0
    return 2.0 / (1.0 + math.sqrt(1.0 - (1.0 - min(1.0, spectrum(graph, np.ones(graph.n), 1.0 / degrees).low)) ** 2))


class NeighbourPlanner(Decider):
    """Plans with the neighbours only; `omega`: see `momentum`.  This rank is at 0 in the arrays of `Knowledge`."""

    def __init__(self, knowledge: Knowledge, size: int, trigger: Trigger, omega: float = 1.0) -> None:
        super().__init__(knowledge, size, trigger)
        self._omega = omega

    @property
    def _near(self) -> slice:
        """The neighbours in the arrays of `Knowledge`."""
        return slice(1, 1 + len(self.neighbours))

    def _plan(self, moving: float | None) -> Plot:
        knowledge, near, size = self._knowledge, len(self._knowledge.neighbours), self._size
        if moving is None:
            yield from self._relax()
        late, work = (self._late, knowledge.work_of_rows) if moving is None else (0.0, moving)
        speed, load, degree = self._speed, work + late, float(near)
        theirs = yield from exchange(np.array([speed, degree]))
        speeds = knowledge.speeds.copy()
        speeds[0], speeds[self._near] = speed, theirs[:, 0]
        knowledge.speeds = speeds
        tau = np.minimum(speed, theirs[:, 0]) / (np.maximum(degree, theirs[:, 1]) + 1.0)  # the paper's
        _, total, total_speed = yield from self._totals(load, speed)
        mean = total / total_speed
        ends = OneRank(knowledge.rank, np.array(knowledge.neighbours, dtype=np.int64), tau)
        weights = chain([(1.0, 0.0)], repeat((self._omega, self._omega - 1.0)))
        scheme = ThreeTerm(ends, load / speed, speed, mean, weights)
        period, steps, best, waited = max(1, (size - 1).bit_length()), 0, math.inf, 0
        tolerance = EVEN * self.policy.trigger.tolerance
        while True:
            excess = math.inf if scheme.time < 0.0 else above(scheme.time, mean)
            yield Await(sends=[(ALL, Reduction(maxima=np.array([excess])))])
            for _ in range(period):
                ends.received = (yield from exchange(np.array([scheme.time])))[:, 0]
                scheme.step()
            steps += period
            worst = float((yield Await((ALL,)))[ALL].maxima[0])
            waited = 0 if worst < (1.0 - STALLED) * best or worst == math.inf else waited + 1
            best = min(best, worst)
            if worst <= tolerance or waited == PATIENCE or steps >= MAX_STEPS:
                break
        ends.received = (yield from exchange(np.array([scheme.potential])))[:, 0]
        kept = yield from self._pass_on(scheme.flow(), work, scheme.time, nothing=NOTHING * total)
        if moving is None:
            self._meet([_Placed(*row) for row in kept.tolist() if row[0] == knowledge.rank])
        return self._transfers(kept, scheme.time), steps

    def _relax(self) -> Generator[Await, Any, None]:
        """Fit the work of a tick of this rank, and learn that of its neighbours."""
        knowledge, near = self._knowledge, len(self._knowledge.neighbours)
        seen = np.array([self._seen.get(rank, (0.0, 0.0)) for rank in knowledge.known[1:]]).reshape(-1, 2)
        theirs = yield from exchange(seen[:near])
        weight, ratio = seen[:, 0].copy(), float(seen[:, 1].sum() - theirs[:, 1].sum())
        weight[:near] += theirs[:, 0]
        whole = float(weight.sum()) * (1.0 + PRIOR)
        logs, before = np.log(knowledge.tick_work), math.log(knowledge.tick_work[0])
        for _ in range(SWEEPS * (self._size - 1).bit_length()):
            logs[self._near] = (yield from exchange(np.array([logs[0]])))[:, 0]
            if whole > 0.0:
                mean = (float(weight @ logs[1:]) - ratio) / whole
                logs[0], before = mean + MOMENTUM * (logs[0] - before), logs[0]
        tick_work = np.exp(logs)
        tick_work[self._near] = (yield from exchange(np.array([tick_work[0]])))[:, 0]
        knowledge.tick_work = tick_work

    def _pass_on(self, flow: Floats, work: float, time: float, *, nothing: float) -> Generator[Await, Any, Floats]:
        """Turn the (deg,) flow from this rank into transfers; (n, 7) each a `_Placed`, of which it is owner or borrower.

        `time`: seconds that this rank needs afterwards.
        """
        knowledge, near = self._knowledge, self.neighbours
        above, below = np.flatnonzero(flow < -nothing), np.flatnonzero(flow > nothing)
        lots: Lots = deque()
        via: dict[int, int] = {}  # by owner: a neighbour that has passed on its work
        for k in above.tolist():
            for owner, amount in (yield Await((near[k],)))[near[k]].reshape(-1, LOT).tolist():
                lots.append((owner, amount))
                via.setdefault(owner, k)
        if work > nothing:
            lots.append((knowledge.rank, work))  # the rest of it stays at home
        for k in below[np.argsort(-flow[below], kind="stable")].tolist():
            yield Await(sends=[(near[k], np.array(withdraw(lots, float(flow[k]), nothing)).reshape(-1, LOT))])
        staying: dict[int, float] = {}
        for owner, amount in lots:
            if owner != knowledge.rank:
                staying[owner] = staying.get(owner, 0.0) + amount
        tick_work, speed = float(knowledge.tick_work[0]), self._speed
        mine = tick_work, speed, time, len(staying)
        kept = [_Placed(owner, knowledge.rank, amount, *mine) for owner, amount in staying.items()]
        table = np.array(kept).reshape(-1, len(_Placed._fields))
        for k in below.tolist():
            table = np.concatenate([table, (yield Await((near[k],)))[near[k]].reshape(-1, len(_Placed._fields))])
        through = np.array([via.get(owner, -1) for owner in table[:, 0].tolist()])
        for k in above.tolist():
            yield Await(sends=[(near[k], table[through == k])])
        return np.asarray(table[(table[:, :2] == knowledge.rank).any(axis=1)])

    def _meet(self, kept: Sequence[_Placed]) -> None:
        """Know the borrowers of this rank's rows."""
        knowledge = self._knowledge
        knowledge.note_others({int(one.borrower): (one.tick_work, one.speed) for one in kept})
        self._seen = {rank: self._seen[rank] for rank in knowledge.known if rank in self._seen}

    def _transfers(self, kept: Floats, time: float) -> Plan:
        """Return the transfers from and to this rank; those to it say only which ranks lend."""
        speed = self._speed
        kept = kept[np.lexsort((-kept[:, 2], kept[:, 0]))]
        owners, borrowers, amounts, _, speeds, times, n_owners = kept.T
        return Plan(
            owners.astype(np.int64),
            borrowers.astype(np.int64),
            amounts,
            margins=speed * (time - times),
            shares=n_owners * speed / speeds,
            seconds=np.zeros(len(kept)),  # nothing of a loan is kept at home: neighbours help at once
        )
