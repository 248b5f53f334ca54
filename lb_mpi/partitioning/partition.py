"""Partitions of a task graph: `partition` checks the arguments, `multilevel` is the method.

graph --coarsen--> smaller graphs --bisect--> parts of the smallest --restored and refined, level by level--> parts
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lb_mpi import checks
from lb_mpi.graph import Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine
from lb_mpi.metrics import usual_arithmetic
from lb_mpi.partitioning.quality import MAX_PARTS, check_machine, check_targets

AIMS = ("cut", "time")
EFFORTS = ("fast", "good", "best")
METHODS = ("multilevel", "multilevel-spectral", "spectral")
COARSENINGS = ("groups", "matching")
THRESHOLDS = ("median", "mean")


@usual_arithmetic
def partition(
    graph: Any,
    k: int,
    *,
    targets: ArrayLike | None = None,
    imbalance: float = 0.03,
    effort: str = "good",
    seed: int = 0,
    method: str = "multilevel",
    coarsening: str = "groups",
    threshold: str = "median",
    aim: str = "cut",
    machine: Machine | None = None,
    unit_s: float | None = None,
) -> Ints:
    """Partition a graph into k parts of given weights, such that the edges between parts have a small weight (cut).

    Parameters
    ----------
    graph : a graph of n vertices in any form that `lb_mpi.as_graph` accepts: an `lb_mpi.Graph`, a networkx graph, a
        scipy.sparse matrix, a name or a file.
    k : the number of parts, >= 1.
    targets : (k,) desired weights of the parts relative to each other, above 0, in any unit (for example counts of
        `lb_mpi.allocate`, or speeds); None: the speeds of the machine, or equal if there is none.
    imbalance : no part is heavier than 1 + imbalance times its target, as far as the weights of the vertices allow it;
        >= 0, 0.03 means 3 %.
    effort : "fast", "good" or "best": more effort gives better parts and needs more time.
    seed : integer >= 0, of the random numbers; the same arguments give the same parts.
    method : "multilevel" is the method of this library.  For comparison: "multilevel-spectral", recursive bisection by
        the Fiedler vector of a coarse graph, projected back and refined; it ignores `effort`.  "spectral": recursive
        bisection of the whole graph by its Fiedler vector alone (see `lb_mpi.fiedler`); it also ignores `imbalance`.
    coarsening : of "multilevel-spectral": "groups" of strongly connected vertices are merged, or pairs by a "matching".
    threshold : of "spectral": the entries of the Fiedler vector up to its weighted "median" (for unequal targets, up to
        that quantile) are one side, or those below the "mean", for 2, 4, 8, ... equal targets; their parts may differ.
    aim : "cut", or "time": the fewest seconds until the last rank of the machine has computed and communicated (the
        `objective_s` of `partition_metrics`).  "time" starts from the partition by cut, and deviates from the targets
        where that saves time: a rank behind a slow link may get less, or nothing.  It is never slower than the
        partition by cut.
    machine : an `lb_mpi.Machine` of k ranks, with part j on rank j (see `lb_mpi.read_machine`).
    unit_s : seconds, above 0, that work of vertex weight 1 takes on the fastest rank; None: vertex weights are in the
        unit of work of the machine's speeds.

    Returns an (n,) array: the part 0..k-1 of each vertex.  Each part has a vertex of weight above 0 if there are enough
    of them, and light enough; otherwise a UserWarning names the parts that are empty.  With `aim` "time" there is none.

    Raises ValueError for arguments out of range, and for an invalid graph or file (with its name).

    Examples
    --------
        >>> lb_mpi.partition("mesh:2x4", 2)
        array([0, 0, 1, 1, 0, 0, 1, 1])
        >>> lb_mpi.partition("mesh:1x6", 2, targets=[2, 1])
        array([1, 1, 0, 0, 0, 0])
    """
    tasks = as_graph(graph)
    k, seed = checks.integer("k", k, 1, MAX_PARTS), checks.seed(seed)
    checks.choice("aim", aim, AIMS)
    check_machine(machine, k, unit_s)
    if aim == "time" and machine is None:
        raise ValueError("aim = 'time' without a machine: expected the speeds and links of its ranks")
    shares = check_targets(targets, k, machine)
    imbalance = checks.number("imbalance", imbalance, least=0.0)
    checks.choice("effort", effort, EFFORTS)
    checks.choice("method", method, METHODS)
    checks.choice("coarsening", coarsening, COARSENINGS)
    checks.choice("threshold", threshold, THRESHOLDS)
    from lb_mpi.kernels import held_interrupts
    from lb_mpi.partitioning.coarsen import csr
    from lb_mpi.partitioning.multilevel import fill, multilevel, multilevel_spectral  # late: it brings numba
    from lb_mpi.partitioning.spectral import spectral

    if method == "spectral":
        parts = spectral(tasks, shares, threshold)
        fill(csr(tasks), parts, np.full(k, math.inf))
    with held_interrupts():
        if method == "multilevel":
            parts = multilevel(tasks, shares, imbalance, effort, seed)
        elif method == "multilevel-spectral":
            parts = multilevel_spectral(tasks, shares, imbalance, seed, coarsening)
        if aim == "time" and machine is not None:
            from lb_mpi.partitioning.shorten import shorten

            return shorten(tasks, parts, machine, unit_s=unit_s, effort=effort, seed=seed)
    if len(empty := np.flatnonzero(np.bincount(parts[_counted(tasks)], minlength=k) == 0)):
        some = ", ".join(map(str, empty[:8].tolist())) + (", ..." if len(empty) > 8 else "")
        text = f"{len(empty):,} of {k:,} parts are empty ({some}): expected more vertices of weight above 0, or lighter ones"
        warnings.warn(text, stacklevel=2)
    return parts


def _counted(graph: Graph) -> NDArray[np.bool_]:
    """Return (n,) whether a vertex makes a part count as not empty: those of weight 0 do so only if all are."""
    heavy = graph.vertex_weights > 0
    return heavy if heavy.any() else ~heavy
