"""The law of a pool, checked from outside on all ranks at once; and every state that small pools can reach."""

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.cli.simulate.tasks import ResultBatch, SimulatedPool
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.pooling.account import Collector
from lb_mpi.pooling.intervals import EPOCHS, Interval, synchronizes, unpack
from lb_mpi.pooling.stealer import BeginMap, EndMap, MapTail, Stealer, StealKind, StealMessage, Swap, _Hosts
from tests.protocol.explore import Arrived, Choices, Exploration, Sends, State, put

UnderWay = Iterable[tuple[int, int, Any]]  # source, destination, message


def check_law(
    number: int, stealers: Sequence[Stealer], words: Sequence[int], under_way: UnderWay, done: Iterable[Interval],
    collector: Collector, *, complete: bool = True,
) -> None:  # fmt: skip
    """AssertionError unless each task of map `number` is in exactly one place, and each ASK is answered once.

    `done` are tasks that are run and not yet counted; not `complete`: a task has raised, and others are dropped.
    """
    epoch = number % EPOCHS
    counts = np.frombuffer(bytes(collector._done), np.uint8).astype(np.int64)
    messages = list(under_way)
    owned = [unpack(word) for word in words] + [stealer.chunk for stealer in stealers] + list(done)
    pieces = [(piece.lo, piece.hi) for piece in owned if piece is not None and piece.epoch == epoch]
    asks: Counter[tuple[int, int]] = Counter()  # (thief, rank asked): ASK, or its answer
    for source, destination, mail in messages:
        if isinstance(mail, BeginMap | StealMessage) and mail.epoch == number:
            pieces += [(mail.lo, mail.hi)]
            if isinstance(mail, StealMessage):
                asks[(source, destination) if mail.kind == StealKind.ASK else (destination, source)] += 1
    for stealer in stealers:
        old = stealer.chunk is not None and stealer.epoch >= 0 and stealer.chunk.epoch != stealer.epoch % EPOCHS
        assert not old, f"rank {stealer.rank} runs {stealer.chunk} in map {stealer.epoch}"
        ours = stealer.chunk is not None and stealer.chunk.epoch == epoch
        assert not ours or stealer.epoch in (number, -1), f"rank {stealer.rank} runs {stealer.chunk} in map {stealer.epoch}"
        if stealer.epoch == number:
            pieces += [(piece.lo, piece.hi) for piece in (stealer._rest, *stealer._given) if piece is not None]
            asks.update((thief, stealer.rank) for thief, _ in stealer._asks)
    assert all(lo == hi or 0 <= lo < hi <= len(counts) for lo, hi in pieces), f"tasks of another map: {pieces}"
    for lo, hi in pieces:
        counts[lo:hi] += 1
    assert (counts <= 1).all(), f"tasks {np.flatnonzero(counts > 1)} are in two places"
    if complete:
        assert (counts == 1).all(), f"tasks {np.flatnonzero(counts == 0)} are lost"
        asked = {(stealer.rank, rank): 1 for stealer in stealers if stealer.epoch == number for rank in stealer._hosts.asked}
        assert asks == asked, f"ASK and GIVE {asks}, asked {asked}"


def check_swap(rank: int, swap: Swap, stealer: Stealer, sends: Sends) -> None:
    """AssertionError unless a swap of `rank` that has succeeded, and that it knows of, was one of the three."""
    old, new = unpack(swap.old), unpack(swap.new)
    if swap.rank == rank and (old.epoch != new.epoch or old.n == 0):
        assert stealer._rest is None, "what has been filled in is still to be filled in"
        return
    assert new.n < old.n, f"rank {rank} has filled the word of rank {swap.rank}"
    assert new.epoch == old.epoch == stealer.epoch % EPOCHS, f"rank {rank} takes of another map: {old}"
    front, back = Interval(old.epoch, old.lo, new.lo), Interval(old.epoch, new.hi, old.hi)
    assert (front.n == 0) != (back.n == 0), f"{old} became {new}"
    given = any(mail.kind == StealKind.GIVE and (mail.lo, mail.hi) == (back.lo, back.hi) for _, mail in sends)
    chunk = stealer.chunk
    assert given or (chunk is not None and chunk.lo == (front if front.n else back).lo), "taken, and not begun"


