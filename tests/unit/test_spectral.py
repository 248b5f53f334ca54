"""Spectra, orders of steps, colours of edges, flows without cycles; and a graph of a million ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lb_mpi
from lb_mpi.diffusion import setup as spectral
from lb_mpi.diffusion.diffusion import balance, cancel_cycles, outflow
from lb_mpi.diffusion.setup import colour_edges
from lb_mpi.graph import Graph, parse
from tests.diffusing import acyclic, cases, paper_case


@pytest.mark.parametrize("name", ["mesh:9x30", "ring:400", "hypercube:9", "complete:40", "mesh:1x200"])
def test_lanczos_agrees_with_all_eigenvalues(name, monkeypatch):
    graph, speeds, _ = paper_case(name, 0)
    tau = spectral.paper_tau(graph, speeds)
    exact = spectral.spectrum(graph, speeds, tau)
    monkeypatch.setattr(spectral, "DENSE", 1)
    found = spectral.spectrum(graph, speeds, tau)
    assert found == pytest.approx(exact, rel=5e-3)
    assert found == spectral.spectrum(graph, speeds, tau)  # the same in every run


def test_lanczos_in_a_graph_of_two_parts(monkeypatch):
    tails, heads = parse("mesh:10x20").edges()
    graph = Graph.from_edges(400, np.concatenate([tails, tails + 200]), np.concatenate([heads, heads + 200]))
    speeds = np.random.default_rng(0).uniform(4, 16, 400)
    tau = spectral.paper_tau(graph, speeds)
    exact = spectral.spectrum(graph, speeds, tau)
    monkeypatch.setattr(spectral, "DENSE", 1)
    assert spectral.spectrum(graph, speeds, tau) == pytest.approx(exact, rel=5e-3)


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
