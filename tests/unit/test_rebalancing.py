"""`rebalance` of a whole graph: bounds, little moved, a light cut, degenerate cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.distributing.halo import Pieces, part_of
from lb_mpi.graph import Graph, mesh
from lb_mpi.metrics import imbalance
from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import partition_metrics
from lb_mpi.rebalancing.jobs import Build, run
from lb_mpi.rebalancing.moving import Owners
from lb_mpi.rebalancing.rebalance import quotient_graph, rebalance
from tests.diffusing import random_graph


def imbalance_of(parts: np.ndarray, costs: np.ndarray, speeds: np.ndarray) -> float:
    return imbalance(np.bincount(parts, costs, minlength=len(speeds)), speeds)


def test_one_slow_rank_gives_its_work_away_and_the_cut_stays_light() -> None:
    graph, speeds = mesh(40, 40), np.ones(8)
    before = partition(graph, 8)
    speeds[3] = 1 / 3
    parts = rebalance(graph, before, speeds)
    assert imbalance_of(parts, np.ones(1600), speeds) <= 0.03 + 1e-9
    fresh = partition(graph, 8, targets=speeds)
    assert partition_metrics(graph, parts, 8).cut <= 1.2 * partition_metrics(graph, fresh, 8).cut
    surplus = (before == 3).sum() - 1600 * speeds[3] / speeds.sum()
    assert (parts != before).sum() <= 2 * surplus
    assert (parts == rebalance(graph, before, speeds)).all()


def test_nothing_moves_where_all_is_balanced() -> None:
    stripes = np.arange(400) // 100
    assert (rebalance(mesh(20, 20), stripes, np.ones(4)) == stripes).all()


def test_costs_that_have_changed_and_stray_vertices() -> None:
    graph, costs = mesh(30, 30), np.ones(900)
    before = np.arange(900) // 225
    costs[:100] = 4.0
    before[[450, 700]] = 0  # amid others
    parts = rebalance(graph, before, np.ones(4), costs=costs)
    assert imbalance_of(parts, costs, np.ones(4)) <= 0.03 + 1e-9
    assert partition_metrics(graph, parts, 4).connected.all()


def test_ranks_without_vertices_get_some() -> None:
    parts = rebalance(mesh(12, 12), np.zeros(144, dtype=np.int64), np.ones(3))
    assert np.bincount(parts).tolist() == pytest.approx([48, 48, 48], abs=2)


def test_a_graph_in_pieces_is_levelled_across_them() -> None:
    tails, heads = mesh(10, 10).edges()
    graph = Graph.from_edges(200, np.concatenate([tails, tails + 100]), np.concatenate([heads, heads + 100]))
    speeds = np.array([1.0, 1.0, 3.0, 3.0])
    parts = rebalance(graph, np.arange(200) // 50, speeds)
    assert imbalance_of(parts, np.ones(200), speeds) <= 0.05
    quotient = quotient_graph(graph, np.arange(200) // 50, 4)
    assert quotient.components()[0] == 2


def test_a_rank_whose_ghosts_alone_change_their_owner_gets_a_new_part_for_the_same_values():
    part = part_of(Pieces(mesh(1, 3), np.arange(3), 3)[1], 1)
    built = run(Build(1, part, np.ones(1), Owners(np.array([1]), np.array([2, 2])), {}))
    assert built.part.ranks.tolist() == [2]
    assert built.places is None


def test_graphs_without_edges_or_work_keep_their_parts() -> None:
    for graph, costs in ((Graph.from_edges(3, [], []), np.ones(3)), (mesh(1, 3), np.zeros(3))):
        assert rebalance(graph, [0, 0, 1], [1.0, 2.0], costs=costs).tolist() == [0, 0, 1]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 8))
def test_any_graph_keeps_its_work_and_gets_no_worse(seed: int, n: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph.from_networkx(random_graph(seed, n, n))
    before, speeds, costs = rng.integers(0, size, n), rng.uniform(0.2, 1.0, size), rng.uniform(0.5, 2.0, n)
    parts = rebalance(graph, before, speeds, costs=costs)
    assert parts.shape == (n,)
    assert ((parts >= 0) & (parts < size)).all()
    largest = costs.max() / speeds.min() / (costs.sum() / speeds.sum())  # one vertex on the slowest rank
    assert imbalance_of(parts, costs, speeds) <= max(imbalance_of(before, costs, speeds), 0.03 + 2 * largest)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([0, 5], [1.0, 1.0]), {}, r"parts\[1\] = 5: expected 0..1"),
        (([0, 1], [1.0, 0.0]), {}, r"speeds\[1\] = 0.0: expected a finite number > 0"),
        (([0, 1], [1.0, 1.0]), {"costs": [1.0]}, r"costs of shape \(1,\) = \[1.0\]: expected 2 numbers"),
        (([0, 1], [1.0, 1.0]), {"tolerance": 0}, "tolerance = 0: expected a finite number above 0"),
    ],
)
def test_invalid_arguments_are_named(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rebalance(mesh(1, 2), *arguments, **options)
