"""A deterministic discrete-event simulator of a search on many virtual ranks.

It drives the very objects that run on real MPI (`lb_mpi.searching.searcher.Searcher`, with the drafting protocol, the
termination and the user's problem inside), on a virtual clock: messages between two ranks keep their order, as MPI
promises; all else is free: delays come from a latency model, ranks have speeds, and a message to a rank that is in the
middle of a work quantum waits for its end.  One seed gives one run, to the last bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from lb_mpi.checks import bandwidth, show, virtual_s
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import ring_order
from lb_mpi.metrics import check_speeds
from lb_mpi.recording.drafts import Drafts
from lb_mpi.recording.events import Phase
from lb_mpi.recording.record import Record
from lb_mpi.searching.bound import Bound, check_bound
from lb_mpi.searching.drafting import Send
from lb_mpi.searching.guard import Guard, check_problem, check_route
from lb_mpi.searching.options import Options
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.saves import Store, share
from lb_mpi.searching.searcher import Reason, Searcher

HEADER_BYTES = 40  # of each message, as on MPI


class SimulatedSearch(NamedTuple):
    """What a simulated search did."""

    value: Any  # the merged result of all ranks
    reason: Reason
    virtual_seconds: float  # until the last rank has heard that it is over
    efficiency: float  # all work at unit_s a unit, divided by virtual_seconds and the sum of speeds
    units: list[int]  # units of work, per rank
    balances: int  # parts of work that were moved
    messages: int  # of all kinds
    drafts: int  # DRAFTING tokens that were started
    most_messages: int  # that one rank has sent
    detection_s: (
        float  # virtual seconds from the end of the last work quantum until the last rank has heard that it is over
    )


class Delays:
    """When messages arrive: delays log-uniform from low to high seconds, and a time for their bytes; in order between each
    two ranks.
    """

    def __init__(
        self, latency: float | tuple[float, float], bytes_per_s: float, overhead_s: float, rng: random.Random
    ) -> None:
        self._low, high = check_latency(latency)
        self._log_spread = math.log(high / self._low)
        self._bytes_per_s, self.overhead_s = bytes_per_s, overhead_s
        self._rng = rng
        self._last: dict[tuple[int, int], float] = {}  # (source, destination): when the newest message arrives
        self._room = 1000  # that many of those, then the ones that have arrived are forgotten

    def arrival(self, now: float, source: int, destination: int, n_bytes: int) -> float:
        """The time at which a message that is sent now arrives."""
        delay = self._low
        if self._log_spread:
            delay *= math.exp(self._rng.random() * self._log_spread)
        delay += n_bytes / self._bytes_per_s
        if not self._log_spread and math.isinf(self._bytes_per_s):
            return now + delay  # all messages take as long: none overtakes another
        pair = (source, destination)
        at = self._last[pair] = max(now + delay, self._last.get(pair, 0.0))
        if len(self._last) > self._room:
            self._last = {pair: last for pair, last in self._last.items() if last > now}
            self._room = 1000 + 2 * len(self._last)
        return at


MOST_UNITS = 1 << 40  # in one quantum


class Slot:
    """What the simulation keeps of one rank."""

    def __init__(self, speed: float, unit_s: float, quantum_s: float, drafts: Drafts | None) -> None:
        self.speed, self.drafts = speed, drafts
        self.unit_s = unit_s / speed  # virtual seconds that it takes for one unit
        self.quantum = max(1, round(min(quantum_s * speed / unit_s, MOST_UNITS)))
        self.inbox: list[int] = []  # numbers of messages
        self.busy_until = 0.0
        self.alarm = 0  # the number of its one valid alarm
        self.sent = 0  # messages


class Simulation:
    """The state of a simulation: `searchers`, what is under way, and the clock; see `search` for the parameters."""

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        bounds: Sequence[Bound] | None = None,
        speeds: Sequence[float] | None = None,
        latency: float | tuple[float, float] = 5e-6,
        unit_s: float = 1e-6,
        quantum_s: float = 50e-6,
        overhead_s: float = 0.0,
        bytes_per_s: float = math.inf,
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
        if bytes_per_s != math.inf:
            bytes_per_s = bandwidth("bytes_per_s", bytes_per_s)
        for problem in problems:
            check_problem(problem)
            options = check_route(problem, options)
        speeds = check_speeds([1.0] * size if speeds is None else speeds, size).tolist()
        self.ideal_s = unit_s / sum(speeds)  # for one unit, if all ranks do nothing but work
        ring = ring_order(size)
        self.searchers = []
        for rank, (problem, bound) in enumerate(zip(problems, check_bounds(bounds, size), strict=True)):
            saved = None if states is None else share(states, rank, size)
            self.searchers.append(searcher_class(rank, ring, Guard(problem), options, bound, saved))
        self._stores = stores
        self.now = 0.0
        self.worked_at = 0.0  # when the last work quantum was over
        self.over_at = 0.0  # when the last rank heard that it is over
        self.messages = 0
        self.in_flight: dict[int, Send] = {}  # by number: what was sent and hasn't been served
        overhead_s = virtual_s("overhead_s", overhead_s, least=0.0)
        self._delays = Delays(latency, bytes_per_s, overhead_s, random.Random(seed))
        worlds = list(range(size))
        drafts = [Drafts(record, rank, worlds) for rank, record in enumerate(records)] if records else []
        for each in drafts:
            each.use(options)
        self._slots = [
            Slot(speed, unit_s, quantum_s, drafts[rank] if records else None) for rank, speed in enumerate(speeds)
        ]
        self._heap: list[tuple[float, int, int]] = []  # (time, number, rank); the number of a message or of an alarm
        self._number = 0
        for rank in range(size):
            self._set_alarm(rank, 0.0)

    def sent(self) -> list[int]:
        """Messages sent so far, by rank."""
        return [slot.sent for slot in self._slots]

    def step(self) -> bool:
        """Let the next event happen; False when every rank has heard that the search is over.

        ProtocolError when nothing can happen any more although it is not over.
        """
        while self._heap:
            self.now, number, rank = heappop(self._heap)
            slot = self._slots[rank]
            if number in self.in_flight:
                slot.inbox.append(number)
                if self.now < slot.busy_until:
                    continue  # served at the end of the quantum
            elif number != slot.alarm:
                continue
            self._turn(rank)
            return True
        if all(searcher.over for searcher in self.searchers):
            return False
        raise ProtocolError(f"deadlock at {self.now} s: nothing is under way and the search is not over")

    def _turn(self, rank: int) -> None:
        searcher, slot = self.searchers[rank], self._slots[rank]
        arrived = [self.in_flight.pop(number)[1] for number in slot.inbox]
        slot.inbox.clear()
        if searcher.over:
            return
        sends = searcher.turn(self.now, arrived)
        if slot.drafts is not None:
            slot.drafts.turn(self.now, arrived, sends)
            slot.drafts.record.enter(Phase.OWN if searcher.working else Phase.WAITING, self.now)
        ready = self.now + self._delays.overhead_s * (len(arrived) + len(sends))
        for send in sends:
            self._send(rank, send, ready)
        if searcher.saving:
            assert self._stores is not None
            for send in searcher.save(self._stores[rank], self.now):
                self._send(rank, send, ready)
            self._set_alarm(rank, ready + slot.unit_s)
        elif searcher.working:
            done = searcher.work(slot.quantum)
            # A quantum without a new unit (clean-up only) still takes the time of one: time never stands still.
            slot.busy_until = ready + max(done, 1) * slot.unit_s
            self.worked_at = max(self.worked_at, slot.busy_until)
            self._set_alarm(rank, slot.busy_until)
        elif searcher.reason is not None:
            self.over_at = max(self.over_at, ready)
        elif ready > self.now:
            slot.busy_until = ready  # what comes meanwhile is served then
            self._set_alarm(rank, ready)
        elif searcher.wake_at < math.inf:
            self._set_alarm(rank, max(self.now, searcher.wake_at))

    def _send(self, rank: int, send: Send, now: float) -> None:
        destination, message = send
        at = self._delays.arrival(now, rank, destination, HEADER_BYTES + len(message.payload))
        self._number += 1
        self.in_flight[self._number] = send
        self.messages += 1
        self._slots[rank].sent += 1
        heappush(self._heap, (at, self._number, destination))

    def end(self) -> None:
        """Record what each rank has done, when all have heard that it is over."""
        for searcher, slot in zip(self.searchers, self._slots, strict=True):
            cpu_s = searcher.units * slot.unit_s * slot.speed
            if slot.drafts is not None:
                slot.drafts.end(0.0, self.over_at, cpu_s, searcher.units, slot.speed)

    def _set_alarm(self, rank: int, at: float) -> None:
        self._number += 1
        self._slots[rank].alarm = self._number
        heappush(self._heap, (at, self._number, rank))


def search(
    problems: Sequence[Problem],
    *,
    check: Callable[[Simulation], None] | None = None,
    simulation_class: type[Simulation] = Simulation,
    **parameters: Any,
) -> SimulatedSearch:
    """Search with one virtual rank per problem (all made alike, as on MPI; the first one is started).

    Parameters: `bounds` (P,), a Bound for each rank, if they share one; `speeds` (P,), units of work per `unit_s` seconds
    relative to 1; `latency` in seconds, one number or (low, high) for log-uniform delays; `quantum_s`, virtual seconds of
    work between two turns; `overhead_s`, what each message takes of the time of who sends it, and again of who receives
    it; `bytes_per_s`, the rate of a link; `options` of the searchers; `seed` of the delays and (without `options`) of the
    pauses and random routes; `searcher_class`, for variants of the protocol; `stores` (P,), where each rank is saved (with
    `options.save_every_s`); `states`, what was saved of all ranks there were, to go on from; `records` (P,), where what
    happens is recorded; `check` is called with the `Simulation` after every event; `simulation_class`, for variants of it.
    Raises ValueError or TypeError for bad parameters, what a problem has raised when all ranks have heard of it,
    SearchError for what it has returned against its law, and ProtocolError when the protocol breaks its own.
    """
    simulation = simulation_class(problems, **parameters)
    while simulation.step():
        if check is not None:
            check(simulation)
    simulation.end()
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
        messages=simulation.messages,
        drafts=sum(searcher.drafting.seq for searcher in simulation.searchers),
        most_messages=max(simulation.sent()),
        detection_s=max(0.0, simulation.over_at - simulation.worked_at),
    )


def check_bounds(bounds: Sequence[Bound] | None, size: int) -> Sequence[Bound | None]:
    """Return one bound, or None, for each of `size` ranks; ValueError unless there are so many, alike, and none twice."""
    if bounds is None:
        return [None] * size
    senses = {None if (end := check_bound(bound)) is None else end.sense for bound in bounds}
    if len({id(bound) for bound in bounds}) != size or len(bounds) != size or len(senses) != 1:
        raise ValueError(f"bounds = {show(bounds)}: expected {size}, one for each rank, all of one sense")
    return bounds


def check_latency(latency: float | tuple[float, float]) -> tuple[float, float]:
    """Return (low, high) in seconds; ValueError unless 0 < low <= high, neither too small nor too large."""
    try:
        both = latency if isinstance(latency, Sequence) else (latency, latency)
        low, high = (virtual_s("latency", each) for each in both)
    except ValueError:
        low, high = 1.0, 0.0
    if not low <= high:
        raise ValueError(f"latency = {show(latency)}: expected seconds, from 1e-15 to 1e12, or two with low <= high")
    return low, high


def pause_for(size: int, latency: float) -> tuple[float, float]:
    """Shortest and longest pause in seconds before an idle rank drafts again: a quarter of a round of the ring, and four.

    The best of those tried on 64 to 1,024 ranks: longer pauses leave ranks idle, shorter ones fill the ring with tokens.
    """
    round_s = size * latency
    return max(round_s / 4, 1e-6), max(4 * round_s, 1e-4)
