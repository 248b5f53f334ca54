"""Diffusion: every fact of Jin & Wang on random graphs, the table of steps, one rank against the whole graph."""

import math
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi import metrics
from lb_mpi.diffusion import spectral
from lb_mpi.diffusion.diffusion import (
    SCHEMES,
    TAU_RULES,
    Balance,
    Diffusion,
    RankDiffusion,
    balance,
    prepare,
)
from lb_mpi.diffusion.flow import at_ends, cancel_cycles, outflow
from lb_mpi.diffusion.schemes import colour_edges
from lb_mpi.graph import Floats, Graph, parse

STEPPING = [scheme for scheme in SCHEMES if scheme != "direct"]


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


# --- facts about M ---


@given(cases())
def test_m_of_the_papers_tau(case: tuple[Graph, Floats, Floats]) -> None:
    graph, speeds, _ = case
    tau = spectral.paper_tau(graph, speeds)
    assert np.all(outflow(graph, tau) <= speeds)  # at least
    m = dense_m(graph, speeds, tau)
    assert np.allclose(m.sum(axis=1), 1.0, atol=1e-13)
    assert (m >= 0).all()
    assert (np.diag(m) > 0).all()
    assert np.allclose(speeds @ m, speeds, rtol=1e-12)  # work is conserved, whatever the times
    values = eigenvalues_of_m(graph, speeds, tau)
    assert np.isrealobj(values)
    assert values[0] > -1 + 1e-12
    assert abs(values[-1] - 1) < 1e-10
    if graph.n > 1:
        assert values[-2] < 1 - 1e-15  # 1 is simple: the graph is connected
        assert spectral.spectrum(graph, speeds, tau).low > 0


@given(cases())
def test_eigenvalue_minus_one_needs_a_zero_diagonal_and_a_bipartite_graph(case: tuple[Graph, Floats, Floats]) -> None:
    graph, *_ = case
    if graph.n == 1:
        return
    tau = np.random.default_rng(graph.n_edges).uniform(0.5, 2, graph.n_edges)
    tails, heads = graph.edges()
    rows = np.asarray(np.bincount(tails, tau, graph.n) + np.bincount(heads, tau, graph.n), dtype=float)
    values = eigenvalues_of_m(graph, rows, tau)  # sum_j tau_ij = s_i: the diagonal is zero
    assert values[0] > -1 - 1e-12
    assert values[-1] < 1 + 1e-12
    bipartite = nx.is_bipartite(nx.Graph(list(zip(tails.tolist(), heads.tolist(), strict=True))))
    assert (abs(values[0] + 1) < 1e-10) == bipartite
    slack = rows.copy()
    slack[0] *= 2  # one entry of the diagonal isn't zero any more
    assert eigenvalues_of_m(graph, slack, tau)[0] > -1 + 1e-12


@given(cases())
def test_one_step_is_eq_6_and_the_flow_adds_up_the_times(case: tuple[Graph, Floats, Floats]) -> None:
    graph, speeds, loads = case
    setup = prepare(graph, speeds, "fos")
    diffusion = Diffusion(setup, loads)
    m, times, total = dense_m(graph, speeds, setup.tau), loads / speeds, np.zeros(graph.n)
    tails, heads = graph.edges()
    for _ in range(20):
        total += times  # d_i, k = 0..K-1
        times = m @ times
        diffusion.step()
        assert np.allclose(diffusion.times, times, rtol=1e-12, atol=1e-12)
        assert np.allclose(
            diffusion.flow(), setup.tau * (total[tails] - total[heads]), rtol=1e-9, atol=1e-9 * loads.max()
        )


@given(cases())
def test_the_papers_fos_only_levels(case: tuple[Graph, Floats, Floats]) -> None:
    graph, speeds, loads = case
    diffusion = Diffusion(prepare(graph, speeds), loads)
    for _ in range(30):
        before = diffusion.times
        diffusion.step()
        assert diffusion.times.min() >= 0
        assert diffusion.times.max() <= before.max() * (1 + 1e-14)
        assert diffusion.times.min() >= before.min() * (1 - 1e-14)


