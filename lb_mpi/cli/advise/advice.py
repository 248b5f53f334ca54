"""The parts of advice that all drivers share.   (pure)

Law.  A prediction comes from the recorded work and the objects that run on MPI.  The first line of each driver is the
model's prediction of the recorded run itself, beside the measured time; other lines are no more accurate than that.  The
time that the recorded run needed beyond the model (messages, random imbalance of steps) is added to every other line that
could be run: it is the best guess for the same machine, and small on a quiet one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lb_mpi.cli.report.run import Run, worked_s
from lb_mpi.graph import Floats
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


class Prediction(NamedTuple):
    """The predicted time of one way to run the program."""

    variant: Variant
    predicted_s: float
    spread_s: float  # from the smallest to the largest prediction


class Advice(NamedTuple):
    """All advice on one driver's part of the run."""

    of: Replayed
    lines: list[Prediction]  # the first is the recorded run
    notes: list[str]  # on its reliability, in words


def advise(replayed: Replayed, progress: Progress) -> Advice:
    """Predict all ways; if the model is too far off, only the recorded one and those without balancing."""
    lines: list[Prediction] = []
    extra_s = 0.0
    for variant in replayed.variants:
        if lines and variant.what not in WITHOUT and doubt(replayed, lines[0].predicted_s):
            continue
        progress(f"replaying {replayed.driver}: {variant.what}")
        predicted_s, spread_s = variant.predict()
        lines.append(Prediction(variant, predicted_s + extra_s, spread_s))
        if len(lines) == 1:
            extra_s = max(0.0, replayed.measured_s - predicted_s)
    notes, off = [*replayed.notes], lines[0].predicted_s / replayed.measured_s - 1.0 if replayed.measured_s else 0.0
    if abs(off) >= 0.0005:  # 0.0%
        added = f"; the missing {extra_s:.3f} s (messages, noise) is added to every prediction" if extra_s else ""
        notes.insert(0, f"the model {_off(off)}{added}")
    if (core := _core(replayed.core_share)) < BUSY:
        notes.append(
            f"a rank at work had a core for only {core:.0%} of the time: the machine was busy, or has fewer cores than "
            "ranks; the predictions apply to an equally busy machine"
        )
    return Advice(replayed, lines, notes)


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


def conclude(advice: Advice) -> tuple[str, bool]:
    """Summarise advice in a line; return also whether its predictions are meaningful."""
    first, measured_s = advice.lines[0], advice.of.measured_s
    if why := doubt(advice.of, first.predicted_s):
        return f"no advice: {why}", False
    variants = advice.lines[1:]
    best = min(variants, key=lambda line: line.predicted_s, default=first)
    if best.predicted_s < measured_s - max(LEAST_GAIN * measured_s, best.spread_s + first.spread_s):
        gained = f"{measured_s / best.predicted_s:.2f} times as fast as recorded"
        return f"{best.variant.what}: {gained} ({best.variant.change})", True
    without = next((line.predicted_s for line in variants if line.variant.what in WITHOUT), math.nan)
    compared = f"; without balancing it would take {without / measured_s:.2f} times as long" if without > measured_s else ""
    return f"nothing to change: no other variant is faster by more than the spread{compared}", True


def _off(off: float) -> str:
    return f"{'over' if off > 0.0 else 'under'}estimates the recorded run by {abs(off):.1%}"


def over_seeds(predict: Callable[[int], float]) -> tuple[float, float]:
    """Return (median, largest - smallest) of the predictions with all seeds."""
    found = [predict(seed) for seed in range(SEEDS)]
    return statistics.median(found), max(found) - min(found)
