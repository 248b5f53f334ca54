"""Partitions of a task graph: `partition` is the door, `multilevel` the method, `external` has others to compare with.

graph --coarsen--> smaller graphs --bisect--> parts of the smallest --restored and refined, level by level--> parts
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.graph import Floats, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_speeds

EFFORTS = ("fast", "good", "best")
MAX_PARTS = 1 << 24  # what is kept per part would fill the memory
METHODS = ("multilevel", "multilevel-spectral", "metis", "kahip", "spectral")


def partition(
    graph: Any,
    k: int,
    *,
    targets: ArrayLike | None = None,
    imbalance: float = 0.03,
    effort: str = "good",
    seed: int = 0,
    method: str = "multilevel",
) -> Ints:
    """(n,) part 0..k-1 of each of the n vertices: a light cut between parts that weigh what they should.

    Parameters
    ----------
    graph : in any shape that `lb_mpi.as_graph` takes: a Graph, networkx graph, scipy.sparse matrix, name or file.
    k : the number of parts.
    targets : (k,) what the parts should weigh, in any unit (counts of `lb_mpi.allocate`, speeds); all alike if left out.
    imbalance : no part is heavier than 1 + imbalance times its target, as far as the weights of the vertices allow it.
    effort : "fast", "good" or "best".
    seed : of the random numbers; the same arguments give the same parts.
    method : "multilevel" is that of this library.  For comparison: "multilevel-spectral", recursive bisection by the Fiedler
        vector of a coarse graph, restored and refined; "spectral", by that of the whole graph, not refined, which keeps to
        no imbalance (both know no effort); "metis" and "kahip" (equal targets only), where pymetis and kahip are installed.

    ValueError for arguments out of range and for what is wrong with a graph or a file (file:line).
    """
    tasks = as_graph(graph)
    k, seed = checks.integer("k", k, 1, MAX_PARTS), checks.seed(seed)
    shares = _shares(k, targets)
    imbalance = checks.number("imbalance", imbalance, least=0.0)
    checks.choice("effort", effort, EFFORTS)
    checks.choice("method", method, METHODS)
    with np.errstate(over="ignore"):
        if not math.isfinite(tasks.weights.sum() + tasks.vertex_weights.sum()):
            raise ValueError("the weights of the graph add up to more than floating point can tell")
    if method == "multilevel":
        from lb_mpi.partitioning.multilevel import multilevel  # late: it brings numba

        return multilevel(tasks, shares, imbalance, effort, seed)
    if method == "multilevel-spectral":
        from lb_mpi.partitioning.multilevel import multilevel_spectral

        return multilevel_spectral(tasks, shares, imbalance, seed)
    from lb_mpi.partitioning import external

    return external.partition(tasks, shares, imbalance, effort, seed, method)


def _shares(k: int, targets: ArrayLike | None) -> Floats:
    """(k,) fractions of the whole, all above 0."""
    wanted = np.ones(k) if targets is None else check_speeds(targets, k, name="targets")
    shares: Floats = wanted / wanted.max()
    shares /= shares.sum()
    if not (shares > 0.0).all():
        part = int((shares == 0.0).argmax())
        raise ValueError(f"targets[{part}] = {wanted[part]}: next to nothing beside {wanted.max()}")
    return shares
