"""The events that are recorded: phases of a rank, calls of a driver, work that moved between ranks, saves.   (pure)

Times are seconds of the rank's own `perf_counter`; ranks are those of MPI's COMM_WORLD.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class Phase(IntEnum):
    """The occupation of a rank.  It is in one phase at each time."""

    OWN = 0  # computes its own work: rows at home, tasks that it was dealt, what it has of a tree
    FOREIGN = 1  # computes for others: rows lent to it, tasks that it has stolen
    PROTOCOL = 2  # serves messages, decides
    PACKING = 3  # copies rows and results to and from messages
    WAITING = 4  # has nothing to do, or waits for others
    RESTING = 5  # rests, since it emulates a slow machine
    OUTSIDE = 6  # runs the user's program, outside of lb_mpi


class Driver(IntEnum):
    """The driver that a step is a call of."""

    SEARCH = 0  # lb_mpi.search
    ROWS = 1  # Balancer.map_rows
    MIGRATE = 2  # Balancer.migrate
    TASKS = 3  # a map of lb_mpi.Pool
    EXCHANGE = 4  # all exchanges of the plan that lb_mpi.distribute makes, with what is computed between them


class Way(IntEnum):
    """The ways in which work moves between ranks."""

    DRAFT = 0  # asked for; the rank that asked records what came of it
    LOAN = 1  # rows lent, and their results back; the lender records it
    STEAL = 2  # tasks taken; the thief records it
    GIFT = 3  # rows given away for good; the giver records it


class Event(IntEnum):
    """An event of a whole rank at some time."""

    SAVE = 0  # its part of a save was written


class Step(NamedTuple):
    """The work of a rank in one call of a driver; or in several calls in a row, added up by `merged`."""

    driver: int  # of Driver
    began: float  # seconds
    ended: float
    useful_s: float  # seconds in the user's function, at this rank's speed
    units: float  # done here: units of work, rows, or tasks
    speed: float = 1.0  # of this rank, relative to the others
    before: float = math.nan  # imbalance with all rows at home; NaN: not known
    after: float = math.nan  # imbalance as it was
    moved: float = 0.0  # rows lent on all ranks; elsewhere, parts and steals that came here
    acted: int = 0  # calls in which the distribution was changed
    reason: int = -1  # index of the reason in words; -1: none
    home: float = 0.0  # rows that belong to this rank
    home_s: float = math.nan  # seconds that this rank would need for them alone; NaN: not known
    busy_s: float = 0.0  # wall-clock seconds at work, those without a core included
    serving_s: float = 0.0  # seconds for messages and decisions
    asked: float = 0.0  # times that this rank asked for work
    messages: float = 0.0  # that it sent
    sent_bytes: float = 0.0
    between_s: float = 0.0  # seconds between the calls that are added up
    n: int = 1  # calls

    @property
    def seconds(self) -> float:
        """Seconds in the calls."""
        return self.ended - self.began - self.between_s


_SUMS = ("useful_s", "units", "moved", "acted", "home_s", "busy_s", "serving_s", "asked", "messages", "sent_bytes", "n")
_MEANS = ("before", "after", "speed")


def merged(one: Step, other: Step) -> Step:
    """Add up calls in a row; imbalance and speed are means, the reason is that of the last change, if any."""
    kept = one if one.acted and not other.acted else other
    found: dict[str, Any] = {name: getattr(one, name) + getattr(other, name) for name in _SUMS}
    found |= {name: _mean(one, other, name) for name in _MEANS}
    between_s = one.between_s + other.began - one.ended + other.between_s
    return one._replace(ended=other.ended, home=other.home, reason=kept.reason, between_s=between_s, **found)


def _mean(one: Step, other: Step, name: str) -> float:
    a, b = getattr(one, name), getattr(other, name)
    if math.isnan(a) or math.isnan(b):
        return float(b if math.isnan(a) else a)
    return float((a * one.n + b * other.n) / (one.n + other.n))


class Move(NamedTuple):
    """Work that has moved, or was asked for."""

    way: int  # of Way
    other: int  # rank: the one that volunteered, borrowed, or was robbed; -1: none
    began: float  # seconds: drafted, lent, taken
    ended: float  # seconds: answered, given back; NaN: not yet
    amount: float  # parts, rows, or tasks; 0: nothing came of it
    bytes: float  # of the part or the rows; 0 where the tasks stay where they are


class Mark(NamedTuple):
    """An event on the line of a rank."""

    event: int  # of Event
    began: float  # seconds
    ended: float
    number: int  # of the save


class Clock(NamedTuple):
    """The clock of a rank against that of another one."""

    at: float  # seconds, on this rank's clock
    reference: int  # the other rank
    offset_s: float  # added to this rank's times, gives the other's
    error_s: float  # at most: half a round trip


class Progress(NamedTuple):
    """The progress of a program that counts its steps; times are the rank's own."""

    began: float = 0.0  # when it had done its first one
    first: int = 0  # steps that were done by then, as by an earlier run
    at: float = 0.0  # when `done` was reported
    done: int = 0
    of: int = 0  # 0: not known


_STEP_KINDS = {"driver": "u1", "acted": "<u4", "reason": "<i2", "n": "<u4", "began": "<f8", "ended": "<f8"}
_MARK_KINDS = {"event": "u1", "number": "<i8"}
_MOVE_KINDS = {"way": "u1", "other": "<i4", "amount": "<f4", "bytes": "<f4"}
STEP = np.dtype([(name, _STEP_KINDS.get(name, "<f4")) for name in Step._fields])
MOVE = np.dtype([(name, _MOVE_KINDS.get(name, "<f8")) for name in Move._fields])
MARK = np.dtype([(name, _MARK_KINDS.get(name, "<f8")) for name in Mark._fields])
FLOW = np.dtype([("way", "u1"), ("other", "<i4"), ("n", "<f8"), ("amount", "<f8"), ("bytes", "<f8")])
TASK = np.dtype([("first", "<u4"), ("n", "<u4"), ("seconds", "<f4")])  # position of the first task, how many, in all
