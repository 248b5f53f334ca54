"""A deterministic discrete-event simulator of a search on many virtual ranks.

It drives the very objects that run on real MPI (`lb_mpi.searching.searcher.Searcher`, with the drafting protocol, Safra's
token and
the user's problem inside), on a virtual clock: messages between two ranks keep their order, as MPI promises; all else is
free: delays come from a latency model, ranks have speeds, and a message to a rank that is in the middle of a work quantum
waits for its end.  One seed gives one run, to the last bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.graph import ring_order
from lb_mpi.metrics import check_speeds
from lb_mpi.searching.drafting import Kind, Send
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.searcher import Options, Reason, Searcher


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


class Simulation:
    """The state of a simulation: `searchers`, what is under way, and the clock; see `search` for the parameters."""

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        speeds: Sequence[float] | None = None,
        latency: float | tuple[float, float] = 5e-6,
        unit_s: float = 1e-6,
        quantum_s: float = 50e-6,
        options: Options | None = None,
        seed: int = 0,
        searcher_class: type[Searcher] = Searcher,
    ) -> None:
        size = len(problems)
        if size < 1:
            raise ValueError("problems: expected one per rank, got none")
        options = options or Options(pause=(1e-4, 1e-2), seed=seed)
        options.check()
        low, high = check_latency(latency)
        for name, value in (("unit_s", unit_s), ("quantum_s", quantum_s)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} = {value!r} s: expected a finite number > 0")
        self.speeds = check_speeds([1.0] * size if speeds is None else speeds, size).tolist()
        ring = ring_order(size)
        self.searchers = [searcher_class(rank, ring, problem, options) for rank, problem in enumerate(problems)]
        self.now = 0.0
        self.over_at = 0.0  # when the last rank heard that it is over
        self.messages = 0
        self.drafts = 0
        self.in_flight: dict[int, Send] = {}  # by number: what was sent and hasn't been served
        self._low, self._log_spread = low, math.log(high / low)
        self._rng = random.Random(seed)
        self._unit_s = unit_s
        self._quanta = [max(1, round(quantum_s * speed / unit_s)) for speed in self.speeds]
        self._heap: list[tuple[float, int, int]] = []  # (time, number, rank); the number of a message or of an alarm
        self._number = 0
        self._last: dict[tuple[int, int], float] = {}  # (source, destination): when the newest message arrives
        self._inbox: list[list[int]] = [[] for _ in range(size)]
        self._busy_until = [0.0] * size
        self._alarm = [0] * size  # the number of the one valid alarm of each rank
        for rank in range(size):
            self._set_alarm(rank, 0.0)

    def step(self) -> bool:
        """Let the next event happen; False when every rank has heard that the search is over.

        ProtocolError when nothing can happen any more although it is not over.
        """
        while self._heap:
            self.now, number, rank = heappop(self._heap)
            if number in self.in_flight:
                self._inbox[rank].append(number)
                if self.now < self._busy_until[rank]:
                    continue  # served at the end of the quantum
            elif number != self._alarm[rank]:
                continue
            self._turn(rank)
            return True
        if all(searcher.over for searcher in self.searchers):
            return False
        raise ProtocolError(f"deadlock at {self.now} s: nothing is under way and the search is not over")

    def _turn(self, rank: int) -> None:
        searcher = self.searchers[rank]
        if searcher.over:
            for number in self._inbox[rank]:
                del self.in_flight[number]
            self._inbox[rank].clear()
            return
        inbox = self._inbox[rank]
        arrived = [self.in_flight.pop(number)[1] for number in inbox]
        inbox.clear()
        for send in searcher.turn(self.now, arrived):
            self._send(rank, send)
        if searcher.working:
            done = searcher.problem.work(self._quanta[rank])
            searcher.units += done
            # A quantum without a new unit (clean-up only) still takes the time of one: time never stands still.
            until = self.now + max(done, 1) * self._unit_s / self.speeds[rank]
            self._busy_until[rank] = until
            self._set_alarm(rank, until)
        elif searcher.reason is not None:
            self.over_at = self.now
        elif searcher.wake_at < math.inf:
            self._set_alarm(rank, max(self.now, searcher.wake_at))

    def _send(self, rank: int, send: Send) -> None:
        destination, message = send
        delay = self._low
        if self._log_spread:
            delay *= math.exp(self._rng.random() * self._log_spread)
        pair = (rank, destination)
        at = max(self.now + delay, self._last.get(pair, 0.0))
        self._last[pair] = at
        self._number += 1
        self.in_flight[self._number] = send
        self.messages += 1
        if message.kind is Kind.DRAFTING and message.source == rank:
            self.drafts += 1
        heappush(self._heap, (at, self._number, destination))

    def _set_alarm(self, rank: int, at: float) -> None:
        self._number += 1
        self._alarm[rank] = self._number
        heappush(self._heap, (at, self._number, rank))


def search(
    problems: Sequence[Problem],
    *,
    check: Callable[[Simulation], None] | None = None,
    **parameters: Any,
) -> SimulatedSearch:
    """Search with one virtual rank per problem (all made alike, as on MPI; the first one is started).

    Parameters: `speeds` (P,), units of work per `unit_s` seconds relative to 1; `latency` in seconds, one number or
    (low, high) for log-uniform delays; `quantum_s`, virtual seconds of work between two turns; `options` of the searchers;
    `seed` of the delays and (without `options`) of the pauses; `searcher_class`, for variants of the protocol; `check` is
    called with the `Simulation` after every event.
    Raises ValueError for bad parameters, ProtocolError when the protocol breaks its law.
    """
    simulation = Simulation(problems, **parameters)
    while simulation.step():
        if check is not None:
            check(simulation)
    first, *others = simulation.searchers
    value = first.problem.result()
    for searcher in others:
        value = first.problem.merge(value, searcher.problem.result())
    assert first.reason is not None
    units = [searcher.units for searcher in simulation.searchers]
    ideal = sum(units) * simulation._unit_s / sum(simulation.speeds)
    return SimulatedSearch(
        value=value,
        reason=first.reason,
        virtual_seconds=simulation.over_at,
        efficiency=ideal / simulation.over_at if simulation.over_at else 1.0,
        units=units,
        balances=sum(searcher.drafting.received for searcher in simulation.searchers),
        messages=simulation.messages,
        drafts=simulation.drafts,
    )


def check_latency(latency: float | tuple[float, float]) -> tuple[float, float]:
    """Return (low, high) in seconds; ValueError unless 0 < low <= high, both finite."""
    low, high = (latency, latency) if isinstance(latency, int | float) else latency
    if not 0 < low <= high < math.inf:
        raise ValueError(f"latency = {latency!r} s: expected one finite number > 0, or two with low <= high")
    return low, high


def pause_for(size: int, latency: float) -> tuple[float, float]:
    """Shortest and longest pause in seconds before an idle rank drafts again: a quarter of a round of the ring, and four.

    The best of those tried on 64 to 1,024 ranks: longer pauses leave ranks idle, shorter ones fill the ring with tokens.
    """
    round_s = size * latency
    return max(round_s / 4, 1e-6), max(4 * round_s, 1e-4)
