"""The conductances tau of a process graph, its Laplacian, and what the spectrum says.   (pure)

The diffusion matrix is M = I - S^-1 A W A^T with W = diag(tau), S = diag(speeds), A the incidence matrix.  Nothing here
depends on loads.  Jin & Wang, diffusion for heterogeneous systems; Cybenko 1989 for equal speeds.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackNoConvergence

from lb_mpi.graph import Floats, Graph
from lb_mpi.lanczos import factorise, highest, lowest, lowest_plain
from lb_mpi.metrics import check_speeds

DENSE = 1500  # vertices: below, all eigenvalues together are found faster than two alone
FEW = 64  # vertices: up to here a sparse matrix takes longer to make than a dense one to solve
MAX_DENSE = 8000  # vertices: above, an array of P x P is refused


class Spectrum(NamedTuple):
    """The smallest and the largest eigenvalue other than 0 of S^-1 A W A^T = I - M."""

    low: float  # lambda_2
    high: float  # lambda_P


def paper_tau(graph: Graph, speeds: Floats) -> Floats:
    """(E,) tau_ij = min(s_i, s_j) min(1/(deg_i + 1), 1/(deg_j + 1)), in the order of `graph.edges` (Jin & Wang).

    Every row sum of it stays below s_i, so M has no negative entry and a positive diagonal: fos converges.
    """
    tails, heads = graph.edges()
    return np.minimum(speeds[tails], speeds[heads]) / (np.maximum(graph.degrees[tails], graph.degrees[heads]) + 1.0)


def laplacian(graph: Graph, tau: Floats) -> Any:
    """A W A^T as a (P, P) scipy.sparse.csr_array; tau (E,) in the order of `graph.edges`."""
    tails, heads = graph.edges()
    rows = np.concatenate([tails, heads, tails, heads])
    columns = np.concatenate([heads, tails, tails, heads])
    values = np.concatenate([-tau, -tau, tau, tau])
    return sparse.coo_array((values, (rows, columns)), shape=(graph.n, graph.n)).tocsr()


def eigenvalues(graph: Graph, speeds: Floats, tau: Floats) -> Floats:
    """All eigenvalues of S^-1 A W A^T but the 0 of each component, ascending: (P - components,).

    ValueError for more than MAX_DENSE vertices.
    """
    if graph.n > MAX_DENSE:
        raise ValueError(f"all eigenvalues of a graph of {graph.n} vertices: expected at most {MAX_DENSE}")
    values = eigvalsh(_symmetric(graph, speeds, tau).toarray(), overwrite_a=True, check_finite=False)
    return np.asarray(values[graph.components()[0] :], dtype=float)


def spectrum(graph: Graph, speeds: Floats, tau: Floats) -> Spectrum:
    """The two ends of the spectrum of S^-1 A W A^T without its zeros; (1, 1) for a graph without edges.

    Dense up to DENSE vertices, beyond that by Lanczos to three digits, which is all that a scheme can feel.
    """
    count, labels = graph.components()
    if count == graph.n:
        return Spectrum(1.0, 1.0)
    if graph.n <= DENSE:
        values = eigenvalues(graph, speeds, tau)
        return Spectrum(float(values[0]), float(values[-1]))
    matrix, tol = _symmetric(graph, speeds, tau), 1e-3
    high = float(highest(matrix, tol=tol)[0][0])
    high *= 1.0 + tol  # Lanczos finds it from below, and chebyshev must not leave any beyond the end
    norms = np.sqrt(np.bincount(labels, speeds))
    kernel = sparse.csr_array((np.sqrt(speeds) / norms[labels], (np.arange(graph.n), labels)))
    # Plain Lanczos finds the lower end fast in graphs of small diameter, where a factorisation would fill memory; in long
    # ones it gives up early, and those fill little.
    try:
        return Spectrum(lowest_plain(matrix, kernel, high, tol=tol, maxiter=20), high)
    except ArpackNoConvergence:
        return Spectrum(float(lowest(matrix, kernel, tol=tol)[0][0]), high)


def _symmetric(graph: Graph, speeds: Floats, tau: Floats) -> Any:
    """S^-1/2 A W A^T S^-1/2, which has the eigenvalues of S^-1 A W A^T."""
    scale = sparse.diags_array(1.0 / np.sqrt(check_speeds(speeds, graph.n)))
    return (scale @ laplacian(graph, tau) @ scale).tocsr()


def leja_order(points: Floats) -> Floats:
    """An order of the (m,) points > 0 in which the partial products of (1 - lambda / point) stay small (Reichel 1990).

    In Leja's order each point is that of the largest partial product, beginning with the largest point; in rising or
    falling order the products grow beyond all bounds.  In more than a hundred steps rounding errors grow, too, even in
    modes that were wiped out before; so they take part here, and such a mode is wiped out again when it is the largest.
    Points that are equal to 1e-9 count once; the result is as long as it takes to wipe out all, over and over again.
    """
    points = np.sort(points)[::-1]
    points = points[np.diff(points, prepend=np.inf) < -1e-9 * points]
    left = np.ones(len(points))  # of each mode's error, rounding included
    order: list[float] = []
    while left.max(initial=0.0) > 1e-10 and len(order) < 20 * len(points):
        order.append(float(points[left.argmax()]))
        left = left * np.abs(1.0 - points / order[-1])
        left += 1e-14 * (1.0 + left.max())
    return np.array(order)


def solve_potentials(graph: Graph, tau: Floats, excess: Floats) -> Floats:
    """(P,) potentials d with A W A^T d = excess, for one (P,) excess that adds up to 0 in each component.

    By a factorisation with one vertex of each component held at 0, and one step of refinement; sparse beyond FEW vertices.
    """
    labels = graph.components()[1]
    free = np.ones(graph.n, dtype=bool)
    free[np.unique(labels, return_index=True)[1]] = False
    potentials = np.zeros(graph.n)
    if not free.any():
        return potentials
    matrix: Any
    if graph.n <= FEW:
        matrix = _dense_laplacian(graph, tau)
        solve = functools.partial(np.linalg.solve, matrix[np.ix_(free, free)])
    else:
        matrix = laplacian(graph, tau)
        solve = factorise(matrix[free][:, free]).solve
    for _ in range(2):
        potentials[free] += solve((excess - matrix @ potentials)[free])
    return potentials


def _dense_laplacian(graph: Graph, tau: Floats) -> Floats:
    tails, heads = graph.edges()
    matrix = np.zeros((graph.n, graph.n))
    matrix[tails, heads] = matrix[heads, tails] = -tau
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix
