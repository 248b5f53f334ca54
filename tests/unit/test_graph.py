"""Graphs: the validator, the named graphs, the ring, graphs that follow the hosts, conversions and files."""

import math
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from lb_mpi.balancing.transfers import direct_plan
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.graph import Graph, host_graph, most_square_mesh, parse, ring_order
from lb_mpi.graph_files import read_matrix_market, read_metis


@st.composite
def networkx_graphs(draw: st.DrawFn) -> nx.Graph:
    graph = nx.gnp_random_graph(draw(st.integers(1, 30)), draw(st.floats(0, 1)), seed=draw(st.integers(0, 10**6)))
    for *_, data in graph.edges(data=True):
        data["weight"] = draw(st.integers(0, 9))
    for _, data in graph.nodes(data=True):
        data["weight"] = draw(st.integers(0, 9))
    return graph


def same(one: Graph, other: Graph) -> bool:
    names = ("indptr", "indices", "weights", "vertex_weights")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


# --- named graphs, against networkx ---


@pytest.mark.parametrize(("text", "expected"), [
    ("mesh:1x1", nx.empty_graph(1)),
    ("mesh:3x4", nx.grid_2d_graph(3, 4)),
    ("mesh:1x7", nx.path_graph(7)),
    ("torus:3x5", nx.grid_2d_graph(3, 5, periodic=True)),
    ("torus:1x1", nx.empty_graph(1)),
    ("torus:1x4", nx.cycle_graph(4)),
    ("torus:2x2", nx.grid_2d_graph(2, 2)),
    ("torus:2x4", nx.cartesian_product(nx.path_graph(2), nx.cycle_graph(4))),
    ("torus:4x2", nx.cartesian_product(nx.cycle_graph(4), nx.path_graph(2))),
    ("hypercube:0", nx.empty_graph(1)),
    ("hypercube:4", nx.convert_node_labels_to_integers(nx.hypercube_graph(4), ordering="sorted")),
    ("cube:1", nx.empty_graph(1)),
    ("cube:6", nx.Graph([(0, 1), (2, 3), (4, 5), (0, 2), (1, 3), (0, 4), (1, 5)])),
    ("cube:16", nx.convert_node_labels_to_integers(nx.hypercube_graph(4), ordering="sorted")),
    ("ring:1", nx.empty_graph(1)),
    ("ring:2", nx.path_graph(2)),
    ("ring:9", nx.cycle_graph(9)),
    ("complete:1", nx.empty_graph(1)),
    ("complete:6", nx.complete_graph(6)),
    ("2,4/1,3/2,4/1,3", nx.cycle_graph(4)),
    ("2/1,/", nx.Graph({0: [1], 1: [], 2: []})),
])  # fmt: skip
def test_named_graphs_are_those_of_networkx(text, expected):
    assert same(parse(text), Graph.from_networkx(nx.convert_node_labels_to_integers(expected, ordering="sorted")))


def test_the_most_square_mesh_has_the_nearest_factors():
    assert [most_square_mesh(size) for size in (1, 2, 7, 12, 16, 36, 1024)] == [
        (1, 1), (1, 2), (1, 7), (3, 4), (4, 4), (6, 6), (32, 32),
    ]  # fmt: skip


# --- the ring (Xu, Zhang, Sun 1991) ---


@pytest.mark.parametrize("dimension", range(1, 11))
def test_ring_neighbours_are_hypercube_neighbours(dimension):
    ring = ring_order(1 << dimension)
    cube = parse(f"hypercube:{dimension}")
    assert all(ring[k] in cube.neighbours(ring[k - 1]) for k in range(len(ring)))


def test_ring_of_other_sizes_leaves_out_the_missing():
    assert ring_order(1) == (0,)
    assert ring_order(8) == (0, 1, 3, 2, 6, 7, 5, 4)
    assert ring_order(6) == (0, 1, 3, 2, 5, 4)


# --- graphs that follow the hosts ---


def crossing(hosts: list[str]) -> int:
    tails, heads = host_graph(hosts).edges()
    return sum(hosts[tail] != hosts[head] for tail, head in zip(tails.tolist(), heads.tolist(), strict=True))


