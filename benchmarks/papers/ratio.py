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

HALVINGS = 39  # of an eigenvalue's interval: to 2e-12 of the largest
LANES = 16  # matrices whose eigenvalues are found side by side
SHARE = 512  # arrangements that a thread takes at a time


def ratios(graph: Graph, layouts: Floats) -> Floats:
    """(B,) p of the (B, P) layouts, speeds in the order of the vertices."""
    tails, heads = graph.edges()
    result = np.empty(len(layouts))
    parts = [slice(first, first + SHARE) for first in range(0, len(layouts), SHARE)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(lambda part: ratios_of(tails, heads, layouts[part], result[part]), parts):
            pass
    return result


@njit(cache=True, nogil=True, error_model="numpy")
def ratios_of(tails: Ints, heads: Ints, layouts: Floats, result: Floats) -> None:
    """Write p of the (B, P) layouts to the (B,) result."""
    n = layouts.shape[1]
    matrix = np.empty((n, n))
    diagonal, beside, mirror, work = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    diagonals, squares, top = np.ones((n, LANES)), np.zeros((n, LANES)), np.ones(LANES)
    least, greatest = np.empty(LANES), np.empty(LANES)
    for first in range(0, len(layouts), LANES):
        some = layouts[first : first + LANES]
        for k in range(len(some)):
            speeds = some[k]
            matrix[:] = 0.0
            for edge in range(len(tails)):
                i, j = tails[edge], heads[edge]
                matrix[i, i] += 1.0 / speeds[i]
                matrix[j, j] += 1.0 / speeds[j]
                matrix[i, j] = matrix[j, i] = -1.0 / np.sqrt(speeds[i] * speeds[j])
            _tridiagonal(matrix, diagonal, beside, mirror, work)
            top[k] = 0.0  # Gershgorin
            for i in range(n):
                top[k] = max(top[k], diagonal[i] + beside[i] + (beside[i + 1] if i + 1 < n else 0.0))
                diagonals[i, k], squares[i, k] = diagonal[i], beside[i] ** 2
        _eigenvalues(diagonals, squares, 1, top, least)
        _eigenvalues(diagonals, squares, n - 1, top, greatest)
        for k in range(len(some)):
            result[first + k] = greatest[k] / least[k]


@njit(cache=True, nogil=True, fastmath=True)
def _tridiagonal(matrix: Floats, diagonal: Floats, beside: Floats, mirror: Floats, work: Floats) -> None:
    """Reduce the symmetric matrix, which is lost; beside[i] >= 0 stands between rows i - 1 and i, beside[0] = 0."""
    n = len(matrix)
    beside[0] = 0.0
    for k in range(n - 2):
        rest, u, w = matrix[k + 1 :, k + 1 :], mirror[k + 1 :], work[k + 1 :]
        u[:] = matrix[k, k + 1 :]
        norm = np.sqrt((u * u).sum())
        beside[k + 1] = norm
        if norm == 0.0:
            continue
        # The reflection I - u u^T / half turns row k into norm times a unit vector.
        if u[0] > 0.0:
            norm = -norm
        u[0] -= norm
        half = -norm * u[0]
        along = 0.0
        for i in range(len(u)):
            row = rest[i]
            total = 0.0
            for j in range(len(u)):
                total += row[j] * u[j]
            w[i] = total / half
            along += u[i] * w[i]
        along /= 2.0 * half
        for i in range(len(u)):
            w[i] -= along * u[i]
        for i in range(len(u)):  # whole rows: twice the work, at four numbers a time
            row, one, other = rest[i], u[i], w[i]
            for j in range(len(u)):
                row[j] -= one * w[j] + other * u[j]
    if n > 1:
        beside[n - 1] = abs(matrix[n - 1, n - 2])
    for i in range(n):
        diagonal[i] = matrix[i, i]


@njit(cache=True, nogil=True, error_model="numpy")
def _eigenvalues(diagonals: Floats, squares: Floats, index: int, top: Floats, result: Floats) -> None:
    """Write the eigenvalue of that index, from 0, in [0, top] of each of the LANES matrices to the result."""
    low, high, middle = np.zeros(LANES), top.copy(), np.empty(LANES)
    pivot, below = np.empty(LANES), np.empty(LANES)
    for _ in range(HALVINGS):
        for k in range(LANES):
            middle[k] = 0.5 * (low[k] + high[k])
            pivot[k] = 1.0
            below[k] = 0.0
        for i in range(len(diagonals)):
            for k in range(LANES):  # side by side: the processor divides several at a time
                now = diagonals[i, k] - middle[k] - squares[i, k] / pivot[k]
                now = 1e-300 if now == 0.0 else now
                pivot[k] = now
                below[k] += 1.0 if now < 0.0 else 0.0
        for k in range(LANES):
            if below[k] > index:
                high[k] = middle[k]
            else:
                low[k] = middle[k]
    for k in range(LANES):
        result[k] = 0.5 * (low[k] + high[k])
