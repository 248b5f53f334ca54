"""Searches that are saved, on real ranks: gone on with by fewer, after a stop, with a full disk; what is refused."""

import itertools
import os
import signal
import warnings

import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.search.search import KIND
from lb_mpi.saving.folder import Folder
from lb_mpi.searching.uts import PUBLISHED, TREES, UnbalancedTreeSearch, compile_kernels
from tests.mpi.limits import largest_file
from tests.mpi.sizes import COMM
from tests.pile import Pile

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_kernels()


@pytest.fixture
def saves(folder):
    return folder / "saves"


def count(comm, saves, **options):
    """T1, saved after each of a few hundred quanta: a save waits for the disk."""
    problem = UnbalancedTreeSearch(TREES["T1"])
    return lb_mpi.search(comm, problem, threshold=16.0, save=saves, save_every_s=0.01, quantum=20_000, **options).value


@pytest.mark.parametrize("route", ["ring", "random"])
@pytest.mark.every_size
def test_fewer_ranks_go_on_from_what_all_have_saved(saves, route):
    assert count(COMM, saves, route=route) == PUBLISHED["T1"]
    if COMM.rank == 0:
        found = Folder(saves, KIND).saves()
        assert len(found.whole) == 2
        assert not found.damaged
        assert len(found.whole[0].parts) == COMM.size
    half = MPI.Intracomm(COMM.Split(COMM.rank < (COMM.size + 1) // 2))
    COMM.barrier()
    if COMM.rank < half.size or COMM.size == 1:
        assert count(half, saves) == PUBLISHED["T1"]
    half.Free()
    COMM.barrier()


@pytest.mark.every_size
def test_a_signal_saves_and_stops_and_the_next_call_goes_on(saves, monkeypatch):
    turns = itertools.count(1)
    load = UnbalancedTreeSearch.load

    def stop(self):
        if next(turns) == 4 and COMM.rank == COMM.size - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return load(self)

    with monkeypatch.context() as patch:
        patch.setattr(UnbalancedTreeSearch, "load", stop)
        with pytest.raises(lb_mpi.Stopped, match=r"save-0000.*, stopped by .*: run the same again"):
            count(COMM, saves)
    assert count(COMM, saves) == PUBLISHED["T1"]


@pytest.mark.every_size
def test_a_search_is_saved_when_its_time_is_over_and_the_next_call_goes_on(saves):
    done = []
    for _ in range(2):
        result = lb_mpi.search(COMM, Pile(10**9), threshold=1.0, save=saves, limit_s=0.2)
        assert result.timed_out
        done.append(result.value)
    assert set(done[0]) < set(done[1])
    assert len(done[1]) == len(set(done[1]))


def test_sigterm_at_the_end_of_a_search_ends_the_process(saves, monkeypatch):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    result = UnbalancedTreeSearch.result

    def late(self):
        if COMM.rank == COMM.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return result(self)

    monkeypatch.setattr(UnbalancedTreeSearch, "result", late)
    assert count(COMM, saves) == PUBLISHED["T1"]
    assert raised == ([signal.SIGTERM] if COMM.rank == COMM.size - 1 else [])


def test_a_disk_that_is_full_is_a_warning(saves):
    last = COMM.rank == COMM.size - 1
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        try:
            with largest_file(0, here=last):
                assert count(COMM, saves) == PUBLISHED["T1"]
        finally:
            signal.signal(signal.SIGXFSZ, handler)
    assert any("is not saved this time" in str(each.message) for each in reported) == last
    COMM.barrier()
    assert COMM.rank or not Folder(saves, KIND).saves().whole


def test_all_ranks_refuse_the_save_of_another_search(saves):
    count(COMM, saves)
    with pytest.raises(ValueError, match=r"problem = 'tests\.pile\.Pile': expected .*UnbalancedTreeSearch"):
        lb_mpi.search(COMM, Pile(10), save=saves)
    with pytest.raises(lb_mpi.SearchError, match="expected Tree"):
        lb_mpi.search(COMM, UnbalancedTreeSearch(TREES["T3"]), save=saves)


@pytest.mark.every_size
def test_damage_is_a_warning_and_the_save_before_is_read(saves):
    count(COMM, saves)
    COMM.barrier()
    if COMM.rank == 0:
        newest = sorted(saves.glob("save-*"))[-1]
        os.truncate(newest / "rank-000000", 5)
    COMM.barrier()
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert count(COMM, saves) == PUBLISHED["T1"]
    assert any("truncated: going on from save" in str(each.message) for each in reported) == (COMM.rank == 0)
