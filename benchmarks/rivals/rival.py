"""What all rivals have in common: one rank that the simulator of searches can drive in the place of a `Searcher`.   (pure)

All have the same end, Dijkstra and Scholten's tree and STOP down the binomial tree, which is ours.  It flatters CTWS and
A2WS: their own ends are made for tasks that make no tasks.  So the table compares how work is found, and nothing else.

A `Windowed` rank keeps a part of its work where others take it by one-sided operations, as CTWS and A2WS do by MPI's RMA.
Who takes it asks nobody: `OneSided`, the simulator with one-sided operations, serves them while their target computes.
A get is counted as two messages, there and back, and takes two latencies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import cast

from lb_mpi.searching import tree
from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.options import Options
from lb_mpi.searching.problem import Problem, shares
from lb_mpi.searching.reporting import ROOT
from lb_mpi.searching.scholten import Scholten
from lb_mpi.searching.searcher import Reason, Work
from lb_mpi.searching.simulate import Simulation

PARTS = 8  # equal parts, of which all but one lie in the window; a thief takes some of them


class Tally:
    """What the simulator's result says of a rank."""

    received = 0  # parts of work
    seq = 0  # requests for work


class Rival:
    """One rank; `ring` counts the ranks.  A rival says how it serves a message, and how it seeks work."""

    sharing = None  # of a bound: searches here count all nodes
    error: BaseException | None = None

    def __init__(
        self, rank: int, ring: Sequence[int], problem: Problem, options: Options, bound: None = None, saved: None = None
    ) -> None:
        """Begin with the whole problem on rank 0, and nothing on the others."""
        self.rank, self.size, self.problem, self.threshold = rank, len(ring), problem, options.threshold
        self.rng = random.Random(options.seed * 1_000_003 + rank)
        self.units = 0  # of work done so far
        self.reason: Reason | None = None
        self.drafting, self.termination = Tally(), Scholten(rank, self.size)
        self.kept: list[bytes] = []  # parts that came while there was work in hand
        self.load = 0.0  # in hand
        self.wake_at = math.inf
        self.begin()
        if rank == ROOT:
            problem.start()

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""

    def serve(self, message: Message, now: float) -> list[Send]:
        """Serve a message of the rival's own; work that arrives has been taken in already."""
        raise NotImplementedError

    def seek(self, now: float) -> list[Send]:
        """All messages are served: give work to who waits for it, look for some if there is none."""
        raise NotImplementedError

    @property
    def over(self) -> bool:
        """All ranks are done, and this one knows it."""
        return self.reason is not None

    @property
    def job(self) -> Work | None:
        """A quantum, if there is work in hand."""
        return Work() if self.load > 0.0 and not self.over else None

    @property
    def holds_work(self) -> bool:
        """There is work here, in hand or elsewhere."""
        return self.load > 0.0

    def turn(self, now: float, arrived: Iterable[tuple[int, Message]]) -> list[Send]:
        """Serve what has arrived, seek work, see whether it is the end; what is to be sent, in order."""
        sends: list[Send] = []
        self.wake_at = math.inf
        if self.over:
            return []
        for _, message in arrived:
            if message.kind is Kind.STOP:
                return self._stop()
            if message.kind is Kind.ACK:
                self.termination.acknowledged()
                continue
            if message.kind is Kind.WORK:
                sends += self.termination.received(message.source)
                self.drafting.received += 1
                self.kept.append(message.payload)
            sends += self.serve(message, now)
        self.refill()
        sends += self.seek(now)
        self.refill()
        sends += self.termination.settle(self.holds_work)
        return sends + self._stop() if self.termination.over else sends

    def done(self, _job: Work, units: int) -> list[Send]:
        """So many units of work were done."""
        self.units += units
        return []

    def fail(self, error: BaseException) -> list[Send]:
        """A tree raises nothing."""
        raise error

    def refill(self) -> None:
        """Take a part that is kept in hand, if there is nothing else, and value it."""
        self.load = self.problem.load()
        while self.kept and not self.load > 0.0:
            self.problem.absorb(self.kept.pop(0))
            self.load = self.problem.load()

    def give(self, to: int, part: bytes, seq: int = 0) -> Send:
        """Make the message that brings another rank a part of the work."""
        self.termination.sent()
        return to, Message(Kind.WORK, self.rank, seq, payload=part)

    def _stop(self) -> list[Send]:
        self.reason = Reason.EXHAUSTED
        return [(rank, Message(Kind.STOP, ROOT)) for rank in tree.children(self.rank, self.size)]


class Windowed(Rival):
    """A rank whose window others take work from, without asking it.

    After each quantum it puts new parts there, if the window is empty and there is enough in hand; when it has nothing in
    hand it takes them back, one by one.
    """

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        self.window: list[bytes] = []
        self.asked: int | None = None  # the rank that this one is taking work from

    @property
    def holds_work(self) -> bool:
        """There is work in hand or in the window."""
        return self.load > 0.0 or bool(self.window)

    @property
    def waiting(self) -> float:
        """What is in hand and in the window, about: its parts were as large as what was in hand when they were made."""
        return self.load * (1 + len(self.window))

    def refill(self) -> None:
        """As any rank; then from the window, and into it."""
        super().refill()
        while self.window and not self.load > 0.0:
            self.kept.append(self.window.pop())
            super().refill()
        if not self.window and self.load > self.threshold:
            self.window = shares(self.problem, [1] * PARTS)
            self.load = self.problem.load()

    def touch(self, message: Message, now: float) -> list[Send]:
        """A one-sided operation of another rank: it takes parts of the window, and hears how much there was."""
        n = self.taken_by(message)
        parts, self.window = self.window[:n], self.window[n:]
        if not parts:
            return [(message.source, Message(Kind.REJECT, self.rank))]
        return [self.give(message.source, b"".join(parts))]  # nodes: as many parts as there are make one

    def taken_by(self, message: Message) -> int:
        """How many parts of the window a thief takes: half of them, rounded up."""
        return (len(self.window) + 1) // 2

    def take(self, victim: int, load: float = 0.0) -> list[Send]:
        """Begin to take work from a victim's window."""
        self.drafting.seq += 1
        self.asked = victim
        return [(victim, Message(Kind.DRAFTING, self.rank, self.drafting.seq, load=load))]


class OneSided(Simulation):
    """The simulator, where requests for a `Windowed` rank's work, and news for it, don't wait for the end of its quantum."""

    def arrive(self, rank: int, number: int) -> bool:
        """A message has arrived; True when something was done about it."""
        message = self.under_way[number][2]
        if not self.is_busy(rank) or message.kind not in (Kind.DRAFTING, Kind.REPORT):
            return super().arrive(rank, number)
        del self.under_way[number]
        for to, reply in cast(Windowed, self.searchers[rank]).touch(message, self.now):
            self.post(rank, to, reply)
        return True
