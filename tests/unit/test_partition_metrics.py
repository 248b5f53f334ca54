"""Figures of partitions, each against its definition, written out with loops over networkx graphs."""


import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lb_mpi
from lb_mpi.graph import Graph, mesh
from lb_mpi.machine import Machine
from lb_mpi.partitioning.quality import connected, cut, mapping_cost, part_weights, volume


@st.composite
def partitions(draw: st.DrawFn) -> tuple[nx.Graph, Graph, list[int], int, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    expected = nx.gnp_random_graph(int(rng.integers(1, 20)), draw(st.floats(0, 1)), seed=int(rng.integers(10**6)))
    for *_, data in expected.edges(data=True):
        data["weight"] = int(rng.integers(0, 5))
    for _, data in expected.nodes(data=True):
        data["weight"] = int(rng.integers(0, 5))
    k = draw(st.integers(1, 6))
    parts = rng.integers(0, k, len(expected)).tolist()
    return expected, Graph.from_networkx(expected), parts, k, rng


@given(partitions())
def test_cut_volume_and_weights_are_as_defined(drawn):
    expected, graph, parts, k, _ = drawn
    assert cut(graph, parts, k) == sum(w for i, j, w in expected.edges(data="weight") if parts[i] != parts[j])
    others = [{parts[j] for j in expected[i]} - {parts[i]} for i in expected]
    assert volume(graph, parts, k) == sum(map(len, others))
    weights = [sum(expected.nodes[i]["weight"] for i in expected if parts[i] == part) for part in range(k)]
    assert part_weights(graph, parts, k).tolist() == weights


@given(partitions())
def test_connected_parts_are_as_defined(drawn):
    expected, graph, parts, k, _ = drawn
    for part, whole in enumerate(connected(graph, parts, k)):
        members = expected.subgraph(i for i in expected if parts[i] == part)
        assert whole == (len(members) == 0 or nx.is_connected(members))


@given(partitions(), st.sampled_from([None, 0.25]))
def test_the_cost_on_a_machine_is_as_defined(drawn, unit_s):
    expected, graph, parts, k, rng = drawn
    speeds = rng.uniform(0.5, 2, k)
    alpha, beta = (rng.uniform(0, 1, (k, k)) * ~np.eye(k, dtype=bool) for _ in range(2))
    cost = mapping_cost(graph, parts, Machine(("host",) * k, speeds, alpha, beta), unit_s=unit_s)
    if unit_s is not None:
        speeds = speeds / speeds.max() / unit_s
    seconds = []
    for j in range(k):
        computing = sum(expected.nodes[i]["weight"] for i in expected if parts[i] == j) / speeds[j]
        talking = [
            (parts[b], w) for i, b, w in expected.to_directed().edges(data="weight") if parts[i] == j != parts[b]
        ]
        communication = sum(w * beta[j, part] for part, w in talking)
        communication += sum(alpha[j, part] for part in {part for part, w in talking if w})
        assert cost.computing_s[j] == pytest.approx(computing)
        assert cost.communication_s[j] == pytest.approx(communication)
        seconds.append(computing + communication)
    assert cost.objective_s == pytest.approx(max(seconds))
    assert cost.lower_bound_s <= cost.objective_s * (1 + 1e-12)


def machine(speeds: list[float], latency_s: float = 0.0, s_per_byte: float = 0.0) -> Machine:
    off = 1.0 - np.eye(len(speeds))
    return Machine(("host",) * len(speeds), speeds, latency_s * off, s_per_byte * off)


def test_the_figures_are_those_of_a_worked_example():
    """Two rows of a 2 x 4 mesh, on nodes of performance 1 and 3."""
    parts = [0, 0, 0, 0, 1, 1, 1, 1]
    figures = lb_mpi.partition_metrics("mesh:2x4", parts, 2, targets=[1, 3])
    assert (figures.cut, figures.volume, figures.cost) == (4.0, 8, None)
    assert figures.imbalance == pytest.approx(1.0)  # part 0 should have two of the eight vertices
    assert (figures.sizes.tolist(), figures.weights.tolist()) == ([4, 4], [4.0, 4.0])
    assert figures.connected.tolist() == [True, True]
    assert lb_mpi.partition_metrics("mesh:2x4", np.array(parts), np.int64(2)).imbalance == 0.0
    figures = lb_mpi.partition_metrics("mesh:2x4", parts, 2, machine=machine([1, 3], 0.5, 0.25))
    assert figures.imbalance == pytest.approx(1.0)  # against the machine's speeds
    assert (figures.cost.objective_s, figures.cost.lower_bound_s) == (5.5, 2.0)
    halved = lb_mpi.partition_metrics("mesh:2x4", parts, 2, machine=machine([1, 3]), unit_s=1 / 6)
    assert halved.cost.objective_s == pytest.approx(2.0)


def test_the_heaviest_task_bounds_too():
    graph = Graph.from_edges(3, [0], [1], vertex_weights=[10, 1, 1])
    assert mapping_cost(graph, [0, 1, 1], machine([1, 2])).lower_bound_s == 5.0
    assert mapping_cost(graph, [1, 0, 0], machine([1, 2])).objective_s == 5.0


def test_many_more_parts_than_vertices():
    graph = mesh(3, 3)
    parts = np.arange(9) * 100_000
    assert volume(graph, parts, 1_000_000) == 24
    assert connected(graph, parts, 1_000_000).all()
