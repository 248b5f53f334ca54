"""Predict a recorded run with other settings: its calls are replayed on a virtual clock, without MPI.   (pure)

Law.  A prediction comes from the recorded work and the objects that run on MPI.  The first way of each driver is the model's
prediction of the recorded run itself, beside the measured time; other ways are no more accurate than that.  The time that
the recorded run needed beyond the model (messages, random imbalance of steps) is added to every other way that could be run:
it is the best guess for the same machine, and small on a quiet one.

Each driver has a function `replay_...(run)`, whose ranks are in order: it returns None if the run has no calls of the
driver, and raises ValueError if the record has too little data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.cli.report.run import Advice, Prediction, Run, spans, worked_s
from lb_mpi.cli.simulate.rows import Cluster
from lb_mpi.cli.simulate.tasks import SimulatedPool
from lb_mpi.diffusion.setup import ROWS_SCHEMES
from lb_mpi.graph import Floats, Graph
from lb_mpi.pooling.deal import deal
from lb_mpi.record.events import Driver
from lb_mpi.record.record import Rows, Stored

SEEDS = 3  # number of seeds per prediction
BUSY = 0.9  # on a busy machine, ranks at work have less of a core than this
WITHOUT = ("no balancing", "a fixed share each, by number", "equal blocks")  # names of variants
Progress = Callable[[str], object]


class Variant(NamedTuple):
    """A way to run the program."""

    what: str
    predict: Callable[[], tuple[float, float]]  # seconds, and their spread
    change: str = ""  # the lines to change; "": none to show


class Replayed(NamedTuple):
    """The calls of one driver in a recorded run, and the ways in which they can be replayed."""

    driver: str  # "map_rows", "pool", "exchange"
    measured_s: float
    variants: list[Variant]  # the first is the recorded run
    notes: list[str]  # on what is unknown, in words
    core_share: Floats = np.ones(1)  # (P,) see `core_share`
    talk_s: float = 0.0  # of messages between ranks, in the recorded run


def advise(replayed: Replayed, progress: Progress) -> Advice:
    """Predict all ways; if the model is too far off, only the recorded one and those without balancing."""
    measured_s, ways, why, extra_s = replayed.measured_s, [], "", 0.0
    for variant in replayed.variants:
        if why and variant.what not in WITHOUT:
            continue
        progress(f"replaying {replayed.driver}: {variant.what}")
        predicted_s, spread_s = variant.predict()
        ways.append(Prediction(variant.what, predicted_s + extra_s, spread_s, variant.change))
        if len(ways) == 1:
            why, extra_s = doubt(replayed, predicted_s), max(0.0, measured_s - predicted_s)
    first, *others = ways
    others.sort(key=lambda way: way.predicted_s)
    notes, off = [*replayed.notes], first.predicted_s / measured_s - 1.0 if measured_s else 0.0
    if abs(off) >= 0.0005:  # 0.0%
        added = f"; the missing {extra_s:.3f} s (messages, noise) is added to every prediction" if extra_s else ""
        notes.insert(0, f"the model {_off(off)}{added}")
    if (core := _core(replayed.core_share)) < BUSY:
        notes.append(
            f"a rank at work had a core for only {core:.0%} of the time: the machine was busy, or has fewer cores than "
            "ranks; the predictions apply to an equally busy machine"
        )
    conclusion = f"no advice: {why}" if why else conclude(measured_s, first, others)
    return Advice(replayed.driver, measured_s, conclusion, why, [first, *others], notes)


def conclude(measured_s: float, first: Prediction, others: Sequence[Prediction]) -> str:
    """Summarise advice in a line: the recorded way, and the others, the fastest first."""
    best = others[0] if others else first
    if best.predicted_s < measured_s - max(LEAST_GAIN * measured_s, best.spread_s + first.spread_s):
        return f"{best.what}: {measured_s / best.predicted_s:.2f} times as fast as recorded ({best.change})"
    without = next((way.predicted_s for way in others if way.what in WITHOUT), math.nan)
    compared = f"; without balancing it would take {without / measured_s:.2f} times as long" if without > measured_s else ""
    return f"nothing to change: no other variant is faster by more than the spread{compared}"


SMALL_S = 0.1  # of a run that takes less, the model does not know the most
TOO_FAR = 0.2  # a model with a larger error says nothing about other ways
LEAST_GAIN = 0.03  # a way with a smaller gain isn't mentioned


def doubt(replayed: Replayed, model_s: float) -> str:
    """Return why a record says nothing about other ways, if the model needs `model_s` for the recorded one; "": it does."""
    measured_s = replayed.measured_s
    off = 0.0 if not measured_s else model_s / measured_s - 1.0
    if replayed.talk_s > 0.5 * measured_s:
        return f"exchanges take {replayed.talk_s / measured_s:.0%} of the time, whatever the distribution"
    if abs(off) <= TOO_FAR:
        return ""
    if off < 0.0 and measured_s < SMALL_S:
        why = f"at {measured_s:.2g} s it is too short: messages and decisions dominate"
    elif _core(replayed.core_share) < BUSY:
        why = "the machine was busy: record it again on a quiet one"
    elif off < 0.0:
        why = "either its calls are so short that messages and decisions dominate, or the machine was busy"
    else:
        why = "the work does not fit the model"
    return f"the model {_off(off)}; {why}"


def _off(off: float) -> str:
    return f"{'over' if off > 0.0 else 'under'}estimates the recorded run by {abs(off):.1%}"


# --- the record -------------------------------------------------------------------------------------------------------


def in_rank_order(run: Run) -> Run:
    """Return the run with its ranks in order."""
    order = np.argsort([one.about.rank for one in run.ranks]).tolist()
    return run._replace(ranks=[run.ranks[k] for k in order], offsets_s=[run.offsets_s[k] for k in order])


def calls(ranks: Sequence[Stored], driver: Driver) -> Rows:
    """Return one driver's (P, K) steps, those that all ranks have ended; (P, 0) if ranks merged them differently."""
    tables = [one.steps[one.steps["driver"] == driver] for one in ranks]
    n = min(map(len, tables))
    found = np.stack([table[:n] for table in tables])
    return found if (found["n"] == found[0]["n"]).all() else found[:, :0]


