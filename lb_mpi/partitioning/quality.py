"""What a partition of a task graph is worth: cut, volume, balance, connectivity, seconds on a machine.   (pure)

A partition is an (n,) array of parts 0..k-1, one per vertex.  Its balance against (k,) targets, in any unit, is
`metrics.imbalance(part_weights(graph, parts, k), targets)`: the heaviest part, measured by its target, is 1 + imbalance
times as heavy as it would be if all were just right.

On a machine, part j is run by a node with performance w_j; k and l exchange b bytes in alpha_kl + beta_kl b seconds:

    C_j = sum of c_i over the tasks i on j / w_j                           computing
    K_j = sum of v_ik beta_jl over the edges from i on j to k on l != j    talking; with `startup`, alpha_jl once per such l
    objective = max_j (C_j + K_j)

Transit and contention are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse import csgraph

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.metrics import check_loads, check_speeds, imbalance


@dataclass(frozen=True, eq=False)
class PartitionQuality:
    """A partition in figures."""

    cut: float  # weight of the edges between parts, each counted once
    volume: int  # how many vertices go to other parts, each once for every part that has a neighbour of it
    imbalance: float  # against the targets: 0.03 means that some part is 3 % too heavy
    weights: Floats  # (k,) of the parts
    sizes: Ints  # (k,) vertices in each part
    connected: Any  # (k,) bool: whether the part is in one piece; an empty one is


@dataclass(frozen=True, eq=False)
class MappingCost:
    """The time that a partition takes on a machine; no partition at all takes less than `lower_bound`."""

    objective: float  # seconds: max_j (computing_j + communication_j)
    lower_bound: float  # seconds of computing alone, if the work were shared by performance, or of the heaviest task
    computing: Floats  # (k,) seconds, C_j
    communication: Floats  # (k,) seconds, K_j


def check_parts(parts: ArrayLike, n: int, k: int) -> Ints:
    """`parts` as an (n,) array of integers; ValueError, naming the vertex, for one outside 0..k-1."""
    array = np.asarray(parts)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(f"parts of shape {array.shape} and dtype {array.dtype}: expected {n} integers, one per vertex")
    outside = (array < 0) | (array >= k)
    if outside.any():
        vertex = int(outside.argmax())
        raise ValueError(f"parts[{vertex}] = {array[vertex]}: expected 0..{k - 1}")
    return array.astype(np.int64)


def part_weights(graph: Graph, parts: ArrayLike, k: int) -> Floats:
    """(k,) sums of the weights of each part's vertices."""
    return np.bincount(check_parts(parts, graph.n, k), graph.vertex_weights, k).astype(float)


def cut(graph: Graph, parts: ArrayLike, k: int) -> float:
    """The weight of the edges between parts, each counted once."""
    part = check_parts(parts, graph.n, k)
    tails, heads = graph.edges()
    return float(graph.edge_weights()[part[tails] != part[heads]].sum())


def volume(graph: Graph, parts: ArrayLike, k: int) -> int:
    """How many vertices have to be sent in one exchange along all edges: each once to every other part next to it.

    Hendrickson & Kolda 2000, who show that this and not the cut is what is sent.
    """
    part = check_parts(parts, graph.n, k)
    tails = np.repeat(np.arange(graph.n), graph.degrees)
    to = part[graph.indices]
    across = to != part[tails]
    return len(np.unique(tails[across] * k + to[across]))


def connected(graph: Graph, parts: ArrayLike, k: int) -> Any:
    """(k,) bool: which parts are in one piece (an empty one is)."""
    part = check_parts(parts, graph.n, k)
    tails, heads = graph.edges()
    inside = part[tails] == part[heads]
    ends = (tails[inside], heads[inside])
    matrix = sparse.coo_array((np.ones(len(ends[0])), ends), shape=(graph.n, graph.n))
    _, piece = csgraph.connected_components(matrix, directed=False)
    _, first = np.unique(piece, return_index=True)
    return np.bincount(part[first], minlength=k) <= 1


def quality(graph: Graph, parts: ArrayLike, targets: ArrayLike) -> PartitionQuality:
    """All figures of an (n,) partition against its (k,) targets, in any unit."""
    target = check_speeds(targets, name="targets")
    k = len(target)
    weights = part_weights(graph, parts, k)
    return PartitionQuality(
        cut(graph, parts, k),
        volume(graph, parts, k),
        imbalance(weights, target),
        weights,
        np.bincount(np.asarray(parts), minlength=k).astype(np.int64),
        connected(graph, parts, k),
    )


def mapping_cost(
    graph: Graph,
    parts: ArrayLike,
    performance: ArrayLike,
    alpha: ArrayLike = 0.0,
    beta: ArrayLike = 0.0,
    *,
    startup: bool = False,
) -> MappingCost:
    """The seconds that an (n,) partition takes on k nodes, part j on node j.

    The vertices of the graph weigh work, the edges bytes.  performance (k,): units of work per second.  alpha (seconds of
    start-up) and beta (seconds per byte) are numbers >= 0, or (k, k) arrays of them, whose diagonals don't matter.  alpha
    counts with `startup` only: once for every other node that a node exchanges any bytes with.
    """
    speeds = check_speeds(performance, name="performance")
    k = len(speeds)
    part = check_parts(parts, graph.n, k)
    start, per_byte = _between(alpha, k, "alpha"), _between(beta, k, "beta")
    ends = (part[np.repeat(np.arange(graph.n), graph.degrees)], part[graph.indices])
    traffic = sparse.coo_array((graph.weights, ends), shape=(k, k))
    traffic.sum_duplicates()
    across = (traffic.row != traffic.col) & (traffic.data > 0.0)
    here, there, payload_bytes = traffic.row[across], traffic.col[across], traffic.data[across]
    seconds = payload_bytes * per_byte[here, there] + (start[here, there] if startup else 0.0)
    computing = part_weights(graph, part, k) / speeds
    communication = np.bincount(here, seconds, k).astype(float)
    work = graph.vertex_weights
    bound = max(float(work.sum() / speeds.sum()), float(work.max() / speeds.max()))
    return MappingCost(float((computing + communication).max()), bound, computing, communication)


def _between(values: ArrayLike, k: int, name: str) -> Floats:
    """`values` as a (k, k) array, or a view that looks like one; ValueError, naming the two nodes."""
    array = np.asarray(values)
    if array.shape not in ((), (k, k)):
        raise ValueError(f"{name} of shape {array.shape}: expected a number or an array of shape {(k, k)}")
    numbers = check_loads(array.ravel(), name=name) if array.ndim == 0 else _check_pairs(array, name)
    return np.broadcast_to(numbers, (k, k))


def _check_pairs(array: Any, name: str) -> Floats:
    pairs = np.array(array, dtype=float)
    np.fill_diagonal(pairs, 0.0)
    bad = ~((pairs >= 0.0) & np.isfinite(pairs))
    if bad.any():
        one, other = np.argwhere(bad)[0].tolist()
        raise ValueError(f"{name}[{one}, {other}] = {pairs[one, other]}: expected a finite number >= 0")
    return pairs
