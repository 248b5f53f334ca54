"""The search of a tree given by a function: exact under any interleaving, on a virtual clock, and bad input."""

import pickle
import random

import pytest

import lb_mpi
from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching.guard import Options, check_problem
from lb_mpi.searching.problem import TreeSearch


def queens(n):
    """The function from a board of n x n to those with a queen more."""

    def children(board):
        row = len(board)
        for column in range(n if row < n else 0):
            if all(column != other and row - r != abs(column - other) for r, other in enumerate(board)):
                yield (*board, column)

    return children


def all_boards(board=()):
    """Every node, by recursion."""
    return [board, *(each for child in queens(6)(board) for each in all_boards(child))]


def solution(board):
    return len(board) == 6


@pytest.mark.parametrize("seed", range(10))
def test_each_node_counts_once_under_any_interleaving(seed):
    rng = random.Random(seed)
    ranks = [TreeSearch((), queens(6), value=lambda board: [board]) for _ in range(3)]
    ranks[0].start()
    while any(rank.load() for rank in ranks):
        one, other = rng.sample(ranks, 2)
        one.work(rng.randint(1, 20))
        if not other.load() and one.load() > 1:
            before = one.load()
            other.absorb(one.split())
            assert one.load() + other.load() == before
            assert abs(one.load() - other.load()) <= 1
    boards = [board for rank in ranks for board in rank.result() or []]
    assert sorted(boards) == sorted(all_boards())
    assert sum(map(solution, boards)) == 4


@pytest.mark.parametrize("ranks", [1, 2, 7, 40])
def test_finds_the_same_on_any_number_of_ranks(ranks):
    trees = [TreeSearch((), queens(6), value=solution) for _ in range(ranks)]
    assert simulate.search(trees, options=Options(threshold=1.0)).value == 4
    best = [TreeSearch((), queens(6), value=lambda board: board or None, merge=max) for _ in range(ranks)]
    assert simulate.search(best, options=Options(threshold=1.0)).value == max(all_boards())


def test_nodes_count_when_nothing_is_said_and_nothing_counts_where_value_is_none():
    assert simulate.search([TreeSearch((), queens(6))]).value == len(all_boards())
    assert simulate.search([TreeSearch((), queens(6), value=lambda board: None) for _ in range(2)]).value is None


def test_ends_when_until_is_true():
    trees = [
        TreeSearch((), queens(6), value=lambda board: [board] if solution(board) else [], until=bool) for _ in range(3)
    ]
    found = simulate.search(trees, options=Options(threshold=1.0))
    assert 1 <= len(found.value) <= 3
    assert all(map(solution, found.value))
    assert any(tree.load() for tree in trees)  # it ended before all was done


def test_shares_are_by_weight_and_of_all_ages():
    tree = TreeSearch(0, lambda node: [])
    tree.absorb(pickle.dumps(list(range(16))))
    first, second = map(pickle.loads, tree.shares([1, 2, 1]))
    assert (len(first), len(second), tree.load()) == (8, 4, 4.0)
    for part in (first, second):
        assert (min(part) < 4, max(part) >= 12) == (True, True)
    tree.absorb(pickle.dumps([7, 8]))
    assert [*map(pickle.loads, tree.shares([1, 100, 100]))] == [[8]]
    assert tree.shares([1, 1]) == []


def test_a_tree_search_is_a_problem_and_a_single_node_is_not_split():
    tree = lb_mpi.TreeSearch(0, lambda node: [])
    check_problem(tree)
    assert isinstance(tree, lb_mpi.Problem)
    assert tree.split() is None
    tree.start()
    assert (tree.split(), tree.load()) == (None, 1.0)


def test_children_that_are_none_are_an_error():
    with pytest.raises(lb_mpi.SearchError, match=r"lambda> returned None: expected a list .* the node 7 \(.*py:\d+\)$"):
        simulate.search([TreeSearch(7, lambda node: None)])
