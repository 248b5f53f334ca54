"""lb_mpi.Pool with the methods of multiprocessing.Pool: asynchronous calls, callbacks, initializers, threads, its end."""

import itertools
import multiprocessing
import threading
import time

import pytest

import lb_mpi
from lb_mpi.mpi.common.collective import agree
from lb_mpi.mpi.pool import dispatcher
from tests.mpi.pools import fill, in_script, square
from tests.mpi.sizes import COMM, SIZE

pytestmark = pytest.mark.mpi
initialized = []


def on_root(use, **options):
    """Call `use` with a pool that the other ranks serve, and with one of a script; what it raises, all raise."""

    def run():
        with lb_mpi.Pool(COMM, root=0, **options) as pool:
            if pool is not None:
                use(pool)

    def script():
        with lb_mpi.Pool(**options) as pool:
            use(pool)

    agree(COMM, run)
    in_script(script)
    assert [one.name for one in threading.enumerate() if one.name.startswith("lb_mpi")] == []
    assert not dispatcher.dispatchers


def slow_square(k):
    time.sleep(0.01)
    return k * k


def fail(k):
    if k == 3:
        raise ValueError("three")
    return k


def remember(number):
    initialized.append(number)


def recall(_):
    return initialized


@pytest.mark.every_size
def test_asynchronous_calls():
    def use(pool):
        came = []
        one = pool.apply_async(square, (3,), callback=came.append)
        many = pool.map_async(slow_square, range(40), chunksize=2, callback=came.append)
        pairs = pool.starmap_async(pow, [(2, 3), (3, 2)])
        none = pool.map_async(square, [])
        same = pool.map_async(fill, range(40), chunksize=7)
        assert [one.tolist() for one in same.get(60)] == [[k, k] for k in range(40)]
        with pytest.raises(ValueError, match="chunksize = 0"):
            pool.map_async(square, range(3), chunksize=0)
        wrong = pool.map_async(fail, range(8), error_callback=came.append)
        assert (one.get(60), many.get(60), pairs.get(60), none.get()) == (9, [k * k for k in range(40)], [8, 9], [])
        wrong.wait(60)
        assert (one.successful(), wrong.ready(), wrong.successful()) == (True, True, False)
        with pytest.raises(ValueError, match="three") as caught:
            wrong.get()
        assert isinstance(caught.value.__cause__, lb_mpi.TaskError)
        assert all(result in came for result in (9, many.get(), caught.value))
        raises = pool.apply_async(square, (4,), callback=lambda _: 1 // 0)  # which is logged
        assert raises.get(60) == 16
        late = pool.apply_async(time.sleep, (0.3,))
        with pytest.raises(multiprocessing.TimeoutError):
            late.get(0.01)
        if not late.ready():
            with pytest.raises(ValueError, match="not ready"):
                late.successful()

    on_root(use)


@pytest.mark.every_size
def test_maps_and_asynchronous_calls_in_turn():
    def use(pool):
        for k in range(3):
            begun = pool.map_async(slow_square, range(6))
            assert pool.map(square, range(k)) == [n * n for n in range(k)]
            assert begun.ready()
            other = pool.imap_unordered(square, range(5))
            assert next(other) in (0, 1, 4, 9, 16)
            assert pool.apply(square, (k,)) == k * k
            assert len([*other]) == 4
        wrong = pool.imap(fail, range(8))
        assert pool.map(square, [1]) == [1]
        with pytest.raises(lb_mpi.TaskError, match="three"):
            list(wrong)
        assert pool.map(square, [2]) == [4]

    on_root(use)


def test_a_callback_may_not_begin_a_map():
    def use(pool):
        refused = []

        def again(_):
            try:
                pool.map(square, [1])
            except lb_mpi.Error as error:
                refused.append(error)

        pool.apply_async(square, (1,), callback=again).wait(60)
        assert str(refused[0]) == "a callback of an asynchronous task of these ranks: expected the map after it"
        assert pool.map(square, [1], callback=again) == [1]
        assert "a map of these ranks is under way" in str(refused[1])

    on_root(use)


def test_a_callback_may_not_close_the_pool():
    def use(pool):
        refused = []

        def close(_):
            try:
                pool.close()
            except lb_mpi.Error as error:
                refused.append(error)

        assert pool.map(square, range(3), callback=close) == [0, 1, 4]
        if not pool._ranks.shared:
            pool.map_async(slow_square, range(4 * SIZE), 1, callback=close).wait(60)
        assert len(refused) == 3 + (not pool._ranks.shared)
        assert {str(error) for error in refused} == {"close() in a task or callback of the pool: expected a call after it"}

    on_root(use)


def test_join_waits_after_a_callback_of_a_script_that_closes_the_pool():
    def script():
        pool, begun = lb_mpi.Pool(), threading.Event()

        def close(_):
            begun.wait(60)
            pool.close()

        first = pool.apply_async(square, (1,), callback=close)
        rest = [pool.apply_async(slow_square, (k,)) for k in range(20 * SIZE)]
        begun.set()
        first.wait(60)
        pool.join()
        assert all(one.ready() for one in rest)

    in_script(script)


def test_threads_that_begin_the_first_asynchronous_calls_at_once():
    def use(pool):
        ready, begun = threading.Barrier(4), []

        def begin():
            ready.wait()
            begun.append(pool.apply_async(time.sleep, (0.02,)))

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        pool.close()
        assert [one.ready() for one in begun] == 4 * [True]

    for _ in range(5):
        on_root(use)


@pytest.mark.every_size
def test_initializers():
    def use(pool):
        for found in pool.map(recall, range(8 * SIZE), chunksize=1) or []:
            assert found == [7] or found == [7, 7]  # the second pool, on the same rank

    initialized.clear()
    on_root(use, initializer=remember, initargs=[7])
    assert initialized[0] == 7
    with pytest.raises(ValueError, match="three"):
        lb_mpi.Pool(COMM, root=0, initializer=fail, initargs=(3,))


def fail_elsewhere():
    if COMM.rank:
        raise ValueError("elsewhere")


@pytest.mark.every_size
def test_an_initializer_that_raises_in_a_script():
    def script():
        if SIZE > 1:
            with pytest.raises(lb_mpi.Error, match=r"initializer .* has failed on rank .*elsewhere"):
                lb_mpi.Pool(initializer=fail_elsewhere)
        with lb_mpi.Pool() as pool:
            assert pool.map(square, [3]) == [9]

    in_script(script)


@pytest.mark.every_size
def test_its_end():
    def use(pool):
        with pytest.raises(ValueError, match=r"join\(\) of an open pool"):
            pool.join()
        many = [pool.apply_async(slow_square, (k,)) for k in range(20 * SIZE)]
        pool.terminate()
        assert all(one.ready() for one in many)
        assert {one.successful() for one in many} == {True, False}
        pool.join()
        with pytest.raises(ValueError, match="pool"):
            pool.apply_async(square, (1,))

    on_root(use)


def test_asynchronous_calls_need_a_root(pool):
    with pytest.raises(lb_mpi.Error, match="asynchronous tasks: expected a pool made with root="):
        pool.apply_async(square, (1,))
    assert list(pool.imap(square, range(9))) == ([k * k for k in range(9)] if COMM.rank == 0 else [])
    assert sorted(pool.imap_unordered(square, itertools.islice(range(9), 4))) == ([0, 1, 4, 9] if COMM.rank == 0 else [])
