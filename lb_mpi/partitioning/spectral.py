"""Spectral bisection of a weighted graph: lambda_2 and v_2 of its Laplacian, and the cut by the entries of v_2.   (pure)

The rule of the laboratory course: vertices below a threshold are one side.  Its threshold for halves is the mean of v_2;
the weighted quantile also suits other targets, and keeps to them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from lb_mpi.graph import Floats, Graph, Ints, lowest
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import scaled, usual_arithmetic
from lb_mpi.partitioning.coarsen import Csr, csr

# --- Connectivity: virtual edges between the components of a graph before its bisection -------------------------------

FAINT = 0.1  # total weight of all virtual edges, relative to the lightest real one: no real edge is cut to spare them


def connected(graph: Csr) -> Csr:
    """Return `graph` itself if it is connected, else a copy in which faint virtual edges join its components."""
    _, labels = scipy.sparse.csgraph.connected_components(adjacency(graph), directed=False)
    firsts = np.sort(np.unique(labels, return_index=True)[1])
    if len(firsts) <= 1:
        return graph
    real = graph.weights[graph.weights > 0]
    weight = FAINT * float(real.min()) / len(firsts) if len(real) else 1.0
    ends = (np.append(firsts[:-1], firsts[1:]), np.append(firsts[1:], firsts[:-1]))
    joined = adjacency(graph) + scipy.sparse.csr_array((np.full(len(ends[0]), weight), ends), (graph.n, graph.n))
    return of_matrix(joined, graph.vertex_weights)


def adjacency(graph: Csr) -> scipy.sparse.csr_array:
    """Return the weighted adjacency matrix; edges of weight 0 are stored zeros."""
    return scipy.sparse.csr_array((graph.weights, graph.indices, graph.indptr), (graph.n, graph.n))


def of_matrix(matrix: scipy.sparse.csr_array, vertex_weights: Floats) -> Csr:
    """Return the graph of this weighted adjacency matrix."""
    return Csr(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data, vertex_weights)


# --- Spectral bisection: the Fiedler vector, and the cut where it reaches the target ----------------------------------
#
# L = B - A (weighted degrees minus weighted adjacency).  v_2, the eigenvector of its second smallest eigenvalue, orders the
# vertices so that strongly connected ones are close together (Fiedler 1975; Pothen, Simon & Liou 1990).  The vertices with
# the lowest entries are one side, up to the target fraction of the weight.  Vertices with equal entries are taken in order
# until the target is reached.

DENSE = 40  # vertices: up to here, LAPACK is faster than Lanczos; beyond, its spinning threads make it ten times slower
MAX_DENSE = 3000  # vertices: up to here, LAPACK is the fallback if Lanczos fails
EQUAL = 1e-9  # entries of v_2 with smaller differences are equal


@dataclass(frozen=True)
class Fiedler:
    """The second smallest eigenvalue of the weighted Laplacian, and an eigenvector of length 1."""

    value: float  # lambda_2
    vector: Floats  # (n,) the first nonzero entry is positive


@usual_arithmetic
def fiedler(graph: Any) -> Fiedler:
    """Return lambda_2 and v_2 of a graph in any form that `lb_mpi.as_graph` accepts.

    The Laplacian is that of the weighted edges.  Of a multiple eigenvalue, always the same eigenvector is returned.  Faint
    virtual edges connect a disconnected graph first: its value is then near 0.  Raises errors as `lb_mpi.as_graph`.

    Examples
    --------
        >>> round(lb_mpi.fiedler("mesh:1x4").value, 6)  # 2 - sqrt(2)
        0.585786
    """
    given = graph if isinstance(graph, Csr) else csr(as_graph(graph))
    weights, exponent = scaled(given.weights)
    joined = connected(given._replace(weights=weights))
    n = joined.n
    if n < 2:
        return Fiedler(0.0, np.ones(n))
    scale = float(joined.weights.max(initial=0.0)) or 1.0
    matrix = adjacency(joined._replace(weights=joined.weights / scale))
    laplacian = scipy.sparse.csc_array(scipy.sparse.diags_array(np.asarray(matrix.sum(axis=1))) - matrix)
    vector = _second(laplacian)
    large = np.abs(vector) > EQUAL
    if large.any() and vector[large.argmax()] < 0:
        vector = -vector
    value = max(0.0, float(vector @ (laplacian @ vector))) * scale
    return Fiedler(float(np.ldexp(value, exponent)), vector)


def _second(laplacian: scipy.sparse.csc_array) -> Floats:
    """Return an eigenvector of the second smallest eigenvalue, or a useful order of the vertices if eigensolvers fail."""
    n, vector = laplacian.shape[0], np.zeros(0)
    for dense in (n <= DENSE, n <= MAX_DENSE):
        with suppress(scipy.sparse.linalg.ArpackError, scipy.linalg.LinAlgError, RuntimeError, MemoryError, ValueError):
            if dense:
                vector = scipy.linalg.eigh(laplacian.toarray(), subset_by_index=[1, 1])[1][:, 0]
            else:
                vector = lowest(laplacian, np.full((n, 1), 1.0 / np.sqrt(n)), tol=1e-7, maxiter=300)[1][:, 0]
            return np.ascontiguousarray(vector)
    # From one end of the graph to the other.
    end = int(scipy.sparse.csgraph.breadth_first_order(laplacian, 0, directed=False, return_predecessors=False)[-1])
    vector = scipy.sparse.csgraph.shortest_path(laplacian, unweighted=True, directed=False, indices=end)
    vector -= vector.mean()
    return np.asarray(vector / (np.linalg.norm(vector) or 1.0))


def split(vector: Floats, weights: Floats, target: float) -> Ints:
    """Return (n,) 0 for the vertices with the lowest entries and about `target` of the weight (n,), 1 for the others.

    Equal entries are taken in the order of the vertices; with weights that are all 0, vertices count 1 each.
    """
    if not weights.any():
        weights = np.ones(len(weights))
    order = np.argsort(np.round(vector / EQUAL), kind="stable")
    middle = np.cumsum(weights[order]) - weights[order] / 2
    part = np.ones(len(vector), dtype=np.int64)
    part[order[middle <= target * weights.sum()]] = 0
    return part


def spectral_bisection(graph: Graph, target: float = 0.5, *, threshold: str = "median") -> Ints:
    """Return (n,) 0 or 1: side 0 has the lowest entries of v_2.

    threshold : "median": side 0 has the fraction `target` (0 to 1) of the vertex weight, for halves up to the weighted
    median; "mean": the vertices below the mean of v_2, for halves only; the sides may differ in weight.  Vertices at the
    mean go to both sides in turn.
    """
    if not 0 < target < 1 or (threshold == "mean" and abs(target - 0.5) > EQUAL):
        expected = "0.5, halves, with threshold = 'mean'" if threshold == "mean" else "a number between 0 and 1"
        raise ValueError(f"target = {target!r}: expected {expected}")
    vector, weights = fiedler(graph).vector, graph.vertex_weights
    if threshold == "median":
        return split(vector, weights, target)
    away = np.round((vector - vector.mean()) / EQUAL)
    part = np.where(away > 0, 1, 0)
    part[np.flatnonzero(away == 0)[1::2]] = 1
    return part


def spectral(graph: Graph, targets: Floats, threshold: str = "median") -> Ints:
    """Return (n,) part of each vertex by recursive spectral bisection of the whole graph: no levels, no refinement.

    targets (k,) : positive fractions; ValueError for any but halves of halves with the threshold "mean".
    """
    matrix = graph.to_scipy()
    part = np.zeros(graph.n, dtype=np.int64)
    todo = [(np.arange(graph.n), 0, len(targets))]  # vertices, and the parts they are for
    while todo:
        vertices, first, end = todo.pop()
        if end - first == 1 or len(vertices) < 2:
            part[vertices] = first + int(targets[first:end].argmax())
            continue
        middle = (first + end) // 2
        piece = Graph.from_scipy(matrix[vertices][:, vertices], graph.vertex_weights[vertices])
        share = float(targets[first:middle].sum() / targets[first:end].sum())
        side = spectral_bisection(piece, share, threshold=threshold)
        todo += [(vertices[side == 0], first, middle), (vertices[side == 1], middle, end)]
    return part
