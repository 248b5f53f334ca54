"""The virtual carrier: runs actors (`lb_mpi.actor`) on one event queue, with a model of links and job times.   (pure)

It drives the same objects as on MPI, any number of ranks.  Messages take the time given by `Network`, and keep their order
between two ranks, as in MPI.  A rank in a job handles arrivals when the job is done.  Runs with the same seed are
bit-identical.

    class Simulation(Virtual[Message, Job]):        # the part specific to a protocol
        def begin(self, rank, job): ...             # returns the seconds that a job takes
        def end(self, rank, job): ...               # returns its outcome

    simulation.start(rank) for each rank
    while simulation.step(): ...
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any, Generic, NamedTuple

from lb_mpi.actor import ALL, Actor, J, M, Story, T_co
from lb_mpi.checks import bandwidth, integer, number, show, virtual_s
from lb_mpi.errors import ProtocolError
from lb_mpi.reduction import reduced

Span = tuple[float, float]


class Network(NamedTuple):
    """The costs of messages and turns; a span is (least, most): log-uniform between them.

    With `n_cores`, all ranks share so many cores: a turn waits for one, and keeps it for `turn_s`.  Jobs need none: in
    them a rank only waits.
    """

    latency_s: Span = (5e-6, 5e-6)  # of a message; if hosts differ, within one
    between_s: Span | None = None  # between two hosts; None: as latency_s
    bytes_per_s: float = math.inf  # of a link
    n_cores: int = 0  # 0: turns take no time
    turn_s: float = 0.0

    def checked(self) -> Network:
        """Return this network; ValueError for a field out of its range.

        Latencies are above 0 and low <= high, `bytes_per_s` is above 0, `n_cores` and `turn_s` are at least 0.
        """
        for name, span in (("latency_s", self.latency_s), ("between_s", self.between_s or self.latency_s)):
            check_span(name, span)
        if self.bytes_per_s != math.inf:
            bandwidth("bytes_per_s", self.bytes_per_s)
        integer("n_cores", self.n_cores, 0)
        number("turn_s", self.turn_s, least=0.0, unit="seconds")
        return self


def check_span(name: str, span: float | Span) -> Span:
    """Return (low, high) in seconds; ValueError unless 0 < low <= high, neither too small nor too large."""
    try:
        low, high = (virtual_s(name, each) for each in (span if isinstance(span, Sequence) else (span, span)))
    except ValueError:
        low, high = 1.0, 0.0
    if not low <= high:
        raise ValueError(f"{name} = {show(span)}: expected seconds, from 1e-15 to 1e12, or two with low <= high")
    return low, high


class Raised(Exception):
    """The error that the user's code has raised in a job."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _VirtualRank:
    __slots__ = ("alarm", "busy", "had_core", "inbox", "job")

    def __init__(self) -> None:
        self.inbox: list[int] = []  # numbers of messages
        self.alarm = 0  # the number of its one valid alarm
        self.busy = False  # until the alarm: messages wait
        self.had_core = False  # for its next turn
        self.job: Any = None  # current


class Virtual(Generic[M, J]):
    """All actors, the messages in transit, and the clock; `host_of[rank]`: a number of its host."""

    def __init__(
        self, actors: Sequence[Actor[M, J, Any]], network: Network, rng: random.Random, host_of: Sequence[int] = ()
    ) -> None:
        self.actors, self.network = actors, network
        self.now = 0.0
        self.under_way: dict[int, tuple[int, int, M]] = {}  # by number: (source, destination, message), not yet handled
        self.sent = [0] * len(actors)  # messages to others, by rank
        self.ended_s = [math.nan] * len(actors)  # when each rank was over for the first time
        self._ranks = [_VirtualRank() for _ in actors]
        self._links = _Links(network, rng, host_of)
        self._heap: list[tuple[float, int, int]] = []  # (time, number, rank); the number of a message, or of an alarm
        self._number = 0
        self._free_at = [0.0] * network.n_cores  # a heap: when each core has done the turns that wait for it

    def begin(self, rank: int, job: J) -> float:
        """Begin a job; return the seconds that it takes."""
        raise NotImplementedError

    def end(self, rank: int, job: J) -> Any:
        """End a job; return its outcome, or raise Raised."""
        raise NotImplementedError

    def n_bytes(self, message: M) -> int:
        """Return the number of bytes of a message."""
        return 0

    def turned(self, rank: int, arrived: Sequence[tuple[int, M]], sends: Sequence[tuple[int, M]]) -> None:
        """Note a turn of a rank that was not over: for records."""

    def start(self, rank: int, at: float = 0.0) -> None:
        """Schedule the first turn of a rank; messages wait until then."""
        self._sleep(rank, at)

    def wake(self, rank: int, at: float) -> None:
        """Schedule a turn of a rank without a job."""
        if not self._ranks[rank].busy:
            self._set_alarm(rank, at)

    def post(self, source: int, destination: int, message: M) -> None:
        """Send a message."""
        self.sent[source] += source != destination
        arrival = self._links.arrival(self.now, source, destination, self.n_bytes(message))
        self.deliver(source, destination, message, arrival)

    def deliver(self, source: int, destination: int, message: M, at: float) -> None:
        """Schedule the arrival of a message."""
        self._number += 1
        self.under_way[self._number] = (source, destination, message)
        heappush(self._heap, (at, self._number, destination))

    def step(self) -> bool:
        """Run the next turn; False if there is none."""
        while self._heap:
            self.now, number, rank = heappop(self._heap)
            if number in self.under_way:
                if self.arrive(rank, number):
                    return True
            elif number == self._ranks[rank].alarm and self._occupy_core(rank):
                self._turn(rank)
                return True
        return False

    def arrive(self, rank: int, number: int) -> bool:
        """Handle the arrival of a message; True if the rank has taken a turn."""
        mine = self._ranks[rank]
        mine.inbox.append(number)
        if mine.busy or not self._occupy_core(rank):
            return False
        self._turn(rank)
        return True

    def finish(self, rank: int, job: J) -> list[tuple[int, M]]:
        """End a job, which is done or has raised; return what to send."""
        try:
            result = self.end(rank, job)
        except Raised as raised:
            return self.actors[rank].fail(raised.error)
        return self.actors[rank].done(job, result)

    def _occupy_core(self, rank: int) -> bool:
        """Return True if a rank whose turn is due has had a core for it; else give it the next one, and let it wait."""
        mine = self._ranks[rank]
        if not self._free_at or mine.had_core:
            mine.had_core = False
            return True
        mine.had_core = True
        ends = max(self.now, self._free_at[0]) + self.network.turn_s
        heapreplace(self._free_at, ends)
        self._sleep(rank, ends)
        return False

    def _turn(self, rank: int) -> None:
        actor, mine = self.actors[rank], self._ranks[rank]
        was_over = actor.over
        mine.alarm, mine.busy = 0, False
        sends: list[tuple[int, M]] = []
        arrived: list[tuple[int, M]] = []
        if mine.job is not None:
            job, mine.job = mine.job, None
            sends += self.finish(rank, job)
        if mine.inbox:
            arrived = [(source, message) for source, _, message in map(self.under_way.pop, mine.inbox)]
            mine.inbox.clear()
        sends += actor.turn(self.now, arrived)
        over = actor.over
        if not (was_over and over):
            self.turned(rank, arrived, sends)
        for destination, message in sends:
            self.post(rank, destination, message)
        if over and math.isnan(self.ended_s[rank]):
            self.ended_s[rank] = self.now
        mine.job = actor.job
        if mine.job is not None:
            self._sleep(rank, self.now + self.begin(rank, mine.job))
        elif (wake_at := actor.wake_at) < math.inf:
            self._set_alarm(rank, max(self.now, wake_at))

    def _sleep(self, rank: int, until: float) -> None:
        self._ranks[rank].busy = True
        self._set_alarm(rank, until)

    def _set_alarm(self, rank: int, at: float) -> None:
        self._number += 1
        self._ranks[rank].alarm = self._number
        heappush(self._heap, (at, self._number, rank))


