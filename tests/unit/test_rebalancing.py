"""`rebalance` of a whole graph, contiguous ranges by shares, and the choice of the vertices that move between two parts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.distributing.halo import Pieces, part_of
from lb_mpi.graph import Floats, Graph, Ints, mesh
from lb_mpi.metrics import imbalance
from lb_mpi.partitioning.coarsen import contract, csr
from lb_mpi.partitioning.compiled import random_state
from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import partition_metrics
from lb_mpi.rebalancing.choose import (
    Pair,
    Shard,
    home_of,
    join,
    settle,
    shard_of,
    stray,
    two_way,
    zone,
)
from lb_mpi.rebalancing.jobs import Build, run
from lb_mpi.rebalancing.moving import Owners, still_touching
from lb_mpi.rebalancing.rebalance import quotient_graph, rebalance
from lb_mpi.rebalancing.slabs import best_ends, move_cuts, range_after, slab_owners, slabs
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
    assert built.positions is None


def test_ranks_touch_each_other_after_a_move_if_an_edge_between_them_is_left() -> None:
    part = part_of(Pieces(mesh(1, 3), np.arange(3), 3)[1], 1)
    for own, ghosts, touching in (([1], [0, 2], {0, 2}), ([0], [1, 2], {0}), ([2], [0, 2], set())):
        assert still_touching(part, Owners(np.array(own), np.array(ghosts)), 1) == touching


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


numbers = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=60), numbers)
def test_ranges_cover_all_vertices_and_fit_their_shares_up_to_a_vertex(costs: list[float], shares: list[float]) -> None:
    ends, work = slabs(len(costs), costs, shares), np.array(costs) if any(costs) else np.ones(len(costs))
    assert ends[-1] == len(costs)
    assert (np.diff(ends, prepend=0) >= 0).all()
    loads = np.diff(np.concatenate([[0], np.cumsum(work)])[ends], prepend=0)
    wanted = np.array(shares) / sum(shares) * work.sum()
    assert (np.abs(loads - wanted) <= work.max() * (1 + 1e-9)).all()


def test_equal_costs_by_speeds() -> None:
    assert slabs(20, np.ones(20), [1, 2, 1]).tolist() == [5, 15, 20]
    assert slabs(3, np.zeros(3), [1, 1, 1]).tolist() == [1, 2, 3]
    assert slabs(2, np.ones(2), [1, 1, 1, 1]).tolist() == [0, 1, 1, 2]


def slowest(costs, ends, speeds):
    return max(part.sum() / speed for part, speed in zip(np.split(costs, ends[:-1]), speeds, strict=True))


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.4])
def test_ends_of_slabs_are_the_best_that_one_move_can_reach_or_good_enough(tolerance):
    rng = np.random.default_rng(7)
    for _ in range(40):
        counts, speeds = rng.integers(0, 5, 4), rng.uniform(0.2, 1.0, 4)
        counts[0] += 1
        old, least = np.cumsum(counts), counts > 0
        costs = rng.integers(0, 4, old[-1]) * 0.1
        found = best_ends(costs, counts, speeds, tolerance)
        assert np.array_equal(best_ends(1e300 * costs, counts, 1e-300 * speeds, tolerance), found)
        near = itertools.product(*(range(end - n, later + 1) for end, n, later in zip(old, counts, old[1:], strict=False)))
        reached = [np.array([*ends, old[-1]]) for ends in near]
        reached = [ends for ends in reached if np.all(np.diff(ends, prepend=0) >= least)]
        best = min(slowest(costs, ends, speeds) for ends in reached)
        good = max(best, (1.0 + tolerance) * costs.sum() / speeds.sum()) * (1.0 + 1e-9)
        assert any(np.array_equal(found, ends) for ends in reached)
        assert slowest(costs, found, speeds) <= good
        if slowest(costs, old, speeds) <= good:
            assert np.array_equal(found, old)  # nothing moves


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.1, 10.0)), min_size=1, max_size=12), st.floats(0.0, 0.5))
def test_shifted_ranges_are_within_their_bounds(ranks: list[tuple[float, float]], tolerance: float) -> None:
    loads, shares = np.array(ranks).T
    cuts = move_cuts(loads, shares, tolerance)
    new = np.diff(np.concatenate([[0.0], cuts, [loads.sum()]]))
    assert (new >= -1e-9 * loads.sum()).all()
    assert (new <= (1 + tolerance) * shares / shares.sum() * loads.sum() * (1 + 1e-9) + 1e-12).all()


def test_cuts_that_need_not_move_stay() -> None:
    loads = np.array([10.2, 9.9, 9.9, 10.0])
    assert move_cuts(loads, np.ones(4), 0.03) == pytest.approx([10.2, 20.1, 30.0])
    assert move_cuts([10, 10, 10, 10], [1, 1, 1, 0.5], 0.05) == pytest.approx(
        [10.0, 22.0, 34.0]
    )  # rank 0 keeps its range


def test_ranks_find_owners_of_their_own_vertices() -> None:
    costs = np.random.default_rng(0).uniform(0.5, 2.0, 50)
    cuts = move_cuts([10.0, 30.0, costs.sum() - 40.0], [1, 1, 1], 0.02)
    whole = slab_owners(0.0, costs, cuts)
    pieces = [slab_owners(float(costs[:k].sum()), costs[k : k + 10], cuts) for k in range(0, 50, 10)]
    assert (np.concatenate(pieces) == whole).all()
    assert (np.diff(whole) >= 0).all()


@pytest.mark.parametrize(
    ("begin", "n", "away", "expected"),
    [(3, 5, {}, (3, 8)), (3, 0, {}, (3, 3)), (3, 0, {0: 4}, (7, 7)), (3, 0, {2: 4}, (3, 3)), (3, 0, {0: 1, 2: 3}, (4, 4))],
)
def test_a_rank_that_has_given_all_its_vertices_away_has_an_empty_range_between_its_neighbours(
    begin: int, n: int, away: dict[int, int], expected: tuple[int, int]
) -> None:
    """An undone move may leave a rank without vertices, as it was before."""
    assert range_after(begin, np.arange(begin, begin + n), away, 1) == expected


ALL = 10**6


def shards_of(graph: Graph, homes: Ints, size: int) -> list[Shard]:
    pieces = Pieces(graph, homes, size)
    parts = [part_of(pieces[rank], rank) for rank in range(size)]
    return [shard_of(part, part.vertex_weights) for part in parts]


def cut(graph: Graph, labels: Ints) -> float:
    tails, heads = graph.edges()
    return float(graph.edge_weights()[labels[tails] != labels[heads]].sum())


def cut_of_pair(pair: Pair, side: Ints) -> float:
    tails = np.repeat(np.arange(len(side)), np.diff(pair.indptr))
    return float(pair.weights[side[tails] != side[pair.indices]].sum() / 2)


def random_case(seed: int, size: int) -> tuple[Graph, Ints, Ints]:
    """A weighted mesh, homes in a few pieces, and labels: most vertices keep their home, some go to another rank."""
    rng = np.random.default_rng(seed)
    bare = mesh(9, 8)
    tails, heads = bare.edges()
    graph = Graph.from_edges(72, tails, heads, rng.integers(1, 5, len(tails)), rng.uniform(0.5, 2.0, 72))
    homes = (np.arange(72) // 8 * size // 9 + (rng.random(72) < 0.1)) % size
    labels = np.where(rng.random(72) < 0.2, rng.integers(0, size, 72), homes)
    return graph, homes, labels


def zones_of(
    shards: list[Shard], labels: Ints, pair: tuple[int, int], layers: int, stay: float = 0.0
) -> tuple[Ints, Pair]:
    low, high = (
        zone(home_of(shards[rank], labels[shards[rank].numbers], rank, sum(pair) - rank), layers, 0.0)[1] for rank in pair
    )
    found, plain = join(low, high, stay), getattr(join, "py_func", join)(low, high, stay)  # as NUMBA_DISABLE_JIT=1 runs it
    assert all(map(np.array_equal, found, plain))
    return np.concatenate([low.numbers, high.numbers]), found


def test_a_zone_with_old_labels_of_the_other_home_is_settled_there() -> None:
    graph, homes, labels = random_case(3, 3)
    shards = shards_of(graph, homes, 3)
    old = np.where(homes == 0, 0, labels)  # rank 1 does not know what rank 0 gives away
    theirs = zone(home_of(shards[1], old[shards[1].numbers], 1, 0), ALL, 0.0)[1]
    now = zone(home_of(shards[1], labels[shards[1].numbers], 1, 0), ALL, 0.0)[1]
    mine = shards[0].numbers[: shards[0].n_local]
    assert (np.array(theirs.numbers) == now.numbers).all()
    assert (theirs.kinds != now.kinds).any()
    settle(theirs, mine, labels[mine], 0, 1)
    assert (theirs.kinds == now.kinds).all()


@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from([0, 1, 2, ALL]))
def test_the_graph_of_a_pair_has_the_same_differences_of_cut_as_the_whole(seed: int, size: int, layers: int) -> None:
    graph, homes, labels = random_case(seed, size)
    shards = shards_of(graph, homes, size)
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.choice(size, 2, replace=False)).tolist()
    numbers, pair = zones_of(shards, labels, (low, high), layers)
    assert np.isin(homes[numbers], (low, high)).all()
    assert np.isin(labels[numbers], (low, high)).all()
    side = np.concatenate([[0, 1], rng.integers(0, 2, len(numbers))])
    new = labels.copy()
    new[numbers] = np.where(side[2:] == 0, low, high)
    difference = cut_of_pair(pair, side) - cut_of_pair(pair, pair.side)
    assert difference == pytest.approx(cut(graph, new) - cut(graph, labels))
    dense = np.zeros((len(side), len(side)))
    np.add.at(dense, (np.repeat(np.arange(len(side)), np.diff(pair.indptr)), pair.indices), pair.weights)
    assert (dense == dense.T).all()


def test_a_tie_to_its_home_costs_a_vertex_that_leaves_it() -> None:
    shards = shards_of(mesh(4, 4), np.arange(16) // 8, 2)
    numbers, pair = zones_of(shards, np.arange(16) // 8, (0, 1), ALL, stay=0.25)
    moved = pair.side.copy()
    moved[2 + np.flatnonzero(numbers == 5)] = 1
    assert cut_of_pair(pair, moved) - cut_of_pair(pair, pair.side) == pytest.approx(2.25)  # 3 - 1 edges, and the tie


def halves(rows: int, columns: int, costs: Floats | None = None) -> tuple[Graph, Ints]:
    tails, heads = mesh(rows, columns).edges()
    return Graph.from_edges(rows * columns, tails, heads, None, costs), np.arange(rows * columns) // columns * 2 // rows


def moved(
    graph: Graph, side: Ints, give: float, *, fixed: Ints | None = None, slack: tuple[float, float] = (0.0, 0.0),
    seed: int = 0,
) -> Ints:  # fmt: skip
    """The new sides of all vertices; the fixed ones (numbers) of each side are one vertex of the pair."""
    free = np.setdiff1d(np.arange(graph.n), [] if fixed is None else fixed)
    group = side.copy()
    group[free] = 2 + np.arange(len(free))
    whole, n = contract(csr(graph), group, 2 + len(free)), 2 + len(free)
    pair = Pair(*whole, np.concatenate([[0, 1], side[free]]), np.zeros(n, dtype=bool))
    new, found = side.copy(), two_way(pair, give, np.array(slack), random_state(seed))
    assert found[:2].tolist() == [0, 1]
    new[free] = found[2:]
    return new


@pytest.mark.parametrize("give", [-40.0, -7.0, 0.0, 1.0, 25.0, 60.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_work_changes_sides_up_to_half_a_vertex(give: float, seed: int) -> None:
    costs = np.random.default_rng(seed).uniform(0.5, 1.5, 144)
    graph, side = halves(12, 12, costs)
    fixed = np.flatnonzero(np.isin(np.arange(144) // 12, (0, 11)))
    new = moved(graph, side, give, fixed=fixed, seed=seed)
    assert (new[fixed] == side[fixed]).all()
    assert costs[side == 0].sum() - costs[new == 0].sum() == pytest.approx(give, abs=0.75)
    assert cut(graph, new) <= 17  # one row has 12 edges
    assert (new == moved(graph, side, give, fixed=fixed, seed=seed)).all()
    tiny = 2.0**-60  # costs are in any unit
    small = Graph(graph.indptr, graph.indices, graph.weights, tiny * costs)
    assert (new == moved(small, side, tiny * give, fixed=fixed, seed=seed)).all()


def test_slack_is_used_for_a_lighter_cut_only() -> None:
    graph, side = halves(12, 12)
    exact = moved(graph, side, 6.0)
    assert (int((exact == 0).sum()), cut(graph, exact)) == (66, 13)
    assert cut(graph, moved(graph, side, 6.0, slack=(6.0, 6.0))) == 12
    assert (moved(graph, side, 0.0, slack=(6.0, 6.0)) == side).all()


def test_more_than_a_side_has_can_not_be_given() -> None:
    graph, side = halves(4, 4)
    assert (moved(graph, side, 100.0) == 1).all()


def test_sides_without_an_edge_between_them_give_from_the_outermost_vertex_on() -> None:
    graph = Graph.from_edges(6, [0, 1, 2, 4], [1, 2, 3, 5])  # a path, and the other side
    new = moved(graph, np.array([0, 0, 0, 0, 1, 1]), 2.0)
    assert sorted(np.flatnonzero(new == 0).tolist()) in ([0, 1], [2, 3])
    assert cut(graph, new) == 1


def test_small_stray_pieces_go_to_the_rank_with_the_strongest_connection() -> None:
    homes = np.zeros(36, dtype=np.int64)
    homes[18:] = 1
    homes[[10, 30, 31]] = 1, 2, 2  # rank 1 has a stray vertex amid rank 0's; all of rank 2 is one piece
    homes[35] = 2  # and another one in a corner
    shards = shards_of(mesh(6, 6), homes, 3)
    assert (stray(shards[0], 0) == 0).all()
    labels = stray(shards[1], 1)
    assert shards[1].numbers[: shards[1].n_local][labels == 0].tolist() == [10]
    assert (stray(shards[2], 2) == 2).all()  # a third of its work: too much
