"""The law of a pool, checked from outside on all ranks at once; and every state that small pools can reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.pooling.collect import Collector
from lb_mpi.pooling.intervals import EPOCHS, Interval, meets, unpack
from lb_mpi.pooling.worker import Kind, Message, Swap, Worker
from lb_mpi.pooling.world import Begin, End, Mail, Results, World
from tests.reach import reach

ACCOUNT = -1  # who begins and ends maps, and counts results: no rank, so that nothing is taken for granted of the root
UnderWay = Iterable[tuple[int, int, Any]]  # source, destination, message


def check_law(
    number: int, workers: Sequence[Worker], words: Sequence[int], under_way: UnderWay, done: Iterable[Interval],
    collector: Collector, *, complete: bool = True,
) -> None:  # fmt: skip
    """AssertionError unless each task of map `number` is in exactly one place, and each ASK is answered once.

    `done` are tasks that are run and not yet counted; not `complete`: a task has raised, and others are dropped.
    """
    epoch = number % EPOCHS
    places = np.frombuffer(bytes(collector._done), np.uint8).astype(np.int64)
    messages = list(under_way)
    messages += [(worker.rank, rank, mail) for worker in workers for rank, mail in worker._sends]
    owned = [unpack(word) for word in words] + [worker.chunk for worker in workers] + list(done)
    pieces = [(piece.lo, piece.hi) for piece in owned if piece is not None and piece.epoch == epoch]
    asks: Counter[tuple[int, int]] = Counter()  # (thief, rank asked): ASK, or its answer
    for source, destination, mail in messages:
        if isinstance(mail, Begin | Message) and mail.epoch == number:
            pieces += [(mail.lo, mail.hi)]
            if isinstance(mail, Message):
                asks[(source, destination) if mail.kind == Kind.ASK else (destination, source)] += 1
    for worker in workers:
        old = worker.chunk is not None and worker.epoch >= 0 and worker.chunk.epoch != worker.epoch % EPOCHS
        assert not old, f"rank {worker.rank} runs {worker.chunk} in map {worker.epoch}"
        ours = worker.chunk is not None and worker.chunk.epoch == epoch
        assert not ours or worker.epoch in (number, -1), f"rank {worker.rank} runs {worker.chunk} in map {worker.epoch}"
        if worker.epoch == number:
            pieces += [(piece.lo, piece.hi) for piece in (worker._rest, *worker._given) if piece is not None]
            asks.update((ask.thief, worker.rank) for ask in worker._asks)
    assert all(lo == hi or 0 <= lo < hi <= len(places) for lo, hi in pieces), f"tasks of another map: {pieces}"
    for lo, hi in pieces:
        places[lo:hi] += 1
    assert (places <= 1).all(), f"tasks {np.flatnonzero(places > 1)} are in two places"
    if complete:
        assert (places == 1).all(), f"tasks {np.flatnonzero(places == 0)} are lost"
        asked = {(worker.rank, rank): 1 for worker in workers if worker.epoch == number for rank in worker._hosts.asked}
        assert asks == asked, f"ASK and GIVE {asks}, asked {asked}"


def check_swap(rank: int, swap: Swap, worker: Worker) -> None:
    """AssertionError unless a swap of `rank` that has succeeded, and that it has heard of, was one of the three."""
    old, new = unpack(swap.old), unpack(swap.new)
    if swap.rank == rank and (old.epoch != new.epoch or old.n == 0):
        assert worker._rest is None, "what has been filled in is still to be filled in"
        return
    assert new.n < old.n, f"rank {rank} has filled the word of rank {swap.rank}"
    assert new.epoch == old.epoch == worker.epoch % EPOCHS, f"rank {rank} takes of another map: {old}"
    front, back = Interval(old.epoch, old.lo, new.lo), Interval(old.epoch, new.hi, old.hi)
    assert (front.n == 0) != (back.n == 0), f"{old} became {new}"
    given = any(mail.kind == Kind.GIVE and (mail.lo, mail.hi) == (back.lo, back.hi) for _, mail in worker._sends)
    chunk = worker.chunk
    assert given or (chunk is not None and chunk.lo == (front if front.n else back).lo), "taken, and not begun"


def check_world(world: World, number: int) -> None:
    """Hold the law against a simulation."""
    under_way = [(source, rank, mail) for source, rank, mail in world.under_way() if not isinstance(mail, Results)]
    results = [mail for _, _, mail in world.under_way() if isinstance(mail, Results)]
    done = [part for mail in results for part in mail.parts] + [part for slot in world.slots for part in slot.results]
    workers = [slot.worker for slot in world.slots]
    check_law(number, workers, world.words, under_way, done, world.collector, complete=not world.raised)


class CheckedWorld(World):
    """A simulation in which each swap is checked, and that no word comes back within its map."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._seen: set[tuple[int, int]] = set()

    def begin(self, *arguments: Any) -> None:
        """See `World`."""
        self._seen.clear()
        super().begin(*arguments)

    def _decide(self, rank: int, swap: Swap) -> None:
        before = self.words[swap.rank]
        super()._decide(rank, swap)
        if self.words[swap.rank] != before and unpack(swap.new).epoch == self.collector.epoch:
            place = swap.rank, self.words[swap.rank]
            assert place not in self._seen, f"{unpack(swap.new)} is back in the word of rank {swap.rank}"
            self._seen.add(place)


