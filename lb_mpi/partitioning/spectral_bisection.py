"""Spectral bisection: the Fiedler vector, and the cut where it reaches the target.   (pure)

L = B - A (weighted degrees minus weighted adjacency); v_2, the eigenvector of its second smallest eigenvalue, orders
the vertices so that those that are tied strongly are near to each other (Fiedler 1975; Pothen, Simon & Liou 1990).
The lower ones are one side: as many as have the target fraction of the weight.  Vertices with equal entries are dealt
out evenly, that is, the side is filled up with them as far as the target goes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, eigh
from scipy.sparse.csgraph import breadth_first_order, shortest_path
from scipy.sparse.linalg import ArpackError

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.lanczos import lowest
from lb_mpi.partitioning.coarsen import Csr, csr
from lb_mpi.partitioning.connect import connected

DENSE = 40  # vertices: up to here, LAPACK is faster than Lanczos; its threads spin, beyond it, for ten times as long
MAX_DENSE = 3000  # vertices: up to here, LAPACK takes over where Lanczos fails
EQUAL = 1e-9  # entries of v_2 that differ by less are equal


class Fiedler(NamedTuple):
    """The second smallest eigenvalue of the weighted Laplacian, and an eigenvector of length 1."""

    value: float
    vector: Floats  # (n,) the first entry other than 0 is positive


def fiedler(graph: Graph) -> Fiedler:
    """lambda_2 and v_2 of `graph`; where the eigenvalue is a multiple one, one of its vectors, always the same.

    A graph that is not connected is made so by faint virtual edges first (see `connect`): its value is then near 0.
    """
    return fiedler_of(csr(graph))


def fiedler_of(graph: Csr) -> Fiedler:
    """`fiedler` of the arrays of a graph."""
    joined = connected(graph)
    n = joined.n
    if n < 2:
        return Fiedler(0.0, np.ones(n))
    shape = (n, n)
    scale = float(joined.weights.max()) if len(joined.weights) and joined.weights.max() > 0 else 1.0
    adjacency = sparse.csr_array((joined.weights / scale, joined.indices, joined.indptr), shape=shape)
    degrees: Floats = np.asarray(adjacency.sum(axis=1)).ravel()
    laplacian = sparse.csc_array(sparse.diags_array(degrees) - adjacency)
    try:
        value, vector = _dense(laplacian) if n <= DENSE else _lanczos(laplacian)
    except (ArpackError, LinAlgError, RuntimeError, MemoryError, ValueError):
        value, vector = _dense(laplacian) if n <= MAX_DENSE else _by_distance(laplacian)
    large = np.abs(vector) > EQUAL
    if large.any() and vector[large.argmax()] < 0:
        vector = -vector
    return Fiedler(float(value) * scale, np.ascontiguousarray(vector))


def _dense(laplacian: sparse.csc_array) -> tuple[float, Floats]:
    values, vectors = eigh(laplacian.toarray(), subset_by_index=[1, 1], overwrite_a=True, check_finite=False)
    return max(0.0, float(values[0])), vectors[:, 0]


def _lanczos(laplacian: sparse.csc_array) -> tuple[float, Floats]:
    n = laplacian.shape[0]
    values, vectors = lowest(laplacian, np.full((n, 1), 1.0 / np.sqrt(n)), tol=1e-7, maxiter=300)
    return max(0.0, float(values[0])), vectors[:, 0]


def _by_distance(laplacian: sparse.csc_array) -> tuple[float, Floats]:
    # From one end of the graph to the other: no eigenvector, but it orders the vertices as well as it can be had.
    end = int(breadth_first_order(laplacian, 0, directed=False, return_predecessors=False)[-1])
    distance = shortest_path(laplacian, unweighted=True, directed=False, indices=end)
    vector = distance - distance.mean()
    vector /= np.linalg.norm(vector) or 1.0
    return float(vector @ (laplacian @ vector)), vector


def split(vector: Floats, weights: Floats, target: float) -> Ints:
    """(n,) 0 for the vertices of lowest entries with about `target` of the weight (n,), 1 for the others.

    Equal entries are taken in the order of the vertices; with weights that are all 0, vertices count 1 each.
    """
    if not weights.any():
        weights = np.ones(len(weights))
    order = np.argsort(np.round(vector / EQUAL), kind="stable")
    middle = np.cumsum(weights[order]) - weights[order] / 2
    part = np.ones(len(vector), dtype=np.int64)
    part[order[middle <= target * weights.sum()]] = 0
    return part


def spectral_bisection(graph: Graph, target: float = 0.5) -> Ints:
    """(n,) 0 or 1: side 0 are the vertices with the lowest entries of v_2, `target` of the vertex weight.

    target : the fraction of side 0, 0 < target < 1.
    """
    if not 0 < target < 1:
        raise ValueError(f"target = {target!r}: expected a number between 0 and 1")
    return split(fiedler(graph).vector, graph.vertex_weights, target)
