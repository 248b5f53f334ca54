"""Diffusion: every fact of Jin & Wang on random graphs, the table of steps, one rank against all, "auto", spectra."""

import itertools
import warnings

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lb_mpi
from lb_mpi import metrics
from lb_mpi.cli.balance import STEPPING, theorem_4
from lb_mpi.diffusion import setup as spectral
from lb_mpi.diffusion.diffusion import Balance, Diffusion, balance, cancel_cycles, outflow
from lb_mpi.diffusion.setup import (
    SCHEMES,
    TAU_RULES,
    coefficients,
    colour_edges,
    prepare,
    rows_scheme,
    usual_scheme,
)
from lb_mpi.graph import Graph, parse
from tests.diffusing import acyclic, cases, dense_m, eigenvalues_of_m, paper_case, run_ranks


@given(cases(), st.sampled_from(TAU_RULES))
def test_theorem_4_is_examined_for_m_itself(case, rule):
    graph, speeds, _ = case
    found, setup = theorem_4(graph, speeds, rule), prepare(graph, speeds, "fos", rule)
    factor = next(coefficients("fos", rule, setup.spectrum, setup.points))[0]
    m = dense_m(graph, speeds, factor * setup.tau)
    assert found.least_diagonal == pytest.approx(np.diag(m).min())
    assert found.bipartite == nx.is_bipartite(graph.to_networkx())
    values = eigenvalues_of_m(graph, speeds, factor * setup.tau)
    assert found.least == pytest.approx(values[0], abs=1e-9)
    assert found.slowest == pytest.approx(max([0.0, *np.abs(values[:-1])]), abs=1e-9)
    assert rule == "uniform" or found.converges


MAGNITUDES = (5e-324, 1e-320, 1e-300, 1e-160, 1.0, 1e160, 1e300)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tau", TAU_RULES)
def test_flow_does_not_depend_on_the_units_of_loads_and_speeds(scheme, tau):
    loads, speeds = np.array([0.0, 1.0, 2.0, 64.0]), np.array([1.0, 2.0, 4.0, 4.0])
    usual = balance("mesh:2x2", loads, speeds, scheme=scheme, tau=tau)
    for load, speed in itertools.product(MAGNITUDES, MAGNITUDES):
        found = balance("mesh:2x2", loads * load, speeds * speed, scheme=scheme, tau=tau)
        assert (found.steps, found.converged) == (usual.steps, usual.converged)
        assert found.imbalance == pytest.approx(usual.imbalance, rel=1e-9, abs=1e-12)
        assert found.flow / load == pytest.approx(usual.flow, rel=1e-9, abs=1.0 if load < 1e-300 else 1e-9)


@settings(max_examples=40)
@given(cases(), st.sampled_from(STEPPING), st.sampled_from(TAU_RULES))
def test_work_is_conserved_and_flow_has_no_cycle(case, scheme, tau):
    graph, speeds, loads = case
    diffusion = Diffusion(prepare(graph, speeds, scheme, tau), loads)
    size = float(loads.sum())
    for _ in range(25):
        diffusion.step()
        flow = diffusion.flow()
        # some schemes swing far while on paper, what has flowed is rounded, and cg rounds more at speeds of 1 to 1e5
        size = max(size, float(np.abs(speeds * diffusion.times).sum()), float(np.abs(flow).sum()))
        assert abs(float(speeds @ diffusion.times) - loads.sum()) <= 1e-11 * size
        assert acyclic(graph, flow)
        moved = loads - outflow(graph, flow)
        assert abs(moved.sum() - loads.sum()) <= 1e-12 * size
        if scheme != "dimension_exchange":
            potential = np.asarray(diffusion._scheme.potential)
            tails, heads = graph.edges()
            assert ((flow > 0) <= (potential[tails] > potential[heads])).all()
            assert ((flow < 0) <= (potential[tails] < potential[heads])).all()


HOW = [
    *(("sos", "paper"), ("chebyshev", "paper"), ("ops", "paper"), ("ops", "uniform")),
    *(("cg", "uniform"), ("cg", "paper"), ("direct", "uniform"), ("direct", "paper")),
]


@settings(max_examples=60)
@given(cases(), st.sampled_from(HOW))
def test_balances_over_six_orders_of_magnitude(case, how):
    graph, speeds, loads = case
    result = balance(graph, loads, speeds, scheme=how[0], tau=how[1], tolerance=0.01)
    assert result.converged
    assert abs(result.loads.sum() - loads.sum()) <= 1e-12 * loads.sum()
    assert result.loads.min() >= -1e-12 * loads.sum()
    assert metrics.imbalance(np.maximum(result.loads, 0), speeds) <= 0.01 + 1e-6
    assert acyclic(graph, result.flow)
    assert len(result.imbalance) == result.steps + 1
    assert result.imbalance[0] == pytest.approx(metrics.imbalance(loads, speeds), rel=1e-12, abs=1e-12)
    assert all(value > 0.01 for value in result.imbalance[:-1]) or result.loads.min() >= 0


