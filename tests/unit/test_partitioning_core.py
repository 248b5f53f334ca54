"""The multilevel core of `lb_mpi.partition`: every part within its bound, nothing made worse, corner cases, the example."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.linalg import eigh

from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.partitioning.coarsen import coarsen, csr
from lb_mpi.partitioning.compiled import OUT, make_heap, pop, put, random_state, remove
from lb_mpi.partitioning.flow import refine_by_flow
from lb_mpi.partitioning.multilevel import EFFORTS, excess_and_cut, multilevel, multilevel_spectral
from lb_mpi.partitioning.refine import find_bounds, find_connections, find_parts, move, refine
from lb_mpi.partitioning.spectral import connected, fiedler, spectral_bisection, split


def equal(k: int) -> np.ndarray:
    return np.full(k, 1 / k)


def cut(graph: Graph, part: np.ndarray) -> float:
    tails, heads = graph.edges()
    return float(graph.edge_weights()[part[tails] != part[heads]].sum())


def loads(graph: Graph, part: np.ndarray, k: int) -> np.ndarray:
    return np.bincount(part, graph.vertex_weights, minlength=k)


def star(n: int) -> Graph:
    return Graph.from_edges(n, np.zeros(n - 1, int), np.arange(1, n))


@st.composite
def graphs(draw, largest: int = 60) -> Graph:
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n = draw(st.integers(1, largest))
    density = draw(st.sampled_from([0.0, 0.03, 0.1, 0.5]))
    tails, heads = np.nonzero(np.triu(rng.random((n, n)) < density, 1))
    unit = draw(st.booleans())
    weights = np.ones(len(tails)) if unit else rng.choice([0.0, 0.5, 1.0, 7.25], len(tails))
    return Graph.from_edges(n, tails, heads, weights, np.ones(n) if unit else rng.choice([0.0, 1.0, 1.5, 4.0], n))


# --- the whole --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(graphs(120), st.integers(1, 9), st.sampled_from([*sorted(EFFORTS), "spectral"]), st.integers(0, 3), st.booleans())
def test_any_graph_gets_a_valid_partition_within_the_bounds(graph, k, effort, seed, unequal):
    def partition() -> np.ndarray:
        way = (multilevel_spectral, seed) if effort == "spectral" else (multilevel, effort, seed)
        return way[0](graph, targets, 0.03, *way[1:])

    targets = np.arange(1.0, k + 1) / (k * (k + 1) / 2) if unequal else equal(k)
    part = partition()
    assert part.shape == (graph.n,)
    assert set(part) <= set(range(k))
    if graph.vertex_weights.any():
        assert np.all(loads(graph, part, k) <= find_bounds(graph.vertex_weights, targets, 0.03).upper)
    assert np.array_equal(part, partition())


@pytest.mark.parametrize("targets", [equal(2), equal(5), np.array([1, 1, 2, 4]) / 8])
@pytest.mark.parametrize("effort", sorted(EFFORTS))
def test_unit_weights_and_room_enough_means_within_the_asked_imbalance(effort, targets):
    for graph in (mesh(20, 25), parse("hypercube:9"), mesh(1, 400), star(400), Graph.from_edges(400, [], [])):
        part = multilevel(graph, targets, 0.03, effort, 1)
        assert np.all(loads(graph, part, len(targets)) <= 1.03 * targets * graph.n)


def test_meshes_are_cut_as_well_as_is_known():
    assert cut(mesh(30, 30), multilevel(mesh(30, 30), equal(2), 0.03, "good", 0)) == 30
    assert cut(mesh(1, 400), multilevel(mesh(1, 400), equal(4), 0.03, "good", 0)) == 3
    assert cut(mesh(24, 24), multilevel(mesh(24, 24), equal(4), 0.03, "good", 0)) <= 50  # 48 are known
    assert cut(parse("hypercube:8"), multilevel(parse("hypercube:8"), equal(2), 0.03, "good", 0)) == 128


def test_more_effort_cuts_less_on_the_whole():
    def total(effort: str) -> float:
        return sum(cut(g, multilevel(g, equal(k), 0.03, effort, 0)) for g in (mesh(40, 50), torus) for k in (16,))

    torus = parse("torus:35x35")
    fast, good, best = (total(effort) for effort in ("fast", "good", "best"))
    assert best <= good <= fast


def test_components_are_not_cut_when_they_fit():
    graph = Graph.from_edges(400, np.arange(399)[np.arange(399) % 10 != 9], np.arange(1, 400)[np.arange(399) % 10 != 9])
    assert cut(graph, multilevel(graph, equal(4), 0.03, "good", 0)) == 0


# --- balance ----------------------------------------------------------------------------------------------------------


def test_bounds_are_those_asked_for_where_that_can_be():
    bounds = find_bounds(np.ones(1000), np.array([1, 1, 2, 4]) / 8, 0.03)
    np.testing.assert_allclose(bounds.upper, [128.75, 128.75, 257.5, 515])


def test_a_vertex_too_heavy_for_any_part_does_not_loosen_the_others():
    weights = np.array([50.0, *np.ones(99)])
    bounds = find_bounds(weights, equal(7), 0.03)
    assert sorted(np.round(bounds.upper, 2)) == [21.92] * 6 + [50.0]
    assert bounds.targets.sum() == pytest.approx(1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 8), st.sampled_from([0.0, 0.03, 0.5]))
def test_the_packing_proves_that_the_bounds_can_be_kept(weights, k, imbalance):
    weights = np.array(weights, dtype=float)
    if not weights.any():
        return
    targets = np.arange(1.0, k + 1) / (k * (k + 1) / 2)
    bounds = find_bounds(weights, targets, imbalance)
    assert np.all(bounds.upper >= (1 + imbalance) * targets * weights.sum())
    if bounds.packing is not None:
        assert np.all(np.bincount(bounds.packing, weights, minlength=k) <= bounds.upper)


def test_whole_numbers_force_no_more_than_one_vertex():
    for n, k in ((100, 64), (37, 5), (10, 3), (5, 5), (7, 100)):
        assert find_bounds(np.ones(n), equal(k), 0.03).upper.max() <= max(np.ceil(n / k), 1.03 * n / k) + 1e-6


# --- coarsening -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(graphs(150), st.integers(0, 100))
def test_contraction_keeps_weights_and_cuts_and_blocks(graph, seed):
    rng = np.random.default_rng(seed)
    fine, block = csr(graph), rng.integers(0, 2, graph.n)
    largest = float(graph.vertex_weights.sum()) / 4 + 1
    for level in coarsen(fine, 5, largest, random_state(seed), block):
        coarse = level.csr
        assert coarse.n < fine.n
        assert coarse.vertex_weights.sum() == pytest.approx(fine.vertex_weights.sum())
        made = np.bincount(level.group) > 1
        assert np.all(coarse.vertex_weights[made] <= largest)
        coarse_block = np.zeros(coarse.n, int)
        coarse_block[level.group] = block
        assert np.array_equal(coarse_block[level.group], block)
        part = rng.integers(0, 3, coarse.n)
        bounds = np.full(3, 1e9)
        assert excess_and_cut(coarse, part, bounds)[1] == pytest.approx(
            excess_and_cut(fine, part[level.group], bounds)[1]
        )
        Graph(*_sorted(coarse))  # the validator: symmetric, no parallel edges, no self-loops
        fine, block = coarse, coarse_block


def _sorted(graph):
    rows = np.repeat(np.arange(graph.n), np.diff(graph.indptr))
    order = np.lexsort((graph.indices, rows))
    return graph.indptr, graph.indices[order], graph.weights[order], graph.vertex_weights


@pytest.mark.parametrize("graph", [star(3000), Graph.from_edges(3000, [], []), parse("complete:200"), mesh(40, 40)])
def test_coarsening_gets_down(graph):
    assert coarsen(csr(graph), 100, graph.n / 50, random_state(0))[-1].csr.n <= 160


# --- refinement -------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(graphs(100), st.integers(2, 6), st.integers(0, 1000), st.sampled_from(["search", "flow"]))
def test_refinement_never_worsens_the_cut_and_returns_its_gain(graph, k, seed, method):
    rng = np.random.default_rng(seed)
    fine, part = csr(graph), rng.integers(0, k, graph.n)
    bounds = np.maximum(loads(graph, part, k) * 1.1, 1.0)
    before = cut(graph, part)
    if method == "search":
        gain = refine(fine, part, bounds, 4, 1.0, 1 + seed % 3, random_state(seed))
    else:
        gain = refine_by_flow(fine, part, bounds, 2, 3, random_state(seed))
    assert gain >= 0
    assert cut(graph, part) == pytest.approx(before - gain, abs=1e-6)
    assert np.all(loads(graph, part, k) <= bounds + 1e-9)


@settings(max_examples=40, deadline=None)
@given(graphs(60), st.integers(2, 5), st.integers(0, 100))
def test_connections_are_the_weights_between_vertices_and_parts(graph, k, seed):
    rng = np.random.default_rng(seed)
    fine, part = csr(graph), rng.integers(0, k, graph.n)
    parts, connections = find_parts(fine, part, np.full(k, 1e9)), find_connections(fine, part, k)
    for step in range(5):
        if step:  # kept up to date
            v, target = int(rng.integers(graph.n)), int(rng.integers(k))
            if part[v] != target:
                move(fine, parts, connections, v, target)
        found = np.zeros((graph.n, k))
        for v in range(graph.n):
            chosen = slice(graph.indptr[v], graph.indptr[v] + connections.n_others[v])
            found[v, connections.part[chosen]] = connections.weight[chosen]
        found[np.arange(graph.n), part] = connections.inner
        np.testing.assert_allclose(found, graph.to_scipy().toarray() @ np.eye(k)[part], atol=1e-9)
        np.testing.assert_allclose(parts.weights, loads(graph, part, k), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), max_size=60))
def test_the_heap_gives_the_largest_key_first(steps):
    heap, expected = make_heap(10), {}
    for v, key in steps:
        if key == -3:
            remove(heap, v)
            expected.pop(v, None)
        else:
            put(heap, v, float(key))
            expected[v] = key
        assert heap.size[0] == len(expected)
        assert not expected or heap.key[heap.items[0]] == max(expected.values())
    while expected:
        v = pop(heap)
        assert expected.pop(v) == max([*expected.values(), heap.key[v]])
    assert (heap.position == OUT).all()


def test_search_climbs_out_of_what_no_single_move_improves():
    # Two columns of a ladder, cut along the rungs' middles in a zigzag: each move alone gains nothing.
    graph = mesh(2, 40)
    part = (np.arange(80) // 40).astype(np.int64)  # 40 rungs cut; the best is 2
    refine(csr(graph), part, np.full(2, 44.0), 20, 10.0, 1, random_state(0))
    refine_by_flow(csr(graph), part, np.full(2, 44.0), 3, 40, random_state(0))
    assert cut(graph, part) < 40


def test_flow_finds_the_lightest_cut():
    # A corridor of weight-9 edges with one weak spot that is off the present cut.
    weights = np.full(29, 9.0)
    weights[12] = 1.0
    graph = Graph.from_edges(30, np.arange(29), np.arange(1, 30), weights)
    part = (np.arange(30) >= 15).astype(np.int64)
    assert refine_by_flow(csr(graph), part, np.full(2, 18.0), 1, 8, random_state(0)) == 8
    assert np.array_equal(part, (np.arange(30) >= 13).astype(np.int64))
    part = (np.arange(30) >= 15).astype(np.int64)  # balance forbids it here
    assert refine_by_flow(csr(graph), part, np.full(2, 16.0), 1, 8, random_state(0)) == 0


# --- spectral ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(graphs(90))
def test_fiedler_is_scipys_second_eigenvector(graph):
    joined = connected(csr(graph))
    adjacency = sparse.csr_array((joined.weights, joined.indices, joined.indptr), shape=(graph.n, graph.n)).toarray()
    laplacian = np.diag(adjacency.sum(axis=0)) - adjacency
    values, vectors = eigh(laplacian)
    found = fiedler(graph)
    value, vector = found.value, found.vector
    if graph.n > 1:
        assert value == pytest.approx(values[1], abs=1e-6 * max(values[-1], 1e-9))
        same = np.abs(values - values[1]) < 1e-4 * max(values[-1], 1e-9)  # a multiple eigenvalue has more than one
        assert np.linalg.norm(vectors[:, same].T @ vector) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("graph", [mesh(20, 20), parse("torus:20x20"), star(400), parse("complete:50"), mesh(1, 500)])
def test_repeated_eigenvalues_give_an_eigenvector_all_the_same(graph):
    found = fiedler(graph)
    value, vector = found.value, found.vector
    laplacian = np.diag(graph.degrees) - graph.to_scipy().toarray()
    assert np.linalg.norm(vector) == pytest.approx(1)
    assert np.abs(laplacian @ vector - value * vector).max() < 1e-5
    assert value == pytest.approx(np.linalg.eigvalsh(laplacian)[1], abs=1e-6)
    assert abs(np.bincount(spectral_bisection(graph)) - graph.n / 2).max() <= 1


def test_graphs_in_pieces_are_joined_by_edges_too_faint_to_matter():
    graph = Graph.from_edges(700, np.arange(0, 700, 2), np.arange(1, 700, 2))
    joined = connected(csr(graph))
    assert Graph(*_sorted(joined)).components()[0] == 1
    assert joined.weights[joined.weights < 1].sum() / 2 < 1
    assert connected(csr(mesh(3, 3))).indptr[-1] == 24
    assert np.bincount(spectral_bisection(graph)).tolist() == [350, 350]


def test_equal_entries_are_dealt_out_to_the_target():
    assert np.bincount(split(np.zeros(10), np.ones(10), 0.3)).tolist() == [3, 7]
    assert np.bincount(split(np.zeros(10), np.zeros(10), 0.5)).tolist() == [5, 5]
