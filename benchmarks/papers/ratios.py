"""p = lambda_P / lambda_2 of S^-1 A A^T for hundreds of thousands of arrangements, compiled: ten times LAPACK's pace.

`lb_mpi.arranging.objectives.costs` says the same in numpy, and the tests hold one against the other.  Small matrices are
reduced to tridiagonal form (Householder), and the two eigenvalues found by bisection on Sturm's count.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Graph, Ints

PRECISION = 1e-12  # of an eigenvalue, relative to the largest
SHARE = 512  # arrangements that a thread takes at a time


def ratios(graph: Graph, layouts: Floats) -> Floats:
    """(B,) p of the (B, P) layouts, speeds in the order of the vertices."""
    tails, heads = graph.edges()
    result = np.empty(len(layouts))
    parts = [slice(first, first + SHARE) for first in range(0, len(layouts), SHARE)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(lambda part: _ratios(tails, heads, layouts[part], result[part]), parts):
            pass
    return result


@njit(cache=True, nogil=True)
def _ratios(tails: Ints, heads: Ints, layouts: Floats, result: Floats) -> None:
    n = layouts.shape[1]
    matrix = np.empty((n, n))
    diagonal, beside, work = np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(layouts)):
        speeds = layouts[k]
        matrix[:] = 0.0
        for edge in range(len(tails)):
            i, j = tails[edge], heads[edge]
            matrix[i, i] += 1.0 / speeds[i]
            matrix[j, j] += 1.0 / speeds[j]
            matrix[i, j] = matrix[j, i] = -1.0 / np.sqrt(speeds[i] * speeds[j])
        _tridiagonal(matrix, diagonal, beside, work)
        top = 0.0  # Gershgorin
        for i in range(n):
            top = max(top, diagonal[i] + beside[i] + (beside[i + 1] if i + 1 < n else 0.0))
        for i in range(n):
            beside[i] *= beside[i]
        result[k] = _eigenvalue(diagonal, beside, n - 1, top) / _eigenvalue(diagonal, beside, 1, top)


@njit(cache=True, nogil=True)
def _tridiagonal(matrix: Floats, diagonal: Floats, beside: Floats, work: Floats) -> None:
    """Reduce the symmetric matrix, which is lost; beside[i] >= 0 stands between rows i - 1 and i, beside[0] = 0."""
    n = len(matrix)
    beside[0] = 0.0
    for k in range(n - 2):
        norm = 0.0
        for i in range(k + 1, n):
            norm += matrix[i, k] ** 2
        norm = np.sqrt(norm)
        beside[k + 1] = norm
        if norm == 0.0:
            continue
        # The reflection I - u u^T / half turns column k into norm times a unit vector.
        if matrix[k + 1, k] > 0.0:
            norm = -norm
        matrix[k + 1, k] -= norm
        half = -norm * matrix[k + 1, k]
        for i in range(k + 1, n):
            total = 0.0
            for j in range(k + 1, i + 1):
                total += matrix[i, j] * matrix[j, k]
            for j in range(i + 1, n):
                total += matrix[j, i] * matrix[j, k]
            work[i] = total / half
        along = 0.0
        for i in range(k + 1, n):
            along += matrix[i, k] * work[i]
        along /= 2.0 * half
        for i in range(k + 1, n):
            work[i] -= along * matrix[i, k]
        for i in range(k + 1, n):
            for j in range(k + 1, i + 1):
                matrix[i, j] -= matrix[i, k] * work[j] + work[i] * matrix[j, k]
    if n > 1:
        beside[n - 1] = abs(matrix[n - 1, n - 2])
    for i in range(n):
        diagonal[i] = matrix[i, i]


@njit(cache=True, nogil=True)
def _eigenvalue(diagonal: Floats, squares: Floats, index: int, top: float) -> float:
    """The eigenvalue of that index, from 0, in [0, top]."""
    low, high = 0.0, top
    while high - low > PRECISION * top:
        middle = 0.5 * (low + high)
        below = 0
        pivot = 1.0
        for i in range(len(diagonal)):
            pivot = diagonal[i] - middle - squares[i] / pivot
            if pivot == 0.0:
                pivot = 1e-300
            below += pivot < 0.0
        if below > index:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)
