"""The aim beside the cut: the least time on a machine, against the definition and brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.graph import mesh
from lb_mpi.machine import Machine
from lb_mpi.partitioning.coarsen import csr
from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import mapping_cost, partition_metrics
from lb_mpi.partitioning.refine import find_connections, find_parts, move
from lb_mpi.partitioning.shorten import (
    MachineCosts,
    Scale,
    change_by_move,
    find_times,
    refine_time,
    seconds_of,
    shorten,
)
from tests.unit.test_partitioning_core import graphs


def machine(k: int, seed: int) -> Machine:
    """Unequal ranks, the links of some slow, and not the same both ways."""
    rng = np.random.default_rng(seed)
    off = 1.0 - np.eye(k)
    latency_s, s_per_byte = (off * rng.choice([0.0, 0.1, 3.0], (k, k)) for _ in range(2))
    return Machine(tuple(f"h{j // 2}" for j in range(k)), rng.uniform(0.5, 4.0, k), latency_s, s_per_byte)


def costs_of(some: Machine) -> MachineCosts:
    return MachineCosts(1.0 / some.speeds, some.latency_s.copy(), some.s_per_byte.copy())


def three_hosts() -> Machine:
    """Two on a fast network, the slow third one behind a slow link; a vertex takes the fastest 1 us."""
    s_per_edge = np.array([[0.0, 6.4e-8, 6.4e-6], [6.4e-8, 0.0, 6.4e-6], [6.4e-6, 6.4e-6, 0.0]])
    latency_s = np.array([[0.0, 5e-5, 2e-4], [5e-5, 0.0, 2e-4], [2e-4, 2e-4, 0.0]])
    return Machine(("a", "b", "c"), np.array([4.0, 2.0, 1.0]), latency_s, s_per_edge)


@settings(max_examples=30, deadline=None)
@given(graphs(30), st.integers(2, 5), st.integers(0, 1000))
def test_a_move_changes_the_seconds_as_the_definition_says(graph, k, seed):
    rng, some = np.random.default_rng(seed), machine(k, seed)
    fine, part, costs = csr(graph), rng.integers(0, k, graph.n), costs_of(some)
    parts, others = find_parts(fine, part, np.zeros(k)), find_connections(fine, part, k)
    times = find_times(fine, parts, costs)
    longest = max(float(times.seconds.max()), 1e-9)

    def definition() -> np.ndarray:
        cost = mapping_cost(graph, part, some)
        return cost.computing_s + cost.communication_s

    for _ in range(10):
        np.testing.assert_allclose(times.seconds, definition(), rtol=1e-9, atol=1e-9)
        v = int(rng.integers(graph.n))
        near = others.part[graph.indptr[v] : graph.indptr[v] + others.n_others[v]]
        if len(near):
            to, before = int(rng.choice(near)), ((times.seconds / longest) ** 16).sum()
            scale = Scale(longest, 4)
            expected = change_by_move(fine, parts, others, costs, times, v, to, scale, False)
            assert not times.change.any()
            assert change_by_move(fine, parts, others, costs, times, v, to, scale, True) == expected
            move(fine, parts, others, v, to)
            after = ((definition() / longest) ** 16).sum()
            assert after - before == pytest.approx(expected, rel=1e-6, abs=1e-9 * max(before, after))


@pytest.mark.filterwarnings("ignore:.*parts are empty")
@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(1, 5), st.integers(0, 100), st.sampled_from([None, 0.5]))
def test_never_slower_than_by_cut_or_all_on_the_fastest(graph, k, seed, unit_s):
    some = machine(k, seed)
    by_cut = partition(graph, k, effort="fast", seed=seed, machine=some)
    parts = partition(graph, k, effort="fast", seed=seed, machine=some, unit_s=unit_s, aim="time")
    assert set(parts) <= set(range(k))
    seconds = mapping_cost(graph, parts, some, unit_s=unit_s).objective_s
    assert seconds <= mapping_cost(graph, by_cut, some, unit_s=unit_s).objective_s
    fastest = np.full(graph.n, some.speeds.argmax())
    assert seconds <= mapping_cost(graph, fastest, some, unit_s=unit_s).objective_s
    assert (parts == shorten(graph, by_cut, some, unit_s=unit_s, effort="fast", seed=seed)).all()


def test_near_the_best_of_all_distributions():
    graph = mesh(2, 4)
    fine, everything = csr(graph), np.array(list(product(range(3), repeat=8)))
    for seed in range(6):
        some = machine(3, seed)
        best = min(seconds_of(fine, parts, costs_of(some)).max() for parts in everything)
        found = mapping_cost(graph, partition(graph, 3, machine=some, aim="time"), some).objective_s
        assert best <= found * (1 + 1e-12)
        assert found <= 1.1 * best, f"seed = {seed}"


def test_slow_links_are_made_up_for():
    graph, some = mesh(40, 50), three_hosts()
    by_cut, by_time = (
        partition_metrics(graph, partition(graph, 3, machine=some, unit_s=1e-6, aim=aim), 3, machine=some, unit_s=1e-6)
        for aim in ("cut", "time")
    )
    assert by_time.cost.objective_s < 0.9 * by_cut.cost.objective_s
    assert by_time.weights[2] < by_cut.weights[2]  # behind the slow link


def test_free_links_leave_the_work_shared_by_speed():
    none = np.zeros((4, 4))
    some = Machine(("a",) * 4, np.array([4.0, 2.0, 1.0, 1.0]), none, none)
    part = partition("mesh:30x30", 4, machine=some, aim="time")
    assert partition_metrics("mesh:30x30", part, 4, machine=some).imbalance < 0.005


def test_a_sweep_makes_nothing_slower():
    graph, some = mesh(20, 20), three_hosts()
    part = (np.arange(400) // 134).astype(np.int64)
    before = seconds_of(csr(graph), part, costs_of(some)).max()
    refine_time(csr(graph), part, costs_of(some), 20, np.ones(1, np.uint64))
    assert seconds_of(csr(graph), part, costs_of(some)).max() <= before
