"""Who waits too long says for whom, once, on the lowest rank that waits; who leaves a Balancer tells who waits for it."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.common import communicator, late
from lb_mpi.mpi.common.late import Answer, awaited
from tests.pile import Pile

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LAST = SIZE - 1
TAG, BEGUN = 9, 10
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE != 3, reason="waits take time: once is enough")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "ANSWER_S", 0.5)
    monkeypatch.setattr(communicator, "EVERY_S", 0.05)


def busy() -> None:
    """Answer nobody, until another rank has warned."""
    while not COMM.Iprobe(MPI.ANY_SOURCE, TAG):
        time.sleep(0.01)


def check(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], name: str, awaited_rank: int) -> None:
    """Of the ranks that wait for `awaited_rank`, which is `busy`, the lowest warns, once, and the others don't."""
    lines: list[str] = []
    lowest = 0 if awaited_rank else 1

    def warn(text: str, kind: type[Warning], stacklevel: int) -> None:
        assert kind is RuntimeWarning
        assert sys._getframe(stacklevel).f_code.co_filename == __file__  # the line of the program that waits
        lines.append(text)
        if lowest == RANK:
            COMM.Send(b"", awaited_rank, TAG)

    with monkeypatch.context() as patch:
        patch.setattr(late.warnings, "warn", warn)
        COMM.Barrier()
        patch.setenv(late.VARIABLE, "0.2")  # not before: on a busy machine a warning too many is an error
        call()
    reported = COMM.allgather(lines)
    assert len(reported[lowest]) == 1, reported
    for text in (text for rank, each in enumerate(reported) if rank != lowest for text in each):
        assert re.search(silent(lowest), text), reported  # it was too busy to answer that it waits
    assert reported[lowest][0].startswith(f"rank {lowest} has waited for ")
    assert f" s in {name}: " in reported[lowest][0]
    assert re.search(silent(awaited_rank), reported[lowest][0]), reported
    if awaited_rank == RANK:
        COMM.Recv(bytearray(), MPI.ANY_SOURCE, TAG)


def silent(rank: int) -> str:
    """Match what is said of a rank that doesn't answer, and maybe of others."""
    return rf"ranks? (\d, )*{rank}(, \d)* do(es)? not answer"


class Slow(Pile):
    """Rank 0 is busy with its first unit."""

    def work(self, units: int) -> int:
        if RANK == 0 and not self.done:
            busy()
        return super().work(units)


@pytest.mark.parametrize("awaited_rank", [0, LAST])
def test_ranks_that_wait_in_a_map(monkeypatch: pytest.MonkeyPatch, awaited_rank: int) -> None:
    def task(_item: int) -> None:
        if awaited_rank == RANK:
            busy()
        time.sleep(0.1)  # the others don't take all of its tasks before it has begun one

    with lb_mpi.Pool(COMM) as pool:
        check(monkeypatch, lambda: pool.map(task, 4 * SIZE, chunksize=1), "a map of lb_mpi.Pool", awaited_rank)


def test_a_launcher_that_asks_learns_how_many_ranks_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = [0], [(0, SIZE)]

    def answer(number: int, n_silent: int) -> None:
        answers.append((number, n_silent))
        if len(answers) == 2 and RANK == 0:
            COMM.Send(b"", LAST, TAG)
        asked[0] += n_silent > 0 and number > 1  # once more, since another rank was too busy to answer

    def question() -> int:
        if RANK == 0 and not begun and COMM.Iprobe(LAST, BEGUN):
            COMM.Recv(bytearray(), LAST, BEGUN)
            begun.append(True)
        return asked[0] if RANK or begun else 0

    begun = list[bool]()  # the task that keeps the last rank busy: before, it may answer
    monkeypatch.setattr(late.signs, "question", question)
    monkeypatch.setattr(late.signs, "answer", answer)

    def task(_item: int) -> None:
        if RANK == LAST and not begun:
            begun.append(True)
            COMM.Send(b"", 0, BEGUN)
            busy()
        time.sleep(0.1)

    with lb_mpi.Pool(COMM) as pool:
        asked[0] = 1
        pool.map(task, 4 * SIZE, chunksize=1)
        if RANK == 0:
            assert answers[1][0] == 1
            assert answers[1][1] > 0
    if RANK == LAST:
        COMM.Recv(bytearray(), 0, TAG)
    asked[0] = 2
    own = communicator.duplicate(COMM)
    barrier: list[MPI.Request] = []

    def done() -> bool:
        if not barrier and answers[-1][0] > 1 and not answers[-1][1]:
            barrier.append(own.Ibarrier())
        return bool(barrier) and barrier[0].Test()

    communicator.presence_of(own).wait(done)
    own.Free()


