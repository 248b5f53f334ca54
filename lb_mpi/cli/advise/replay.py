"""Replay a recorded run on a virtual clock, with other ways of balancing.   (pure)

Each driver has a function `replay_...(run)`, whose ranks are in order: it returns None if the run has no calls of the
driver, and raises ValueError if the record has too little data.  A replay uses the objects that run on MPI.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.cli.advise.advice import (
    WITHOUT,
    Advice,
    Progress,
    Replayed,
    Variant,
    advise,
    calls,
    core_share,
    doubt,
    in_rank_order,
    over_seeds,
    settings,
)
from lb_mpi.cli.report.run import Run, spans
from lb_mpi.cli.simulate.rows import Cluster
from lb_mpi.cli.simulate.tasks import SimulatedPool
from lb_mpi.diffusion.setup import ROWS_SCHEMES
from lb_mpi.graph import Floats, Graph
from lb_mpi.pooling.deal import deal
from lb_mpi.record.events import Driver
from lb_mpi.record.record import Stored

# --- rows -------------------------------------------------------------------------------------------------------------
# The record has, for each call and rank, the seconds that the rank needs for its own rows (`home_s`) and spends outside
# before the call (`outside_s`); the ranks' speeds; and the distribution of costs over the rows.

NOISE = 0.05  # of a block's time: standard deviation of its logarithm
ROWS = 48  # of a rank on the virtual clock, at most
FIRST, CALLS = 8, 24  # the first calls are played one by one; of the others, some represent the rest


class RecordedRows(NamedTuple):
    """The rows of a run: K calls, or groups of calls, on P ranks."""

    home_s: Floats  # (K, P) seconds for a rank's own rows, in one call
    outside_s: Floats  # (K, P) before the call
    n: Floats  # (K,) number of calls that each represents
    speeds: Floats  # (P,) relative to their mean
    shapes: list[Floats]  # of each rank: costs of its rows, adding up to 1
    seconds: float  # of all calls, including the time outside before each
    graph: Graph
    how: dict[str, Any]  # scheme, tolerance, when, every


def replay_rows(run: Run) -> Replayed | None:
    """Replay the calls of map_rows."""
    recorded = _recorded_rows(run.ranks)
    if recorded is None:
        return None
    scheme = str(recorded.how["scheme"])

    def way(what: str, change: str, scheme: str = scheme) -> Variant:
        return Variant(what, partial(over_seeds, partial(_play_rows, recorded, scheme)), change)

    alone_s = float((recorded.n * (recorded.outside_s + recorded.home_s).max(axis=1)).sum())
    variants = [
        way(f"as recorded: {scheme}", ""),
        Variant("no balancing", lambda: (alone_s, 0.0), "rows = function(rows), without a Balancer"),
        *(way(other, f'lb_mpi.Balancer(comm, scheme="{other}")', other) for other in ROWS_SCHEMES if other != scheme),
    ]
    notes = [
        "row costs change from call to call as recorded; how they are spread over a rank's rows is that of the last call"
    ]
    core = core_share(run.ranks, calls(run.ranks, Driver.ROWS))
    return Replayed("map_rows", recorded.seconds, variants, notes, core)


def _play_rows(recorded: RecordedRows, scheme: str, seed: int) -> float:
    """Return the seconds of all calls on the virtual clock."""
    how = recorded.how
    cluster = Cluster(
        recorded.graph, recorded.speeds, scheme=scheme, tolerance=how["tolerance"], when=how["when"],
        every=how["every"], noise=NOISE, seed=seed,
    )  # fmt: skip
    work = recorded.home_s * recorded.speeds
    seconds = [
        cluster.call([w * shape for w, shape in zip(mine, recorded.shapes, strict=True)], late).seconds
        for mine, late in zip(work, recorded.outside_s, strict=True)
    ]
    return float((recorded.n * seconds).sum())


def _recorded_rows(ranks: list[Stored]) -> RecordedRows | None:
    how, steps = settings(ranks, "map_rows"), calls(ranks, Driver.ROWS)
    if not steps.size or not all("map_rows" in one.settings for one in ranks):
        return None
    counts, began, ended = steps[0]["n"].astype(float), steps["began"], steps["ended"]
    before = began - np.pad(ended[:, :-1], ((0, 0), (1, 0)), constant_values=np.nan)  # since the previous call
    home, outside = (steps["home_s"] / counts).T, ((before + steps["between_s"]) / counts).T
    known = np.isfinite(outside).all(axis=1)
    outside[~known] = np.median(outside[known], axis=0) if known.any() else 0.0
    home = np.where(np.isfinite(home), home, np.nanmedian(home, axis=0)) if np.isfinite(home).any() else home
    if not np.isfinite(home).all():
        raise ValueError("map_rows: rows were not timed in any recorded call: expected two calls or more")
    speeds = np.median(steps["speed"].astype(float), axis=1)
    seconds = float((ended[:, -1] - began[:, 0] + outside[0]).max())
    picked, stands = _some(counts)
    neighbours = [one.settings["map_rows"]["neighbours"] for one in ranks]
    tails = np.repeat(np.arange(len(ranks)), [len(mine) for mine in neighbours])
    heads = np.array([rank for mine in neighbours for rank in mine], dtype=np.int64)
    graph = Graph.from_edges(len(ranks), tails[tails < heads], heads[tails < heads])
    shapes = [_shape(one.costs) for one in ranks]
    return RecordedRows(home[picked], outside[picked], stands, speeds / speeds.mean(), shapes, seconds, graph, how)


def _some(counts: Floats) -> tuple[Any, Floats]:
    """Select the entries to be replayed, and count the calls that each represents."""
    if len(counts) <= FIRST + CALLS:
        return np.arange(len(counts)), counts
    groups = np.array_split(np.arange(FIRST, len(counts)), CALLS)
    picked = [*range(FIRST), *(int(group[len(group) // 2]) for group in groups)]
    return np.array(picked), np.array([*counts[:FIRST], *(counts[group].sum() for group in groups)])


def _shape(costs: Floats) -> Floats:
    """Return costs of rows that add up to 1: at most ROWS, equal if nothing is known."""
    if not len(costs) or not costs.sum() > 0.0:
        return np.full(ROWS // 2, 2.0 / ROWS)
    if len(costs) > ROWS:
        edges = np.linspace(0, len(costs), ROWS + 1).astype(np.int64)
        costs = np.add.reduceat(costs, edges[:-1])
    return np.asarray(costs / costs.sum())


# --- tasks ------------------------------------------------------------------------------------------------------------
# The record has the tasks of the last map, chunk by chunk (a chunk lasts at most eight milliseconds, so a significant task
# is a chunk by itself), in the rank's own seconds, and the ranks' speeds.  Earlier maps count in proportion to their work.


class RecordedTasks(NamedTuple):
    """The tasks of a run."""

    costs: Floats  # (n,) seconds on a rank of speed 1, by position
    speeds: Floats  # (P,) including the fraction of a core that each had
    core_share: Floats  # (P,)
    hosts: list[str]  # (P,)
    believed: list[float]  # (P,) speeds measured by the pool before the last map; empty: none
    with_costs: bool  # the program passed costs to the pool
    share: float  # work of all maps / work of the last one
    measured_s: float  # of all maps


def replay_tasks(run: Run) -> Replayed | None:
    """Replay the maps of a pool."""
    recorded = _recorded_tasks(run)
    if recorded is None:
        return None
    names = {False: "pool", True: "pool with costs"}
    changes = {False: "pool.map(function, items)", True: "pool.map(function, items, costs=...)"}
    here, other = recorded.with_costs, not recorded.with_costs

    def way(what: str, change: str, play: Callable[[int], float]) -> Variant:
        return Variant(what, partial(over_seeds, play), change)

    bare = "for item in items[begin:end], without a pool"
    equal, by_speed = np.ones(run.size), recorded.speeds
    variants = [
        way(f"as recorded: {names[here]}", "", partial(_play_tasks, recorded, here)),
        way(names[other], changes[other], partial(_play_tasks, recorded, other)),
        way("a fixed share each, by number", bare, partial(_fixed_s, recorded, equal)),
        way("a fixed share each, by speed", bare, partial(_fixed_s, recorded, by_speed)),
    ]
    notes = ["with costs: uses the measured costs; real predictions of costs are less good"]
    if recorded.with_costs:
        notes.append("without costs: the order of the items is not recorded, so they are shuffled")
    if len(set(recorded.hosts)) > 1 and len(set(recorded.speeds.tolist())) == 1:
        notes.append("a task is assumed to cost the same on every host: the record has no speeds of hosts")
    return Replayed("pool", recorded.measured_s, variants, notes, recorded.core_share)


def _play_tasks(recorded: RecordedTasks, costs_known: bool, seed: int) -> float:
    """Return the seconds of all maps on the virtual clock."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(recorded.hosts):
        by_host.setdefault(host, []).append(rank)
    order = [rank for ranks in by_host.values() for rank in ranks]
    pool = SimulatedPool([len(ranks) for ranks in by_host.values()], recorded.speeds[order], seed=seed)
    if recorded.believed:
        pool.knowledge.believe(np.array(recorded.believed)[order].tolist())
    return recorded.share * pool.map(_listed(recorded, seed), costs_known=costs_known).seconds


