"""Flows of a rebalancing: the law on ranks that know their neighbours only, and variants that break it."""

from __future__ import annotations

import numpy as np

from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.rebalancing import flow as module
from lb_mpi.rebalancing.flow import TOLERANCE, Flow
from tests.diffusing import level
from tests.protocol.mutate import rejects


def check_law(graph: Graph, loads: Floats, speeds: Floats) -> None:
    """Run one object per rank; AssertionError unless the flows are antisymmetric, level the ranks, and equal `level`'s."""
    mean = float(loads.sum() / speeds.sum())
    near = [graph.neighbours(rank).tolist() for rank in range(graph.n)]
    levelled = level(graph, loads, speeds)
    flows = [
        Flow(rank, near[rank][::-1], float(loads[rank]), float(speeds[rank]), mean, size=graph.n)
        for rank in range(graph.n)
    ]
    numbers = [flow.start() for flow in flows]
    for _ in range(levelled.steps + 1):
        numbers = [flow.step({other: numbers[other] for other in near[flow.rank]}) for flow in flows]
    after = loads.copy()
    for flow in flows:
        for other, amount in flow.flows.items():
            assert amount == -flows[other].flows[flow.rank]
            after[flow.rank] -= amount
    assert np.isclose(after.sum(), loads.sum(), rtol=1e-12)
    assert (after / speeds).max() <= (1 + TOLERANCE) * mean * (1 + 1e-12)
    assert max(flow.residual for flow in flows) == levelled.residual <= TOLERANCE
    pairs = zip(*graph.edges(), levelled.flows.tolist(), strict=True)
    assert all(flows[tail].flows[int(head)] == amount for tail, head, amount in pairs)


CASES = [("mesh:5x5", 0), ("mesh:1x9", 1), ("hypercube:4", 2), ("mesh:6x7", 3)]


def find_fault() -> None:
    for name, seed in CASES:
        graph, rng = parse(name), np.random.default_rng(seed)
        check_law(graph, rng.uniform(1.0, 10.0, graph.n), rng.uniform(0.2, 1.0, graph.n))


MUTANTS = {
    "a rank takes its own bound for both ends": ("Flow.step", "min(self.start(), received[other])", "self.start()"),
    "the work does not leave the rank": ("Flow.step", "self.time -= out / self._speed", "self.time -= 0.0"),
    "the time falls by the work, not by its seconds": ("Flow.step", "self.time -= out / self._speed", "self.time -= out"),
    "all of the time spills over": ("Flow._excess", "return max(self.time - self._threshold, 0.0)", "return self.time"),
    "the flow is not added up": ("Flow.step", "self.flows[other] += flow", "self.flows[other] = flow"),
    "neighbours in the order in which they came": ("Flow.__init__", "sorted(neighbours)", "neighbours"),
    "momentum forgets the previous step": ("Flow.step", "+ weight * self._last[other]", "+ 0.0"),
    "momentum from its own count of steps": ("Flow.step", "momentum(self.steps,", "momentum(self.steps + self.rank % 2,"),
}


test_the_law_holds_and_known_wrong_variants_are_caught = rejects(find_fault, [(module, *one) for one in MUTANTS.values()])
