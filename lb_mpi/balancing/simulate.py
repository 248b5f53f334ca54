"""Rows on a virtual clock: the very objects that run on MPI, with as many ranks as you like.   (pure)

A call of `map_blocks` is a round of all ranks (`lb_mpi.balancing.round`, `course`), the judge on the root, and diffusion on
the process graph.  Here messages take a latency and the time for their bytes, and keep their order between each two ranks,
as MPI promises; rows take what they cost / the speed of the rank, with some noise; a rank in the middle of a block hears a
message at its end.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.balancing.course import Course, Told
from lb_mpi.balancing.direct import STALE, Direct
from lb_mpi.balancing.judge import Judge, end_s
from lb_mpi.balancing.migrate import plan
from lb_mpi.balancing.reports import REPORT, Report, Verdict
from lb_mpi.balancing.round import Arrival, Job, Kind, Message, Round, Send
from lb_mpi.balancing.rowsets import Rowset, count
from lb_mpi.balancing.times import Call, Times
from lb_mpi.balancing.trigger import Reason, Trigger, When
from lb_mpi.checks import choice, integer, number
from lb_mpi.checks import seed as check_seed
from lb_mpi.diffusion.diffusion import MAX_STEPS, Diffusion
from lb_mpi.diffusion.setup import Setup, chosen_scheme, prepare
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import check_speeds

Costs = Callable[[int], Sequence[Floats]]  # call -> for each rank, (n,) units of work of its rows
Seconds = Callable[[int, Job], float]  # rank, job -> how long it takes there
ROWS = ("constant", "lognormal", "hotspot")  # kinds of costs
HEADER_BYTES = 64  # of a message
MOST_SPREAD = 10.0  # standard deviation of a logarithm: beyond, all but a few of the drawn costs are 0


class Network(NamedTuple):
    """What messages cost, and handling blocks."""

    latency_s: tuple[float, float] = (5e-6, 5e-6)  # the least and the most; log-uniform between them
    s_per_byte: float = 0.0
    row_bytes: int = 8  # of a row, and of its result
    handling: float = 0.0  # of a block beside its rows, units of work

    def delay_s(self, message: Message, rng: random.Random) -> float:
        """Draw the time that a message takes."""
        low, high = self.latency_s
        delay = low if low == high else math.exp(rng.uniform(math.log(low), math.log(high)))
        n = message.payload if message.kind is Kind.DONE else count(message.rows) if message.rows is not None else 0
        return delay + self.s_per_byte * (HEADER_BYTES + n * self.row_bytes)

    def collective_s(self, size: int) -> float:
        """Seconds of a gather or a broadcast, on a tree."""
        return (size - 1).bit_length() * self.latency_s[1]


class _What(Enum):
    """What happens to a rank."""

    BEGIN = auto()  # it comes to the round
    DONE = auto()  # it has computed its job
    MESSAGE = auto()  # one arrives
    LOOK = auto()  # it has waited for as long as it wanted to
    END = auto()  # it hears the root's answer to what all have told


class World:
    """All ranks of one round, and what is under way between them."""

    def __init__(self, rounds: Sequence[Round], seconds: Seconds, network: Network, rng: random.Random) -> None:
        self.rounds, self.network, self.rng = rounds, network, rng
        self.now = 0.0
        self.times = Times(*np.zeros((4, len(rounds))))
        self.jobs: list[tuple[Job, float] | None] = [None] * len(rounds)  # in hand, with the seconds that they take
        self.inbox: list[list[Arrival]] = [[] for _ in rounds]  # of ranks in the middle of a job
        self.n_messages = 0
        self._seconds = seconds
        self._events: list[tuple[float, int, int, _What, Arrival | None]] = []  # time, number, rank, ...
        self._n_events = 0
        # The last message between two ranks; of a rank and itself: the next look.
        self._arrives: dict[tuple[int, int], float] = {}

    def under_way(self) -> list[tuple[int, int, Message]]:
        """(source, destination, message) of all messages that no rank has served."""
        flying = [(arrival[0], rank, arrival[1]) for _, _, rank, _, arrival in self._events if arrival is not None]
        waiting = [(source, rank, message) for rank, inbox in enumerate(self.inbox) for source, message in inbox]
        return flying + waiting

    @property
    def busy_s(self) -> Floats:
        """(P,) seconds of each rank with jobs."""
        return self.times.busy_s

    def run(
        self,
        begin_s: Iterable[float],
        on_step: Callable[[World], None] | None = None,
        on_ready: Callable[[int], object] | None = None,
    ) -> Floats:
        """Play the round to its end; (P,) when each rank is through.  ProtocolError if that never comes.

        Rank r begins at begin_s[r].  `on_step` is called after each event.
        """
        ends_s, n_told = np.full(len(self.rounds), np.nan), 0
        for rank, at in enumerate(begin_s):
            self._schedule(at, rank, _What.BEGIN)
        while self._events:
            self.now, _, rank, what, arrival = heapq.heappop(self._events)
            round = self.rounds[rank]
            if what is _What.END:
                round.end()
                ends_s[rank] = self.now
            elif not round.over:
                self._serve(rank, what, arrival)
            if round.ready:
                (on_ready or (lambda rank: self.rounds[rank].tell()))(rank)
                n_told += 1
                if n_told == len(self.rounds):
                    self._end()
            if on_step is not None:
                on_step(self)
        if np.isnan(ends_s).any():
            raise ProtocolError(f"the round never ends for rank {int(np.isnan(ends_s).argmax())}")
        return ends_s

    def fails(self, _rank: int, _job: Job) -> bool:
        """True when the user's function is to raise in this job."""
        return False

    def _serve(self, rank: int, what: _What, arrival: Arrival | None) -> None:
        round, job = self.rounds[rank], self.jobs[rank]
        if arrival is not None:
            self.inbox[rank].append(arrival)
        if what is _What.DONE and job is not None:
            self.jobs[rank] = None
            self._finish(rank, *job)
        elif job is not None or (round.to_lend is not None and what is not _What.BEGIN):
            return  # it hears of it at the end of the job, or when it has come
        arrived, self.inbox[rank] = self.inbox[rank], []
        self._post(rank, round.turn(self.now, arrived))
        self._begin(rank)

    def _end(self) -> None:
        for rank in range(len(self.rounds)):
            self._schedule(self.now + 2 * self.network.collective_s(len(self.rounds)), rank, _What.END)

    def _begin(self, rank: int) -> None:
        job, wake_at = self.rounds[rank].job, self.rounds[rank].wake_at
        if job is not None:
            seconds = self._seconds(rank, job)
            self.jobs[rank] = job, seconds
            self.times.add(rank, seconds)
            self._schedule(self.now + seconds + self.times.handling_s[rank], rank, _What.DONE)
        elif self._arrives.get((rank, rank), -math.inf) < wake_at < math.inf:  # it never wants to look earlier than it said
            self._arrives[rank, rank] = wake_at
            self._schedule(wake_at, rank, _What.LOOK)

    def _finish(self, rank: int, job: Job, seconds: float) -> None:
        round = self.rounds[rank]
        if self.fails(rank, job):
            self._post(rank, round.fail())
            return
        self._post(rank, round.done(job, seconds, seconds, count(job.rows)))

    def _post(self, rank: int, sends: Iterable[Send]) -> None:
        for destination, message in sends:
            pair = (rank, destination)
            at = max(self.now + self.network.delay_s(message, self.rng), self._arrives.get(pair, 0.0))
            self._arrives[pair] = at
            self.n_messages += 1
            self._schedule(at, destination, _What.MESSAGE, (rank, message))

    def _schedule(self, at: float, rank: int, what: _What, arrival: Arrival | None = None) -> None:
        self._n_events += 1
        heapq.heappush(self._events, (at, self._n_events, rank, what, arrival))


