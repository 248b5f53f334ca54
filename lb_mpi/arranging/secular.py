"""The ends of the spectrum after one or two speeds have changed, from the modes before: the secular equation.   (pure)

Let speed i change by d_i (and speed j by d_j).  With the modes (lambda_k, x_k) of before and D = diag(d_i, d_j), the number
of eigenvalues of the changed S^-1 A A^T below any lambda > 0 is, by Sylvester's law of inertia, and with neg the number of
negative eigenvalues of a matrix,

    1 + #(lambda_k < lambda) + neg(D^-1 - lambda R(lambda)) - neg(D),   R_ab = sum over k of x_ka x_kb / (lambda_k - lambda)

where the sum runs over the mode of eigenvalue 0, too; the 1 is its count.  For one changed speed the count steps where
1 = lambda d_i R_ii: Golub's secular equation (Golub 1973; Bunch, Nielsen, Sorensen 1978).  Bisection on the count needs no
care with poles or equal eigenvalues, and no eigenproblem: 10 us for two speeds of 64, where eigenvalues take 160 us.

With a few modes only, those that are missing act as one more pole for each vertex.  Its weight and position are known,
since the sum over all k of x_ka x_kb is (S^-1)_ab, and that of lambda_k x_ka^2 is deg_a / s_a^2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.arranging.modes import Modes
from lb_mpi.graph import Floats, Ints

RELATIVE = 1e-11  # where a bisection ends
_NONE = -1  # in place of j: only one speed changes


class Seen(NamedTuple):
    """One layout as the equation sees it; plain arrays, for the compiled loop."""

    values: Floats  # (m,) of the modes
    vectors: Floats  # (P, m)
    weights: Floats  # (P,) of the pole that stands for the missing modes; 0 where none is missing
    poles: Floats  # (P,) where it is
    speeds: Floats  # (P,)
    degrees: Floats  # (P,)
    total: float  # of the speeds


def see(modes: Modes, speeds: Floats, degrees: Floats) -> Seen:
    """Add the poles of the missing modes."""
    total = float(speeds.sum())
    weights, poles = np.zeros(len(speeds)), np.ones(len(speeds))
    if not modes.complete:
        squares = modes.vectors**2
        weights = np.maximum(1.0 / speeds - 1.0 / total - squares.sum(axis=1), 1e-300)
        moments = degrees / speeds**2 - squares @ modes.values
        poles = np.clip(moments / weights, modes.values[modes.n_low - 1], modes.values[modes.n_low])
    return Seen(modes.values, modes.vectors, weights, poles, speeds, degrees, total)


def ends_after_place(seen: Seen, vertices: Ints, speed: float) -> tuple[Floats, Floats]:
    """(n,) lambda_2 and (n,) lambda_P when one of the (n,) vertices gets the speed."""
    low, high = _ends(*seen, vertices, speed)
    return low, high


def first_swap_below(seen: Seen, first: Ints, second: Ints, limit: float) -> int:
    """The first k for which swapping the speeds at first[k] and second[k] makes lambda_P / lambda_2 < limit; n for none."""
    return int(_first_below(*seen, first, second, limit))


def compile_kernels() -> None:
    """Compile the loops (or load them from numba's cache) before anything is timed."""
    values, vectors, ends = np.ones(1), np.ones((2, 1)), np.zeros(1, dtype=np.int64)
    seen = see(Modes(values, vectors, 1), np.ones(2), np.ones(2))
    ends_after_place(seen, ends, 1.0)
    first_swap_below(seen, ends, ends, 1.0)


@njit(cache=True, error_model="numpy")
def _below(  # type: ignore[no-untyped-def]
    point, values, vectors, weights, poles, total, i, change, j, other_change
):
    """The number of known eigenvalues, the 0 not counted, below the point after the change."""
    ii = ij = jj = 0.0
    count = 0
    two = j != _NONE
    for k in range(len(values)):
        pole = 1.0 / (values[k] - point)
        x = vectors[i, k]
        ii += x * x * pole
        if two:
            y = vectors[j, k]
            ij += x * y * pole
            jj += y * y * pole
        count += pole < 0.0
    if len(values) < len(vectors) - 1:
        ii += weights[i] / (poles[i] - point)
        if two:
            jj += weights[j] / (poles[j] - point)
            rest = -1.0 / total
            for k in range(len(values)):
                rest -= vectors[i, k] * vectors[j, k]
            ij += rest / (0.5 * (poles[i] + poles[j]) - point)
    ii = 1.0 / change + 1.0 / total - point * ii
    count -= change < 0.0
    if not two:
        return count + (ii < 0.0)
    ij = 1.0 / total - point * ij
    jj = 1.0 / other_change + 1.0 / total - point * jj
    count -= other_change < 0.0
    determinant = ii * jj - ij * ij
    if determinant < 0.0:
        return count + 1
    return count + (2 if ii + jj < 0.0 else 0)


@njit(cache=True, error_model="numpy")
def _low_end(  # type: ignore[no-untyped-def]
    bottom, top, values, vectors, weights, poles, total, i, change, j, other_change
):
    while top - bottom > RELATIVE * top:
        middle = 0.5 * (bottom + top)
        if _below(middle, values, vectors, weights, poles, total, i, change, j, other_change) >= 1:
            top = middle
        else:
            bottom = middle
    return 0.5 * (bottom + top)


@njit(cache=True, error_model="numpy")
def _ends(values, vectors, weights, poles, speeds, degrees, total, vertices, speed):  # type: ignore[no-untyped-def]
    n, m = len(vertices), len(values)
    low, high = np.empty(n), np.empty(n)
    for c in range(n):
        i = vertices[c]
        change = speed - speeds[i]
        low[c], high[c] = values[0], values[m - 1]
        if change == 0.0:
            continue
        # lambda_2 stays below the old lambda_3, lambda_P above the old lambda_P-1 (interlacing), and neither rises by
        # more than the trace of S^-1 A A^T does.
        rise = max(0.0, degrees[i] * (1.0 / speed - 1.0 / speeds[i]))
        top = values[1] if m > 1 else values[0] + rise
        low[c] = _low_end(0.0, top, values, vectors, weights, poles, total, i, change, _NONE, 0.0)
        bottom = values[m - 2] if m > 1 else 0.0
        top = values[m - 1] + rise
        while top - bottom > RELATIVE * top:
            middle = 0.5 * (bottom + top)
            if _below(middle, values, vectors, weights, poles, total, i, change, _NONE, 0.0) >= m:
                top = middle
            else:
                bottom = middle
        high[c] = 0.5 * (bottom + top)
    return low, high


@njit(cache=True, error_model="numpy")
def _first_below(  # type: ignore[no-untyped-def]
    values, vectors, weights, poles, speeds, degrees, total, firsts, seconds, limit
):
    n, m = len(firsts), len(values)
    for c in range(n):
        i, j = firsts[c], seconds[c]
        change = speeds[j] - speeds[i]
        if change == 0.0:
            continue
        # Rayleigh's quotients of the modes of before bound the ends; so most swaps are out after one count or two.
        top = values[0] / _mass(vectors[i, 0], vectors[j, 0], change, total)
        if m > 1:
            top = min(top, values[1])
        bottom = values[m - 1] / _mass(vectors[i, m - 1], vectors[j, m - 1], change, total)
        if bottom >= limit * top:
            continue
        if _below(bottom / limit, values, vectors, weights, poles, total, i, change, j, -change) >= 1:
            continue
        if _below(limit * top, values, vectors, weights, poles, total, i, change, j, -change) < m:
            continue
        low = _low_end(bottom / limit, top, values, vectors, weights, poles, total, i, change, j, -change)
        if _below(limit * low, values, vectors, weights, poles, total, i, change, j, -change) >= m:
            return c
    return n


@njit(cache=True)
def _mass(one, other, change, total):  # type: ignore[no-untyped-def]
    """The value that x S x = 1 takes, without the part of x along the mode of eigenvalue 0."""
    drift = change * (one - other)
    return 1.0 + change * (one * one - other * other) - drift * drift / total
