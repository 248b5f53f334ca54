"""Ranks for which all others wait: who hangs, as told from what is known of all ranks and from stacks."""

import os
from pathlib import Path

import pytest

from lb_mpi import signs
from lb_mpi.launching.hangs import Awaited, Hang, innermost
from lb_mpi.launching.heard import RankState
from lb_mpi.launching.host import ASLEEP, Waiting

HANG_S = 8.0
MAP = "a map"


def waits(rank: int, seconds: float) -> RankState:
    return RankState(str(rank), "a", phase=MAP, waits_s=seconds)


def idle(rank: int, seconds: float) -> RankState:
    return RankState(str(rank), "b", idle_s=seconds)


def at_end(rank: int) -> RankState:
    return RankState(str(rank), "b", at_end=True)


def no_stack(_rank: str) -> str:
    """Return no stack, as for a program that is not in Python."""
    return ""


def stack(program: Path, line: int, other: int = 0) -> str:
    """As faulthandler writes it."""
    return (
        f'Thread 0x0a (most recent call first):\n  File "{program}", line {other} in help\n\n'
        f'Current thread 0x0b (most recent call first):\n  File "{program}", line {line} in inner\n'
        f'  File "{program}", line 9 in <module>\n'
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(
        "done = comm.recv(source=0)\ndone = solve(a)\nrequest.Wait()\nfound = np.add.reduce(a)\n"
        "time.sleep(900)\nMPI.Finalize()\n"
    )
    return path


@pytest.mark.parametrize(
    ("states", "ranks"),
    [
        ([waits(0, 8.0), idle(1, 8.0), waits(2, 9.0)], ["1"]),
        ([waits(0, 8.0), idle(1, 8.0), idle(2, 99.0)], ["1", "2"]),
        ([waits(0, 8.0), at_end(1), idle(2, 8.0)], ["1", "2"]),
        ([waits(0, 8.0), idle(1, 7.9), waits(2, 8.0)], []),  # it may have computed
        ([waits(0, 8.0), idle(1, 8.0), waits(2, 7.9)], []),
        ([waits(0, 8.0), idle(1, 8.0)._replace(phase="a task"), idle(2, 8.0)], []),  # it is told as one that hangs in a task
        ([waits(0, 8.0), idle(1, 8.0)._replace(stopped=True), idle(2, 8.0)], []),
        ([waits(0, 8.0), idle(1, 8.0)], []),  # of rank 2 nothing is known
        ([waits(0, 8.0), waits(1, 8.0), waits(2, 8.0)], []),  # nobody is outside: a matter of the protocol
        ([idle(0, 99.0), idle(1, 99.0), at_end(2)], []),  # nobody is inside
    ],
)
def test_ranks_that_the_others_await_hang(states: list[RankState], ranks: list[str]) -> None:
    assert [hang.rank for hang in Awaited(3, HANG_S, no_stack).stuck(50.0, states)] == ranks
    assert Awaited(3, 0.0, no_stack).stuck(50.0, states) == []


def test_a_hang_is_described() -> None:
    hangs = Awaited(3, HANG_S, no_stack).stuck(50.0, [waits(0, 8.0), idle(1, 60.0), at_end(2)])
    assert [str(hang) for hang in hangs] == [
        "rank 1 on host b hangs: neither computing nor answering for 8 s, while the other ranks wait in a map",
        "rank 2 on host b hangs: at the end of its program for 8 s, while the other ranks wait in a map",
    ]


def course(stacks: list[str]) -> tuple[list[Hang], int]:
    """Look each second at a rank that seems to compute while another one waits; what is found, and after how many looks."""
    asked = iter(stacks)
    awaited = Awaited(2, HANG_S, lambda _rank: next(asked))
    for second in range(40):
        if found := awaited.stuck(100.0 + second, [waits(0, float(second)), RankState("1", "b")]):
            return found, second
    return [], 40


def test_a_rank_that_is_blocked_in_mpi_hangs(program: Path) -> None:
    same = [stack(program, 1, other) for other in range(99)]  # another thread may go on
    (hang,), second = course(same)
    assert (hang.rank, hang.how) == ("1", "in a blocking call of MPI")
    assert second == HANG_S
    (hang,), second = course([stack(program, 2), *same])  # it came to the call later
    assert second == HANG_S + 1
    (hang,), second = course([*same[:3], stack(program, 3), *same])
    assert second > HANG_S
    (hang,), second = course([stack(program, 6)] * 99)
    assert (hang.how, second) == ("in a blocking call of MPI", HANG_S)


@pytest.mark.parametrize("lines", [[2], [4], [5], [1, 3], [1, 1, 2]])
def test_a_rank_that_computes_or_goes_from_call_to_call_does_not_hang(program: Path, lines: list[int]) -> None:
    assert course([stack(program, line) for line in lines] * 40) == ([], 40)
    assert course([""] * 99) == ([], 40)


def test_many_ranks_that_compute_are_not_asked() -> None:
    def asked(rank: str) -> str:
        raise AssertionError(f"rank {rank} is asked for its stack")

    states = [waits(0, 99.0), *(RankState(str(rank), "b") for rank in range(1, 9))]
    assert Awaited(9, HANG_S, asked).stuck(50.0, states) == []


def test_a_rank_that_sleeps_on_purpose_does_not_hang(program: Path) -> None:
    line = 5
    awaited = Awaited(9, HANG_S, lambda _rank: stack(program, line))
    for second in range(40):
        states = [waits(0, float(second)), *(idle(rank, float(second)) for rank in range(1, 9))]  # more than are asked
        assert awaited.stuck(100.0 + second, states) == []
    line = 2  # from here on it waits for something else
    found = [bool(awaited.stuck(140.0 + second, states)) for second in range(9)]
    assert found == sorted(found)
    assert found[-1]


def test_only_what_can_be_read_is_an_innermost_line(program: Path) -> None:
    text, line = innermost(stack(program, 3))
    assert text.startswith("Current thread")
    assert "help" not in text
    assert line == "request.Wait()\n"
    assert innermost(stack(program / "nosuch", 1))[1] == ""
    assert innermost("") == ("", "")


def test_a_rank_waits_that_is_asleep_in_a_call_most_of_the_time() -> None:
    waiting = Waiting(0.0)
    asleep_s = 0.0

    def look(now: float, slept_s: float, phase: str = MAP) -> float:
        nonlocal asleep_s
        asleep_s += slept_s
        return waiting.waits_s(now, signs.Seen(0, 0, 0, os.getpid(), 0, phase, asleep_s=asleep_s))

    assert look(1.0, 0.9) == 1.0
    assert look(1.1, 0.0) == pytest.approx(1.1)  # too soon for a share
    assert look(2.0, 0.9 * ASLEEP) == 0.0
    assert look(3.0, 1.1 * ASLEEP) == 1.0
    assert look(4.0, 1.0) == 2.0
    assert look(5.0, 1.0, "") == 0.0  # it serves a pool
    assert look(6.0, 1.0) == 1.0
