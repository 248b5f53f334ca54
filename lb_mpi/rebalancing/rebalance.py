"""Rebalancing of a whole graph in one process, by the steps that each rank takes with its neighbours.   (pure)

In a round, stray pieces get the labels of neighbours, and `level` finds flows between the parts.  All pairs of neighbours
let them through, in the order of an edge colouring: pairs of one colour share no rank.  Then all pairs make their cuts
lighter, from coarse graphs to the finest (see `choose`), and the vertices move to the ranks of their labels.  A second round
is needed if work has to go farther than the vertices of a part reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.diffusion.setup import colour_edges
from lb_mpi.distributing.halo import Pieces, part_of
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_loads, check_parts, check_speeds, imbalance
from lb_mpi.rebalancing.choose import Shard, coarser, join, multilevel_within, shard_of, stray, two_way, zone
from lb_mpi.rebalancing.flow import TOLERANCE, level

STAY = 0.05  # of the mean weight of an edge: the tie of a vertex of mean cost to its home
LAYERS = 8  # width of a zone in a pass that only makes the cut lighter
UNLIMITED = 1 << 40
ROUNDS = 4  # at most


def rebalance(
    graph: Any,
    parts: ArrayLike,
    speeds: ArrayLike,
    *,
    costs: ArrayLike | None = None,
    tolerance: float = 0.03,
    seed: int = 0,
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
    seed : integer >= 0, of the random numbers; the same arguments give the same parts.

    Returns an (n,) array: the new part of each vertex.

    Work flows between neighbouring parts only, by a diffusion of loads (Jin & Wang, diffusion for heterogeneous systems).
    Each pair of parts chooses vertices by two-way refinement (Schloegel, Karypis & Kumar 1997).  Raises ValueError for
    arguments out of range.
    """
    tasks, speed = as_graph(graph), check_speeds(speeds)
    labels = check_parts(parts, tasks.n, len(speed))
    work = np.asarray(tasks.vertex_weights) if costs is None else check_loads(costs, tasks.n, name="costs")
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    seed = checks.seed(seed)
    if tasks.n_edges == 0 or not work.any():
        return labels
    for number in range(ROUNDS):
        this = _Round(tasks, labels, work, speed, tolerance, seed + 10_000_019 * number)
        if number and this.imbalance <= tolerance and not this.n_stray:
            break
        this.give()
        this.refine()
        labels = this.labels
    return labels


