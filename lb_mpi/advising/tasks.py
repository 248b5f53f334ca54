"""Maps of a pool, played again with and without costs, dealt out for good, and on other machines.   (pure)

From the record come the tasks of the last map, chunk by chunk (a chunk takes about half a millisecond, so that a task which
matters is one by itself), in the rank's own seconds, and the ranks' speeds.  Maps on a virtual clock are those of
`lb_mpi.pooling.simulate`.  Maps before the last count in proportion to their work.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.advising.advice import Advice, Floats, Line, Progress, calls, machines, over_seeds, ranked, settings
from lb_mpi.pooling.deal import deal
from lb_mpi.pooling.simulate import Pool, counter_s
from lb_mpi.recording.events import Driver
from lb_mpi.recording.run import Run
from lb_mpi.recording.store import Stored


class Recorded(NamedTuple):
    """What a run tells of its tasks."""

    costs: Floats  # (n,) seconds on a rank of speed 1, by position
    speeds: Floats  # (P,)
    hosts: list[str]  # (P,)
    believed: list[float]  # (P,) speeds that the pool had measured before the last map; empty: none
    with_costs: bool  # the pool was told what tasks cost
    share: float  # work of all maps / work of the last one
    measured_s: float  # of all maps


def advise(run: Run, progress: Progress) -> Advice | None:
    """Advise on the maps of a run; None where there were none.  ValueError for a record that doesn't hold enough."""
    ranks = ranked(run)
    recorded = _recorded(ranks)
    if recorded is None:
        return None
    here, other = recorded.with_costs, not recorded.with_costs
    names = {False: "pool", True: "pool with costs"}
    changes = {False: "pool.map(function, items)", True: "pool.map(function, items, costs=...)"}
    progress("pool: as recorded")
    extra_s = max(0.0, recorded.measured_s - _play(recorded, here, 0))

    def line(what: str, change: str, costs: bool, measured_s: float = math.nan, **machine: Any) -> Line:
        progress(f"pool: {what}")
        predicted_s, spread_s = over_seeds(lambda seed: _play(recorded, costs, seed, **machine) + extra_s)
        return Line(what, predicted_s, spread_s, measured_s, change)

    plain_s, spread_s = over_seeds(lambda seed: _play(recorded, here, seed))
    lines = [
        Line(f"as recorded: {names[here]}", plain_s, spread_s, recorded.measured_s),
        line(names[other], changes[other], other),
        _fixed(recorded, "a fixed share each, by number", np.ones(len(ranks))),
        _fixed(recorded, "a fixed share each, by speed", recorded.speeds),
        _counter(recorded),
    ]
    for change in machines(ranks, recorded.speeds):
        lines.append(line(change.what, change.words, here, ranks=change.ranks, factors=change.factors))
    return Advice("pool", lines, _notes(recorded, plain_s, extra_s))


def _notes(recorded: Recorded, plain_s: float, extra_s: float) -> list[str]:
    notes = [
        f"the model says {plain_s / recorded.measured_s - 1.0:+.1%} of the maps that were recorded; {extra_s:.3f} s that it "
        "doesn't know of are added to every other line with a pool",
        "with costs: as good as those that were measured; real predictions are worse",
    ]
    if recorded.with_costs:
        notes.append("without costs: the order of the items isn't known, they are shuffled")
    if len(set(recorded.hosts)) > 1 and len(set(recorded.speeds.tolist())) == 1:
        notes.append("a task is taken to cost elsewhere what it cost where it ran: the record knows no speeds of hosts")
    return notes


def _play(
    recorded: Recorded, costs_known: bool, seed: int, ranks: list[int] | None = None, factors: list[float] | None = None
) -> float:
    """Seconds of all maps on the virtual clock."""
    kept = list(range(len(recorded.speeds))) if ranks is None else ranks
    speeds = recorded.speeds[kept] * (1.0 if factors is None else np.array(factors))
    by_host: dict[str, list[int]] = {}
    for place, rank in enumerate(kept):
        by_host.setdefault(recorded.hosts[rank], []).append(place)
    order = [place for places in by_host.values() for place in places]
    pool = Pool([len(places) for places in by_host.values()], speeds[order], seed=seed)
    if recorded.believed and ranks is None:
        pool.learned.values = np.array(recorded.believed)[order]
    return recorded.share * pool.map(_listed(recorded, seed), costs_known=costs_known).seconds


def _fixed(recorded: Recorded, what: str, shares: Floats) -> Line:
    """Dealt by number of tasks, and nothing is stolen."""

    def seconds(seed: int) -> float:
        costs = _listed(recorded, seed)
        order, bounds = deal(np.arange(len(costs)), shares.tolist())
        sums = np.concatenate([[0.0], np.cumsum(costs[order])])
        return recorded.share * float((np.diff(sums[bounds]) / recorded.speeds).max())

    predicted_s, spread_s = over_seeds(seconds)
    return Line(what, predicted_s, spread_s, change="for item in items[begin:end], without a pool")


def _counter(recorded: Recorded) -> Line:
    predicted_s, spread_s = over_seeds(
        lambda seed: recorded.share * counter_s(_listed(recorded, seed), recorded.speeds)
    )
    return Line(
        "a counter that all ranks ask, at no cost", predicted_s, spread_s, change="concurrent.futures-like pools"
    )


def _listed(recorded: Recorded, seed: int) -> Floats:
    """Costs in the order of the items, or in any if that isn't known."""
    if not recorded.with_costs:
        return recorded.costs
    return np.random.default_rng(seed).permutation(recorded.costs)


def _recorded(ranks: list[Stored]) -> Recorded | None:
    tables = calls(ranks, Driver.TASKS)
    if not len(tables[0]):
        return None
    chunks = np.concatenate([one.known.tasks for one in ranks])
    chunks = chunks[np.argsort(chunks["first"], kind="stable")]
    n = chunks["n"].astype(np.int64)
    costs = np.repeat(chunks["seconds"].astype(float) / np.maximum(n, 1), n)
    if not len(costs) or not costs.sum() > 0.0:
        raise ValueError("pool: the last recorded map has no tasks that took time: expected some")
    work = sum(float((table["useful_s"] * table["speed"]).sum()) for table in tables)
    speeds = np.array([float(np.median(table["speed"])) for table in tables])
    took_s = np.max([table["ended"] for table in tables], axis=0) - np.min([table["began"] for table in tables], axis=0)
    how = settings(ranks, "pool")
    believed = how.get("speeds")
    known = [float(speed) for speed in believed] if isinstance(believed, list) and len(believed) == len(ranks) else []
    hosts = [one.about.host for one in ranks]
    share = max(1.0, work / float(costs.sum()))
    return Recorded(costs, speeds, hosts, known, bool(how.get("costs")), share, float(took_s.sum()))
