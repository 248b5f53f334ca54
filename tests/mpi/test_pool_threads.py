"""Threads that share a pool at random: each gets its own results and its own errors, and nobody waits for ever.

LB_MPI_RANDOM tells how many programs (usually 12), half of which run on MPICH and half on others; each has two threads with
operations that are drawn from its number.  Python switches between them every 10 us, so that they meet in the middle of
each other's calls.
"""

import gc
import os
import random
import sys
import threading
import time

import pytest
from mpi4py import MPI

import lb_mpi
from tests.mpi.pools import in_script

N, N_OPERATIONS = int(os.environ.get("LB_MPI_RANDOM", "12")), 10
HANGS_S = 60.0
pytestmark = pytest.mark.mpi


class Own(Exception):
    """An error of one operation."""


def task(k):
    time.sleep(3e-4 * (k % 3))
    return k * k


def failing_task(k):
    if k[1]:
        raise Own(k[0])
    return task(k[0])


def items(n, fails_at, error):
    for k in range(n):
        if k == fails_at:
            raise error
        yield k


class Thread:
    """The operations of one thread: a function of a pool, with results that are known."""

    def __init__(self, pool, rng):
        self.pool, self.rng = pool, rng
        self.ident = 0

    def callback(self, error, at=-1):
        def call(value):
            assert threading.get_ident() == self.ident, "a callback runs in another thread"
            if error is not None and value == at * at:
                raise error

        return call

    def map(self, n, _at, _error):
        assert self.pool.map(task, n) == [task(k) for k in range(n)]

    def map_calls(self, n, at, error):
        with pytest.raises(Own) as caught:
            self.pool.map(task, n, callback=self.callback(error, at))
        assert caught.value is error

    def failing_map(self, n, at, error):
        with pytest.raises(lb_mpi.TaskError) as caught:
            self.pool.map(failing_task, [(hash(error) if k == at else k, k == at) for k in range(n)])
        assert caught.value.index == at
        assert isinstance(caught.value.__cause__, Own)
        assert caught.value.__cause__.args == (hash(error),)

    def imap(self, n, _at, _error):
        many = self.rng.choice([range(n), iter(range(n))])
        assert list(self.pool.imap(task, many, callback=self.callback(None))) == [task(k) for k in range(n)]

    def stream(self, n, _at, _error):
        options = {"buffersize": self.rng.choice([1, 2, 3, None])}
        assert list(self.pool.imap(task, iter(range(n)), **options)) == [task(k) for k in range(n)]
        assert sorted(self.pool.imap_unordered(task, range(n), **options)) == [task(k) for k in range(n)]

    def failing_items(self, n, at, error):
        with pytest.raises(Own) as caught:
            list(self.pool.imap(task, items(n, at, error)))
        assert caught.value is error

    def imap_calls(self, n, at, error):
        many = self.rng.choice([range(n), iter(range(n))])
        results = self.pool.imap(task, many, callback=self.callback(error, at))
        with pytest.raises(Own) as caught:
            [time.sleep(1e-3) for _ in results]  # while the other thread completes this map, or makes it pause
        assert caught.value is error

    def dropped_imap(self, n, at, _error):
        results = self.pool.imap(task, self.rng.choice([range(n), iter(range(n))]))
        assert [next(results) for _ in range(at)] == [task(k) for k in range(at)]
        if self.rng.random() < 0.5:
            cycle = [results]
            cycle.append(cycle)
            del cycle, results
            gc.collect()

    def dropped_executor(self, n, at, _error):
        results = lb_mpi.Executor().map(task, range(n), buffersize=self.rng.choice([None, 1 + at]))
        assert list(results) == [task(k) for k in range(n)]

    def closed_executor(self, n, _at, _error):
        executor = lb_mpi.Executor()
        futures = [executor.submit(task, k) for k in range(n)]
        executor.shutdown(wait=False)
        assert [future.result() for future in futures] == [task(k) for k in range(n)]

    def calls_that_exit(self, n, _at, _error):
        called = []
        with lb_mpi.Executor() as executor:
            futures = [executor.submit(task, k) for k in range(n)]
            for future in futures:
                future.add_done_callback(lambda _: sys.exit(3) if threading.get_ident() != self.ident else None)
                future.add_done_callback(lambda one: called.append(one.result()))
        assert sorted(called) == [task(k) for k in range(n)]

    def run(self):
        self.ident = threading.get_ident()
        for _ in range(N_OPERATIONS):
            operation = self.rng.choice([*MAPS, *MAPS, *EXECUTORS])
            n = self.rng.randrange(1, 14)
            state = self.rng.getstate()
            while True:
                self.rng.setstate(state)
                try:
                    operation(self, n, self.rng.randrange(n), Own())
                    break
                except lb_mpi.Error as error:  # for which the other thread's executor is not closed yet
                    if "which is open" not in str(error) or operation in EXECUTORS:
                        raise
                    time.sleep(1e-3)


MAPS = [
    Thread.map, Thread.map_calls, Thread.failing_map, Thread.imap, Thread.stream, Thread.failing_items, Thread.imap_calls,
    Thread.dropped_imap,
]  # fmt: skip
EXECUTORS = [Thread.dropped_executor, Thread.closed_executor, Thread.calls_that_exit]


@pytest.mark.parametrize("number", range(MPI.get_vendor()[0] != "MPICH", N, 2))
def test_two_threads_get_their_own_results_and_errors(number, caplog):
    caplog.set_level("CRITICAL", "concurrent.futures")

    def script():
        with lb_mpi.Pool() as pool:
            errors = []

            def run(seed):
                try:
                    Thread(pool, random.Random(seed)).run()
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=run, args=(f"{number} {k}",), daemon=True) for k in range(2)]
            before = sys.getswitchinterval()
            sys.setswitchinterval(1e-5)
            try:
                for one in threads:
                    one.start()
                for one in threads:
                    one.join(HANGS_S)
            finally:
                sys.setswitchinterval(before)
            for error in errors:
                raise error
            assert not any(one.is_alive() for one in threads), "a thread waits for ever"

    in_script(script)


def test_a_map_begins_when_the_tasks_of_a_closed_executor_are_done():
    def script():
        with lb_mpi.Pool() as pool:
            executor = lb_mpi.Executor()
            future = executor.submit(time.sleep, 0.1)
            executor.shutdown(wait=False)
            assert pool.map(task, range(5)) == [task(k) for k in range(5)]
            assert future.done()

    in_script(script)
