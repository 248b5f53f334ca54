"""A nested sampler: the periods and amplitudes of two waves in noise.

Source: dynesty's example "Exponential Wave", with two plain waves and more data, and the start of a run only.
"""

from __future__ import annotations

import sys
from typing import Any

import dynesty
import numpy as np
from schwimmbad import MPIPool

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS = {"dynesty": "dynesty", "schwimmbad": "schwimmbad"}
X = np.linspace(0.0, 20.0, 40_000)
DATA = np.sin(1.7 * X) + 0.5 * np.sin(4.2 * X) + np.random.default_rng(1).normal(0.0, 0.5, len(X))


@task
def loglike(theta: Any) -> float:
    """Logarithm of the likelihood of the data."""
    one, two, high, low = theta
    model = high * np.sin(one * X) + low * np.sin(two * X)
    return -0.5 * float(np.sum((DATA - model) ** 2)) / 0.25


def prior(u: Any) -> Any:
    """Periods up to 5, amplitudes up to 2."""
    return u * np.array([5.0, 5.0, 2.0, 2.0])


def sample(pool: Any) -> float:
    """Begin to sample; the logarithm of the evidence so far."""
    rstate = np.random.default_rng(56101)
    sampler = dynesty.NestedSampler(loglike, prior, 4, nlive=100, sample="rwalk", rstate=rstate, pool=pool, queue_size=16)
    sampler.run_nested(maxcall=2500, print_progress=False, add_live=False)
    return float(sampler.results.logz[-1])


def before(comm: Any) -> Any:
    """With schwimmbad, as its documentation says."""
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
