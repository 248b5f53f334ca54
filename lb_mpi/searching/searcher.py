"""One rank of a search: its problem, the drafting protocol, the termination token, and the bound that is shared, turn by
turn.   (pure)

The caller's loop, on real MPI (`lb_mpi.mpi.search`) and in the simulator (`lb_mpi.searching.simulate`), is

    while not searcher.over:
        for destination, message in searcher.turn(now, messages that have arrived):
            send message to destination, without blocking
        if searcher.saving:
            for destination, message in searcher.save(store, now):
                send message to destination, without blocking
        elif searcher.working:
            searcher.work(units)                # one work quantum; messages are served only between two of them
        else:
            wait for a message, or until searcher.wake_at

Everything that the order of these things matters for stands in `turn`.

A search ends for one of four reasons: all work is done (found out by Safra's token), an answer was found, a rank has
failed, or it was asked to save and stop.  The rank that knows tells rank 0 (FINISH), and rank 0 tells all (STOP): the first
reason wins.

A search that is saved has a `cut` (see there), which pauses all ranks now and then.  While a rank is paused, it holds what
has arrived for the protocols, and serves it when it goes on; WORK is taken in at once, since it is to be saved.

Whatever the problem raises is kept in `error`, and never leaves `turn` and `work`: the message that it came with is lost,
but those behind it in the same batch are looked at, since the STOP that ends this rank may be one of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from lb_mpi.checks import number, seed, show
from lb_mpi.errors import ProtocolError
from lb_mpi.searching import cut
from lb_mpi.searching.bound import Bound, Sharing
from lb_mpi.searching.drafting import Drafting, Kind, Message, Pause, Send, Terms
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.saves import Saved, Saves, Store
from lb_mpi.searching.termination import Termination, Token

P = ParamSpec("P")
T = TypeVar("T")

ROOT = 0


class Reason(IntEnum):
    """Why a search is over."""

    EXHAUSTED = 0
    FOUND = 1
    FAILED = 2
    STOPPED = 3


class Report(NamedTuple):
    """What a rank says of itself while it works."""

    units: int  # units of work done so far
    load: float  # problem.load()
    balances: int  # parts of work received


class Options(NamedTuple):
    """What can be set about a search; times in seconds, loads in the unit of `problem.load()`."""

    threshold: float = 0.125  # J of the paper: only a load above it is split
    pause_s: tuple[float, float] = (1e-4, 1e-2)  # shortest and longest pause before drafting again
    balance: bool = True  # False: each rank is dealt one share, nothing moves afterwards
    seed: int = 0  # of the jitter of the pauses
    report_every_s: float = math.inf  # between two REPORTs to rank 0
    save_every_s: float | None = (
        None  # between two saves; inf: only when asked; None: never, and nothing is prepared for it
    )

    def checked(self) -> Options:
        """The same in Python's own numbers; ValueError with name, value and expectation."""
        if not isinstance(self.balance, bool | np.bool_):
            raise ValueError(f"balance = {show(self.balance)}: expected True or False")
        every, saves = self.report_every_s, self.save_every_s
        return Options(
            threshold=number("threshold", self.threshold, least=0.0, unit="J, as problem.load()"),
            pause_s=_pause(self.pause_s),
            balance=bool(self.balance),
            seed=seed(self.seed),
            report_every_s=every if every == math.inf else number("report_every_s", every, above=0.0, unit="seconds"),
            save_every_s=saves
            if saves in (None, math.inf)
            else number("save_every_s", saves, above=0.0, unit="seconds"),
        )


def _pause(pause_s: object) -> tuple[float, float]:
    try:
        shortest, longest = (number("pause_s", each, above=0.0) for each in pause_s)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        shortest, longest = 1.0, 0.0
    if not shortest <= longest:
        expected = "two numbers in seconds, 0 < shortest <= longest, both finite"
        raise ValueError(f"pause_s = {show(pause_s)}: expected {expected}")
    return shortest, longest


