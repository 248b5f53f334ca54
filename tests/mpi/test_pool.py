"""lb_mpi.Pool on real ranks: every task once, in both ways of use; all ranks raise what is wrong, and then it's as new."""

import contextlib
import functools
import itertools
import os
import pickle
import random
import re
import signal
import sys
import time
import types
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.common import communicator
from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.waiting import Clocks
from lb_mpi.mpi.pool import maps, member
from lb_mpi.mpi.pool.arguments import name_of, sample_of
from lb_mpi.mpi.pool.member import Member
from lb_mpi.mpi.pool.running import Ran
from lb_mpi.mpi.pool.script import WORKER, open_script, run_script
from lb_mpi.pooling import plan
from lb_mpi.pooling.beginning import Wish
from lb_mpi.pooling.intervals import EPOCHS, MAPS
from tests.clock import pass_time
from tests.misbehaviour import RAISES, NotForPickling
from tests.mpi.pools import fail_at, from_root, in_script, square
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, parameters, several
from tests.protocol.mutate import rejects

pytestmark = pytest.mark.mpi


def spin(seconds):
    pass_time(seconds)
    return RANK


ITEMS = {
    "number": 1000,
    "range": range(5, 900, 7),
    "list": [{"k": k} for k in range(700)],
    "rows": np.arange(600.0).reshape(200, 3),
    "scalars": np.arange(300, dtype="i2"),
    "objects": np.array([1, "a", None], dtype=object),
    "generator": (k for k in range(50)),
    "large": np.ones((50, 5000)),
    "nothing": [],
    "one": [7],
    "far range": range(2**70, 2**70 + 500, 5),
    "far steps": range(0, 2**70, 2**63),
    "150 fields": np.zeros(30, [(f"field {k}", "f8") for k in range(150)]),
    "other letters": np.ones(90, [("Größe", "f8"), ("高さ", "i2")]),
    "no bytes": np.zeros(90, "V0"),
    "no letters": np.zeros(90, "S0"),
    "no fields": np.zeros((90, 2), []),
    "aligned": np.ones(90, np.dtype([("a", "i1"), ("b", ">f8"), ("c", "f4", (2, 2))], align=True)),
    "records": np.ones(90, np.dtype((np.record, [("a", "i1")]))),
    "titles": np.ones(90, [(("title", "a"), "i1")]),
    "dates": np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]"),
    "no columns": np.zeros((90, 0)),
}


@pytest.mark.parametrize("name", parameters(ITEMS, every_size=["nothing", "one", "generator"], every_mpi=["one", "large"]))
def test_each_task_once_in_order(pool, name):
    items = list(ITEMS[name]) if name == "generator" else ITEMS[name]
    if name == "generator":
        ITEMS[name] = items
    expected = [repr(item) for item in (range(items) if isinstance(items, int) else items)]
    given = items if RANK == 0 else None
    for options in ({}, {"chunksize": 3}, {"costs": np.arange(len(expected)) % 7.0}):
        results = pool.map(repr, given, **options)
        assert results == (expected if RANK == 0 else None)
    assert pool.map(repr, given, to="all") == expected
    if RANK == 0:
        report = pool.report()
        assert sum(rank.done for rank in report.ranks) == report.n == len(expected)
        assert str(report).count("\n") == SIZE + 1
        assert ("mpiexec -n starts more" in str(report)) == (SIZE == 1)
    else:
        assert pool.report() is None


def wait(seconds):
    time.sleep(seconds)
    return seconds


