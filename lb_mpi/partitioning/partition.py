"""Which tasks go to which node: `partition` is the door, `multilevel` the method, `peers` are others to compare with.

graph --coarsen--> smaller graphs --bisect--> parts of the smallest --restored and refined, level by level--> parts
"""

from __future__ import annotations

import math
import operator
import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.graph import Graph, Ints, from_networkx, from_scipy
from lb_mpi.graph_files import read_graph
from lb_mpi.metrics import check_speeds

EFFORTS = ("fast", "good", "best")
MAX_PARTS = 1 << 24  # what is kept per part would fill the memory
METHODS = ("multilevel", "metis", "kahip", "spectral")


def partition(
    graph: Any,
    k: int,
    targets: ArrayLike | None = None,
    imbalance: float = 0.03,
    effort: str = "good",
    seed: int = 0,
    method: str = "multilevel",
) -> Ints:
    """(n,) part 0..k-1 of each of the n vertices: a light cut between parts that weigh what they should.

    graph: a `Graph`; an undirected networkx graph or a symmetric scipy.sparse matrix (see `lb_mpi.graph`); the path of a
    METIS or Matrix Market file; or a name like "mesh:200x500".  targets (k,): what the parts should weigh, in any unit
    (counts of `lb_mpi.allocate`, speeds); all alike if left out.  No part is heavier than 1 + imbalance times its target, as
    far as the weights of the vertices allow it.  effort: "fast", "good" or "best".  The same arguments give the same parts.

    method: "multilevel" is that of this library.  For comparison: "metis" and "kahip" (equal targets only), where pymetis
    and kahip are installed, and "spectral", recursive spectral bisection of the whole graph, which knows no effort.

    ValueError for arguments out of range and for what is wrong with a graph or a file (file:line).
    """
    of = as_graph(graph)
    try:
        n_parts, number = operator.index(k), operator.index(seed)
    except TypeError:
        raise ValueError(f"k = {k!r}, seed = {seed!r}: expected whole numbers") from None
    if not 1 <= n_parts <= MAX_PARTS:
        raise ValueError(f"k = {n_parts}: expected at least 1, at most {MAX_PARTS}")
    if number < 0:
        raise ValueError(f"seed = {number}: expected at least 0")
    wanted = np.ones(n_parts) if targets is None else check_speeds(targets, n_parts, name="targets")
    share = wanted / wanted.max()
    share /= share.sum()
    if not (share > 0.0).all():
        part = int((share == 0.0).argmax())
        raise ValueError(f"targets[{part}] = {wanted[part]}: next to nothing beside {wanted.max()}")
    try:
        slack = float(imbalance)
    except (TypeError, ValueError):
        slack = math.nan
    if not 0.0 <= slack < math.inf:
        raise ValueError(f"imbalance = {imbalance!r}: expected a finite number >= 0")
    with np.errstate(over="ignore"):
        if not math.isfinite(of.weights.sum() + of.vertex_weights.sum()):
            raise ValueError("the weights of the graph add up to more than floating point can tell")
    for name, value, allowed in (("effort", effort, EFFORTS), ("method", method, METHODS)):
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: expected one of {', '.join(allowed)}")
    if method == "multilevel":
        from lb_mpi.partitioning.multilevel import multilevel  # late: it brings numba

        return multilevel(of, share, slack, effort, number)
    from lb_mpi.partitioning import external as peers

    return peers.partition(of, share, slack, effort, number, method)


def as_graph(graph: Any) -> Graph:
    """The graph in any of the shapes that `partition` takes."""
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str | os.PathLike):
        return read_graph(graph)
    if hasattr(graph, "is_directed") and hasattr(graph, "edges"):
        return from_networkx(graph)
    if hasattr(graph, "tocsr"):
        return from_scipy(graph)
    raise TypeError(
        f"graph of type {type(graph).__name__}: expected a Graph, networkx graph, scipy.sparse matrix or path"
    )
