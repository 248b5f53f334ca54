"""python -m lb_mpi pool --as NAME,...: scripts that import other packages' pools and executors run unchanged."""

import importlib.util
import multiprocessing.managers
import pickle
import platform

import pytest

import lb_mpi
from lb_mpi.adapters import inside
from tests.process.started import needs_mpiexec, on_ranks

pytest.importorskip("mpi4py", reason="runs a program under mpiexec")
pytestmark = [pytest.mark.one_mpi, needs_mpiexec]


def run(folder, names, script, *arguments):
    """Run a script on three ranks; its exit code and output."""
    path = folder / "script.py"
    path.write_text(script)
    return on_ranks(3, "-m", "lb_mpi", "pool", "--as", names, str(path), *arguments)


PROCESSES = """
import concurrent.futures
import multiprocessing
from multiprocessing import Pool, get_context
from multiprocessing.pool import Pool as SamePool, ThreadPool

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor, get_comm_workers

import lb_mpi

offset = None

def begin(number):
    global offset
    offset = number

def square(x):
    return x * x + offset

def fail(x):
    raise KeyError(x)

class Local(Exception):
    def __init__(self, one, other):
        super().__init__(one)

def odd(x):
    if x == 3:
        raise Local(x, x)
    return 1 // (x % 2)

def local(x):
    return [x] if x % 3 else lambda: x

def end(x):
    raise SystemExit(0)

class Three:
    def __getitem__(self, k):
        return [0, 1, 2][k]

def workers():
    return get_comm_workers()

def outcomes(results):
    while True:
        try:
            yield next(results)
        except StopIteration:
            return
        except Exception as error:
            yield type(error).__name__

def main():
    with Pool(4, begin, (5,)) as pool:
        print(*outcomes(pool.imap(odd, range(6))), *sorted(outcomes(pool.imap_unordered(odd, iter([1, 0, 1]))), key=str))
        for many in (True, 10**9):
            assert pool.map(abs, [-1], many) == pool.starmap(abs, [[-1]], many) == pool.map_async(abs, [-1], many).get(60)
            assert [*pool.imap(abs, iter([-1]), many)] == [1] == [*pool.imap_unordered(abs, [-1], many)]
        print(pool.map(square, range(5), 2), pool.starmap(pow, [(2, 3)]), pool._processes)
        print(list(pool.imap(square, range(3), 1)), sorted(pool.imap_unordered(square, range(3), 2)))
        print(pool.map_async(square, range(4), callback=print).get(60), pool.apply(pow, (2,), {"exp": 5}))
        print(*outcomes(pool.imap(local, range(5))), *outcomes(pool.imap(local, iter([1, 0, 1]))))
        print(*outcomes(pool.imap(next, [iter([]), iter([1])])))
        print(pool.starmap(ord, "ab"), pool.starmap(np.ndarray.sum, np.matrix([[1, 2]])), pool.map(abs, Three()))
        print(pool.apply(func=abs, args=(-1,)), pool.apply_async(func=abs, args=(-1,), callback=None).get(60))
        print(pool.map_async(func=abs, iterable=[-1]).get(60), pool.starmap_async(func=pow, iterable=[(2, 3)]).get(60))
        for call in (pool.map, pool.imap, pool.imap_unordered):
            try:
                list(call(end, [1]))
            except lb_mpi.TaskError as error:
                print(type(error.__cause__).__name__, end=" ")
        for call in (pool.map, pool.apply, lambda *arguments: list(pool.imap(*arguments))):
            try:
                call(fail, [1])
            except KeyError as error:
                print(error, type(error.__cause__).__name__)
    pool.close()
    pool.join()
    pool = get_context("spawn").Pool(2)
    print(pool.map(abs, [-1]), isinstance(pool, multiprocessing.pool.Pool), SamePool is Pool)
    pool.terminate()
    pool.join()
    with ThreadPool(2) as threads:
        print(threads.map(abs, [-1, -2]), threads.apply(abs, (-4,)))
    with concurrent.futures.ProcessPoolExecutor(4) as executor:
        print(executor.submit(abs, -3).result(), type(executor).__name__)
    with concurrent.futures.ProcessPoolExecutor(8, initializer=begin, initargs=(7,)) as executor:
        print(list(executor.map(square, range(3), chunksize=2)), executor._max_workers)
        print(repr(executor.submit(fail, 1).exception()), list(executor.map(abs, [])))
        print(isinstance(executor, concurrent.futures.ProcessPoolExecutor))
    try:
        concurrent.futures.ProcessPoolExecutor(max_workers=0)
    except ValueError as error:
        print(error)
    try:
        multiprocessing.Pool(2, begin, (multiprocessing.Event(),))
    except lb_mpi.Error as error:
        print(error)
    with MPIPoolExecutor(max_workers=3, path=["."]) as executor:
        print(list(executor.map(pow, [2, 3], [2, 2])), MPI.COMM_WORLD.size)
        print(str(executor.submit(workers).exception()).partition(" (")[0])
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            print(executor.submit(abs, -2).result())

if __name__ == "__main__":
    main()
"""


