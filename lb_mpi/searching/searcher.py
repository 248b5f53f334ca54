"""One rank of a search: its problem, drafting, termination, shared bound and saves, turn by turn.   (pure)

A `Searcher` is an actor (`lb_mpi.actor`).  Its jobs are

    Work()                      a quantum of `problem.work`; the result: the units done
    Open, Write, Commit         of a search with saves: `saves.do(job, store)`

The carrier chooses the length of a quantum.  `turn` contains everything whose order matters.

Drafts have one of two routes.  On the "ring" they go round, as in the paper, and Safra's token detects the end (`drafting`,
`termination`).  On a "random" route they walk (`walking`), and the tree of Dijkstra and Scholten detects the end
(`termination`): then a rank's messages and memory grow only with the logarithm of the number of ranks.

A search ends for one of five reasons: all work is done (detected by the termination), an answer was found, a rank has
failed, a save and stop was requested, or its time is over (by the clock of rank 0).  The rank that knows notifies rank 0
(FINISH), and rank 0 all ranks (STOP); the first reason wins.  `above` and `below` of the termination say by which ranks: on
the ring directly, otherwise through the binomial tree of all ranks.

A search with `saves` (see there) pauses all ranks from time to time.  A paused rank receives and answers, but does not work,
split or begin anything: all actions in `_settle` wait.  When its time is over, it is saved before it ends.

An exception of the problem is kept in `error`, and never leaves `turn`: the message being processed is lost, but those after
it in the same batch are processed, since the STOP that ends this rank may be among them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, ParamSpec, TypeVar

from lb_mpi.errors import ProtocolError, SearchError
from lb_mpi.record.events import Driver, Step, Way
from lb_mpi.record.record import OFF, Record
from lb_mpi.searching.bound import Bound, Sharing
from lb_mpi.searching.drafting import MOVES, Drafting, Kind, Message, Pause, Send, Terms
from lb_mpi.searching.guard import Options
from lb_mpi.searching.problem import Problem, outgoing
from lb_mpi.searching.saves import KINDS, Cut, SavedSearch, SaveJob, pack_parts
from lb_mpi.searching.termination import Safra, Scholten
from lb_mpi.searching.walking import Walking, WalkTerms

ROOT = 0
P = ParamSpec("P")
T = TypeVar("T")


class Reason(IntEnum):
    """The reason why a search is over."""

    EXHAUSTED = 0
    FOUND = 1
    FAILED = 2
    STOPPED = 3
    TIMED_OUT = 4


class Work(NamedTuple):
    """A job: one quantum of the problem's work."""


Job = Work | SaveJob


