"""One rank of a search: its problem, the drafting protocol and the termination token, turn by turn.   (pure)

The caller's loop, on real MPI (`lb_mpi.mpi.search`) and in the simulator (`lb_mpi.searching.simulate`), is

    while not searcher.over:
        for destination, message in searcher.turn(now, messages that have arrived):
            send message to destination, without blocking
        if searcher.working:
            problem.work(units)                 # one work quantum; messages are served only between two of them
        else:
            wait for a message, or until searcher.wake_at

Everything that the order of these things matters for stands in `turn`.

A search ends for one of three reasons: all work is done (found out by Safra's token), an answer was found, or a rank has
failed.  The rank that knows tells rank 0 (FINISH), and rank 0 tells all (STOP): the first reason wins.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.searching.drafting import Drafting, Kind, Message, Pause, Send
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.termination import Termination, Token

ROOT = 0


class Reason(IntEnum):
    """Why a search is over."""

    EXHAUSTED = 0
    FOUND = 1
    FAILED = 2


class Report(NamedTuple):
    """What a rank says of itself while it works."""

    units: int  # units of work done so far
    load: float  # problem.load()
    balances: int  # parts of work received


class Options(NamedTuple):
    """What can be set about a search; times in seconds, loads in the unit of `problem.load()`."""

    threshold: float = 0.125  # J of the paper: only a load above it is split
    pause: tuple[float, float] = (1e-4, 1e-2)  # shortest and longest pause before drafting again
    balance: bool = True  # False: each rank is dealt one share, nothing moves afterwards
    seed: int = 0  # of the jitter of the pauses
    report_every: float = math.inf  # seconds between two REPORTs to rank 0

    def check(self) -> None:
        """ValueError with name, value and expectation."""
        if not (math.isfinite(self.threshold) and self.threshold >= 0):
            raise ValueError(f"threshold (J) = {self.threshold!r}: expected a finite number >= 0")
        shortest, longest = self.pause
        if not (0 < shortest <= longest < math.inf):
            raise ValueError(f"pause = {self.pause!r} s: expected 0 < shortest <= longest, both finite")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed!r}: expected an integer >= 0")
        if not self.report_every > 0:
            raise ValueError(f"report_every = {self.report_every!r} s: expected a number > 0")


class Searcher:
    """One rank of the search; `ring` is the order of all ranks on the ring (see `lb_mpi.graph.ring_order`)."""

    def __init__(self, rank: int, ring: Sequence[int], problem: Problem, options: Options) -> None:
        rng = random.Random(options.seed * 1_000_003 + rank)
        self.rank, self.size, self.problem, self.options = rank, len(ring), problem, options
        self.successor = ring[(ring.index(rank) + 1) % len(ring)]
        self.drafting = Drafting(
            rank,
            self.successor,
            problem,
            threshold=options.threshold,
            pause=Pause(*options.pause, rng),
            once=not options.balance,
        )
        self.termination = Termination(initiator=rank == ROOT, alone=self.size == 1, pause=Pause(*options.pause, rng))
        self.units = 0  # work done so far; the driver adds what problem.work() returned
        self.reason: Reason | None = None  # why the search is over; None while it is not
        self.culprit = ROOT  # the rank that the reason comes from
        self.reports: dict[int, Report] = {}  # on rank 0: what the others said last
        self._told = False
        self._report_at = options.report_every
        if rank == ROOT:
            problem.start()
            self.drafting.start()

    @property
    def over(self) -> bool:
        """Nothing more will be sent; what still arrives is to be dropped."""
        return self.reason is not None

    @property
    def working(self) -> bool:
        """There was work in hand after the last turn: do a quantum of it before the next one."""
        return not self.over and not self._told and self.drafting.load > 0.0

    @property
    def wake_at(self) -> float:
        """When a rank that is not `working` has something to do even if no message arrives (inf: never)."""
        at = math.inf
        if self.over or self._told:
            return at
        if self.drafting.state is self.drafting.state.IDLE and self.drafting.may_draft:
            at = self.drafting.not_before
        if self.termination.token is not None:
            at = min(at, self.termination.not_before)
        return min(at, self._report_at)

    def turn(self, now: float, arrived: Iterable[Message]) -> list[Send]:
        """Serve what has arrived, in order, then see what is to be done; returns what is to be sent, in order."""
        sends: list[Send] = []
        for message in arrived:
            if self.over:
                break
            sends += self._receive(message, now)
        if self.over or self._told:
            return sends
        if self.problem.found:
            return sends + self._finish(Reason.FOUND)
        for send in self.drafting.settle(now):
            if send[1].kind is Kind.WORK:
                self.termination.sent()
            sends.append(send)
        token = self.termination.settle(self.drafting.load > 0.0, now)
        if token is not None:
            sends.append((self.successor, Message(Kind.TOKEN, self.rank, token.total, int(token.black))))
        if self.termination.over:
            return sends + self._finish(Reason.EXHAUSTED)
        if now >= self._report_at:
            self._report_at = now + self.options.report_every
            sends += self._report()
        return sends

    def fail(self) -> list[Send]:
        """The user's problem has raised here: end the search everywhere.  The rank does no more work."""
        return [] if self.over or self._told else self._finish(Reason.FAILED)

    def _receive(self, message: Message, now: float) -> list[Send]:
        kind = message.kind
        if kind is Kind.STOP:
            self.reason, self.culprit = Reason(message.pid), message.source
            return []
        if kind is Kind.FINISH:
            return self._stop(Reason(message.pid), message.source)
        if kind is Kind.REPORT:
            self.reports[message.source] = Report(message.seq, message.load, message.pid)
            return []
        if self._told:  # the end is on its way: STOP is all that matters now
            return []
        if kind is Kind.TOKEN:
            self.termination.arrive(Token(message.seq, bool(message.pid)), now)
            return []
        if kind is Kind.WORK:
            self.termination.received()
        return self.drafting.receive(message, now)

    def _finish(self, reason: Reason) -> list[Send]:
        self._told = True
        if self.rank == ROOT:
            return self._stop(reason, ROOT)
        return [(ROOT, Message(Kind.FINISH, self.rank, pid=reason))]

    def _stop(self, reason: Reason, culprit: int) -> list[Send]:
        if self.rank != ROOT:
            raise ProtocolError(f"rank {self.rank} was told to end the search: only rank {ROOT} is")
        self.reason, self.culprit = reason, culprit
        return [(rank, Message(Kind.STOP, culprit, pid=reason)) for rank in range(self.size) if rank != ROOT]

    def _report(self) -> list[Send]:
        report = Report(self.units, self.drafting.load, self.drafting.received)
        if self.rank == ROOT:
            self.reports[ROOT] = report
            return []
        return [(ROOT, Message(Kind.REPORT, self.rank, report.units, report.balances, report.load))]
