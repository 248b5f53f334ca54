"""Tasks that fail: tried again, interrupted after a time, returned, and left out of the checkpoint."""

import contextlib
import os
import signal
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.common import failure
from lb_mpi.mpi.pool import host_memory, orders
from tests.misbehaviour import NotForPickling
from tests.mpi.doors import DOORS
from tests.mpi.pools import from_root
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several

pytestmark = pytest.mark.mpi
CALLS = Counter[int]()


def at_the_third_attempt(k):
    CALLS[k] += 1
    if CALLS[k] < 3:
        raise ConnectionError(f"attempt {CALLS[k]}")
    return k


METHODS = {
    "map": lambda pool, items, **options: pool.map(at_the_third_attempt, items, **options),
    "starmap": lambda pool, items, **options: pool.starmap(at_the_third_attempt, zip(items), **options),
    "imap": lambda pool, items, **options: list(pool.imap(at_the_third_attempt, items, **options)),
    "a stream": lambda pool, items, **options: list(pool.imap(at_the_third_attempt, iter(items), **options)),
}


@pytest.mark.every_size
@pytest.mark.parametrize("method", METHODS)
def test_a_task_is_tried_again_on_its_rank(pool, method):
    for n in (0, 1, 30):
        CALLS.clear()
        found = METHODS[method](pool, range(n), retries=2, retry_pause=1e-4)
        assert (found or []) == ([*range(n)] if RANK == 0 else [])
        assert COMM.allreduce(sum(CALLS.values())) == 3 * n
    CALLS.clear()
    with pytest.raises(lb_mpi.TaskError, match=r"task 0 on rank \d: ConnectionError: attempt 2"):
        METHODS[method](pool, range(1), retries=1)
    assert COMM.allreduce(CALLS[0]) == 2


def nearly_over():
    """As if nearly all of its limit had gone by: no other task comes near a limit of this length."""
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def forever_at_5(k):
    if k == 5:
        nearly_over()
    while k == 5:
        time.sleep(0.01)
    return k


def busy_at_5(k):
    n = 0
    if k == 5:
        nearly_over()
    while k == 5:
        n += 1
    return k


@pytest.mark.parametrize(("function", "root"), [(forever_at_5, 0), (busy_at_5, None)])
def test_a_hung_task_is_named_with_its_rank_and_seconds(root, function):
    before = signal.getsignal(signal.SIGALRM)
    with lb_mpi.Pool(COMM, root=root) as pool:
        if pool is None:
            return
        for method in (pool.map, lambda *args, **options: list(pool.imap(args[0], iter(range(args[1])), **options))):
            words = r"task 5 on rank \d: TimeoutError: not finished after 999 s \(.*test_pool_failures.py:\d+, in \w+_at_5\)"
            with pytest.raises(lb_mpi.TaskError, match=words) as caught:
                method(function, 20, timeout=999)
            assert caught.value.index == 5
            found = method(function, 20, timeout=999, return_exceptions=True, retries=1)
            if pool.is_root:
                assert [type(one) for one in found] == [int] * 5 + [TimeoutError] + [int] * 14
        assert signal.getsignal(signal.SIGALRM) is before
        assert pool.map(abs, [-1]) == ([1] if pool.is_root else None)


def halves_its_limit(_):
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]
    signal.setitimer(signal.ITIMER_REAL, 500.0)  # as if half of it had gone by
    return left_s


def test_a_timeout_is_the_limit_of_each_task_not_of_all(pool):
    found = pool.map(halves_its_limit, 20 * SIZE, timeout=1000.0, chunksize=20)
    assert RANK or min(found or ()) > 900.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)  # no alarm is left over


def sets_an_alarm(_):
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def test_a_task_that_stops_the_alarm_does_no_harm_to_others(pool):
    assert pool.map(sets_an_alarm, 5, timeout=999, to="all") == [None] * 5


