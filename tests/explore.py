"""Every reachable state of a small search, breadth first: all orders of delivery, work and turns that MPI allows."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lb_mpi.searching.bound import Bound
from lb_mpi.searching.cut import Cut
from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.options import Options
from lb_mpi.searching.searcher import Searcher
from tests.disk import Disk, MemoryStore
from tests.law import check_ewd998, check_law
from tests.pile import Broken, Pile
from tests.reach import reach


class NoPause:
    """Pauses are left to the choice of the exploration: any rank may take a turn at any time."""

    def next(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


class World(NamedTuple):
    """All ranks, and what is under way between each two of them, in order; what is on disk."""

    searchers: list[Searcher]
    channels: dict[tuple[int, int], tuple[Message, ...]]
    disk: Disk

    def copy(self) -> "World":
        return World([clone(searcher) for searcher in self.searchers], dict(self.channels), self.disk.copy())

    def key(self) -> tuple[object, ...]:
        """Equal for states that can't be told apart."""
        ranks = []
        for s in self.searchers:
            d, t, p = s.drafting, s.termination, s.problem
            ranks.append(
                (d.state, d.seq, d.promise, d.had_work, tuple(sorted(d.skipped.items())), t.count, t.black, t.token,
                 s.reason, s._told, tuple(p.items), tuple(sorted(p.done)), s.error is None,
                 s.sharing and (s.sharing.bound.best, *s.sharing.known.values()),
                 s.saves and cut_key(s.saves.cut))
            )  # fmt: skip
        under_way = tuple(sorted((pair, queue) for pair, queue in self.channels.items() if queue))
        return (tuple(ranks), under_way, self.disk.key())


def clone(searcher: Searcher) -> Searcher:
    """A copy that shares nothing that changes."""
    other = copy.copy(searcher)
    other.problem = copy.copy(searcher.problem)
    other.problem.items, other.problem.done = list(searcher.problem.items), list(searcher.problem.done)
    other.drafting = copy.copy(searcher.drafting)
    other.drafting.problem = other.problem
    other.drafting.skipped = dict(searcher.drafting.skipped)
    other.termination = copy.copy(searcher.termination)
    if searcher.sharing is not None:
        other.sharing = copy.copy(searcher.sharing)
        other.sharing.known = dict(searcher.sharing.known)
        other.sharing.bound = other.problem.bound = copy.copy(searcher.sharing.bound)
    if searcher.saves is not None:
        other.saves = copy.copy(searcher.saves)
        other.saves.cut = copy_cut(searcher.saves.cut)
    return other


def copy_cut(cut: Cut) -> Cut:
    other = copy.copy(cut)
    other._counted, other._awaited = dict(cut._counted), set(cut._awaited)
    return other


def cut_key(cut: Cut) -> tuple[object, ...]:
    counted, awaited = tuple(sorted(cut._counted.items())), tuple(sorted(cut._awaited))
    return (
        cut.state,
        cut.number,
        cut.under_way,
        cut.at,
        cut.receipts,
        counted,
        cut._told,
        awaited,
    )


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
) -> World:
    """Rank 0 has all work of `Pile(limit)`; the ring is 0, 1, ... size - 1; `bound()` makes a bound for each rank."""
    options = Options(threshold=threshold, save_every_s=math.inf if saves else None)
    piles = [Pile(limit, wanted=wanted, broken=broken, bound=bound()) for _ in range(size)]
    searchers = [searcher(rank, range(size), pile, options, pile.bound) for rank, pile in enumerate(piles)]
    for each in searchers:
        each.termination.pause = NoPause()
        each.drafting.terms = each.drafting.terms._replace(pause=NoPause())
    return World(searchers, {}, Disk())


def successors(world: World, most_saves: int = 0) -> list[World]:
    """One delivery, all that is under way to one rank at once, one empty turn, or one unit of work on some rank; it is time
    for a save, or a rank writes what it has to, or can't.
    """
    worlds = []
    for pair, queue in world.channels.items():
        if queue:
            new = world.copy()
            new.channels[pair] = queue[1:]
            turn(new, pair[1], [queue[0]])
            worlds.append(new)
    for rank, searcher in enumerate(world.searchers):
        if searcher.over:
            continue
        batch = [message for pair, queue in world.channels.items() if pair[1] == rank for message in queue]
        if len(batch) > 1:
            new = world.copy()
            new.channels.update({pair: () for pair in world.channels if pair[1] == rank})
            turn(new, rank, batch)
            worlds.append(new)
        if searcher.saving:
            for well in (True, False):
                new = world.copy()
                store = MemoryStore(new.disk, rank, size=len(world.searchers), full=not well)
                send(new, rank, new.searchers[rank].save(store, 0.0))
                worlds.append(new)
        if (
            rank == 0
            and searcher.saves is not None
            and searcher.saves.cut.number < most_saves
            and searcher.saves.cut.at > 0.0
        ):
            new = world.copy()
            new.searchers[0].saves.cut.at = 0.0
            worlds.append(new)
        if searcher.problem.items and not searcher._ending and not searcher.paused:
            new = world.copy()
            new.searchers[rank].work(1)
            worlds.append(new)
        new = world.copy()
        turn(new, rank, [])
        worlds.append(new)
    return worlds


