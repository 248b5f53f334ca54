"""Diffusion: every fact of Jin & Wang on random graphs, the table of steps, one rank against the whole graph."""

import itertools
import warnings
from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.convergence import TOLERANCES
from lb_mpi import metrics
from lb_mpi.cli.balance import STEPPING
from lb_mpi.diffusion.diffusion import Balance, Diffusion, balance, outflow
from lb_mpi.diffusion.setup import SCHEMES, TAU_RULES, coefficients, prepare, theorem_4
from lb_mpi.graph import Graph, parse
from tests.diffusing import acyclic, cases, dense_m, eigenvalues_of_m, paper_case, run_ranks

# --- facts about M ---


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


# --- facts about all schemes ---

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


# --- how many steps (speeds uniform 4..16, times uniform 5..15, medians of 20 seeds) ---

@cache
def medians(name: str, scheme: str, tau: str, seeds: int = 20) -> tuple[float, ...]:
    steps = []
    for seed in range(seeds):
        graph, speeds, loads = paper_case(name, seed)
        imbalance = np.array(balance(graph, loads, speeds, scheme=scheme, tau=tau, tolerance=TOLERANCES[-1]).imbalance)
        steps.append([int((imbalance <= tolerance).argmax()) for tolerance in TOLERANCES])
    return tuple(np.median(steps, axis=0).tolist())


@pytest.mark.parametrize("name", ["mesh:5x5", "mesh:8x8", "mesh:16x16"])
def test_cg_and_chebyshev_beat_fos(name):
    fos, chebyshev, cg = (
        medians(name, *how)[-1] for how in (("fos", "paper"), ("chebyshev", "paper"), ("cg", "uniform"))
    )
    assert chebyshev <= fos / 5.4
    assert cg <= fos / 13


def test_a_thousand_ranks_are_level_in_some_dozens_of_steps():
    steps = {
        scheme: medians("mesh:32x32", scheme, "uniform" if scheme == "cg" else "paper", 1) for scheme in STEPPING[1:5]
    }
    for scheme, (to_5, to_1, to_6) in steps.items():
        assert to_5 < 80, scheme
        assert to_5 < to_1 < to_6 < 250, scheme


# --- one rank against the whole graph ---


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


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["mesh:1x1", "mesh:1x2", "mesh:2x2", "ring:3", "complete:5", "torus:4x4"])
def test_small_graphs_equal_speeds_no_work(scheme, name):
    graph = parse(name)
    ones = np.ones(graph.n)
    for loads in (0 * ones, 3 * ones):
        assert balance(graph, loads, ones, scheme=scheme, tolerance=1e-9).steps == 0
    loads = 0 * ones
    loads[0] = 5
    result = balance(graph, loads, ones, scheme=scheme, tolerance=1e-9)
    assert result.converged
    assert np.allclose(result.loads, 5 / graph.n)
    assert result.steps <= 1000


def test_a_run_that_ends_at_max_steps_has_not_converged():
    graph, speeds, loads = paper_case("mesh:5x5", 0)
    result = balance(graph, loads, speeds, tolerance=1e-6, max_steps=10)
    assert isinstance(result, Balance)
    assert (result.steps, result.converged, len(result.imbalance)) == (10, False, 11)
