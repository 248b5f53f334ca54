"""A rebalancing: one rank of a distributed graph moves vertices to its neighbours, and gets some.   (pure)

It begins when all ranks have decided that vertices move (`lb_mpi.rebalancing.deciding`).

Law.
- Every vertex is owned by one rank, before and after.  The new parts are those of a fresh distribution by the new owners.
- Messages go to old neighbours only: ranks whose parts touch, and rank - 1 and rank + 1 where one of the two touches nobody.
- A flow is the same at both ends of an edge, to the bit, but for its sign (`lb_mpi.rebalancing.flow`).
- Rows of the graph move once.  What arrives with a vertex is right: its owner knows the new owners of its neighbours.
- Vertices are chosen in steps (`lb_mpi.rebalancing.pairs`), which are the same in any order of arrivals.
- All ranks move, or none: a rank keeps its old part until the commit says that no rank has failed.  A rank that fails at any
  time takes part until then, with empty messages, so that nobody waits for it.
- Of ranks that are not its neighbours, a rank learns nothing but a few sums and maxima over all ranks (except with slabs).
- No move is committed that does not lower the time of the slowest rank, as all ranks expect it.  (A move for a lighter cut
  may leave it as it is; but then the cut is lighter.)
- Slabs stay contiguous: each rank has one range of vertices, in the order of the ranks (`lb_mpi.rebalancing.slabs`).
  Vertices go to rank - 1 and rank + 1 only, which count as neighbours.  All ranks learn all costs and speeds.
- A move is undone by another one, to the ranks that its vertices came from: these ranks count as neighbours, too.

A message of one kind goes to each neighbour, and one comes from each, in every exchange.  In the choice, both ends of a pair
know the steps.  So ranks need no numbers on their messages: the next one of a neighbour belongs to the next exchange.  A
rank that gives the choice up sends an empty message instead of the next one; it may come after a neighbour's last step.

Slabs begin with LOADS, others with REPAIR; a move that undoes the last one begins with the new owners of its vertices.

    stage     waits for                        does then
    LOADS     costs and speeds of all ranks    slabs: finds the best ends, sends the new owners of its vertices
    REPAIR    its job                          greets its neighbours, tells them the work of stray pieces
    HELLO     HELLO of neighbours, and ring    begins the flow; first learns its component, if there may be several
    SPREAD    whether a component has grown    greets again, or begins the flow
    FLOW      FLOW of neighbours               makes a step; every `period` steps asks for the largest residual
    CHECK     the largest residual             makes the next steps, or requests `Choose`
    CHOOSE    its job                          sends what the choice sends; at its end, the new owners of its vertices
    PAIR      what the choice awaits           requests `Choose`; gives the choice up if a neighbour has failed
    LABEL     LABEL of neighbours              requests `Pack`; sends ROWS without content if it has failed
    PACK      its job                          sends the rows to their new owners
    ROWS      ROWS of neighbours               requests `Build`; reports a failure if a neighbour's rows have no content
    BUILD     its job                          reports: failed or not
    COMMIT    the sums and maxima of all       ends if a rank has failed, or the slowest rank gains nothing; asks for the cut
    CUT       the cuts of all                  ends: the new parts are valid
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.balancing.deciding import BalanceReason, Decision, Trigger
from lb_mpi.balancing.planning import ALL
from lb_mpi.distributing.halo import GraphPart
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Ints
from lb_mpi.rebalancing.deciding import NOISE, GraphTotals, RankLoad, RebalanceDecision
from lb_mpi.rebalancing.flow import MAX_STEPS, Flow
from lb_mpi.rebalancing.moving import Owners, cut_of, labels_for, owners_now, still_touching
from lb_mpi.rebalancing.slabs import best_ends
from lb_mpi.reduction import Reduction

SLOWEST = 0.01  # of the mean speed: a rank that seems slower has hardly any work, and other things to do in its steps
FLOW_PART = 2.0 / 3.0  # of the imbalance that may be left: what the flows leave, before vertices are chosen


class RebalanceKind(IntEnum):
    """The kinds of messages."""

    REDUCE = 0  # to ALL: this rank's numbers; from ALL: those of all ranks
    HELLO = 1  # (3,) the sender's component and speed, the work of stray pieces for the receiver; labels as in LABEL
    FLOW = 2  # a number of `Flow`
    PAIR = 3  # of a choice of vertices; None: the sender has given it up
    LABEL = 4  # the new owners of the receiver's ghosts; None: the sender has failed
    ROWS = 5  # rows of the graph, with their values; None: the sender has failed


class RebalanceMessage(NamedTuple):
    """A message to a neighbour, or to all ranks."""

    kind: RebalanceKind
    payload: Any = None


Arrays = tuple[Any, ...]  # of integers and doubles, in one dimension


class ChoiceStep(NamedTuple):
    """A step of the choice of vertices: a rank's messages for neighbours, and the ranks that it waits for."""

    sends: Mapping[int, Arrays]
    sources: Sequence[int] = ()


