"""All ranks of a pool on the virtual carrier: their words, their swaps, and what the root does.   (pure)

The words of a host lie in its shared memory: a swap takes its time, and what others do meanwhile may make it fail.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lb_mpi.checks import virtual_s
from lb_mpi.errors import ProtocolError
from lb_mpi.pooling.collect import Collector
from lb_mpi.pooling.deal import Floats
from lb_mpi.pooling.intervals import EPOCHS, Interval, unpack
from lb_mpi.pooling.recorded import Steals
from lb_mpi.pooling.worker import Begin, End, Message, Swap, Worker
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF, Record
from lb_mpi.virtual import Network, Raised, Virtual

ROOT = 0
BATCH_S = 20e-3  # results are sent so often, and when there is nothing to do


class Costs(NamedTuple):
    """What a pool costs beside messages, in seconds."""

    swap_s: float = 0.5e-6  # from reading the words to the end of the swap
    look_s: float = 20e-6  # after which an idle rank sees that a word has been filled
    batch_s: float = BATCH_S  # between two sends of results

    def checked(self) -> Costs:
        """Return the same; ValueError unless all are 0 or more, and finite."""
        for name, seconds in self._asdict().items():
            virtual_s(name, seconds, least=0.0)
        return self


class Results(NamedTuple):
    """A rank to the root: these tasks are done; `raised`: the map in which another one has raised."""

    parts: tuple[Interval, ...]
    raised: int | None = None


Mail = Message | Begin | End | Results


class Account:
    """What the root knows of the map."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.over = collector.missing == 0

    def take(self, results: Results) -> None:
        """Count what is done."""
        for part in results.parts:
            self.collector.take(*part)
        self.over = self.over or self.collector.missing == 0 or results.raised == self.collector.epoch


class Member:
    """One rank: its worker, and what the driver on MPI does beside it: results go to the root in batches."""

    def __init__(self, worker: Worker, steals: Steals, batch_s: float) -> None:
        self.worker, self.steals, self._batch_s = worker, steals, batch_s
        self.account = Account(Collector(0, 0))
        self.results: list[Interval] = []  # done, and not yet sent
        self._sent_at = 0.0

    @property
    def over(self) -> bool:
        """There is no map."""
        return self.worker.over

    @property
    def job(self) -> Swap | Interval | None:
        """The worker's."""
        return self.worker.job

    @property
    def wake_at(self) -> float:
        """The worker's."""
        return self.worker.wake_at

    def turn(self, now: float, arrived: Iterable[tuple[int, Mail]]) -> list[tuple[int, Mail]]:
        """The worker's turn; count results, and send some."""
        mine: list[tuple[int, Message | Begin | End]] = []
        epoch = self.worker.epoch
        for source, mail in arrived:
            if isinstance(mail, Results):
                self.account.take(mail)
                continue
            mine.append((source, mail))
            if isinstance(mail, Begin):
                self.steals.begin(now, mail.lo, mail.hi)
                epoch = mail.epoch
            elif isinstance(mail, End):
                epoch = -1
            elif mail.epoch == epoch:
                self.steals.given(source, now, mail)
        sends: list[tuple[int, Mail]] = [*self.worker.turn(now, mine)]
        if self.results and (self.job is None or (self.worker.chunk is self.job and now >= self._sent_at + self._batch_s)):
            sends.append((ROOT, Results(tuple(self.results))))
            self.results, self._sent_at = [], now
        return sends

    def done(self, job: Swap | Interval, result: float) -> list[tuple[int, Mail]]:
        """The worker's; a chunk is a result."""
        if isinstance(job, Interval):
            self.results.append(job)
        return [*self.worker.done(job, result)]

    def fail(self, error: BaseException) -> list[tuple[int, Mail]]:
        """A task has raised: the root hears of it at once."""
        epoch = self.worker.epoch
        return [*self.worker.fail(error), (ROOT, Results((), epoch % EPOCHS))]


class Tasks(NamedTuple):
    """The tasks of one map, at the positions where they were dealt."""

    sums: Floats  # (n + 1,) costs of all positions before each
    raising: frozenset[int]  # positions that raise


