"""Threads of numba, BLAS and OpenMP: how many there are, and whether a host has cores for those of all its ranks."""

from __future__ import annotations

import os

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def n_threads() -> int:
    """Return how many threads numba, BLAS or OpenMP use in this process: as set, or one per core that it may use."""
    given = [os.environ.get(name, "") for name in THREADS]
    return max([int(text) for text in given if text.isdecimal()], default=len(os.sched_getaffinity(0)))


def crowded(n_ranks: int, n_threads: int, n_cores: int) -> str:
    """Return a hint if a host has fewer cores than its ranks' threads, `n_threads` each; else ""."""
    if n_threads < 2 or n_ranks * n_threads <= n_cores:
        return ""
    cores = f"{n_cores} core" + "s" * (n_cores != 1)
    least = max(1, n_cores // n_ranks)
    return (
        f"{n_ranks} rank{'s' * (n_ranks != 1)} with {n_threads} threads each (numba, BLAS, OpenMP) on {cores}: set "
        f"OMP_NUM_THREADS={least} before the program starts (NUMBA_NUM_THREADS, OPENBLAS_NUM_THREADS or MKL_NUM_THREADS "
        "where these are set)"
    )
