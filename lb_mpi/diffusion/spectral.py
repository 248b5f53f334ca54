"""The conductances tau of a process graph, the diffusion matrix M, and what its spectrum says.   (pure)

M = I - S^-1 A W A^T with W = diag(tau), S = diag(speeds), A the incidence matrix.  Nothing here depends on loads: the root
computes it once and broadcasts it.  Jin & Wang, diffusion for heterogeneous systems; Cybenko 1989 for equal speeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.metrics import check_speeds

DENSE = 1500  # vertices: below, all eigenvalues together are found faster than two alone
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


def diffusion_matrix(graph: Graph, speeds: Floats, tau: Floats) -> Any:
    """M = I - S^-1 A W A^T as a (P, P) scipy.sparse.csr_array: times after one step = M @ times before."""
    speeds = check_speeds(speeds, graph.n)
    return (sparse.eye_array(graph.n) - sparse.diags_array(1.0 / speeds) @ laplacian(graph, tau)).tocsr()


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
    matrix = _symmetric(graph, speeds, tau)
    start = np.random.default_rng(0).uniform(-1.0, 1.0, graph.n)  # ARPACK's own would be another one in every run
    tol = 1e-3
    high = float(eigsh(matrix, 1, which="LA", tol=tol, v0=start, return_eigenvectors=False)[0])
    high *= 1.0 + tol  # Lanczos finds it from below, and chebyshev must not leave any beyond the end
    return Spectrum(_lowest(matrix, speeds, labels, high, start, tol), high)


def _lowest(matrix: Any, speeds: Floats, labels: Ints, high: float, start: Floats, tol: float) -> float:
    # The kernel (sqrt(s) on each component) is moved to the upper end.  Plain Lanczos finds the lower end fast in graphs
    # of small diameter, where a factorisation would fill memory; in long ones it gives up early, and those fill little.
    n = len(speeds)
    norms = np.sqrt(np.bincount(labels, speeds))
    kernel = sparse.csr_array((np.sqrt(speeds) / norms[labels], (np.arange(n), labels)))

    def moved(vector: Floats) -> Floats:
        vector = vector.ravel()
        return np.asarray(matrix @ vector + high * (kernel @ (kernel.T @ vector)))

    operator = LinearOperator((n, n), matvec=moved, dtype=float)  # type: ignore[call-arg, unused-ignore]
    try:
        return float(eigsh(operator, 1, which="SA", tol=tol, v0=start, maxiter=20, return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        pass
    sigma = -1e-7 * high  # off the kernel, or there is nothing to factorise
    factors = splu(
        (matrix - sigma * sparse.eye_array(n)).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )

    def inverse(vector: Floats) -> Floats:
        vector = factors.solve(vector.ravel())
        return np.asarray(vector - kernel @ (kernel.T @ vector))

    operator = LinearOperator((n, n), matvec=inverse, dtype=float)  # type: ignore[call-arg, unused-ignore]
    largest = eigsh(operator, 1, which="LA", tol=tol, v0=inverse(start), return_eigenvectors=False)[0]
    return float(1.0 / largest + sigma)


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


def generalised_inverse(graph: Graph, tau: Floats) -> Floats:
    """The (P, P) Moore-Penrose inverse of A W A^T: potentials d = inverse @ (loads - balanced loads).

    The flow tau_ij (d_i - d_j) then balances exactly, and has the least sum of flow^2 / tau.  ValueError for more than
    MAX_DENSE vertices.
    """
    if graph.n > MAX_DENSE:
        raise ValueError(f"the inverse for a graph of {graph.n} vertices: expected at most {MAX_DENSE}")
    labels = graph.components()[1]
    scale = float(tau.mean()) if len(tau) else 1.0
    kernel = (labels[:, None] == labels) / np.bincount(labels)[labels]
    return np.asarray(np.linalg.inv(laplacian(graph, tau).toarray() / scale + kernel) - kernel) / scale


def solve_potentials(graph: Graph, tau: Floats, excess: Floats) -> Floats:
    """(P,) potentials d with A W A^T d = excess, for one (P,) excess that adds up to 0 in each component.

    By a sparse factorisation with one vertex of each component held at 0, and one step of refinement.
    """
    labels = graph.components()[1]
    free = np.ones(graph.n, dtype=bool)
    free[np.unique(labels, return_index=True)[1]] = False
    potentials = np.zeros(graph.n)
    if not free.any():
        return potentials
    matrix = laplacian(graph, tau)
    options = {"SymmetricMode": True}
    held = matrix[free][:, free].tocsc()
    factors = splu(held, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    for _ in range(2):
        potentials[free] += factors.solve((excess - matrix @ potentials)[free])
    return potentials
