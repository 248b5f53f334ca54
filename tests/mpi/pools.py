"""Pools that one rank calls: in a program, where the other ranks serve it, and in a script that rank 0 alone runs."""


import numpy as np
import pytest

from lb_mpi.mpi.common.collective import agree
from lb_mpi.mpi.common.communicator import duplicate
from lb_mpi.mpi.pool.ranks import PoolRanks
from lb_mpi.mpi.pool.script import run_alone
from tests.mpi.sizes import COMM

from_root = pytest.mark.parametrize("pool", [0], indirect=True)  # see the fixture


def in_script(run, *, hosts=None):
    """Call `run` on rank 0 as `python -m lb_mpi pool` does; what it raises, all raise.

    hosts : the ranks that pretend to be this rank's host.
    """
    agree(COMM, lambda: run_alone(PoolRanks(duplicate(COMM), 0, alone=True, host=hosts), run))


def square(x):
    return x * x


WORK = np.zeros(2)


def fill(k):
    """Return the same array each time."""
    WORK[:] = k
    return WORK


def fail_at(n, k):
    if k == n:
        raise ValueError(k)
    return k