def turn(world: World, rank: int, arrived: list[Message]) -> None:
    searcher = world.searchers[rank]
    sharing = searcher.sharing
    best, known = (0.0, {}) if sharing is None else (sharing.bound.best, dict(sharing.known))
    sends = searcher.turn(0.0, arrived)
    send(world, rank, sends)
    for destination, message in sends:
        if message.kind is Kind.BOUND:
            assert sharing.bound.is_better(message.load, known[destination]), (
                f"{message} to {destination}, which knows it"
            )
    if sharing is not None:
        now, better = sharing.bound.best, sharing.bound.is_better
        assert not better(best, now), f"rank {rank}: {now} after {best}"
        late = [other for other, value in sharing.known.items() if better(now, value)]
        assert not late or searcher.over or searcher._ending or searcher.paused, (
            f"rank {rank} tells ranks {late} nothing of {now}"
        )
    if searcher.error is not None and not isinstance(searcher.error, Broken):
        raise searcher.error


def send(world: World, rank: int, sends: list[Send]) -> None:
    for destination, message in sends:
        pair = (rank, destination)
        world.channels[pair] = (*world.channels.get(pair, ()), message)


def explore(
    first: World,
    *,
    most_drafts: int,
    most_states: int = 200_000,
    most_saves: int = 0,
    look: Callable[[World], None] = lambda world: None,
) -> tuple[int, int]:
    """Check the law in every state reachable with at most `most_drafts` drafts per rank, and that the end (all ranks know
    that it is over) can be reached from every one of them, or at least the bound.

    Returns (states seen, end states among them); AssertionError on a broken law, or on a state without a way out.
    """

    def look_at(world: World) -> bool:
        check_law(world.searchers, [(pair[1], message) for pair, fifo in world.channels.items() for message in fifo])
        look(world)
        return all(searcher.over for searcher in world.searchers)

    def bounded(world: World) -> Iterator[World | None]:
        for new in successors(world, most_saves):
            yield new if all(searcher.drafting.seq <= most_drafts for searcher in new.searchers) else None

    found = reach([first], bounded, key=World.key, look=look_at, most_states=most_states)
    return found.states, found.ends


def explore_tokens(searcher_class: type, *, size: int, most_work: int) -> int:
    """Safra's token alone: ranks are active or passive, an active one may send WORK to anybody or turn passive at any time.

    Checks EWD998's invariant, and that `over` is true only when nothing is active or under way, in every state with at
    most `most_work` WORK messages sent in all.  Returns the number of states.  The network here is a set of counts: WORK
    from different ranks, and the token, may overtake each other.
    """
    first = tuple(searcher_class(rank, range(size), Pile(1), Options()).termination for rank in range(size))
    for termination in first:
        termination.pause = NoPause()
    # ranks, active, WORK under way to each, token under way to (rank, token) or None, WORK messages sent so far
    start = (first, (True,) * size, (0,) * size, None, 0)

    def look(state: tuple) -> bool:
        check_token_state(state)
        return state[0][0].over

    return reach([start], lambda state: token_moves(state, most_work), key=token_key, look=look).states


def token_key(state: tuple) -> tuple:
    ranks, *rest = state
    return (tuple((rank.count, rank.black, rank.token, rank.over) for rank in ranks), *rest)


def token_moves(state: tuple, most_work: int) -> list[tuple]:
    ranks, active, under_way, token, sent = state
    size = len(ranks)
    moves = []

    def changed(rank: int) -> tuple:
        return tuple(copy.copy(each) if number == rank else each for number, each in enumerate(ranks))

    for rank in range(size):
        if active[rank]:
            moves.append((ranks, put(active, rank, False), under_way, token, sent))
            for other in range(size) if sent < most_work else ():
                if other != rank:
                    new = changed(rank)
                    new[rank].sent()
                    moves.append((new, active, put(under_way, other, under_way[other] + 1), token, sent + 1))
        if under_way[rank]:
            new = changed(rank)
            new[rank].received()
            moves.append((new, put(active, rank, True), put(under_way, rank, under_way[rank] - 1), token, sent))
        if token is not None and token[0] == rank:
            new = changed(rank)
            new[rank].arrive(token[1], 0.0)
            moves.append((new, active, under_way, None, sent))
        new = changed(rank)
        passed = new[rank].settle(active[rank], 0.0)
        moves.append((new, active, under_way, token if passed is None else ((rank + 1) % size, passed), sent))
    return moves


