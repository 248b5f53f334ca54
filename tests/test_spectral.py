"""Spectra, flows at the ends of edges; and a graph of a million ranks."""

import numpy as np
import pytest
from hypothesis import given

from lb_mpi.diffusion import setup as spectral
from lb_mpi.diffusion.diffusion import (
    at_ends,
    balance,
)
from lb_mpi.graph import Floats, Graph, parse
from tests.diffusing import cases, paper_case


@pytest.mark.parametrize("name", ["mesh:9x30", "ring:400", "hypercube:9", "complete:40", "mesh:1x200"])
def test_lanczos_agrees_with_all_eigenvalues(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, speeds, _ = paper_case(name, 0)
    tau = spectral.paper_tau(graph, speeds)
    exact = spectral.spectrum(graph, speeds, tau)
    monkeypatch.setattr(spectral, "DENSE", 1)
    found = spectral.spectrum(graph, speeds, tau)
    assert found == pytest.approx(exact, rel=5e-3)
    assert found == spectral.spectrum(graph, speeds, tau)  # the same in every run


def test_lanczos_in_a_graph_of_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tails, heads = parse("mesh:10x20").edges()
    graph = Graph.from_edges(400, np.concatenate([tails, tails + 200]), np.concatenate([heads, heads + 200]))
    speeds = np.random.default_rng(0).uniform(4, 16, 400)
    tau = spectral.paper_tau(graph, speeds)
    exact = spectral.spectrum(graph, speeds, tau)
    monkeypatch.setattr(spectral, "DENSE", 1)
    assert spectral.spectrum(graph, speeds, tau) == pytest.approx(exact, rel=5e-3)


@given(cases())
def test_a_flow_as_each_vertex_sees_it(case: tuple[Graph, Floats, Floats]) -> None:
    graph, flow = case[0], np.arange(1.0, case[0].n_edges + 1)
    seen = np.split(at_ends(graph, flow), graph.indptr[1:-1])
    for tail, head, amount in zip(*(ends.tolist() for ends in graph.edges()), flow, strict=True):
        assert seen[tail][graph.neighbours(tail) == head] == amount
        assert seen[head][graph.neighbours(head) == tail] == -amount


def test_a_million_ranks() -> None:
    graph, speeds, loads = paper_case("mesh:1000x1000", 0)
    result = balance(graph, loads, speeds, tolerance=0.2)
    assert result.converged
    assert abs(result.loads.sum() / loads.sum() - 1) <= 1e-12
    assert result.loads.min() >= 0
