"""Items that are read while tasks run: endless ones, large ones, several maps in turn, errors anywhere, an early end."""

import contextlib
import functools
import itertools
import sys
import threading

import numpy as np
import pytest

import lb_mpi
from tests.mpi import pools
from tests.mpi.pools import from_root, in_script, square
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, parameters

pytestmark = pytest.mark.mpi


class Source:
    """Items from an endless iterator that counts those that are read."""

    def __init__(self, make=lambda k: k):
        self.read = 0
        self.make = make

    def __iter__(self):
        while True:
            self.read += 1
            yield self.make(self.read - 1)


RESULTS = {
    "numbers": lambda k: k,
    "texts": str,
    "nothing": lambda k: None,
    "arrays": lambda k: np.full((k % 3, 2), k, dtype="i2"),
    "other shapes": lambda k: np.arange(float(k)).reshape(-1, 1).T,
    "records": lambda k: np.array([(k, k / 2)], dtype=[("a", "i4"), ("b", "f8")]),
    "objects": lambda k: {"k": k, "more": [k] * (k % 4)},
    "large": lambda k: np.full(20_000, k),
}


@pytest.mark.parametrize("name", parameters(RESULTS, every_size=["numbers"], every_mpi=["numbers", "large"]))
@pytest.mark.parametrize("pool", [None, LAST], indirect=True)
def test_results_are_those_of_the_builtin_map(pool, name):
    make = RESULTS[name]
    ways = [(20, None, 2), (20, 1, 1), *[(0, None, None), (1, None, None), (1, 1, 5), (20, 7, 3)] * (name == "numbers")]
    for n, buffersize, chunksize in ways:
        options = {"buffersize": buffersize, "chunksize": chunksize}
        expected = [repr(make(k)) for k in range(n)] if pool.is_root else []
        assert [*map(repr, pool.imap(make, iter(range(n)), **options))] == expected
        assert sorted(map(repr, pool.imap_unordered(make, iter(range(n)), **options))) == sorted(expected)
        pairs = dict(pool.imap_indexed(repr, map(make, range(n)), **options))
        assert pairs == dict(enumerate(expected))


@from_root
def test_an_endless_iterator_is_read_as_tasks_start(pool):
    source = Source()
    results = pool.imap(square, source)
    assert source.read == 0
    assert [next(results) for _ in range(500)] == [k * k for k in range(500)]
    assert source.read < 500 + 2000 * SIZE
    del results  # drops what is under way
    for buffersize in (1, 2, 5):
        source = Source()
        for n, value in enumerate(pool.imap(square, source, buffersize=buffersize)):
            assert value == n * n
            assert source.read <= n + 1 + buffersize
            if n == 60:
                break
    assert pool.map(square, 4) == [0, 1, 4, 9]
    with contextlib.closing(pool.imap_unordered(square, Source())) as unfinished:
        next(unfinished)
    assert [*pool.imap(square, np.arange(6.0), buffersize=2)] == [0, 1, 4, 9, 16, 25]


def ran_on(k):
    return k, RANK


@pytest.mark.every_size
@from_root
def test_tasks_of_the_root_do_not_wait_for_ever(pool):
    """While others answered, the root took their results and read on: its own task never began in an endless stream."""
    source = Source()
    for n, (k, rank) in enumerate(pool.imap_unordered(ran_on, source, buffersize=5 * SIZE)):
        assert rank or source.read - k <= 5 * SIZE
        if n == 1000:
            break


@from_root
def test_large_items_do_not_pile_up_on_the_root(pool):
    """Of 150 arrays of 2 MB, few are read before the first result, and few exist at a time."""
    source = Source(lambda k: np.full(250_000, float(k)))
    most = 0
    for n, mean in enumerate(pool.imap(np.mean, source)):
        assert mean == n
        most = max(most, source.read - n)
        if n == 149:
            break
    assert most <= 32 * SIZE + 1


fail_at = functools.partial(pools.fail_at, 20)


def exit_at(k):
    if k == 20:
        sys.exit(3)
    return k


@pytest.mark.every_size
@pytest.mark.parametrize("function", [fail_at, exit_at])
@pytest.mark.parametrize("pool", [None, 0], indirect=True)
def test_a_task_that_raises_ends_the_stream_on_all_ranks(pool, function):
    for method in (pool.imap, pool.imap_unordered):
        with pytest.raises((lb_mpi.TaskError, SystemExit)) as caught:
            list(method(function, itertools.count()))
        if isinstance(caught.value, lb_mpi.TaskError):
            assert caught.value.index == 20
        else:
            assert not pool._ranks.alone
        assert pool.map(square, 3) == ([0, 1, 4] if RANK == 0 else None)
    if pool.is_root:
        found = list(pool.imap(fail_at, iter(range(40)), return_exceptions=True))
        assert [type(one) for one in found] == [int] * 20 + [ValueError] + [int] * 19
    else:
        assert not list(pool.imap(fail_at, iter(range(40)), return_exceptions=True))


