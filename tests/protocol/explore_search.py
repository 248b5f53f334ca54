"""Every reachable state of a small search: on the ring, where it may be saved, too; and with walking drafts."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from lb_mpi.searching import walking
from lb_mpi.searching.bound import Bound
from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.drafting import State as Is
from lb_mpi.searching.guard import Options
from lb_mpi.searching.saves import SaveJob, do
from lb_mpi.searching.searcher import Job, Searcher, Work
from lb_mpi.searching.walking import Draft
from tests.pile import Broken, Heap, Pile, children
from tests.protocol.disk import Disk, MemoryStore
from tests.protocol.explore import ANY, Arrived, Choices, Exploration, State, clone
from tests.protocol.law import check_law


class NoPause:
    """Pauses are left to the choice of the exploration: any rank may take a turn at any time."""

    def next(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


class Searches(Exploration):
    """What both routes have in common; with at most `most_drafts` drafts a rank."""

    def __init__(self, most_drafts: int, visit: Callable[[State], None] = lambda state: None) -> None:
        super().__init__()
        self.most_drafts, self.on_visit = most_drafts, visit

    def law(self, state: State) -> None:
        check_law(state.actors, [(pair[1], message) for pair, wire in state.wires.items() for message in wire])
        self.on_visit(state)

    def is_beyond(self, state: State) -> bool:
        return any(searcher.drafting.seq > self.most_drafts for searcher in state.actors)

    def job(self, state: State, rank: int, job: Job) -> Iterator[State]:
        def work(searcher: Searcher, _choose: Choices) -> list[Send]:
            try:  # the problem is part of the actor
                return searcher.done(job, searcher.problem.work(1))
            except Broken as error:
                return searcher.fail(error)

        return self.act(state, rank, work, "work") if isinstance(job, Work) else super().job(state, rank, job)

    def run(self, state: State, rank: int, job: SaveJob) -> Iterator[tuple[Any, State]]:
        """What a save asks for is done, or can't be."""
        for well in (True, False):
            disk = clone(state.rest)
            yield do(job, MemoryStore(disk, rank, size=len(state.actors), full=not well)), state._replace(rest=disk)


def raised(searcher: Searcher) -> None:
    """AssertionError, or ProtocolError, in a turn that has raised more than a problem does."""
    if searcher.error is not None and not isinstance(searcher.error, Broken):
        raise searcher.error


class Ring(Searches):
    """Drafts go round; at most `most_saves` saves are begun, and its time may be over at any time (`limited`)."""

    def __init__(self, most_drafts: int, most_saves: int = 0, *, limited: bool = False, **keywords: Any) -> None:
        super().__init__(most_drafts, **keywords)
        self.most_saves, self.limited = most_saves, limited

    def key_of(self, s: Searcher) -> tuple[object, ...]:
        d, t, p = s.drafting, s.termination, s.problem
        return (
            d.state, d.seq, d.promise, d.had_work, tuple(sorted(d.skipped.items())), t.count, t.black, t.token,
            s.reason, s._finished, tuple(p.items), tuple(sorted(p.done)), s.error is None, type(s.job),
            s.sharing and (s.sharing.bound.best, *s.sharing.known.values()), s.saves and cut_key(s.saves),
            s.limit_at, s._timed_out, s.saves and s.saves.stopping,
        )  # fmt: skip

    def key_of_rest(self, disk: Disk) -> tuple[object, ...]:
        return disk.key()

    def check_turn(self, before: Searcher, after: Searcher, _arrived: Arrived, sends: list[Send]) -> None:
        if before.sharing is not None:
            check_named(after, before.sharing.bound.best, before.sharing.known, sends)
        raised(after)

    def more(self, state: State) -> Iterator[State]:
        """It is time for a save, or to end."""
        root = state.actors[0]
        if self.limited and not (root.over or root._timed_out) and root.limit_at > 0.0:
            yield from self.act(state, 0, lambda searcher, _: setattr(searcher, "limit_at", 0.0) or [], "limit")
        if root.saves is not None and not root.over and root.saves.number < self.most_saves and root.saves.at != 0.0:
            yield from self.act(state, 0, lambda searcher, _: setattr(searcher.saves, "at", 0.0) or [], "save")


def cut_key(cut: Any) -> tuple[object, ...]:
    counted, awaited = tuple(sorted(cut._counted.items())), tuple(sorted(cut._awaited))
    return cut.state, cut.number, cut.under_way, cut.at, cut.receipts, counted, cut._sent, awaited


def check_named(searcher: Searcher, best: float, known: dict[int, float], sends: list[Send]) -> None:
    """AssertionError unless a turn tells each neighbour of a better value, once."""
    bound, rank = searcher.sharing.bound, searcher.rank
    now, better, known = bound.best, bound._is_better, dict(known)
    for destination, message in sends:
        if message.kind is Kind.BOUND:
            assert better(message.load, known[destination]), f"{message} to {destination}, which knows it"
    assert not better(best, now), f"rank {rank}: {now} after {best}"
    late = [other for other, value in searcher.sharing.known.items() if better(now, value)]
    excused = searcher.over or searcher._ending or searcher.paused
    assert not late or excused, f"rank {rank} tells ranks {late} nothing of {now}"


