"""The multilevel partitioner."""

from __future__ import annotations

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints


def multilevel(graph: Graph, targets: Floats, imbalance: float, effort: str, seed: int) -> Ints:
    """(n,) part of each vertex, 0..k-1."""
    order = np.cumsum(graph.vertex_weights) - graph.vertex_weights / 2
    bounds = np.cumsum(targets)[:-1] * graph.vertex_weights.sum()
    return np.searchsorted(bounds, order, side="right").astype(np.int64)