@pytest.mark.parametrize(("hosts", "between"), [
    (["a"], 0),
    (["a"] * 7, 0),
    (["a", "b"], 1),
    (["a", "b"] * 8, 1),
    (["a"] * 3 + ["b"] * 9 + ["c"], 3),  # of a ring
    ([f"h{rank // 16}" for rank in range(256)], 32),  # of a torus of 4 x 4
    ([f"h{rank % 7}" for rank in range(40)], 7),
])  # fmt: skip
def test_few_edges_lead_between_hosts(hosts, between):
    graph = host_graph(hosts)
    assert graph.n == len(hosts)
    assert graph.components()[0] == 1
    assert crossing(hosts) == between
    inside = {host: hosts.count(host) for host in hosts}
    assert graph.degrees.max() <= max(inside.values()).bit_length() + 4


def test_edges_between_hosts_are_shared_out_among_the_ranks():
    hosts = [f"h{rank // 16}" for rank in range(16 * 25)]
    tails, heads = host_graph(hosts).edges()
    out = np.bincount(
        [end for pair in zip(tails, heads, strict=True) if hosts[pair[0]] != hosts[pair[1]] for end in pair]
    )
    assert out.max() == 1


def test_loads_are_levelled_on_it():
    hosts = [f"h{rank // 5 % 9}" for rank in range(200)]
    rng = np.random.default_rng(1)
    found = balance(host_graph(hosts), rng.uniform(0, 9, 200), rng.uniform(1, 4, 200), scheme="cg")
    assert found.converged
    assert found.steps < 40


@pytest.mark.parametrize("hosts", [["a", "b"] * 4, ["a"] * 3 + ["b"], ["a", "b", "b", "a", "b", "b"]])
@pytest.mark.parametrize("seed", range(5))
def test_no_more_goes_between_two_hosts_than_one_of_them_has_too_much(hosts, seed):
    rng = np.random.default_rng(seed)
    loads, speeds = rng.uniform(0, 9, len(hosts)), rng.uniform(0.2, 1, len(hosts))
    plan = direct_plan(host_graph(hosts), loads, speeds)
    on = np.array(hosts)
    surplus = (loads - speeds * loads.sum() / speeds.sum())[on == "a"].sum()
    assert plan.amounts[on[plan.sources] != on[plan.destinations]].sum() == pytest.approx(abs(surplus))


@given(networkx_graphs())
def test_agrees_with_networkx(expected):
    graph = Graph.from_networkx(expected)
    assert graph.n == len(expected)
    assert graph.n_edges == expected.number_of_edges()
    tails, heads = graph.edges()
    assert (tails < heads).all()
    pairs = list(zip(tails.tolist(), heads.tolist(), strict=True))
    assert pairs == sorted(tuple(sorted(edge)) for edge in expected.edges)
    assert graph.edge_weights().tolist() == [expected.edges[pair]["weight"] for pair in pairs]
    assert graph.degrees.tolist() == [expected.degree[k] for k in expected]
    assert all(graph.neighbours(k).tolist() == sorted(expected[k]) for k in expected)
    count, labels = graph.components()
    parts = sorted(map(sorted, nx.connected_components(expected)))
    assert [np.flatnonzero(labels == k).tolist() for k in range(count)] == parts


@given(networkx_graphs())
def test_conversions_go_round(expected):
    graph = Graph.from_networkx(expected)
    assert same(Graph.from_edges(graph.n, *graph.edges(), graph.edge_weights(), graph.vertex_weights), graph)
    assert same(Graph.from_edges(graph.n, *graph.edges()[::-1], graph.edge_weights(), graph.vertex_weights), graph)
    assert same(Graph.from_networkx(graph.to_networkx()), graph)
    for matrix in (graph.to_scipy(), graph.to_scipy().tocoo(), sparse.csc_matrix(graph.to_scipy())):
        assert same(Graph.from_scipy(matrix, graph.vertex_weights), graph)


def test_a_graph_is_immutable():
    mine = np.array([1.0])
    graph = Graph.from_edges(2, [0], [1], mine)
    mine[0] = 7
    assert graph.weights.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        graph.weights[0] = 7
    with pytest.raises(AttributeError):
        graph.weights = mine