def first_world(
    size: int,
    limit: int,
    *,
    wanted: int = 0,
    broken: str = "",
    threshold: float = 0.5,
    searcher: type = Searcher,
    bound: Callable[[], Bound | None] = lambda: None,
    saves: bool = False,
) -> State:
    """Rank 0 has all work of `Pile(limit)`; the ring is 0, 1, ... size - 1; `bound()` makes a bound for each rank."""
    options = Options(threshold=threshold, save_every_s=math.inf if saves else None)
    piles = [Pile(limit, wanted=wanted, broken=broken, bound=bound()) for _ in range(size)]
    searchers = [searcher(rank, range(size), pile, options, pile.bound) for rank, pile in enumerate(piles)]
    for each in searchers:
        each.termination.pause = NoPause()
        each.drafting.terms = each.drafting.terms._replace(pause=NoPause())
    return State(tuple(searchers), {}, Disk())


def explore(first: State, *, most_drafts: int, most_states: int = 200_000, **keywords: Any) -> int:
    """The number of states of a search on the ring; AssertionError on a broken law, or on a state without a way out."""
    return Ring(most_drafts, **keywords).reach(first, most_states).states


class Walks(Searches):
    """Drafts walk, each way that they may take, and messages keep no order."""

    def wire(self, source: int, destination: int, message: Message) -> tuple[int, int]:
        return ANY, destination

    def key_of(self, s: Searcher) -> tuple[object, ...]:
        d, t, p = s.drafting, s.termination, s.problem
        return (
            d.state, d.seq, d.out, tuple(sorted(d.stood)), tuple(d.drafts.standing), d.drafts.overtaken, tuple(d.kept),
            t.engaged and t.parent, t.engaged, t.deficit, tuple(sorted(t.owed.items())),
            s.reason, s._finished, s.error is None, type(s.job),
            tuple(p.items), tuple(sorted(p.done)), tuple(getattr(p, "out", ())),
        )  # fmt: skip

    def enter(self, searcher: Searcher, memory: None, choose: Choices) -> None:
        searcher.drafting.terms = searcher.drafting.terms._replace(pick=choose)

    def check_turn(self, before: Searcher, after: Searcher, arrived: Arrived, sends: list[Send]) -> None:
        raised(after)
        if not after.over and not after._ending:
            check_turn(before, after, [message for _, message in arrived], sends)


def check_turn(before: Searcher, after: Searcher, arrived: list[Message], sends: list[Send]) -> None:
    """Who sleeps is silent; who has enough serves what stands; no walk stays."""
    kinds = {message.kind for _, message in sends}
    assert all(to != after.rank for to, _ in sends), f"rank {after.rank} tells itself {sends}"
    assert after.problem.items or after.drafting.state is not Is.BUSY, f"rank {after.rank} is busy with nothing"
    if not arrived and before.drafting.state is Is.ASLEEP:
        assert kinds <= {Kind.ACK}, f"rank {after.rank} sleeps, but sends {sends}"
    assert not after.drafting.drafts.walks, f"rank {after.rank} keeps {after.drafting.drafts.walks}"
    hops = {message.source: message.pid for message in arrived if message.kind is Kind.DRAFTING}
    for to, message in sends:
        if message.kind is Kind.DRAFTING and message.source != after.rank:
            assert message.pid < hops[message.source], f"rank {after.rank} lets a walk go on for ever"
            assert to == message.source or message.pid > 0, f"rank {after.rank} doesn't let a walk go home"
    if len(before.problem.items) > 1 and before.drafting.drafts and not before.drafting.kept:
        heavy = len(before.problem.items) > after.drafting.terms.threshold
        assert not heavy or Kind.WORK in kinds, f"rank {after.rank} could serve {before.drafting.drafts.in_order()}"
    assert not (after.drafting.kept and after.drafting.drafts), f"rank {after.rank} keeps what it could give"


def first_walks(
    size: int,
    limit: int,
    *,
    reach: int = 1,
    wanted: int = 0,
    broken: str = "",
    threshold: float = 0.5,
    searcher: type = Searcher,
    pile: type[Pile] = Heap,
    spread: bool = False,
    late: bool = False,
) -> State:
    """Rank 0 has all work of `Pile(limit)`.

    `spread`: item 1 is done, and those below it are dealt out, to the last rank first.  `late`: rank 0 gets nothing of
    this, and its drafts stand with all neighbours.
    """
    options = Options(threshold=threshold, route="random")
    searchers = [searcher(r, range(size), pile(limit, wanted=wanted, broken=broken), options) for r in range(size)]
    for each in searchers:
        each.problem.rank, each.problem.size = each.rank, size
        each.drafting.terms = each.drafting.terms._replace(reach=reach)
    if spread or late:
        searchers[0].problem.items, searchers[0].problem.done = [], [1]
        for number, item in enumerate(children(1, limit)):
            searchers[-1 - number % (size - late)].problem.items.append(item)
        for each in searchers:
            if each.problem.items:
                each.drafting.start()
    if late:
        searchers[0].drafting.stood = set(walking.neighbours(0, size))
        for other in searchers[0].drafting.stood:
            searchers[other].drafting.drafts.standing.append(Draft(0, 0))
    return State(tuple(searchers), {})


def explore_walks(first: State, *, most_drafts: int, most_states: int = 200_000) -> int:
    """The number of states of a search with walking drafts; AssertionError as in `explore`."""
    return Walks(most_drafts).reach(first, most_states).states
