"""What is recorded of a run: phases of a rank, calls of a driver, work that moved between ranks, and saves.   (pure)

Times are seconds of the rank's own `perf_counter`; ranks are those of MPI's COMM_WORLD.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Phase(IntEnum):
    """What a rank does.  It is in one phase at each time."""

    OWN = 0  # computes its own work: rows at home, tasks that it was dealt, what it has of a tree
    FOREIGN = 1  # computes for others: rows lent to it, tasks that it has stolen
    PROTOCOL = 2  # serves messages, decides
    PACKING = 3  # copies rows and results to and from messages
    WAITING = 4  # has nothing to do, or waits for others
    RESTING = 5  # rests, since it emulates a slow machine
    OUTSIDE = 6  # runs the user's program, outside of lb_mpi


class Driver(IntEnum):
    """What a step is a call of."""

    SEARCH = 0  # lb_mpi.search
    ROWS = 1  # Balancer.map_blocks
    MIGRATE = 2  # Balancer.migrate
    TASKS = 3  # a map of lb_mpi.Pool
    EXCHANGE = 4  # all exchanges of the plan that lb_mpi.distribute makes, with what is computed between them


class Way(IntEnum):
    """How work moves between ranks."""

    DRAFT = 0  # asked for on the ring; of what came of it, the drafter keeps the record
    LOAN = 1  # rows lent, and their results back; the lender keeps the record
    STEAL = 2  # tasks taken; the thief keeps the record
    GIFT = 3  # rows given away for good; the giver keeps the record


class Event(IntEnum):
    """What happens to a whole rank at some time."""

    SAVE = 0  # its part of a save was written


class Step(NamedTuple):
    """One call of a driver on one rank; or some calls in a row, added up."""

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
    n: int = 1  # calls


class Move(NamedTuple):
    """Work that has moved, or was asked for."""

    way: int  # of Way
    other: int  # rank: the one that volunteered, borrowed, or was robbed; -1: nobody
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
    """How the clock of a rank went, held against that of another one."""

    at: float  # seconds, on this rank's clock
    reference: int  # the other rank
    offset_s: float  # to be added to this rank's times, to have the other's
    error_s: float  # at most: half a round trip


_STEP_KINDS = {"driver": "u1", "acted": "<u4", "reason": "<i2", "n": "<u4", "began": "<f8", "ended": "<f8"}
_MARK_KINDS = {"event": "u1", "number": "<i8"}
_MOVE_KINDS = {"way": "u1", "other": "<i4", "amount": "<f4", "bytes": "<f4"}
STEP = np.dtype([(name, _STEP_KINDS.get(name, "<f4")) for name in Step._fields])
MOVE = np.dtype([(name, _MOVE_KINDS.get(name, "<f8")) for name in Move._fields])
MARK = np.dtype([(name, _MARK_KINDS.get(name, "<f8")) for name in Mark._fields])
FLOW = np.dtype([("way", "u1"), ("other", "<i4"), ("n", "<f8"), ("amount", "<f8"), ("bytes", "<f8")])