@pytest.mark.one_mpi
@pytest.mark.parametrize("pool", [None, LAST], indirect=True)
def test_costs_are_learned_from_a_map_of_the_same_items(pool):
    items = [1e-3 * (2 + 7 * k % 11) for k in range(12)]
    for given in (items, items, items[:5], items):
        assert pool.map(wait, given if pool.is_root else None) == (given if pool.is_root else None)
        if pool.is_root and SIZE > 1:
            learned = pool._maps.memory.predict(name_of(wait), functools.partial(sample_of, given), len(given))
            assert learned is not None or given is items  # another process may have disturbed one of two maps
            assert learned is None or (learned.shape == (len(given),) and (learned > 1e-3).all())
    assert not pool.is_root or pool._maps.memory.predict(name_of(wait), functools.partial(sample_of, items[1:]), 11) is None
    assert pool.map(square, [3, 1, 2] if pool.is_root else None) == ([9, 1, 4] if pool.is_root else None)


@pytest.mark.parametrize("pool", [None, 0], indirect=True)
def test_several_iterables_as_the_builtin_map(pool):
    rows = np.arange(60.0).reshape(30, 2)
    given = [
        (range(40), [3] * 35), (50, itertools.repeat(2)), (rows, rows[:20], 10**6), ([], [1]), ([1], [])
    ]  # fmt: skip
    for items in given:
        expected = [repr(one) for one in zip(*(range(one) if isinstance(one, int) else one for one in items))]  # noqa: B905
        assert pool.map(as_text, *(items if pool.is_root else ())) == (expected if pool.is_root else None)
        assert dict(pool.imap_indexed(as_text, *items)) == dict(enumerate(expected) if pool.is_root else ())
    assert pool.map(change, rows, 20) == ([2.0] * 20 if pool.is_root else None)
    assert rows[0, 1] == 1.0
    with pytest.raises(TypeError, match=r"items = 'abc': expected"):
        pool.map(as_text, [1], "abc")
    if pool._ranks.alone:
        with pytest.raises(TypeError, match=r"items = None: expected"):
            pool.map(as_text)


def as_text(*arguments):
    return repr(arguments)


def change(row, k):
    row[:] = k
    return 2.0


WORK = np.zeros((3, 4))  # that a function uses for each of its results


class Box:
    def __init__(self, content):
        self.content = content


FORMS = {
    "itself": lambda work: work,
    "in a tuple": lambda work: (1, (work, work)),
    "in a dict": lambda work: {"work": work},
    "in an object": Box,
    "in an array": lambda work: np.array([work, None], dtype=object),
    "a column": lambda work: work[:, 1],
    "transposed": lambda work: work.T,
    "backwards": lambda work: work[::-1],
    "a record": lambda work: work.view([("x", "f8"), ("y", "f8", (3,))])[0, 0],
    "empty": lambda work: work[:0],
    "huge": lambda work: np.repeat(work, 10_000, axis=0),
    "read-only": lambda work: np.broadcast_to(work, (2, 3, 4)),
    "numbers": lambda work: (float(work[0, 0]), work[0, 0], str(work[1, 1]), None, True),
    "a list": lambda work: work.tolist(),
    "an exception": lambda work: ValueError(work),
}


def fill(form, k):
    WORK[:] = k
    WORK[1] += np.arange(4)
    return FORMS[form](WORK)


def described(value):
    """Describe a value with its type, and arrays with their order in memory; the same object twice counts as such."""
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {value.flags.f_contiguous} {value.flags.writeable} {hash(value.tobytes())}"
    parts = {Box: vars, ValueError: vars, dict: dict.items}.get(type(value), iter)(value) if is_compound(value) else ()
    same = isinstance(value, tuple) and len({id(one) for one in value}) < len(value)
    return f"{type(value)} {same} {getattr(value, 'args', value if not parts else '')!r} {[*map(described, parts)]}"


def is_compound(value):
    return isinstance(value, Box | ValueError | dict | tuple | list | np.ndarray)


@pytest.mark.one_mpi
@pytest.mark.parametrize("form", parameters(FORMS, every_size=["itself", "numbers"]))
def test_a_function_may_return_the_same_array_each_time(pool, form):
    expected = [described(pickle.loads(pickle.dumps(fill(form, k)))) for k in range(30)]
    for options in ({"chunksize": 5}, {}):
        seen = []
        found = pool.map(functools.partial(fill, form), 30, callback=seen.append, **options)
        each = dict(pool.imap_indexed(functools.partial(fill, form), 30, **options))
        if RANK == 0:
            assert [*map(described, found)] == [described(each[k]) for k in range(30)] == expected
            assert sorted(map(described, seen)) == sorted(expected)


