"""Other people's packages on `lb_mpi.Pool`, as their manuals use a pool: the same numbers as serial."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from scipy.optimize import differential_evolution, rosen

import lb_mpi
from lb_mpi import Pool as MPIPool
from lb_mpi.mpi.common.collective import agree

COMM = MPI.COMM_WORLD
SEED = 20
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


def from_root(use: Callable[[lb_mpi.Pool], Any]) -> Any:
    """What `use(pool)` returns on the root, on all ranks; what it raises, all raise."""

    def run() -> Any:
        with lb_mpi.Pool(COMM, root=0) as pool:
            return use(pool) if pool else None

    return COMM.bcast(agree(COMM, run))


class Serial:
    """A pool of the builtin map that says it has as many ranks: who draws random numbers in batches, draws the same."""

    size = COMM.size
    map = staticmethod(map)


def log_gauss(x: np.ndarray) -> float:
    """A narrow valley."""
    return float(-0.5 * (x[0] ** 2 + (x[1] - x[0]) ** 2 / 0.01))


def square_prior(u: np.ndarray) -> np.ndarray:
    return 6.0 * u - 3.0


def test_emcee() -> None:
    emcee = pytest.importorskip("emcee")

    def chain(pool: lb_mpi.Pool | None) -> np.ndarray:
        sampler = emcee.EnsembleSampler(12, 2, log_gauss, pool=pool)
        sampler.random_state = np.random.RandomState(SEED).get_state()
        sampler.run_mcmc(np.random.default_rng(SEED).normal(size=(12, 2)), 40)
        return sampler.get_chain()

    assert from_root(lambda pool: np.array_equal(chain(pool), chain(None)))


def test_dynesty() -> None:
    dynesty = pytest.importorskip("dynesty")

    def sample(pool: Any) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(SEED)
        sampler = dynesty.NestedSampler(log_gauss, square_prior, 2, nlive=40, sample="rwalk", pool=pool, rstate=rng)
        sampler.run_nested(dlogz=1.0, print_progress=False)
        return sampler.results.samples, sampler.results.logz

    assert from_root(lambda pool: all(map(np.array_equal, sample(pool), sample(Serial))))


def test_differential_evolution() -> None:
    def optimum(map_like: Any) -> tuple[list[float], int]:
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


def test_the_tutorial_of_schwimmbad_with_another_import() -> None:
    schwimmbad = pytest.importorskip("schwimmbad")
    tasks = [(x, 3.5 * x) for x in range(30)]
    if COMM.rank == 0:
        assert tutorial(tasks) == list(schwimmbad.SerialPool().map(worker, tasks))
    else:
        with pytest.raises(SystemExit, match="0"):
            tutorial([])
