"""lb_mpi.Executor on real ranks: futures, callbacks, exceptions, threads, several at once, initializers and maps."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
import weakref
from concurrent.futures import BrokenExecutor, CancelledError, wait
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

import lb_mpi
from lb_mpi.mpi.common.collective import agree
from lb_mpi.mpi.pool import arrays, dispatcher, running
from lb_mpi.pooling.scheduler import Scheduler
from tests.misbehaviour import NotForPickling
from tests.mpi.pools import fill, in_script
from tests.mpi.sizes import COMM, LAST, SIZE, several
from tests.process.lab import until

WORKERS = max(1, SIZE - 1)  # where the root does not work
pytestmark = pytest.mark.mpi
initialized = []


@pytest.fixture
def executor(request):
    """An executor that all ranks make, with the options of the parameter."""
    with lb_mpi.Executor(COMM, **getattr(request, "param", {})) as executor:
        assert (executor is None) == (COMM.rank != 0)
        yield executor
    assert [one.name for one in threading.enumerate() if one.name.startswith("lb_mpi")] == []


def on_root(use, **options):
    """Call `use` on the root, with an executor that all ranks make; what it raises, all raise."""

    def run():
        with lb_mpi.Executor(COMM, **options) as executor:
            if executor is not None:
                use(executor)

    agree(COMM, run)


def slow_rank(_=None):
    time.sleep(0.05)
    return COMM.rank


class Unsendable(Exception):
    """Can be pickled, but not read again."""

    def __init__(self, a, b):
        super().__init__("nine")


def interrupt():
    raise KeyboardInterrupt


class Interrupting:
    """Can be pickled, but raises KeyboardInterrupt when it is read."""

    def __reduce__(self):
        return interrupt, ()


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    def __len__(self):
        return 0


def fail(how):
    if how == "value":
        raise ValueError(how)  # on purpose
    if how == "exit":
        sys.exit(3)
    raise Unsendable(1, 2) if how == "unread" else Mute()


def remember(number):
    initialized.append(number)
    return threading.Lock()  # as that of threadpoolctl, it can't be pickled


def recall(_):
    time.sleep(0.01)
    return COMM.rank, initialized


@pytest.mark.every_size
def test_tasks_run_on_all_ranks_and_come_in_order(executor):
    assert executor.num_workers == executor._max_workers == SIZE
    assert list(executor.map(pow, range(1000), itertools.repeat(2))) == [n * n for n in range(1000)]
    assert executor.submit(pow, 2, exp=5).result() == 32
    assert {*executor.map(slow_rank, range(4 * SIZE))} == {*range(SIZE)}
    large = np.arange(300_000.0)
    for unordered in (False, True):
        for result in executor.map(np.negative, [large] * SIZE, unordered=unordered):
            assert np.array_equal(result, -large)
            alive = weakref.ref(result)
            del result  # as in CPython's suite: the iterator keeps no reference
            assert executor.submit(abs, 1).result() == 1  # the dispatcher has left the frame that gave the result
            assert alive() is None


@pytest.mark.every_size
@pytest.mark.parametrize("executor", [{"root_works": False}], indirect=True)
def test_the_report_counts_each_task_on_its_rank(executor):
    assert "0 tasks in 0.000 s" in str(executor.report())
    ran = [*executor.map(slow_rank, range(4 * SIZE))]
    executor.shutdown()
    report = executor.report()
    assert [one.done for one in report.ranks] == [ran.count(rank) for rank in range(SIZE)]
    assert report.n == 4 * SIZE
    assert [one.sent_bytes > 0 for one in report.ranks] == [SIZE > 1 and rank in {0, *ran} for rank in range(SIZE)]
    assert 0.0 < max(one.busy_s for one in report.ranks) <= report.seconds
    assert 0.0 < report.lower_bound_s <= report.seconds


@pytest.mark.parametrize("executor", [{"root_works": False}, {"max_workers": WORKERS}], indirect=True)
@pytest.mark.every_size
def test_fewer_ranks(executor):
    assert executor.num_workers == WORKERS
    assert {*executor.map(slow_rank, range(4 * SIZE))} == ({*range(1, SIZE)} or {0})


def test_exceptions_come_with_their_traceback(executor):
    with pytest.raises(ValueError, match="value") as caught:
        executor.submit(fail, "value").result()
    cause = caught.value.__cause__
    assert isinstance(cause, lb_mpi.TaskError)
    assert 0 <= cause.rank < SIZE
    assert 'raise ValueError(how)  # on purpose' in cause.traceback
    assert cause.__notes__ == [cause.traceback]  # so that it is printed
    left = executor.submit(fail, "exit").exception()
    assert isinstance(left, SystemExit)
    assert left.code == 3
    unread = executor.submit(fail, "unread").exception()
    assert isinstance(unread, lb_mpi.TaskError)
    assert "Unsendable: nine" in str(unread)
    assert isinstance(executor.submit(fail, "mute").exception(), Mute)
    with pytest.raises(Mute):
        executor.submit(fail, "mute").result()
    assert executor.submit(abs, -1).result() == 1


def test_a_pickling_error_is_the_exception_of_its_future(executor):
    for future in (executor.submit(abs, NotForPickling()), executor.submit(NotForPickling)):
        assert isinstance(future.exception(), Exception)
    assert isinstance(executor.submit(Interrupting).exception(), KeyboardInterrupt)
    assert executor.submit(abs, -1).result() == 1


def test_a_future_as_an_argument_is_an_error_that_says_what_to_pass(executor):
    one = executor.submit(abs, -1)
    for future in (executor.submit(abs, one), executor.submit(max, [2, {"a": one}]), executor.submit(max, 2, key=one)):
        error = future.exception()
        assert isinstance(error, TypeError)
        assert str(error) == "an argument is a Future: expected its result (pass future.result())"
    assert executor.submit(abs, one.result()).result() == 1


def late(k):
    time.sleep(0.002 * (k % 3))
    return k


@pytest.mark.every_size
@pytest.mark.parametrize("n", [0, 1, 40])
def test_costs_order_the_tasks_and_not_the_results(executor, n):
    for costs in (range(n), np.zeros(n), [1e300 * (k % 2) for k in range(n)], np.arange(n, dtype="f4")[::-1]):
        assert [*executor.map(late, range(n), costs=costs)] == [*range(n)]
        assert sorted(executor.map(late, range(n), costs=costs, unordered=True)) == [*range(n)]
    assert [*executor.starmap(pow, [(k, 2) for k in range(n)], costs=range(n))] == [k * k for k in range(n)]
    for wrong, options, text in [
        ([1.0] * (n + 1), {}, r"costs of shape"), ([-1.0] * n, {}, r"costs\[0\] = -1.0: expected a finite number >= 0"),
        ([1.0] * n, {"chunksize": 2}, "expected chunksize = 1"), ([1.0] * n, {"buffersize": 2}, "no buffersize"),
    ]:  # fmt: skip
        if n or "0" not in text:
            with pytest.raises(ValueError, match=text):
                executor.map(late, range(n), costs=wrong, **options)
    assert executor.report().n == 9 * n  # nothing was submitted with wrong ones


def test_callbacks_run_in_one_thread_and_may_be_slow(executor):
    seen, threads = [], set()

    def slow(future):
        time.sleep(0.01)
        seen.append(future.result())
        threads.add(threading.get_ident())

    for k in range(20):
        executor.submit(late, k).add_done_callback(slow)
    executor.shutdown()
    assert sorted(seen) == [*range(20)]
    assert len(threads - {threading.get_ident()}) == 1


def test_callbacks_may_submit(executor):
    later, done = [], threading.Event()

    def more(future):
        later.append(executor.submit(abs, -future.result()))
        done.set()

    executor.submit(abs, -3).add_done_callback(more)
    assert done.wait(60)
    assert later[0].result() == 3


def test_no_thread_starts_while_the_lock_is_held(monkeypatch):
    """A thread that starts may collect garbage, and finalize another executor, which needs the lock: both hung for ever."""
    held, begin = [], dispatcher.OwnTasks.begin

    def checked(own):
        held.append(arrays.LOCK._is_owned())
        begin(own)

    monkeypatch.setattr(dispatcher.OwnTasks, "begin", checked)
    on_root(lambda executor: executor.submit(abs, -1).result())
    assert held == ([] if COMM.rank else [False])


def test_the_error_of_a_task_that_needs_the_main_thread_names_root_works():
    task, outcomes = pickle.dumps((signal.signal, (signal.SIGUSR1, signal.SIG_IGN), {})), []
    thread = threading.Thread(target=lambda: outcomes.append(running._run_submitted(0, task)))
    thread.start()
    thread.join()
    assert "expected lb_mpi.Executor(root_works=False)" in pickle.loads(outcomes[0][1]).traceback


@pytest.mark.every_size
def test_cancel_and_shutdown(executor):
    many = [executor.submit(slow_rank) for _ in range(20 * SIZE)]
    last = executor.submit(slow_rank)
    assert last.cancel()
    assert last.cancelled()
    with pytest.raises(CancelledError):
        last.result()
    for one in many[3 * SIZE :]:
        one.cancel()
    assert not wait([*many, last], timeout=60).not_done
    many = [executor.submit(slow_rank) for _ in range(20 * SIZE)]
    executor.shutdown(wait=False, cancel_futures=True)
    done, left = wait(many, timeout=60)
    assert not left
    assert {one.cancelled() for one in done} == {True, False}
    executor.shutdown()
    executor.shutdown()
    assert executor.num_workers == 0
    for call in (lambda: executor.submit(abs, 1), executor.bootup):
        with pytest.raises(RuntimeError, match="after shutdown"):
            call()


def fork(_):
    child = os.fork()
    return ("parent", os.waitpid(child, 0)[1]) if child else ("child", 0)


def counted_fork(path, k):
    with path.open("ab") as file:
        file.write(b".")
    if k < 0:
        fork(k)
        raise ValueError(k)
    return fork(k)


def test_a_child_that_a_task_has_forked_does_not_go_on_as_a_rank(tmp_path):
    path = COMM.bcast(tmp_path / "calls")
    n, calls = 2 * SIZE, functools.partial(counted_fork, path)

    def use(executor):
        assert [*executor.map(calls, range(n))] == [("parent", 256)] * n
        assert [*executor.map(calls, range(n), chunksize=n)] == [("parent", 256)] * n

    on_root(use)
    found = []
    with lb_mpi.Pool(COMM) as pool:
        assert pool.map(calls, n, chunksize=n, callback=lambda one: found.append(fork(one))) == (
            [("parent", 256)] * n if COMM.rank == 0 else None
        )
        assert found == [("parent", 256)] * len(found)
        pool.map(calls, [-1] * n, chunksize=n, retries=1, return_exceptions=True)
        assert COMM.rank or path.stat().st_size == 5 * n


def test_maps(executor, monkeypatch):
    for name in ("map", "starmap"):
        monkeypatch.delattr(MPIPoolExecutor, name)  # whose arguments depend on the version of mpi4py
    taken = []

    def items():
        for n in range(100):
            taken.append(n)
            yield n

    results = executor.map(abs, items(), buffersize=3)
    assert (len(taken), next(results), len(taken)) == (3, 0, 4)
    assert list(results) == [*range(1, 100)]
    assert sorted(executor.map(abs, range(100), chunksize=7, unordered=True)) == [*range(100)]
    assert list(executor.starmap(pow, [(2, 3), (3, 2)], chunksize=5)) == [8, 9]
    for chunksize in (1, 7):
        for unordered in (False, True):
            found = executor.map(fill, range(40), chunksize=chunksize, unordered=unordered)
            assert sorted(one.tolist() for one in found) == [[k, k] for k in range(40)]
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        executor.map(abs, [], chunksize=0)


class Heavy:
    """A model that changes itself in each call."""

    def __init__(self, data):
        self.data, self.n_calls, self.blob = data, 0, b""

    def call(self, same, k):
        self.n_calls += 1
        if self.data.flags.writeable:
            self.data[0, 0] += 1.0
        return same is self.data, self.data.flags.f_contiguous, float(self.data.sum()) + k, self.n_calls

    def counts(self, k):
        return k


@pytest.mark.parametrize("by_host", [False, True])
def test_a_large_array_is_sent_once_to_each_host_until_it_changes(by_host):
    """Each task sees the array as it was at `submit`, and its own changes alone; what is freed leaves nothing behind."""

    def run():
        kept = dict(arrays._kept)
        with lb_mpi.Executor() as executor:
            model, futures, expected = Heavy(np.asfortranarray(np.ones((300, 500)))), [], []
            for k in range(8 * SIZE):
                if k == 4 * SIZE:
                    model.data[1, 1] = 5.0
                if k == 6 * SIZE:
                    model.data.flags.writeable = False
                futures.append(executor.submit(model.call, model.data, k))
                writeable = 1.0 if k < 6 * SIZE else 0.0
                expected.append((True, True, float(model.data.sum()) + writeable + k, 1))
            assert [future.result() for future in futures] == expected
            assert model.data[0, 0] == 1.0
            sent = sum(rank.sent_bytes for rank in executor.report().ranks)
            n_hosts, n_bytes = SIZE if by_host else 1, model.data.nbytes
            assert sent < 2 * (n_hosts + 1) * n_bytes, "twice to each host: as it was, and as changed; and once with a task"
            assert sent >= 2 * n_bytes * (n_hosts > 1), "one of the ranks may run all tasks"
            model.data = np.zeros(200_000)
            assert executor.submit(model.counts, 3).result() == 3
            model.data.resize(150_000, refcheck=False)
            assert [executor.submit(np.sum, model.data).result() for _ in range(3)] == [0.0] * 3
            del model
            executor.submit(np.sum, np.zeros(200_000)).result()
        assert arrays._kept == kept

    in_script(run, hosts=MPI.COMM_SELF if by_host else None)
    assert (arrays._kept, arrays._mapped, arrays._paths) == ({}, {}, {})


@pytest.mark.parametrize("path", ["another", "/proc/0/fd/0"])
def test_a_large_array_is_read_from_no_other_file(path):
    """As between containers on one host, which number their processes each by itself."""
    other = arrays.store("other", bytes(8))
    arrays.store("own", bytes(8))
    arrays.locate({"own": other if path == "another" else path})
    try:
        with pytest.raises(lb_mpi.Error, match="ranks that see each other in /proc"):
            arrays.attached("own", np.dtype(float), (1,), "C", True)
    finally:
        arrays.forget(["own", "other"])


def test_large_arrays_of_a_pools_tasks_are_freed_before_a_map():
    def run():
        with lb_mpi.Pool() as pool:
            data = np.ones(200_000)
            for _ in range(2):
                assert [pool.apply_async(np.sum, (data,)).get() for _ in range(2 * SIZE)] == [200_000.0] * 2 * SIZE
                assert {*pool.map(files, range(8 * SIZE))} == {0}

    in_script(run, hosts=MPI.COMM_SELF)


def files(_):
    time.sleep(0.001)
    return len(arrays._kept) + len(arrays._paths)


def test_a_large_function_that_is_sent_with_each_task_is_named_once(executor):
    model = Heavy(np.zeros(0))
    model.blob = bytes(2_000_000)
    with warnings.catch_warnings(record=True) as caught:
        assert [*executor.map(model.counts, range(6))] == [*range(6)]
        assert executor.submit(len, bytes(2_000_000)).result() == 2_000_000
    (text,) = (str(one.message) for one in caught)
    assert re.search("Heavy.counts.*: its 2.0 MB have been sent with three tasks", text)


@pytest.mark.every_size
def test_initializer_runs_once_on_each_rank():
    initialized.clear()

    def use(executor):
        assert executor.bootup() is executor
        assert dict(executor.map(recall, range(8 * SIZE))).items() <= {rank: [7] for rank in range(SIZE)}.items()

    on_root(use, initializer=remember, initargs=(7,))
    assert initialized == [7]


@pytest.mark.every_size
def test_initializer_that_raises_breaks_its_executor_only():
    def use(executor):
        first = executor.submit(abs, 1)
        with pytest.raises(BrokenExecutor, match=r"the initializer of lb_mpi.Executor has failed on rank \d: ValueError"):
            first.result()
        with pytest.raises(BrokenExecutor):
            executor.submit(abs, 1)
        assert executor.num_workers == 0

    logging.getLogger("concurrent.futures").disabled = True
    try:
        on_root(use, initializer=fail, initargs=("value",))
    finally:
        logging.getLogger("concurrent.futures").disabled = False
    on_root(lambda executor: executor.submit(abs, 1).result())


def test_an_error_in_the_thread_that_runs_the_roots_tasks_breaks_the_executor(monkeypatch):
    def full(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("lb_mpi.mpi.pool.dispatcher.run_submitted", full)
    executor = lb_mpi.Executor(MPI.COMM_SELF)
    future = executor.submit_sharing(functools.partial(len, np.ones(1000)), 100)
    with pytest.raises(BrokenExecutor, match="no room"):
        future.result(20.0)
    executor.shutdown()
    assert arrays._kept == {}


@several
def test_an_executor_begins_with_the_speeds_that_the_one_before_has_learned(monkeypatch):
    began = []

    class Noted(Scheduler):
        def __init__(self, size, root, knowledge):
            super().__init__(size, root, knowledge)
            began.append(knowledge.speeds)

    def script():
        for _ in range(2):
            with lb_mpi.Executor() as executor:
                assert [*executor.map(slow_rank, range(3 * SIZE))]
        assert began[0] == [1.0] * SIZE
        assert min(began[1]) < 1.0

    monkeypatch.setattr(dispatcher, "Scheduler", Noted)
    in_script(script)


def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return True


def nap_or_await(path=""):
    return await_file(path) if path else time.sleep(3e-3)


@several
@pytest.mark.parametrize("function", ["another", "same"])
def test_results_do_not_wait_for_a_task_that_waits_for_them(executor, function, tmp_path):
    """Results waited for the last task of their batch, and tasks behind a long one: a task that waits for them hung."""
    if executor is None:
        return
    waiting = (await_file, str(tmp_path / "go")) if function == "another" else (nap_or_await, str(tmp_path / "go"))
    short = [executor.submit(nap_or_await) for _ in range(40)]
    wait(short)
    before = [executor.submit(nap_or_await) for _ in range(8 * SIZE + 1)]
    waits = executor.submit(*waiting)
    after = [executor.submit(nap_or_await) for _ in range(40)]
    awaited = before + after if function == "another" else before
    done, _ = wait(awaited, timeout=20.0)
    (tmp_path / "go").touch()
    assert waits.result()
    assert len(done) == len(awaited)


def test_a_map_does_not_wait_for_the_tasks_of_an_open_executor(tmp_path):
    def script():
        with lb_mpi.Pool() as pool, lb_mpi.Executor() as executor:
            future = executor.submit(await_file, str(tmp_path / "go"))
            with pytest.raises(lb_mpi.Error, match=r"work for an lb_mpi\.Executor, which is open"):
                pool.map(abs, [1])
            (tmp_path / "go").touch()
            assert future.result()

    in_script(script)


@pytest.mark.every_size
def test_a_block_that_raises_ends_when_its_tasks_are_done():
    futures = []

    def use(executor):
        futures.extend(executor.submit(slow_rank) for _ in range(3 * SIZE))
        raise ZeroDivisionError("on purpose")

    with pytest.raises(lb_mpi.Error if COMM.rank else ZeroDivisionError, match="on purpose"):
        on_root(use)
    assert all(future.result() in range(SIZE) for future in futures)


def test_a_rank_that_runs_tasks_submits_none():
    executor = lb_mpi.Executor(COMM)
    if COMM.rank:
        with pytest.raises(lb_mpi.Error, match="this rank runs tasks of the executor"):
            executor.submit(abs, 1)
    else:
        assert executor.submit(abs, -1).result() == 1
    executor.shutdown()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    where: float

    def __reduce__(self):
        return Frozen, (self.where,)


def freeze(k):
    raise Frozen(k)


def test_an_exception_that_allows_no_attributes_is_that_of_its_future(executor):
    for error in [executor.submit(freeze, k).exception() for k in range(2 * SIZE)]:
        assert isinstance(error, Frozen)
        assert isinstance(error.__cause__, lb_mpi.TaskError)


def open_and_close():
    for _ in range(3):
        with lb_mpi.Balancer(COMM) as balancer:
            assert balancer.map_rows(np.sqrt, np.ones(3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("in_main", [False, True])
@several
def test_threads_that_all_ranks_have_make_collective_calls_beside_an_executor(in_main):
    """The root alone refused them, and the others waited for it without end."""
    executor, errors, opened, called = lb_mpi.Executor(COMM), [], threading.Event(), threading.Event()

    def use():
        with executor:
            opened.set()
            if COMM.rank == 0:
                assert [executor.submit(abs, -k).result() for k in range(9)] == [*range(9)]
                assert called.wait(60)

    def call():
        if COMM.rank == 0:
            assert opened.wait(60)
        try:
            open_and_close()
        except BaseException as error:
            errors.append(error)
        called.set()

    mine, other = (use, call) if in_main else (call, use)
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    mine()
    thread.join()
    assert not errors


@several
def test_a_rank_that_is_interrupted_as_it_closes_is_an_error_of_the_shutdown(monkeypatch):
    """It was the traceback of a thread on the root, and a shutdown that went well."""
    executor = lb_mpi.Executor(COMM)
    if COMM.rank == LAST:
        monkeypatch.setattr(executor._ranks.parcels, "drain", lambda: signal.default_int_handler(signal.SIGINT, None))
    if COMM.rank == 0:
        assert executor.submit(abs, -1).result() == 1
    with pytest.raises(KeyboardInterrupt if COMM.rank == LAST else lb_mpi.Error):
        executor.shutdown()
    executor.shutdown()  # only waits


@several
def test_results_that_have_arrived_are_kept_when_an_executor_breaks():
    """A Ctrl-C dropped results that the root had received."""
    ranks = [*range(1, SIZE)]

    def use(executor):
        def interrupt(_):
            until(lambda: all((seen / str(k)).exists() for k in ranks))
            time.sleep(0.2)  # for the results on their way
            executor._dispatcher.interrupt()

        with tempfile.TemporaryDirectory() as folder:
            seen = Path(folder)
            first = executor.submit(abs, -1)
            first.add_done_callback(interrupt)
            others = [executor.submit(Path.touch, seen / str(k)) for k in ranks]
            assert first.result() == 1
            assert [future.result() for future in others] == [None for _ in ranks]

    with pytest.raises(lb_mpi.Error, match="KeyboardInterrupt"):
        on_root(use, root_works=False)
