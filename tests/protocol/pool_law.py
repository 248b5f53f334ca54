"""The law of a pool, checked from outside on all ranks at once; and every state that small pools can reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.pooling.account import Collector
from lb_mpi.pooling.intervals import EPOCHS, Interval, synchronizes, unpack
from lb_mpi.pooling.simulate import ResultBatch, SimulatedPool
from lb_mpi.pooling.worker import BeginMap, EndMap, Send, StealKind, StealMessage, Swap, Worker
from tests.protocol.explore import Exploration, State, clone, put

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
    owned = [unpack(word) for word in words] + [worker.chunk for worker in workers] + list(done)
    pieces = [(piece.lo, piece.hi) for piece in owned if piece is not None and piece.epoch == epoch]
    asks: Counter[tuple[int, int]] = Counter()  # (thief, rank asked): ASK, or its answer
    for source, destination, mail in messages:
        if isinstance(mail, BeginMap | StealMessage) and mail.epoch == number:
            pieces += [(mail.lo, mail.hi)]
            if isinstance(mail, StealMessage):
                asks[(source, destination) if mail.kind == StealKind.ASK else (destination, source)] += 1
    for worker in workers:
        old = worker.chunk is not None and worker.epoch >= 0 and worker.chunk.epoch != worker.epoch % EPOCHS
        assert not old, f"rank {worker.rank} runs {worker.chunk} in map {worker.epoch}"
        ours = worker.chunk is not None and worker.chunk.epoch == epoch
        assert not ours or worker.epoch in (number, -1), f"rank {worker.rank} runs {worker.chunk} in map {worker.epoch}"
        if worker.epoch == number:
            pieces += [(piece.lo, piece.hi) for piece in (worker._rest, *worker._given) if piece is not None]
            asks.update((thief, worker.rank) for thief, _ in worker._asks)
    assert all(lo == hi or 0 <= lo < hi <= len(places) for lo, hi in pieces), f"tasks of another map: {pieces}"
    for lo, hi in pieces:
        places[lo:hi] += 1
    assert (places <= 1).all(), f"tasks {np.flatnonzero(places > 1)} are in two places"
    if complete:
        assert (places == 1).all(), f"tasks {np.flatnonzero(places == 0)} are lost"
        asked = {(worker.rank, rank): 1 for worker in workers if worker.epoch == number for rank in worker._hosts.asked}
        assert asks == asked, f"ASK and GIVE {asks}, asked {asked}"


def check_swap(rank: int, swap: Swap, worker: Worker, sends: Iterable[Send]) -> None:
    """AssertionError unless a swap of `rank` that has succeeded, and that it has heard of, was one of the three."""
    old, new = unpack(swap.old), unpack(swap.new)
    if swap.rank == rank and (old.epoch != new.epoch or old.n == 0):
        assert worker._rest is None, "what has been filled in is still to be filled in"
        return
    assert new.n < old.n, f"rank {rank} has filled the word of rank {swap.rank}"
    assert new.epoch == old.epoch == worker.epoch % EPOCHS, f"rank {rank} takes of another map: {old}"
    front, back = Interval(old.epoch, old.lo, new.lo), Interval(old.epoch, new.hi, old.hi)
    assert (front.n == 0) != (back.n == 0), f"{old} became {new}"
    given = any(mail.kind == StealKind.GIVE and (mail.lo, mail.hi) == (back.lo, back.hi) for _, mail in sends)
    chunk = worker.chunk
    assert given or (chunk is not None and chunk.lo == (front if front.n else back).lo), "taken, and not begun"


def check_pool(pool: SimulatedPool, number: int) -> None:
    """Hold the law against a simulation."""
    under_way = [each for each in pool.under_way.values() if not isinstance(each[2], ResultBatch)]
    results = [mail for _, _, mail in pool.under_way.values() if isinstance(mail, ResultBatch)]
    done = [part for mail in results for part in mail.parts] + [part for one in pool.members for part in one.results]
    workers = [member.worker for member in pool.members]
    check_law(number, workers, pool.words, under_way, done, pool.collector, complete=not pool.raised)


class CheckedPool(SimulatedPool):
    """A simulation in which each swap is checked, and that no word comes back within its map."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._seen: set[tuple[int, int]] = set()

    def open(self, *arguments: Any, **keywords: Any) -> None:
        """See `SimulatedPool`."""
        self._seen.clear()
        super().open(*arguments, **keywords)

    def compare_and_swap(self, swap: Swap) -> bool:
        before = self.words[swap.rank]
        succeeded = super().compare_and_swap(swap)
        if self.words[swap.rank] != before and unpack(swap.new).epoch == self.collector.epoch:
            place = swap.rank, self.words[swap.rank]
            assert place not in self._seen, f"{unpack(swap.new)} is back in the word of rank {swap.rank}"
            self._seen.add(place)
        return succeeded


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
    """The worker, which asks another host, and leaves tasks to others, when the exploration says so."""
    hosts: Any = type(worker._hosts)
    ending: Any = type(worker._ending)

    class Told(ending):  # type: ignore[misc]
        answer = False

        def observe(self, n: int, seconds: float) -> None:
            pass

        def estimate(self) -> None:
            return None

        def leaves(self, now: float, tasks: Any) -> bool:
            assert tasks() > 0, "there is nothing to leave"
            return self.answer

    class Chosen(hosts):  # type: ignore[misc]
        choice: int | None = None

        def ask(self, now: float) -> int | None:
            if self.choice is None or self.choice in self.asked:
                return None
            self.asked.add(self.choice)
            return self.choice

    worker._hosts.__class__ = Chosen
    worker._ending.__class__ = Told
    return worker