def test_direct_reaches_rounding_in_one_step_also_in_a_graph_that_needs_a_sparse_matrix():
    graph, speeds, loads = paper_case("mesh:16x16", 0)
    result = balance(graph, loads, speeds, scheme="direct", tolerance=1e-12)
    assert (result.steps, result.converged) == (1, True)


STEPS = {("fos", "paper"): 1548, ("sos", "paper"): 101, ("chebyshev", "paper"): 106, ("ops", "paper"): 80}
STEPS |= {("cg", "uniform"): 57, ("cg", "paper"): 77}


@pytest.mark.parametrize("how", STEPS)
def test_schemes_need_as_few_steps_as_their_theory_says(how):
    graph, speeds, loads = paper_case("mesh:16x16", 0)
    found = balance(graph, loads, speeds, scheme=how[0], tau=how[1], tolerance=1e-6)
    assert found.steps == pytest.approx(STEPS[how], abs=1, rel=0.01)


@pytest.mark.parametrize("name", ["mesh:3x4", "complete:11", "ring:5", "hypercube:4"])
@pytest.mark.parametrize("scheme", ["fos", "sos", "chebyshev", "ops"])
def test_one_rank_is_the_whole_graph(name, scheme):
    graph, speeds, loads = paper_case(name, 1)
    whole = Diffusion(setup := prepare(graph, speeds, scheme), loads)
    while not whole.converged(1e-6):
        whole.step()
    steps, times, flow = run_ranks(graph, setup, loads, 1e-6)
    assert steps == whole.steps
    assert np.array_equal(times, whole.times)
    assert np.array_equal(flow, whole.flow())


# --- graphs that aren't connected, and small ones ---