class Searcher:
    """One rank of the search; `ring` is the order of all ranks on the ring (see `lb_mpi.graph.ring_order`).

    On a random route only its length matters, and `range(size)` suffices.  `bound` is this rank's copy of a shared bound, if
    any.  The search resumes from `saved`; without it, rank 0 starts the problem.
    """

    def __init__(
        self,
        rank: int, ring: Sequence[int], problem: Problem, options: Options, bound: Bound | None = None,
        saved: SavedSearch | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.problem = rank, len(ring), problem
        self.drafting, self.termination = _on_route(rank, ring, problem, options)
        self.sharing = None if bound is None else Sharing(rank, self.size, bound)
        self.saves = None if options.save_every_s is None else Cut(rank, self.size, options.save_every_s)
        self.limit_at = options.limit_s if rank == ROOT else math.inf  # inf, too, once a last save has been requested
        self.units = 0  # units of work done so far
        self.reason: Reason | None = None  # why the search is over; None while it is not
        self.error: BaseException | None = None  # the first exception of the problem on this rank
        self._finished = self._timed_out = False
        if saved is not None:
            self.attempt(self._resume, saved)
        elif rank == ROOT:
            self.attempt(problem.start)
            self.drafting.start()

    @property
    def over(self) -> bool:
        """True if nothing more will be sent; messages that still arrive are dropped."""
        return self.reason is not None

    @property
    def job(self) -> Job | None:
        """The job of a save; else a quantum, if there was work after the last turn."""
        if self.over:
            return None
        if self.saves is not None and self.saves.job is not None:
            return self.saves.job
        return Work() if self.drafting.load > 0.0 and not self._ending and not self.paused else None

    @property
    def paused(self) -> bool:
        """True if this rank must pause for a save."""
        return self.saves is not None and self.saves.paused

    @property
    def wake_at(self) -> float:
        """The time at which a rank without a job acts even if no message arrives (inf: never)."""
        if self.over or self._finished:
            return math.inf
        if self.error is not None:
            return 0.0
        if self.paused:
            return math.inf
        at = min(self.drafting.wake_at, self.termination.wake_at, self.limit_at)
        return at if self.saves is None or self.rank != ROOT else min(at, self.saves.at or 0.0)

    def turn(self, now: float, arrived: Iterable[tuple[int, Message]]) -> list[Send]:
        """Process the messages in order, then choose what to do; return the messages to send, in order."""
        self.drafting.clock(now, self.units, isinstance(self.job, Work))
        sends: list[Send] = []
        for _, message in arrived:
            if self.over:
                break
            sends += self.attempt(self._receive, message, now) or []
        if not self.over and not self._ending and not self.paused:
            # If it raises, its messages are lost: after a failure only FINISH and STOP matter.
            sends += self.attempt(self._settle, now) or []
        if now >= self.limit_at and not self.over and not self._ending:
            sends += self._time_out()
        if self.saves is not None and not self.over:
            sends += self.saves.settle(self._state)
        if self.error is not None and not self.over and not self._finished:
            sends += self._finish(Reason.FAILED)
        return sends

    def done(self, job: Job, result: Any) -> list[Send]:
        """Process the result of a job; return the messages to send, in order."""
        if isinstance(job, Work):
            self.units += result
            return []
        assert self.saves is not None
        best = 0.0 if self.sharing is None else self.sharing.bound.best
        sends = self.saves.done(job, result, best)
        reason = Reason.TIMED_OUT if self._timed_out else Reason.STOPPED
        return sends + self._finish(reason) if self.saves.stopped else sends

    def fail(self, error: BaseException) -> list[Send]:
        """Keep the first error; the next turn ends the search."""
        if self.error is None:
            self.error = error
        return []

    def attempt(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a function; if it raises anything, call `fail` and return None."""
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            self.fail(error)
            return None

    @property
    def _ending(self) -> bool:
        """True if the end is certain in this turn or the next: only STOP matters now."""
        return self._finished or self.error is not None

    def _state(self) -> bytes | None:
        if self._ending or (state := self.attempt(self.problem.save)) is None:  # type: ignore[attr-defined]
            return None
        assert self.saves is not None
        return pack_parts([state, *self.saves.kept, *self.drafting.kept])

    def _resume(self, saved: SavedSearch) -> None:
        assert self.saves is not None
        self.problem.resume(saved.states, saved.mine)  # type: ignore[attr-defined]
        self.saves.kept += saved.kept
        if self.sharing is not None and saved.best is not None:
            self.sharing.level([saved.best])
        if self.rank == ROOT or saved.kept or self.problem.load() > 0.0:  # the root has no standing draft yet
            self.drafting.start()

    def _time_out(self) -> list[Send]:
        """End the search, after a save if it has saves; on rank 0."""
        self.limit_at = math.inf
        if self.saves is None:
            return self._finish(Reason.TIMED_OUT)
        self._timed_out = not self.saves.stopping
        self.saves.stop()
        return []

    def _settle(self, now: float) -> list[Send]:
        if self.problem.found:
            return self._finish(Reason.FOUND)
        while self.saves is not None and self.saves.kept and not self.problem.load() > 0.0:
            self.problem.absorb(self.saves.kept.pop(0))
        sends = [] if self.sharing is None else self.sharing.send()
        sends += self.drafting.settle(now)
        sends += self._owned()
        for _, message in sends:
            if message.kind in MOVES:
                self.termination.sent()
                if self.saves is not None:
                    self.saves.under_way += 1
        sends += self.termination.settle(self.drafting.load > 0.0, now)
        if self.termination.over:
            return sends + self._finish(Reason.EXHAUSTED)
        if self.saves is not None and self.rank == ROOT and self.saves.due(now):
            sends += self.saves.begin()
        return sends

    def _owned(self) -> list[Send]:
        """Return messages with work that belongs to other ranks; SearchError for a rank that does not exist."""
        sends = outgoing(self.problem)
        for to, _ in sends:
            if not 0 <= to < self.size or to == self.rank:
                expected = f"expected another one of 0 to {self.size - 1}"
                raise SearchError(f"outgoing() on rank {self.rank} names rank {to}: {expected}")
        return [(to, Message(Kind.OWNED, self.rank, pid=self.rank, payload=payload)) for to, payload in sends]

    def _receive(self, message: Message, now: float) -> list[Send]:
        kind = message.kind
        if kind is Kind.STOP:
            return self._stop(Reason(message.pid))
        if kind is Kind.FINISH:
            if message.source not in self.termination.below:
                raise ProtocolError(f"rank {self.rank} got {message}, which a rank above {message.source} may get")
            return [] if self._finished else self._finish(Reason(message.pid))
        if self.saves is not None:
            if kind is Kind.ASK:  # from any rank, also from this one
                if self.rank != ROOT:
                    return [(ROOT, Message(Kind.ASK, self.rank))]
                self.saves.stop()
                return []
            if kind in KINDS:
                return self.saves.receive(message)
            if kind in MOVES:
                self.saves.under_way -= 1  # whatever becomes of it
        if self._ending:
            return []
        if kind is Kind.BOUND and self.sharing is not None:
            self.sharing.receive(message)
            return []
        return [] if self.termination.receive(message, now) else self.drafting.receive(message, now)

    def _finish(self, reason: Reason) -> list[Send]:
        self._finished = True
        if self.rank == ROOT:
            return self._stop(reason)
        return [(self.termination.above, Message(Kind.FINISH, self.rank, pid=reason))]

    def _stop(self, reason: Reason) -> list[Send]:
        self.reason = reason
        return [(rank, Message(Kind.STOP, ROOT, pid=reason)) for rank in self.termination.below]


def _on_route(
    rank: int, ring: Sequence[int], problem: Problem, options: Options
) -> tuple[Drafting | Walking, Safra | Scholten]:
    """Make the drafts of a rank, and its termination, which the route decides."""
    size, rng, once = len(ring), random.Random(options.seed * 1_000_003 + rank), not options.balance
    if options.route_on(size) == "ring":
        drafts, probes = (Pause(*options.pause_s, rng) for _ in range(2))
        safra = Safra(rank, ring, probes)
        return Drafting(rank, safra.successor, problem, Terms(options.threshold, drafts, once)), safra
    return Walking(rank, size, problem, WalkTerms(options.threshold, rng.randrange, once=once)), Scholten(rank, size)


# --- the record: what carriers write down of a search -----------------------------------------------------------------


class DraftRecord:
    """The options, the parts that `rank` received, and the number of messages sent by kind.

    `worlds[r]` is the rank in COMM_WORLD of rank r of the search.
    """

    def __init__(self, record: Record, rank: int, worlds: list[int], options: Options) -> None:
        self.record, self._rank, self._worlds = record, rank, worlds
        self.n_sent: Counter[Kind] = Counter()
        names = ("balance", "threshold", "pause_s", "route")
        record.use("search", {name: getattr(options, name) for name in names})

    def sent(self, sends: Iterable[Send]) -> None:
        """Count messages."""
        self.n_sent.update(message.kind for _, message in sends)

    def arrived(self, arrived: Iterable[tuple[int, Message]]) -> None:
        """Record the parts among the messages that have arrived."""
        if self.record is OFF:
            return
        for sender, message in arrived:
            if message.kind is Kind.WORK and message.source == self._rank:
                self.record.move(Way.DRAFT, self._worlds[sender], 1)


def step(searcher: Searcher, began: float, ended: float, speed: float, cpu_s: float, **more: Any) -> Step:
    """Sum up a finished search: `cpu_s` is the CPU time of the user's work; `more` fields of the Step."""
    drafting = searcher.drafting
    return Step(
        Driver.SEARCH, began, ended, cpu_s / speed, searcher.units, speed, moved=drafting.received, asked=drafting.seq,
        **more,
    )  # fmt: skip