class State(NamedTuple):
    """All ranks, their words and swaps, what is under way between each two of them, and the account."""

    workers: tuple[Worker, ...]
    words: tuple[int, ...]
    swaps: tuple[Swap | None, ...]  # proposed, and not yet decided
    looping: tuple[bool, ...]  # between two proposals: no message is received
    wires: dict[tuple[int, int], tuple[Any, ...]]
    number: int  # of the map
    collector: Collector
    maps_left: int
    abandons: int  # maps that may still be given up

    def key(self) -> object:
        """Equal for states that can't be told apart."""
        ranks = tuple(
            (
                w.epoch, w.chunk, w._rest, tuple(w._given), tuple(w._asks), w._answering, frozenset(w._hosts.asked)
            )
            for w in self.workers
        )  # fmt: skip
        wires = tuple(sorted((ends, wire) for ends, wire in self.wires.items() if wire))
        return (
            ranks, self.words, self.swaps, self.looping, wires, self.number, bytes(self.collector._done), self.maps_left,
            self.abandons,
        )  # fmt: skip

    @property
    def over(self) -> bool:
        """True when all ranks have heard that the last map is over."""
        return not self.maps_left and not any(self.wires.values()) and all(w.epoch < 0 for w in self.workers)

    def free(self, rank: int) -> bool:
        """True when the rank is neither in a swap, nor in a chunk."""
        return self.swaps[rank] is None and self.workers[rank].chunk is None and not self.looping[rank]


class Small(NamedTuple):
    """A small pool: ranks of each host, tasks of each rank in each map."""

    hosts: Sequence[Sequence[int]]
    maps: Sequence[Sequence[int]]
    chunksize: int = 1
    abandons: int = 0
    first: int = 1  # number of the first map
    speeds: dict[int, float] | None = None

    @property
    def late(self) -> bool:
        """True when results and the news of the end take their time, as they matter for the map after."""
        return len(self.maps) > 1


def asking(worker: Worker) -> Worker:
    """The worker, which asks another host when the exploration says so."""
    hosts: Any = type(worker._hosts)

    class Chosen(hosts):  # type: ignore[misc]
        choice: int | None = None

        def ask(self, now: float) -> int | None:
            if self.choice is None or self.choice in self.asked:
                return None
            self.asked.add(self.choice)
            return self.choice

    worker._hosts.__class__ = Chosen
    return worker


def twin(thing: Any) -> Any:
    """A shallow copy, sooner than `copy.copy` makes it."""
    other = object.__new__(type(thing))
    vars(other).update(vars(thing))
    return other


