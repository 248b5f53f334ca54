"""Flows of a rebalancing: the law on ranks that know their neighbours only, and variants that break it."""

from __future__ import annotations

import inspect
import types
from typing import Any

import numpy as np
import pytest

from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.rebalancing import flow as module
from lb_mpi.rebalancing.flow import TOLERANCE, level


def check_law(flow_of_a_rank: Any, graph: Graph, loads: Floats, speeds: Floats) -> None:
    """Run one object per rank; AssertionError unless the flows are antisymmetric, level the ranks, and equal `level`'s."""
    mean = float(loads.sum() / speeds.sum())
    near = [graph.neighbours(rank).tolist() for rank in range(graph.n)]
    levelled = level(graph, loads, speeds)
    flows = [
        flow_of_a_rank(rank, near[rank][::-1], float(loads[rank]), float(speeds[rank]), mean, size=graph.n)
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


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_the_law_holds(name: str, seed: int) -> None:
    graph, rng = parse(name), np.random.default_rng(seed)
    check_law(module.Flow, graph, rng.uniform(1.0, 10.0, graph.n), rng.uniform(0.2, 1.0, graph.n))


MUTANTS = {
    "a rank takes its own bound for both ends": ("min(self.start(), received[other])", "self.start()"),
    "the work does not leave the rank": ("self.time -= out / self._speed", "self.time -= 0.0"),
    "the time falls by the work, not by its seconds": ("self.time -= out / self._speed", "self.time -= out"),
    "all of the time spills over": ("return max(self.time - self._threshold, 0.0)", "return self.time"),
    "the flow is not added up": ("self.flows[other] += flow", "self.flows[other] = flow"),
    "neighbours in the order in which they came": ("sorted(neighbours)", "neighbours"),
    "momentum forgets the previous step": ("+ weight * self._last[other]", "+ 0.0"),
    "momentum from each rank's own count of steps": ("momentum(self.steps,", "momentum(self.steps + self.rank % 2,"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    source, (before, after) = inspect.getsource(module), MUTANTS[name]
    assert before in source
    mutant = types.ModuleType("mutant")
    exec(compile(source.replace(before, after), "mutant", "exec"), vars(mutant))
    caught = 0
    for case, seed in CASES:
        graph, rng = parse(case), np.random.default_rng(seed)
        try:
            check_law(mutant.Flow, graph, rng.uniform(1.0, 10.0, graph.n), rng.uniform(0.2, 1.0, graph.n))
        except AssertionError:
            caught += 1
    assert caught
