"""What a run comes to: its time beside the least that was possible, the POP metrics, and in words what cost most.   (pure)

Useful time is that in the user's work, a slow rank's rests included (it would compute).  With P ranks, T the longest time
that a rank spent in lb_mpi, and u_r the useful time of rank r, the metrics of the POP project (https://pop-coe.eu) are

    parallel efficiency      mean u / T  =  load balance * communication efficiency
    load balance             mean u / max u
    communication efficiency max u / T

They count seconds, whoever is how fast.  The lower bound counts speeds as well: work / sum of the ranks' speeds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lb_mpi.record.events import FLOW, Phase, Way
from lb_mpi.report.run import USEFUL, Floats, Run, steps

NAMES = {
    Phase.OWN: "own work",
    Phase.FOREIGN: "work for others",
    Phase.PROTOCOL: "protocol",
    Phase.PACKING: "packing",
    Phase.WAITING: "waiting",
    Phase.RESTING: "resting (slow)",
    Phase.OUTSIDE: "outside lb_mpi",
}
SHORT = {
    Phase.OWN: "own",
    Phase.FOREIGN: "others'",
    Phase.PROTOCOL: "protocol",
    Phase.PACKING: "packing",
    Phase.WAITING: "waiting",
    Phase.RESTING: "resting",
    Phase.OUTSIDE: "outside",
}  # over columns
WAYS = {
    Way.DRAFT: "parts of work, by drafts",
    Way.LOAN: "rows lent",
    Way.STEAL: "tasks stolen",
    Way.GIFT: "rows given away",
}


class Headline(NamedTuple):
    """A run in some numbers."""

    seconds: float  # from the first record's begin to the last one's end
    inside_s: float  # the longest time that a rank spent in lb_mpi
    bound_s: float  # the least time for this work on this hardware
    ratio: float  # inside_s / bound_s; NaN when nothing was done
    parallel: float  # parallel efficiency
    balance: float  # load balance
    communication: float  # communication efficiency
    words: str  # what cost most


def headline(run: Run) -> Headline:
    """Sum a run up."""
    totals = run.totals
    inside = totals.sum(axis=1) - totals[:, Phase.OUTSIDE]
    useful = totals[:, list(USEFUL)].sum(axis=1)
    inside_s, bound_s = float(inside.max()), lower_bound(run)
    mean, most = float(useful.mean()), float(useful.max())
    return Headline(
        seconds=run.seconds,
        inside_s=inside_s,
        bound_s=bound_s,
        ratio=_part(inside_s, bound_s),
        parallel=_part(mean, inside_s),
        balance=_part(mean, most),
        communication=_part(most, inside_s),
        words=_words(run, totals, inside),
    )


def lower_bound(run: Run) -> float:
    """Seconds that the work of all calls takes at least, on all ranks together, by their speeds."""
    work = speed = 0.0
    tables = steps(run)
    if len(tables[0]):
        useful = np.array([table["useful_s"] for table in tables], dtype=np.float64)
        speeds = np.array([table["speed"] for table in tables], dtype=np.float64)
        return float(((useful * speeds).sum(axis=0) / speeds.sum(axis=0)).sum())
    for one in run.ranks:  # not the same calls: all in one
        useful, speeds = one.steps["useful_s"].astype(float), one.steps["speed"].astype(float)
        work += float((useful * speeds).sum())
        speed += float(speeds.mean()) if len(speeds) else 1.0
    return work / speed if speed else 0.0


def _words(run: Run, totals: Floats, inside: Floats) -> str:
    whole = float(inside.sum())
    if not whole:
        return "Nothing was done in lb_mpi."
    lost = {phase: float(totals[:, phase].sum()) / whole for phase in (Phase.WAITING, Phase.PROTOCOL, Phase.PACKING)}
    phase = max(lost, key=lambda one: lost[one])
    work_s = float(totals[:, list(USEFUL)].sum())
    away = (work_s - sum(float(one.steps["useful_s"].sum()) for one in run.ranks)) / whole
    covered = np.array([float((one.steps["ended"] - one.steps["began"]).sum()) for one in run.ranks])
    # Of calls that have not ended, and of submitted tasks, the useful time isn't known.
    if away > max(2.0 * lost[phase], 0.1) and (covered >= 0.9 * inside).all():
        return (
            f"What cost most: for {away:.1%} of all ranks' time a rank was at work and had no core, as with more ranks than "
            "cores, or on a busy machine."
        )
    share = totals[:, phase] / np.where(inside > 0.0, inside, 1.0)
    rank = run.ranks[int(share.argmax())].about
    where = f", most on rank {rank.rank} ({rank.host}): {share.max():.0%} of its time" if len(run.ranks) > 1 else ""
    return f"What cost most: {NAMES[phase]}, {lost[phase]:.1%} of all ranks' time{where}."


def _part(one: float, whole: float) -> float:
    return one / whole if whole else float("nan")


def matrix(run: Run, way: Way) -> Floats:
    """(size, size) what has moved: from the row's rank to the column's, in parts, rows or tasks."""
    moved = np.zeros((run.size, run.size))
    for one in run.ranks:
        flows = one.flows[(one.flows["way"] == way) & (one.flows["other"] >= 0) & (one.flows["other"] < run.size)]
        gives = way in (Way.LOAN, Way.GIFT)
        others = flows["other"]
        if gives:
            np.add.at(moved[one.about.rank], others, flows["amount"])
        else:
            np.add.at(moved[:, one.about.rank], others, flows["amount"])
    return moved


class Drafts(NamedTuple):
    """What came of all drafts."""

    n: int  # drafts
    nobody: int  # for which nobody volunteered
    nothing: int  # whose volunteer had nothing left
    work: int  # that brought work
    median_s: float  # from a draft that brought work to the work; of those kept, NaN: there was none
    bytes: float  # that came


def drafts(run: Run) -> Drafts | None:
    """Sum up all drafts; None when there was none."""
    flows = np.concatenate([one.flows for one in run.ranks] or [np.zeros(0, FLOW)])
    flows = flows[flows["way"] == Way.DRAFT]
    if not len(flows):
        return None
    n, work, nobody = flows["n"].sum(), flows["amount"].sum(), flows["n"][flows["other"] < 0].sum()
    moves = np.concatenate([one.moves for one in run.ranks])
    brought = moves[(moves["way"] == Way.DRAFT) & (moves["amount"] > 0.0)]
    median = float(np.median(brought["ended"] - brought["began"])) if len(brought) else float("nan")
    return Drafts(int(n), int(nobody), int(n - nobody - work), int(work), median, float(flows["bytes"].sum()))
