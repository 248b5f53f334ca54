"""The joblib backend on real ranks: results as in sequence, arrays once per host and freed, nested calls, exceptions."""


import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.common.collective import agree
from lb_mpi.mpi.pool import arrays, script
from tests.mpi import pools
from tests.mpi.sizes import COMM, SIZE
from tests.process.lab import until

joblib = pytest.importorskip("joblib")
import lb_mpi.joblib  # noqa: E402

pytestmark = pytest.mark.mpi


def in_script(run, *, hosts=None):
    pools.in_script(run, hosts=hosts)
    assert (arrays._kept, arrays._mapped, arrays._paths) == ({}, {}, {})


def total(x, k):
    return COMM.rank, x.flags.writeable, float(x.sum()) + k


def shape(x):
    return x.shape, str(x.dtype), x.flags.c_contiguous, x.flags.writeable, x.tobytes()


def fail(k):
    if k == 7:
        raise ZeroDivisionError("seven")
    return k


def nested(k):
    assert SIZE == 1 or isinstance(joblib.parallel.get_active_backend()[0], joblib.parallel.SequentialBackend)
    return joblib.Parallel()(joblib.delayed(abs)(-n) for n in range(k))


@pytest.mark.parametrize("by_host", [True, False])
@pytest.mark.every_size
def test_large_arrays_are_sent_once_to_each_host(by_host):
    x = np.arange(400_000.0)

    def run():
        parcels = script._shared[-1].parcels
        before = parcels.sent_bytes
        with joblib.parallel_config("lb_mpi"):
            found = joblib.Parallel(batch_size=1)(joblib.delayed(total)(x, k) for k in range(12 * SIZE))
        assert [value for _, _, value in found] == [x.sum() + k for k in range(12 * SIZE)]
        assert {writeable for _, writeable, _ in found} == {SIZE == 1}
        sent = parcels.sent_bytes - before
        n_hosts = SIZE if by_host else 1
        assert (n_hosts - 1) * x.nbytes <= sent < (n_hosts - 1) * x.nbytes + 200_000 * SIZE

    in_script(run, hosts=MPI.COMM_SELF if by_host else None)


def test_arrays_of_all_kinds():
    rng = np.random.default_rng(1)
    given = [
        rng.random((300, 500)), np.asfortranarray(rng.random((300, 500))), rng.random((600, 500))[::2],
        np.arange(150_000).astype("M8[s]"), np.zeros(200_000, [("a", "f4"), ("b", "i8")]), np.ones(3),
    ]  # fmt: skip

    def run():
        with joblib.parallel_config("lb_mpi"):
            found = joblib.Parallel()(joblib.delayed(shape)(x) for x in given)
            private = joblib.Parallel(max_nbytes=None)(joblib.delayed(shape)(x) for x in given)
        assert [one[:2] + one[4:] for one in found] == [shape(x)[:2] + shape(x)[4:] for x in given]
        assert [one[2] for one in found] == [True, False, SIZE > 1, True, True, True]
        assert [one[3] for one in found] == ([False] * 2 + [True] + [False] * 2 + [True] if SIZE > 1 else [True] * 6)
        assert all(one[3] for one in private)
        objects = [np.array([k] * 150_000, dtype=object) for k in range(3)]
        with joblib.parallel_config("lb_mpi"):
            assert joblib.Parallel()(joblib.delayed(len)(x) for x in objects) == [150_000] * 3

    in_script(run)


def kept(_):
    return len(arrays._kept), len(arrays._mapped)


@pytest.mark.parametrize("by_host", [True, False])
def test_arrays_are_kept_until_their_call_ends(by_host):
    def run():
        x = np.zeros(200_000)

        def call(parallel):
            x[:] += 1.0
            found = parallel(joblib.delayed(total)(x, 0) for _ in range(4 * SIZE))
            assert {one for *_, one in found} == {x.sum()}

        with lb_mpi.Executor() as executor, joblib.parallel_config("lb_mpi", executor=executor):
            for _ in range(3):
                call(joblib.Parallel(batch_size=1))
            with joblib.Parallel(batch_size=1) as parallel:
                for _ in range(3):
                    call(parallel)
            if SIZE > 1:
                until(lambda: {*executor.map(kept, range(8 * SIZE))} == {(0, 0)})
        with joblib.parallel_config("lb_mpi"), joblib.Parallel(batch_size=1) as parallel:
            for _ in range(2):
                call(parallel)

    in_script(run, hosts=MPI.COMM_SELF if by_host else None)


