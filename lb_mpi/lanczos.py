"""A few eigenvalues at either end of the spectrum of a large sparse symmetric matrix, the same in every run.   (pure)

scipy.sparse.linalg.ArpackError (its kind ArpackNoConvergence) where Lanczos fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh, splu

from lb_mpi.graph import Floats


def highest(matrix: Any, count: int = 1, *, tol: float) -> tuple[Floats, Floats]:
    """The (count,) highest eigenvalues, ascending, and the (n, count) vectors of a symmetric (n, n) matrix."""
    values, vectors = eigsh(matrix, count, which="LA", tol=tol, v0=_start(matrix.shape[0]))
    order = np.argsort(values)
    return values[order], vectors[:, order]


def lowest(
    matrix: Any, kernel: Any, count: int = 1, *, tol: float, maxiter: int | None = None
) -> tuple[Floats, Floats]:
    """The (count,) lowest eigenvalues other than 0, ascending, and the (n, count) vectors of a sparse (n, n) matrix.

    The matrix is symmetric, its eigenvalues are >= 0, and the columns of kernel (n, c) an orthonormal basis for 0.
    Lanczos with shift and invert, a little below 0, with the kernel taken out.
    """
    n = matrix.shape[0]
    shift = -1e-6 * float(matrix.diagonal().mean())
    factors = factorise(matrix - shift * sparse.eye_array(n))

    def inverse(vector: Floats) -> Floats:
        vector = vector.ravel()
        vector = factors.solve(vector - kernel @ (kernel.T @ vector))
        return np.asarray(vector - kernel @ (kernel.T @ vector))

    operator = LinearOperator((n, n), matvec=inverse, dtype=float)  # type: ignore[call-arg, unused-ignore]
    values, vectors = eigsh(operator, count, which="LA", tol=tol, v0=inverse(_start(n)), maxiter=maxiter)
    order = np.argsort(-values)
    return 1.0 / values[order] + shift, vectors[:, order]


def lowest_plain(matrix: Any, kernel: Any, above: float, *, tol: float, maxiter: int) -> float:
    """The lowest eigenvalue other than 0 without a factorisation: the kernel is moved to `above`, the upper end."""
    n = matrix.shape[0]

    def moved(vector: Floats) -> Floats:
        vector = vector.ravel()
        return np.asarray(matrix @ vector + above * (kernel @ (kernel.T @ vector)))

    operator = LinearOperator((n, n), matvec=moved, dtype=float)  # type: ignore[call-arg, unused-ignore]
    values = eigsh(operator, 1, which="SA", tol=tol, v0=_start(n), maxiter=maxiter, return_eigenvectors=False)
    return float(values[0])


def factorise(matrix: Any) -> Any:
    """Factorise a sparse symmetric positive definite matrix; the result has `solve`."""
    options = {"SymmetricMode": True}
    return splu(sparse.csc_array(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def _start(n: int) -> Floats:
    return np.random.default_rng(0).uniform(-1.0, 1.0, n)  # ARPACK's own would be another one in every run