@pytest.mark.parametrize("scheme", SCHEMES)
def test_components_are_levelled_apart_with_a_warning(scheme):
    graph = Graph.from_edges(6, [0, 1, 3], [1, 2, 4])  # 0-1-2, 3-4, 5
    speeds, loads = np.array([1.0, 2, 3, 4, 5, 6]), np.array([12.0, 0, 0, 9, 0, 7])
    with pytest.warns(UserWarning, match="3 components .3 with rank 0, 2 with rank 3, 1 with rank 5"):
        result = balance(graph, loads, speeds, scheme=scheme, tolerance=1e-9)
    assert result.converged
    assert np.allclose(result.loads, [2, 4, 6, 4, 5, 7], rtol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup = prepare(graph, speeds, scheme)
    assert np.allclose(setup.mean_times(loads), [2, 2, 2, 1, 1, 7 / 6])
    if scheme in ("fos", "sos"):
        assert np.allclose(run_ranks(graph, setup, loads, 1e-9)[2], result.flow, atol=1e-9)


def test_a_run_that_ends_at_max_steps_has_not_converged():
    graph, speeds, loads = paper_case("mesh:5x5", 0)
    result = balance(graph, loads, speeds, tolerance=1e-6, max_steps=10)
    assert isinstance(result, Balance)
    assert (result.steps, result.converged, len(result.imbalance)) == (10, False, 11)


def random_regular(n: int, degree: int, seed: int) -> Graph:
    """Rings over random orders of all ranks, laid over each other; edges that meet are one."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(degree // 2)]
    ends = {tuple(sorted(pair)) for order in orders for pair in zip(order, np.roll(order, 1), strict=True)}
    return Graph.from_edges(n, *np.array(sorted(ends)).T)


@pytest.mark.parametrize(
    ("graph", "scheme"),
    [
        ("mesh:1x1", "direct"),
        ("torus:16x32", "direct"),
        ("torus:16x33", "cg"),
        ("mesh:100x100", "cg"),
        ("torus:316x317", "cg"),
        ("hypercube:9", "direct"),
        ("hypercube:10", "fos"),
        ("hypercube:14", "fos"),
        (random_regular(3000, 4, seed=1), "fos"),
        ("ring:513", "direct"),
        ("ring:100000", "direct"),
        ("mesh:3x1000", "direct"),
    ],
    ids=str,
)
def test_size_and_hops_choose_the_scheme(graph, scheme):
    layout = parse(graph) if isinstance(graph, str) else graph
    assert usual_scheme(layout) == scheme
    assert prepare(layout, np.linspace(1.0, 4.0, layout.n), "auto").scheme == scheme
    assert rows_scheme(layout, "auto") == {"cg": "sos"}.get(scheme, scheme)


def test_hops_are_those_of_the_longest_shortest_way():
    assert parse("mesh:1x1").hops() == 0
    assert parse("mesh:3x5").hops() == 2 + 4
    assert parse("ring:9").hops() == 4
    assert parse("hypercube:7").hops() == 7
    assert Graph.from_edges(4, [0], [1]).hops() == 1  # what can't be reached doesn't count


@pytest.mark.parametrize("graph", ["torus:24x24", "hypercube:10", "ring:600"])
def test_the_usual_scheme_levels_in_few_steps(graph):
    layout = parse(graph)
    rng = np.random.default_rng(3)
    speeds, warm = rng.uniform(1.0, 4.0, layout.n), np.cos(2 * np.pi * np.arange(layout.n) / layout.n)
    for loads in (rng.lognormal(0.0, 1.0, layout.n), 1.0 + 4.0 * np.maximum(0.0, warm)):
        found = balance(layout, loads, speeds, scheme="auto")
        assert found.converged
        assert found.steps <= 3 * layout.hops()


TAILS, HEADS = parse("mesh:10x20").edges()
TWO_PARTS = Graph.from_edges(400, np.concatenate([TAILS, TAILS + 200]), np.concatenate([HEADS, HEADS + 200]))


@pytest.mark.parametrize("name", ["mesh:9x30", "ring:400", "hypercube:9", "complete:40", "mesh:1x200", TWO_PARTS], ids=str)
def test_lanczos_agrees_with_all_eigenvalues(name, monkeypatch):
    graph = parse(name) if isinstance(name, str) else name
    speeds = np.random.default_rng(0).uniform(4, 16, graph.n)
    tau = spectral.paper_tau(graph, speeds)
    exact = spectral.spectrum(graph, speeds, tau)
    monkeypatch.setattr(spectral, "DENSE", 1)
    found = spectral.spectrum(graph, speeds, tau)
    assert found == pytest.approx(exact, rel=5e-3)
    assert found == spectral.spectrum(graph, speeds, tau)  # the same in every run


@pytest.mark.parametrize("name", ["mesh:12x12", "ring:64", "complete:20"])
def test_leja_order_stays_small(name):
    graph, speeds, _ = paper_case(name, 0)
    values = spectral.eigenvalues(graph, speeds, spectral.paper_tau(graph, speeds))
    order = spectral.leja_order(values)
    assert order[0] == values[-1]
    assert set(order.tolist()) <= set(values.tolist())
    products = np.abs(np.cumprod(1 - values[:, None] / order, axis=1))
    assert products.max() < 1e3
    assert products[:, -1].max() < 1e-9
    if name == "mesh:12x12":
        assert np.abs(np.cumprod(1 - values[:, None] / values, axis=1)).max() > 1e30  # rising


@given(cases())
def test_edges_of_a_vertex_have_different_colours(case):
    graph = case[0]
    colours = colour_edges(graph)
    tails, heads = graph.edges()
    for vertex in range(graph.n):
        mine = colours[(tails == vertex) | (heads == vertex)]
        assert len(set(mine.tolist())) == len(mine)
    if graph.n_edges:
        assert colours.max() + 1 <= 2 * graph.degrees.max() - 1


@pytest.mark.parametrize(("name", "count"), [("mesh:7x9", 4), ("torus:8x6", 4), ("hypercube:5", 5), ("complete:8", 7)])
def test_colours_of_named_graphs_are_as_few_as_can_be(name, count):
    assert colour_edges(parse(name)).max() + 1 == count


@given(cases(), st.integers(0, 10**6))
def test_a_flow_without_its_cycles_moves_the_same(case, seed):
    graph = case[0]
    rng = np.random.default_rng(seed)
    flow = rng.integers(-3, 4, graph.n_edges) * rng.choice([1.0, 0.37])
    left = cancel_cycles(graph, flow)
    assert acyclic(graph, left)
    assert np.allclose(outflow(graph, left), outflow(graph, flow), atol=1e-12)
    assert (np.abs(left) <= np.abs(flow)).all()
    assert (left * flow >= 0).all()
    if acyclic(graph, flow):
        assert np.array_equal(left, flow)


def test_a_hundred_thousand_ranks_are_levelled():
    graph, speeds, loads = paper_case("mesh:320x320", 0)
    result = balance(graph, loads, speeds, tolerance=0.2)
    assert result.converged
    assert abs(result.loads.sum() / loads.sum() - 1) <= 1e-12
    assert result.loads.min() >= 0


@pytest.mark.parametrize("unit", [5e-324, 1e-310, 1e300])
def test_the_vector_does_not_depend_on_the_unit_of_weights_even_of_a_graph_in_pieces(unit):
    usual, found = (lb_mpi.fiedler(Graph.from_edges(5, [0, 1, 3], [1, 2, 4], np.full(3, weight))) for weight in (1.0, unit))
    assert found.vector == pytest.approx(usual.vector)
    assert found.value == pytest.approx(usual.value * unit)
