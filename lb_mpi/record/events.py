"""The events that are recorded: phases of a rank, calls of a driver, work that moved between ranks.   (pure)

Times are seconds of the rank's own `perf_counter`; ranks are those of MPI's COMM_WORLD.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Phase(IntEnum):
    """The activity of a rank.  It is in exactly one phase at each time."""

    OWN = 0  # computes its own work: rows that it owns, tasks that it was dealt, its work of a tree
    FOREIGN = 1  # computes for others: rows lent to it, tasks it has stolen
    PROTOCOL = 2  # processes messages, decides
    PACKING = 3  # copies rows and results to and from messages
    WAITING = 4  # has nothing to do, or waits for others
    RESTING = 5  # rests, to emulate a slow machine
    OUTSIDE = 6  # runs the user's program, outside of lb_mpi


class Driver(IntEnum):
    """The driver to which a step belongs."""

    SEARCH = 0  # lb_mpi.search
    ROWS = 1  # Balancer.map_rows
    MIGRATE = 2  # Balancer.migrate
    TASKS = 3  # a map of lb_mpi.Pool
    EXCHANGE = 4  # exchanges of a plan from lb_mpi.distribute, with the computation between them
    REBALANCE = 5  # HaloPlan.rebalance, if vertices have moved


class Way(IntEnum):
    """The ways in which work moves between ranks."""

    DRAFT = 0  # on request; recorded by the rank that asked
    LOAN = 1  # rows lent; recorded by the lender
    STEAL = 2  # tasks taken; recorded by the thief
    MOVE = 3  # vertices given away for good; recorded by the rank that gave them


class Step(NamedTuple):
    """The work of a rank in one call of a driver, or in consecutive calls combined by `merged`."""

    driver: int  # of Driver
    began: float  # seconds
    ended: float
    useful_s: float  # seconds in the user's function, at this rank's speed
    units: float  # work done here: units of work, rows, or tasks
    speed: float = 1.0  # of this rank, relative to the others
    before: float = math.nan  # imbalance with all rows on their owners; NaN: unknown
    after: float = math.nan  # actual imbalance
    moved: float = 0.0  # rows lent on all ranks; for other drivers, parts or steals received here
    acted: int = 0  # number of calls that changed the distribution
    reason: int = -1  # index of the reason's text; -1: none
    home: float = 0.0  # rows that this rank owns
    home_s: float = math.nan  # seconds that this rank would need for those alone; NaN: unknown
    busy_s: float = 0.0  # wall-clock seconds at work, including those without a core
    serving_s: float = 0.0  # seconds for messages and decisions
    asked: float = 0.0  # number of times this rank asked for work
    messages: float = 0.0  # number sent
    sent_bytes: float = 0.0
    between_s: float = 0.0  # seconds between the combined calls
    n: int = 1  # number of calls

    @property
    def seconds(self) -> float:
        """Seconds in the calls."""
        return self.ended - self.began - self.between_s


def merged(one: Step, other: Step) -> Step:
    """Combine consecutive calls: imbalance and speed are means; the reason is that of the last change, if any."""
    kept = one if one.acted and not other.acted else other
    return Step(
        one.driver, one.began, other.ended, one.useful_s + other.useful_s, one.units + other.units,
        _mean(one.speed, one.n, other.speed, other.n),
        _mean(one.before, one.n, other.before, other.n),
        _mean(one.after, one.n, other.after, other.n),
        one.moved + other.moved, one.acted + other.acted, kept.reason, other.home, one.home_s + other.home_s,
        one.busy_s + other.busy_s, one.serving_s + other.serving_s, one.asked + other.asked,
        one.messages + other.messages, one.sent_bytes + other.sent_bytes,
        one.between_s + other.began - one.ended + other.between_s, one.n + other.n,
    )  # fmt: skip


def _mean(a: float, n: int, b: float, m: int) -> float:
    """Return the mean of n and m calls; that of the others, if it is unknown for some."""
    if a != a or b != b:
        return b if a != a else a
    return (a * n + b * m) / (n + m)


class Clock(NamedTuple):
    """The clock of a rank relative to that of another one."""

    at: float  # seconds, on this rank's clock
    reference: int  # the other rank
    offset_s: float  # to be added to this rank's times for the other's
    error_s: float  # at most: half a round trip


class Progress(NamedTuple):
    """The progress of a program that counts its steps; times are by the rank's own clock."""

    began: float = 0.0  # when its first step was done
    first: int = 0  # steps done by then, including those of an earlier run
    at: float = 0.0  # when `done` was reported
    done: int = 0
    of: int = 0  # total steps; 0: unknown


_STEP_KINDS = {"driver": "u1", "acted": "<u4", "reason": "<i2", "n": "<u4", "began": "<f8", "ended": "<f8"}
STEP = np.dtype([(name, _STEP_KINDS.get(name, "<f4")) for name in Step._fields])
FLOW = np.dtype([("way", "u1"), ("other", "<i4"), ("amount", "<f8")])  # of Way; rank of the thief, victim, ...; sum
TASK = np.dtype([("first", "<u4"), ("n", "<u4"), ("seconds", "<f4")])  # position of the first, number, total seconds
