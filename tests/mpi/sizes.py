"""The ranks of a test, and parameters of tests that need not all run on every number of ranks."""


import pytest
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LAST = SIZE - 1
several = pytest.mark.skipif(SIZE == 1, reason="needs another rank")


def parameters(values, *, every_size, every_mpi=None):
    """Mark those in `every_size`; the others show nothing new where there are other numbers of ranks than the usual.

    Nor do those that are not in `every_mpi` on another MPI; None: all are.
    """
    marked = []
    for value in values:
        marks = [pytest.mark.every_size] * (value in every_size)
        marks += [pytest.mark.one_mpi] * (every_mpi is not None and value not in every_mpi)
        marked.append(pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks))
    return marked
