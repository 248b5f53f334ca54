"""Graphs, speeds and loads to diffuse on, and all ranks of a graph as one object each."""

import threading
from concurrent.futures import ThreadPoolExecutor

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from lb_mpi.diffusion import setup as spectral
from lb_mpi.diffusion.diffusion import excess, on_rank
from lb_mpi.diffusion.setup import prepare
from lb_mpi.graph import Floats, Graph, parse


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


class Together:
    """Ranks as threads: everybody's values for everybody, rank by rank."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Floats] = [np.zeros(0)] * size

    def gather(self, rank: int, value: Floats) -> Floats:
        self.slots[rank] = value
        self.barrier.wait()
        everything = np.array(self.slots)
        self.barrier.wait()
        return everything


def run_ranks(
    graph: Graph, speeds: Floats, loads: Floats, scheme: str, tau: str | None, tolerance: float
) -> tuple[int, Floats, Floats]:
    """Steps, (P,) times and (E,) flow of one object per rank, each of which hears only its neighbours."""
    setup = prepare(graph, speeds, scheme, tau)
    mean = setup.mean_times(loads)
    together = Together(graph.n)

    def run(rank: int) -> tuple[int, float, Floats]:
        neighbours = graph.neighbours(rank)
        one, ends = on_rank(setup, rank, loads[rank], mean[rank], lambda parts: together.gather(rank, parts).sum(axis=0))
        steps = 0
        while not together.gather(rank, np.array(excess(one.time, mean[rank]))).max() <= tolerance:
            ends.heard = together.gather(rank, np.array(one.value))[neighbours]
            one.step()
            steps += 1
        ends.heard = together.gather(rank, np.array(one.potential))[neighbours]
        return steps, one.time, one.flow()

    with ThreadPoolExecutor(graph.n) as pool:
        results = list(pool.map(run, range(graph.n)))
    assert len({steps for steps, *_ in results}) == 1
    return results[0][0], np.array([time for _, time, _ in results]), merge(graph, [flow for *_, flow in results])


def merge(graph: Graph, flows: list[Floats]) -> Floats:
    """(E,) of each rank's (deg,), after a look that both ends of an edge agree."""
    there = {
        (rank, int(other)): float(amount)
        for rank, flow in enumerate(flows)
        for other, amount in zip(graph.neighbours(rank), flow, strict=True)
    }
    assert all(there[j, i] == -amount for (i, j), amount in there.items())
    return np.array([there[ends] for ends in zip(*(end.tolist() for end in graph.edges()), strict=True)])