# --- facts about all schemes ---


@settings(max_examples=40)
@given(cases(), st.sampled_from(STEPPING), st.sampled_from(TAU_RULES))
def test_work_is_conserved_and_flow_has_no_cycle(case: tuple[Graph, Floats, Floats], scheme: str, tau: str) -> None:
    graph, speeds, loads = case
    diffusion = Diffusion(prepare(graph, speeds, scheme, tau), loads)
    size = float(loads.sum())
    for _ in range(25):
        diffusion.step()
        size = max(size, float(np.abs(speeds * diffusion.times).sum()))  # some schemes swing far while on paper
        assert abs(float(speeds @ diffusion.times) - loads.sum()) <= 1e-12 * size
        flow = diffusion.flow()
        assert acyclic(graph, flow)
        moved = loads - outflow(graph, flow)
        assert abs(moved.sum() - loads.sum()) <= 1e-12 * max(np.abs(flow).sum(), size)
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
def test_balances_over_six_orders_of_magnitude(case: tuple[Graph, Floats, Floats], how: tuple[str, str]) -> None:
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_schemes_move_nearly_the_least(scheme: str) -> None:
    graph, speeds, loads = paper_case("mesh:5x5", 3)
    for tau in ("paper", "uniform"):
        least = np.linalg.norm(balance(graph, loads, speeds, scheme="direct", tau=tau).flow)
        volume = np.linalg.norm(balance(graph, loads, speeds, scheme=scheme, tau=tau, tolerance=1e-8).flow)
        slack = 0.3 if scheme == "dimension_exchange" else 1e-6
        assert abs(volume - least) <= slack * least
    optimum = np.linalg.norm(balance(graph, loads, speeds, scheme="direct").flow)
    assert optimum <= least * (1 + 1e-12)


@given(cases())
def test_direct_is_the_least_flow_of_all(case: tuple[Graph, Floats, Floats]) -> None:
    graph, speeds, loads = case
    flow = balance(graph, loads, speeds, scheme="direct", tolerance=1e-6).flow
    incidence = np.zeros((graph.n, graph.n_edges))
    tails, heads = graph.edges()
    incidence[tails, np.arange(graph.n_edges)] = 1
    incidence[heads, np.arange(graph.n_edges)] = -1
    excess = loads - speeds * loads.sum() / speeds.sum()
    least = np.linalg.lstsq(incidence, excess)[0] if graph.n_edges else np.zeros(0)
    assert np.allclose(flow, least, rtol=1e-8, atol=1e-10 * loads.sum())


@pytest.mark.parametrize("name", ["mesh:5x5", "mesh:16x16", "ring:64", "hypercube:6", "complete:9"])
def test_direct_reaches_rounding_in_one_step(name: str) -> None:
    graph, speeds, loads = paper_case(name, 0)
    result = balance(graph, loads, speeds, scheme="direct", tolerance=1e-12)
    assert result.steps == 1
    assert metrics.imbalance(result.loads, speeds) <= 1e-12


# --- the table (speeds uniform 4..16, times uniform 5..15, medians of 20 seeds) ---

TOLERANCES = (0.05, 0.01, 1e-6)
TABLE = {
    ("fos", "paper"): {"mesh:5x5": (14, 38, 194), "mesh:8x8": (23, 80, 476)},
    ("fos", "scaled"): {"mesh:5x5": (10, 28, 130), "mesh:8x8": (22, 70, 344)},
    ("fos", "uniform"): {"mesh:5x5": (17, 38, 175), "mesh:8x8": (37, 104, 468)},
    ("sos", "paper"): {"mesh:5x5": (6, 11, 34), "mesh:8x8": (10, 17, 56)},
    ("chebyshev", "paper"): {"mesh:5x5": (7, 11, 32), "mesh:8x8": (12, 18, 54)},
    ("cg", "uniform"): {"mesh:5x5": (6, 9, 13), "mesh:8x8": (11, 15, 26)},
}