def check_token_state(state: tuple) -> None:
    ranks, active, under_way, token, _ = state
    if ranks[0].over:
        assert not any(active), "over, but a rank is active"
        assert not any(under_way), "over, but work is under way"
        return
    held = [(rank, termination.token) for rank, termination in enumerate(ranks) if termination.token is not None]
    places = held + ([token] if token is not None else [])
    assert len(places) == 1, f"{len(places)} tokens"
    counts = [termination.count for termination in ranks]
    colours = [termination.black for termination in ranks]
    check_ewd998(*places[0], sum(under_way), counts, colours, [not each for each in active])


class Paused(NamedTuple):
    """What `explore_cut` knows: ranks that may send WORK to anybody at any time, unless they are paused."""

    cuts: tuple[Cut, ...]
    channels: tuple[
        tuple[tuple[int, int], tuple[Message, ...]], ...
    ]  # by (source, destination), those that aren't empty
    work: tuple[int, ...]  # WORK under way to each rank
    sent: int  # WORK so far
    held: tuple[int, ...]  # the pieces of work that each rank has, WORK is one of them
    states: tuple[int | None, ...]  # what each rank has written for the save at hand


def explore_cut(cut_class: type, *, above: tuple[int | None, ...], most_work: int, most_saves: int = 2) -> int:
    """The cut alone, on ranks in a tree (`above` of each): its law in every state; returns the number of states.

    WORK may be overtaken by anything here.  A rank may fail to write; AssertionError also for a state without a way out.
    """
    size = len(above)
    cuts = tuple(cut_class(rank, size) for rank in range(size))
    for rank, each in enumerate(cuts):
        each.above, each.below = above[rank], [other for other in range(size) if above[other] == rank]
    first = Paused(cuts, (), (0,) * size, 0, (1,) * size, (None,) * size)

    def look(state: Paused) -> bool:
        return state.cuts[0].number == most_saves and not any(each.paused for each in state.cuts)

    return reach([first], lambda state: cut_moves(state, most_work, most_saves), key=paused_key, look=look).states


def paused_key(state: Paused) -> tuple[object, ...]:
    return (tuple(cut_key(each) for each in state.cuts), *state[1:])


def cut_moves(state: Paused, most_work: int, most_saves: int) -> Iterator[Paused]:
    for rank, each in enumerate(state.cuts):
        if not each.paused and state.sent < most_work and state.held[rank]:
            for other in range(len(state.cuts)):
                if other != rank:
                    new = changed_cut(state, rank)
                    new.cuts[rank].under_way += 1
                    work, held = put(new.work, other, new.work[other] + 1), put(new.held, rank, new.held[rank] - 1)
                    yield new._replace(work=work, held=held, sent=new.sent + 1)
        if state.work[rank]:
            new = changed_cut(state, rank)
            new.cuts[rank].under_way -= 1
            work, held = put(new.work, rank, new.work[rank] - 1), put(new.held, rank, new.held[rank] + 1)
            yield settled(new._replace(work=work, held=held), rank, [])
        if each.to_write:
            for well in (True, False):
                new = changed_cut(state, rank)
                assert all(one.paused for one in state.cuts), "a rank goes on while states are taken"
                new.cuts[rank].wrote(bytes([rank]) if well else None)
                yield settled(new._replace(states=put(new.states, rank, new.held[rank] if well else None)), rank, [])
    for (source, rank), messages in state.channels:
        new = changed_cut(state, rank)
        rest = tuple((pair, queue[1:] if pair == (source, rank) else queue) for pair, queue in new.channels)
        new = new._replace(channels=tuple((pair, queue) for pair, queue in rest if queue))
        yield settled(new, rank, new.cuts[rank].receive(messages[0]))
    root = state.cuts[0]
    if root.state is root.state.RUNNING and root.number < most_saves:
        new = changed_cut(state, 0)
        new = new._replace(states=(None,) * len(state.cuts))
        yield settled(new, 0, new.cuts[0].begin())
    if root.to_open:
        for well in (True, False):
            new = changed_cut(state, 0)
            yield settled(new, 0, new.cuts[0].opened(well, 0.0))
    if root.to_commit:
        well = root.receipts is not None
        assert not well or sorted(root.receipts) == list(range(len(state.cuts))), "not all have written"
        assert not well or sum(one or 0 for one in state.states) == sum(state.held) + sum(state.work), (
            "not all is saved"
        )
        new = changed_cut(state, 0)
        yield settled(new, 0, new.cuts[0].ended(0.0))


def changed_cut(state: Paused, rank: int) -> Paused:
    return state._replace(cuts=put(state.cuts, rank, copy_cut(state.cuts[rank])))


def settled(state: Paused, rank: int, sends: list[Send]) -> Paused:
    channels = dict(state.channels)
    for destination, message in [*sends, *state.cuts[rank].settle()]:
        pair = (rank, destination)
        channels[pair] = (*channels.get(pair, ()), message)
    return state._replace(channels=tuple(sorted(channels.items())))


def put(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])