class World(Virtual[Mail, Swap | Interval]):
    """All ranks, the words of their hosts, and what is under way between them; hosts[k] are the ranks of host k."""

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        speeds: Floats,
        network: Network,
        costs: Costs,
        *,
        seed: int = 0,
        worker_class: type[Worker] = Worker,
        records: Sequence[Record] | None = None,
    ) -> None:
        size = len(speeds)
        kept = records or [OFF] * size
        self.hosts, self.speeds, self.costs = hosts, speeds, costs
        self.words = [0] * size
        self.told: dict[int, float] = {}  # speeds, as the ranks know them
        self.members: list[Member] = []
        host_of: list[int] = []
        for k, host in enumerate(hosts):
            others = [ranks for other, ranks in enumerate(hosts) if other != k]
            for rank in host:
                worker = worker_class(rank, host, others, words=self.words, speeds=self.told, seed=seed)
                self.members.append(Member(worker, Steals(kept[rank], list(range(size))), costs.batch_s))
                host_of.append(k)
        super().__init__(self.members, network, random.Random(f"delays {seed}"), host_of)
        self._host_of = host_of
        self.tasks: dict[int, Tasks] = {}  # by epoch
        self.n_tasks, self.tasks_s = [0] * size, [0.0] * size  # done in this map, by rank, and the seconds in them
        self._raised = False

    @property
    def over(self) -> bool:
        """The root has all results of the map, or has heard that a task has raised."""
        return self.members[ROOT].account.over

    @property
    def raised(self) -> bool:
        """A task of this map has raised."""
        return self._raised

    @property
    def collector(self) -> Collector:
        """What is done of the map."""
        return self.members[ROOT].account.collector

    def open(self, epoch: int, bounds: Sequence[int], tasks: Tasks, told: Floats) -> None:
        """The root begins a map: rank r owns the positions bounds[r]..bounds[r + 1] - 1, and is told all speeds."""
        self.tasks[epoch % EPOCHS] = tasks
        self.told.update(enumerate(told.tolist()))
        self._raised = False
        self.n_tasks, self.tasks_s = [0] * len(self.words), [0.0] * len(self.words)
        for rank, member in enumerate(self.members):
            member.worker.steals = 0
            self.post(ROOT, rank, Begin(epoch, bounds[rank], bounds[rank + 1]))
        self.members[ROOT].account = Account(Collector(epoch % EPOCHS, bounds[-1]))

    def close(self) -> None:
        """The root tells all that the map is over."""
        for rank in range(len(self.members)):
            self.post(ROOT, rank, End())

    def step(self) -> bool:
        """Let the next turn happen; ProtocolError when nothing can happen any more."""
        if not super().step():
            raise ProtocolError(f"deadlock at {self.now} s: {self.collector.missing} tasks are not done")
        return True

    def begin(self, rank: int, job: Swap | Interval) -> float:
        """The seconds of a swap or of a chunk."""
        if isinstance(job, Swap):
            return self.costs.swap_s
        sums = self.tasks[job.epoch].sums
        return float(sums[job.hi] - sums[job.lo]) / float(self.speeds[rank])

    def end(self, rank: int, job: Swap | Interval) -> float:
        """Swap; or count what is done."""
        if isinstance(job, Swap):
            return self._swap(rank, job)
        tasks, seconds = self.tasks[job.epoch], self.begin(rank, job)
        ours = job.epoch == self.collector.epoch
        if not tasks.raising.isdisjoint(range(job.lo, job.hi)):
            self._raised |= ours
            raise Raised(RuntimeError(f"a task of {job} has raised"))
        if ours:
            self.n_tasks[rank] += job.n
            self.tasks_s[rank] += seconds
            self.members[rank].steals.ran(job.lo, job.n, seconds * float(self.speeds[rank]))
        return seconds

    def compare_and_swap(self, swap: Swap) -> bool:
        """True when the word was what it is expected to be, and is now the new one."""
        if self.words[swap.rank] != swap.old:
            return False
        self.words[swap.rank] = swap.new
        return True

    def _swap(self, rank: int, swap: Swap) -> bool:
        """Swap, and wake who is idle on this host when a word has been filled."""
        if not self.compare_and_swap(swap):
            return False
        if unpack(swap.new).hi > unpack(swap.old).hi:
            for mate in self.hosts[self._host_of[rank]]:
                if mate != rank:
                    self.wake(mate, self.now + self.costs.look_s)
        return True

    def finish(self, rank: int, job: Swap | Interval) -> list[tuple[int, Mail]]:
        """End a job; a steal is recorded."""
        member = self.members[rank]
        steals = member.worker.steals
        sends = super().finish(rank, job)
        if isinstance(job, Swap) and member.worker.steals > steals:
            member.steals.taken(job, self.now)
        return sends

    def turned(self, rank: int, arrived: Sequence[tuple[int, Mail]], sends: Sequence[tuple[int, Mail]]) -> None:
        """Record phases."""
        steals, job = self.members[rank].steals, self.members[rank].job
        idle = Phase.PROTOCOL if isinstance(job, Swap) else Phase.WAITING
        steals.record.enter(steals.phase(job.lo) if isinstance(job, Interval) else idle, self.now)
