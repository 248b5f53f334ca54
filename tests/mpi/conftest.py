"""Which tests run on how many ranks.

`./launch/test` without arguments runs the tests marked `every_size` on each number of ranks, since what they test depends on
it, and the others on the numbers in LB_MPI_TEST_SIZES only; on 2 instead of 3 where they are marked `pair`.  Without that
variable all selected tests run.
"""

import os
import time
from functools import partial
from pathlib import Path

import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.graph import distribute
from tools.stages import ONE_MPI, SIZES


def pytest_configure(config):
    config.addinivalue_line("markers", "every_size: what is tested depends on the number of ranks")
    config.addinivalue_line("markers", "pair: two ranks show all that three do")


def usual(*, pair):
    """Whether all selected tests run here, of those marked `pair` or of the others."""
    sizes = [int(size) for size in os.environ.get(SIZES, "").split(",") if size]
    return not sizes or MPI.COMM_WORLD.size in ([min(size, 2) for size in sizes] if pair else sizes)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Rank 0 rewrites the assertions of the tests, and the other ranks then read what it has written."""
    others = MPI.COMM_WORLD.Ibarrier() if MPI.COMM_WORLD.rank else None
    while others is not None and not others.Test():
        time.sleep(0.05)
    try:
        return (yield)
    finally:
        if others is None:
            MPI.COMM_WORLD.Ibarrier().Wait()


def pytest_ignore_collect(collection_path, config):
    """Not to import, on each of many ranks, a file that has no test for them."""
    if not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    elsewhere = config.option.markexpr == "not one_mpi" and ONE_MPI.search(text)
    return bool(elsewhere or not ("every_size" in text or usual(pair="mark.pair" in text))) or None


def pytest_runtest_setup():
    """Forget the speeds of the ranks that another test has measured: what a test finds does not depend on it."""
    from lb_mpi.mpi.common.communicator import presence_of  # here: many ranks import it, one after the other

    presence_of(MPI.COMM_WORLD).speeds.forget()


def pytest_collection_modifyitems(config, items):
    here = [item for item in items if item.get_closest_marker("every_size") or usual(pair=item.get_closest_marker("pair"))]
    config.hook.pytest_deselected(items=[*{*items} - {*here}])
    items[:] = here


@pytest.fixture(autouse=True)
def measured_quickly(monkeypatch):
    """`distribute` measures speeds that decide nothing here; `lb_mpi.measure` itself takes its time."""
    monkeypatch.setattr(distribute, "measure", partial(distribute.measure, round_s=0.02))


@pytest.fixture
def pool(request):
    """A pool of all ranks; with a parameter, its root: one that the other ranks serve, and then have passed the test."""
    with lb_mpi.Pool(MPI.COMM_WORLD, root=getattr(request, "param", None)) as pool:
        yield pool


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Do not run a test on a rank that has run the tasks of the root's pool or executor."""
    return any(pyfuncitem.funcargs.get(name, name) is None for name in ("pool", "executor")) or None


@pytest.fixture
def folder(tmp_path):
    """One that all ranks see."""
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))
