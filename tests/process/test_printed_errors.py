"""What ranks print when they end by an error that all have raised."""

import sys

import pytest

import lb_mpi

failure = pytest.importorskip("lb_mpi.mpi.common.failure", exc_type=ImportError)


def caused() -> BaseException:
    try:
        try:
            raise KeyError("x")
        except KeyError as cause:
            raise lb_mpi.BalanceError("rank 1, row 3: KeyError") from cause
    except lb_mpi.Error as error:
        return error


def test_who_knows_the_cause_tells_all_of_it() -> None:
    assert failure.line(caused(), 1, 4) == ""


def test_the_others_tell_it_in_a_line() -> None:
    error = lb_mpi.BalanceError("rank 1, row 3: KeyError")
    assert failure.line(error, 2, 4) == "rank 2: lb_mpi.errors.BalanceError: rank 1, row 3: KeyError"


def test_a_task_that_failed_elsewhere_is_told_whole_by_rank_0() -> None:
    assert failure.line(lb_mpi.TaskError("task 7 on rank 2: x"), 0, 4) == ""
    assert failure.line(lb_mpi.TaskError("task 7 on rank 2: x"), 2, 4).startswith("rank 2: ")


def test_one_rank_alone_and_errors_of_others_are_told_whole() -> None:
    assert failure.line(lb_mpi.BalanceError("x"), 0, 1) == ""
    assert failure.line(ValueError("x"), 2, 4) == ""


def test_a_hook_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = sys.__excepthook__.__class__
    monkeypatch.setattr(sys, "excepthook", mine)
    failure.install()
    assert sys.excepthook is mine
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    failure.install()
    assert sys.excepthook is failure.hook
