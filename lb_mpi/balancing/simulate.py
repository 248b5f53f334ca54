"""Rows on a virtual clock: the same objects as on MPI, with any number of ranks.   (pure)

A call of `map_rows` is a round of all ranks (`lb_mpi.balancing.round`, `course`), the judge on the root and diffusion
on the process graph, or the judges of all ranks and their exchanges (`neighbours`), on the virtual carrier
(`lb_mpi.virtual`).  A row takes its cost / the rank's speed.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.balancing.course import Course, Told
from lb_mpi.balancing.judge import REPORT, Judge, Policy, RankReport, Verdict, end_s, verdict_dtype
from lb_mpi.balancing.migrate import ROWS as NUMBERS
from lb_mpi.balancing.migrate import Plan
from lb_mpi.balancing.neighbours import (
    Ask,
    Fetch,
    LoadExchange,
    NeighbourJudge,
    Planning,
    Post,
    Reduction,
    momentum,
)
from lb_mpi.balancing.record import Loans
from lb_mpi.balancing.round import Arrival, Computed, Job, Learned, Round, RoundKind, RoundMessage, Rowset, Send, count
from lb_mpi.balancing.trigger import BalanceReason, Trigger, When
from lb_mpi.checks import choice, integer, number
from lb_mpi.checks import seed as check_seed
from lb_mpi.diffusion.setup import rows_scheme
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import check_speeds
from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record
from lb_mpi.virtual import Network, Virtual


class Call(NamedTuple):
    """Time and traffic of one call; seconds are virtual."""

    seconds: float  # until all ranks have finished, and have agreed on what comes next
    bound_s: float  # work / sum of the speeds, or later if ranks come late
    alone_s: float  # without balancing
    rows_moved: int
    bytes_moved: int
    acted: bool  # the distribution was changed for the calls after this one
    reason: str  # in words
    messages: int


Costs = Callable[[int], Sequence[Floats]]  # call -> for each rank, (n,) units of work of its rows
Seconds = Callable[[int, Job], float]  # rank, job -> seconds on that rank
ROWS = ("constant", "lognormal", "hotspot")  # kinds of costs
HEADER_BYTES = 64  # of a message
MOST_SPREAD = 10.0  # standard deviation of a logarithm: beyond, almost all drawn costs are 0


class World(Virtual[RoundMessage, Job]):
    """All ranks of one round, and the messages in transit; the final gather and broadcast use a tree."""

    def __init__(
        self, rounds: Sequence[Round], seconds: Seconds, network: Network, rng: random.Random, row_bytes: int = 8
    ) -> None:
        super().__init__(rounds, network, rng)
        self.rounds, self.row_bytes = rounds, row_bytes
        # (P,) seconds with jobs; ticks among them; number of jobs; handling seconds added to each job
        self.busy_s, self.ticks, self.blocks, self.handling_s = np.zeros((4, len(rounds)))
        self._seconds = seconds
        self._took_s = [0.0] * len(rounds)  # by the current job
        self._on_learned: Callable[[int, Learned], object] = lambda rank, learned: None
        self._n_told = 0
        self.answer_s = 2 * collective_s(network, len(rounds))  # from the last LEARNED to OVER

    def run(
        self,
        begin_s: Iterable[float],
        on_step: Callable[[World], None] | None = None,
        on_learned: Callable[[int, Learned], object] | None = None,
    ) -> Floats:
        """Run the round to its end; (P,) when each rank has finished.  ProtocolError if some rank never does.

        Rank r begins at begin_s[r].  `on_step` is called after each turn, `on_learned` when a rank sends LEARNED.
        """
        self._on_learned = on_learned or self._on_learned
        for rank, at in enumerate(begin_s):
            self.start(rank, at)
        while self.step():
            if on_step is not None:
                on_step(self)
        del self._on_learned  # it may refer to this world
        ends_s = np.array(self.ended_s)
        if np.isnan(ends_s).any():
            raise ProtocolError(f"the round never ends for rank {int(np.isnan(ends_s).argmax())}")
        return ends_s

    def begin(self, rank: int, job: Job) -> float:
        """Return the seconds to compute and handle rows."""
        self._took_s[rank] = seconds = self._seconds(rank, job)
        self.busy_s[rank] += seconds + self.handling_s[rank]
        self.ticks[rank] += seconds
        self.blocks[rank] += 1
        return seconds + float(self.handling_s[rank])

    def end(self, rank: int, job: Job) -> Computed:
        """Return the outcome: ticks are seconds, the payload is the number of rows."""
        return Computed(self._took_s[rank], self._took_s[rank], count(job.rows))

    def n_bytes(self, message: RoundMessage) -> int:
        """Count a header, and the rows."""
        n = message.payload if message.kind is RoundKind.DONE else count(message.rows) if message.rows is not None else 0
        return HEADER_BYTES + n * self.row_bytes

    def post(self, source: int, destination: int, message: RoundMessage) -> None:
        """Send a message; LEARNED to the root and its answer are a gather and a broadcast, or a reduction over all."""
        if message.kind is not RoundKind.LEARNED:
            super().post(source, destination, message)
            return
        self._on_learned(source, message.payload)
        self._n_told += 1
        for rank in range(len(self.rounds)) if self._n_told == len(self.rounds) else ():
            self.deliver(destination, rank, RoundMessage(RoundKind.OVER), self.now + self.answer_s)


def collective_s(network: Network, size: int) -> float:
    """Seconds of a gather, a broadcast or one half of a reduction of a few numbers, on a tree."""
    return (size - 1).bit_length() * network.latency_s[1]


# Seconds of the root for each rank, measured on 10,000 ranks: `Judge.hear`, without and with a plan.
HEARING_S, PLANNING_S = 0.5e-6, 20e-6


def root_s(network: Network, size: int) -> float:
    """Seconds of the root of `size` ranks in each call: it receives and judges all reports, and answers all ranks.

    The answer has three numbers for each rank; it passes through the tree in parts, so its bytes count once.
    """
    n_bytes = (size - 1) * REPORT.itemsize + verdict_dtype(size).itemsize
    return n_bytes / network.bytes_per_s + size * HEARING_S


Worlds = Callable[[Sequence[Round], Seconds, Network, random.Random, int], World]


class Cluster:
    """All ranks from call to call: on a process `graph`, with (P,) `speeds` in units of work per second.

    `scheme` as for `lb_mpi.Balancer`.  Ticks of a rank are seconds of its own time.  `noise`: standard deviation of the
    logarithm of a job's time.  `row_bytes`: of a row, and of its result.  `handling`: units of work that a block needs
    beside its rows.
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
        row_bytes: int = 8,
        handling: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        world_class: Worlds = World,
    ) -> None:
        self.world_class = world_class
        self.graph, self.speeds = graph, check_speeds(speeds, graph.n)
        self.tolerance, self.scheme = number("tolerance", tolerance, above=0.0), rows_scheme(graph, scheme)
        self.network = (network or Network()).checked()
        self.noise = number("noise", noise, least=0.0, most=MOST_SPREAD)
        self.row_bytes = integer("row_bytes", row_bytes, 0)
        self.handling = number("handling", handling, least=0.0)
        self.answer_s = 2 * collective_s(self.network, graph.n)
        if self.scheme != "direct":
            omega, everyone = momentum(graph, self.scheme), [graph.neighbours(rank).tolist() for rank in range(graph.n)]
            self.courses = [Course(rank, [rank, *near], near) for rank, near in enumerate(everyone)]
            self.judges = [NeighbourJudge(one, graph.n, Trigger(when, every, tolerance), omega) for one in self.courses]
        else:
            self.courses = [Course(rank, range(graph.n), graph.neighbours(rank).tolist()) for rank in range(graph.n)]
            self.judge = Judge(graph, Trigger(when, every, tolerance))
            self.answer_s += root_s(self.network, graph.n)
        self._carried_s = np.zeros((2, graph.n))  # busy seconds and ticks after LEARNED: for the next call's report
        self.rng = random.Random(check_seed(seed))
        self.told = [Told()] * graph.n  # by each rank in the last call

    @property
    def policy(self) -> Policy:
        """The rules when to balance; those of rank 0 if each rank decides by itself."""
        return self.judge.policy if self.scheme == "direct" else self.judges[0].policy

    def call(self, costs: Sequence[Floats], begin_s: Floats | None = None) -> Call:
        """Simulate one call of `map_rows`; costs[r]: (n,) units of work of the rows of rank r.

        Rank r comes begin_s[r] >= 0 seconds (None: 0) after the end of the last call; the call's time includes them.
        """
        late_s = np.zeros(self.graph.n) if begin_s is None else begin_s
        rounds = [course.begin(len(mine), 0) for course, mine in zip(self.courses, costs, strict=True)]
        seconds_of = _Clock(costs, self.speeds, self.noise, self.rng).seconds
        world = self.world_class(rounds, seconds_of, self.network, self.rng, self.row_bytes)
        world.handling_s[:] = self.handling / self.speeds
        world.answer_s = self.answer_s
        reports: dict[int, RankReport] = {}
        told_s = np.zeros((2, self.graph.n))

        def report(rank: int, learned: Learned) -> None:
            told_s[:, rank] = world.busy_s[rank], world.ticks[rank]
            busy = self._carried_s[:, rank] + told_s[:, rank]
            reports[rank] = self._report(rank, learned, world, busy, float(late_s[rank]))

        ends_s = world.run(late_s, on_learned=report)
        self._carried_s = np.array([world.busy_s, world.ticks]) - told_s
        verdicts = self._hear([reports[rank] for rank in range(self.graph.n)])
        for course, round, each in zip(self.courses, rounds, verdicts, strict=True):
            course.hear(each, round.learned.late_ticks)
        verdict, seconds = verdicts[0], float(ends_s.max())
        if verdict.decision.act:
            seconds += self._rebalance(verdict)
        work = np.array([mine.sum() for mine in costs])
        return Call(
            seconds,
            end_s(float(work.sum()), self.speeds, late_s),
            float((late_s + work / self.speeds).max()),
            verdict.rows,
            verdict.bytes,
            verdict.decision.act,
            verdict.decision.words,
            sum(world.sent),
        )

    def _report(self, rank: int, learned: Learned, world: World, busy: Floats, began_s: float) -> RankReport:
        """The report of a rank; `busy`: seconds, ticks."""
        busy_s, ticks = busy.tolist()
        handling_s = max(0.0, busy_s - ticks) / max(1.0, float(world.blocks[rank]))
        told = self.told[rank] = self.courses[rank].learn(learned, busy_s, ticks, handling_s)
        rows, n_bytes = learned.rows_lent, 2 * learned.rows_lent * self.row_bytes
        return RankReport(False, 0, 0, told.work, busy_s, ticks, 0.0, rows, n_bytes, told.helped, began_s, told.seen)

    def _hear(self, reports: Sequence[RankReport]) -> Sequence[Verdict]:
        """The verdict for each rank."""
        if self.scheme != "direct":
            all_ranks = reduced([judge.report(report) for judge, report in zip(self.judges, reports, strict=True)])
            return [judge.hear(all_ranks) for judge in self.judges]
        return [self.judge.hear(np.array([report.fields() for report in reports], dtype=REPORT))] * len(reports)

    def _rebalance(self, verdict: Verdict) -> float:
        """Change the distribution for the next calls; the seconds that this adds to the call."""
        home = verdict.decision.reason is BalanceReason.HOME
        plans: Sequence[Plan | None] = [None] * self.graph.n
        seconds = 0.0
        if self.scheme != "direct":
            if not home:
                making = [judge.plan() for judge in self.judges]
                made, seconds = in_step(making, self.graph, self.network)
                plans = [each for each, _ in made]
            for judge in self.judges:
                judge.changed(lending=not home, seconds=seconds)
        elif verdict.plan is not None:
            plans = [verdict.plan] * self.graph.n
            n_bytes = len(verdict.plan.amounts) * 8 * NUMBERS
            seconds = self.graph.n * PLANNING_S + n_bytes / self.network.bytes_per_s
        for course, mine in zip(self.courses, plans, strict=True):
            course.follow(mine)
        if self.scheme == "direct":
            self.judge.policy.changed(lending=self.courses[0].is_lending, seconds=seconds)
        return seconds


