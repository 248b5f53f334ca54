"""Rebalancing of a whole graph in one process, by the steps that each rank takes with its neighbours.   (pure)

A round is what all ranks do in a call of `plan.rebalance` (`lb_mpi.rebalancing.actor`), without the messages.  Stray pieces
get the labels of neighbours, `level` finds flows between the parts, and all pairs of neighbours choose the vertices that
carry them (`lb_mpi.rebalancing.pairs`).  A second round is needed if work has to go farther than the vertices of a part
reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.distributing.halo import Pieces, part_of
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_loads, check_parts, check_speeds, imbalance
from lb_mpi.rebalancing.actor import FLOW_PART, Links
from lb_mpi.rebalancing.choose import shard_of, stray
from lb_mpi.rebalancing.flow import level
from lb_mpi.rebalancing.pairs import choose, choose_together

ROUNDS = 4  # at most


def rebalance(
    graph: Any,
    parts: ArrayLike,
    speeds: ArrayLike,
    *,
    costs: ArrayLike | None = None,
    tolerance: float = 0.03,
) -> Ints:
    """Change the parts of a graph such that they fit new speeds or costs, with little work moved and few edges cut.

    Parameters
    ----------
    graph : a graph of n vertices in any form that `lb_mpi.as_graph` accepts.
    parts : (n,) the present part 0..P-1 of each vertex.
    speeds : (P,) speeds of the ranks, above 0, in any unit.
    costs : (n,) work of the vertices, >= 0, in any unit; None: the graph's vertex weights.
    tolerance : no rank needs more than 1 + tolerance times the mean time, as far as the costs of the vertices allow it;
        above 0, 0.03 means 3 %.
    Returns an (n,) array: the new part of each vertex.

    Work flows between neighbouring parts only, by a diffusion of loads (Jin & Wang, diffusion for heterogeneous systems).
    Each pair of parts chooses vertices by two-way refinement (Schloegel, Karypis & Kumar 1997).  Raises ValueError for
    arguments out of range.
    """
    tasks, speed = as_graph(graph), check_speeds(speeds)
    labels = check_parts(parts, tasks.n, len(speed))
    work = np.asarray(tasks.vertex_weights) if costs is None else check_loads(costs, tasks.n, name="costs")
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    if tasks.n_edges == 0 or not work.any():
        return labels
    for number in range(ROUNDS):
        loads = np.bincount(labels, work, minlength=len(speed))
        if number and imbalance(loads, speed) <= tolerance:
            break
        labels = _round(tasks, labels, work, speed, tolerance)
    return labels


def _round(graph: Graph, homes: Ints, costs: Floats, speeds: Floats, tolerance: float) -> Ints:
    """Return the new parts after what all ranks do in one call of `plan.rebalance`."""
    size = len(speeds)
    pieces = Pieces(graph, homes, size)
    parts = [part_of(pieces[rank], rank) for rank in range(size)]
    shards = [shard_of(part, costs[part.vertices]) for part in parts]
    repaired = [stray(shard, rank) for rank, shard in enumerate(shards)]
    labels = np.empty(graph.n, dtype=np.int64)
    for part, new in zip(parts, repaired, strict=True):
        labels[part.vertices] = new
    loads = np.bincount(labels, costs, minlength=size)
    linked = with_bridges(quotient_graph(graph, homes, size, labels))
    flows: list[dict[int, float]] = [{} for _ in range(size)]
    levelled = level(linked, loads, speeds, tolerance=FLOW_PART * tolerance).flows.tolist()
    for low, high, flow in zip(*(ends.tolist() for ends in linked.edges()), levelled, strict=True):
        flows[low][high], flows[high][low] = flow, -flow
    mean = float(costs.sum() / speeds.sum())
    choices = [
        choose(rank, shards[rank], labels[shards[rank].numbers], Links(
            flows[rank], {other: float(speeds[other]) for other in flows[rank]}, float(speeds[rank]), float(loads[rank]),
            (1.0 + tolerance) * float(speeds[rank]) * mean,
        ))
        for rank in range(size)
    ]  # fmt: skip
    for part, new in zip(parts, choose_together(choices), strict=True):
        labels[part.vertices] = new
    return labels


def quotient_graph(graph: Graph, parts: Ints, size: int, labels: Ints | None = None) -> Graph:
    """Return the graph of the `size` parts: two are neighbours if an edge joins them; weights are those of the cut.

    labels : (n,) parts without stray pieces; only edges that join the same two parts there count, too.
    """
    tails, heads = (parts[ends] for ends in graph.edges())
    low, high, across = np.minimum(tails, heads), np.maximum(tails, heads), tails != heads
    if labels is not None:
        new_tails, new_heads = (labels[ends] for ends in graph.edges())
        across &= (np.minimum(new_tails, new_heads) == low) & (np.maximum(new_tails, new_heads) == high)
    pairs, place = np.unique(low[across] * size + high[across], return_inverse=True)
    weights = np.bincount(place, graph.edge_weights()[across], minlength=len(pairs))
    return Graph.from_edges(size, pairs // size, pairs % size, weights)


def with_bridges(quotient: Graph) -> Graph:
    """Return the quotient graph with an edge of weight 0 between consecutive ranks of different components.

    So work gets to empty parts, for instance.  The last rank and the first are consecutive, too.
    """
    count, component = quotient.components()
    if count == 1:
        return quotient
    ranks = np.arange(quotient.n if quotient.n > 2 else 1)
    beside = (ranks + 1) % quotient.n
    apart = component[ranks] != component[beside]
    tails, heads = quotient.edges()
    return Graph.from_edges(
        quotient.n,
        np.concatenate([tails, ranks[apart]]),
        np.concatenate([heads, beside[apart]]),
        np.concatenate([quotient.edge_weights(), np.zeros(int(apart.sum()))]),
    )


def compile_kernels() -> None:
    """Compile all kernels of a rebalancing, or load them from the cache."""
    rebalance("mesh:20x20", np.arange(400) // 100, [1.0, 1.0, 1.0, 2.0])
