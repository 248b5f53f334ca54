"""A graph on virtual ranks, whose parts are rebalanced from step to step.   (pure)

Each step ends with a decision, and the ranks rebalance, as in `plan.rebalance` (`lb_mpi.rebalancing.rebalance`).  The
times of exchanges and rebalancings are those of a model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.distributing.recorded import Halos
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.knowledge import MeasuredSpeeds
from lb_mpi.partitioning.quality import cut
from lb_mpi.rebalancing.deciding import ROUNDS, Opportunities, totals_from
from lb_mpi.rebalancing.rebalance import move
from lb_mpi.record.events import Driver, Step, Way
from lb_mpi.record.record import Record
from lb_mpi.virtual import Network

CHANGES = ("speeds", "hotspot", "none")
SPOT = 0.05  # the fraction of the vertices in the hot region
VALUE_BYTES, VERTEX_BYTES = 8, 256  # of a value in an exchange; of a vertex that moves: its row of the graph, and its values
VERTEX_S, MOVED_S = 1e-6, 5e-6  # of CPU time in a rebalancing, for each vertex of a rank, and for each that it gives or gets
IMBALANCE = 0.03  # that a rebalancing may leave


class GraphState(NamedTuple):
    """The speeds and costs in a step."""

    speeds: Floats  # (P,) work per second
    costs: Floats  # (n,) work of the vertices


class GraphStep(NamedTuple):
    """A step of the program, with its call of `plan.rebalance`."""

    seconds: float  # with the exchange and the call
    bound_s: float  # if all ranks needed the same time, and nothing else
    alone_s: float  # with the parts of the beginning
    imbalance: float  # slowest rank / mean - 1, with the parts of this step
    vertices_moved: int
    bytes_moved: int
    cut: float  # weight of the edges between parts, afterwards
    reason: str  # of the decision


def graph_states(
    graph: Graph, speeds: Floats, changes: str, strength: float, period: int, seed: int
) -> Iterator[GraphState]:
    """Yield the state of each step; the first change comes after half a period."""
    rng = np.random.default_rng(seed)
    state, links, centre = GraphState(speeds, graph.vertex_weights), graph.to_scipy(), int(rng.integers(graph.n))
    for step in itertools.count():
        if changes == "speeds" and step % period == period // 2:
            slow = speeds.copy()
            slow[rng.integers(len(speeds))] /= strength
            state = state._replace(speeds=slow)
        elif changes == "hotspot" and step % period == period // 2:
            hops = scipy.sparse.csgraph.shortest_path(links, unweighted=True, directed=False, indices=centre)
            nearest = np.argsort(hops, kind="stable")
            costs = graph.vertex_weights.copy()
            costs[nearest[: max(1, int(SPOT * graph.n))]] *= strength
            centre = int(rng.choice(nearest[: max(1, int(2 * SPOT * graph.n))]))
            state = state._replace(costs=costs)
        yield state


class SimulatedGraph:
    """The parts of a graph from step to step.  Each step ends with a decision, as that of `plan.rebalance`.

    speeds (P,) : of the ranks at first
    """

    def __init__(self, graph: Graph, first: Ints, speeds: Floats, network: Network, *, recorded: bool) -> None:
        size = len(speeds)
        self.parts, self.steps, self.now = first, list[GraphStep](), 0.0
        self._graph, self._first, self._size = graph, first, size
        self._latency_s, self._bytes_per_s = network.latency_s[1], network.bytes_per_s
        self._opportunities = Opportunities(cut(graph, first, size))
        self._measured = [MeasuredSpeeds() for _ in range(size)]
        self._tails, self._heads = graph.edges()
        self._exchange_s = self._exchanged_s(first)
        self.records = [Record(0.0) for _ in range(self._size)] if recorded else []
        relative = speeds / speeds.mean()
        self._halos = [Halos(record, speed) for record, speed in zip(self.records, relative.tolist(), strict=False)]
        for halos in self._halos:
            halos.begin(0.0, 0.0)
            halos.end(0.0, 0.0)

    def step(self, state: GraphState) -> None:
        """Compute, exchange, decide, and move vertices."""
        times = self._loads(self.parts, state) / state.speeds
        bound_s = float(state.costs.sum() / state.speeds.sum())
        seconds, now_s = float(times.max()) + self._exchange_s, float(times.max())
        for speeds, speed in zip(self._measured, state.speeds.tolist(), strict=True):
            speeds.add(speed)
        usual = np.array([speeds.usual() for speeds in self._measured])
        moved, n_bytes, spent_s, reason = 0, 0, 0.0, BalanceReason.LATER.words
        old, at = self.parts, self.now + seconds
        act = False
        if not self._opportunities.skips():
            spent_s = math.log2(2 * self._size) * self._latency_s
            self._opportunities.took(spent_s)
            loads = self._loads(old, state)
            decided = self._opportunities.decide(totals_from(loads, usual, spent_s), self._size)
            act, reason = decided.act, decided.decision.words
        if act:
            self.parts, outcome = move(self._graph, old, state.costs, usual, decided, imbalance=IMBALANCE)
            if not outcome.moved and decided.decision.reason is not BalanceReason.CUT:
                self._opportunities.promises.breach(outcome.before_s)
            moved, n_bytes, moving_s = self._moved(old)
            self._opportunities.trigger.paid(moving_s)
            self._exchange_s = self._exchanged_s(self.parts) if moved else self._exchange_s
            spent_s += moving_s
        weight = cut(self._graph, self.parts, self._size)
        if moved:
            self._opportunities.moved(weight, decided.decision.reason)
        self.steps.append(GraphStep(
            seconds + spent_s, bound_s, float((self._loads(self._first, state) / state.speeds).max()),
            now_s / bound_s - 1.0 if bound_s else 0.0, moved, n_bytes, weight, reason,
        ))  # fmt: skip
        if self.records:
            self._record(times, at, spent_s, old)
        self.now += self.steps[-1].seconds

    def close(self) -> list[Record]:
        """Return the records of all ranks."""
        for halos in self._halos:
            halos.close(self.now, 0.0)
        return self.records

    def _loads(self, parts: Ints, state: GraphState) -> Floats:
        return np.asarray(np.bincount(parts, state.costs, minlength=self._size), dtype=float)

    def _exchanged_s(self, parts: Ints) -> float:
        """Seconds of an exchange, of the rank with most ghosts."""
        ends = np.concatenate([parts[self._tails], parts[self._heads]])
        others = np.concatenate([self._heads, self._tails])
        pairs = np.unique((ends * self._graph.n + others)[ends != parts[others]])
        most = int(np.bincount(pairs // self._graph.n, minlength=1).max(initial=0))
        return self._latency_s + most * VALUE_BYTES / self._bytes_per_s if most else 0.0

    def _moved(self, old: Ints) -> tuple[int, int, float]:
        """Return the number of vertices that have moved, their bytes, and the seconds of the busiest rank."""
        gone = np.flatnonzero(old != self.parts)
        n_moved = np.bincount(old[gone], minlength=self._size) + np.bincount(self.parts[gone], minlength=self._size)
        n_local = np.bincount(old, minlength=self._size)
        each_s = VERTEX_S * n_local + (MOVED_S + VERTEX_BYTES / self._bytes_per_s) * n_moved
        return len(gone), len(gone) * VERTEX_BYTES, float(each_s.max()) + ROUNDS * self._latency_s

    def _record(self, times: Floats, at: float, spent_s: float, old: Ints) -> None:
        """Record a step of all ranks, which ends in a call at the time `at`."""
        last, gone = self.steps[-1], np.flatnonzero(old != self.parts)
        ways, counts = np.unique(old[gone] * self._size + self.parts[gone], return_counts=True)
        for way, n in zip(ways.tolist(), counts.tolist(), strict=True):
            self.records[way // self._size].move(Way.MOVE, way % self._size, n)
        owned = np.bincount(self.parts, minlength=self._size)
        for rank, halos in enumerate(self._halos):
            halos.begin(self.now + float(times[rank]), 0.0)
            halos.end(at, 0.0)
            halos.begin(at, 0.0)
            if last.vertices_moved:
                record = self.records[rank]
                step = Step(Driver.REBALANCE, at, at + spent_s, 0.0, 0.0, before=last.imbalance,
                    moved=last.vertices_moved, acted=1, reason=record.reason(last.reason), home=float(owned[rank]),
                    serving_s=spent_s)  # fmt: skip
                halos.moved(at, at + spent_s, step)
            halos.go_on(at + spent_s, 0.0)
