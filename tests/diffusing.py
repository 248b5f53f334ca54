"""Graphs, speeds and loads to diffuse on, and the ranks of a graph as one object each."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from lb_mpi.diffusion import setup as spectral
from lb_mpi.diffusion.setup import OneRank, Setup, ThreeTerm, coefficients
from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.rebalancing.flow import Flow
from lb_mpi.rebalancing.flow import level as level_flows


def random_graph(seed: int, n: int, extra: int) -> nx.Graph:
    graph = nx.random_labeled_tree(n, seed=seed) if n > 1 else nx.empty_graph(1)
    rng = np.random.default_rng(seed)
    graph.add_edges_from((int(a), int(b)) for a, b in rng.integers(0, n, (extra, 2)) if a != b)
    return graph


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, Floats, Floats]:
    """A connected graph, speeds over six orders of magnitude, loads."""
    n = draw(st.integers(1, 20))
    graph = Graph.from_networkx(random_graph(draw(st.integers(0, 10**6)), n, draw(st.integers(0, 30))))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    speeds = 10 ** rng.uniform(-3, 3, n)
    times = rng.uniform(0, 10, n) * (rng.random(n) < draw(st.sampled_from([0.3, 1.0])))
    return graph, speeds, speeds * times


def paper_case(name: str, seed: int) -> tuple[Graph, Floats, Floats]:
    """Speeds uniform 4..16, drawn before times uniform 5..15."""
    graph, rng = parse(name), np.random.default_rng(seed)
    speeds = rng.uniform(4, 16, graph.n)
    return graph, speeds, speeds * rng.uniform(5, 15, graph.n)


def dense_m(graph: Graph, speeds: Floats, tau: Floats) -> Floats:
    return np.eye(graph.n) - spectral.laplacian(graph, tau).toarray() / speeds[:, None]


def eigenvalues_of_m(graph: Graph, speeds: Floats, tau: Floats) -> Floats:
    root = np.sqrt(speeds)
    return np.asarray(np.linalg.eigvalsh(root[:, None] * dense_m(graph, speeds, tau) / root), dtype=float)


def acyclic(graph: Graph, flow: Floats) -> bool:
    directed = nx.DiGraph()
    for tail, head, amount in zip(*graph.edges(), flow, strict=True):
        if amount:
            directed.add_edge(*((tail, head) if amount > 0 else (head, tail)))
    return bool(nx.is_directed_acyclic_graph(directed))


def run_ranks(graph: Graph, setup: Setup, loads: Floats, tolerance: float) -> tuple[int, Floats, Floats]:
    """Steps, (P,) times and (E,) flow of one object per rank, each of which hears only its neighbours."""
    mean = setup.mean_times(loads)
    near = [graph.neighbours(rank) for rank in range(graph.n)]
    tails, heads = graph.edges()
    ends = [OneRank(k, near[k], setup.tau[(tails == k) | (heads == k)]) for k in range(graph.n)]
    ranks = [
        ThreeTerm(edges, float(load / speed), float(speed), float(lbar), pairs_of(setup))
        for edges, load, speed, lbar in zip(ends, loads, setup.speeds, mean, strict=True)
    ]

    def exchange(name: str) -> None:
        values = np.array([getattr(one, name) for one in ranks])
        for edges, neighbours in zip(ends, near, strict=True):
            edges.received = values[neighbours]

    steps = 0
    while not all(one.time <= (1.0 + tolerance) * lbar for one, lbar in zip(ranks, mean, strict=True)):
        exchange("time")
        for one in ranks:
            one.step()
        steps += 1
    exchange("potential")
    return steps, np.array([one.time for one in ranks]), merge(graph, [one.flow() for one in ranks])


def pairs_of(setup: Setup) -> Iterator[tuple[float, float]]:
    return coefficients(setup.scheme, setup.tau_rule, setup.spectrum, setup.points)


def merge(graph: Graph, flows: list[Floats]) -> Floats:
    """(E,) of each rank's (deg,), after a look that both ends of an edge agree."""
    there = {
        (rank, int(other)): float(amount)
        for rank, flow in enumerate(flows)
        for other, amount in zip(graph.neighbours(rank), flow, strict=True)
    }
    assert all(there[j, i] == -amount for (i, j), amount in there.items())
    return np.array([there[ends] for ends in zip(*(end.tolist() for end in graph.edges()), strict=True)])


def level(quotient: Graph, loads: Floats, speeds: Floats, *, order: int = 1) -> list[Flow]:
    """The flows of a rebalancing: one object per rank, each of which receives its neighbours' numbers only.

    order : -1 for neighbours in the opposite order.
    """
    mean = float(loads.sum() / speeds.sum())
    near = [quotient.neighbours(rank).tolist()[::order] for rank in range(quotient.n)]
    each = zip(near, loads.tolist(), speeds.tolist(), strict=True)
    flows = [Flow(rank, others, load, speed, mean, size=quotient.n) for rank, (others, load, speed) in enumerate(each)]
    level_flows(flows)
    return flows
