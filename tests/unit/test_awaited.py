"""Ranks for which all others wait: which of them hang, by what is known of all ranks."""

import os

import pytest

from lb_mpi import signs
from lb_mpi.cli.run.hangs import PATIENCE, awaited, stopped
from lb_mpi.cli.run.host import ASLEEP, QuietTimes, Used
from lb_mpi.cli.run.lines import RankState

HANG_S = 8.0
LONG_S = PATIENCE * HANG_S
MAP = "a map"


def waits(rank: int, seconds: float = HANG_S) -> RankState:
    return RankState(str(rank), "a", phase=MAP, waits_s=seconds)


def serves(rank: int, seconds: float = HANG_S) -> RankState:
    return RankState(str(rank), "a", waits_s=seconds)


def idle(rank: int, seconds: float = HANG_S) -> RankState:
    return RankState(str(rank), "b", idle_s=seconds, away_s=seconds)


def computes(rank: int, seconds: float = HANG_S) -> RankState:
    return RankState(str(rank), "b", away_s=seconds)


def in_task(rank: int, idle_s: float = 999.0) -> RankState:
    return RankState(str(rank), "b", phase="a task", idle_s=idle_s, away_s=999.0)


def at_end(rank: int, seconds: float = HANG_S) -> RankState:
    return RankState(str(rank), "b", at_end=True, away_s=seconds)


@pytest.mark.parametrize(("states", "ranks"), [
    ([waits(0), idle(1), waits(2, 9.0)], ["1"]),
    ([waits(0), idle(1), idle(2, 99.0)], ["1", "2"]),
    ([waits(0), at_end(1), idle(2)], ["1", "2"]),
    ([waits(0), idle(1), serves(2)], ["1"]),
    ([waits(0), at_end(1, 7.9), waits(2)], []),  # what is known of rank 0 may be older
    ([waits(0), idle(1, 7.9), waits(2)], []),  # it may have computed
    ([waits(0), idle(1), waits(2, 7.9)], []),
    ([waits(0), idle(1), serves(2, 7.9)], []),
    ([waits(0), waits(1), in_task(2)], []),  # a function of the user may wait as long as it likes
    ([waits(0), idle(1), in_task(2)], []),
    ([waits(0), idle(1)], []),  # of rank 2 nothing is known
    ([serves(0), serves(1), idle(2)], []),  # nobody waits
    ([idle(0, 99.0), idle(1, 99.0), at_end(2)], []),  # nobody is inside
    ([waits(0, LONG_S), waits(1, LONG_S), computes(2, LONG_S)], ["2"]),
    ([waits(0, LONG_S), waits(1, LONG_S), computes(2, LONG_S - 1)], []),  # it has been in lb_mpi since they wait
    ([waits(0, LONG_S - 1), waits(1, LONG_S), computes(2, LONG_S)], []),
    ([waits(0, LONG_S), idle(1), computes(2)], []),  # rank 1 may wait for rank 2
])  # fmt: skip
def test_a_rank_outside_hangs_if_all_others_wait(states, ranks):
    assert [hang.rank for hang in awaited(states, 3, HANG_S)] == ranks
    assert awaited(states, 3, 0.0) == []


def test_a_hang_is_described_in_one_line():
    hangs = awaited([waits(0), idle(1, 60.0), at_end(2, 9.0)], 3, HANG_S)
    assert [str(hang) for hang in hangs] == [
        "rank 1 on host b hangs: neither computing nor answering for 8 s, while the other ranks wait in a map",
        "rank 2 on host b hangs: at the end of its program for 8 s, while the other ranks wait in a map",
    ]


def test_all_ranks_that_wait_hang_if_nobody_works():
    for states in ([waits(0), waits(1, 9.0)], [waits(0), serves(1), waits(2, 9.0)]):
        hangs = awaited(states, len(states), HANG_S)
        assert [hang.rank for hang in hangs] == [state.rank for state in states if state.phase]
        assert str(hangs[-1]).endswith(" hangs: waiting, as all ranks do, for 9 s in a map")
        assert awaited([*states[1:], waits(0, 7.9)], len(states), HANG_S) == awaited(states, len(states), 0.0) == []
    assert awaited([serves(0), serves(1)], 2, HANG_S) == []  # a pool without work


def test_a_rank_hangs_that_is_stopped():
    one = RankState("0", "here", stopped_s=9.0)
    states = [one, one._replace(phase=MAP), one._replace(stopped_s=8.9)]
    assert [str(hang) for hang in stopped(states, 9.0)] == [
        "rank 0 on host here hangs: stopped for 9 s",
        "rank 0 on host here hangs: stopped for 9 s, in a map",
    ]
    assert stopped(states, 9.1) == stopped(states, 0.0) == []


def test_a_rank_sleeps_that_is_asleep_most_of_the_time():
    quiet = QuietTimes(0.0)
    asleep_s = 0.0

    def sample(now: float, slept_s: float, phase: str = MAP) -> float:
        nonlocal asleep_s
        asleep_s += slept_s
        seen = signs.Seen(0, 0, 0, os.getpid(), 0, phase, asleep_s=asleep_s)
        return quiet.times(now, seen, Used(0.0))["waits_s"]

    assert sample(1.0, 0.9) == 0.0  # from here on it is in a call
    assert sample(1.1, 0.0) == pytest.approx(0.1)  # too soon for a share
    assert sample(2.0, 0.9 * ASLEEP) == 0.0
    assert sample(3.0, 1.1 * ASLEEP) == 1.0
    assert sample(4.0, 1.0) == 2.0
    assert sample(5.0, 1.0, "") == 0.0  # from here on it serves a pool
    assert sample(6.0, 1.0, "") == 1.0
