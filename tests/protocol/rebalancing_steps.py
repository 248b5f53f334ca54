"""A program that rebalances in virtual time: the decisions of all ranks, without messages; vertices are on a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.graph import Floats, Ints
from lb_mpi.rebalancing.actor import RebalanceOutcome, is_better
from lb_mpi.rebalancing.balance import PlanBalance
from lb_mpi.rebalancing.deciding import RebalanceDecision, totals_of
from lb_mpi.rebalancing.jobs import Built
from lb_mpi.rebalancing.slabs import slabs
from lb_mpi.reduction import reduced

N = 600  # vertices

Speeds = Callable[[float], Sequence[float]]  # of the ranks at a time


class Run(NamedTuple):
    """The outcome of a run."""

    seconds: float
    moves: list[int]  # the steps after which vertices have moved
    step_s: list[float]  # of the slowest rank
    reasons: list[BalanceReason]


class Program:
    """Ranks of these speeds, which make steps of `step_s` seconds when they are level; a move costs `cost_s` seconds.

    noise: standard deviation of the logarithm of a rank's time in a step.  call_s: of an opportunity at which nothing moves.
    """

    def __init__(
        self, speeds: Speeds, *, step_s: float = 0.04, cost_s: float = 0.1, noise: float = 0.01, call_s: float = 5e-4,
        seed: int = 0, left: float = 0.01, costs: Floats | None = None,
    ) -> None:  # fmt: skip
        self._speeds, self._cost_s, self._noise, self._call_s, self._left = speeds, cost_s, noise, call_s, left
        first = np.array(speeds(0.0))
        self._costs = np.ones(N) if costs is None else N / costs.sum() * costs
        self._unit = step_s * first.sum() / N  # seconds of a vertex at speed 1
        self._ends = slabs(N, np.ones(N), first)
        self._rng = np.random.default_rng(seed)

    def run(self, steps: int, *, rebalances: bool = True) -> Run:
        """Make so many steps."""
        now, size, found = 0.0, len(self._speeds(0.0)), Run(0.0, [], [], [])
        ranks = [PlanBalance(np.ones(len(each))) for each in self._split(np.arange(N))]
        own = np.zeros(size)
        for step in range(steps):
            spent = self._unit * np.array([part.sum() for part in self._split(self._costs)]) / self._speeds(now)
            spent *= np.exp(self._noise * self._rng.standard_normal(size))
            own += spent
            now += spent.max()
            found.step_s.append(float(spent.max()))
            if not rebalances:
                continue
            skipped = {one.opportunities.skips() for one in ranks}
            assert len(skipped) == 1
            if True in skipped:
                for one, s in zip(ranks, own, strict=True):
                    one.skip((float(s), 0.0), None)
                continue
            now += self._call_s
            decided = self._decide(ranks, own)
            found.reasons.append(decided.reason)
            if decided.act and self._move(ranks, decided):
                now += self._cost_s
                found.moves.append(step)
        return found._replace(seconds=now)

    def _split(self, values: Ints | Floats) -> list[np.ndarray]:
        return np.split(values, self._ends[:-1])

    def _decide(self, ranks: list[PlanBalance], own: Floats) -> RebalanceDecision:
        for rank, one in enumerate(ranks):
            one.measure(float(own[rank]), 0.0, one.load)
            if not one.learned:
                one.learn(rank)
        totals = totals_of(reduced([one.report()[1] for one in ranks]))
        decisions = [one.decide(totals, len(ranks)) for one in ranks]
        assert len({*map(repr, decisions)}) == 1
        for one in ranks:
            if not decisions[0].act:
                one.opportunities.record_call(self._call_s)
        return decisions[0]

    def _move(self, ranks: list[PlanBalance], decided: RebalanceDecision) -> bool:
        costs, size = np.concatenate([one.costs for one in ranks]), len(ranks)
        owners = np.repeat(np.arange(size), np.diff(self._ends, prepend=0))
        speeds = np.array([one.speed for one in ranks])
        if decided.undo_s is not None:
            new = np.concatenate([one.undo.owners for one in ranks if one.undo is not None])
            before_s, after_s = 1.1 * decided.undo_s, decided.undo_s
        else:
            part = ranks[0].opportunities.moves.part
            ends = slabs(N, costs, part * speeds + (1.0 - part) * np.bincount(owners, costs) * speeds.sum() / costs.sum())
            new = np.repeat(np.arange(size), np.diff(ends, prepend=0))
            before_s, after_s = ((np.bincount(of, costs, size) / speeds).max() for of in (owners, new))
        level_s = (1.0 + self._left) * decided.mean_s
        for one in ranks:
            one.opportunities.paid(self._cost_s)
        reason = decided.reason
        if not is_better(reason, before_s, after_s, level_s):
            for one in ranks:
                one.opportunities.dropped(reason)
            return False
        outcome = RebalanceOutcome(decided.reason, decided.before, 0.0, float(before_s), float(after_s), cut=1.0)
        assert np.all(np.diff(new) >= 0)
        self._ends = np.searchsorted(new, np.arange(size), side="right")
        for rank, one in enumerate(ranks):
            mine = new == rank
            given = np.unique(new[(owners == rank) & ~mine]).tolist()
            built = Built(None, costs[mine], owners[mine], None)  # type: ignore[arg-type]
            one.moved(built, given, outcome)
        return True


def changing(usual: Sequence[float], *changes: tuple[int, float, float, float]) -> Speeds:
    """Speeds of ranks, some of which are a factor slower from a second to another one: (rank, from, to, factor)."""

    def speeds(now: float) -> list[float]:
        found = [*usual]
        for rank, begin, end, factor in changes:
            if begin <= now < end:
                found[rank] *= factor
        return found

    return speeds


HEAT = changing([0.8, 0.4, 0.2], (0, 2.0, 5.0, 0.33), (1, 4.0, 7.0, 0.33), (2, 6.0, 9.0, 0.5))  # of benchmarks.machines
