"""The MPI carrier: the one loop in which a rank of any protocol takes turns, works, rests and sleeps.

    class Round(Part): ...                      # of a door: one rank of its protocol, on MPI
    carrier = Carrier(presence, record, slow)
    with call("lb_mpi.f") as interrupts:
        carrier.carry(Round(...), interrupts)

It is the loop of `lb_mpi.virtual`, with what only real ranks need beside it: to answer ranks that ask who is awaited, to
notice that another rank has failed, to hold Ctrl-C back, and to be as slow as an emulated rank is.
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

LONGEST_NAP_S = 0.5e-3


class Spent(IntEnum):
    """The work of a rank between two turns."""

    WAITING = 0
    WORKING = 1  # on a job, and all that belongs to it
    RESTING = 2  # as an emulated slow rank


class Part:
    """One rank of a protocol on MPI: an actor whose messages are parcels, and whose jobs call the user's functions."""

    @property
    def over(self) -> bool:
        """True when the loop is to end; looked at after each turn."""
        raise NotImplementedError

    @property
    def wake_at(self) -> float:
        """The time at which the next turn is due although no message arrives, of time.perf_counter(); inf: never."""
        return math.inf

    def turn(self, now: float) -> bool:
        """Take in what has arrived, and send what is to be sent; True when there was anything."""
        raise NotImplementedError

    def work(self, interrupts: Interrupts) -> bool:
        """Do one job; False when there is none."""
        raise NotImplementedError

    def look(self, presence: Presence, waited_s: float) -> None:
        """Answer who asks, ask who is awaited, and raise lb_mpi.Error when another rank has failed."""
        presence.look(waited_s)
        if waited_s > FAILED_AFTER_S:
            presence.raise_failure()

    def interrupted(self, interrupts: Interrupts, _waited_s: float) -> None:
        """Act on Ctrl-C."""
        interrupts.check()

    def spent(self, how: Spent, seconds: float) -> None:
        """Account for the time since the turn before."""

    def rests(self, *, begins: bool) -> None:
        """Note that a rest of an emulated slow rank begins, or has ended."""


class Carrier:
    """Carries parts of one door, one after the other; `slow` is how slow this rank is to be.

    A rank that waits yields its core for `quick_s`, and then naps, for `longest_nap_s` at most.
    """

    def __init__(
        self,
        presence: Presence,
        record: Record,
        slow: throttle,
        *,
        longest_nap_s: float = LONGEST_NAP_S,
        quick_s: float = 0.0,
    ) -> None:
        self.slow = slow
        self._presence, self._record = presence, record
        self._nap, self._quick_s = Nap(longest_nap_s), quick_s

    def carry(self, part: Part, interrupts: Interrupts) -> None:
        """Run the loop until the part is over."""
        record, nap, slow = self._record, self._nap, self.slow
        how, rests, idle_since = Spent.WAITING, False, 0.0
        before = time.perf_counter()
        nap.reset()
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
            part.look(self._presence, waited_s)
            if interrupts.pending:
                part.interrupted(interrupts, waited_s)
            if part.over:
                return
            if rest_s := slow.due():
                if not rests:
                    part.rests(begins=True)
                how, rests, idle_since = Spent.RESTING, True, 0.0
                record.enter(Phase.RESTING, time.perf_counter())
                time.sleep(rest_s)  # in slices: the emulated slow rank still serves its messages
                continue
            if rests:
                rests = False
                part.rests(begins=False)
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
                if asleep < idle_since + self._quick_s:
                    os.sched_yield()
                else:
                    nap.take(part.wake_at - asleep)
