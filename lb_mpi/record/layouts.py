"""Where to draw the vertices of a graph that have no places of their own: by the low end of its spectrum.   (pure)

Neighbours come close to each other, and parts with few edges between them apart: Hall, An r-dimensional quadratic placement
algorithm, Management Science 17, 1970.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, laplacian

from lb_mpi.graph import Floats, Graph
from lb_mpi.lanczos import lowest
from lb_mpi.record.known import MAP

MOST = 20_000  # vertices
SPECTRAL = "by the two lowest eigenvectors of its Laplacian matrix, for it has no coordinates"
_LEAST = 5  # vertices and components that two eigenvectors need, and some more


def placed(graph: Graph) -> tuple[NDArray[np.int64], tuple[int, int]] | None:
    """(n,) the place of each vertex on a map, and the map's (rows, columns); None for too large and too small graphs.

    scipy.sparse.linalg.ArpackError where Lanczos fails.
    """
    if not _LEAST <= graph.n <= MOST:
        return None
    places = spectral(graph)
    side = min(MAP, max(1, int(np.sqrt(graph.n))))
    row, column = np.minimum(side - 1, (side * places).astype(np.int64)).T
    return row * side + column, (side, side)


def spectral(graph: Graph) -> Floats:
    """(n, 2) places in a square from 0 to 1, whatever the edges' weights."""
    adjacency = sparse.csr_array((np.ones(len(graph.indices)), graph.indices, graph.indptr), shape=(graph.n, graph.n))
    count, component = connected_components(adjacency, directed=False)
    if graph.n - count < _LEAST:  # hardly an edge
        return np.stack([np.arange(graph.n) / graph.n] * 2, axis=1)
    kernel = np.zeros((graph.n, count))
    kernel[np.arange(graph.n), component] = 1.0
    kernel /= np.sqrt(kernel.sum(axis=0))
    _, vectors = lowest(sparse.csc_array(laplacian(adjacency)), kernel, 2, tol=1e-4)
    vectors -= vectors.min(axis=0)
    width = vectors.max(axis=0)
    return vectors / np.where(width > 0.0, width, 1.0)
