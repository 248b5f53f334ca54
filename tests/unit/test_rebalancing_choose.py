"""Choice of the vertices that move between two parts: zones, the graph of a pair, stray pieces, coarse levels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.distributing.halo import Pieces, part_of
from lb_mpi.graph import Floats, Graph, Ints, mesh
from lb_mpi.partitioning.coarsen import contract, csr
from lb_mpi.partitioning.compiled import random_state
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