def _fixed_s(recorded: RecordedTasks, shares: Floats, seed: int) -> float:
    """Return the seconds if tasks were distributed by number, without stealing."""
    costs = _listed(recorded, seed)
    order, bounds = deal(np.arange(len(costs)), shares.tolist())
    sums = np.concatenate([[0.0], np.cumsum(costs[order])])
    return recorded.share * float((np.diff(sums[bounds]) / recorded.speeds).max())


def _listed(recorded: RecordedTasks, seed: int) -> Floats:
    """Return the costs in the order of the items, or in random order if that is unknown."""
    if not recorded.with_costs:
        return recorded.costs
    return np.random.default_rng(seed).permutation(recorded.costs)


def _recorded_tasks(run: Run) -> RecordedTasks | None:
    ranks, steps = run.ranks, calls(run.ranks, Driver.TASKS)
    if not steps.size:
        return None
    chunks = np.concatenate([one.tasks for one in ranks])
    chunks = chunks[np.argsort(chunks["first"], kind="stable")]
    n = chunks["n"].astype(np.int64)
    costs = np.repeat(chunks["seconds"].astype(float) / np.maximum(n, 1), n)
    if not len(costs) or not costs.sum() > 0.0:
        raise ValueError("pool: the last recorded map has no tasks that took time: expected some")
    work = float((steps["useful_s"] * steps["speed"]).sum(dtype=float))
    core = core_share(ranks, steps)
    speeds = np.median(steps["speed"].astype(float), axis=1)
    speeds *= np.where(np.isfinite(core), core, np.nanmean(core) if np.isfinite(core).any() else 1.0)
    how = settings(ranks, "pool")
    believed = how.get("speeds")
    known = [float(speed) for speed in believed] if isinstance(believed, list) and len(believed) == len(ranks) else []
    hosts = [one.about.host for one in ranks]
    share = max(1.0, work / float(costs.sum()))
    return RecordedTasks(costs, speeds, core, hosts, known, bool(how.get("costs")), share, float(spans(run, steps).sum()))


