"""Maps of a domain: for each place, which part of it this rank computed.   (pure)

A graph whose vertices have no coordinates is laid out by the low end of its spectrum: neighbours come close to each other,
and parts with few edges between them apart (Hall, An r-dimensional quadratic placement algorithm, Management Science 17,
1970).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components, laplacian

from lb_mpi.graph import Floats, Graph, Ints, lowest
from lb_mpi.record.record import MAP

MOST_VERTICES = 20_000  # of a graph that is laid out
SPECTRAL = "by the two lowest eigenvectors of its Laplacian matrix, for it has no coordinates"
_LEAST = 5  # vertices and components that two eigenvectors need, and some more


def shares(rows: Ints, columns: Ints, domain: tuple[int, int]) -> Floats:
    """Return the part of each place of a map that points of a grid fill, from 0 to 1.

    rows, columns : (n,) of the points; domain : rows and columns of the whole grid.  A map has MAP of either at most.
    """
    return parts(np.bincount(places(rows, columns, domain), minlength=size(domain)), domain)


def size(domain: tuple[int, int]) -> int:
    """Count the places of the map of a grid."""
    height, width = _shape(domain)
    return height * width


def places(rows: Ints, columns: Ints, domain: tuple[int, int]) -> Ints:
    """(n,) the place of each point, counted row by row; see `shares`."""
    height, width = _shape(domain)
    return rows * height // domain[0] * width + columns * width // domain[1]


def parts(counts: Ints | Floats, domain: tuple[int, int]) -> Floats:
    """(h, w) the part of each place that is filled, from (h * w,) how many of its points are."""
    height, width = _shape(domain)
    whole = np.outer(_lengths(domain[0], height), _lengths(domain[1], width))
    return np.asarray(counts.reshape(height, width) / whole)


def _shape(domain: tuple[int, int]) -> tuple[int, int]:
    fraction = min(1.0, MAP / max(domain))
    height, width = (max(1, round(fraction * length)) for length in domain)
    return height, width


def _lengths(length: int, places: int) -> Ints:
    """(places,) how many of 0..length-1 fall in each."""
    return np.bincount(np.arange(length) * places // length, minlength=places)


def placed(graph: Graph) -> tuple[Ints, tuple[int, int]] | None:
    """(n,) the place of each vertex on a map, and the map's (rows, columns); None for too large and too small graphs.

    scipy.sparse.linalg.ArpackError where Lanczos fails.
    """
    if not _LEAST <= graph.n <= MOST_VERTICES:
        return None
    side = min(MAP, max(1, int(np.sqrt(graph.n))))
    row, column = np.minimum(side - 1, (side * spectral(graph)).astype(np.int64)).T
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
    return np.asarray(vectors / np.where(width > 0.0, width, 1.0))