def test_a_function_of_several_arguments_names_starmap(pool):
    for function, expected in ((lambda a, b: a - b, True), (pow, True), (lambda pair: (lambda a, b: a)(*pair[:1]), False)):
        with pytest.raises(lb_mpi.TaskError, match=r"TypeError: .* missing ") as caught:
            pool.map(function, [(2, 1)] * 9)
        assert ("expected starmap, if an item has several arguments" in str(caught.value)) == expected


@pytest.mark.one_mpi
def test_functions_of_each_rank_get_copies_of_records(pool):
    fields = np.zeros(40, [("x", "f8")])
    assert pool.starmap(lambda a, b: a - b, [(3 * k, k) for k in range(99)]) == (
        [2 * k for k in range(99)] if RANK == 0 else None
    )

    def change_field(row):
        row["x"] += 1.0
        return float(row["x"])

    assert pool.map(change_field, fields) == ([1.0] * 40 if RANK == 0 else None)
    assert not fields["x"].any()


def test_items_of_a_map_are_not_kept_twice_while_they_are_sent():
    def peak_bytes():
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))

    with lb_mpi.Pool(COMM) as pool:
        pool.map(np.sum, [np.ones(3)] * 9)
        items = [np.full(1 << 17, float(k)) for k in range(40)] if RANK == 0 else []
        Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
        before = peak_bytes()
        pool.map(np.sum, items)
    assert RANK or peak_bytes() - before < 72 << 20  # 40 MiB, in shared memory, and blocks of 5 on their way: not 80


class Counting:
    """A model with much data that counts its calls."""

    def __init__(self):
        self.n, self.data = 0, np.ones(300_000)

    def call(self, k):
        self.n += 1
        return k + 1


class Keeping:
    """An object that keeps its pool, and maps its own method."""

    def __init__(self, pool):
        self.pool, self.map = pool, pool.map

    def cost(self, k):
        return k * k if k >= 0 else len(self.pool.map(abs, [k]))

    def costs(self, items):
        return list(self.map(self.cost, items))


@pytest.mark.parametrize("kind", [lambda: lb_mpi.Pool(COMM, root=0), lambda: lb_mpi.Executor(COMM)])
def test_an_object_that_keeps_its_pool(kind):
    with kind() as pool:
        if pool is not None:
            assert Keeping(pool).costs([*range(9)]) == [k * k for k in range(9)]
            if SIZE > 1 or isinstance(pool, lb_mpi.Executor):
                with pytest.raises(lb_mpi.Error, match=r"a pool within a task: map of lb_mpi\.\w+ can't be used"):
                    Keeping(pool).costs([3, -1])
            assert Keeping(pool).costs([4]) == [16]


@pytest.mark.parametrize("pool", [LAST], indirect=True)
def test_the_function_travels_once(pool):
    assert pool.is_root
    assert pool.is_master()
    weights = np.ones(300_000)
    function = functools.partial(np.multiply, weights)
    for _ in range(3):
        assert [float(row.sum()) for row in pool.map(function, [1.0, 2.0])] == [3e5, 6e5]
    report = pool.report()
    assert report.ranks[LAST].sent_bytes < 1000 * SIZE
    counting = Counting()
    for n in range(4):
        with warnings.catch_warnings(record=True) as caught:
            assert pool.map(counting.call, [1, 2, 3]) == [2, 3, 4]
        report = pool.report()
        assert (report.ranks[LAST].sent_bytes > 2_400_000) == (n == 0 and SIZE > 1)
        assert not caught
    assert SIZE == 1 or counting.n == 0  # the root's tasks have their own copy, too
    for n in range(4):
        counting.data[0] = n  # the program changes it
        with warnings.catch_warnings(record=True) as caught:
            pool.map(counting.call, [1, 2, 3])
        words = "Counting.call.*: its 2.4 MB are sent to all ranks for the third time"
        assert [bool(re.search(words, str(one.message))) for one in caught] == [True] * (n == 2 and SIZE > 1)
    weights[0] = 2.0  # it's another function now
    assert float(pool.map(function, [1.0])[0].sum()) == 300_001.0