# --- a task graph, distributed ----------------------------------------------------------------------------------------
# The graph isn't recorded, but each rank's share of it, and its computing time between exchanges.  They give the ranks'
# speeds, and the time of the slowest rank for any other shares.

IMBALANCE = 0.03  # default of `distribute`: half of it is expected


def replay_exchange(run: Run) -> Replayed | None:
    """Replay the exchanges of a task graph."""
    ranks, steps = run.ranks, calls(run.ranks, Driver.EXCHANGE)
    if not steps.size or not all("exchange" in one.settings for one in ranks):
        return None
    if calls(ranks, Driver.REBALANCE).size:
        raise ValueError("exchange: vertices have moved (plan.rebalance) in the record: expected one distribution")
    weights = np.array([float(one.settings["exchange"]["weight"]) for one in ranks])
    useful = steps["useful_s"].sum(axis=1, dtype=float)
    busy = (weights > 0.0) & (useful > 0.0)
    if not busy.any():
        raise ValueError("exchange: no rank computed between exchanges in the record: expected one at least")
    share = core_share(ranks, steps)
    busy_s = np.where(busy, useful / np.where(busy, share, 1.0), math.nan)  # as busy as the recorded machine
    speeds = weights / busy_s  # weight per second, in all exchanges together
    speeds = np.where(busy, speeds, np.nanmean(speeds))
    measured_s = float(spans(run, steps).sum())
    talk_s = max(0.0, measured_s - float(np.nanmax(busy_s)))  # beyond the slowest rank's computation

    best_s = float(weights.sum() / speeds.sum())
    static_s = best_s * (1.0 + IMBALANCE / 2.0) + talk_s, IMBALANCE * best_s

    def shared(what: str, change: str, weights: Floats | float) -> Variant:
        seconds = float((weights / speeds).max()) + talk_s
        return Variant(what, lambda: (seconds, 0.0), change)

    variants = [
        shared("as recorded", "", weights),
        Variant("dealt by speed (static)", lambda: static_s, 'lb_mpi.distribute(comm, graph, method="static")'),
        shared("equal blocks", 'lb_mpi.distribute(comm, graph, method="block")', float(weights.mean())),
    ]
    notes = [
        f"messages need {talk_s:.3f} s, as recorded, whatever edges another distribution cuts",
        f"dealt by speed: parts exceed their targets by half of the allowed {IMBALANCE:.0%}, give or take as much",
        "equal blocks: vertices that weigh the same",
    ]
    return Replayed("exchange", measured_s, variants, notes, share, talk_s)