def check_pool(pool: SimulatedPool, number: int) -> None:
    """Hold the law against a simulation."""
    under_way = [each for each in pool.under_way.values() if not isinstance(each[2], ResultBatch)]
    results = [mail for _, _, mail in pool.under_way.values() if isinstance(mail, ResultBatch)]
    done = [part for mail in results for part in mail.parts] + [part for one in pool.members for part in one.results]
    stealers = [member.stealer for member in pool.members]
    check_law(number, stealers, pool.words, under_way, done, pool.collector, complete=not pool.raised)


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


class ChosenTail(MapTail):
    """Leaves tasks to others when the exploration chooses so."""

    choose: Choices

    def observe(self, n: int, seconds: float) -> None:
        pass

    def estimate(self) -> None:
        return None

    def leaves(self, now: float, tasks: Callable[[], float]) -> bool:
        assert tasks() > 0, "there is nothing to leave"
        return bool(self.choose(2))


class ChosenHosts(_Hosts):
    """Asks nobody, or a rank of another host, as the exploration chooses."""

    choose: Choices

    def ask(self, now: float) -> int | None:
        ranks = [rank for host in self._others for rank in host if rank not in self.asked]
        rank = [None, *ranks][self.choose(1 + len(ranks))]
        self.asked |= {rank} - {None}
        return rank


class Account:
    """Begins and ends maps, may give some up, and counts results: an actor that is no rank."""

    wake_at = math.inf

    def __init__(self, small: Small) -> None:
        self.small, self.size = small, sum(map(len, small.hosts))
        self.number, self.left, self.abandons = small.first - 1, len(small.maps) + 1, small.abandons
        self.collector = Collector(0, 0)

    @property
    def over(self) -> bool:
        return not self.left

    @property
    def job(self) -> str | None:
        return "abandon" if self.abandons and self.left else None

    def turn(self, _now: float, arrived: Iterable[tuple[int, Interval]]) -> list[tuple[int, Any]]:
        sends = []
        for _, part in arrived:
            missing = self.collector.missing
            self.collector.add(*part)
            if missing and not self.collector.missing and self.left and self.small.late:
                sends += self.next_map()
        return sends

    def done(self, _job: str, _outcome: None) -> list[tuple[int, Any]]:
        self.abandons -= 1
        return self.next_map()

    def next_map(self) -> list[tuple[int, Any]]:
        """End the map, and begin the next one that has tasks, if there is one."""
        sends: list[tuple[int, Any]] = []
        n = 0
        while self.left and not n:
            ends = self.number >= self.small.first
            self.number, self.left = self.number + 1, self.left - 1
            for rank in range(self.size):
                sends += [(rank, EndMap())] if ends else []
                if self.left:
                    lo, n = n, n + self.small.maps[-self.left][rank]
                    sends.append((rank, BeginMap(self.number, lo, n, self.small.chunksize)))
        self.collector = Collector(self.number % EPOCHS, n)
        return sends


class Around(NamedTuple):
    """The state beside ranks and messages."""

    words: tuple[int, ...]
    due: tuple[bool, ...]  # ranks that have done a job, and not taken the turn that follows it


