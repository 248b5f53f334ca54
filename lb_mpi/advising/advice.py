"""What advice is made of, whatever the driver.   (pure)

Law.  A prediction comes from the recorded work and the objects that run on MPI.  What was measured stands beside what the
same model says of the very run that was recorded: who doesn't believe the one need not believe the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.recording.events import Driver
from lb_mpi.recording.record import Table
from lb_mpi.recording.run import Run
from lb_mpi.recording.store import Stored

Floats = NDArray[np.float64]
SEEDS = 3  # that a prediction is made with
Progress = Callable[[str], object]


class Line(NamedTuple):
    """One way to run the program."""

    what: str
    predicted_s: float  # NaN: can't be told from this record
    spread_s: float = 0.0  # from the least to the greatest of what was predicted
    measured_s: float = math.nan  # NaN: was not run
    change: str = ""  # the lines to change; "": none, or there are none to show


class Advice(NamedTuple):
    """All that is known of one driver's part of the run."""

    driver: str  # "map_blocks", "search", "pool", "exchange", "profile"
    lines: list[Line]  # the first is the run as it was
    notes: list[str]  # how sure that is, in words


class Change(NamedTuple):
    """Another machine: the ranks that are left, and how fast each of them is relative to what it was."""

    what: str
    ranks: list[int]
    factors: list[float]  # beside `ranks`
    words: str  # what to do


def ranked(run: Run) -> list[Stored]:
    """Records in the order of the ranks; ValueError when one is missing."""
    if len(run.ranks) < run.size:
        raise ValueError(
            f"records of {len(run.ranks)} of {run.size} ranks: expected all of them, to play the run again"
        )
    return sorted(run.ranks, key=lambda one: one.about.rank)


def calls(ranks: Sequence[Stored], driver: Driver) -> list[Table]:
    """The steps of one driver on each rank; empty tables unless all ranks have as many."""
    tables = [one.steps[one.steps["driver"] == driver] for one in ranks]
    alike = len({len(table) for table in tables}) == 1
    return tables if alike else [table[:0] for table in tables]


def settings(ranks: Sequence[Stored], driver: str) -> dict[str, object]:
    """How a driver was called, as the first rank that knows it has told."""
    return next((dict(one.known.settings[driver]) for one in ranks if driver in one.known.settings), {})


def machines(ranks: Sequence[Stored], speeds: Floats) -> list[Change]:
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
        Change(f"without {kind}{slowest}", left, [1.0] * len(left), f"start {len(left)} ranks, none there"),
        Change(f"{kind}{slowest} twice as fast", list(range(len(ranks))), faster, "another machine"),
    ]


def over_seeds(predict: Callable[[int], float]) -> tuple[float, float]:
    """(median, greatest - least) of what is predicted with each seed."""
    found = [predict(seed) for seed in range(SEEDS)]
    return statistics.median(found), max(found) - min(found)
