"""The parts of advice that all drivers share.   (pure)

Law.  A prediction comes from the recorded work and the objects that run on MPI.  The first line of each driver is what the
model says of the recorded run itself, beside what was measured: the other lines are no better than that one.  What the
recorded run needed beyond that (messages, steps that were uneven by chance) is added to each other line that could be run,
whatever it is: it is the best guess for the same machine, and on a quiet one it is small.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.record.events import Driver
from lb_mpi.record.record import Rows, Stored
from lb_mpi.report.run import USEFUL, Run

Floats = NDArray[np.float64]
SEEDS = 3  # that a prediction is made with
BUSY = 0.9  # ranks at work with less of a core than that are on a busy machine
Progress = Callable[[str], object]


class Prediction(NamedTuple):
    """One way to run the program."""

    what: str
    predicted_s: float  # NaN: can't be told from this record
    spread_s: float = 0.0  # from the least to the greatest of what was predicted
    measured_s: float = math.nan  # NaN: was not run
    change: str = ""  # the lines to change; "": none, or there are none to show
    elsewhere: bool = False  # on another machine, or at no cost: nothing that can be changed in the program


class Advice(NamedTuple):
    """All that is known of one driver's part of the run."""

    driver: str  # "map_rows", "search", "pool", "exchange", "profile"
    lines: list[Prediction]  # the first is the run as it was
    notes: list[str]  # how sure that is, in words
    busy: bool = False  # ranks had to wait for cores
    talk_s: float = 0.0  # of messages between ranks, in the run as it was


class OtherMachine(NamedTuple):
    """Another machine: the ranks that are left, and how fast each of them is relative to what it was."""

    what: str
    ranks: list[int]
    factors: list[float]  # beside `ranks`
    words: str  # what to do


def ranked(run: Run) -> list[Stored]:
    """Records in the order of the ranks; ValueError when one is missing."""
    if len(run.ranks) < run.size:
        raise ValueError(
            f"records of {len(run.ranks)} of {run.size} ranks: expected all of them, to replay the run"
        )
    return sorted(run.ranks, key=lambda one: one.about.rank)


def calls(ranks: Sequence[Stored], driver: Driver) -> list[Rows]:
    """The steps of one driver on each rank, those that all ranks have ended; none where they were added up differently."""
    tables = [one.steps[one.steps["driver"] == driver] for one in ranks]
    n = min(map(len, tables))
    tables = [table[:n] for table in tables]
    alike = all((table["n"] == tables[0]["n"]).all() for table in tables)
    return tables if alike else [table[:0] for table in tables]


def took_s(tables: Sequence[Rows]) -> float:
    """Sum up the seconds of the calls: each from when its first rank began until the last one ended."""
    ended, began = (np.stack([table[name] for table in tables]) for name in ("ended", "began"))
    return float((ended.max(axis=0) - began.min(axis=0)).sum())


def settings(ranks: Sequence[Stored], driver: str) -> dict[str, object]:
    """Return the settings of a driver, from the first rank that has recorded them."""
    return next((dict(one.settings[driver]) for one in ranks if driver in one.settings), {})


class Worked:
    """The seconds that a rank was at work by a time, its rests as an emulated slow rank included; times are its own."""

    def __init__(self, one: Stored) -> None:
        self._ends = one.about.clock_s + one.width_s * np.arange(len(one.seconds) + 1)
        self._ends[-1] = max(float(self._ends[-2]), one.until)
        self._sums = np.concatenate([[0.0], np.cumsum(one.seconds[:, list(USEFUL)].sum(axis=1))])

    def between(self, begin: float, end: float) -> float:
        """Seconds at work between two times."""
        both = np.interp([begin, end], self._ends, self._sums)
        return float(both[1] - both[0])

    def within(self, steps: Rows) -> float:
        """Seconds at work in all these calls."""
        return sum(self.between(began, ended) for began, ended in steps[["began", "ended"]].tolist())


def core_share(ranks: Sequence[Stored], tables: Sequence[Rows], *, quiet: bool = False) -> Floats:
    """(P,) useful time / time at work in the calls: below 1 where a rank had to wait for a core; NaN: it did nothing.

    `quiet` : as if nobody had had to.
    """
    worked = np.array([Worked(one).within(table) for one, table in zip(ranks, tables, strict=True)])
    useful = np.array([float(table["useful_s"].sum()) for table in tables])
    busy = (worked > 0.0) & (useful > 0.0)
    share = np.ones(len(ranks)) if quiet else np.minimum(1.0, useful / np.where(busy, worked, 1.0))
    return np.where(busy, share, np.nan)


def beyond(measured_s: float, model_s: float, *, quiet: bool) -> float:
    """Seconds that the model does not know of; of a quiet machine nobody knows them."""
    return 0.0 if quiet or math.isnan(model_s) else max(0.0, measured_s - model_s)