def test_multiprocessing_and_mpi4py(tmp_path):
    assert run(tmp_path, "concurrent.futures,multiprocessing,mpi4py.futures", PROCESSES) == (0, "\n".join([
        "ZeroDivisionError 1 ZeroDivisionError MaybeEncodingError ZeroDivisionError 1 1 1 ZeroDivisionError",
        "[5, 6, 9, 14, 21] [8] 3", "[5, 6, 9] [5, 6, 9]", "[5, 6, 9, 14]", "[5, 6, 9, 14] 32",
        "MaybeEncodingError [1] [2] MaybeEncodingError [4] [1] MaybeEncodingError [1]",
        "RuntimeError 1", "[97, 98] [matrix([[3]])] [0, 1, 2]", "1 1", "[1] [8]",
        "SystemExit SystemExit SystemExit 1 TaskError", "1 TaskError", "1 RemoteTraceback",
        "[1] True True", "[1, 2] 4", "3 RanksExecutor",
        "[7, 8, 11] 3", "KeyError(1) []", "True", "max_workers must be greater than 0",
        "a Condition of multiprocessing can't be shared between ranks: "
        "expected tasks that return what the script then prints, writes or counts (imap_unordered)",
        "[4, 9] 3",
        "get_comm_workers(): each task of lb_mpi has one rank: expected a pool of the first ranks of groups", "2", "",
    ]))  # fmt: skip


HABITS = """
import concurrent.futures
import itertools
import multiprocessing
import warnings

import numpy as np
import scipy.optimize

lock = None

def begin(given):
    global lock
    lock = given

def locked(x):
    with lock:
        return x + 1

def put(given):
    queue, known, k = given
    known[k] = k * k
    queue.put(k)

def inner(n):
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        return sum(executor.map(nested, range(n)))

def nested(k):
    with multiprocessing.Pool(2, begin, (k,)) as pool:
        return max(pool.map(abs, [-k]))

def stream():
    for k in itertools.count():
        read.append(k)
        yield k

read = []

class Fit:
    def __init__(self, pool):
        self.pool, self.scale = pool, 3

    def cost(self, x):
        return self.scale * x

def distance(x):
    return float(((x - 1.0) ** 2).sum())

def best(**parallel):
    return scipy.optimize.differential_evolution(distance, [(-5, 5)], updating="deferred", rng=1, maxiter=5, **parallel).x

def main():
    with multiprocessing.Pool(2) as pool:
        print(*itertools.islice(pool.imap(abs, stream()), 50), len(read) < 10_000)
        print(pool.map(Fit(pool).cost, [1, 2]), np.array_equal(best(workers=pool.map), best(workers=map)))
        print(sorted(pool.imap_unordered(abs, iter(range(5)), 2)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with multiprocessing.Pool(3, begin, (multiprocessing.RLock(),), maxtasksperchild=2) as pool:
            print(sum(pool.map(locked, range(30))), pool.map(str.upper, "abc"), pool.map(int, b"\\x01\\x02"))
            print([row.tolist() for row in pool.map(np.ma.getmaskarray, np.ma.masked_equal(np.eye(2), 0.0))])
            print(pool.map(inner, range(5)), pool.imap(abs, [-1]).next(timeout=9))
        concurrent.futures.ProcessPoolExecutor(max_tasks_per_child=3).shutdown()
    print(*(str(one.message).partition(" is ignored")[0] for one in caught))
    with concurrent.futures.ProcessPoolExecutor(3, initializer=begin, initargs=(multiprocessing.Lock(),)) as executor:
        print(sum(executor.map(locked, range(30))), sum(executor.map(inner, range(5))))
    with multiprocessing.Manager() as manager:
        queue, known = manager.Queue(), manager.dict()
        with multiprocessing.Pool(3, begin, (manager.Lock(),)) as pool:
            pool.map(put, [(queue, known, k) for k in range(12)], 1)
            print(sum(pool.map(locked, range(30))))
        print(sorted(queue.get() for _ in range(12)) == list(range(12)), sum(known.values()))

if __name__ == "__main__":
    main()
"""


