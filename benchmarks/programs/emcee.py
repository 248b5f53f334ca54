"""An ensemble sampler: 32 walkers whose likelihood needs 5 to 8 ms.

Source: emcee's tutorial "Parallelization", with 20 steps instead of 100, and with a likelihood that needs CPU time instead
of time, the same each time.
"""

from __future__ import annotations

import sys
from typing import Any

import emcee
import numpy as np
from schwimmbad import MPIPool

import lb_mpi
from benchmarks.measuring import spin
from benchmarks.programs.script import main, task

NEEDS = {"emcee": "emcee", "schwimmbad": "schwimmbad"}


@task
def log_prob(theta: Any) -> float:
    """The tutorial's likelihood."""
    spin(0.005 + 0.003 * (1000.0 * abs(float(np.sum(theta))) % 1.0))
    return -0.5 * float(np.sum(theta**2))


def sample(pool: Any) -> float:
    """Sample; the sum of the chain."""
    np.random.seed(42)  # noqa: NPY002 - emcee reads the state of this generator
    initial = np.random.randn(32, 5)  # noqa: NPY002
    sampler = emcee.EnsembleSampler(*initial.shape, log_prob, pool=pool)
    sampler.run_mcmc(initial, 20)
    return float(sampler.get_chain().sum())


def before(comm: Any) -> Any:
    """Use schwimmbad, as in the tutorial."""
    pool = MPIPool()  # closed at exit; a `with` closes it twice, and then ranks hang in MPI_Finalize of MPICH
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    return sample(pool)


def after(comm: Any) -> Any:
    """With lb_mpi."""
    with lb_mpi.Pool(root=0) as pool:
        if not pool:
            sys.exit(0)
        return sample(pool)


if __name__ == "__main__":
    main(before, after)
