"""Termination by a tree: its table row by row, every reachable state, known-wrong variants; and the binomial tree."""

import pytest

from lb_mpi.searching import termination, walking
from lb_mpi.searching.drafting import Kind, Message, ProtocolError
from lb_mpi.searching.termination import Scholten
from tests.protocol.explore_parts import explore_engagement
from tests.protocol.mutants import SCHOLTEN_MUTANTS
from tests.protocol.test_protocol import changed_module


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 64, 1000])
def test_the_binomial_tree_reaches_each_rank_once(size: int) -> None:
    reached = [0]
    for rank in reached:
        below = walking.children(rank, size)
        assert [walking.parent(child) for child in below] == [rank] * len(below)
        assert walking.descendants(rank, size) == 1 + sum(walking.descendants(child, size) for child in below)
        assert len(below) <= (size - 1).bit_length()
        assert set(below) <= set(walking.neighbours(rank, size))
        reached += below
    assert sorted(reached) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 64])
def test_neighbours_differ_in_one_bit(size: int) -> None:
    for rank in range(size):
        expected = [other for other in range(size) if (rank ^ other).bit_count() == 1]
        assert sorted(walking.neighbours(rank, size)) == expected


def free() -> Scholten:
    """Rank 1 of 2, after it had nothing to do."""
    rank = Scholten(1, 2)
    assert rank.settle(False) == [(0, Message(Kind.ACK, 1))]
    assert not rank.engaged
    return rank


def test_who_has_no_work_at_the_start_is_free_after_its_first_turn() -> None:
    assert free().settle(False) == []


def test_work_engages_and_more_of_it_is_acknowledged_at_once() -> None:
    rank = free()
    assert rank.received(5) == []
    assert (rank.engaged, rank.parent) == (True, 5)
    assert rank.received(7) == [(7, Message(Kind.ACK, 1))]
    assert rank.parent == 5


def test_a_deficit_keeps_it_engaged() -> None:
    rank = free()
    rank.received(5)
    rank.sent()
    assert rank.settle(False) == []
    rank.acknowledged()
    assert rank.settle(True) == []
    assert rank.settle(False) == [(5, Message(Kind.ACK, 1))]


def test_the_root_waits_for_all_its_children() -> None:
    root = Scholten(0, 8)
    for _ in range(3):
        assert (root.settle(False), root.over) == ([], False)
        root.acknowledged()
    assert (root.settle(True), root.over) == ([], False)
    assert (root.settle(False), root.over) == ([], True)


def test_an_impossible_message_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="no rank owes"):
        Scholten(1, 2).acknowledged()
    with pytest.raises(ProtocolError, match="isn't engaged"):
        free().sent()


@pytest.mark.parametrize(("size", "most_work", "states"), [(1, 0, 3), (2, 5, 400), (3, 3, 5000), (4, 2, 8000)])
def test_the_invariant_holds_in_every_reachable_state(size: int, most_work: int, states: int) -> None:
    seen, ends = explore_engagement(Scholten, size=size, most_work=most_work)
    assert seen >= states
    assert ends > 0


@pytest.mark.parametrize("number", range(len(SCHOLTEN_MUTANTS)))
def test_known_wrong_variants_are_caught(number: int) -> None:
    changed = changed_module(termination, *SCHOLTEN_MUTANTS[number]).Scholten
    with pytest.raises((AssertionError, ProtocolError)):
        explore_small_ones(changed)


def explore_small_ones(scholten_class: type) -> None:
    for size, most_work in ((2, 3), (3, 3), (4, 2)):
        explore_engagement(scholten_class, size=size, most_work=most_work)


def test_the_real_thing_has_no_fault() -> None:
    explore_small_ones(Scholten)
