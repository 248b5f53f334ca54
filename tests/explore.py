"""Every reachable state of a small search, breadth first: all orders of delivery, work and turns that MPI allows."""

import copy
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lb_mpi.searching.bound import Bound
from lb_mpi.searching.drafting import Kind, Message
from lb_mpi.searching.searcher import Options, Searcher
from tests.law import check_ewd998, check_law
from tests.pile import Broken, Pile


class NoPause:
    """Pauses are left to the choice of the exploration: any rank may take a turn at any time."""

    def next(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


class World(NamedTuple):
    """All ranks, and what is under way between each two of them, in order."""

    searchers: list[Searcher]
    channels: dict[tuple[int, int], tuple[Message, ...]]

    def copy(self) -> "World":
        return World([clone(searcher) for searcher in self.searchers], dict(self.channels))

    def key(self) -> tuple[object, ...]:
        """Equal for states that can't be told apart."""
        ranks = []
        for s in self.searchers:
            d, t, p = s.drafting, s.termination, s.problem
            ranks.append(
                (d.state, d.seq, d.promise, d.had_work, tuple(sorted(d.skipped.items())), t.count, t.black, t.token,
                 s.reason, s._told, tuple(p.items), tuple(sorted(p.done)), s.error is None,
                 s.sharing and (s.sharing.bound.best, *s.sharing.known.values()))
            )  # fmt: skip
        return (tuple(ranks), tuple(sorted((pair, queue) for pair, queue in self.channels.items() if queue)))


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
    return other


def first_world(
    size: int,
    limit: int,
    *,
    wanted: int = 0,
    broken: str = "",
    threshold: float = 0.5,
    searcher: type = Searcher,
    bound: Callable[[], Bound | None] = lambda: None,
) -> World:
    """Rank 0 has all work of `Pile(limit)`; the ring is 0, 1, ... size - 1; `bound()` makes a bound for each rank."""
    options = Options(threshold=threshold)
    piles = [Pile(limit, wanted=wanted, broken=broken, bound=bound()) for _ in range(size)]
    searchers = [searcher(rank, range(size), pile, options, pile.bound) for rank, pile in enumerate(piles)]
    for each in searchers:
        each.termination.pause = NoPause()
        each.drafting.terms = each.drafting.terms._replace(pause=NoPause())
    return World(searchers, {})


def successors(world: World) -> list[World]:
    """One delivery, all that is under way to one rank at once, one empty turn, or one unit of work on some rank."""
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
        if searcher.problem.items and not searcher._ending:
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
    for destination, message in searcher.turn(0.0, arrived):
        pair = (rank, destination)
        world.channels[pair] = (*world.channels.get(pair, ()), message)
        if message.kind is Kind.BOUND:
            assert sharing.bound.is_better(message.load, known[destination]), (
                f"{message} to {destination}, which knows it"
            )
    if sharing is not None:
        now, better = sharing.bound.best, sharing.bound.is_better
        assert not better(best, now), f"rank {rank}: {now} after {best}"
        late = [other for other, value in sharing.known.items() if better(now, value)]
        assert not late or searcher.over or searcher._ending, f"rank {rank} tells ranks {late} nothing of {now}"
    if searcher.error is not None and not isinstance(searcher.error, Broken):
        raise searcher.error


def explore(first: World, *, most_drafts: int, most_states: int = 200_000) -> tuple[int, int]:
    """Check the law in every state reachable with at most `most_drafts` drafts per rank, and that the end (all ranks know
    that it is over) can be reached from every one of them, or at least the bound.

    Returns (states seen, end states among them); AssertionError on a broken law, or on a state without a way out.
    """
    seen = {first.key(): 0}
    queue = deque([first])
    came_from: list[list[int]] = [[]]  # the states from which each state was reached
    way_out = []  # states that are the end, or one step from the bound
    over = 0
    while queue:
        world = queue.popleft()
        number = seen[world.key()]
        check_law(world.searchers, [(pair[1], message) for pair, fifo in world.channels.items() for message in fifo])
        if all(searcher.over for searcher in world.searchers):
            over += 1
            way_out.append(number)
            continue
        for new in successors(world):
            if any(searcher.drafting.seq > most_drafts for searcher in new.searchers):
                way_out.append(number)
                continue
            key = new.key()
            if key not in seen:
                seen[key] = len(seen)
                came_from.append([])
                queue.append(new)
                assert len(seen) <= most_states, "more states than expected: choose smaller bounds"
            came_from[seen[key]].append(number)
    saved = set(way_out)
    while way_out:
        for number in came_from[way_out.pop()]:
            if number not in saved:
                saved.add(number)
                way_out.append(number)
    assert len(saved) == len(seen), f"{len(seen) - len(saved)} states from which the search never ends"
    return len(seen), over


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
    seen = {token_key(start)}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        check_token_state(state)
        if state[0][0].over:
            continue
        for new in token_moves(state, most_work):
            key = token_key(new)
            if key not in seen:
                seen.add(key)
                queue.append(new)
    return len(seen)


def token_key(state: tuple) -> tuple:
    ranks, *rest = state
    return (tuple((rank.count, rank.black, rank.token, rank.over) for rank in ranks), *rest)


def token_moves(state: tuple, most_work: int) -> list[tuple]:
    ranks, active, under_way, token, sent = state
    size = len(ranks)
    moves = []

    def changed(rank: int) -> tuple:
        return tuple(copy.copy(each) if number == rank else each for number, each in enumerate(ranks))

    def put(values: tuple, at: int, value: object) -> tuple:
        return (*values[:at], value, *values[at + 1 :])

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
