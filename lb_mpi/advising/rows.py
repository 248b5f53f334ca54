"""Calls of `Balancer.map_rows`, played again with other schemes, process graphs, and machines.   (pure)

From the record come, for each call and rank, the seconds that the rank's own rows take it (`home_s`), and those that it
spends outside before it comes (`outside_s`); the ranks' speeds; and how costs are spread over the rows.  Calls on a virtual
clock are those of `lb_mpi.balancing.simulate`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.advising.advice import (
    Advice,
    Change,
    Floats,
    Line,
    Progress,
    beyond,
    calls,
    machines,
    model_note,
    over_seeds,
    ranked,
    settings,
)
from lb_mpi.arranging.arrange import arrange
from lb_mpi.balancing.simulate import Cluster
from lb_mpi.diffusion.setup import SCHEMES
from lb_mpi.graph import Graph, mesh, most_square_mesh
from lb_mpi.graph_files import as_graph
from lb_mpi.record.events import Driver
from lb_mpi.record.record import Rows, Stored
from lb_mpi.report.run import Run

NOISE = 0.05  # of a block's time, as a standard deviation of its logarithm
ROWS = 48  # of a rank on the virtual clock, at most
FIRST, CALLS = 8, 24  # calls at the beginning are played one by one, of all others some that stand for the rest
MOST_RANKS = 256  # for arrangements, whose search takes long


class Recorded(NamedTuple):
    """What a run tells of its rows: K calls, or groups of calls, of P ranks."""

    home_s: Floats  # (K, P) that a rank's own rows take it, in one call
    outside_s: Floats  # (K, P) before the call
    n: Floats  # (K,) calls that each stands for
    speeds: Floats  # (P,) relative to their mean
    shapes: list[Floats]  # of each rank: costs of its rows, adding up to 1
    seconds: float  # of all calls, with what is outside before each
    graph: Graph
    how: dict[str, Any]  # scheme, tolerance, when, every


def advise(run: Run, progress: Progress, *, quiet: bool = False) -> Advice | None:
    """Advise on the rows of a run; None where there were none.  ValueError for a record that doesn't hold enough.

    `quiet` : as on a quiet machine; what ranks do outside is taken as it was.
    """
    recorded = _recorded(ranked(run))
    if recorded is None:
        return None
    progress("map_rows: as recorded")
    model_s, spread_s = over_seeds(lambda seed: _total(recorded, seed))
    extra_s = beyond(recorded.seconds, model_s, quiet=quiet)
    scheme = str(recorded.how["scheme"])

    def line(what: str, change: str, **other: Any) -> Line:
        progress(f"map_rows: {what}")
        predicted_s, spread_s = over_seeds(lambda seed: _total(recorded, seed, **other) + extra_s)
        return Line(what, predicted_s, spread_s, change=change)

    lines = [Line(f"as recorded: {scheme}", model_s, spread_s, recorded.seconds)]
    alone_s = float((recorded.n * (recorded.outside_s + recorded.home_s).max(axis=1)).sum())
    lines.append(Line("no balancing", alone_s + extra_s, 0.0, change="rows = function(rows), without a Balancer"))
    for other in SCHEMES:
        if other != scheme:
            lines.append(line(other, f'lb_mpi.Balancer(comm, scheme="{other}")', how={**recorded.how, "scheme": other}))
    once_s = _moved_once_s(recorded) + extra_s
    lines.append(Line("moved once, by speed", once_s, 0.0, change="rows = balancer.migrate(rows), once"))
    size = recorded.graph.n
    for name in _names(size):
        graph = as_graph(name)
        if _edges(graph) != _edges(recorded.graph):
            lines.append(line(f"{scheme} on {name}", f'lb_mpi.Balancer(comm, graph="{name}")', graph=graph))
    if 2 < size <= MOST_RANKS and len(set(np.round(recorded.speeds, 2))) > 1:
        order = arrange(recorded.graph, recorded.speeds).positions
        if (order != np.arange(size)).any():
            lines.append(line("ranks arranged by speed", "comm = lb_mpi.reorder_ranks(comm, graph, speeds)", order=order))
    ranks = ranked(run)
    for change in machines(ranks, recorded.speeds):
        lines.append(line(change.what, change.words, other_machine=change))
    notes = [
        model_note(model_s, recorded.seconds, extra_s, quiet=quiet),
        "row costs change from call to call as recorded; how they are spread over a rank's rows is that of the last call",
    ]
    return Advice("map_rows", lines, notes)


def _total(recorded: Recorded, seed: int, **other: Any) -> float:
    return float((recorded.n * _play(recorded, seed, **other)).sum())


def _play(
    recorded: Recorded,
    seed: int,
    *,
    how: dict[str, Any] | None = None,
    graph: Graph | None = None,
    order: Any = None,
    other_machine: Change | None = None,
) -> Floats:
    """(K,) seconds of each call on the virtual clock."""
    speeds, outside = recorded.speeds, recorded.outside_s
    graph = graph or recorded.graph
    deal: Callable[[list[Floats]], list[Floats]] = list
    if order is not None:  # node order[v] sits at vertex v, whose rows stay
        speeds, outside = speeds[order], outside * (speeds / speeds[order])
    if other_machine is not None:
        kept, factors = other_machine.ranks, np.array(other_machine.factors)
        outside = outside[:, kept] / factors * (len(speeds) / len(kept))
        speeds = speeds[kept] * factors
        if len(kept) < recorded.graph.n:
            graph, deal = mesh(*most_square_mesh(len(kept))), partial(_even, n=len(kept))
    settled = how or recorded.how
    cluster = Cluster(
        graph, speeds, scheme=settled["scheme"], tolerance=settled["tolerance"], when=settled["when"],
        every=settled["every"], noise=NOISE, seed=seed,
    )  # fmt: skip
    work = recorded.home_s * recorded.speeds
    seconds = [
        cluster.call(deal([w * shape for w, shape in zip(mine, recorded.shapes, strict=True)]), late).seconds
        for mine, late in zip(work, outside, strict=True)
    ]
    return np.array(seconds)


def _even(rows: list[Floats], n: int) -> list[Floats]:
    """The same rows, in their order, as many on each of n ranks."""
    return list(np.array_split(np.concatenate(rows), n))


def _moved_once_s(recorded: Recorded) -> float:
    """Seconds if rows were dealt once, in their order, so that the first call is level."""
    work = recorded.home_s * recorded.speeds
    rows = np.array(
        [np.concatenate([w * shape for w, shape in zip(mine, recorded.shapes, strict=True)]) for mine in work]
    )
    target = np.cumsum(recorded.speeds) / recorded.speeds.sum()
    owners = np.searchsorted(target, (np.cumsum(rows[0]) - 0.5 * rows[0]) / rows[0].sum())
    loads = np.array([np.bincount(owners, mine, len(target)) for mine in rows])
    return float((recorded.n * (recorded.outside_s + loads / recorded.speeds).max(axis=1)).sum())


def _recorded(ranks: list[Stored]) -> Recorded | None:
    how = settings(ranks, "map_rows")
    tables = calls(ranks, Driver.ROWS)
    if not how or not len(tables[0]):
        return None
    counts = tables[0]["n"].astype(float)
    home, outside = (np.array(some).T / counts[:, None] for some in zip(*map(_seconds, tables), strict=True))
    known = np.isfinite(outside).all(axis=1)
    outside[~known] = np.median(outside[known], axis=0) if known.any() else 0.0
    home = np.where(np.isfinite(home), home, np.nanmedian(home, axis=0)) if np.isfinite(home).any() else home
    if not np.isfinite(home).all():
        raise ValueError("map_rows: rows were not timed in any recorded call: expected two calls or more")
    speeds = np.array([float(np.median(table["speed"])) for table in tables])
    seconds = _measured_s(tables, outside)
    picked, stands = _some(counts)
    neighbours = [one.settings["map_rows"]["neighbours"] for one in ranks]
    tails = np.repeat(np.arange(len(ranks)), [len(mine) for mine in neighbours])
    heads = np.array([rank for mine in neighbours for rank in mine], dtype=np.int64)
    graph = Graph.from_edges(len(ranks), tails[tails < heads], heads[tails < heads])
    shapes = [_shape(one.costs) for one in ranks]
    return Recorded(home[picked], outside[picked], stands, speeds / speeds.mean(), shapes, seconds, graph, how)


def _seconds(table: Rows) -> tuple[Floats, Floats]:
    """Seconds that a rank needs for its own rows, and those that it spent outside before its calls; NaN: not known."""
    before = table["began"] - np.append(np.nan, table["ended"][:-1])
    return table["home_s"].astype(float), before + table["between_s"]


def _measured_s(tables: list[Any], outside: Floats) -> float:
    """Seconds of all calls, with what is outside; of the first, as much as of the second."""
    took = [float(table["ended"][-1] - table["began"][0]) for table in tables]
    return float((np.array(took) + outside[0]).max())


def _some(counts: Floats) -> tuple[Any, Floats]:
    """Which of the entries are played, and how many calls each of them stands for."""
    if len(counts) <= FIRST + CALLS:
        return np.arange(len(counts)), counts
    groups = np.array_split(np.arange(FIRST, len(counts)), CALLS)
    picked = [*range(FIRST), *(int(group[len(group) // 2]) for group in groups)]
    return np.array(picked), np.array([*counts[:FIRST], *(counts[group].sum() for group in groups)])


def _shape(costs: Floats) -> Floats:
    """Costs of rows that add up to 1: at most ROWS, equal ones when nothing is known."""
    if not len(costs) or not costs.sum() > 0.0:
        return np.full(ROWS // 2, 2.0 / ROWS)
    if len(costs) > ROWS:
        edges = np.linspace(0, len(costs), ROWS + 1).astype(np.int64)
        costs = np.add.reduceat(costs, edges[:-1])
    return np.asarray(costs / costs.sum())


def _names(size: int) -> list[str]:
    names = [f"ring:{size}"] if size > 2 else []
    rows, columns = most_square_mesh(size)
    names += [f"torus:{rows}x{columns}"] if rows > 1 else []
    names += [f"hypercube:{size.bit_length() - 1}"] if size > 2 and size & (size - 1) == 0 else []
    return [*names, f"complete:{size}"] if size <= MOST_RANKS else names


def _edges(graph: Graph) -> list[set[int]]:
    return [set(graph.neighbours(rank).tolist()) for rank in range(graph.n)]
