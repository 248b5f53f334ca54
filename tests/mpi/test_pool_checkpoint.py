"""The checkpoint of a map on real ranks: which call it belongs to, and what is raised when it can't be written."""

import contextlib
import errno
import functools
import itertools
import os
import time
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from tests.mpi.limits import largest_file
from tests.mpi.sizes import COMM, RANK, SIZE, several

pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


@pytest.fixture
def path(folder):
    return folder / "log"


def test_a_map_is_not_taken_for_a_starmap(pool, path):
    items = [((k,), (k, 1)) for k in range(20)]
    assert pool.map(max, items, checkpoint=path, to="all") == [(k, 1) for k in range(20)]
    with pytest.raises(ValueError, match="log: belongs to another function or to other tasks"):
        pool.starmap(max, items, checkpoint=path)
    with pytest.raises(TypeError, match=r"items = \{2\}: expected items in a fixed order"):
        pool.map(max, range(20), {2} if RANK == 0 else [], checkpoint=path)


ORIGIN = ("north", b"bytes", (1.5, "south"), np.arange(3.0))  # one object on each rank, and several where its pickles arrive


def first(k):
    return k, ORIGIN, [ORIGIN[2]] * 2


def second(result):
    return int(result[0])


def test_a_pipeline_of_two_maps_goes_on_with_other_ranks(pool, path):
    assert pool.map(second, pool.map(first, 20), checkpoint=path) == ([*range(20)] if RANK == 0 else None)
    if RANK == 0:
        with lb_mpi.Pool(MPI.COMM_SELF) as alone:
            reported = []
            assert alone.map(second, alone.map(first, 20), checkpoint=path, callback=reported.append) == [*range(20)]
            assert not reported


def test_a_truncated_checkpoint_is_named_once_and_its_last_tasks_run_again(pool, path):
    for torn in (False, True, False):
        if torn and RANK == 0:
            os.truncate(path, path.stat().st_size - 3)
        with pytest.warns(UserWarning, match="log: dropped") if torn and RANK == 0 else contextlib.nullcontext():
            assert pool.map(second, [(k,) for k in range(9)], checkpoint=path, to="all") == [*range(9)]


def test_items_may_be_sets(pool, path):
    for _ in range(2):
        assert pool.map(len, [{"north", "south"}, frozenset({1})], checkpoint=path, to="all") == [2, 1]


def big(k):
    return bytes([k]) * 3000


def test_a_disk_without_room_is_named_and_what_is_on_it_stays_whole(pool, path):
    with largest_file(20_000, here=RANK == 0), pytest.raises(OSError, match="too large") as caught:
        pool.map(big, 30, checkpoint=path, chunksize=1)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path)), "an error of a file, not of a task"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is torn
        assert pool.map(big, 30, checkpoint=path, to="all") == [big(k) for k in range(30)]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_checkpoint_that_is_removed_meanwhile_is_named_once(pool, path, how):
    def task(k):
        if k == 3:
            path.unlink()
            if how == "replaced":
                path.write_bytes(b"another")
        return k

    expected = pytest.warns(RuntimeWarning) if RANK == 0 else contextlib.nullcontext()
    with expected as came:
        assert pool.map(task, 30, checkpoint=path, key="task", chunksize=1, to="all") == list(range(30))
    if RANK == 0:
        words = f"checkpoint {path}: removed or replaced during the map: its results are not kept for another run"
        assert [str(one.message) for one in came] == [words]
    COMM.Barrier()
    assert path.exists() == (how == "replaced")


RUN = []


def fails_on_the_root_at_first(others_ran, k):
    RUN.append(k)
    root_runs = others_ran.with_suffix(".root")
    if RANK and len(RUN) == 3:
        others_ran.touch()
    while RANK and len(RUN) > 3 and not root_runs.exists():  # else the root might have no task left
        time.sleep(0.01)
    if RANK == 0 and len(RUN) == 1:
        root_runs.touch()
        while not others_ran.exists():
            time.sleep(0.01)
        time.sleep(0.1)  # meanwhile, their results arrive
        raise ZeroDivisionError
    return k


@several
def test_results_that_arrive_with_a_failure_are_kept(path):
    RUN.clear()
    function = functools.partial(fails_on_the_root_at_first, path.with_suffix(".ran"))
    with lb_mpi.Pool(COMM) as pool:
        with pytest.raises(lb_mpi.TaskError):
            pool.map(function, 60, checkpoint=path, chunksize=1)
        RUN[:] = [-1]
        pool.map(function, 60, checkpoint=path, chunksize=1)
        assert COMM.allreduce(len(RUN) - 1) < 60


