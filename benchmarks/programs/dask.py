"""A task graph on blocks of an array: singular values of random blocks, and their sum.

Source: dask's documentation, "Scheduling" (`scheduler=` accepts an executor of concurrent.futures) and "Array: blocks".
"""

from __future__ import annotations

from typing import Any

import dask.array
import numpy as np
from mpi4py.futures import MPICommExecutor

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS = {"dask": "dask[array]"}


@task
def singular(block: Any) -> Any:
    """The singular values of a block, several times."""
    for _ in range(10):
        values = np.linalg.svd(block, compute_uv=False)
    return values[None, :1]


def compute(executor: Any) -> float:
    """Compute the graph."""
    from_array: Any = dask.array.from_array  # it has no types
    blocks = from_array(np.random.default_rng(1).normal(size=(1600, 1600)), chunks=(200, 200))
    values = blocks.map_blocks(singular, chunks=(1, 1))
    return float(values.sum().compute(scheduler=executor))


def before(comm: Any) -> Any:
    """With mpi4py's executor."""
    with MPICommExecutor(comm, root=0) as executor:
        if executor is not None:
            return compute(executor)
    return None


def after(comm: Any) -> Any:
    """With lb_mpi."""
    with lb_mpi.Executor(comm) as executor:
        if executor is not None:
            return compute(executor)
    return None


if __name__ == "__main__":
    main(before, after)