def settings(ranks: Sequence[Stored], driver: str) -> dict[str, object]:
    """Return the settings of a driver, from the first rank with a record of them."""
    return next((dict(one.settings[driver]) for one in ranks if driver in one.settings), {})


def core_share(ranks: Sequence[Stored], steps: Rows) -> Floats:
    """Return (P,) useful time / time at work in the (P, K) steps: below 1 after waits for a core; NaN: no work."""
    worked = np.array([worked_s(one, mine) for one, mine in zip(ranks, steps, strict=True)])
    useful = steps["useful_s"].sum(axis=1, dtype=float)
    busy = (worked > 0.0) & (useful > 0.0)
    share = np.minimum(1.0, useful / np.where(busy, worked, 1.0))
    return np.where(busy, share, np.nan)


def _core(share: Floats) -> float:
    return float(np.nanmin(share, initial=1.0))


def over_seeds(predict: Callable[[int], float]) -> tuple[float, float]:
    """Return (median, largest - smallest) of the predictions with all seeds."""
    found = [predict(seed) for seed in range(SEEDS)]
    return statistics.median(found), max(found) - min(found)


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


MOST_RANKS, MOST_WITH_WAYS = 256, 64  # of a run whose gain is predicted, and all ways: a replay of more takes long


def predictions(run: Run, progress: Progress) -> tuple[list[Advice], list[str]]:
    """Return the predictions for each driver of a run, and why there are none of other calls."""
    if run.size == 1:
        return [], []
    if run.size > MOST_RANKS:
        return [], [f"times with other settings are predicted for at most {MOST_RANKS} ranks"]
    if len(run.ranks) < run.size:
        return [], [f"records of {len(run.ranks)} of {run.size} ranks: expected all of them, to replay the run"]
    found: list[Replayed] = []
    why = [SEARCHES] if any((one.steps["driver"] == Driver.SEARCH).any() for one in run.ranks) else []
    run = in_rank_order(run)
    for replay in REPLAYS:
        try:
            found += filter(None, [replay(run)])
        except ValueError as error:  # too little data
            why.append(str(error))
    if found and run.size > MOST_WITH_WAYS:
        found = [
            one._replace(variants=[one.variants[0], *(way for way in one.variants if way.what in WITHOUT)]) for one in found
        ]
        why.append(f"other settings than no balancing are predicted for at most {MOST_WITH_WAYS} ranks")
    return [advise(one, progress) for one in found], why or [NOTHING] * (not found)


def gain(found: Sequence[Advice]) -> tuple[float, str]:
    """Return how many times as long the balanced calls of a run would have taken without balancing; NaN if unknown.

    Return also why it is unknown, if the model is too far off ("": otherwise).  Searches and other calls that can't be
    replayed are left out.
    """
    without_s = measured_s = 0.0
    for advice in found:
        if advice.doubt:
            return math.nan, advice.doubt
        without_s += next(way.predicted_s for way in advice.ways if way.what in WITHOUT)
        measured_s += advice.measured_s
    return (without_s / measured_s if measured_s else math.nan), ""
