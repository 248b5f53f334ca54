"""A task graph that was dealt out by `lb_mpi.distribute`: by speed, or in equal blocks, on this or another machine.   (pure)

The graph isn't recorded, but how much of it each rank has, and how long each computed between exchanges.  So the ranks'
speeds follow, and the time that the slowest needs for any other share.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lb_mpi.advising.advice import (
    Advice,
    Floats,
    Line,
    Progress,
    beyond,
    busy_notes,
    calls,
    core_share,
    machines,
    model_note,
    ranked,
)
from lb_mpi.record.events import Driver
from lb_mpi.record.record import Stored
from lb_mpi.report.run import Run

IMBALANCE = 0.03  # that `distribute` allows, unless it is told otherwise: half of it is expected


class Recorded(NamedTuple):
    """What a run tells of its exchanges."""

    weights: Floats  # (P,) of the ranks' parts
    speeds: Floats  # (P,) weight per second, in all exchanges together
    core_share: Floats  # (P,) of a core that each had while at work
    talk_s: float  # beyond the slowest rank
    measured_s: float


def advise(run: Run, progress: Progress, *, quiet: bool = False) -> Advice | None:
    """Advise on the distribution of a task graph; None where there was none.  `quiet`: as on a quiet machine."""
    ranks = ranked(run)
    recorded = _recorded(ranks, quiet=quiet)
    if recorded is None:
        return None
    progress("exchange")
    total, size = float(recorded.weights.sum()), len(ranks)
    own_s = float((recorded.weights / recorded.speeds).max())
    equal_s = float((total / size / recorded.speeds).max())
    by_speed = 'lb_mpi.distribute(comm, graph, method="static")'
    lines = [
        Line("as recorded", own_s, 0.0, recorded.measured_s),
        Line("dealt by speed (static)", *_by_speed(recorded, recorded.speeds), change=by_speed),
        Line("equal blocks", equal_s + recorded.talk_s, 0.0, change='lb_mpi.distribute(comm, graph, method="block")'),
    ]
    for change in machines(ranks, recorded.speeds):
        speeds = recorded.speeds[change.ranks] * np.array(change.factors)
        lines.append(Line(f"dealt by speed, {change.what}", *_by_speed(recorded, speeds), change=change.words))
    notes = [
        model_note(own_s, recorded.measured_s, recorded.talk_s, quiet=quiet),
        *busy_notes(recorded.core_share),
        "messages need the recorded time, whatever edges another distribution cuts",
        f"dealt by speed: parts exceed their targets by half of the allowed {IMBALANCE:.0%}, give or take as much",
        "equal blocks: vertices that weigh the same",
    ]
    return Advice("exchange", lines, notes)


def _by_speed(recorded: Recorded, speeds: Floats) -> tuple[float, float]:
    """(seconds, spread) when each of the ranks has as much as it can do."""
    best_s = float(recorded.weights.sum() / speeds.sum())
    return best_s * (1.0 + IMBALANCE / 2.0) + recorded.talk_s, IMBALANCE * best_s


def _recorded(ranks: list[Stored], *, quiet: bool) -> Recorded | None:
    tables = calls(ranks, Driver.EXCHANGE)
    if not len(tables[0]) or not all("exchange" in one.settings for one in ranks):
        return None
    weights = np.array([float(one.settings["exchange"]["weight"]) for one in ranks])
    useful = np.array([float(table["useful_s"].sum()) for table in tables])
    busy = (weights > 0.0) & (useful > 0.0)
    if not busy.any():
        raise ValueError("exchange: no rank computed between exchanges in the record: expected one at least")
    share = core_share(ranks, tables, quiet=quiet)
    took = np.where(busy, useful / np.where(busy, share, 1.0), math.nan)  # as busy as the machine was
    speeds = weights / took
    speeds = np.where(busy, speeds, np.nanmean(speeds))
    took_s = np.max([table["ended"] for table in tables], axis=0) - np.min([table["began"] for table in tables], axis=0)
    measured_s = float(took_s.sum())
    return Recorded(weights, speeds, share, beyond(measured_s, float(np.nanmax(took)), quiet=quiet), measured_s)
