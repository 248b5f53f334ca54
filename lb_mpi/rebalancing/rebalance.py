"""Rebalancing of a whole graph in one process: all ranks of `plan.rebalance`, in virtual time.   (pure)

A second round is needed if work has to go farther than the vertices of a part reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.distributing.halo import Pieces, part_of
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_loads, check_parts, check_speeds, imbalance
from lb_mpi.rebalancing.actor import RebalanceOutcome, Rebalancing
from lb_mpi.rebalancing.deciding import RankLoad, RebalanceDecision, report, totals_of
from lb_mpi.rebalancing.jobs import Job, run
from lb_mpi.reduction import reduced
from lb_mpi.virtual import Network, Stories, run_together

ROUNDS = 4  # at most


def rebalance(
    graph: Any,
    parts: ArrayLike,
    speeds: ArrayLike,
    *,
    costs: ArrayLike | None = None,
    tolerance: float = 0.03,
    lighter: bool = False,
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
    lighter : move vertices also if that makes only the cut lighter, and the slowest rank not slower.
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
        mean_s, before = float(work.sum() / speed.sum()), imbalance(loads, speed)
        if number and before <= tolerance:
            break
        reason = BalanceReason.CUT if lighter and before <= tolerance else BalanceReason.ALWAYS
        decided = RebalanceDecision(reason, before, mean_s, float(speed.mean()))
        new, outcome = move(tasks, labels, work, speed, decided, imbalance=tolerance)
        if not outcome.moved:
            break
        labels = new
    return labels


class _World(Stories):
    """All ranks of a rebalancing."""

    def end(self, rank: int, job: Job) -> Any:
        """Do a job."""
        return run(job)


def move(
    graph: Graph, parts: Ints, costs: Floats, speeds: Floats, decided: RebalanceDecision, *, imbalance: float
) -> tuple[Ints, RebalanceOutcome]:
    """Move vertices as all ranks have decided; return the new parts (n,), or the old ones; see `Rebalancing`.

    costs (n,), speeds (P,) : all are known.
    """
    size, connected = len(speeds), graph.components()[0] == 1
    pieces, loads = Pieces(graph, parts, size), np.bincount(parts, costs, minlength=size).astype(float)
    ranks = [RankLoad(*each) for each in zip(loads.tolist(), speeds.tolist(), strict=True)]
    totals, actors = totals_of(reduced([*map(report, ranks)])), list[Rebalancing]()
    for rank, mine in enumerate(ranks):
        part = part_of(pieces[rank], rank)
        actors.append(Rebalancing(
            rank, size, part, costs[part.vertices], mine, totals, decided, imbalance=imbalance, connected=connected
        ))  # fmt: skip
    run_together(_World(actors, Network()), actors)
    labels = parts.copy()
    if actors[0].committed:
        for actor in actors:
            assert actor.built is not None
            labels[actor.built.part.vertices] = actor.rank
    return labels, actors[0].outcome


def quotient_graph(graph: Graph, parts: Ints, size: int) -> Graph:
    """Return the graph of the `size` parts: two are neighbours if an edge joins them; weights are those of the cut."""
    tails, heads = (parts[ends] for ends in graph.edges())
    low, high, across = np.minimum(tails, heads), np.maximum(tails, heads), tails != heads
    pairs, inverse = np.unique(low[across] * size + high[across], return_inverse=True)
    weights = np.bincount(inverse, graph.edge_weights()[across], minlength=len(pairs))
    return Graph.from_edges(size, pairs // size, pairs % size, weights)


def compile_kernels() -> None:
    """Compile all kernels of a rebalancing, or load them from the cache."""
    rebalance("mesh:20x20", np.arange(400) // 100, [1.0, 1.0, 1.0, 2.0])
