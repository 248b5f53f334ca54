"""All ranks of a pool on a virtual clock: what they propose, swap, send and run, event by event.   (pure)

The words of a host lie in its shared memory: a swap takes its time, and what others do meanwhile may make it fail.  Messages
take a latency, within a host and between hosts, and keep their order between each two ranks, as MPI promises; a rank that
runs tasks hears a message when its chunk is done.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.checks import virtual_s
from lb_mpi.errors import ProtocolError
from lb_mpi.pooling.collect import Collector
from lb_mpi.pooling.deal import Floats
from lb_mpi.pooling.intervals import EPOCHS, Interval, unpack
from lb_mpi.pooling.worker import Message, Swap, Worker
from lb_mpi.recording.events import Phase
from lb_mpi.recording.record import OFF, Record
from lb_mpi.recording.steals import Steals

ROOT = 0


class Network(NamedTuple):
    """What swaps and messages cost, in seconds; of two numbers, the least and the most: log-uniform between them."""

    within_s: tuple[float, float] = (2e-6, 2e-6)  # a message on one host
    between_s: tuple[float, float] = (50e-6, 50e-6)  # a message between two
    swap_s: float = 0.5e-6  # from reading the words to the end of the swap
    look_s: float = 20e-6  # after which an idle rank sees that a word has been filled
    batch_s: float = 20e-3  # results are sent so often, and when there is nothing to do


class Begin(NamedTuple):
    """The root to each rank: map number `epoch` begins, and lo..hi-1 are yours."""

    epoch: int
    lo: int
    hi: int


class End(NamedTuple):
    """The root to each rank: the map is over."""


class Results(NamedTuple):
    """A rank to the root: these tasks are done; `raised`: the map in which another one has raised."""

    parts: tuple[Interval, ...]
    raised: int | None = None


Mail = Message | Begin | End | Results


class Slot:
    """What the simulation keeps of one rank."""

    def __init__(self, worker: Worker, steals: Steals) -> None:
        self.worker, self.steals = worker, steals
        self.swap: Swap | None = None  # proposed, and not yet decided
        self.inbox: list[tuple[int, Mail]] = []
        self.results: list[Interval] = []  # done, and not yet sent
        self.sent_at = 0.0
        self.alarm = 0  # the number of its one valid alarm
        self.chunk_s = 0.0  # of the chunk in hand
        self.tasks = 0  # done in this map
        self.busy_s = 0.0  # in them

    @property
    def busy(self) -> bool:
        """True in the middle of a swap or a chunk: messages wait."""
        return self.swap is not None or self.worker.chunk is not None


class Tasks(NamedTuple):
    """The tasks of one map, at the positions where they were dealt."""

    sums: Floats  # (n + 1,) costs of all positions before each
    raising: frozenset[int]  # positions that raise


class World:
    """All ranks, the words of their hosts, and what is under way between them; hosts[k] are the ranks of host k."""

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        speeds: Floats,
        network: Network,
        *,
        seed: int = 0,
        worker_class: type[Worker] = Worker,
        records: Sequence[Record] | None = None,
    ) -> None:
        worlds = list(range(len(speeds)))
        kept = records or [OFF] * len(speeds)
        self.hosts, self.speeds, self.network = hosts, speeds, network
        self.slots: list[Slot] = []
        self._host_of: list[int] = []
        for k, host in enumerate(hosts):
            others = [ranks for other, ranks in enumerate(hosts) if other != k]
            self.slots += [Slot(worker_class(rank, host, others, seed), Steals(kept[rank], worlds)) for rank in host]
            self._host_of += [k] * len(host)
        self.words = [0] * len(speeds)
        self.told: dict[int, float] = {}  # speeds, as the ranks know them
        self.collector = Collector(0, 0)
        self.tasks: dict[int, Tasks] = {}  # by epoch
        self.raised = False  # a task of this map has raised an error
        self.over = True
        self.events = Events(random.Random(f"delays {seed}"))

    def begin(self, epoch: int, bounds: Sequence[int], tasks: Tasks, told: Floats) -> None:
        """The root begins a map: rank r owns the positions bounds[r]..bounds[r + 1] - 1, and is told all speeds."""
        self.collector = Collector(epoch % EPOCHS, bounds[-1])
        self.tasks[epoch % EPOCHS] = tasks
        self.told = dict(enumerate(told.tolist()))
        self.raised = self.over = False
        for rank, slot in enumerate(self.slots):
            slot.tasks, slot.busy_s, slot.worker.steals = 0, 0.0, 0
            self._post(ROOT, rank, Begin(epoch, bounds[rank], bounds[rank + 1]))
        self.over = self.collector.missing == 0

    def end(self) -> None:
        """The root tells all that the map is over."""
        for rank in range(len(self.slots)):
            self._post(ROOT, rank, End())

    def step(self) -> None:
        """Let the next event happen; ProtocolError when nothing can happen any more."""
        if not self.events.heap:
            raise ProtocolError(f"deadlock at {self.events.now} s: {self.collector.missing} tasks are not done")
        number, rank, mail = self.events.pop()
        slot = self.slots[rank]
        if mail is not None:
            slot.inbox.append(mail)
            if not slot.busy:
                self._turn(rank)
        elif number == slot.alarm:
            if slot.swap is not None:
                self._decide(rank, slot.swap)
            else:
                if slot.worker.chunk is not None:
                    self._finish(rank, slot.worker.chunk)
                self._turn(rank)

    def under_way(self) -> list[tuple[int, int, Mail]]:
        """(source, destination, message) of all that was sent and has not been served."""
        flying = [(mail[0], rank, mail[1]) for _, _, rank, mail in self.events.heap if mail is not None]
        return flying + [(source, rank, mail) for rank, slot in enumerate(self.slots) for source, mail in slot.inbox]

    def compare_and_swap(self, swap: Swap) -> bool:
        """True when the word was what it is expected to be, and is now the new one."""
        if self.words[swap.rank] != swap.old:
            return False
        self.words[swap.rank] = swap.new
        return True

    def _turn(self, rank: int) -> None:
        slot = self.slots[rank]
        arrived, slot.inbox = slot.inbox, []
        for source, mail in arrived:
            if isinstance(mail, Message):
                slot.worker.receive(source, mail)
                if mail.epoch == slot.worker.epoch:
                    slot.steals.given(source, self.events.now, mail)
            elif isinstance(mail, Begin):
                slot.worker.begin(*mail)
                slot.steals.begin(self.events.now, mail.lo, mail.hi)
            elif isinstance(mail, End):
                slot.worker.end()
            else:
                self._collect(mail)
        self._propose(rank)

    def _collect(self, results: Results) -> None:
        for epoch, lo, hi in results.parts:
            self.collector.take(epoch, lo, hi)
        if self.collector.missing == 0 or results.raised == self.collector.epoch:
            self.over = True

    def _propose(self, rank: int) -> None:
        slot, now = self.slots[rank], self.events.now
        slot.swap = slot.worker.propose(now, self.words, self.told)
        if slot.swap is not None:
            slot.alarm = self.events.push(now + self.network.swap_s, rank)
            slot.steals.record.enter(Phase.PROTOCOL, now)
            return
        for destination, message in slot.worker.sends():
            self._post(rank, destination, message)
        chunk, wake_at = slot.worker.chunk, slot.worker.wake_at
        slot.steals.record.enter(Phase.WAITING if chunk is None else slot.steals.phase(chunk.lo), now)
        if chunk is not None:
            sums = self.tasks[chunk.epoch].sums
            slot.chunk_s = float(sums[chunk.hi] - sums[chunk.lo]) / float(self.speeds[rank])
            slot.alarm = self.events.push(now + slot.chunk_s, rank)
        elif slot.inbox:  # has come in the middle of a swap
            slot.alarm = self.events.push(now, rank)
        elif now < wake_at < math.inf:
            slot.alarm = self.events.push(wake_at, rank)
        if slot.results and (chunk is None or now >= slot.sent_at + self.network.batch_s):
            self._post(rank, ROOT, Results(tuple(slot.results)))
            slot.results, slot.sent_at = [], now

    def _decide(self, rank: int, swap: Swap) -> None:
        """Swap, and wake who is idle on this host when a word has been filled."""
        slot = self.slots[rank]
        slot.swap = None
        succeeded = self.compare_and_swap(swap)
        steals = slot.worker.steals
        slot.worker.swapped(swap, succeeded)
        if slot.worker.steals > steals:
            slot.steals.taken(swap, self.events.now)
        if succeeded and unpack(swap.new).hi > unpack(swap.old).hi:
            for mate in self.hosts[self._host_of[rank]]:
                if mate != rank and not self.slots[mate].busy:
                    self.slots[mate].alarm = self.events.push(self.events.now + self.network.look_s, mate)
        self._propose(rank)

    def _finish(self, rank: int, chunk: Interval) -> None:
        slot = self.slots[rank]
        slot.worker.done(slot.chunk_s)
        if chunk.epoch == self.collector.epoch:
            slot.tasks += chunk.n
            slot.busy_s += slot.chunk_s
            slot.steals.ran(chunk.lo, chunk.n, slot.chunk_s * float(self.speeds[rank]))
        if not self.tasks[chunk.epoch].raising.isdisjoint(range(chunk.lo, chunk.hi)):
            self.raised |= chunk.epoch == self.collector.epoch
            self._post(rank, ROOT, Results((), chunk.epoch))
        else:
            slot.results.append(chunk)

    def _post(self, source: int, destination: int, mail: Mail) -> None:
        alike = self._host_of[source] == self._host_of[destination]
        span = self.network.within_s if alike else self.network.between_s
        self.events.send(source, destination, mail, span)


class Events:
    """What will happen, in the order of its time: messages that arrive, and alarms."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.heap: list[tuple[float, int, int, tuple[int, Mail] | None]] = []  # time, number, rank, (source, message)
        self.n_messages = 0
        self._number = 0
        self._rng = rng
        self._arrives: dict[tuple[int, int], float] = {}  # the last message between two ranks

    def push(self, at: float, rank: int, mail: tuple[int, Mail] | None = None) -> int:
        """Something happens to a rank at a time; the number of the event."""
        self._number += 1
        heapq.heappush(self.heap, (at, self._number, rank, mail))
        return self._number

    def send(self, source: int, destination: int, mail: Mail, span_s: tuple[float, float]) -> None:
        """Let a message arrive after a delay, behind those that were sent before; at once when it goes to its source."""
        low, high = span_s
        delay = low if low == high else math.exp(self._rng.uniform(math.log(low), math.log(high)))
        pair = source, destination
        at = self._arrives[pair] = max(self.now + delay * (source != destination), self._arrives.get(pair, 0.0))
        self.n_messages += source != destination
        self.push(at, destination, (source, mail))

    def pop(self) -> tuple[int, int, tuple[int, Mail] | None]:
        """The next event, as (number, rank, message); it is now."""
        self.now, number, rank, mail = heapq.heappop(self.heap)
        return number, rank, mail


def check_network(network: Network) -> Network:
    """The network; ValueError unless its times are 0 or more (latencies: above 0, low <= high), and finite."""
    for name in ("within_s", "between_s"):
        low, high = getattr(network, name)
        virtual_s(name, high, least=virtual_s(name, low))
    for name in ("swap_s", "look_s", "batch_s"):
        virtual_s(name, getattr(network, name), least=0.0)
    return network