class Searcher:
    """One rank of the search; `ring` is the order of all ranks on the ring (see `lb_mpi.graph.ring_order`).

    `bound` is this rank's end of a bound that all ranks share, if they do.  `saved` is what the search goes on from; without
    it, rank 0 starts the problem.
    """

    def __init__(
        self,
        rank: int,
        ring: Sequence[int],
        problem: Problem,
        options: Options,
        bound: Bound | None = None,
        saved: Saved | None = None,
    ) -> None:
        rng = random.Random(options.seed * 1_000_003 + rank)
        self.size, self.problem, self.options = len(ring), problem, options
        terms = Terms(options.threshold, Pause(*options.pause_s, rng), once=not options.balance)
        self.drafting = Drafting(rank, ring[(ring.index(rank) + 1) % len(ring)], problem, terms)
        self.termination = Termination(initiator=rank == ROOT, alone=self.size == 1, pause=Pause(*options.pause_s, rng))
        self.sharing = None if bound is None else Sharing(rank, self.size, bound)
        self.saves = None if options.save_every_s is None else Saves(rank, self.size, options.save_every_s)
        self.units = 0  # of work done so far
        self.reason: Reason | None = None  # why the search is over; None while it is not
        self.error: BaseException | None = None  # the first that the problem has raised here
        self.reports: dict[int, Report] = {}  # on rank 0: what the others said last
        self._told = False
        self._report_at = options.report_every_s
        if saved is not None:
            self.attempt(self._resume, saved)
        elif rank == ROOT:
            self.attempt(problem.start)
            self.drafting.start()

    @property
    def rank(self) -> int:
        """This rank."""
        return self.drafting.rank

    @property
    def successor(self) -> int:
        """The next rank on the ring."""
        return self.drafting.successor

    @property
    def over(self) -> bool:
        """Nothing more will be sent; what still arrives is to be dropped."""
        return self.reason is not None

    @property
    def working(self) -> bool:
        """There was work in hand after the last turn: do a quantum of it before the next one."""
        return not self.over and not self._ending and not self.paused and self.drafting.load > 0.0

    @property
    def paused(self) -> bool:
        """A save is at hand, and this rank has to keep still."""
        return self.saves is not None and self.saves.cut.paused

    @property
    def wake_at(self) -> float:
        """When a rank that is not `working` has something to do even if no message arrives (inf: never)."""
        at = math.inf
        if self.over or self._told:
            return at
        if self.error is not None:
            return 0.0
        if self.paused:
            return at
        if self.drafting.state is self.drafting.state.IDLE and self.drafting.may_draft:
            at = self.drafting.not_before
        if self.termination.token is not None:
            at = min(at, self.termination.not_before)
        if self.saves is not None and self.rank == ROOT:
            at = min(at, self.saves.cut.at)
        return min(at, self._report_at)

    @property
    def saving(self) -> bool:
        """There is something to `save` now."""
        return self.saves is not None and self.saves.due and not self.over

    def save(self, store: Store, now: float) -> list[Send]:
        """Do what is to be done now for the save that is at hand; returns what is to be sent, in order."""
        assert self.saves is not None
        best = 0.0 if self.sharing is None else self.sharing.bound.best
        sends = self.saves.save(store, now, self._state, best)
        return sends + self._finish(Reason.STOPPED) if self.saves.stopped else sends

    def turn(self, now: float, arrived: Iterable[Message]) -> list[Send]:
        """Serve what has arrived, in order, then see what is to be done; returns what is to be sent, in order."""
        sends = self._serve(arrived, now)
        if self.saves is not None and self.saves.held:
            sends += self._serve(self.saves.release(), now)
        if not self.over and not self._ending and not self.paused:
            # If it raises, what it was about to send is lost: after a failure only FINISH and STOP matter.
            sends += self.attempt(self._settle, now) or []
        if self.saves is not None and not self.over:
            sends += self.saves.cut.settle()
        if self.error is not None and not self.over and not self._told:
            sends += self._finish(Reason.FAILED)
        return sends

    def work(self, units: int) -> int:
        """Let the problem do at most `units` units of work; returns how many were done, 0 when it has raised."""
        done = self.attempt(self.problem.work, units) or 0
        self.units += done
        return done

    def attempt(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call what may raise anything: then it is kept in `error`, None is returned, and the next turn ends the search."""
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            if self.error is None:
                self.error = error
            return None

    @property
    def _ending(self) -> bool:
        """The end is on its way, or will be with the next turn: STOP is all that matters now."""
        return self._told or self.error is not None

    def _state(self) -> bytes | None:
        return None if self._ending else self.attempt(self.problem.save)  # type: ignore[attr-defined]

    def _resume(self, saved: Saved) -> None:
        self.problem.resume(saved.states, saved.mine)  # type: ignore[attr-defined]
        if self.sharing is not None:
            self.sharing.bound.take(saved.best)
        if self.problem.load() > 0.0:
            self.drafting.start()

    def ask_to_stop(self) -> list[Send]:
        """Save as soon as that can be, and end the search then; any rank of a search that is saved may ask for it."""
        if self.rank != ROOT:
            return [(ROOT, Message(Kind.ASK, self.rank))]
        if self.saves is not None:
            self.saves.stop()
        return []

    def _serve(self, messages: Iterable[Message], now: float) -> list[Send]:
        sends: list[Send] = []
        for message in messages:
            if self.over:
                break
            if self.saves is None or not self.saves.holds(message):
                sends += self.attempt(self._receive, message, now) or []
        return sends

    def _settle(self, now: float) -> list[Send]:
        if self.problem.found:
            return self._finish(Reason.FOUND)
        sends = [] if self.sharing is None else self.sharing.tell()
        sends += self.drafting.settle(now)
        for _, message in sends:
            if message.kind is Kind.WORK:
                self.termination.sent()
                if self.saves is not None:
                    self.saves.cut.under_way += 1
        token = self.termination.settle(self.drafting.load > 0.0, now)
        if token is not None:
            sends.append((self.successor, Message(Kind.TOKEN, self.rank, token.total, int(token.black))))
        if self.termination.over:
            return sends + self._finish(Reason.EXHAUSTED)
        if now >= self._report_at:
            self._report_at = now + self.options.report_every_s
            sends += self._report()
        if self.saves is not None and self.rank == ROOT and now >= self.saves.cut.at:
            sends += self.saves.cut.begin()
        return sends

    def _receive(self, message: Message, now: float) -> list[Send]:
        kind = message.kind
        if kind is Kind.STOP:
            self.reason = Reason(message.pid)
            return []
        if kind is Kind.FINISH:
            return self._stop(Reason(message.pid))
        if kind is Kind.REPORT:
            self.reports[message.source] = Report(message.seq, message.load, message.pid)
            return []
        if self.saves is not None:
            if kind is Kind.ASK:
                return self.ask_to_stop()
            if kind in cut.KINDS:
                return self.saves.cut.receive(message)
            if kind is Kind.WORK:
                self.saves.cut.under_way -= 1  # whatever becomes of it
        if self._ending:
            return []
        if kind is Kind.BOUND and self.sharing is not None:
            self.sharing.hear(message)
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
            return self._stop(reason)
        return [(ROOT, Message(Kind.FINISH, self.rank, pid=reason))]

    def _stop(self, reason: Reason) -> list[Send]:
        if self.rank != ROOT:
            raise ProtocolError(f"rank {self.rank} was told to end the search: only rank {ROOT} is")
        self.reason = reason
        return [(rank, Message(Kind.STOP, ROOT, pid=reason)) for rank in range(self.size) if rank != ROOT]

    def _report(self) -> list[Send]:
        report = Report(self.units, self.drafting.load, self.drafting.received)
        if self.rank == ROOT:
            self.reports[ROOT] = report
            return []
        return [(ROOT, Message(Kind.REPORT, self.rank, report.units, report.balances, report.load))]
