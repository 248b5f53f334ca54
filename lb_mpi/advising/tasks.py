"""Maps of a pool, played again with and without costs, dealt out for good, and on other machines.   (pure)

From the record come the tasks of the last map, chunk by chunk (a chunk takes about half a millisecond, so that a task which
matters is one by itself), in the rank's own seconds, and the ranks' speeds.  Maps on a virtual clock are those of
`lb_mpi.pooling.simulate`.  Maps before the last count in proportion to their work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from lb_mpi.advising.advice import (
    Advice,
    Change,
    Floats,
    Line,
    Progress,
    beyond,
    busy_notes,
    calls,
    core_share,
    machines,
    model_note,
    over_seeds,
    ranked,
    settings,
)
from lb_mpi.pooling.deal import deal
from lb_mpi.pooling.simulate import Pool, counter_s
from lb_mpi.record.events import Driver
from lb_mpi.record.record import Stored
from lb_mpi.report.run import Run


class Recorded(NamedTuple):
    """What a run tells of its tasks."""

    costs: Floats  # (n,) seconds on a rank of speed 1, by position
    speeds: Floats  # (P,) with the share of a core that each had
    core_share: Floats  # (P,)
    hosts: list[str]  # (P,)
    believed: list[float]  # (P,) speeds that the pool had measured before the last map; empty: none
    with_costs: bool  # the pool was told what tasks cost
    share: float  # work of all maps / work of the last one
    measured_s: float  # of all maps


def advise(run: Run, progress: Progress, *, quiet: bool = False) -> Advice | None:
    """Advise on the maps of a run; None where there were none.  ValueError for a record that doesn't hold enough.

    `quiet` : as on a quiet machine.
    """
    ranks = ranked(run)
    recorded = _recorded(ranks, quiet=quiet)
    if recorded is None:
        return None
    here, other = recorded.with_costs, not recorded.with_costs
    names = {False: "pool", True: "pool with costs"}
    changes = {False: "pool.map(function, items)", True: "pool.map(function, items, costs=...)"}
    progress("pool: as recorded")
    model_s, model_spread_s = over_seeds(lambda seed: _play(recorded, here, seed))
    extra_s = beyond(recorded.measured_s, model_s, quiet=quiet)

    def line(what: str, change: str, seconds: Callable[[int], float]) -> Line:
        progress(f"pool: {what}")
        predicted_s, spread_s = over_seeds(lambda seed: seconds(seed) + extra_s)
        return Line(what, predicted_s, spread_s, change=change)

    bare = "for item in items[begin:end], without a pool"
    equal, by_speed = np.ones(len(ranks)), recorded.speeds
    counter = over_seeds(lambda seed: recorded.share * counter_s(_listed(recorded, seed), recorded.speeds))
    lines = [
        Line(f"as recorded: {names[here]}", model_s, model_spread_s, recorded.measured_s),
        line(names[other], changes[other], lambda seed: _play(recorded, other, seed)),
        line("a fixed share each, by number", bare, lambda seed: _fixed_s(recorded, equal, seed)),
        line("a fixed share each, by speed", bare, lambda seed: _fixed_s(recorded, by_speed, seed)),
        Line("a counter that all ranks ask, at no cost", *counter),
    ]
    for change in machines(ranks, recorded.speeds):
        lines.append(line(change.what, change.words, partial(_play, recorded, here, change=change)))
    return Advice("pool", lines, [model_note(model_s, recorded.measured_s, extra_s, quiet=quiet), *_notes(recorded)])


def _notes(recorded: Recorded) -> list[str]:
    notes = [
        *busy_notes(recorded.core_share),
        "with costs: uses the measured costs; real predictions of costs are less good",
    ]
    if recorded.with_costs:
        notes.append("without costs: the order of the items is not recorded, so they are shuffled")
    if len(set(recorded.hosts)) > 1 and len(set(recorded.speeds.tolist())) == 1:
        notes.append("a task is assumed to cost the same on every host: the record has no speeds of hosts")
    return notes


def _play(recorded: Recorded, costs_known: bool, seed: int, change: Change | None = None) -> float:
    """Seconds of all maps on the virtual clock."""
    kept = list(range(len(recorded.speeds))) if change is None else change.ranks
    speeds = recorded.speeds[kept] * (1.0 if change is None else np.array(change.factors))
    by_host: dict[str, list[int]] = {}
    for place, rank in enumerate(kept):
        by_host.setdefault(recorded.hosts[rank], []).append(place)
    order = [place for places in by_host.values() for place in places]
    pool = Pool([len(places) for places in by_host.values()], speeds[order], seed=seed)
    if recorded.believed and change is None:
        pool.learned.values = np.array(recorded.believed)[order]
    return recorded.share * pool.map(_listed(recorded, seed), costs_known=costs_known).seconds


def _fixed_s(recorded: Recorded, shares: Floats, seed: int) -> float:
    """Seconds if tasks were dealt by number, and nothing was stolen."""
    costs = _listed(recorded, seed)
    order, bounds = deal(np.arange(len(costs)), shares.tolist())
    sums = np.concatenate([[0.0], np.cumsum(costs[order])])
    return recorded.share * float((np.diff(sums[bounds]) / recorded.speeds).max())


def _listed(recorded: Recorded, seed: int) -> Floats:
    """Costs in the order of the items, or in any if that isn't known."""
    if not recorded.with_costs:
        return recorded.costs
    return np.random.default_rng(seed).permutation(recorded.costs)


def _recorded(ranks: list[Stored], *, quiet: bool) -> Recorded | None:
    tables = calls(ranks, Driver.TASKS)
    if not len(tables[0]):
        return None
    chunks = np.concatenate([one.tasks for one in ranks])
    chunks = chunks[np.argsort(chunks["first"], kind="stable")]
    n = chunks["n"].astype(np.int64)
    costs = np.repeat(chunks["seconds"].astype(float) / np.maximum(n, 1), n)
    if not len(costs) or not costs.sum() > 0.0:
        raise ValueError("pool: the last recorded map has no tasks that took time: expected some")
    work = sum(float((table["useful_s"] * table["speed"]).sum()) for table in tables)
    core = core_share(ranks, tables, quiet=quiet)
    own = np.array([float(np.median(table["speed"])) for table in tables])
    speeds = own * np.where(np.isfinite(core), core, np.nanmean(core) if np.isfinite(core).any() else 1.0)
    took_s = np.max([table["ended"] for table in tables], axis=0) - np.min([table["began"] for table in tables], axis=0)
    how = settings(ranks, "pool")
    believed = how.get("speeds")
    known = [float(speed) for speed in believed] if isinstance(believed, list) and len(believed) == len(ranks) else []
    hosts = [one.about.host for one in ranks]
    share = max(1.0, work / float(costs.sum()))
    return Recorded(costs, speeds, core, hosts, known, bool(how.get("costs")), share, float(took_s.sum()))
