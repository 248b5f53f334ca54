"""Other people's packages on `lb_mpi.Pool`, as their manuals use a pool: the same numbers as serial."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from scipy.optimize import differential_evolution, rosen

import lb_mpi
from lb_mpi import Pool as MPIPool
from lb_mpi.mpi.common.collective import agree
from tests.mpi.sizes import COMM

SEED = 20
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


def from_root(use: Callable[[lb_mpi.Pool], Any]) -> Any:
    """What `use(pool)` returns on the root, on all ranks; what it raises, all raise."""

    def run() -> Any:
        with lb_mpi.Pool(COMM, root=0) as pool:
            return use(pool) if pool else None

    return COMM.bcast(agree(COMM, run))


def test_differential_evolution():
    def optimum(map_like):
        bounds = [(-2.0, 2.0)] * 3
        found = differential_evolution(
            rosen, bounds, rng=SEED, popsize=6, maxiter=15, polish=False, updating="deferred", workers=map_like
        )
        return found.x.tolist(), found.nfev

    serial, parallel = from_root(lambda pool: (optimum(map), optimum(pool.map)))
    assert parallel == serial


def worker(task: tuple[float, float]) -> float:
    a, b = task
    return a**2 + b


def tutorial(tasks: list[tuple[float, float]]) -> list[float] | None:
    """schwimmbad's own, with another import and `root=0`."""
    pool = MPIPool(root=0)
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    results = pool.map(worker, tasks)
    pool.close()
    return results


def test_the_tutorial_of_schwimmbad_with_another_import():
    schwimmbad = pytest.importorskip("schwimmbad")
    tasks = [(x, 3.5 * x) for x in range(30)]
    if COMM.rank == 0:
        assert tutorial(tasks) == list(schwimmbad.SerialPool().map(worker, tasks))
    else:
        with pytest.raises(SystemExit, match="0"):
            tutorial([])
