"""Levelling on the quotient graph: one `Flow` per rank, and all of them in one process."""

import numpy as np
import pytest
from hypothesis import given

from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.rebalancing.flow import TOLERANCE, Flow
from tests.diffusing import Levelled, cases, level


def run_flows(graph: Graph, loads: Floats, speeds: Floats, steps: int) -> list[Flow]:
    """One object per rank, each of which receives its neighbours' numbers only."""
    mean = float(loads.sum() / speeds.sum())
    near = [graph.neighbours(rank).tolist() for rank in range(graph.n)]
    flows = [
        Flow(rank, near[rank][::-1], float(loads[rank]), float(speeds[rank]), mean, size=graph.n)
        for rank in range(graph.n)
    ]
    numbers = [flow.start() for flow in flows]
    for _ in range(steps + 1):
        numbers = [flow.step({other: numbers[other] for other in near[flow.rank]}) for flow in flows]
    return flows


def after(graph: Graph, loads: Floats, levelled: Levelled) -> Floats:
    tails, heads = graph.edges()
    out = np.bincount(tails, levelled.flows, graph.n) - np.bincount(heads, levelled.flows, graph.n)
    return np.asarray(loads - out)


@given(cases())
def test_flows_of_ranks_equal_those_of_one_process_to_the_bit(case: tuple[Graph, Floats, Floats]) -> None:
    graph, speeds, loads = case
    levelled = level(graph, loads, speeds, max_steps=60)
    flows = run_flows(graph, loads, speeds, levelled.steps)
    for flow in flows:
        assert all(amount == -flows[other].flows[flow.rank] for other, amount in flow.flows.items())
    pairs = zip(*graph.edges(), levelled.flows.tolist(), strict=True)
    assert all(flows[tail].flows[int(head)] == amount for tail, head, amount in pairs)
    assert max(flow.residual for flow in flows) == levelled.residual


@given(cases())
def test_work_is_conserved_and_no_time_falls_below_0_without_momentum(case: tuple[Graph, Floats, Floats]) -> None:
    graph, speeds, loads = case
    left = after(graph, loads, level(graph, loads, speeds, max_steps=16))
    assert np.isclose(left.sum(), loads.sum(), rtol=1e-12)
    assert left.min() >= -1e-12 * loads.sum()


@pytest.mark.parametrize("name", ["mesh:4x4", "mesh:11x11", "mesh:1x16", "hypercube:7", "complete:9"])
@pytest.mark.parametrize("event", ["one slow", "half slow", "all differ"])
def test_times_reach_the_tolerance_and_no_rank_has_to_give_what_it_does_not_have(name: str, event: str) -> None:
    graph, rng = parse(name), np.random.default_rng(1)
    ranks = np.arange(graph.n)
    speeds = {
        "one slow": np.where(ranks == graph.n // 2, 1 / 3, 1.0),
        "half slow": np.where(ranks < graph.n // 2, 0.5, 1.0),
        "all differ": rng.uniform(0.5, 1.0, graph.n),
    }[event]
    loads = np.ones(graph.n)
    levelled = level(graph, loads, speeds)
    times = after(graph, loads, levelled) / speeds
    assert times.max() / (loads.sum() / speeds.sum()) <= 1 + TOLERANCE + 1e-12
    assert times.min() > 0
    assert levelled.steps <= 300


def test_only_the_excess_travels() -> None:
    graph, speeds, loads = parse("mesh:11x11"), np.ones(121), np.ones(121)
    speeds[60] = 1 / 3
    surplus = loads[60] - speeds[60] * 121 / speeds.sum()
    assert np.abs(level(graph, loads, speeds).flows).sum() < 3 * surplus  # levelling everything: more than 6


def test_a_rank_without_neighbours_and_a_graph_without_work() -> None:
    flow = Flow(0, [], 3.0, 1.0, 1.0, size=2)
    flow.start()
    assert flow.step({}) == flow.step({}) > 0
    assert (flow.flows, flow.residual) == ({}, 2.0)
    assert level(parse("mesh:1x3"), np.zeros(3), np.ones(3)) == (pytest.approx(np.zeros(2)), 0, 0.0)
    assert Flow(0, [1], 0.0, 1.0, 0.0, size=2).residual == 0.0