@pytest.mark.parametrize(("arrays", "message"), [
    (([0], [], [], []), "without vertices"),
    (([0, 1, 3, 4], [1, 0, 2, 0], [1] * 4, [1] * 3), "1-2 is one-sided"),
    (([0, 1, 2], [1, 0], [1, 2], [1, 1]), r"0-1 has weights \(1.0, 2.0\)"),
    (([0, 1, 2], [0, 1], [1, 1], [1, 1]), "0-0 .*self-loop"),
    (([0, 2, 4], [1, 1, 0, 0], [1] * 4, [1, 1]), "0-1 .*edge twice"),
    (([0, 2, 3, 4], [2, 1, 0, 0], [1] * 4, [1] * 3), "must ascend"),
    (([0, 1, 2], [2, 0], [1, 1], [1, 1]), r"0-2 .*outside 0..1"),
    (([0, 1, 2], [1, -1], [1, 1], [1, 1]), r"1--1 .*outside 0..1"),
    (([0, 1, 2], [1, 0], [-1, -1], [1, 1]), "0-1 of weight -1.0"),
    (([0, 1, 2], [1, 0], [math.nan, math.nan], [1, 1]), "0-1 of weight nan"),
    (([0, 1, 2], [1, 0], [1, 1], [1, math.nan]), "vertex 1 has weight nan"),
    (([0, 1, 2], [1, 0], [1, 1], [-2, 1]), "vertex 0 has weight -2.0"),
    (([0, 1, 2], [1, 0], [1, 1], [1]), "1 vertex_weights: expected 2"),
    (([0, 1, 2], [1, 0], [1], [1, 1]), "1 weights: expected 2"),
    (([0, 2, 1], [1, 0], [1, 1], [1, 1]), "indptr must rise"),
    (([1, 1, 2], [1, 0], [1, 1], [1, 1]), "indptr must rise"),
    (([[0, 1, 2]], [1, 0], [1, 1], [1, 1]), "indptr of shape"),
])  # fmt: skip
def test_arrays_that_are_no_graph_are_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        Graph(*map(np.array, arrays))


def test_entries_of_a_matrix_of_small_integers_and_parallel_edges_of_a_multigraph_add_up():
    twice = sparse.coo_array((np.full(4, 200, np.uint8), ([0, 0, 1, 1], [1, 1, 0, 0])), shape=(2, 2))
    assert Graph.from_scipy(twice).weights.tolist() == [400.0, 400.0]
    graph = Graph.from_networkx(nx.MultiGraph([(0, 1, {"weight": 2}), (1, 0, {"weight": 3}), (1, 2)]))
    assert graph.edge_weights().tolist() == [5, 1]


def write_metis(graph: Graph, path: Path) -> None:
    with path.open("w") as file:
        print(f"% a comment\n{graph.n} {graph.n_edges} 011", file=file)
        for k in range(graph.n):
            weights = graph.weights[graph.indptr[k] : graph.indptr[k + 1]]
            pairs = (f"{j + 1} {w:.0f}" for j, w in zip(graph.neighbours(k), weights, strict=True))
            print(f"{graph.vertex_weights[k]:.0f}", *pairs, file=file)


@given(expected=networkx_graphs())
def test_metis_goes_round(expected, tmp_path_factory):
    path = tmp_path_factory.mktemp("metis") / "round.graph"
    write_metis(Graph.from_networkx(expected), path)
    assert same(read_metis(path), Graph.from_networkx(expected))


def test_metis_isolated_vertices_sizes_and_line_ends(tmp_path):
    path = tmp_path / "a.graph"
    path.write_bytes(b"3 1 110\r\n7 2 2\r\n7 3 1\r\n%\r\n7 0\r\n\r\n")
    assert same(read_metis(path), Graph.from_edges(3, [0], [1], vertex_weights=[2, 3, 0]))
    path.write_text("3 1\n3\n\n1")
    assert same(read_metis(path), Graph.from_edges(3, [0], [2]))


@given(expected=networkx_graphs(), symmetry=st.sampled_from(["general", "symmetric"]))
def test_matrix_market_goes_round(expected, symmetry, tmp_path_factory):
    graph = Graph.from_networkx(expected, vertex_weight="none")
    path = tmp_path_factory.mktemp("matrix") / "round.mtx"
    scipy.io.mmwrite(path, graph.to_scipy(), symmetry=symmetry)
    assert same(read_matrix_market(path), graph)


def test_matrix_market_pattern_diagonal_and_duplicates(tmp_path):
    path = tmp_path / "a.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n% c\n\n3 3 3\n1 1\n2 1\n3 2\n")
    assert same(read_matrix_market(path), Graph.from_edges(3, [0, 1], [1, 2]))
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 4\n1 1 -5\n1 2 1\n2 1 3\n1 2 2\n")
    assert same(read_matrix_market(path), Graph.from_edges(2, [0], [1], [3]))