@pytest.mark.parametrize("name", RAISES)
@pytest.mark.parametrize("at", parameters(["first", "last", "all"], every_size=["all"]))
def test_a_task_that_raises_is_an_error_on_all_and_then_it_is_as_new(pool, name, at):
    guilty = []

    def function(k):
        if at == "all" or k == {"first": 0, "last": 199}[at]:
            guilty.append(k)
            RAISES[name]()
        return k

    with pytest.raises((lb_mpi.TaskError, SystemExit, KeyboardInterrupt)) as caught:
        pool.map(function, 200)
    if isinstance(caught.value, lb_mpi.TaskError):
        assert caught.value.index == {"first": 0, "last": 199}.get(at, caught.value.index)
        assert str(caught.value).startswith(f"task {caught.value.index} on rank {caught.value.rank}: {name}")
        assert "RAISES[name]()" in caught.value.traceback or name == "Unspeakable"
    else:
        assert guilty
    assert pool.map(square, 50) == ([k * k for k in range(50)] if RANK == 0 else None)


def test_results_that_can_not_be_sent_to_all_are_an_error_on_all(pool):
    if SIZE > 1:
        with pytest.raises((lb_mpi.TaskError, ZeroDivisionError), match="no pickle"):
            pool.map(lambda k: NotForPickling(), 1, to="all")
        with pytest.raises(lb_mpi.TaskError, match=r"no pickle($| \(/)"):
            pool.map(lambda k: NotForPickling(), 100 * SIZE, to="all")
    assert pool.map(square, 5, to="all") == [0, 1, 4, 9, 16]


def test_ranks_that_do_not_make_the_same_call_are_named(pool):
    if SIZE > 1:
        with pytest.raises(TypeError, match=f"rank {LAST}: function = 3: expected" if RANK != LAST else "function = 3"):
            pool.map(3 if RANK == LAST else square, 5)
        with pytest.raises(lb_mpi.Error, match="wait: expected a pool made with root="):
            pool.wait() if RANK == LAST else pool.map(square, 3)
    with pytest.raises(lb_mpi.TaskError, match=r"a map of these ranks is under way"):
        pool.map(lambda k: pool.map(square, 3), 20)
    assert pool.map(square, 5, to="all") == [0, 1, 4, 9, 16]


@pytest.mark.one_mpi
@pytest.mark.parametrize("last", [EPOCHS, MAPS, 1 << 31])
def test_more_maps_than_a_word_or_an_order_has_numbers_for(pool, last):
    pool._ranks._n_maps = last - 9
    for _ in range(20):
        assert pool.map(abs, 3, to="all") == [0, 1, 2]


@pytest.mark.every_size
def test_leaving_a_loop_early_drops_the_other_tasks(pool):
    for _ in pool.imap_indexed(square, 100_000):
        break
    assert pool.map(square, 5, to="all") == [0, 1, 4, 9, 16]
    for begin in (pool.imap, pool.imap_unordered, pool.imap_indexed):
        begin(square, 100_000)  # and nobody asks for a result
        assert pool.map(square, 5, to="all") == [0, 1, 4, 9, 16]
    if RANK == 0:
        results = pool.imap_indexed(square, 10)
        with pytest.raises(lb_mpi.Error, match="under way"), pool._ranks.claimed(Wish.MAP):
            pass
        assert dict(results) == {k: k * k for k in range(10)}
    else:
        assert not list(pool.imap_indexed(square, 10))