# --- the whole run ----------------------------------------------------------------------------------------------------

REPLAYS = (replay_rows, replay_exchange, replay_tasks)
SEARCHES = (
    "a search is not predicted, because its tree is not recorded: compare with a run with balance=False, or try ranks, "
    "speeds and networks with python -m lb_mpi simulate search"
)


NOTHING = (
    "the record contains nothing that can be replayed: expected a call of map_rows, a map of a pool, or exchanges, which "
    "must have ended on all ranks"
)


def replays(run: Run) -> tuple[list[Replayed], list[str]]:
    """Return what can be replayed, and why other calls can't; one of the two is not empty."""
    found: list[Replayed] = []
    why = [SEARCHES] if any((one.steps["driver"] == Driver.SEARCH).any() for one in run.ranks) else []
    if len(run.ranks) < run.size:
        return [], [f"records of {len(run.ranks)} of {run.size} ranks: expected all of them, to replay the run"]
    run = in_rank_order(run)
    for replay in REPLAYS:
        try:
            found += filter(None, [replay(run)])
        except ValueError as error:  # too little data
            why.append(str(error))
    return found, why or [NOTHING] * (not found)


MOST_RANKS, MOST_WITH_WAYS = 256, 64  # of a run whose gain is predicted, and all ways: a replay of more takes long


def predictions(run: Run, progress: Progress) -> tuple[list[Advice], list[str]]:
    """Return the predictions for each driver of a run, and why there are none of other calls."""
    if run.size == 1:
        return [], []
    if run.size > MOST_RANKS:
        return [], [f"times with other settings are predicted for at most {MOST_RANKS} ranks"]
    found, why = replays(run)
    if found and run.size > MOST_WITH_WAYS:
        found = [
            one._replace(variants=[one.variants[0], *(way for way in one.variants if way.what in WITHOUT)]) for one in found
        ]
        why = [*why, f"other settings than no balancing are predicted for at most {MOST_WITH_WAYS} ranks"]
    return [advise(one, progress) for one in found], why


def gain(found: Sequence[Advice]) -> tuple[float, str]:
    """Return how many times as long the balanced calls of a run would have taken without balancing; NaN if unknown.

    Return also why it is unknown, if the model is too far off ("": otherwise).  Searches and other calls that can't be
    replayed are left out.
    """
    without_s = measured_s = 0.0
    for advice in found:
        if why := doubt(advice.of, advice.lines[0].predicted_s):
            return math.nan, why
        without_s += next(line.predicted_s for line in advice.lines if line.variant.what in WITHOUT)
        measured_s += advice.of.measured_s
    return (without_s / measured_s if measured_s else math.nan), ""