Worlds = Callable[[Sequence[Round], Seconds, Network, random.Random], World]


class Cluster:
    """All ranks from call to call: on a process `graph`, with (P,) `speeds` in units of work per second.

    `scheme` as for `diffusion.setup.prepare`; what the root itself computes takes no time here, in any scheme.  Ticks of a
    rank are seconds of its own time.  `noise`: the standard deviation of the logarithm of a job's time.
    """

    def __init__(
        self,
        graph: Graph,
        speeds: ArrayLike,
        *,
        scheme: str = "direct",
        tolerance: float = 0.05,
        when: When = "auto",
        every: int = 1,
        network: Network | None = None,
        noise: float = 0.0,
        seed: int = 0,
        world_class: Worlds = World,
    ) -> None:
        self.world_class = world_class
        self.graph, self.speeds = graph, check_speeds(speeds, graph.n)
        self.tolerance, chosen = number("tolerance", tolerance, above=0.0), chosen_scheme(graph, scheme)
        self.network, self.noise = network or Network(), number("noise", noise, least=0.0, most=MOST_SPREAD)
        self.courses = [Course(rank, graph.n, graph.neighbours(rank).tolist()) for rank in range(graph.n)]
        planner = Direct(graph).plan if chosen == "direct" else None
        self.judge = Judge(graph.n, Trigger(when, every, tolerance), planner)
        self.setup: Setup = prepare(graph, np.ones(graph.n), chosen)
        self._carried_s = np.zeros((2, graph.n))  # busy, and ticks of it, after it had told: for the next call's report
        self.rng = random.Random(check_seed(seed))
        self.told = [Told()] * graph.n  # what each rank has learned from the last call

    @property
    def scheme(self) -> str:
        """The scheme that was chosen."""
        return self.setup.scheme

    def call(self, costs: Sequence[Floats], begin_s: Floats | None = None) -> Call:
        """One call of `map_blocks`; costs[r]: (n,) units of work of the rows of rank r.

        Rank r comes begin_s[r] >= 0 seconds after the call before was over (None: at once), which count, too.
        """
        late_s = np.zeros(self.graph.n) if begin_s is None else begin_s
        rounds = [course.begin(len(mine), 0) for course, mine in zip(self.courses, costs, strict=True)]
        world = self.world_class(rounds, _Clock(costs, self.speeds, self.noise, self.rng).seconds, self.network, self.rng)
        world.times.handling_s[:] = self.network.handling / self.speeds
        reports = np.empty(self.graph.n, dtype=REPORT)
        told_s = np.zeros((2, self.graph.n))

        def tell(rank: int) -> None:
            told_s[:, rank] = world.times.busy_s[rank], world.times.ticks[rank]
            reports[rank] = self._report(rank, world, self._carried_s[:, rank] + told_s[:, rank], float(late_s[rank]))

        ends_s = world.run(late_s, on_ready=tell)
        self._carried_s = np.array(world.times[:2]) - told_s
        verdict = self.judge.hear(reports)
        for course in self.courses:
            course.hear(verdict)
        seconds = float(ends_s.max())
        if verdict.decision.act:
            spent_s = self._rebalance(verdict)
            self.judge.changed(lending=self.courses[0].is_lending, seconds=spent_s)
            seconds += spent_s
        work = np.array([mine.sum() for mine in costs])
        return Call(
            seconds,
            end_s(float(work.sum()), self.speeds, late_s),
            float((late_s + work / self.speeds).max()),
            verdict.rows,
            verdict.bytes,
            verdict.decision.act,
            verdict.decision.words,
            world.n_messages,
        )

    def _report(self, rank: int, world: World, busy: Floats, began_s: float) -> tuple[Any, ...]:
        """What a rank tells; `busy`: seconds, ticks."""
        learned, (busy_s, ticks) = world.rounds[rank].tell(), busy.tolist()
        handling_s = max(0.0, busy_s - ticks) / max(1.0, float(world.times.blocks[rank]))
        told = self.told[rank] = self.courses[rank].learn(learned, busy_s, ticks, handling_s)
        rows, n_bytes = learned.rows_lent, 2 * learned.rows_lent * self.network.row_bytes
        return Report(False, 0, told.work, busy_s, ticks, 0.0, rows, n_bytes, told.helped, began_s, told.seen).fields()

    def _rebalance(self, verdict: Verdict) -> float:
        """Another distribution for the calls to come; the seconds that finding it takes, beside what a call ends with."""
        made, steps = verdict.plan, 0
        if made is None and verdict.decision.reason is not Reason.HOME:
            if float(np.abs(self.judge.speeds / self.setup.speeds - 1.0).max()) > STALE:
                self.setup = prepare(self.graph, self.judge.speeds, self.setup.scheme)
            loads = [course.work for course in self.courses]
            diffusion = Diffusion(self.setup, loads)
            while diffusion.steps < MAX_STEPS and not (diffusion.steps and diffusion.converged(self.tolerance)):
                diffusion.step()
            made = plan(self.graph, diffusion.flow(), loads, self.setup.speeds)
            steps = diffusion.steps
        for course in self.courses:
            course.follow(made)
        if not steps:
            return 0.0
        collective_s = self.network.collective_s(self.graph.n)  # a gather, a broadcast; in cg also a sum in each step
        return 2 * collective_s + steps * (self.network.latency_s[1] + collective_s * (self.setup.scheme == "cg"))