class Maps(Exploration):
    """Every state of a small pool: all orders of deliveries, readings, swaps and ends of chunks."""

    batches = False

    def __init__(self, small: Small) -> None:
        super().__init__()
        self.small = small
        account = Account(small)
        self.account = account.size  # its place among the actors
        speeds = small.speeds or {}
        knowledge = RankKnowledge(self.account, [speeds.get(rank, 1.0) for rank in range(self.account)])
        stealers = []
        for host in small.hosts:
            others = [other for other in small.hosts if other is not host]
            for rank in host:
                stealer = Stealer(rank, host, others, words=(), timings={}, knowledge=knowledge)
                stealer._hosts = ChosenHosts(others, random.Random(0))
                stealer._tail = ChosenTail(rank, host, {}, knowledge)
                stealers.append(stealer)
        around = Around((0,) * self.account, (False,) * self.account)
        sends = account.next_map()
        self.start = self.post(State((*stealers, account), {}, around), self.account, sends)

    def key_of(self, actor: Stealer | Account) -> Hashable:
        if isinstance(actor, Account):
            return actor.number, bytes(actor.collector._done), actor.left, actor.abandons
        w, asked = actor, frozenset(actor._hosts.asked)
        return w.epoch, w.chunk, w.swap, w._rest, tuple(w._given), tuple(w._asks), w._answering, asked

    def law(self, state: State) -> None:
        *stealers, account = state.actors
        under_way = [(*ends, mail) for ends, wire in state.wires.items() if ends[1] != self.account for mail in wire]
        done = [part for ends, wire in state.wires.items() if ends[1] == self.account for part in wire]
        check_law(account.number, stealers, state.rest.words, under_way, done, account.collector)

    def is_end(self, state: State) -> bool:
        """All ranks know that the last map is over; of a single map, all is done."""
        if not self.small.late:
            return not state.actors[self.account].collector.missing
        return not any(state.wires.values()) and super().is_end(state)

    def may_turn(self, state: State, rank: int, arrived: Arrived) -> bool:
        """False in the middle of a swap or a chunk; and while a map can't begin, since a rank is in the one before."""
        if rank == self.account:
            return bool(arrived)
        if state.actors[rank].job is not None and not state.rest.due[rank]:
            return False
        begins = [mail for _, mail in arrived if isinstance(mail, BeginMap) and synchronizes(mail.epoch)]
        wires = [wire for (source, _), wire in state.wires.items() if source == self.account]
        behind = [mail for wire in wires for mail in wire[1:] if isinstance(mail, BeginMap)]
        return not any(mail.epoch == one.epoch for one in begins for mail in behind)

    def memory(self, state: State, rank: int) -> tuple[int, ...]:
        return state.rest.words

    def enter(self, actor: Stealer | Account, words: tuple[int, ...], choose: Choices) -> None:
        if isinstance(actor, Stealer):
            actor.words, actor._hosts.choose, actor._tail.choose = words, choose, choose

    def turn(self, state: State, rank: int, arrived: Arrived) -> Iterator[State]:
        return super().turn(self.set_due(state, rank, False), rank, arrived)

    def set_due(self, state: State, rank: int, due: bool) -> State:
        if rank == self.account or state.rest.due[rank] == due:
            return state
        return state._replace(rest=state.rest._replace(due=put(state.rest.due, rank, due)))

    def run(self, state: State, rank: int, job: Swap | Interval | str) -> Iterator[tuple[Any, State]]:
        if rank == self.account:
            yield None, state
        elif not state.rest.due[rank]:
            state = self.set_due(state, rank, True)
            if isinstance(job, Swap):
                words = state.rest.words
                if succeeded := self.compare(words[job.rank], job):
                    state = state._replace(rest=state.rest._replace(words=put(words, job.rank, job.new)))
                yield succeeded, state
            elif self.small.late:
                yield 1.0, self.post(state, rank, [(self.account, job)])
            else:
                yield from ((1.0, then) for then in self.turn(state, self.account, [(rank, self.same(job))]))

    def check_done(self, after: Stealer | Account, job: Swap | Interval | str, outcome: Any, sends: Sends) -> None:
        if isinstance(job, Swap) and outcome:
            check_swap(after.rank, job, after, sends)

    def compare(self, word: int, swap: Swap) -> bool:
        """True when the swap succeeds."""
        return word == swap.old

    def explore(self, *, most_states: int = 200_000) -> int:
        """Check the law in every reachable state, and that the end can be reached from each; the number of states.

        On one host also that no state comes back: whatever ranks do, some rank gets on.
        """
        found = self.reach(self.start, most_states)
        if len(self.small.hosts) == 1:
            check_progress(found.came_from)
        return found.states


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
