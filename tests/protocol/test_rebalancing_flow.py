"""Flows of a rebalancing: the law on ranks that know their neighbours only, and variants that break it."""

from __future__ import annotations

import numpy as np

from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.rebalancing import flow as module
from lb_mpi.rebalancing.flow import TOLERANCE, Flow
from tests.diffusing import level
from tests.protocol.mutate import rejects


def after(loads: Floats, flows: list[Flow]) -> Floats:
    """The work of the ranks after the flow; AssertionError unless both ends of an edge have the same, to the bit."""
    for flow in flows:
        assert all(amount == -flows[other].flows[flow.rank] for other, amount in flow.flows.items())
    left = loads - [sum(flow.flows.values()) for flow in flows]
    assert np.isclose(left.sum(), loads.sum(), rtol=1e-12)
    return np.asarray(left)


def slow_rank(graph: Graph) -> Floats:
    return np.where(np.arange(graph.n) == graph.n // 2, 1 / 3, 1.0)


STEPS = {"mesh:5x5": 45, "mesh:1x9": 52, "hypercube:4": 24, "mesh:6x7": 57}


def find_fault() -> None:
    for seed, (name, steps) in enumerate(STEPS.items()):
        graph, rng = parse(name), np.random.default_rng(seed)
        loads, speeds = rng.uniform(1.0, 10.0, graph.n), rng.uniform(0.2, 1.0, graph.n)
        flows = level(graph, loads, speeds)
        assert (after(loads, flows) / speeds).max() <= (1 + TOLERANCE) * loads.sum() / speeds.sum() * (1 + 1e-12)
        assert flows[0].steps == steps
        assert [flow.flows for flow in flows] == [flow.flows for flow in level(graph, loads, speeds, order=-1)]
    graph, loads = parse("mesh:11x11"), np.ones(121)
    speeds = slow_rank(graph)
    surplus = 1 - 121 / 3 / speeds.sum()
    assert sum(abs(amount) for flow in level(graph, loads, speeds) for amount in flow.flows.values()) < 6 * surplus


def test_steps_end_where_no_work_can_flow():
    """Rank 0 has too much work, and no neighbour; the others may have some."""
    for edges in ([], [(1, 2)]):
        graph = Graph.from_edges(3, *np.array(edges, dtype=int).reshape(-1, 2).T)
        flows = level(graph, np.array([10.0, 1.0, 1.0]), np.ones(3))
        assert [flow.steps for flow in flows] == [4] * 3  # as many as a change would need to reach all ranks


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