def test_a_warning_raised_as_an_error_reaches_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(text: str, kind: type[Warning], stacklevel: int) -> None:
        COMM.Send(b"", 0, TAG)
        raise kind(text)

    monkeypatch.setattr(late.warnings, "warn", warn)
    communicator.duplicate(COMM).Free()
    monkeypatch.setenv(late.VARIABLE, "1")
    with pytest.raises(lb_mpi.SearchError, match=r"^rank [12]: RuntimeWarning: rank [12] has waited for "):
        lb_mpi.search(COMM, Slow(3))
    COMM.Barrier()
    while COMM.Iprobe(MPI.ANY_SOURCE, TAG):
        COMM.Recv(bytearray(), MPI.ANY_SOURCE, TAG)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_an_error_on_all_ranks(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    if RANK == LAST:
        monkeypatch.setenv(late.VARIABLE, text)
    for door in (lambda: lb_mpi.Pool(COMM), lambda: lb_mpi.Balancer(COMM), lambda: lb_mpi.search(COMM, Pile(3))):
        with pytest.raises(ValueError, match=f"LB_MPI_HANG_S = '{text}': expected seconds, 0 or more"):
            door()


@pytest.mark.parametrize("seconds", ["0", "60"])
def test_no_rank_warns_if_the_time_is_zero(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    """The last rank is busy until rank 0 has looked three times, a day later each time."""
    lines: list[str] = []
    looks: list[float] = []
    look = late.Questions.look

    def later(questions: late.Questions, now: float, waited_s: float) -> None:
        looks.append(now)
        look(questions, now + 86_400.0 * len(looks), waited_s + 86_400.0)
        if RANK == 0 and len(looks) == 3:
            COMM.Send(b"", LAST, TAG)

    def task(_item: int) -> None:
        COMM.Barrier()  # each rank runs one task
        if RANK == LAST:
            busy()

    with lb_mpi.Pool(COMM) as pool, monkeypatch.context() as patch:
        patch.setattr(late.warnings, "warn", lambda text, kind, stacklevel: lines.append(text))
        patch.setattr(late.Questions, "look", later)
        patch.setenv(late.VARIABLE, seconds)
        pool.map(task, SIZE, chunksize=1)
    if RANK == LAST:
        COMM.Recv(bytearray(), 0, TAG)
    assert any(COMM.allgather(bool(lines))) == (seconds != "0")


@pytest.mark.parametrize("leaver", [0, LAST])
def test_leaving_a_balancer_notifies_all_ranks(leaver: int) -> None:
    rows = np.ones((5, 2))

    def leave() -> None:
        with lb_mpi.Balancer(COMM) as balancer:
            balancer.map_rows(np.sqrt, rows)
            if leaver == RANK:
                raise ZeroDivisionError("this rank can't go on")
            try:
                balancer.map_rows(np.sqrt, rows)
            finally:
                with pytest.raises(lb_mpi.Error, match="Balancer after a failure"):
                    balancer.map_rows(np.sqrt, rows)

    with pytest.raises(ZeroDivisionError if leaver == RANK else lb_mpi.Error) as caught:
        leave()
    if leaver != RANK:
        assert str(caught.value).startswith(f"rank {leaver}: ZeroDivisionError: this rank can't go on (")
    COMM.Barrier()


def test_an_error_that_is_passed_on_names_the_rank_where_it_was_raised() -> None:
    pair = COMM.Split(RANK < 2)

    def leave() -> None:
        with lb_mpi.Balancer(COMM) as outer:
            if RANK < 2:
                with contextlib.suppress(ZeroDivisionError), lb_mpi.Balancer(pair) as inner:
                    if RANK == 0:
                        raise ZeroDivisionError("this rank can't go on")
                    inner.map_rows(np.copy, np.ones(3))
            outer.map_rows(np.copy, np.ones(3))

    with pytest.raises(lb_mpi.Error) as caught:
        leave()
    assert str(caught.value).startswith("rank 0: ZeroDivisionError: this rank can't go on (")
    pair.Free()


def test_a_warning_says_what_the_other_ranks_do() -> None:
    kinds = late._Kind
    works, waits, runs_tasks = Answer(kinds.WORKS, "it"), Answer(kinds.WAITS, "it"), Answer(kinds.SERVES, "")
    silent = "does not answer (not in the call, computing, or stopped)"
    assert awaited(0, 3, "it", 60.2, {1: waits}) == f"rank 0 has waited for 60 s in it: rank 2 {silent}"
    assert awaited(1, 4, "it", 60.2, {0: works, 2: waits}).endswith(f": rank 3 {silent}; rank 0 is at work")
    assert awaited(0, 3, "it", 5.0, {1: works, 2: works}).endswith(": ranks 1, 2 are at work")
    assert awaited(0, 3, "it", 5.0, {1: waits, 2: runs_tasks}).endswith(": all other ranks are waiting")
    elsewhere = Answer(kinds.WAITS, "another call")
    assert awaited(0, 3, "it", 5.0, {1: elsewhere, 2: waits}).endswith(" in it: rank 1 is in another call")
    assert awaited(0, 3, "it", 5.0, {1: elsewhere, 2: elsewhere}).endswith(": ranks 1, 2 are in another call")
    assert "ranks 1 to 19 do not" in awaited(0, 20, "it", 60.0, {})
    odd = awaited(0, 21, "it", 60.0, dict.fromkeys(range(2, 21, 2), waits))
    assert "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2 more do not" in odd