def reduced(numbers: Sequence[Reduction]) -> Reduction:
    """Reduce the numbers of all ranks."""
    return Reduction(*(of([getattr(one, name) for one in numbers], axis=0)
        for name, of in (("sums", np.sum), ("maxima", np.max))))


def in_step(making: Sequence[Planning], graph: Graph, network: Network) -> tuple[list[tuple[Plan, int]], float]:
    """Drive the plans of all ranks; return the plans with their steps, and the seconds that this takes.

    All ranks exchange loads in step.  Then each goes on as soon as it has what it waits for.
    """
    back = np.lexsort((np.repeat(np.arange(graph.n), graph.degrees), graph.indices))  # for edge i to j, edge j to i
    places = [slice(*ends) for ends in itertools.pairwise(graph.indptr.tolist())]
    now, answers = 0.0, deque[tuple[float, Reduction]]()
    requests: list[Any] = [next(one) for one in making]
    done: dict[int, tuple[Plan, int]] = {}
    while not done and (kind := type(requests[0])) not in (Post, Fetch):
        if any(type(one) is not kind for one in requests):
            raise ProtocolError("the ranks are in different steps of one plan")
        replies: Sequence[Any] = [None] * graph.n
        if kind is LoadExchange:
            now += network.latency_s[1]
            if requests[0].numbers.ndim == 1:
                theirs = np.array([one.numbers for one in requests])[graph.indices]
            else:
                theirs = np.concatenate([one.numbers for one in requests])[back]
            replies = [theirs[place] for place in places]
        elif kind is Ask:
            answers.append((now + 2 * collective_s(network, graph.n), reduced([one.numbers for one in requests])))
        else:
            at, answer = answers.popleft()
            now, replies = max(now, at), [answer] * graph.n
        for rank, (one, reply) in enumerate(zip(making, replies, strict=True)):
            try:
                requests[rank] = one.send(reply)
            except StopIteration as ended:
                done[rank] = ended.value
    now = _pass_on(making, requests, done, graph, network, now)
    return [done[rank] for rank in range(graph.n)], now


