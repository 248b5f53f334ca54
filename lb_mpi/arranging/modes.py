"""The modes of S^-1 A W A^T: all of them, or the few at both ends of the spectrum.   (pure)

A mode is a pair (lambda, x) with A W A^T x = lambda S x; the vectors are S-orthonormal, x_k S x_l = 1 if k = l and 0
otherwise.  The mode of the eigenvalue 0, x = 1 / sqrt(sum s) everywhere, is left out.  Graphs are connected here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from lb_mpi.graph import Floats

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
    n = len(speeds)
    start = np.random.default_rng(0).uniform(-1.0, 1.0, n)  # ARPACK's own would be another one in every run
    masses = sparse.diags_array(speeds).tocsc()
    sigma = -1e-4 * laplacian.trace() / speeds.sum()  # off the 0, or there is nothing to factorise
    low, x = eigsh(laplacian.tocsc(), n_low + 1, M=masses, sigma=sigma, which="LM", v0=start, tol=_TOL)
    order = np.argsort(low)[1:]
    low, x = low[order], x[:, order]
    scale = sparse.diags_array(1.0 / np.sqrt(speeds))
    high, y = eigsh((scale @ laplacian @ scale).tocsr(), n_high, which="LA", v0=start, tol=_TOL)
    order = np.argsort(high)
    high, y = high[order], scale @ y[:, order]
    return Modes(np.concatenate([low, high]), np.hstack([x, y]), n_low)
