"""Safra's token (EWD998): the table, row by row."""

import random

import pytest

from lb_mpi.searching.drafting import Pause, ProtocolError
from lb_mpi.searching.termination import Termination, Token


def make(*, initiator: bool = False, alone: bool = False) -> Termination:
    return Termination(initiator=initiator, alone=alone, pause=Pause(1.0, 4.0, random.Random(0)))


def test_an_active_rank_keeps_the_token() -> None:
    rank = make()
    rank.arrive(Token(0, False), 0.0)
    assert rank.settle(True, 0.0) is None
    assert rank.settle(False, 0.0) == Token(0, False)
    assert rank.settle(False, 0.0) is None


@pytest.mark.parametrize(
    ("own", "carried", "passed"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_count_and_colour_are_added_and_the_rank_turns_white(own: bool, carried: bool, passed: bool) -> None:
    rank = make()
    rank.count, rank.black = 2, own
    rank.arrive(Token(-5, carried), 0.0)
    assert rank.settle(False, 0.0) == Token(-3, passed)
    assert (rank.count, rank.black) == (2, False)


def test_only_a_receipt_blackens() -> None:
    rank = make()
    rank.sent()
    assert (rank.count, rank.black) == (1, False)
    rank.received()
    assert (rank.count, rank.black) == (0, True)


def test_a_conclusive_probe() -> None:
    root = make(initiator=True)
    assert root.settle(False, 0.0) == Token(0, False)
    root.count = 3
    root.arrive(Token(-3, False), 0.0)
    assert root.settle(True, 0.0) is None
    assert not root.over
    assert root.settle(False, 0.0) is None
    assert root.over


@pytest.mark.parametrize(
    ("count", "black", "token"), [(1, False, (0, False)), (0, True, (0, False)), (0, False, (0, True))]
)
def test_an_inconclusive_probe_is_repeated_after_a_pause(count: int, black: bool, token: tuple[int, bool]) -> None:
    root = make(initiator=True)
    root.settle(False, 0.0)
    root.count, root.black = count, black
    root.arrive(Token(*token), 10.0)
    assert root.settle(False, 10.0) is None
    assert not root.over
    assert root.settle(False, 11.0) == Token(0, False)
    assert not root.black


def test_alone_it_is_over_when_passive() -> None:
    root = make(initiator=True, alone=True)
    assert root.settle(True, 0.0) is None
    assert not root.over
    assert root.settle(False, 0.0) is None
    assert root.over


def test_a_second_token_is_a_protocol_error() -> None:
    rank = make()
    rank.arrive(Token(0, False), 0.0)
    with pytest.raises(ProtocolError, match="second token"):
        rank.arrive(Token(0, False), 0.0)
