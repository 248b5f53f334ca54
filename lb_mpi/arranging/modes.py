"""The modes of S^-1 A W A^T: all of them, or the few at both ends of the spectrum.   (pure)

A mode is a pair (lambda, x) with A W A^T x = lambda S x; the vectors are S-orthonormal, x_k S x_l = 1 if k = l and 0
otherwise.  The mode of the eigenvalue 0, x = 1 / sqrt(sum s) everywhere, is left out.  Graphs are connected here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence

from lb_mpi.graph import Floats
from lb_mpi.lanczos import highest, lowest

DENSE = 400  # vertices: above, a few modes by Lanczos are found faster than all
_TOL = 1e-9  # of Lanczos


class Modes(NamedTuple):
    """m modes in ascending order: all P - 1 of them, or `n_low` at the lower end and the others at the upper one."""

    values: Floats  # (m,)
    vectors: Floats  # (P, m)
    n_low: int

    @property
    def complete(self) -> bool:
        """True when no mode is missing."""
        return len(self.values) == len(self.vectors) - 1


def find_modes(laplacian: Any, speeds: Floats, n_low: int, n_high: int) -> Modes:
    """All modes up to DENSE vertices; beyond that the `n_low` >= 1 lowest and the `n_high` >= 1 highest.

    `laplacian` is A W A^T, a (P, P) scipy.sparse.csr_array.
    """
    if len(speeds) > max(DENSE, n_low + n_high + 1):
        try:
            return _few(laplacian, speeds, n_low, n_high)
        except ArpackNoConvergence:
            pass
    scale = 1.0 / np.sqrt(speeds)
    values, vectors = np.linalg.eigh(laplacian.toarray() * scale * scale[:, None])
    return Modes(values[1:], vectors[:, 1:] * scale[:, None], len(values) - 1)


def _few(laplacian: Any, speeds: Floats, n_low: int, n_high: int) -> Modes:
    scale = sparse.diags_array(1.0 / np.sqrt(speeds))
    matrix = (scale @ laplacian @ scale).tocsr()
    kernel = np.sqrt(speeds / speeds.sum())[:, None]
    low, x = lowest(matrix, kernel, n_low, tol=_TOL)
    high, y = highest(matrix, n_high, tol=_TOL)
    return Modes(np.concatenate([low, high]), scale @ np.hstack([x, y]), n_low)
