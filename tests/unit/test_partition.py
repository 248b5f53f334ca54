"""The door to the partitioners: what goes in, what any method must keep to, and the figures of partitions by definition."""

import os
import signal
import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lb_mpi
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.graph_files import parts_text
from lb_mpi.machine import Machine
from lb_mpi.partitioning import multilevel
from lb_mpi.partitioning.coarsen import coarsen, csr
from lb_mpi.partitioning.compiled import random_state
from lb_mpi.partitioning.partition import METHODS, partition
from lb_mpi.partitioning.quality import connected, cut, mapping_cost, part_weights, partition_metrics, volume
from lb_mpi.partitioning.spectral import spectral_bisection


def graphs() -> dict[str, Graph]:
    """The awkward ones."""
    rng = np.random.default_rng(0)
    weighted = nx.gnp_random_graph(60, 0.1, seed=1)
    for *_, data in weighted.edges(data=True):
        data["weight"] = float(rng.choice([0.0, 1e-3, 2.5, 1e6]))
    for _, data in weighted.nodes(data=True):
        data["weight"] = float(rng.choice([0.0, 0.1, 7.0]))
    return {
        "one vertex": Graph.from_networkx(nx.empty_graph(1)),
        "isolated": Graph.from_networkx(nx.empty_graph(9)),
        "star": Graph.from_networkx(nx.star_graph(20)),
        "path": mesh(1, 30),
        "complete": parse("complete:12"),
        "grid": mesh(12, 12),
        "two pieces": Graph.from_networkx(nx.disjoint_union(nx.grid_2d_graph(6, 6), nx.cycle_graph(15))),
        "weighted": Graph.from_networkx(weighted),
        "zero weights": Graph.from_edges(8, [0, 1, 2], [1, 2, 3], [0, 0, 0], np.zeros(8)),
        "huge weights": Graph.from_edges(4, [0, 1, 2], [1, 2, 3], [1e300, 1e-300, 1e300], [1e307, 1e307, 1e-300, 0]),
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", graphs())
def test_awkward_graphs_get_valid_parts_and_empty_ones_are_counted(name, method):
    graph = graphs()[name]
    heavy = np.flatnonzero(graph.vertex_weights) if graph.vertex_weights.any() else np.arange(graph.n)
    for k in (1, 2, 3, 7, 40):
        with warnings.catch_warnings(record=True) as came:
            warnings.simplefilter("always")
            parts, again = (partition(graph, k, effort="fast", method=method) for _ in range(2))
        assert parts.shape == (graph.n,)
        assert parts.dtype == np.int64
        assert ((parts >= 0) & (parts < k)).all()
        assert (parts == again).all()
        n_empty = k - len(set(parts[heavy].tolist()))
        assert n_empty == max(0, k - len(heavy))
        assert [str(one.message).partition(" (")[0] for one in came] == 2 * [f"{n_empty} of {k} parts are empty"][:n_empty]


@pytest.mark.parametrize("method", METHODS)
def test_a_part_is_empty_only_where_no_vertex_fits_and_then_named(method):
    """Two in each part are within bounds, so that the cut would be least with some parts empty."""
    sizes = np.bincount(partition("mesh:6x6", 30, effort="fast", method=method), minlength=30)
    assert sorted(sizes.tolist()) == [1] * 24 + [2] * 6
    path = nx.path_graph(12)
    nx.set_node_attributes(path, {v: 100 if v % 3 == 0 else 1 for v in path}, "weight")
    assert sorted(partition(path, 12, effort="fast", method=method).tolist()) == list(range(12))
    if method == "spectral":  # it has no bounds
        assert set(partition("mesh:30x30", 3, targets=[1000, 1, 1], method=method).tolist()) == {0, 1, 2}
        return
    with pytest.warns(UserWarning, match=r"^2 of 3 parts are empty \(1, 2\): expected more vertices .*, or lighter ones"):
        assert not partition("mesh:30x30", 3, targets=[1000, 1, 1], effort="fast", method=method).any()


@pytest.mark.parametrize("method", METHODS)
def test_a_grid_is_cut_well_and_evenly(method):
    graph = mesh(20, 32)
    figures = partition_metrics(graph, partition(graph, 4, method=method), 4)
    assert figures.cut <= 64  # quarters cut 52, stripes 60, METIS 62
    assert figures.imbalance <= 0.04
    targets = [4, 2, 1, 1]  # in stripes of whole columns and a stripe cut in two: 48
    figures = partition_metrics(graph, partition(graph, 4, targets=targets, method=method), 4, targets=targets)
    assert figures.cut <= 64
    assert figures.imbalance <= 0.04


def test_the_mean_of_v_2_is_a_threshold_for_halves_of_halves():
    tail = Graph.from_edges(9, [0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 2, 3, 3, 4, 5, 6, 7, 8])  # a square, its tail
    vector = lb_mpi.fiedler(tail).vector
    parts = lb_mpi.partition(tail, 2, method="spectral", threshold="mean")
    np.testing.assert_array_equal(parts, (vector > vector.mean()).astype(int))
    assert len(set(lb_mpi.partition(tail, 4, method="spectral", threshold="mean").tolist())) == 4
    assert sorted(np.bincount(spectral_bisection(mesh(1, 3), threshold="mean"))) == [1, 2]  # one vertex is at the mean


@pytest.mark.parametrize("name", ["mesh:30x40", "ring:500", "complete:200"])
def test_coarsening_by_a_matching_merges_pairs(name):
    graph = parse(name)
    for pairs in (True, False):
        levels = coarsen(csr(graph), 10, graph.n, random_state(0), matching=pairs)
        most = max(int(np.bincount(level.group).max()) for level in levels)
        assert (most == 2) == pairs
    figures = partition_metrics(graph, partition(graph, 4, method="multilevel-spectral", coarsening="matching"), 4)
    assert figures.imbalance <= 0.03 + 1e-9


def test_parts_are_one_a_line():
    assert parts_text([0, 3, 1, 1]) == "0\n3\n1\n1\n"


def raise_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"method": "multilevel-spectral"}])
@pytest.mark.parametrize("handler", [signal.default_int_handler, raise_interrupt])  # on MPI it is another one
def test_ctrl_c_is_raised_between_two_kernels(monkeypatch, options, handler):
    """In a kernel that returns arrays it became a SystemError, or crashed."""
    ended = list[str]()

    def press(*arguments: Any, plain: Any = multilevel.best_grown) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        part = plain(*arguments)
        ended.append("best_grown")
        return part

    monkeypatch.setattr(multilevel, "best_grown", press)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lb_mpi.partition("mesh:30x30", 4, **options)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["best_grown"]


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
