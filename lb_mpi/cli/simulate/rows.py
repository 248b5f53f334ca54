"""Rows on a virtual clock: the same objects as on MPI, with any number of ranks.   (pure)

A call of `map_rows` is a round of all ranks (`lb_mpi.balancing.round`, `knowledge`), their deciders, and now and then a plan
that they make together (`decider`, `neighbours`), on the virtual carrier (`lb_mpi.virtual`).  A row takes its cost / the
rank's speed.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.actor import Story, T_co
from lb_mpi.balancing.decider import Decider, RootPlanner
from lb_mpi.balancing.deciding import (
    Decided,
    Policy,
    RankReport,
    Trigger,
    When,
    end_s,
)
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.neighbours import NEAR, NeighbourPlanner, momentum
from lb_mpi.balancing.record import Loans
from lb_mpi.balancing.round import (
    Arrival,
    Computed,
    Job,
    Packing,
    Round,
    RoundKind,
    RoundMessage,
    Rowset,
    Send,
    Unpacking,
    count,
)
from lb_mpi.checks import choice, integer, number
from lb_mpi.checks import seed as check_seed
from lb_mpi.diffusion.setup import rows_scheme
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats, Graph
from lb_mpi.knowledge import KnownSpeeds
from lb_mpi.metrics import check_speeds
from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record
from lb_mpi.reduction import reduced
from lb_mpi.virtual import Network, Stories, Virtual, collective_s, run_together


class SimulatedCall(NamedTuple):
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


class World(Virtual[RoundMessage, Job | Packing | Unpacking]):
    """All ranks of one round, and the messages in transit; the reduction at the end uses a tree."""

    def __init__(
        self, rounds: Sequence[Round], seconds: Seconds, network: Network, rng: random.Random, row_bytes: int = 8,
        recorded: SimulatedRows | None = None,
    ) -> None:
        super().__init__(rounds, network, rng)
        self.rounds, self.row_bytes, self._recorded = rounds, row_bytes, recorded
        self.n_computed = [0] * len(rounds)  # rows, by rank
        self.busy_s = np.zeros(len(rounds))  # (P,) seconds with jobs, which are also the ticks
        self._seconds = seconds
        self._took_s = [0.0] * len(rounds)  # by the current job
        self.reported_s: dict[int, tuple[float, float]] = {}  # by rank: when it ended, and busy_s then
        self._answer_s = 2 * collective_s(network, len(rounds))  # from the last SETTLED to the answer

    def run(self, begin_s: Iterable[float], on_step: Callable[[World], None] | None = None) -> Floats:
        """Run the round to its end; (P,) when each rank has finished.  ProtocolError if some rank never does.

        Rank r begins at begin_s[r].  `on_step` is called after each turn.
        """
        for rank, at in enumerate(begin_s):
            self.start(rank, at)
        while self.step():
            if on_step is not None:
                on_step(self)
        ends_s = np.array(self.ended_s)
        if np.isnan(ends_s).any():
            raise ProtocolError(f"the round never ends for rank {int(np.isnan(ends_s).argmax())}")
        return ends_s

    def begin(self, rank: int, job: Job | Packing | Unpacking) -> float:
        """Return the seconds to compute rows; objects are packed and opened in no time."""
        if not isinstance(job, Job):
            return 0.0
        self._took_s[rank] = seconds = self._seconds(rank, job)
        self.busy_s[rank] += seconds
        self.n_computed[rank] += count(job.rows)
        return seconds

    def end(self, rank: int, job: Job | Packing | Unpacking) -> Computed | int:
        """Return the outcome: ticks are seconds, a payload is the number of rows."""
        if not isinstance(job, Job):
            return 0 if job.message.rows is None else count(job.message.rows)
        return Computed(self._took_s[rank], self._took_s[rank], count(job.rows))

    def turned(self, rank: int, arrived: Sequence[Arrival], sends: Sequence[Send]) -> None:
        """Record a turn."""
        if self._recorded is not None:
            self._recorded.turned(self, rank, sends)

    def n_bytes(self, message: RoundMessage) -> int:
        """Count a header, and the rows."""
        n = message.payload if message.kind is RoundKind.DONE else count(message.rows) if message.rows is not None else 0
        return HEADER_BYTES + n * self.row_bytes

    def post(self, source: int, destination: int, message: RoundMessage) -> None:
        """Send a message; SETTLED is a reduction over all."""
        if message.kind is not RoundKind.SETTLED:
            super().post(source, destination, message)
            return
        self.reported_s[source] = self.now, float(self.busy_s[source])
        if len(self.reported_s) == len(self.rounds):
            for rank in range(len(self.rounds)):
                self.deliver(destination, rank, RoundMessage(RoundKind.OVER), self.now + self._answer_s)


PLANNING_S = 20e-6  # of the root for each rank, measured on 10,000 ranks


class SimulatedRows:
    """Records the calls of a `Cluster` of `size` ranks."""

    def __init__(self, size: int) -> None:
        self.records = [Record(0.0) for _ in range(size)]
        self.now = 0.0  # virtual time at which the current call began
        self._loans = [Loans(record, list(range(size)), rank) for rank, record in enumerate(self.records)]

    def turned(self, world: World, rank: int, sends: Sequence[Send]) -> None:
        """Record the loans and the phase of a rank."""
        now, loans = self.now + world.now, self._loans[rank]
        for destination, message in sends:
            if message.kind in (RoundKind.PLANNED, RoundKind.HELP) and message.rows is not None:
                loans.lent(destination, count(message.rows))
        job = world.rounds[rank].job
        phase = Phase.PACKING
        if not isinstance(job, Packing | Unpacking):
            phase = Phase.WAITING if job is None else Phase.OWN if job.owner == rank else Phase.FOREIGN
        self.records[rank].enter(phase, now)

    def called(self, cluster: Cluster, world: World, call: SimulatedCall) -> None:
        """Record a finished call."""
        trigger = cluster.policy.trigger
        how = {"scheme": cluster.scheme, "tolerance": trigger.tolerance, "when": trigger.when, "every": trigger.every}
        began, self.now = self.now, self.now + call.seconds
        after = float(world.busy_s.max()) / call.bound_s - 1.0 if call.bound_s else 0.0
        before = call.alone_s / call.bound_s - 1.0 if call.bound_s else 0.0
        speeds = cluster.speeds / cluster.speeds.mean()
        for rank, (record, loans, knowledge) in enumerate(zip(self.records, self._loans, cluster.known_by, strict=True)):
            record.use("map_rows", {**how, "neighbours": knowledge.neighbours})
            record.enter(Phase.WAITING, self.now)
            loans.know(self.now, knowledge)
            home = 0 if knowledge.costs is None else len(knowledge.costs)
            reason = record.reason(call.reason.partition(";")[0])
            busy_s, speed, done = float(world.busy_s[rank]), float(speeds[rank]), world.n_computed[rank]
            step = Step(Driver.ROWS, began, self.now, busy_s, done, speed, before, after, call.rows_moved, int(call.acted))
            record.step(step._replace(reason=reason, home=home, home_s=knowledge.home_s))


def round_at_home(knowledge: Knowledge, n: int, *, learns: bool) -> Round:
    """Begin a call at home, in which a rank computes its n rows in one block; `learns`: from its time."""
    knowledge.describe(n, 0)
    home = [slice(0, n)] if n else []
    return Round(knowledge.rank, home, lent={}, lenders=(), neighbours=(), speeds={}, quick=not learns)


class Cluster:
    """All ranks from call to call: on a process `graph`, with (P,) `speeds` in units of work per second.

    `scheme` as for `lb_mpi.Balancer`.  Ticks of a rank are seconds of its own time.  `noise`: standard deviation of the
    logarithm of a job's time.  `row_bytes`: of a row, and of its result.  `recorded` gets a record of all calls.
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
        noise: float = 0.0,
        seed: int = 0,
        recorded: SimulatedRows | None = None,
        known: KnownSpeeds | None = None,
    ) -> None:
        self._recorded = recorded
        self.graph, self.speeds = graph, check_speeds(speeds, graph.n)
        self.scheme, trigger = rows_scheme(graph, scheme), functools.partial(Trigger, when, every, tolerance)
        self.network = (network or Network()).checked()
        self.noise = number("noise", noise, least=0.0, most=MOST_SPREAD)
        self.row_bytes = integer("row_bytes", row_bytes, 0)
        self.deciders: list[Decider]
        near = [graph.neighbours(rank).tolist() for rank in range(graph.n)]
        if self.scheme == "direct":
            self.known_by = [Knowledge(rank, range(graph.n), mine) for rank, mine in enumerate(near)]
            self.deciders = [RootPlanner(one, graph, trigger(), known) for one in self.known_by]
        else:
            omega = momentum(graph, self.scheme)
            self.known_by = [Knowledge(rank, [rank, *mine], mine) for rank, mine in enumerate(near)]
            self.deciders = [NeighbourPlanner(one, graph.n, trigger(), omega) for one in self.known_by]
        self._carried_s = np.zeros(graph.n)  # busy seconds after the end: for the next call's report
        self._last_s = math.nan  # seconds of the last call
        self.rng = random.Random(check_seed(seed))

    @property
    def policy(self) -> Policy:
        """The rules when to balance, as rank 0 has them."""
        return self.deciders[0].policy

    def call(self, costs: Sequence[Floats], begin_s: Floats | None = None) -> SimulatedCall:
        """Simulate one call of `map_rows`; costs[r]: (n,) units of work of the rows of rank r.

        Rank r comes begin_s[r] >= 0 seconds (None: 0) after the end of the last call; the call's time includes them.
        """
        late_s = np.zeros(self.graph.n) if begin_s is None else begin_s
        first_s = self._begin(costs)
        rounds = [
            round_at_home(knowledge, len(mine), learns=one.learns)
            if one.at_home
            else knowledge.begin(len(mine), 0, quick=one.quick_left > 0)
            for knowledge, mine, one in zip(self.known_by, costs, self.deciders, strict=True)
        ]
        seconds_of = _Clock(costs, self.speeds, self.noise, self.rng).seconds
        world = World(rounds, seconds_of, self.network, self.rng, self.row_bytes, self._recorded)
        ends_s = world.run(late_s)
        ended_s, reported_s = np.array([world.reported_s[rank] for rank in range(self.graph.n)]).T
        busy_s, self._carried_s = self._carried_s + reported_s, world.busy_s - reported_s
        n_bytes = [2 * round.learned.rows_lent * self.row_bytes for round in rounds]
        decided = self._end(rounds, busy_s, n_bytes, late_s, ended_s - late_s)
        seconds, decision = first_s + float(ends_s.max()), decided.decision
        if decision.needs_plan:
            seconds += self._rebalance()
        self._last_s, work = seconds, np.array([mine.sum() for mine in costs])
        call = SimulatedCall(
            seconds,
            end_s(float(work.sum()), self.speeds, late_s),
            float((late_s + work / self.speeds).max()),
            decided.rows,
            decided.bytes,
            decision.act,
            decision.reason.words,
            sum(world.sent),
        )
        if self._recorded is not None:
            self._recorded.called(self, world, call)
        return call

    def _begin(self, costs: Sequence[Floats]) -> float:
        """Make the plan of the first call, if speeds are known; the seconds that this takes."""
        making = [decider.begin(len(mine)) for decider, mine in zip(self.deciders, costs, strict=True)]
        if (begun := [one for one in making if one is not None]) != making:
            return 0.0
        made, seconds = plan_together(begun, self.graph, self.network)
        for decider, (plan, _) in zip(self.deciders, made, strict=True):
            decider.begun(plan)
        return seconds + self.graph.n * PLANNING_S

    def _end(
        self, rounds: Sequence[Round], busy_s: Floats, n_bytes: Sequence[int], late_s: Floats, elapsed_s: Floats
    ) -> Decided:  # fmt: skip
        """End a call; the decision."""
        reports = []
        for rank, round in enumerate(rounds):
            busy, began, elapsed = float(busy_s[rank]), float(late_s[rank]), float(elapsed_s[rank])
            report = RankReport(
                busy_s=busy, ticks=busy, rows=round.learned.rows_lent, bytes=n_bytes[rank], began_s=began,
                elapsed_s=elapsed, last_s=self._last_s, home=len(self.known_by[rank].costs or ()),
            )  # fmt: skip
            reports.append(self.deciders[rank].report(report, round.learned))
        all_ranks = reduced(reports)
        decisions = [decider.decide(all_ranks) for decider in self.deciders]
        return decisions[0]

    def _rebalance(self) -> float:
        """Make a new plan, for the next calls; the seconds that this adds to the call."""
        made, seconds = plan_together([decider.plan() for decider in self.deciders], self.graph, self.network)
        seconds += self.graph.n * PLANNING_S * (self.scheme == "direct")
        for decider, (plan, _) in zip(self.deciders, made, strict=True):
            decider.follow(plan, seconds)
        return seconds