@cache
def medians(name: str, scheme: str, tau: str, seeds: int = 20) -> tuple[float, ...]:
    steps = []
    for seed in range(seeds):
        graph, speeds, loads = paper_case(name, seed)
        imbalance = np.array(balance(graph, loads, speeds, scheme=scheme, tau=tau, tolerance=TOLERANCES[-1]).imbalance)
        steps.append([int((imbalance <= tolerance).argmax()) for tolerance in TOLERANCES])
    return tuple(np.median(steps, axis=0).tolist())


@pytest.mark.parametrize("name", ["mesh:5x5", "mesh:8x8"])
@pytest.mark.parametrize("scheme", TABLE, ids="-".join)
def test_steps_to_convergence(name: str, scheme: tuple[str, str]) -> None:
    assert medians(name, *scheme) == pytest.approx(TABLE[scheme][name], rel=0.1)


@pytest.mark.parametrize("name", ["mesh:5x5", "mesh:8x8", "mesh:16x16"])
def test_cg_and_chebyshev_beat_fos(name: str) -> None:
    fos, chebyshev, cg = (
        medians(name, *how)[-1] for how in (("fos", "paper"), ("chebyshev", "paper"), ("cg", "uniform"))
    )
    assert chebyshev <= fos / 5.4
    assert cg <= fos / 13


def test_a_thousand_ranks() -> None:
    steps = {
        scheme: medians("mesh:32x32", scheme, "uniform" if scheme == "cg" else "paper", 2) for scheme in STEPPING[1:5]
    }
    for scheme, (to_5, to_1, to_6) in steps.items():
        assert to_5 < 80, scheme
        assert to_5 < to_1 < to_6 < 250, scheme


# --- one rank against the whole graph ---


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
        local = setup.local(rank)
        assert np.array_equal(local.neighbours, graph.neighbours(rank))
        one = RankDiffusion(local, loads[rank], mean[rank], lambda parts: together.gather(rank, parts).sum(axis=0))
        steps, value = 0, one.value
        while not together.gather(rank, np.array(one.imbalance)).max() <= tolerance:
            value = one.step(together.gather(rank, np.array(value))[local.neighbours])
            steps += 1
        return steps, one.time, one.flow(together.gather(rank, np.array(one.potential))[local.neighbours])

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


@pytest.mark.parametrize("name", ["mesh:3x4", "complete:11", "ring:5", "hypercube:4"])
@pytest.mark.parametrize("scheme", STEPPING)
def test_one_rank_is_the_whole_graph(name: str, scheme: str) -> None:
    graph, speeds, loads = paper_case(name, 1)
    whole = Diffusion(prepare(graph, speeds, scheme), loads)
    while not whole.converged(1e-6):
        whole.step()
    steps, times, flow = run_ranks(graph, speeds, loads, scheme, None, 1e-6)
    assert steps == whole.steps
    if scheme == "cg":  # its sums over all ranks are made in another order
        assert np.allclose(times, whole.times, rtol=1e-12)
        assert np.allclose(flow, whole.flow(), rtol=1e-9, atol=1e-9 * loads.max())
    else:
        assert np.array_equal(times, whole.times)
        assert np.array_equal(cancel_cycles(graph, flow), whole.flow())


# --- graphs that aren't connected, and small ones ---


@pytest.mark.parametrize("scheme", SCHEMES)
def test_disconnected(scheme: str) -> None:
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
    if scheme == "direct":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = run_ranks(graph, speeds, loads, scheme, None, 1e-9)[2]
    assert np.allclose(flow, result.flow, atol=1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["mesh:1x1", "mesh:1x2", "mesh:2x2", "ring:3", "complete:5", "torus:4x4"])
def test_small_graphs_equal_speeds_no_work(scheme: str, name: str) -> None:
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