class _Round:
    """All ranks in one round."""

    def __init__(
        self, graph: Graph, homes: Ints, costs: Floats, speeds: Floats, tolerance: float, seed: int
    ) -> None:  # fmt: skip
        self.size = len(speeds)
        self.labels = homes.copy()
        self.imbalance = imbalance(np.bincount(homes, costs, minlength=self.size), speeds)
        self._graph, self._speeds, self._seed = graph, speeds, seed
        self._flow_tolerance = min(TOLERANCE, 0.7 * tolerance)
        self._bounds = (1.0 + tolerance) * speeds * costs.sum() / speeds.sum()
        self._stay = STAY * float(graph.weights.mean() / costs.mean())
        pieces = Pieces(graph, homes, self.size)
        parts = [part_of(pieces[rank], rank) for rank in range(self.size)]
        self._shards = [shard_of(part, costs[part.vertices]) for part in parts]
        for rank, shard in enumerate(self._shards):
            self.labels[shard.numbers[: shard.n_local]] = stray(shard, homes[shard.numbers], rank)
        self.n_stray = int((self.labels != homes).sum())
        self._loads: Floats = np.bincount(self.labels, costs, minlength=self.size).astype(float)

    def give(self) -> None:
        """Level the loads: all pairs let the flow between them through."""
        quotient = with_bridges(quotient_graph(self._graph, self.labels, self.size), self._loads, self._speeds)
        flows = level(quotient, self._loads, self._speeds, tolerance=self._flow_tolerance).flows
        self._pass_over(quotient, self._shards, self.labels, flows, UNLIMITED)

    def refine(self) -> None:
        """Make the cut lighter, from coarse graphs to the finest."""
        quotient = quotient_graph(self._graph, self.labels, self.size)
        still = np.zeros(quotient.n_edges)
        shards, labels = self._shards, self.labels
        finer: list[tuple[list[Shard], Ints]] = []  # with the group of each vertex
        while True:
            groups, coarse = self._coarsen(shards, labels, len(finer))
            if sum(one.n_local for one in coarse) == len(labels):
                break
            finer.append((shards, groups))
            labels_of_groups = np.empty(sum(one.n_local for one in coarse), dtype=np.int64)
            labels_of_groups[groups] = labels
            shards, labels = coarse, labels_of_groups
        self._pass_over(quotient, shards, labels, still, LAYERS)
        for shards, groups in reversed(finer):
            labels = labels[groups]
            self._pass_over(quotient, shards, labels, still, LAYERS)
        self.labels = labels

    def _coarsen(self, shards: list[Shard], labels: Ints, depth: int) -> tuple[Ints, list[Shard]]:
        """Return the group of each vertex, and the shards of the groups."""
        found = [
            multilevel_within(one, labels[one.numbers], self._seed + depth * self.size + rank)
            for rank, one in enumerate(shards)
        ]
        first = np.cumsum([0, *(count for _, count in found)]).tolist()
        groups = np.empty(len(labels), dtype=np.int64)
        for one, (group, _), start in zip(shards, found, first, strict=False):
            groups[one.numbers[: one.n_local]] = start + group
        return groups, [
            coarser(one, group, count, start, groups[one.numbers[one.n_local :]])
            for one, (group, count), start in zip(shards, found, first, strict=False)
        ]

    def _pass_over(self, quotient: Graph, shards: list[Shard], labels: Ints, flows: Floats, layers: int) -> None:
        """Let all pairs choose vertices for the flow between them: changes labels."""
        tails, heads = quotient.edges()
        expected = self._loads - np.bincount(tails, flows, self.size) + np.bincount(heads, flows, self.size)
        for edge in np.argsort(colour_edges(quotient), kind="stable").tolist():
            low, high, flow = int(tails[edge]), int(heads[edge]), float(flows[edge])
            zones = [
                zone(shards[rank], labels[shards[rank].numbers], (low, high), layers, flow) for rank in (low, high)
            ]
            pair = join(zones[0], zones[1], self._stay)
            if not pair.costs.any():
                continue
            room = np.maximum(0.0, 0.5 * (self._bounds - expected)[[low, high]])  # half: others use the rest
            side = two_way(*pair, flow, slack=(room[0], room[1]), seed=self._seed + edge)
            labels[np.concatenate([one.numbers for one in zones])] = np.where(side[2:] == 0, low, high)
            given = float(pair.costs @ (side - pair.side))
            for change, rank in ((-1.0, low), (1.0, high)):
                self._loads[rank] += change * given
                expected[rank] += change * (given - flow)


def quotient_graph(graph: Graph, parts: Ints, size: int) -> Graph:
    """Return the graph of the `size` parts: two are neighbours if an edge joins them; weights are those of the cut."""
    tails, heads = (parts[ends] for ends in graph.edges())
    low, high, across = np.minimum(tails, heads), np.maximum(tails, heads), tails != heads
    pairs, place = np.unique(low[across] * size + high[across], return_inverse=True)
    weights = np.bincount(place, graph.edge_weights()[across], minlength=len(pairs))
    return Graph.from_edges(size, pairs // size, pairs % size, weights)


def with_bridges(quotient: Graph, loads: Floats, speeds: Floats) -> Graph:
    """Return the quotient graph with an edge of weight 0 to each component, if there are several: empty parts, for instance.

    The edge joins the part with most time in the richest component to the one with least time in the other.
    """
    count, component = quotient.components()
    if count == 1:
        return quotient
    time = loads / speeds
    richest = component[int(time.argmax())]
    others = [one for one in range(count) if one != richest]
    poorest = [int(np.where(component == one, time, np.inf).argmin()) for one in others]
    tails, heads = quotient.edges()
    return Graph.from_edges(
        quotient.n,
        np.concatenate([tails, np.full(len(poorest), time.argmax())]),
        np.concatenate([heads, poorest]),
        np.concatenate([quotient.edge_weights(), np.zeros(len(poorest))]),
    )
