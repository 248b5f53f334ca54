"""A search on many virtual ranks: the same `Searcher` as on real MPI, on the virtual carrier (`lb_mpi.virtual`).

Ranks have speeds, a unit of work has a duration, and a quantum is a number of units.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lb_mpi.checks import virtual_s
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import ring_order
from lb_mpi.metrics import check_speeds
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Record
from lb_mpi.searching.bound import Bound
from lb_mpi.searching.drafting import Message, Send
from lb_mpi.searching.guard import MOST_UNITS, Guard, Options, check_problem, check_route
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.saves import Store, do, share
from lb_mpi.searching.searcher import DraftRecord, Job, Reason, Searcher, Work, step
from lb_mpi.virtual import Network, Raised, Virtual

HEADER_BYTES = 40  # of each message, as on MPI
MOST_RANKS = 1 << 16  # with a tree each, 8 GiB


class SimulatedSearch(NamedTuple):
    """The result of a simulated search."""

    value: Any  # the merged result of all ranks
    reason: Reason
    virtual_seconds: float  # until the last rank learns that the search is over
    efficiency: float  # all work at unit_s a unit, divided by virtual_seconds and the sum of speeds
    units: list[int]  # units of work, per rank
    balances: int  # parts of work moved
    messages: int  # of all kinds
    drafts: int  # DRAFTING tokens started
    most_messages: int  # sent by one rank
    detection_s: float  # from the end of the last work quantum until the last rank learns that the search is over


class Simulation(Virtual[Message, Job]):
    """All ranks of a search; see `search` for the parameters."""

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        bounds: Sequence[Bound] | None = None,
        speeds: Sequence[float] | None = None,
        network: Network | None = None,
        unit_s: float = 1e-6,
        quantum_s: float = 50e-6,
        options: Options | None = None,
        seed: int = 0,
        searcher_class: type[Searcher] = Searcher,
        stores: Sequence[Store] | None = None,
        states: Sequence[bytes] | None = None,
        records: Sequence[Record] | None = None,
    ) -> None:
        size = len(problems)
        if size < 1:
            raise ValueError("problems: expected one per rank, got none")
        options = (options or Options(seed=seed)).checked()
        unit_s, quantum_s = virtual_s("unit_s", unit_s), virtual_s("quantum_s", quantum_s)
        for problem in problems:
            check_problem(problem)
            options = check_route(problem, options)
        speeds = check_speeds([1.0] * size if speeds is None else speeds, size).tolist()
        self.ideal_s = unit_s / sum(speeds)  # per unit, if all ranks only worked
        ring = ring_order(size)
        self.searchers: list[Searcher] = []
        shared: Sequence[Bound | None] = bounds or [None] * size
        for rank, (problem, bound) in enumerate(zip(problems, shared, strict=True)):
            saved = None if states is None else share(states, rank, size)
            self.searchers.append(searcher_class(rank, ring, Guard(problem), options, bound, saved))
        super().__init__(self.searchers, (network or Network()).checked(), random.Random(seed))
        self._stores = stores
        self.worked_at = 0.0  # end of the last work quantum
        worlds = list(range(size))
        self._drafts = [DraftRecord(record, rank, worlds, options) for rank, record in enumerate(records or ())]
        self._speeds, self._unit_s = speeds, [unit_s / speed for speed in speeds]  # by rank; virtual seconds of a unit
        self._quanta = [max(1, round(min(quantum_s * speed / unit_s, MOST_UNITS))) for speed in speeds]  # units
        self._outcomes: list[int | BaseException] = [0] * size  # of the current jobs: units done, or the exception
        for rank in range(size):
            self.start(rank)

    @property
    def over_at(self) -> float:
        """The time at which the last rank learned that the search is over."""
        return max(self.ended_s)

    def begin(self, rank: int, job: Job) -> float:
        """Return the duration of a job; a quantum is done at once, since only that shows its length."""
        outcome: int | BaseException = 0
        try:
            outcome = self.searchers[rank].problem.work(self._quanta[rank]) if isinstance(job, Work) else 0
        except BaseException as error:
            outcome = error
        self._outcomes[rank] = outcome
        # A quantum without a new unit (clean-up only) still lasts one unit's time: time must advance.
        return (outcome if isinstance(outcome, int) and outcome else 1) * self._unit_s[rank]

    def end(self, rank: int, job: Job) -> Any:
        """Return the units done, or the store's result."""
        if not isinstance(job, Work):
            assert self._stores is not None
            return do(job, self._stores[rank])
        self.worked_at = max(self.worked_at, self.now)
        outcome = self._outcomes[rank]
        if isinstance(outcome, BaseException):
            raise Raised(outcome)
        return outcome

    def n_bytes(self, message: Message) -> int:
        """Return the message's bytes, including its header."""
        return HEADER_BYTES + len(message.payload)

    def turned(self, rank: int, arrived: Sequence[tuple[int, Message]], sends: Sequence[Send]) -> None:
        """Record drafts and phases."""
        if self._drafts:
            drafts, job = self._drafts[rank], self.searchers[rank].job
            drafts.arrived(arrived)
            drafts.sent(sends)
            drafts.record.enter(Phase.OWN if isinstance(job, Work) else Phase.WAITING, self.now)

    def step(self) -> bool:
        """Run the next turn; False if every rank knows that the search is over; ProtocolError if it can never end."""
        if super().step():
            return True
        if all(searcher.over for searcher in self.searchers):
            return False
        raise ProtocolError(f"deadlock at {self.now} s: nothing is under way and the search is not over")

    def record(self) -> None:
        """Record the work of each rank, after all know that the search is over."""
        for rank, drafts in enumerate(self._drafts):
            searcher, speed = self.searchers[rank], self._speeds[rank]
            cpu_s = searcher.units * self._unit_s[rank] * speed
            drafts.record.step(step(searcher, 0.0, self.over_at, speed, cpu_s))