def test_bad_input() -> None:
    graph, speeds, loads = paper_case("mesh:2x2", 0)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"speeds\[2\]"):
            balance(graph, loads, [1, 1, bad, 1])
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"loads\[3\]"):
            balance(graph, [1, 1, 1, bad], speeds)
        with pytest.raises(ValueError, match="tolerance"):
            balance(graph, loads, speeds, tolerance=bad)
    with pytest.raises(ValueError, match="speeds of shape"):
        balance(graph, loads, speeds[1:])
    with pytest.raises(ValueError, match="loads of shape"):
        balance(graph, loads[1:], speeds)
    with pytest.raises(ValueError, match="scheme = 'fast': expected one of fos"):
        balance(graph, loads, speeds, scheme="fast")
    with pytest.raises(ValueError, match="tau = 'best': expected one of paper"):
        balance(graph, loads, speeds, tau="best")
    with pytest.raises(ValueError, match="max_steps"):
        balance(graph, loads, speeds, max_steps=-1)
    with pytest.raises(ValueError, match="expected one that has steps"):
        RankDiffusion(prepare(graph, speeds, "direct").local(0), 1.0, 1.0)
    with pytest.raises(ValueError, match="total"):
        RankDiffusion(prepare(graph, speeds, "cg").local(0), 1.0, 1.0)
    with pytest.raises(TypeError, match="graph of type int"):
        balance(5, loads, speeds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 8000"):
        prepare(parse("mesh:100x100"), np.ones(10_000), "ops")


def test_max_steps_is_said() -> None:
    graph, speeds, loads = paper_case("mesh:5x5", 0)
    result = balance(graph, loads, speeds, tolerance=1e-6, max_steps=10)
    assert isinstance(result, Balance)
    assert (result.steps, result.converged, len(result.imbalance)) == (10, False, 11)


# --- spectra, orders, colours, cycles ---


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


@pytest.mark.parametrize("name", ["mesh:12x12", "ring:64", "complete:20"])
def test_leja_order_stays_small(name: str) -> None:
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
def test_colours(case: tuple[Graph, Floats, Floats]) -> None:
    graph = case[0]
    colours = colour_edges(graph)
    tails, heads = graph.edges()
    for vertex in range(graph.n):
        mine = colours[(tails == vertex) | (heads == vertex)]
        assert len(set(mine.tolist())) == len(mine)
    if graph.n_edges:
        assert colours.max() + 1 <= 2 * graph.degrees.max() - 1


@pytest.mark.parametrize(("name", "count"), [("mesh:7x9", 4), ("torus:8x6", 4), ("hypercube:5", 5), ("complete:8", 7)])
def test_colours_of_named_graphs_are_as_few_as_can_be(name: str, count: int) -> None:
    assert colour_edges(parse(name)).max() + 1 == count


@given(cases())
def test_a_flow_as_each_vertex_sees_it(case: tuple[Graph, Floats, Floats]) -> None:
    graph, flow = case[0], np.arange(1.0, case[0].n_edges + 1)
    seen = np.split(at_ends(graph, flow), graph.indptr[1:-1])
    for tail, head, amount in zip(*(ends.tolist() for ends in graph.edges()), flow, strict=True):
        assert seen[tail][graph.neighbours(tail) == head] == amount
        assert seen[head][graph.neighbours(head) == tail] == -amount


@given(cases(), st.integers(0, 10**6))
def test_cancel_cycles(case: tuple[Graph, Floats, Floats], seed: int) -> None:
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


# --- a million ranks ---


def test_a_million_ranks_step_fast() -> None:
    graph, speeds, loads = paper_case("mesh:1000x1000", 0)
    begin = time.process_time()
    result = balance(graph, loads, speeds, tolerance=0.2)
    assert time.process_time() - begin < 60
    assert result.converged
    assert abs(result.loads.sum() / loads.sum() - 1) <= 1e-12
    assert result.loads.min() >= 0
