"""A pool on a virtual clock: the same objects as on MPI, with any number of ranks and hosts.   (pure)

Maps follow each other as on MPI: the root deals, receives results in batches, and sends EndMap to all when the map is over,
while some ranks are still about to steal.  The words of a host are in shared memory: a swap needs time, and may fail because
of other ranks.  One seed gives one run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.checks import choice, integer, virtual_s
from lb_mpi.checks import seed as check_seed
from lb_mpi.errors import ProtocolError
from lb_mpi.knowledge import RankKnowledge, Timing
from lb_mpi.metrics import check_speeds
from lb_mpi.pooling.account import Collector, RankAccount, RankTasks
from lb_mpi.pooling.deal import Floats
from lb_mpi.pooling.intervals import EPOCHS, Interval, unpack
from lb_mpi.pooling.learning import Memory
from lb_mpi.pooling.plan import ChunkRun, MapPlan
from lb_mpi.pooling.stealer import BeginMap, EndMap, Stealer, StealMessage, Swap
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF, Record
from lb_mpi.virtual import Network, Raised, Virtual

ROOT = 0
BATCH_S = 20e-3  # between two sends of results; an idle rank sends them at once
SWAP_S = 0.5e-6  # from reading the words to the end of the swap
POLL_S = 20e-6  # until an idle rank sees that a word was filled
NETWORK = Network((2e-6, 2e-6), (50e-6, 50e-6))  # within a host, and between two
MOST_RANKS = 10_000  # each looks at all words of its host
TASKS = ("constant", "lognormal")  # kinds of costs


class ResultBatch(NamedTuple):
    """A message to the root: these tasks are done; `raised`: the map in which another task has raised."""

    parts: tuple[Interval, ...]
    raised: int | None = None


Mail = StealMessage | BeginMap | EndMap | ResultBatch


class SimulatedMember:
    """One rank: its stealer and its results, which go to the root in batches and are counted there."""

    def __init__(self, stealer: Stealer, account: RankAccount, batch_s: float) -> None:
        self.stealer, self.account, self._batch_s = stealer, account, batch_s
        self.collector = Collector(0, 0)  # of the map, on the root
        self.failed = False  # the root knows that a task has raised
        self.results: list[Interval] = []  # done, not yet sent
        self._sent_at = 0.0

    @property
    def over(self) -> bool:
        """True if there is no map."""
        return self.stealer.over

    @property
    def job(self) -> Swap | Interval | None:
        """The job of the stealer."""
        return self.stealer.job

    @property
    def wake_at(self) -> float:
        """The wake-up time of the stealer."""
        return self.stealer.wake_at

    def turn(self, now: float, arrived: Iterable[tuple[int, Mail]]) -> list[tuple[int, Mail]]:
        """Run the stealer's turn; count results, and send some."""
        mine: list[tuple[int, StealMessage | BeginMap | EndMap]] = []
        for source, mail in arrived:
            if isinstance(mail, ResultBatch):
                for part in mail.parts:
                    self.collector.add(*part)
                self.failed = self.failed or mail.raised == self.collector.epoch
                continue
            mine.append((source, mail))
            if isinstance(mail, BeginMap):
                self.account.begin(now, mail.lo, mail.hi)
        sends: list[tuple[int, Mail]] = [*self.stealer.turn(now, mine)]
        self.account.stole(self.stealer.steals)
        if self.results and (self.job is None or (self.stealer.chunk is self.job and now >= self._sent_at + self._batch_s)):
            sends.append((ROOT, ResultBatch(tuple(self.results))))
            self.results, self._sent_at = [], now
        return sends

    def done(self, job: Swap | Interval, result: float) -> list[tuple[int, Mail]]:
        """Finish a job of the stealer; a chunk becomes a result."""
        if isinstance(job, Interval):
            self.results.append(job)
        return [*self.stealer.done(job, result)]

    def fail(self, error: BaseException) -> list[tuple[int, Mail]]:
        """Note that a task has raised, and tell the root at once."""
        epoch = self.stealer.epoch
        return [*self.stealer.fail(error), (ROOT, ResultBatch((), epoch % EPOCHS))]


class Tasks(NamedTuple):
    """The tasks of one map, by dealt position."""

    sums: Floats  # (n + 1,) sum of the costs before each position
    raising: frozenset[int]  # positions that raise
    runs: list[ChunkRun]  # done