@pytest.mark.every_size
def test_calls_of_all_kinds():
    def run():
        with joblib.parallel_config("lb_mpi"):
            assert joblib.effective_n_jobs() == SIZE
            assert joblib.Parallel()(joblib.delayed(nested)(k) for k in range(5)) == [[*range(k)] for k in range(5)]
            with pytest.raises(ZeroDivisionError, match="seven"):
                joblib.Parallel()(joblib.delayed(fail)(k) for k in range(50))
            assert joblib.Parallel()(joblib.delayed(fail)(k) for k in range(5)) == [*range(5)]
            assert joblib.Parallel(n_jobs=100)(joblib.delayed(fail)(k) for k in range(5)) == [*range(5)]
            assert joblib.Parallel(n_jobs=-SIZE - 3)(joblib.delayed(fail)(k) for k in range(5)) == [*range(5)]
            results = joblib.Parallel(return_as="generator")(joblib.delayed(abs)(-k) for k in range(300))
            assert [*results] == [*range(300)]
            with joblib.Parallel() as parallel:
                for n in range(3):
                    assert parallel(joblib.delayed(abs)(-k) for k in range(n)) == [*range(n)]
                with pytest.raises(ZeroDivisionError):
                    parallel(joblib.delayed(fail)(k) for k in range(50))
                again = parallel(joblib.delayed(fail)(k) for k in range(5))
                assert again[-5:] == [*range(5)]  # joblib 1.6 puts tasks of the failed call before them, also with loky
            squares = joblib.Parallel(require="sharedmem")(joblib.delayed(pow)(k, 2) for k in range(9))
            assert squares == [k * k for k in range(9)]
            with pytest.raises(ValueError, match="n_jobs"):
                joblib.Parallel(n_jobs=0)(joblib.delayed(abs)(-k) for k in range(3))

    in_script(run)


def test_an_executor_of_a_program_that_runs_on_all_ranks():
    def run():
        with lb_mpi.Executor(COMM) as executor:
            if executor is not None:
                x = np.ones(200_000)
                with joblib.parallel_config("lb_mpi", executor=executor):
                    for _ in range(2):
                        found = joblib.Parallel()(joblib.delayed(total)(x, k) for k in range(9))
                        assert [value for *_, value in found] == [x.sum() + k for k in range(9)]

    agree(COMM, run)
    assert arrays._kept == {}


def test_in_place_of_the_processes_of_joblib(monkeypatch):
    monkeypatch.setattr("joblib.parallel.BACKENDS", dict(joblib.parallel.BACKENDS))
    lb_mpi.joblib.replace_processes()

    def run():
        found = joblib.Parallel(n_jobs=SIZE)(joblib.delayed(total)(np.ones(3), k) for k in range(9))
        assert [value for *_, value in found] == [3.0 + k for k in range(9)]
        with joblib.parallel_config("multiprocessing", n_jobs=2):
            assert joblib.effective_n_jobs(2) == min(2, SIZE)

    in_script(run)


def write(x, k):
    x[k] = k + 1.0
    x.flush()


@pytest.mark.one_mpi
def test_tasks_write_to_the_file_that_an_argument_maps(tmp_path):
    def run():
        path = tmp_path / "x.npy"
        np.save(path, np.zeros((6, 200_000)))
        x, read = np.load(path, mmap_mode="r+"), np.load(path, mmap_mode="r")
        with joblib.parallel_config("lb_mpi", n_jobs=-1):
            joblib.Parallel(batch_size=1)(joblib.delayed(write)(part, k) for part in (x[:3], x[3:, ::2]) for k in range(3))
            found = joblib.Parallel()(joblib.delayed(total)(read, k) for k in range(4))
        assert (x[:3].sum(), x[3:, ::2].sum(), x[3:, 1::2].sum()) == (6 * 200_000, 6 * 100_000, 0)
        assert [value for _, _, value in found] == [1_800_000.0 + k for k in range(4)]
        with pytest.raises(lb_mpi.Error, match=r"which can be written, is another or no file on .*: expected a file system"):
            arrays.reopened(str(path), 0, x.dtype, 0, (1,), (8,))

    in_script(run)


def begin(number):
    begun.append(number)


def find(k):
    with joblib.parallel_config("lb_mpi", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(abs)(-n) for n in range(3)) == [0, 1, 2]
    return tuple(begun)


begun = []


@pytest.mark.one_mpi
def test_arguments_of_loky():
    x = np.arange(400_000.0)

    def run():
        with joblib.parallel_config("lb_mpi", n_jobs=-1, inner_max_num_threads=1, initializer=begin, initargs=(4,)):
            if SIZE > 1:
                with pytest.warns(RuntimeWarning, match="inner_max_num_threads = 1 is ignored"):
                    found = joblib.Parallel()(joblib.delayed(find)(k) for k in range(9))
                assert {*found} == {(4,)}
        with joblib.parallel_config("lb_mpi", n_jobs=-1):
            for mode, writeable in (("c", True), (None, True), ("r", SIZE == 1)):
                found = joblib.Parallel(mmap_mode=mode)(joblib.delayed(total)(x, k) for k in range(3))
                assert {kind for _, kind, _ in found} == {writeable}

    in_script(run)