@pytest.mark.every_size
def test_ranks_that_wait_run_tasks():
    pool = lb_mpi.Pool(root=0)  # as in the tutorial of schwimmbad, which then ends the ranks that have waited
    if not pool.is_master():
        pool.wait()
    else:
        pool.wait()  # the root has nothing to wait for
        for _ in range(2):
            assert pool.map(square, 300) == [k * k for k in range(300)]
        if SIZE > 1:
            with pytest.raises(pickle.PicklingError, match="can't be pickled"):
                pool.map(functools.partial(max, NotForPickling()), 3)
        with pytest.raises(lb_mpi.TaskError, match=r"task 7 .*ValueError: 7 \("):
            pool.map(functools.partial(fail_at, 7), 20)
        assert pool.map(square, [2]) == [4]
        pool.close()
    with pytest.raises(ValueError, match="this pool is closed: expected a call in its with block"):
        pool.map(square, 3)
    pool.close()


def test_a_pool_can_be_closed_before_its_results_are_taken():
    for root in (None, 0):
        with lb_mpi.Pool(COMM, root=root) as pool:
            results = pool.imap(square, 1000) if pool is not None else iter(())
        if RANK == 0:
            with pytest.raises(lb_mpi.Error, match="the pool was closed during a map"):
                next(results)


class SentWhenReady:
    """A function that can't be unpickled at a rank's first attempt, as one of a module that is not yet there."""

    attempts = 0

    def __call__(self, k):
        return k * k

    def __setstate__(self, _state):
        SentWhenReady.attempts += 1
        if SentWhenReady.attempts == 1:
            raise ModuleNotFoundError("not yet")

    def __getstate__(self):
        return 1


def test_a_function_that_could_not_be_unpickled_is_tried_again():
    SentWhenReady.attempts = 0
    with lb_mpi.Pool(COMM, root=0) as pool:
        if pool is not None:
            if SIZE > 1:
                with pytest.raises(lb_mpi.TaskError, match="not yet"):
                    pool.map(SentWhenReady(), 30)
            for _ in range(2):
                assert pool.map(SentWhenReady(), 30) == [k * k for k in range(30)]
    assert SentWhenReady.attempts == (2 if RANK else min(SIZE - 1, 1))  # the root has the caller's if its copy fails


@pytest.mark.parametrize("root", [None, 0])
def test_too_little_shared_memory_for_a_map_is_an_error_of_this_map(monkeypatch, root):
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_bavail=16, f_frsize=1 << 10))
    with lb_mpi.Pool(COMM, root=root) as pool:
        if pool is not None:
            for _ in range(2):
                with pytest.raises(OSError, match="0 MiB of shared memory needed, 0 MiB are free"):
                    pool.map(len, [bytes([k]) * 1000 for k in range(100)])
                assert pool.map(len, [b"ab"] * 20) == ([2] * 20 if pool.is_root else None)
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_bavail=200, f_frsize=1 << 10))
    with lb_mpi.Pool(COMM, root=root) as pool:  # what is enough for this map alone is enough
        if pool is not None:
            assert pool.map(len, [bytes([k]) * 1000 for k in range(100)]) == ([1000] * 100 if pool.is_root else None)


def ignore_ctrl_c(_=None):
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_handler_of_ctrl_c_stays():
    def with_initializer():
        lb_mpi.Pool(COMM, initializer=ignore_ctrl_c).close()

    def with_tasks():
        with lb_mpi.Pool(COMM) as pool:
            pool.map(ignore_ctrl_c, 50 * SIZE, chunksize=1)

    for install in (with_initializer, with_tasks):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            install()
            assert signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.default_int_handler)
            assert COMM.allreduce(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, MPI.MAX)
            assert install is with_tasks or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGINT, before)


def lower_the_limit(k):
    frame, depth = sys._getframe(), 0
    while frame := frame.f_back:
        depth += 1
    sys.setrecursionlimit(depth + 10)
    return k


