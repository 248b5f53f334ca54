"""The MPI carrier: the only loop in which a rank of any protocol takes turns, works, rests and sleeps.

    class Round(Part): ...                      # in a driver: one rank of its protocol, on MPI
    with call("lb_mpi.f") as interrupts:
        carry(Round(...), presence, record, slow, interrupts)

It is the loop of `lb_mpi.virtual`, plus what only real ranks need: it answers other ranks' questions, detects failed
ranks, holds Ctrl-C back, and emulates a slow rank.
"""

from __future__ import annotations

import math
import os
import time
from enum import IntEnum

from lb_mpi import signs
from lb_mpi.emulate import throttle
from lb_mpi.mpi.common.presence import FAILED_AFTER_S, Presence
from lb_mpi.mpi.common.waiting import Interrupts, Nap
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Record


class Spent(IntEnum):
    """The use of a rank's time between two turns."""

    WAITING = 0
    WORKING = 1  # on a job, with all overhead
    RESTING = 2  # as an emulated slow rank


class Part:
    """One rank of a protocol on MPI: an actor whose messages are parcels, and whose jobs call the user's functions."""

    @property
    def over(self) -> bool:
        """True when the loop is to end; checked after each turn."""
        raise NotImplementedError

    @property
    def wake_at(self) -> float:
        """The time, by time.perf_counter(), at which a turn is due even if no message arrives; inf: never."""
        return math.inf

    def turn(self, now: float) -> bool:
        """Process arrivals, and send what is due; True if there was anything."""
        raise NotImplementedError

    def work(self, interrupts: Interrupts) -> bool:
        """Do one job; False if there is none."""
        raise NotImplementedError

    def look(self, presence: Presence, waited_s: float) -> None:
        """Answer questions, ask for late ranks, and raise lb_mpi.Error when another rank has failed."""
        presence.look(waited_s)
        if waited_s > FAILED_AFTER_S:
            presence.raise_failure()

    def interrupted(self, interrupts: Interrupts, _waited_s: float) -> None:
        """Handle Ctrl-C."""
        interrupts.check()

    def spent(self, how: Spent, seconds: float) -> None:
        """Account for the time since the last turn."""


def carry(
    part: Part, presence: Presence, record: Record, slow: throttle, interrupts: Interrupts, *, quick_s: float = 0.0
) -> None:
    """Run the loop until the part is over; `slow` emulates a slow rank.

    A waiting rank yields its core for `quick_s`, and then takes naps.
    """
    nap, how, idle_since = Nap(), Spent.WAITING, 0.0
    before = time.perf_counter()
    while True:
        now = time.perf_counter()
        part.spent(how, now - before)
        before = now
        record.enter(Phase.PROTOCOL, now)
        if active := part.turn(now):
            idle_since = 0.0
            nap.reset()
        waited_s = now - idle_since if idle_since else 0.0
        signs.turn()
        part.look(presence, waited_s)
        if interrupts.pending:
            part.interrupted(interrupts, waited_s)
        if part.over:
            return
        if rest_s := slow.due():
            how, idle_since = Spent.RESTING, 0.0
            record.enter(Phase.RESTING, time.perf_counter())
            time.sleep(rest_s)  # in slices: an emulated slow rank still handles messages
            continue
        if part.work(interrupts):
            how, idle_since = Spent.WORKING, 0.0
            nap.reset()
        elif active:
            how = Spent.WORKING
        else:
            how = Spent.WAITING
            asleep = time.perf_counter()
            record.enter(Phase.WAITING, asleep)
            idle_since = idle_since or asleep
            if asleep < idle_since + quick_s:
                os.sched_yield()
            else:
                nap.take(part.wake_at - asleep)