def test_habits_of_multiprocessing(tmp_path):
    """Endless iterators, locks of initializers, texts and masked arrays as items, processes within tasks, managers."""
    assert run(tmp_path, "multiprocessing", HABITS) == (0, "\n".join([
        " ".join(map(str, range(50))) + " True", "[3, 6] True", "[0, 1, 2, 3, 4]",
        "465 ['A', 'B', 'C'] [1, 2]", "[[False, True], [True, False]]", "[0, 0, 1, 3, 6] 1",
        "maxtasksperchild = 2 timeout = 9 max_tasks_per_child = 3", "465 10", "465", "True 506", "",
    ]))  # fmt: skip


def test_a_manager_of_another_host_is_refused_in_plain_words(monkeypatch):
    monkeypatch.setattr(multiprocessing.managers, "RebuildProxy", multiprocessing.managers.RebuildProxy)
    with multiprocessing.Manager() as manager:
        known = manager.dict({1: 2})
        sent = pickle.dumps([inside.Beginning(print, (known,)), known])
        assert pickle.loads(sent)[1][1] == 2
        monkeypatch.setattr(platform, "node", lambda: "lab02")
        assert pickle.loads(sent)[1][1] == 2  # on a virtual host, with the same files
        gone = sent.replace(str(manager.address).encode(), b"/" * len(str(manager.address)))
        with pytest.raises(lb_mpi.Error, match=r"of .* at '/.*, which lab02 does not .*: expected .*SyncManager"):
            pickle.loads(gone)


@pytest.mark.parametrize(("names", "script", "alone"), [
    ("multiprocessing", "import sys\nsys.exit(0)", True), ("multiprocessing", "raise SystemExit(3)", False),
])  # fmt: skip
def test_a_script_that_no_other_rank_has_helped_says_so(tmp_path, names, script, alone):
    code, said = run(tmp_path, names, script)
    assert (code != 0) == ("3)" in script[-3:])
    assert ("no other rank has run a task of" in said) == alone
    assert said.count("--as NAME") == alone


JOBLIB = """
import os
from joblib import Parallel, delayed

def main():
    found = Parallel(n_jobs=3, backend="loky", batch_size=1)(delayed(os.getppid)() for _ in range(30))
    print(len(found), os.getpid() not in found, Parallel(n_jobs=-1)(delayed(abs)(-k) for k in range(5)))

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="joblib is not installed")
def test_joblib(tmp_path):
    assert run(tmp_path, "joblib", JOBLIB) == (0, "30 True [0, 1, 2, 3, 4]\n")  # loky's would be children of rank 0


SCHWIMMBAD = """
import sys
import schwimmbad

def square(x):
    return x * x

def square_all(batch):
    (first, last), xs = batch
    return [x * x for x in xs]

def main():
    came = []
    with schwimmbad.choose_pool(mpi=True) as pool:
        if not pool.is_master():
            pool.wait()
            sys.exit(0)
        assert pool.map(square, range(9), callback=came.append) == [x * x for x in range(9)]
        assert pool.map(square, [3], came.append) == [came.pop()] == [9]
        assert pool.map(worker=square, tasks=[3]) == [9]
        assert [x for xs in pool.batched_map(square_all, list(range(9))) for x in xs] == [x * x for x in range(9)]
    with schwimmbad.MultiPool() as pool:
        print(pool.map(square, [3]), sorted(came) == [x * x for x in range(9)])
    schwimmbad.MPIPool(use_dill=True).close()

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(importlib.util.find_spec("schwimmbad") is None, reason="schwimmbad is not installed")
def test_schwimmbad(tmp_path):
    assert run(tmp_path, "schwimmbad", SCHWIMMBAD) == (0, "[9] True\n")


def test_a_name_that_is_not_there(tmp_path):
    code, said = run(tmp_path, "multiprocessing,dask", "")
    assert code == 2
    assert "--as = 'dask': expected one of concurrent.futures, joblib, mpi4py.futures, multiprocessing, schwimmbad" in said