class _Clock:
    """How long jobs take."""

    def __init__(self, costs: Sequence[Floats], speeds: Floats, noise: float, rng: random.Random) -> None:
        self._sums = [np.concatenate([[0.0], np.cumsum(mine)]) for mine in costs]
        self._costs, self._speeds, self._noise, self._rng = costs, speeds, noise, rng

    def seconds(self, rank: int, job: Job) -> float:
        """Draw the seconds of `job` on `rank`."""
        rows: Rowset = job.rows
        if isinstance(rows, slice):
            sums = self._sums[job.owner]
            work = float(sums[rows.stop] - sums[rows.start])
        else:
            work = float(self._costs[job.owner][rows].sum())
        noise = math.exp(self._rng.gauss(0.0, self._noise)) if self._noise else 1.0
        return noise * work / float(self._speeds[rank])


def row_costs(kind: str, n_ranks: int, n_rows: int, *, seed: int = 0, spread: float = 1.0, period: int = 100) -> Costs:
    """Costs of rows by call: of `n_rows` on each rank, 1 unit of work in the mean.

    "constant"; "lognormal": the logarithms have the standard deviation `spread`, the same in each call; "hotspot": a
    warm region, that costs up to 1 + 4 `spread` as much, moves over all ranks once in `period` calls.  ValueError for
    other words.
    """
    choice("costs", kind, ROWS)
    ranks, rows = integer("n_ranks", n_ranks, 1), integer("n_rows", n_rows, 1)
    width, calls = number("spread", spread, least=0.0, most=MOST_SPREAD), integer("period", period, 1)
    if kind == "constant":
        same = [np.ones(rows)] * ranks
        return lambda _call: same
    if kind == "lognormal":
        rng = np.random.default_rng(check_seed(seed))
        drawn = list(rng.lognormal(-0.5 * width**2, width, (ranks, rows)))
        return lambda _call: drawn
    place = np.arange(ranks * rows) / (ranks * rows)

    def hot(call: int) -> Sequence[Floats]:
        cost = 1.0 + 4.0 * width * np.maximum(0.0, np.cos(2.0 * np.pi * (place - call / calls)))
        return list((cost / cost.mean()).reshape(ranks, rows))

    return hot


def simulate(cluster: Cluster, costs: Costs, calls: int, on_call: Callable[[int, Call], Any] | None = None) -> list[Call]:
    """So many calls in a row, one after the other; `on_call` hears of each."""
    done = []
    for number_of_call in range(integer("calls", calls, 1)):
        done.append(cluster.call(costs(number_of_call)))
        if on_call is not None:
            on_call(number_of_call, done[-1])
    return done