def fails_at_0(k):
    RUN.append(k)
    return 1 / (k % 4)


def test_exceptions_are_results_that_a_later_run_tries_again(pool, path):
    for n in (40, 10):
        RUN.clear()
        found = pool.map(fails_at_0, 40, return_exceptions=True, checkpoint=path, to="all", chunksize=3)
        assert [isinstance(one, ZeroDivisionError) for one in found] == [k % 4 == 0 for k in range(40)]
        assert found[3] == 1 / 3
        assert COMM.allreduce(len(RUN)) == n


def test_arrays_of_many_fields_come_back(pool, path):
    dtype = np.dtype([(f"field of rain {k}", "f8") for k in range(700)])
    expected = [np.full(2, k, dtype) for k in range(3)]
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = pool.map(lambda k: np.full(2, k, dtype), 3, checkpoint=path, key="rain", to="all")
        assert all(one.dtype == dtype and np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    wrong = np.dtype((np.record, [("x", "f8")]))
    with pytest.raises(lb_mpi.TaskError, match=r"^task 2 on rank \d: TypeError: result of dtype .*record.* can't") as caught:
        pool.map(lambda k: np.zeros(2, wrong if k == 2 else "f8"), 3, checkpoint=path.with_suffix(".x"), key="x")
    assert caught.value.index == 2


def test_results_beside_one_that_can_t_be_stored_are_kept_for_a_later_run(pool, path):
    """All that arrived with it were lost."""
    ran, wrong = [], [10]

    def run(k):
        ran.append(k)
        return object if k in wrong else k

    with pytest.raises(lb_mpi.TaskError, match="result of type type can't be written"):
        pool.map(run, 40, checkpoint=path, key="run", chunksize=20)
    ran.clear()
    wrong.clear()
    assert pool.map(run, 40, checkpoint=path, key="run", to="all") == [*range(40)]
    assert not any(9 in some for some in COMM.allgather(ran))


def until(condition):
    """Wait for what another rank does; after 20 s it has not, and the test fails."""
    end = time.monotonic() + 20.0
    while not condition() and time.monotonic() < end:
        time.sleep(1e-3)
    return condition()


@several
def test_the_result_of_a_long_task_is_stored_while_the_next_one_runs(pool, path):
    """It waited for the end of that task, with which it was lost if the program was killed."""
    ran, late = [], []

    def run(k):
        if RANK and ran and not until(lambda: path.with_suffix(f".{ran[-1]}").exists()):
            late.append(k)
        ran.append(k)
        time.sleep(0.03)
        return k

    pool.map(run, 6 * SIZE, checkpoint=path, key="run", chunksize=1, callback=lambda k: path.with_suffix(f".{k}").touch())
    assert not any(COMM.allgather(late))


@several
@pytest.mark.parametrize("how", ["on the root", "elsewhere", "in the callback", "by leaving the loop"])
def test_all_that_ranks_have_finished_when_a_map_ends_early_is_stored(pool, path, how):
    """Results that had not been sent, or were in transit, were lost."""
    ran, fails = [], {"on the root": 0, "elsewhere": 1}.get(how)

    def run(k):
        time.sleep(1e-3)
        if fails == RANK and len(ran) == 3:
            raise ZeroDivisionError
        ran.append(k)
        return k

    def callback(k):
        if k == 2 and how == "in the callback":
            raise ZeroDivisionError

    expected = pytest.raises((lb_mpi.TaskError, lb_mpi.Error, ZeroDivisionError))
    with contextlib.nullcontext() if how == "by leaving the loop" else expected:
        for _ in pool.imap_unordered(run, 200 * SIZE, checkpoint=path, key="run", callback=callback):
            if how == "by leaving the loop":
                break
    finished = COMM.allgather(ran)
    if RANK == 0:
        assert sorted(lb_mpi.read_checkpoint(path)) == sorted(itertools.chain(*finished))


@several
def test_a_rank_whose_long_task_is_awaited_when_a_map_ends_early_is_named(pool, path):
    def run(k):
        if RANK == 0:
            until(lambda: len([*path.parent.glob("*.ran")]) == SIZE - 1)
            raise ZeroDivisionError
        path.with_suffix(f".{k}.ran").touch()
        time.sleep(1.5)
        return k

    names = pytest.warns(RuntimeWarning, match=r"ends early: the tasks that run on ranks? [1-9].* are awaited, to keep")
    with names if RANK == 0 else contextlib.nullcontext(), pytest.raises(lb_mpi.TaskError, match="ZeroDivisionError"):
        pool.map(run, SIZE, checkpoint=path, key="run")
    if RANK == 0:
        assert len(lb_mpi.read_checkpoint(path)) == SIZE - 1