def _pass_on(
    making: Sequence[Planning], requests: list[Any], done: dict[int, tuple[Plan, int]], graph: Graph, network: Network,
    now: float,
) -> float:
    """Complete `done` with the plans of the other ranks, which post and fetch tables; return when the last one has ended."""
    clock = [now] * graph.n
    wires: dict[tuple[int, int], deque[tuple[float, Floats]]] = {}
    ready = [rank for rank in range(graph.n) if rank not in done]
    near = {rank: graph.neighbours(rank).tolist() for rank in ready}
    while ready:
        rank = ready.pop()
        while rank not in done:
            request, reply = requests[rank], None
            if type(request) is Post:
                other = near[rank][request.neighbour]
                arrives = clock[rank] + network.latency_s[1] + request.table.nbytes / network.bytes_per_s
                wires.setdefault((rank, other), deque()).append((arrives, request.table))
                ready.append(other)
            elif type(request) is Fetch:
                other = near[rank][request.neighbour]
                if not wires.get((other, rank)):
                    break
                arrives, reply = wires[other, rank].popleft()
                clock[rank] = max(clock[rank], arrives)
            else:
                raise ProtocolError("ranks that plan together are not in step")
            try:
                requests[rank] = making[rank].send(reply)
            except StopIteration as ended:
                done[rank] = ended.value
    if len(done) < graph.n or any(wires.values()):
        raise ProtocolError("ranks that plan together wait for ever, or do not fetch what was posted")
    return max(clock)