def broken():
    yield from range(7)
    raise OSError("the instrument is gone")


def throw(kind, _):
    raise kind


@pytest.mark.parametrize("pool", [None, 0], indirect=True)
def test_an_error_of_the_iterator_is_raised_on_all_ranks(pool):
    for kind, text, items, before in (
        (OSError, "the instrument is gone", broken(), [*map(repr, range(7))]),
        (TypeError, r"items\[1\] can't be pickled", iter([1, threading.Lock(), 2]), ["1"]),
    ):
        found = []
        with pytest.raises(kind if RANK == 0 else lb_mpi.TaskError, match=text):
            found.extend(pool.imap(repr, items))
        assert found == (before if RANK == 0 else [])
    for kind, form in itertools.product((ZeroDivisionError, GeneratorExit), (list, iter)):
        with pytest.raises(kind if RANK == 0 else lb_mpi.TaskError):
            list(pool.imap(square, form(range(9)), callback=functools.partial(throw, kind)))
    assert pool.map(square, 3) == ([0, 1, 4] if RANK == 0 else None)


@pytest.mark.every_size
def test_a_stream_pauses_for_other_calls():
    def use(pool):
        source = Source()
        results, values = pool.imap(square, source), itertools.count()
        for turn in range(4):
            assert next(results) == next(values) ** 2
            assert pool.map(square, range(turn)) == [k * k for k in range(turn)]
            read = source.read
            assert pool.apply(square, (7,)) == 49
            assert source.read == read  # nothing is read meanwhile
            for _ in range(100):
                assert next(results) == next(values) ** 2
            other = pool.imap(square, Source())
            assert [next(other), next(other)] == [0, 1]
            assert [next(results), next(other)] == [next(values) ** 2, 4]
        chained = pool.imap(square, pool.imap(square, iter(range(30))))
        assert list(chained) == [k**4 for k in range(30)]
        chained = pool.imap_unordered(square, (pool.apply(square, (k,)) for k in range(5)))
        assert sorted(chained) == [k**4 for k in range(5)]
        assert pool.map(square, (pool.apply(square, (k,)) for k in range(5))) == [k**4 for k in range(5)]
        inner = pool.imap(square, range(9))
        assert pool.map(square, (next(inner) for _ in range(5))) == [k**4 for k in range(5)]
        begun = []

        def first_of(n):
            begun.append(pool.imap(square, range(n)))
            yield next(begun[0])

        assert pool.map(square, first_of(9)) == [0]
        assert list(begun[0]) == [k * k for k in range(1, 9)]
        assert pool.report() is not None

    with lb_mpi.Pool(COMM, root=0) as pool:
        if pool:
            use(pool)

    def script():
        with lb_mpi.Pool() as pool:
            use(pool)

    in_script(script)


def test_the_report_of_a_stream_counts_its_tasks(pool):
    list(pool.imap(square, iter(range(300))))
    report = pool.report()
    assert (report is None) == (RANK != 0)
    assert report is None or (report.n == 300 and sum(rank.done for rank in report.ranks) == 300)


class SlowToPickle:
    """An item during whose pickling another thread uses the pool."""

    def __init__(self, use):
        self.use = use

    def __reduce__(self):
        thread = threading.Thread(target=self.use)
        thread.start()
        thread.join()
        return int, (7,)


@from_root
def test_items_that_are_read_while_another_thread_begins_a_map_are_not_lost(pool):
    found = []
    items = [SlowToPickle(lambda: found.append(pool.map(square, 9))) if k % 10 == 7 else k % 10 for k in range(40)]
    assert list(pool.imap(square, iter(items))) == [(k % 10) ** 2 for k in range(40)]
    assert found == [[k * k for k in range(9)]] * 4


@from_root
def test_an_iterator_whose_map_is_over_is_dropped_without_a_lock(pool):
    """The garbage collector may drop it in a thread that starts, for which another thread waits, and holds the lock."""
    results = pool.imap(square, range(3))
    assert next(results) == 0
    assert pool.map(square, 2) == [0, 1]  # completes the map of the iterator
    held, dropped = threading.Event(), threading.Event()

    def hold():
        with pool._ranks.lock:
            held.set()
            waited.append(not dropped.wait(20.0))

    waited = []
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20.0)
    results.close()
    dropped.set()
    thread.join()
    assert waited == [False]


def test_a_map_within_the_iterator_is_an_error_where_all_ranks_call(pool):
    items = (pool.map(square, 3) for _ in range(2)) if RANK == 0 else None
    with pytest.raises(lb_mpi.Error, match="a map of these ranks is under way"):
        list(pool.imap(len, items, buffersize=3))
    assert pool.map(square, 3, to="all") == [0, 1, 4]
    if SIZE > 1:
        with pytest.raises(lb_mpi.Error, match="a collective call in the items of a map"):
            pool.map(len, (pool.map(square, 3) for _ in range(2)))
    assert pool.map(square, 3, to="all") == [0, 1, 4]