def test_a_recursion_limit_that_a_task_has_lowered_does_not_break_the_pool(pool):
    limit = sys.getrecursionlimit()
    for _ in range(2):
        assert pool.map(lower_the_limit, 30 * SIZE) == ([*range(30 * SIZE)] if RANK == 0 else None)
        assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("root", [None, 0])
@pytest.mark.parametrize("seed", range(2))
def test_ctrl_c_on_the_root_leaves_a_pool_that_can_be_used(monkeypatch, root, seed):
    """It comes at any send or poll of a map: that of START, of END, of a large argument, or while results arrive."""
    rng, left, came = random.Random(seed), [0], [0]
    big = [bytes([k]) * 20_000 for k in range(20)]
    monkeypatch.setattr(communicator, "PATIENCE_S", 60.0)  # also on a busy machine

    def counting(call):
        def counted(parcels, *args):
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
            return call(parcels, *args)

        return counted

    if RANK == 0:
        monkeypatch.setattr(Parcels, "send", counting(Parcels.send))
        monkeypatch.setattr(Parcels, "receive", counting(Parcels.receive))
    with lb_mpi.Pool(COMM, root=root) as pool:
        for _ in range(25 if pool is not None else 0):
            left[0], how = rng.randrange(1, 12), rng.randrange(4)
            try:
                if how == 0:
                    pool.map(square, 40, chunksize=1)
                elif how == 1:
                    pool.map(len, big[: rng.randrange(4, 20)])
                elif how == 2:
                    list(pool.imap(square, 40, chunksize=1))
                else:
                    with contextlib.closing(pool.imap_indexed(square, 40, chunksize=1)) as results:
                        next(results, None)
            except KeyboardInterrupt:
                came[0] += 1
            except lb_mpi.TaskError:
                if RANK == 0:
                    raise
            left[0] = 0
            try:  # it has come too late to stop its map, and stops the next one
                pool.map(square, 2)
            except KeyboardInterrupt:
                came[0] += 1
            except lb_mpi.Error:
                if RANK == 0:
                    raise
            assert pool.map(square, 5) == ([0, 1, 4, 9, 16] if pool.is_root else None)
    assert RANK or came[0] > 5


def leave_at(n, k):
    if k == n:
        sys.exit(3)
    return k


@several
def test_using_the_none_of_another_rank_gets_a_note():
    def run():
        with lb_mpi.Pool(COMM) as pool:
            sum(pool.map(square, 5))
            pool.map(square, 5)

    with pytest.raises(lb_mpi.Error if RANK == 0 else TypeError, match="NoneType") as caught:
        run()
    expected = ["On this rank `map` returns None; put `if pool.is_root:` before what uses its results."]
    assert getattr(caught.value, "__notes__", []) == (expected if RANK else [])


def test_a_pool_can_be_closed_when_ranks_do_not_come_to_the_same(pool):
    if SIZE > 1:
        with pytest.raises((ValueError, lb_mpi.Error), match="map is called on one rank of the pool, close on another"):
            pool.close() if RANK == LAST else pool.map(square, 3)
        with pytest.raises(ValueError if RANK == LAST else lb_mpi.Error, match=r"map is called|is closed"):
            pool.map(square, 3)


@several
@pytest.mark.parametrize("root", [None, 0])
def test_an_error_while_a_map_is_sent_reaches_all(monkeypatch, root):
    def break_down(*_):
        raise MemoryError("no room")

    def run():
        with lb_mpi.Pool(COMM, root=root) as pool:
            if pool is not None:
                with monkeypatch.context() as patch:
                    if RANK == 0:
                        patch.setattr(pool._ranks.orders, "send_all", break_down)
                    pool.map(abs, np.ones((50, 5000)))

    with pytest.raises(lb_mpi.Error if RANK else MemoryError, match="no room"):
        run()
    COMM.Barrier()


def test_a_progress_that_takes_longer_than_it_is_called_ends_with_all_tasks(pool, monkeypatch):
    monkeypatch.setattr(maps, "REPORT_S", 0.0)
    came = []
    pool.map(square, 200, chunksize=10, progress=lambda done, n: came.append((done, n)))
    assert came == (sorted(came) if RANK == 0 else [])
    assert came[-1:] == [(200, 200)] * (RANK == 0)
    assert len(set(came[:-1])) == len(came[:-1])  # only when something is done, so that an idle root may warn of a late rank