class Links(NamedTuple):
    """A rank's neighbours, and its loads."""

    flows: dict[int, float]  # by neighbour: work to send; < 0: to receive
    speeds: dict[int, float]  # of the neighbours
    speed: float
    load: float  # present work, >= 0
    bound: float  # most work afterwards


class Repair(NamedTuple):
    """A job: find stray pieces; its outcome: (n_local,) new owners, and the work for each rank that gets some."""


class Choose(NamedTuple):
    """A job: a step of the choice of vertices; its outcome: a `ChoiceStep`, or in the end (n_local,) the new owners."""

    links: Links
    repaired: Owners  # without stray pieces
    step: int
    received: dict[int, Arrays] | None  # by neighbour; None: nothing, in step 0


class Pack(NamedTuple):
    """A job: pack the vertices that leave; its outcome: a payload for each rank that gets some."""

    owners: Owners
    leaving: dict[int, Ints]  # local numbers, ascending; by new owner


class Build(NamedTuple):
    """A job: make the new part from the rows that stay and those that have arrived; its outcome: a `Built`."""

    owners: Owners
    arrived: dict[int, Any]  # payloads by rank; only those with vertices


class Built(NamedTuple):
    """The new part of a rank, not valid yet."""

    part: GraphPart
    load: float  # its estimated work
    n_bytes: int  # sent by this rank


class Stage(IntEnum):
    """The stages of a rebalancing; see the table."""

    LOADS = 0
    REPAIR = 2
    HELLO = 3
    SPREAD = 4
    FLOW = 5
    CHECK = 6
    CHOOSE = 7
    PAIR = 8
    LABEL = 9
    PACK = 10
    ROWS = 11
    BUILD = 12
    COMMIT = 13
    CUT = 14
    OVER = 15


REDUCING = (Stage.LOADS, Stage.SPREAD, Stage.CHECK, Stage.COMMIT, Stage.CUT)
EXCHANGING = {
    Stage.HELLO: RebalanceKind.HELLO,
    Stage.FLOW: RebalanceKind.FLOW,
    Stage.PAIR: RebalanceKind.PAIR,
    Stage.LABEL: RebalanceKind.LABEL,
    Stage.ROWS: RebalanceKind.ROWS,
}
Job = Repair | Choose | Pack | Build


class Undo(NamedTuple):
    """The last move, which is to be undone."""

    owners: Ints  # (n_local,) the ranks that the vertices came from, or this one
    ranks: Sequence[int]  # that have got vertices of this one


class RebalanceOutcome(NamedTuple):
    """The outcome of a rebalancing, the same on all ranks."""

    decision: Decision
    before: float  # imbalance of the loads
    after: float  # expected with the new parts
    before_s: float = math.nan  # expected time of the slowest rank, before and after
    after_s: float = math.nan
    failed: bool = False  # a rank has failed, so nothing has moved
    moved: int = 0  # vertices
    n_bytes: int = 0
    n_ghosts: int = 0
    cut: float = math.nan
    steps: int = 0  # of the flow


