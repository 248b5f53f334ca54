"""Other partitioners behind the same call, to compare with: METIS, KaHIP, and plain spectral bisection.   (pure)

METIS and KaHIP want whole numbers as weights.  Weights that are none, or too many, are scaled; edges of weight 0 are left
out, since both programs crash on graphs with nothing but them.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.partitioning.bisect import spectral_bisection

_TOTAL = 1 << 28  # of all weights: what they are scaled to; sums of them fit into 32 bits
KAHIP_MODES = {"fast": "FAST", "good": "ECO", "best": "STRONG"}


def partition(graph: Graph, targets: Floats, imbalance: float, effort: str, seed: int, method: str) -> Ints:
    """(n,) part of each vertex by "metis", "kahip" or "spectral"; targets (k,) are fractions."""
    k = len(targets)
    if k == 1:
        return np.zeros(graph.n, dtype=np.int64)
    used = np.sort(np.argsort(-targets, kind="stable")[: graph.n])  # METIS gets lost with more parts than vertices
    share = targets[used] / targets[used].sum()
    if len(used) == 1:
        part = np.zeros(graph.n, dtype=np.int64)
    elif method == "metis":
        part = metis(whole_numbers(graph), share, imbalance, seed)
    elif method == "kahip":
        if targets.min() < targets.max() * (1.0 - 1e-9):
            raise ValueError("method = 'kahip' with unequal targets: expected equal ones, it knows no others")
        part = kahip(whole_numbers(graph), len(used), imbalance, seed, KAHIP_MODES[effort])
    else:
        part = spectral(graph, share)
    return used[part]


class WholeNumbers(NamedTuple):
    """A graph as METIS and KaHIP take it; the names are those of `Graph`."""

    indptr: Ints
    indices: Ints
    weights: Ints  # >= 1
    vertex_weights: Ints


def whole_numbers(graph: Graph) -> WholeNumbers:
    """The graph without its edges of weight 0, all weights of vertices (>= 0) and edges (>= 1) whole numbers."""
    kept = graph.weights > 0.0
    indptr = np.concatenate([[0], np.cumsum(kept)])[graph.indptr].astype(np.int64)
    weights = np.maximum(_scaled(graph.weights[kept]), 1)
    vertex_weights = _scaled(graph.vertex_weights)
    if not vertex_weights.any():
        vertex_weights = np.ones(graph.n, dtype=np.int64)
    return WholeNumbers(indptr, graph.indices[kept], weights, vertex_weights)


def metis(whole: WholeNumbers, targets: Floats, imbalance: float, seed: int, *, recursive: bool = False) -> Ints:
    """(n,) part of each vertex by METIS, directly into k parts or by recursive bisection."""
    pymetis = _imported("pymetis")
    options = pymetis.Options(ufactor=max(1, round(min(imbalance, 1e3) * 1000)), seed=seed % (1 << 31))
    _, part = pymetis.part_graph(
        len(targets),
        pymetis.CSRAdjacency(whole.indptr, whole.indices),
        vweights=whole.vertex_weights,
        eweights=whole.weights,
        tpwgts=targets.tolist(),
        recursive=recursive,
        options=options,
    )
    return np.array(part, dtype=np.int64)


def kahip(whole: WholeNumbers, k: int, imbalance: float, seed: int, mode: str) -> Ints:
    """(n,) part of each vertex by KaHIP in its mode "FAST", "ECO" or "STRONG"."""
    module = _imported("kahip")
    arrays = (whole.vertex_weights, whole.indptr, whole.weights, whole.indices)
    quiet = True
    _, part = module.kaffpa(
        *(array.tolist() for array in arrays), k, imbalance, quiet, seed % (1 << 31), getattr(module, mode)
    )
    return np.array(part, dtype=np.int64)


def spectral(graph: Graph, targets: Floats) -> Ints:
    """(n,) part of each vertex by recursive spectral bisection of the whole graph: no levels, no refinement."""
    adjacency = graph.to_scipy()
    part = np.zeros(graph.n, dtype=np.int64)
    todo = [(np.arange(graph.n), 0, len(targets))]  # vertices, and the parts they are for
    while todo:
        vertices, first, end = todo.pop()
        if end - first == 1 or len(vertices) < 2:
            part[vertices] = first + int(targets[first:end].argmax())
            continue
        middle = (first + end) // 2
        piece = Graph.from_scipy(adjacency[vertices][:, vertices], graph.vertex_weights[vertices])
        side = spectral_bisection(piece, float(targets[first:middle].sum() / targets[first:end].sum()))
        todo += [(vertices[side == 0], first, middle), (vertices[side == 1], middle, end)]
    return part


def _scaled(weights: Floats) -> Ints:
    largest = float(weights.max(initial=0.0))
    total = float((weights / largest).sum()) if largest else 0.0  # in units of the largest: it can't overflow
    if total * largest > _TOTAL or (weights != np.floor(weights)).any():
        weights = weights / largest * (_TOTAL / total)
    return np.rint(weights).astype(np.int64)


def _imported(name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        method = {"pymetis": "metis"}.get(name, name)
        raise ValueError(f"method = {method!r} needs {name}: pip install {name} ({error})") from None