def clone(worker: Worker) -> Worker:
    """A copy that shares nothing that changes."""
    other = twin(worker)
    other._given, other._asks, other._sends = list(worker._given), list(worker._asks), list(worker._sends)
    other._hosts = twin(worker._hosts)
    other._hosts.asked = set(worker._hosts.asked)
    return other


class Exploration:
    """Every state of a small pool, breadth first: all orders of deliveries, readings, swaps and ends of chunks."""

    def __init__(
        self, small: Small, worker_class: type[Worker] = Worker, collector_class: type[Collector] = Collector
    ) -> None:
        self.small, self._collector = small, collector_class
        self.size = sum(map(len, small.hosts))
        self.speeds = small.speeds or dict.fromkeys(range(self.size), 1.0)
        self.others: list[list[int]] = []
        workers = []
        for host in small.hosts:
            others = [other for other in small.hosts if other is not host]
            for rank in host:
                workers.append(asking(worker_class(rank, host, others)))
                self.others.append([other for ranks in others for other in ranks])
        self.start = self.next_map(
            State(
                tuple(workers), (0,) * self.size, (None,) * self.size, (False,) * self.size, {}, small.first - 1,
                collector_class(0, 0), len(small.maps) + 1, small.abandons,
            )
        )  # fmt: skip

    def next_map(self, state: State) -> State:
        """End the map, and begin the next one, if there is one."""
        left, number, wires = state.maps_left - 1, state.number + 1, dict(state.wires)
        tasks = self.small.maps[len(self.small.maps) - left] if left else [0] * self.size
        lo = 0
        for rank in range(self.size):
            wire = wires.get((ACCOUNT, rank), ())
            if state.number >= self.small.first:
                wire = (*wire, End())
            if left:
                wire = (*wire, Begin(number, lo, lo + tasks[rank]))
            wires[ACCOUNT, rank] = wire
            lo += tasks[rank]
        collector = self._collector(number % EPOCHS, lo)
        new = state._replace(wires=wires, number=number, collector=collector, maps_left=left)
        return self.next_map(new) if left and not lo else new

    def successors(self, state: State) -> list[State]:
        """All that may happen next."""
        states = []
        for (source, rank), wire in state.wires.items():
            if wire and rank == ACCOUNT:
                states.append(self.account(state, source, wire))
            elif wire and state.free(rank) and not self.must_meet(state, wire[0]):
                states.append(self.deliver(state, source, rank, wire))
        for rank in range(self.size):
            if state.swaps[rank] is not None:
                states.append(self.decide(state, rank))
            elif state.workers[rank].chunk is not None and not state.looping[rank]:
                states.append(self.finish(state, rank))
            else:
                states.append(self.propose(state, rank, None))
                if states[-1].swaps[rank] is None and states[-1].workers[rank].chunk is None:
                    states += [self.propose(state, rank, choice) for choice in self.others[rank]]
        if state.abandons and state.maps_left:
            states.append(self.next_map(state._replace(abandons=state.abandons - 1)))
        return states

    @staticmethod
    def must_meet(state: State, mail: Mail) -> bool:
        """True while a map can't begin, since some rank isn't through with the one before."""
        if not isinstance(mail, Begin) or not meets(mail.epoch):
            return False
        wires = [wire for (source, _), wire in state.wires.items() if source == ACCOUNT]
        return any(isinstance(later, Begin) and later.epoch == mail.epoch for wire in wires for later in wire[1:])

    def account(self, state: State, source: int, wire: tuple[Any, ...]) -> State:
        collector = twin(state.collector)
        collector._done = collector._done.copy()
        collector.take(*wire[0])
        new = state._replace(wires={**state.wires, (source, ACCOUNT): wire[1:]}, collector=collector)
        if not self.small.late:
            return new
        over = not collector.missing and state.maps_left and state.collector.missing
        return self.next_map(new) if over else new

    def deliver(self, state: State, source: int, rank: int, wire: tuple[Any, ...]) -> State:
        workers, worker = self._touch(state, rank)
        mail = wire[0]
        if isinstance(mail, Begin):
            worker.begin(*mail, self.small.chunksize)
        elif isinstance(mail, End):
            worker.end()
        else:
            worker.receive(source, mail)
        return state._replace(workers=workers, wires={**state.wires, (source, rank): wire[1:]})

    def propose(self, state: State, rank: int, choice: int | None) -> State:
        workers, worker = self._touch(state, rank)
        worker._hosts.choice = choice  # type: ignore[attr-defined]
        words = state.words
        swap = worker.propose(0.0, words, self.speeds)
        worker._hosts.choice = None  # type: ignore[attr-defined]
        if swap is not None:
            return state._replace(
                workers=workers, swaps=put(state.swaps, rank, swap), looping=put(state.looping, rank, True)
            )
        wires = dict(state.wires)
        for destination, message in worker.sends():
            wires[rank, destination] = (*wires.get((rank, destination), ()), message)
        return state._replace(workers=workers, wires=wires, looping=put(state.looping, rank, False))

    def decide(self, state: State, rank: int) -> State:
        workers, worker = self._touch(state, rank)
        swap = state.swaps[rank]
        assert swap is not None
        succeeded = self.compare(state.words[swap.rank], swap)
        worker.swapped(swap, succeeded)
        words = put(state.words, swap.rank, swap.new) if succeeded else state.words
        if succeeded:
            check_swap(rank, swap, worker)
        return state._replace(workers=workers, words=words, swaps=put(state.swaps, rank, None))

    @staticmethod
    def compare(word: int, swap: Swap) -> bool:
        """True when the swap succeeds."""
        return word == swap.old

    def finish(self, state: State, rank: int) -> State:
        workers, worker = self._touch(state, rank)
        wire = (*state.wires.get((rank, ACCOUNT), ()), worker.done(1.0))
        if not self.small.late:
            return self.account(state._replace(workers=workers), rank, wire)
        return state._replace(wires={**state.wires, (rank, ACCOUNT): wire}, workers=workers)

    @staticmethod
    def _touch(state: State, rank: int) -> tuple[tuple[Worker, ...], Worker]:
        worker = clone(state.workers[rank])
        return put(state.workers, rank, worker), worker

    def check(self, state: State) -> None:
        """Hold the law against a state."""
        under_way = [(*ends, mail) for ends, wire in state.wires.items() if ends[1] != ACCOUNT for mail in wire]
        done = [part for ends, wire in state.wires.items() if ends[1] == ACCOUNT for part in wire]
        check_law(state.number, state.workers, state.words, under_way, done, state.collector)

    def explore(self, *, most_states: int = 200_000, progress: bool = False) -> tuple[int, int]:
        """Check the law in every reachable state, and that the end can be reached from each; (states, ends among them).

        `progress`: also that no state comes back: whatever ranks do, some rank gets on.
        """

        def look(state: State) -> bool:
            self.check(state)
            return state.over or (not self.small.late and not state.collector.missing)

        found = reach([self.start], self.successors, key=State.key, look=look, most_states=most_states)
        if progress:
            check_progress([[each for each in before if each != n] for n, before in enumerate(found.came_from)])
        return found.states, found.ends


def check_progress(came_from: Sequence[Sequence[int]]) -> None:
    """AssertionError when some states can follow each other for ever."""
    leads_to = Counter(state for states in came_from for state in states)
    last = [state for state in range(len(came_from)) if not leads_to[state]]
    n_left = len(came_from)
    while last:
        n_left -= 1
        for before in came_from[last.pop()]:
            leads_to[before] -= 1
            if not leads_to[before]:
                last.append(before)
    assert n_left == 0, f"{n_left} states follow each other for ever"


def put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    """The tuple with another value at one place."""
    return (*values[:at], value, *values[at + 1 :])