@from_root
def test_no_map_begins_in_the_last_call_of_progress(pool):
    refused = []

    def progress(_done, _n):
        try:
            pool.map(square, 3)
        except lb_mpi.Error as error:
            refused.append(str(error))

    assert pool.map(square, 10, progress=progress) == [k * k for k in range(10)]
    assert refused[-1].startswith("a map of these ranks is under way")


@from_root
def test_ctrl_c_while_an_unfinished_map_ends_is_raised(pool, monkeypatch):
    learn = plan.MapPlan.learn

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)  # held back, as END is sent
        learn(*arguments)

    results = pool.imap(square, range(100), chunksize=1)
    assert next(results) == 0
    monkeypatch.setattr(plan.MapPlan, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close()


@pytest.mark.parametrize("pool", [None, 0], indirect=True)
def test_an_exception_of_progress_at_the_end_reaches_all_ranks(pool):
    def progress(done, n):
        if done == n:
            raise ZeroDivisionError("at the end")

    with pytest.raises(ZeroDivisionError if RANK == 0 else lb_mpi.TaskError, match="at the end"):
        pool.map(square, 30, progress=progress)
    assert pool.map(square, [2]) == ([4] if RANK == 0 else None)


def test_pools_that_fail_on_all_ranks_are_freed():
    def call(of, how):
        if how == 0:
            of.map(functools.partial(fail_at, 1), 4)
        elif how == 1:
            of.map(square, 3, chunksize=0)
        else:
            dict(of.imap_indexed(functools.partial(leave_at, 1), 4))

    for how, root in itertools.product(range(3), (None, 0)):
        pool, n_abandoned = None, len(communicator._retained)
        alone = root == 0  # the others raise the error of the root
        try:
            with lb_mpi.Pool(COMM, root=root) as pool:
                if pool is not None:
                    call(pool, how)
        except (lb_mpi.TaskError, ValueError, SystemExit):
            assert pool._ranks.presence.comm == MPI.COMM_NULL
        except lb_mpi.Error:
            assert alone
            assert RANK > 0
        else:
            assert pool is None
        assert len(communicator._retained) == n_abandoned


@pytest.mark.parametrize("n_hosts", [2, 3])
@pytest.mark.every_size
def test_between_hosts(n_hosts):
    """Ranks as if on several hosts: tasks that all start on one of them are asked for."""
    host = MPI.Intracomm(COMM.Split(RANK % n_hosts))

    def run():
        pool = lb_mpi.Pool(speeds=[1.0] + [1e-3] * LAST)  # so the root owns nearly all
        for _ in range(3):
            ranks = pool.map(spin, [0.5e-3] * 100)
            assert len(ranks) == 100
            assert pool.map(square, np.arange(20_000.0)) == [k * k for k in np.arange(20_000.0)]  # by broadcast
        with pytest.raises(lb_mpi.TaskError, match="task 70 "):
            pool.map(functools.partial(leave_at, 70), 100)
        assert pool.map(square, 100) == [k * k for k in range(100)]
        pool.close()

    in_script(run, hosts=host)
    host.Free()


SCRIPT = """
import sys
import lb_mpi
K = int(sys.argv[1])
def times(x): return x * K
class Box:
    def __init__(self, x): self.x = x
class Wrong(Exception): pass
def fail(x): raise Wrong(x)
if __name__ == "__main__":
    with lb_mpi.Pool() as pool:
        assert pool.map(times, 50) == [7 * k for k in range(50)]
        boxes = pool.map(Box, range(50), chunksize=1)
        assert [(type(box), box.x) for box in boxes] == [(Box, k) for k in range(50)]
    with lb_mpi.Executor() as executor:
        errors = [executor.submit(fail, k).exception() for k in range(9)]
        assert [(type(error), error.args) for error in errors] == [(Wrong, (k,)) for k in range(9)]
    with lb_mpi.Pool() as pool:
        assert pool.map(times, [3]) == [21]
    raise KeyError("at the end")
"""


def run_as_program(path, text, patch, *arguments):
    """Run a script of this text as `python -m lb_mpi pool` does, in the place of this program."""
    if RANK == 0:
        path.write_text(text)
    COMM.Barrier()
    patch.setattr(sys, "argv", sys.argv)
    patch.setattr(sys, "path", list(sys.path))
    for name in ("__main__", WORKER):
        patch.setitem(sys.modules, name, ModuleType(name))
    try:
        run_script(open_script(str(path), module=False), [str(path), *arguments])
    finally:
        COMM.Barrier()


@pytest.mark.every_size
def test_a_script_that_rank_0_runs_alone(folder, monkeypatch):
    with pytest.raises(OSError, match="No such file"):
        open_script(str(folder / "none.py"), module=False)
    with pytest.raises(ValueError, match="-m no_such_module: expected the name of a module"):
        open_script("no_such_module", module=True)
    with pytest.raises(KeyError, match="at the end") if RANK == 0 else contextlib.nullcontext():
        run_as_program(folder / "script.py", SCRIPT, monkeypatch, "7")


TWO_POOLS = """
import pytest
import lb_mpi
from tests.mpi.pools import square
a, b = lb_mpi.Pool(), lb_mpi.Pool()
taken = {}
for k, value in a.imap_indexed(square, 200):
    taken[k] = value
    if len(taken) == 1:
        assert b.map(square, 5) == [0, 1, 4, 9, 16]
        assert [*b.imap(square, 5)] == [0, 1, 4, 9, 16]
assert taken == {k: k * k for k in range(200)}
a.close()
assert b.map(square, 5) == [0, 1, 4, 9, 16]
for _ in b.imap_indexed(square, 200):
    break
unfinished = b.imap_indexed(square, 200)
next(unfinished)
"""


@pytest.mark.every_size
def test_two_pools_of_a_script(folder, monkeypatch):
    run_as_program(folder / "script.py", TWO_POOLS, monkeypatch)


def wait_for_the_root(path):
    if COMM.rank == 0:
        path.touch()
    while not path.exists():
        time.sleep(1e-3)


def test_tasks_with_more_threads_than_cores_are_named_once(pool, folder, monkeypatch):
    path = folder / "ran"
    monkeypatch.setattr("lb_mpi.mpi.pool.maps.N_CORES", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    read, others_s = Clocks.read, itertools.count(0.0, 99.0)
    monkeypatch.setattr(Clocks, "read", lambda clocks: read(clocks)._replace(others_s=next(others_s)))  # of other threads
    for n in (1, 0):
        with warnings.catch_warnings(record=True) as caught:
            pool.map(wait_for_the_root, [path] * 60)  # the threads of tasks count that the root runs
        texts = [str(one.message) for one in caught]
        assert len(texts) == (n if pool.is_root else 0)
        assert all("with 3 threads each (numba, BLAS, OpenMP) on 1 core: set OMP_NUM_THREADS=1" in text for text in texts)


def check_own_time():
    """Seconds in a queue for a core are no slowness; those in which launch/throttle stops a rank, or it rests, are."""
    ranks = SimpleNamespace(throttle=SimpleNamespace(charge=lambda _: None, speed=0.5, rests=True))
    ran = Ran(3, [], None, 0.0, wall_s=9.0, work_s=1.0, cpu_s=1.0, stopped_s=0.25)
    assert Member.own_s(SimpleNamespace(ranks=ranks), ran) == 2.25


test_queueing_is_no_slowness = rejects(
    check_own_time,
    [(member, "Member.own_s", "ran.work_s + ran.stopped_s", one) for one in ("ran.wall_s", "ran.wall_s + ran.stopped_s")],
)