class MapRun(NamedTuple):
    """The outcome of one map; seconds are virtual."""

    seconds: float  # until the root has all results, or learns that a task has raised
    bound_s: float  # all work / sum of the speeds, or the largest task on the fastest rank if that is longer
    dealt_s: float  # if each rank ran its dealt tasks, without stealing
    counter_s: float  # if each rank took the next task from a free shared counter
    tasks: list[int]  # by rank, done
    busy_s: list[float]  # by rank, in tasks
    steals: int
    messages: int
    raised: bool

    @property
    def ratio(self) -> float:
        """Time / bound."""
        return self.seconds / self.bound_s if self.bound_s else 1.0


class SimulatedPool(Virtual[Mail, Swap | Interval]):
    """A pool over several maps: hosts[k] ranks on host k; `speeds` (ranks,) in work per second, measured or known."""

    def __init__(
        self,
        hosts: Sequence[int],
        speeds: Sequence[float] | Floats | None = None,
        *,
        speeds_known: bool = False,
        network: Network = NETWORK,
        swap_s: float = SWAP_S,
        poll_s: float = POLL_S,
        batch_s: float = BATCH_S,
        first_epoch: int = 1,
        seed: int = 0,
        records: Sequence[Record] | None = None,
    ) -> None:
        counts = [integer("hosts", n_ranks, 1, unit="ranks of a host") for n_ranks in hosts]
        size = integer("hosts", sum(counts), 1, unit="ranks in all")
        seed = check_seed(seed)
        self.speeds = check_speeds([1.0] * size if speeds is None else speeds, size)
        self._swap_s, self._poll_s = swap_s, poll_s
        ends = np.cumsum(counts).tolist()
        self.hosts = [range(end - n, end) for end, n in zip(ends, counts, strict=True)]
        self._host_of = [k for k, n in enumerate(counts) for _ in range(n)]
        self.words = [0] * size
        self.timings = [Timing()] * size
        self.known = RankKnowledge(size)  # by which ranks steal: what the root knew when the map began
        self.members: list[SimulatedMember] = []
        for rank, k in enumerate(self._host_of):
            others = [ranks for other, ranks in enumerate(self.hosts) if other != k]
            stealer = Stealer(
                rank, self.hosts[k], others, words=self.words, timings=self.timings, knowledge=self.known, seed=seed
            )
            account = RankAccount(OFF if records is None else records[rank], list(range(size)))
            self.members.append(SimulatedMember(stealer, account, batch_s))
        super().__init__(self.members, network.checked(), random.Random(f"delays {seed}"), self._host_of)
        self.tasks: dict[int, Tasks] = {}  # by epoch
        self.raised = False  # a task of this map has raised
        self.knowledge = RankKnowledge(size, self.speeds.tolist() if speeds_known else None)
        self.memory = Memory()
        self.epoch = first_epoch  # of the next map

    def map(
        self,
        costs: NDArray[np.float64],
        *,
        costs_known: bool = False,
        items: bytes | None = None,
        raising: Collection[int] = (),
        on_step: Callable[[SimulatedPool], None] | None = None,
    ) -> MapRun:
        """Map tasks of these costs (seconds on a rank of speed 1); those in `raising` raise an error.

        `items` tells maps of the same items, whose costs are learned; None: new ones.  `on_step` is called after each
        event.  ProtocolError if the map never ends.
        """
        items = items if items is not None else b"map %d" % self.epoch
        given = costs if costs_known else None
        plan = MapPlan.of("", len(costs), given, (), self.knowledge, self.memory, lambda: items)
        order, known = np.array(plan.order, dtype=np.int64), plan.costs is not None
        sums = np.concatenate([[0.0], np.cumsum(costs[order])])
        wrong = frozenset(np.flatnonzero(np.isin(order, list(raising))).tolist())
        how = {"costs": known, "chunksize": 0, "speeds": self.knowledge.speeds}
        self.members[ROOT].account.record.use("pool", how)
        began, n_messages = self.now, sum(self.sent)
        tasks = Tasks(sums, wrong, [])
        self.open(plan.bounds, tasks, largest_first=known)
        while not self.over:
            if not self.step():
                raise ProtocolError(f"deadlock at {self.now} s: {self.collector.missing} tasks are not done")
            if on_step is not None:
                on_step(self)
        seconds = self.now - began
        done = [member.account.done for member in self.members]
        for rank, member in enumerate(self.members):
            member.account.end(self.now, done[rank], float(self.speeds[rank]))
            self.post(ROOT, rank, EndMap())
        if not self.raised:
            plan.learn(tasks.runs, self.knowledge, self.memory)
        return MapRun(
            seconds,
            bound_s(costs, self.speeds),
            float((np.diff(sums[plan.bounds]) / self.speeds).max()),
            counter_s(-np.sort(-costs) if costs_known else costs, self.speeds),
            [each.tasks for each in done],
            [each.busy_s for each in done],
            sum(each.steals for each in done),
            sum(self.sent) - n_messages,
            self.raised,
        )

    @property
    def over(self) -> bool:
        """True if the root has all results of the map, or knows that a task has raised."""
        return self.members[ROOT].failed or not self.collector.missing

    @property
    def collector(self) -> Collector:
        """The root's results of the map."""
        return self.members[ROOT].collector

    def open(self, bounds: Sequence[int], tasks: Tasks, *, largest_first: bool) -> None:
        """Begin a map on the root: rank r owns the positions bounds[r]..bounds[r + 1] - 1."""
        self.tasks[self.epoch % EPOCHS] = tasks
        self.known.adopt(self.knowledge.numbers())
        self.raised = False
        for rank, member in enumerate(self.members):
            member.stealer.steals, member.account.done = [], RankTasks()  # a rank may still be in an earlier map
            begin = BeginMap(self.epoch, bounds[rank], bounds[rank + 1], 0, largest_first, bounds[-1])
            self.post(ROOT, rank, begin)
        self.members[ROOT].collector = Collector(self.epoch % EPOCHS, bounds[-1])
        self.members[ROOT].failed = False
        self.epoch += 1

    def begin(self, rank: int, job: Swap | Interval) -> float:
        """Return the seconds of a swap or of a chunk."""
        if isinstance(job, Swap):
            return self._swap_s
        sums = self.tasks[job.epoch].sums
        return float(sums[job.hi] - sums[job.lo]) / float(self.speeds[rank])

    def end(self, rank: int, job: Swap | Interval) -> float:
        """Do the swap, or count the finished chunk."""
        if isinstance(job, Swap):
            return self._swap(rank, job)
        tasks, seconds = self.tasks[job.epoch], self.begin(rank, job)
        ours = job.epoch == self.collector.epoch
        if not tasks.raising.isdisjoint(range(job.lo, job.hi)):
            self.raised |= ours
            raise Raised(RuntimeError(f"a task of {job} has raised"))
        if ours:
            self.members[rank].account.ran(job.lo, job.n, seconds, seconds * float(self.speeds[rank]))
            tasks.runs.append(ChunkRun(job.lo, job.hi, seconds, rank))
        return seconds

    def compare_and_swap(self, swap: Swap) -> bool:
        """Swap if the word still has its expected value; return whether it had."""
        if self.words[swap.rank] != swap.old:
            return False
        self.words[swap.rank] = swap.new
        return True

    def _swap(self, rank: int, swap: Swap) -> bool:
        """Swap, and wake the idle ranks of this host if a word was filled."""
        if not self.compare_and_swap(swap):
            return False
        if unpack(swap.new).hi > unpack(swap.old).hi:
            for mate in self.hosts[self._host_of[rank]]:
                if mate != rank:
                    self.wake(mate, self.now + self._poll_s)
        return True

    def turned(self, rank: int, arrived: Sequence[tuple[int, Mail]], sends: Sequence[tuple[int, Mail]]) -> None:
        """Record phases."""
        account, job = self.members[rank].account, self.members[rank].job
        idle = Phase.PROTOCOL if isinstance(job, Swap) else Phase.WAITING
        account.record.enter(account.phase(job.lo) if isinstance(job, Interval) else idle, self.now)


def bound_s(costs: Floats, speeds: Floats) -> float:
    """Return all work / sum of the speeds, or the largest task on the fastest rank if that is longer."""
    return max(float(costs.sum() / speeds.sum()), float(costs.max(initial=0.0) / speeds.max()))


def counter_s(costs: Floats, speeds: Floats) -> float:
    """Return the makespan if each rank takes the next task whenever it is idle (list scheduling)."""
    free = [(0.0, rank) for rank in range(len(speeds))]
    for cost in costs.tolist():
        at, rank = free[0]
        heapq.heapreplace(free, (at + cost / float(speeds[rank]), rank))
    return max(at for at, _ in free) if len(costs) else 0.0


def task_costs(kind: str, n: int, mean_s: float, *, spread: float = 1.0, seed: int = 0) -> Floats:
    """Return (n,) task costs with the mean `mean_s`; `spread`: standard deviation of the logarithms of "lognormal" ones."""
    choice("tasks", kind, TASKS)
    n, mean_s = integer("n", n, 0), virtual_s("task_s", mean_s)
    if kind == "constant":
        return np.full(n, mean_s)
    return mean_s * np.random.default_rng(check_seed(seed)).lognormal(-0.5 * spread**2, spread, n)