class _Clock:
    def __init__(self, costs: Sequence[Floats], speeds: Floats, noise: float, rng: random.Random) -> None:
        self._sums = [np.concatenate([[0.0], np.cumsum(mine)]) for mine in costs]
        self._costs, self._noise, self._rng = costs, noise, rng
        self._speeds: list[float] = speeds.tolist()

    def seconds(self, rank: int, job: Job) -> float:
        rows: Rowset = job.rows
        if isinstance(rows, slice):
            sums = self._sums[job.owner]
            work = float(sums[rows.stop] - sums[rows.start])
        else:
            work = float(np.add.reduce(self._costs[job.owner][rows]))
        noise = math.exp(self._rng.gauss(0.0, self._noise)) if self._noise else 1.0
        return noise * work / self._speeds[rank]


def row_costs(kind: str, n_ranks: int, n_rows: int, *, seed: int = 0, spread: float = 1.0, period: int = 100) -> Costs:
    """Costs of rows by call: `n_rows` on each rank, with a mean of 1 unit of work.

    "constant"; "lognormal": the logarithms have the standard deviation `spread`, the same in each call; "hotspot": a
    warm region, which costs up to 1 + 4 `spread` as much, moves over all ranks once in `period` calls.
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
    """Run `calls` calls one after the other; `on_call` is called after each."""
    done = []
    with _no_collector():
        for number_of_call in range(integer("calls", calls, 1)):
            done.append(cluster.call(costs(number_of_call)))
            if on_call is not None:
                on_call(number_of_call, done[-1])
    return done


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python from looking for cycles of references: with many ranks, that takes a third of the time, for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class SimulatedRows:
    """Records calls of a `Cluster` of `size` ranks with world_class=this.world; call `called` after each call."""

    def __init__(self, size: int) -> None:
        self.records = [Record(0.0) for _ in range(size)]
        self.loans = [Loans(record, list(range(size)), rank) for rank, record in enumerate(self.records)]
        self.now = 0.0  # virtual time at which the current call began
        self._world: _World | None = None
        self._used = False  # the settings are recorded

    def world(
        self, rounds: Sequence[Round], seconds: Seconds, network: Network, rng: random.Random, row_bytes: int
    ) -> World:
        """Make the world of one call."""
        self._world = _World(rounds, seconds, network, rng, row_bytes)
        self._world.rows, self._world.done = self, [0] * len(rounds)
        return self._world

    def called(self, cluster: Cluster, call: Call) -> None:
        """Record a finished call."""
        assert self._world is not None
        if not self._used:
            self._used = True
            trigger = cluster.policy.trigger
            how = {"scheme": cluster.scheme, "tolerance": trigger.tolerance, "when": trigger.when, "every": trigger.every}
            for rank, record in enumerate(self.records):
                record.use("map_rows", {**how, "neighbours": cluster.graph.neighbours(rank).tolist()})
        began, self.now = self.now, self.now + call.seconds
        after = float(self._world.busy_s.max()) / call.bound_s - 1.0 if call.bound_s else 0.0
        before = call.alone_s / call.bound_s - 1.0 if call.bound_s else 0.0
        speeds = cluster.speeds / cluster.speeds.mean()
        for rank, record in enumerate(self.records):
            record.enter(Phase.WAITING, self.now)
            costs, worth = cluster.courses[rank].costs, cluster.courses[rank].worth
            home_s = cluster.told[rank].took / float(cluster.courses[rank].speeds[cluster.courses[rank].place])
            home = 0 if costs is None else len(costs)
            if costs is not None and costs.known:
                record.know(self.now, lambda costs=costs, worth=worth: costs.work(worth))  # type: ignore[misc]
            reason = record.reason(call.reason.partition(";")[0])
            busy_s, speed, done = float(self._world.busy_s[rank]), float(speeds[rank]), self._world.done[rank]
            step = Step(Driver.ROWS, began, self.now, busy_s, done, speed, before, after, call.rows_moved, int(call.acted))
            record.step(step._replace(reason=reason, home=home, home_s=home_s))


class _World(World):
    """One call whose phases and loans are recorded."""

    rows: SimulatedRows
    done: list[int]  # rows that each rank has computed

    def arrive(self, rank: int, number: int) -> bool:
        source, _, message = self.under_way[number]
        if message.kind is RoundKind.DONE:
            self.rows.loans[rank].back(source, self.rows.now + self.now, message.payload * self.row_bytes)
        return super().arrive(rank, number)

    def finish(self, rank: int, job: Job) -> list[Send]:
        self.done[rank] += count(job.rows)
        return super().finish(rank, job)

    def turned(self, rank: int, arrived: Sequence[Arrival], sends: Sequence[Send]) -> None:
        for destination, message in sends:
            if message.kind in (RoundKind.PLANNED, RoundKind.HELP) and message.rows is not None:
                n = count(message.rows)
                self.rows.loans[rank].lent(destination, self.rows.now + self.now, n, n * self.row_bytes)
        job = self.rounds[rank].job
        phase = Phase.WAITING if job is None else Phase.OWN if job.owner == rank else Phase.FOREIGN
        self.rows.records[rank].enter(phase, self.rows.now + self.now)