class PlanWorld(Stories):
    """All ranks of a plan.  Numbers to the neighbours arrive everywhere when all ranks have sent theirs."""

    def __init__(self, making: Sequence[Story[Any]], graph: Graph, network: Network) -> None:
        super().__init__(making, network)
        self._graph = graph
        self._back = np.lexsort((np.repeat(np.arange(graph.n), graph.degrees), graph.indices))  # edge j to i
        self._slices = [slice(*ends) for ends in itertools.pairwise(graph.indptr.tolist())]

    def n_bytes(self, message: Any) -> int:
        """Count the numbers of a table."""
        return int(message.nbytes)

    def answer(self, target: int, everyone: Sequence[Any]) -> tuple[Sequence[Any], float]:
        """See `Stories`."""
        if target != NEAR:
            return super().answer(target, everyone)
        rows = np.array(everyone)[self._graph.indices] if everyone[0].ndim == 1 else np.concatenate(everyone)[self._back]
        return [rows[one] for one in self._slices], self.network.latency_s[1]


def plan_together(making: Sequence[Story[T_co]], graph: Graph, network: Network) -> tuple[list[T_co], float]:
    """Make the plans of all ranks; return what each has found, and the seconds that this takes."""
    world = PlanWorld(making, graph, network)
    return run_together(world, making), world.now


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
    calls = integer("period", period, 1)
    if kind == "constant":
        same = [np.ones(rows)] * ranks
        return lambda _call: same
    if kind == "lognormal":
        rng = np.random.default_rng(check_seed(seed))
        drawn = list(rng.lognormal(-0.5 * spread**2, spread, (ranks, rows)))
        return lambda _call: drawn
    positions = np.arange(ranks * rows) / (ranks * rows)

    def hot(call: int) -> Sequence[Floats]:
        cost = 1.0 + 4.0 * spread * np.maximum(0.0, np.cos(2.0 * np.pi * (positions - call / calls)))
        return list((cost / cost.mean()).reshape(ranks, rows))

    return hot


def simulate(
    cluster: Cluster, costs: Costs, calls: int, on_call: Callable[[int, SimulatedCall], Any] | None = None
) -> list[SimulatedCall]:
    """Run `calls` calls one after the other; `on_call` is called after each."""
    done, collects = [], gc.isenabled()
    gc.disable()  # with many ranks, to look for cycles of references takes a third of the time, for nothing
    try:
        for number_of_call in range(integer("calls", calls, 1)):
            done.append(cluster.call(costs(number_of_call)))
            if on_call is not None:
                on_call(number_of_call, done[-1])
    finally:
        if collects:
            gc.enable()
    return done