class Around(NamedTuple):
    """What there is beside ranks and messages."""

    words: tuple[int, ...]
    due: tuple[bool, ...]  # ranks that have done a job, and not taken the turn that follows it
    number: int  # of the map
    collector: Collector
    maps_left: int
    abandons: int  # maps that may still be given up


class Maps(Exploration):
    """Every state of a small pool: all orders of deliveries, readings, swaps and ends of chunks."""

    batches = False

    def __init__(self, small: Small) -> None:
        self.small = small
        self.size = sum(map(len, small.hosts))
        speeds = small.speeds or dict.fromkeys(range(self.size), 1.0)
        self.others: list[list[int]] = []
        workers = []
        for host in small.hosts:
            others = [other for other in small.hosts if other is not host]
            for rank in host:
                workers.append(asking(Worker(rank, host, others, words=(), timings={}, speeds=speeds)))
                self.others.append([other for ranks in others for other in ranks])
        none = (0,) * self.size, (False,) * self.size
        around = Around(*none, small.first - 1, Collector(0, 0), len(small.maps) + 1, small.abandons)
        self.start = self.next_map(State(tuple(workers), {}, around))

    def key_of(self, w: Worker) -> Hashable:
        asked = frozenset(w._hosts.asked)
        return w.epoch, w.chunk, w._swap, w._rest, tuple(w._given), tuple(w._asks), w._answering, asked

    def key_of_rest(self, around: Around) -> Hashable:
        return around._replace(collector=bytes(around.collector._done))  # type: ignore[arg-type]

    def law(self, state: State) -> None:
        under_way = [(*ends, mail) for ends, wire in state.wires.items() if ends[1] != ACCOUNT for mail in wire]
        done = [part for ends, wire in state.wires.items() if ends[1] == ACCOUNT for part in wire]
        check_law(state.rest.number, state.actors, state.rest.words, under_way, done, state.rest.collector)

    def is_end(self, state: State) -> bool:
        """All ranks have heard that the last map is over; of a single map, all is done."""
        if not self.small.late:
            return not state.rest.collector.missing
        return not state.rest.maps_left and not any(state.wires.values()) and super().is_end(state)

    def next_map(self, state: State) -> State:
        """End the map, and begin the next one, if there is one."""
        around = state.rest
        left, number = around.maps_left - 1, around.number + 1
        tasks = self.small.maps[len(self.small.maps) - left] if left else [0] * self.size
        lo = 0
        for rank in range(self.size):
            ended = [(rank, EndMap())] if around.number >= self.small.first else []
            begun = [(rank, BeginMap(number, lo, lo + tasks[rank], self.small.chunksize))] if left else []
            state = self.post(state, ACCOUNT, [*ended, *begun])
            lo += tasks[rank]
        around = around._replace(number=number, collector=Collector(number % EPOCHS, lo), maps_left=left)
        new = state._replace(rest=around)
        return self.next_map(new) if left and not lo else new

    def hears(self, state: State, rank: int, mail: Any) -> bool:
        """False in the middle of a swap or a chunk; and while a map can't begin, since a rank is in the one before."""
        if rank != ACCOUNT and state.actors[rank].job is not None and not state.rest.due[rank]:
            return False
        if not isinstance(mail, BeginMap) or not synchronizes(mail.epoch):
            return True
        wires = [wire for (source, _), wire in state.wires.items() if source == ACCOUNT]
        return not any(isinstance(one, BeginMap) and one.epoch == mail.epoch for wire in wires for one in wire[1:])

    def turns(self, state: State, rank: int, arrived: list[tuple[int, Any]]) -> Iterator[State]:
        """A turn, in which the rank leaves tasks to others, or asks nobody, or one of the others."""
        if rank == ACCOUNT:
            yield self.account(state, arrived[0][1])
            return
        if not arrived and state.actors[rank].job is not None and not state.rest.due[rank]:
            return
        state = state._replace(rest=state.rest._replace(due=put(state.rest.due, rank, False)))

        def act(choice: int | None, *, leaves: bool) -> State:
            def turn(worker: Worker) -> list[Any]:
                worker.words, worker._hosts.choice = state.rest.words, choice  # type: ignore[attr-defined]
                worker._ending.answer = leaves  # type: ignore[attr-defined]
                return worker.turn(0.0, arrived)

            return self.act(state, rank, turn, (choice, leaves, state.rest.words, *arrived))

        new = act(None, leaves=True)
        if new.actors[rank]._leaving:
            yield new
        for choice in (None, *self.others[rank]):
            yield (new := act(choice, leaves=False))
            if new.actors[rank].job is not None:
                return

    def jobs(self, state: State, rank: int, job: Swap | Interval) -> Iterator[State]:
        if state.rest.due[rank]:
            return
        around = state.rest._replace(due=put(state.rest.due, rank, True))
        if isinstance(job, Interval):
            new = self.act(state._replace(rest=around), rank, lambda worker: worker.done(job, 1.0), "done")
            yield self.post(new, rank, [(ACCOUNT, job)]) if self.small.late else self.account(new, job)
            return
        succeeded = self.compare(around.words[job.rank], job)
        if succeeded:
            around = around._replace(words=put(around.words, job.rank, job.new))

        def swapped(worker: Worker) -> list[Any]:
            sends = worker.done(job, succeeded)
            if succeeded:
                check_swap(rank, job, worker, sends)
            return sends

        yield self.act(state._replace(rest=around), rank, swapped, ("swap", succeeded))

    def more(self, state: State) -> Iterator[State]:
        """The map is given up."""
        if state.rest.abandons and state.rest.maps_left:
            yield self.next_map(state._replace(rest=state.rest._replace(abandons=state.rest.abandons - 1)))

    def account(self, state: State, part: Interval) -> State:
        collector = clone(state.rest.collector)
        collector.take(*part)
        new = state._replace(rest=state.rest._replace(collector=collector))
        over = not collector.missing and state.rest.maps_left and state.rest.collector.missing
        return self.next_map(new) if over and self.small.late else new

    @staticmethod
    def compare(word: int, swap: Swap) -> bool:
        """True when the swap succeeds."""
        return word == swap.old

    def explore(self, *, most_states: int = 200_000, progress: bool = False) -> tuple[int, int]:
        """Check the law in every reachable state, and that the end can be reached from each; (states, ends among them).

        `progress`: also that no state comes back: whatever ranks do, some rank gets on.
        """
        found = self.reach(self.start, most_states)
        if progress:
            check_progress([[each for each in before if each != n] for n, before in enumerate(found.came_from)])
        return found[:2]


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