class Stories(Virtual[Any, Any]):
    """Ranks that follow stories together; what all have sent to ALL is reduced, on a tree.  Jobs take no time."""

    def __init__(self, stories: Sequence[Story[Any]], network: Network) -> None:
        slowest_s = network.latency_s[1]
        super().__init__(stories, Network((slowest_s, slowest_s), None, network.bytes_per_s), random.Random(0))
        self.sent_to = defaultdict[int, dict[int, Any]](dict)  # by target: what ranks have sent, until all have

    def begin(self, rank: int, job: Any) -> float:
        """Begin a job."""
        return 0.0

    def post(self, source: int, destination: int, message: Any) -> None:
        """Send to a rank, or to all."""
        if destination >= 0:
            super().post(source, destination, message)
            return
        sent = self.sent_to[destination]
        sent[source] = message
        if len(sent) == len(self.actors):
            answers, seconds = self.answer(destination, [sent.pop(rank) for rank in range(len(self.actors))])
            for rank, answer in enumerate(answers):
                self.deliver(destination, rank, answer, self.now + seconds)

    def answer(self, target: int, everyone: Sequence[Any]) -> tuple[Sequence[Any], float]:
        """Return what each rank gets when all have sent to the target, and the seconds that it takes."""
        assert target == ALL
        return [reduced(everyone)] * len(everyone), 2 * collective_s(self.network, len(everyone))


def run_together(world: Stories, stories: Sequence[Story[T_co]]) -> list[T_co]:
    """Run all ranks to their ends; return what the stories return."""
    for rank in range(len(stories)):
        world.start(rank)
    while world.step():
        pass
    if not all(story.over for story in stories):
        raise ProtocolError("ranks wait for each other for ever")
    return [story.value for story in stories]


def collective_s(network: Network, size: int) -> float:
    """Seconds of one half of a reduction of a few numbers, on a tree."""
    return (size - 1).bit_length() * network.latency_s[1]


class _Links:
    """The arrival times of messages, in order between each two ranks."""

    def __init__(self, network: Network, rng: random.Random, host_of: Sequence[int]) -> None:
        self._rng, self._host_of = rng, host_of
        spans = (network.latency_s, network.between_s or network.latency_s)
        self._spans = [(low, math.log(low), math.log(high) - math.log(low)) for low, high in spans]
        self._bytes_per_s = network.bytes_per_s
        self._level = math.isinf(network.bytes_per_s) and all(low == high for low, high in spans)
        self._last: dict[tuple[int, int], float] = {}  # (source, destination): arrival of the newest message
        self._room = 1000  # number of entries in _last before old ones are dropped

    def arrival(self, now: float, source: int, destination: int, n_bytes: int) -> float:
        """Return the arrival time of a message sent now; a message to its source arrives at once."""
        apart = bool(self._host_of) and self._host_of[source] != self._host_of[destination]
        delay, log_low, log_spread = self._spans[apart]
        if log_spread:
            delay = math.exp(log_low + log_spread * self._rng.random())
        delay = (delay + n_bytes / self._bytes_per_s) * (source != destination)
        if self._level:
            return now + delay  # all messages take equally long, so none overtakes another
        pair = (source, destination)
        arrives = self._last[pair] = max(now + delay, self._last.get(pair, 0.0))
        if len(self._last) > self._room:
            self._last = {pair: last for pair, last in self._last.items() if last > now}
            self._room = 1000 + 2 * len(self._last)
        return arrives
