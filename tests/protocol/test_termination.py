"""Both terminations: rows of their tables; the binomial tree.  Their states are those of searches."""

import random

import pytest

from lb_mpi.searching import walking
from lb_mpi.searching.drafting import Kind, Message, Pause, ProtocolError
from lb_mpi.searching.termination import Safra, Scholten, Token


def make(rank: int) -> Safra:
    return Safra(rank, range(2), Pause(1.0, 4.0, random.Random(0)))


def carried(token: Token, source: int = 1) -> Message:
    return Message(Kind.TOKEN, source, token.total, int(token.black))


@pytest.mark.parametrize(
    ("count", "black", "token"), [(1, False, (0, False)), (0, True, (0, False)), (0, False, (0, True))]
)
def test_an_inconclusive_probe_is_repeated_after_a_pause(count, black, token):
    root = make(0)
    root.settle(False, 0.0)
    root.count, root.black = count, black
    assert root.receive(carried(Token(*token)), 10.0)
    assert root.settle(False, 10.0) == []
    assert not root.over
    assert root.settle(False, 11.0) == [(1, carried(Token(0, False), source=0))]
    assert not root.black


def test_a_second_token_is_a_protocol_error():
    rank = make(1)
    rank.receive(carried(Token(0, False), source=0), 0.0)
    with pytest.raises(ProtocolError, match="second token"):
        rank.receive(carried(Token(0, False), source=0), 0.0)


# --- Dijkstra and Scholten's tree --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 64, 1000])
def test_the_binomial_tree_reaches_each_rank_once(size):
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
def test_neighbours_differ_in_one_bit(size):
    for rank in range(size):
        expected = [other for other in range(size) if (rank ^ other).bit_count() == 1]
        assert sorted(walking.neighbours(rank, size)) == expected


def free() -> Scholten:
    """Rank 1 of 2, after it had nothing to do."""
    rank = Scholten(1, 2)
    assert rank.settle(False, 0.0) == [(0, Message(Kind.ACK, 1, pid=1))]
    assert not rank.engaged
    return rank


def test_an_impossible_message_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="owe it 0"):
        Scholten(1, 2).receive(Message(Kind.ACK, 0, pid=1), 0.0)
    with pytest.raises(ProtocolError, match="owe it 1"):
        Scholten(0, 2).receive(Message(Kind.ACK, 1, pid=0), 0.0)
    with pytest.raises(ProtocolError, match="isn't engaged"):
        free().sent()