def test_an_alarm_of_the_program_is_an_error(pool):
    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with pytest.raises(lb_mpi.TaskError, match=r"timeout = 3: expected none while the program's own alarm timer runs"):
            pool.map(abs, 9, timeout=3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    assert pool.map(abs, [-1], to="all") == [1]


@from_root
def test_a_timeout_needs_the_main_thread(pool):
    said = []

    def work():
        try:
            pool.map(abs, 3, timeout=1)
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == ["timeout = 1 in a thread: expected the main thread, the only one that can be stopped"]


def test_ctrl_c_in_the_tasks_of_all_ranks_is_raised_on_all():
    def interrupted(_):
        COMM.Barrier()
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass

    def run():
        with lb_mpi.Pool(COMM, root=0) as pool:
            if pool:
                pool.map(interrupted, COMM.size, chunksize=1)

    with pytest.raises(KeyboardInterrupt):
        run()


def nested(comm):
    with lb_mpi.Pool(comm) as pool:
        return pool.map(abs, [-1])


@several
def test_a_task_of_an_executor_that_opens_a_pool_of_other_ranks_is_an_error():
    """It waited for them without end."""
    says = "a collective call in a task of a pool, on ranks that it would wait for without end: expected MPI.COMM_SELF"
    with lb_mpi.Executor(COMM) as executor:
        if executor:
            assert executor.submit(nested, MPI.COMM_SELF).result() == [1]
            with pytest.raises(lb_mpi.Error, match=says):
                executor.submit(nested, COMM).result()


COLLECTIVE = [name for name in DOORS if name != "Pool.close"]


@several
@pytest.mark.parametrize("name", COLLECTIVE)
def test_a_collective_call_in_a_task_is_an_error(pool, name, tmp_path):
    """It waited for the other ranks without end, also if what it needs had been made before."""
    says = "a collective call in a task of a pool, on ranks that it would wait for without end"
    with DOORS[name][1](COMM, COMM.bcast(tmp_path / "saves")) as call:
        with pytest.raises(lb_mpi.TaskError, match=says):
            pool.map(lambda _: call() is None, 2)
        assert pool.map(abs, [-1], to="all") == [1]
        call()


@several
@pytest.mark.parametrize("open_door", [lb_mpi.Balancer, lambda comm: lb_mpi.distribute(comm, lb_mpi.graph.parse("ring:12"))])
def test_an_error_by_which_a_task_leaves_a_block_is_raised_itself(pool, open_door):
    """An error about the block's close hid it."""
    opened = open_door(COMM)

    def task(_):
        with opened:
            raise KeyError("of the task")

    with pytest.raises(lb_mpi.TaskError, match="KeyError: 'of the task'"):
        pool.map(task, 1)
    with contextlib.suppress(lb_mpi.Error):  # of the rank that has left
        opened.close()


class Unusual(BaseException):
    """No Exception."""


@pytest.mark.every_size
def test_what_is_no_exception_is_raised_again_on_its_rank(pool):
    """On the root it was a TaskError."""

    def task(k):
        CALLS[k] += 1
        raise Unusual("no news")

    CALLS.clear()
    with pytest.raises((Unusual, lb_mpi.TaskError)) as caught:
        pool.map(task, SIZE, chunksize=1)
    assert isinstance(caught.value, Unusual) == bool(CALLS)
    assert "no news" in str(caught.value)


@pytest.mark.every_size
@pytest.mark.parametrize("kind", ["pool", "executor"])
def test_ranks_that_run_tasks_raise_the_error_by_which_the_root_leaves(kind):
    """They went on with the program, and waited for the root in its next collective call."""

    def leave(error):
        with lb_mpi.Pool(COMM, root=0) if kind == "pool" else lb_mpi.Executor(COMM) as tasks:
            if tasks:
                assert [*tasks.map(abs, range(-3, 0))] == [3, 2, 1]
                raise error

    root_only = ValueError if COMM.rank == 0 else lb_mpi.Error
    with pytest.raises(root_only, match="mine" if COMM.rank == 0 else "rank 0: ValueError: mine"):
        leave(ValueError("mine"))
    with pytest.raises(SystemExit) if COMM.rank == 0 else contextlib.nullcontext():
        leave(SystemExit(3))  # no error, but the end of the root's part
    leave_regularly = lb_mpi.Pool(COMM)
    assert leave_regularly.map(abs, [-5], to="all") == [5]
    leave_regularly.close()


def test_a_map_in_the_loop_over_results_of_another_pool_is_an_error():
    says = "a collective call before all results of a pool's map are taken, on ranks that it would wait for without end"

    def use(call):
        with lb_mpi.Pool(COMM) as outer, lb_mpi.Pool(COMM) as inner:
            for _ in outer.imap(abs, range(4)):
                with lb_mpi.Pool(MPI.COMM_SELF) as alone:
                    assert alone.map(abs, 2) == [0, 1]
                call(inner)
            if RANK:
                inner.map(abs, ())

    calls = [
        lambda pool: pool.map(abs, range(3)), lambda _: lb_mpi.Pool(COMM), lambda _: lb_mpi.Balancer(COMM),
    ]  # fmt: skip
    for call in calls if SIZE > 1 else []:
        with pytest.raises(lb_mpi.Error, match=says):
            use(call)


def test_a_collective_call_while_the_others_run_tasks_is_an_error():
    says = "a collective call while the other ranks serve a pool or an executor that is open, on ranks that it would wait"
    for make in (lambda: lb_mpi.Pool(COMM, root=0), lambda: lb_mpi.Executor(COMM)):
        with make() as pool:
            if pool is not None and SIZE > 1:
                with pytest.raises(lb_mpi.Error, match=says):
                    lb_mpi.Pool(COMM)
                with pytest.raises(lb_mpi.Error, match=says):
                    lb_mpi.search(COMM, None)
    assert lb_mpi.Pool(COMM, root=0).close() is None


def test_a_rank_that_runs_no_tasks_of_an_executor_is_named(monkeypatch):
    executor = lb_mpi.Executor(COMM, root_works=False)
    monkeypatch.setenv("LB_MPI_HANG_S", "0.05")
    if executor and SIZE > 1:
        with warnings.catch_warnings(record=True) as found:
            futures = [executor.submit(abs, k) for k in range(SIZE)]
            while not found:
                time.sleep(0.01)
        assert "got a first task of lb_mpi.Executor 0 s ago: it is long, or not answered" in str(found[0].message)
        COMM.bcast(None)  # only now, the others serve
        assert [future.result() for future in futures] == [*range(SIZE)]
    elif not executor:
        COMM.bcast(None)
    executor.shutdown()


def wrong_result(k):
    return NotForPickling() if k == 3 else k


class Unloadable:
    """A result that can't be unpickled; `wrong`: in every chunk, it is not the first one."""

    def __init__(self, wrong):
        self.wrong = wrong

    def __reduce__(self):
        return divide, (3 if self.wrong else 4,)


def wrong_result_of_another_rank(k):
    return Unloadable(k % 4 == 2 and (RANK > 0 or SIZE == 1))


def divide(k):
    return 1 / (k - 3)


def test_the_task_whose_result_can_t_be_unpickled_is_named(pool):
    for call in (pool.map, pool.imap):
        with pytest.raises(lb_mpi.TaskError, match="division by zero") as caught:
            [*call(wrong_result_of_another_rank, range(16), chunksize=4)]
        assert caught.value.index % 4 == 2


@pytest.mark.parametrize("pool", [None, 0], indirect=True)
@pytest.mark.parametrize(("make", "padding", "index"), [(iter, 0, 6), (list, 5000, 6), (list, 0, None)])
def test_no_other_task_is_named_for_an_item_that_can_t_be_unpickled(pool, make, padding, index):
    """The first task of its batch or block was named; small items of a list are pickled together."""
    items = [(Unloadable(k == 6), bytes(padding)) for k in range(16)]
    with pytest.raises(lb_mpi.TaskError, match=r"an item can't be unpickled: ZeroDivisionError.* in divide") as caught:
        [*pool.imap(len, make(items), chunksize=4)]
    assert caught.value.index == (index if SIZE > 1 or make is iter else None)  # one rank keeps a list as one pickle
    if pool.is_root:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("pool", [None, 0], indirect=True)
def test_errors_of_tasks_name_the_lines_of_the_user_only(pool, capsys):
    for function in (divide, wrong_result):
        with pytest.raises(lb_mpi.TaskError) as caught:
            pool.map(function, 6, chunksize=1)
        line = function.__code__.co_firstlineno + (function is divide)
        assert str(caught.value).endswith(f"({__file__}:{line}, in {function.__name__})")
        failure.hook(type(caught.value), caught.value, caught.value.__traceback__)
        printed = capsys.readouterr().err
        if function is divide:
            assert "lb_mpi/mpi" not in caught.value.traceback
            assert printed.replace(str(Path(__file__).parent), "").count("lb_mpi/mpi") == 0


@several
@pytest.mark.parametrize(("module", "name"), [(host_memory, "SharedTimings"), (orders, "presence_of")])
def test_a_rank_without_memory_for_a_pool_is_an_error_on_all_ranks(module, name, monkeypatch):
    """The others waited for it in MPI without end."""

    def fail(*_):
        raise MemoryError("on purpose")

    if COMM.rank == LAST:
        monkeypatch.setattr(module, name, fail)
    with pytest.raises(MemoryError if COMM.rank == LAST else lb_mpi.Error, match="on purpose"):
        lb_mpi.Pool(COMM)
    monkeypatch.undo()
    lb_mpi.Pool(COMM).close()
