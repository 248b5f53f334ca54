"""Which scheme "auto" is, and what many ranks cost the simulator of rows."""


import numpy as np
import pytest

from lb_mpi.diffusion.diffusion import balance
from lb_mpi.diffusion.setup import prepare, rows_scheme, usual_scheme
from lb_mpi.graph import Graph, parse


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