def busy_notes(share: Floats) -> list[str]:
    """Say that ranks had to wait for cores, if they had."""
    least = float(np.nanmin(share, initial=1.0))
    if least >= BUSY:
        return []
    return [
        f"a rank at work had a core for only {least:.0%} of the time: the machine was busy, or has fewer cores than ranks; "
        "the predictions are for a machine as busy as it was then"
    ]


def machines(ranks: Sequence[Stored], speeds: Floats) -> list[OtherMachine]:
    """Machines to think about: without the slowest host (of one host: rank), and with that one twice as fast."""
    hosts: dict[str, list[int]] = {}
    for rank, one in enumerate(ranks):
        hosts.setdefault(one.about.host, []).append(rank)
    if len(hosts) == 1:
        hosts = {f"rank {rank}": [rank] for rank in range(len(ranks))}
        kind = ""
    else:
        kind = "host "
    if len(hosts) < 2:
        return []
    slowest = min(hosts, key=lambda host: float(speeds[hosts[host]].mean()))
    left = [rank for rank in range(len(ranks)) if rank not in hosts[slowest]]
    faster = [2.0 if rank in hosts[slowest] else 1.0 for rank in range(len(ranks))]
    return [
        OtherMachine(f"without {kind}{slowest}", left, [1.0] * len(left), f"start {len(left)} ranks, none there"),
        OtherMachine(f"{kind}{slowest} twice as fast", list(range(len(ranks))), faster, "another machine"),
    ]


TOO_FAR = 0.2  # a model that is off by more says nothing of other ways
WORTH = 0.03  # a way that is faster by less isn't named


def conclude(advice: Advice, *, quiet: bool = False) -> tuple[str, bool]:
    """Sum advice up in a line; and say whether its predictions mean anything."""
    first = advice.lines[0]
    measured_s = first.measured_s
    off = 0.0 if quiet or not measured_s else first.predicted_s / measured_s - 1.0
    if advice.talk_s > 0.5 * measured_s:
        return f"too small: exchanges dominate ({advice.talk_s / measured_s:.0%} of the time), whoever computes what", False
    if abs(off) > TOO_FAR:
        if advice.busy:
            why = "the machine was busy: record it again on a quiet one, or try --quiet-machine"
        elif off < 0.0:
            why = "either it is too small, so that messages and decisions dominate, or the machine was busy"
        else:
            why = "the work is not as the model expects"
        return f"no advice: the model {_off(off)}; {why}", False
    base_s = first.predicted_s if quiet else measured_s
    ways = [line for line in advice.lines[1:] if line.change and not line.elsewhere and not math.isnan(line.predicted_s)]
    best = min(ways, key=lambda line: line.predicted_s, default=first)
    if best.predicted_s < base_s - max(WORTH * base_s, best.spread_s + first.spread_s):
        return f"{best.what}: {base_s / best.predicted_s:.2f} times as fast as recorded ({best.change})", True
    without = next((line.predicted_s for line in ways if line.what in WITHOUT), math.nan)
    compared = f"; without balancing it would take {without / base_s:.2f} times as long" if without > base_s else ""
    return f"nothing to change: no other way is faster by more than the spread{compared}", True


WITHOUT = ("no balancing", "a fixed share each, by number", "equal blocks")


def collapsed(lines: Sequence[Prediction], *, quiet: bool = False) -> list[list[Prediction]]:
    """Group the ways to run the program: in a group, they differ from its first by less than the spread; the run as it was
    is one of the first group, and what can't be changed in the program is alone."""
    first, *others = lines
    base_s = first.predicted_s if quiet or math.isnan(first.measured_s) else first.measured_s
    groups = [[first]]
    ways = [line for line in others if line.change and not line.elsewhere and not math.isnan(line.predicted_s)]
    for line in sorted(ways, key=lambda line: line.predicted_s):
        for group in groups:
            of_s = base_s if group[0] is first else group[0].predicted_s
            if abs(line.predicted_s - of_s) <= max(0.01 * of_s, group[0].spread_s, line.spread_s):
                group.append(line)
                break
        else:
            groups.append([line])
    return groups + [[line] for line in others if line not in ways]


def _off(off: float) -> str:
    return f"{'over' if off > 0.0 else 'under'}estimates the recorded run by {abs(off):.1%}"


def model_note(predicted_s: float, measured_s: float, extra_s: float, *, quiet: bool = False) -> str:
    """Say how well the model knows the recorded run."""
    if quiet:
        return "as if each rank had a core whenever it worked, and messages needed no longer than in the model"
    off = predicted_s / measured_s - 1.0 if measured_s else 0.0
    added = f"; the missing {extra_s:.3f} s (messages, noise) are added to every prediction" if extra_s else ""
    return f"the model {_off(off)}{added}"


def over_seeds(predict: Callable[[int], float]) -> tuple[float, float]:
    """(median, greatest - least) of what is predicted with each seed."""
    found = [predict(seed) for seed in range(SEEDS)]
    return statistics.median(found), max(found) - min(found)
