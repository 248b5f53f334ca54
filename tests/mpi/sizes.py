"""The ranks of a test, and parameters of tests that need not all run on every number of ranks."""


import pytest
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LAST = SIZE - 1
several = pytest.mark.skipif(SIZE == 1, reason="needs another rank")


def parameters(values, *, every_size):
    """Mark those in `every_size`; the others show nothing new where there are other numbers of ranks than the usual."""
    rows = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [pytest.param(*row, marks=[pytest.mark.every_size] * (value in every_size)) for value, row in rows]