def search(
    problems: Sequence[Problem],
    *,
    check: Callable[[Simulation], None] | None = None,
    **parameters: Any,
) -> SimulatedSearch:
    """Search with one virtual rank per problem (all made alike, as on MPI; the first one is started).

    Parameters: `bounds` (P,), a Bound for each rank, if they share one; `speeds` (P,), units of work per `unit_s` seconds
    relative to 1; `network`, the costs of messages; `quantum_s`, virtual seconds of work between two turns; `options` of
    the searchers; `seed` of the delays and (without `options`) of the pauses and random routes; `searcher_class`, for
    variants of the protocol; `stores` (P,), where each rank is saved (with `options.save_every_s`); `states`, the saved
    states of all ranks, to resume from; `records` (P,), which record the events; `check`, called with the `Simulation`
    after every event.

    Raises ValueError or TypeError for bad parameters, a problem's exception after all ranks have ended, SearchError for
    values that violate the `Problem` protocol, and ProtocolError if the search protocol is violated.
    """
    simulation = Simulation(problems, **parameters)
    while simulation.step():
        if check is not None:
            check(simulation)
    simulation.record()
    ends = [searcher.sharing for searcher in simulation.searchers if searcher.sharing is not None]
    values = [sharing.bound.best for sharing in ends]
    for sharing in ends:
        sharing.level(values)
    for searcher in simulation.searchers:
        if searcher.error is not None:
            raise searcher.error
    first, *others = simulation.searchers
    value = first.problem.result()
    for searcher in others:
        value = first.problem.merge(value, searcher.problem.result())
    assert first.reason is not None
    units = [searcher.units for searcher in simulation.searchers]
    ideal = sum(units) * simulation.ideal_s
    return SimulatedSearch(
        value=value,
        reason=first.reason,
        virtual_seconds=simulation.over_at,
        efficiency=ideal / simulation.over_at if simulation.over_at else 1.0,
        units=units,
        balances=sum(searcher.drafting.received for searcher in simulation.searchers),
        messages=sum(simulation.sent),
        drafts=sum(searcher.drafting.seq for searcher in simulation.searchers),
        most_messages=max(simulation.sent),
        detection_s=max(0.0, simulation.over_at - simulation.worked_at),
    )


def pause_for(size: int, latency: float) -> tuple[float, float]:
    """Return the (shortest, longest) pause in seconds of an idle rank: a quarter of a round of the ring, and four rounds.

    The best of those tried on 64 to 1,024 ranks: longer pauses leave ranks idle, shorter ones fill the ring with tokens.
    """
    round_s = size * latency
    return max(round_s / 4, 1e-6), max(4 * round_s, 1e-4)