class Rebalancing:
    """One rank of a rebalancing: an actor.

    costs (n_local,) : of its vertices.  `totals`, `decided`: what all ranks know and have decided.  `trigger` has the same
    state on all ranks.  `imbalance`: what may be left.  `connected`: the graph is in one piece; then all parts with vertices
    are connected, too.  `slabs`: the number of vertices of the graph if the parts are contiguous ranges, and stay so; else
    0.  `undo`: where the vertices came from, if the last move is to be undone.
    """

    wake_at = math.inf

    def __init__(
        self, rank: int, size: int, part: GraphPart, costs: Floats, mine: RankLoad, totals: GraphTotals,
        decided: RebalanceDecision, trigger: Trigger, *, imbalance: float = 0.03, connected: bool = True, slabs: int = 0,
        undo: Undo | None = None,
    ) -> None:  # fmt: skip
        mean = decided.mean_speed
        speed = mean if math.isnan(mine.speed) else max(mine.speed, SLOWEST * mean)
        self.rank, self.size, self.part, self.mine = rank, size, part, mine._replace(speed=speed)
        self.stage = Stage.LOADS if slabs else Stage.REPAIR
        self._undo, self._promise = undo, decided.undo
        self.job: Job | None = None
        self.failed = False
        self.error: BaseException | None = None
        self.outcome = RebalanceOutcome(decided.decision, decided.before, decided.before)
        self.built: Built | None = None  # valid if `committed`
        self._trigger, self._imbalance, self._tolerance = trigger, imbalance, FLOW_PART * imbalance
        self._costs = costs
        self._inbox: list[tuple[int, RebalanceMessage]] = []  # not handled yet, in order for each source
        self._began = False
        self._now = self._began_at = 0.0
        self._mean_s, self._units = decided.mean_s, totals.units
        self._connected = connected
        self._component = -1 if connected and len(part.ranks) else rank  # the lowest rank known in that of this rank
        self._grown, self._greetings = False, 0
        self._hello: dict[int, Floats] = {}  # by neighbour
        self._repaired: Owners  # known after REPAIR
        self._repairs = dict[int, float]()  # work of stray pieces, by rank
        self._load = mine.load  # without these pieces, and with those of others
        self._links: list[int] = []  # neighbours in all exchanges after HELLO
        self._awaited: Sequence[int] = ()  # by the choice
        self._step = 0
        self._flow: Flow | None = None
        self._number, self._rounds = 0.0, 0  # the last number of the flow, and how many were received
        self._asked = False  # a residual is being reduced
        self._residual, self._stalled = math.nan, 0  # the last one, and the rounds since it has changed
        self._period = max(2, (size - 1).bit_length())
        self._n_leaving = 0
        self._cuts, self._unit = [0.0, 0.0], 1.0  # the new one, and the old one
        beside = {rank + 1, rank - 1} & {*range(size)} if slabs else {(rank + 1) % size, (rank - 1) % size} - {rank}
        self._slabs = slabs
        if undo is not None:
            beside = {*undo.owners.tolist(), *undo.ranks} - {rank}
        self.neighbours = sorted({*part.ranks.tolist(), *beside})  # whose parts touch this one's, or which may have none

    @cached_property
    def owners(self) -> Owners:
        """The owners as far as they are known: at first those of now."""
        return owners_now(self.part, self.rank)

    @property
    def over(self) -> bool:
        """See `lb_mpi.actor`."""
        return self.stage is Stage.OVER

    @property
    def ready(self) -> bool:
        """True once all ranks have built their new parts, and none has failed: it then ends well."""
        return self.stage is Stage.CUT

    @property
    def committed(self) -> bool:
        """True if all ranks have the new parts."""
        return self.over and self.built is not None and not self.outcome.failed and self.outcome.moved > 0

    def turn(self, now: float, arrived: Iterable[tuple[int, RebalanceMessage]] = ()) -> list[tuple[int, RebalanceMessage]]:
        """See `lb_mpi.actor`."""
        self._now = now
        for source, message in arrived:
            if self.over or (source != ALL and source not in self.neighbours):
                raise ProtocolError(f"rank {self.rank}, {self.stage.name}: {message} of rank {source}")
            self._inbox.append((source, message))
        sends: list[tuple[int, RebalanceMessage]] = []
        if not self._began:
            self._began, self._began_at = True, now
            sends += self._begin()
        while self.job is None and (received := self._next()) is not None:
            sends += self._handle(received)
        return sends

    def done(self, job: Job, result: Any) -> list[tuple[int, RebalanceMessage]]:
        """See `lb_mpi.actor`."""
        self.job = None
        if isinstance(job, Repair):
            return self._greet(*result)
        if isinstance(job, Choose):
            return self._go_on(result)
        if isinstance(job, Pack):
            return self._send_rows(result)
        self.built = result
        return self._ask_commit()

    def fail(self, error: BaseException) -> list[tuple[int, RebalanceMessage]]:
        """See `lb_mpi.actor`."""
        self.error, self.failed = self.error or error, True
        job, self.job = self.job, None
        if isinstance(job, Repair):
            return self._greet(self.owners.local, {})
        if isinstance(job, Choose):
            return self._give_up()
        if isinstance(job, Pack):
            return self._send_rows({})
        return [] if job is None else self._ask_commit()

    def _next(self) -> dict[int, Any] | None:
        """Return the payloads that this stage waits for, by source, once all of them are there."""
        if self.over:
            return None
        kind = EXCHANGING.get(self.stage, RebalanceKind.REDUCE)
        sources: Sequence[int] = self.neighbours if self.stage is Stage.HELLO else self._links
        if self.stage in REDUCING:
            sources = [ALL]
        if self.stage is Stage.PAIR:
            sources = self._awaited
        if self.stage is Stage.LABEL:
            self._inbox = [one for one in self._inbox if not self._is_void(one[1])]
        first: dict[int, tuple[int, RebalanceMessage]] = {}  # the next message of each source
        for place, (source, message) in enumerate(self._inbox):
            if source in sources:
                first.setdefault(source, (place, message))
        if len(first) < len(sources):
            return None
        handled = {place for place, _ in first.values()}
        self._inbox = [one for place, one in enumerate(self._inbox) if place not in handled]
        for source, (_, message) in first.items():
            if message.kind is not kind:
                raise ProtocolError(f"rank {self.rank}, {self.stage.name}: {message} of rank {source}, expected {kind.name}")
        return {source: message.payload for source, (_, message) in first.items()}

    def _is_void(self, message: RebalanceMessage) -> bool:
        """Return whether a message belongs to a choice that one of its two ranks has given up."""
        return message.kind is RebalanceKind.PAIR and (self.failed or message.payload is None)

    def _handle(self, received: dict[int, Any]) -> list[tuple[int, RebalanceMessage]]:
        match self.stage:
            case Stage.LOADS:
                return self._label(self._ends(received[ALL]))
            case Stage.HELLO:
                return self._know(received)
            case Stage.SPREAD:
                return self._spread(bool(received[ALL].maxima[0]))
            case Stage.FLOW:
                return self._flow_on(received)
            case Stage.CHECK:
                return self._check(float(received[ALL].maxima[0]))
            case Stage.PAIR:
                return self._pair(received)
            case Stage.LABEL:
                return self._pack(received)
            case Stage.ROWS:
                return self._build(received)
            case Stage.COMMIT:
                return self._commit(received[ALL])
            case _:
                return self._finish(received[ALL])

    def _begin(self) -> list[tuple[int, RebalanceMessage]]:
        if self._undo is not None:
            self._links = self.neighbours
            return self._label(self._undo.owners)
        if self._slabs:
            return self._ask_loads()
        self.job = Repair()
        return []

    # --- slabs ---

    def _ask_loads(self) -> list[tuple[int, RebalanceMessage]]:
        self._links = self.neighbours
        counts, speeds = np.zeros((2, self.size), dtype=np.int64)
        costs = np.zeros(self._slabs, dtype=np.int64)
        counts[self.rank], speeds[self.rank] = self.part.n_local, round(self.mine.speed / self._units.speed)
        costs[self.part.vertices] = np.rint(self._costs / self._units.load)
        return self._reduce(np.concatenate([counts, speeds, costs]))

    def _ends(self, everyone: Reduction) -> Ints:
        """Return the new owners of this rank's vertices."""
        counts, speeds, costs = np.split(everyone.sums, [self.size, 2 * self.size])
        ends = best_ends(costs, counts, speeds, self._tolerance)
        return np.searchsorted(ends, self.part.vertices, side="right")

    # --- the neighbours ---

    def _greet(self, labels: Ints, repairs: Mapping[int, float]) -> list[tuple[int, RebalanceMessage]]:
        self._repaired, self._repairs = self.owners._replace(local=labels), dict(repairs)
        self.stage = Stage.HELLO
        return self._send_hello()

    def _send_hello(self) -> list[tuple[int, RebalanceMessage]]:
        about = {other: (self._component, self.mine.speed, self._repairs.get(other, 0.0)) for other in self.neighbours}
        labels = {other: labels_for(self.part, self._repaired.local, other) for other in about}
        return [
            (other, RebalanceMessage(RebalanceKind.HELLO, (np.array(each), labels[other]))) for other, each in about.items()
        ]

    def _know(self, received: Mapping[int, Arrays]) -> list[tuple[int, RebalanceMessage]]:
        self._hello = {other: about for other, (about, _) in received.items()}
        ghosts = [received[other][1] for other in self.part.ranks.tolist()]
        self._repaired = self._repaired._replace(ghosts=np.concatenate([*ghosts, self.owners.ghosts[:0]]))
        if self._connected:
            return self._begin_flow()
        lowest = min([self._component, *(int(self._hello[other][0]) for other in self.part.ranks.tolist())])
        self._grown, self._component = self._grown or lowest < self._component, lowest
        self._greetings += 1
        if self._greetings % self._period:
            return self._send_hello()
        self.stage = Stage.SPREAD
        return self._reduce(maxima=[self._grown])

    def _spread(self, grown: bool) -> list[tuple[int, RebalanceMessage]]:
        """Greet again, until no component has grown: then all ranks know their own and those of their neighbours."""
        if not grown:
            return self._begin_flow()
        self._grown, self.stage = False, Stage.HELLO
        return self._send_hello()

    # --- the flow ---

    def _begin_flow(self) -> list[tuple[int, RebalanceMessage]]:
        apart = {other for other, (component, *_) in self._hello.items() if int(component) != self._component}
        self._links = sorted({*self.part.ranks.tolist(), *apart})
        self._load += sum(float(work) for _, _, work in self._hello.values()) - sum(self._repairs.values())
        near = sorted(still_touching(self.part, self._repaired, self.rank) | apart)
        load, speed = self._load, self.mine.speed
        self._flow = Flow(self.rank, near, load, speed, self._mean_s, size=self.size, tolerance=self._tolerance)
        self.stage, self._number = Stage.FLOW, self._flow.start()
        return self._send_number()

    def _send_number(self) -> list[tuple[int, RebalanceMessage]]:
        return [(other, RebalanceMessage(RebalanceKind.FLOW, self._number)) for other in self._links]

    def _flow_on(self, received: Mapping[int, float]) -> list[tuple[int, RebalanceMessage]]:
        flow = self._flow
        assert flow is not None
        self._number = flow.step(received)
        self._rounds += 1
        if self._rounds % self._period:
            return self._send_number()
        if self._asked:
            self.stage = Stage.CHECK
            return []
        self._asked = True
        return self._reduce(maxima=[flow.residual]) + self._send_number()

    def _check(self, residual: float) -> list[tuple[int, RebalanceMessage]]:
        """Go on, or end the flow; the residual is that of `period` steps ago, so that no step waits for it.

        It ends, too, if the residual stays the same for as long as a change needs to reach all ranks: a rank beside which
        there are only stray pieces has no edge for its load in this call.
        """
        flow = self._flow
        assert flow is not None
        self._stalled = self._stalled + self._period if residual == self._residual else 0
        self._residual = residual
        if residual > self._tolerance and self._rounds < MAX_STEPS and self._stalled <= self.size:
            self.stage = Stage.FLOW
            return self._reduce(maxima=[flow.residual]) + self._send_number()
        self.outcome = self.outcome._replace(steps=self._rounds - 1)
        self.stage = Stage.CHOOSE
        if self.failed:
            return self._give_up()
        return self._request(None)

    # --- the choice ---

    def _request(self, received: dict[int, Arrays] | None) -> list[tuple[int, RebalanceMessage]]:
        assert self._flow is not None
        speed = self.mine.speed
        links = Links(
            dict(self._flow.flows), {other: float(self._hello[other][1]) for other in self._flow.flows}, speed, self._load,
            (1.0 + self._imbalance) * speed * self._mean_s,
        )  # fmt: skip
        self.stage = Stage.CHOOSE
        self.job = Choose(links, self._repaired, self._step, received)
        self._step += 1
        return []

    def _go_on(self, result: ChoiceStep | Ints) -> list[tuple[int, RebalanceMessage]]:
        if not isinstance(result, ChoiceStep):
            return self._label(result)
        self.stage, self._awaited = Stage.PAIR, result.sources
        return [(other, RebalanceMessage(RebalanceKind.PAIR, arrays)) for other, arrays in result.sends.items()]

    def _pair(self, received: dict[int, Arrays | None]) -> list[tuple[int, RebalanceMessage]]:
        known = {other: arrays for other, arrays in received.items() if arrays is not None}
        return self._give_up() if self.failed or len(known) < len(received) else self._request(known)

    def _give_up(self) -> list[tuple[int, RebalanceMessage]]:
        self.failed = True
        sends = [(other, RebalanceMessage(RebalanceKind.PAIR)) for other in self._links]
        return sends + self._label(self.owners.local)

    # --- the move ---

    def _label(self, labels: Ints) -> list[tuple[int, RebalanceMessage]]:
        self.owners = self.owners._replace(local=labels)
        self.stage = Stage.LABEL
        theirs = {other: None if self.failed else labels_for(self.part, labels, other) for other in self._links}
        return [(other, RebalanceMessage(RebalanceKind.LABEL, each)) for other, each in theirs.items()]

    def _pack(self, labels: Mapping[int, Ints | None]) -> list[tuple[int, RebalanceMessage]]:
        if any(each is None for each in labels.values()):
            self.failed = True
        ghosts = [] if self.failed else [labels[other] for other in self.part.ranks.tolist()]
        self.owners = self.owners._replace(ghosts=np.concatenate([*ghosts, np.zeros(0, dtype=np.int64)]).astype(np.int64))
        self.stage = Stage.PACK
        if self.failed:
            return self._send_rows({})
        leaving = {other: np.flatnonzero(self.owners.local == other) for other in self._links}
        if sum(map(len, leaving.values())) != np.count_nonzero(self.owners.local != self.rank):
            raise ProtocolError(f"rank {self.rank} gives vertices to ranks that are not its neighbours")
        self._n_leaving = int(sum(map(len, leaving.values())))
        self.job = Pack(self.owners, {other: index for other, index in leaving.items() if len(index)})
        return []

    def _send_rows(self, payloads: Mapping[int, Any]) -> list[tuple[int, RebalanceMessage]]:
        self.stage = Stage.ROWS
        nothing = None if self.failed else b""
        return [(other, RebalanceMessage(RebalanceKind.ROWS, payloads.get(other, nothing))) for other in self._links]

    def _build(self, received: Mapping[int, Any]) -> list[tuple[int, RebalanceMessage]]:
        self.stage = Stage.BUILD
        if self.failed or any(payload is None for payload in received.values()):
            return self._ask_commit()
        self.job = Build(self.owners, {other: payload for other, payload in received.items() if len(payload)})
        return []

    # --- the commit ---

    def _ask_commit(self) -> list[tuple[int, RebalanceMessage]]:
        self.stage = Stage.COMMIT
        if self.failed or self.built is None:
            return self._reduce([0, 0, 0], maxima=[self.failed, 0.0, 0.0, 0.0, 0.0])
        part, load, n_bytes = self.built
        self._cuts = [cut_of(self.part, owners) for owners in (self.owners, owners_now(self.part, self.rank))]
        times = self.mine.load / self.mine.speed, load / self.mine.speed, self._now - self._began_at
        return self._reduce([self._n_leaving, n_bytes, part.n_ghosts], [False, max(self._cuts), *times])

    def _commit(self, total: Reduction) -> list[tuple[int, RebalanceMessage]]:
        failed, cut, before_s, after_s, spent_s = total.maxima.tolist()
        if failed:
            return self._end(self.outcome._replace(failed=True))
        self._trigger.paid(spent_s)
        if self._promise is not None:  # as measured, not as expected
            before_s, after_s = max(before_s, self._promise.before_s), self._promise.before_s
        moved, n_bytes, n_ghosts = total.sums.tolist()
        if not self._is_better(before_s, after_s):
            return self._end(self.outcome._replace(before_s=before_s, after_s=before_s))
        after = max(0.0, after_s / self._mean_s - 1.0)
        self.outcome = self.outcome._replace(
            after=after, before_s=before_s, after_s=after_s, moved=moved, n_bytes=n_bytes, n_ghosts=n_ghosts
        )
        self.stage = Stage.CUT
        # A power of two, so that the sum of whole weights is exact.
        self._unit = 2.0 ** max(math.frexp(cut)[1] - 40, -1000) if cut > 0.0 else 1.0
        return self._reduce([round(cut / self._unit) for cut in self._cuts])

    def _is_better(self, before_s: float, after_s: float) -> bool:
        """Return whether the move is expected to make the slowest rank faster; for a lighter cut, whether not slower."""
        match self.outcome.decision.reason:
            case BalanceReason.CUT:
                return after_s <= max(before_s, (1.0 + self._imbalance) * self._mean_s)
            case BalanceReason.ALWAYS | BalanceReason.UNDONE:
                return after_s < before_s
            case _:
                return after_s < (1.0 - NOISE) * before_s

    def _finish(self, total: Reduction) -> list[tuple[int, RebalanceMessage]]:
        cut, old = total.sums.tolist()
        if self.outcome.decision.reason is BalanceReason.CUT and cut >= old:
            return self._end(self.outcome._replace(after=self.outcome.before, moved=0))
        return self._end(self.outcome._replace(cut=cut * self._unit))

    def _end(self, outcome: RebalanceOutcome) -> list[tuple[int, RebalanceMessage]]:
        self.outcome, self.stage = outcome, Stage.OVER
        return []

    def _reduce(self, sums: Iterable[int] = (), maxima: Iterable[float] = ()) -> list[tuple[int, RebalanceMessage]]:
        numbers = Reduction(np.array(list(sums), dtype=np.int64), np.array(list(maxima), dtype=float))
        return [(ALL, RebalanceMessage(RebalanceKind.REDUCE, numbers))]
