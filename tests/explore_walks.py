"""Every reachable state of a small search with walking drafts: all routes, and a network that keeps no order."""

import copy
from collections.abc import Iterator
from typing import NamedTuple

from lb_mpi.searching import tree
from lb_mpi.searching.drafting import Kind, Message, Send, State
from lb_mpi.searching.drafts import Draft
from lb_mpi.searching.options import Options
from lb_mpi.searching.searcher import Searcher
from tests.law import check_law
from tests.pile import Broken, Heap, Pile, Post, children
from tests.reach import reach


class Route:
    """Picks as in a script, and the first one after it; notes how many there were to choose from."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script, self.choices = script, []

    def __call__(self, n: int) -> int:
        at = len(self.choices)
        self.choices.append(n)
        return self.script[at] if at < len(self.script) else 0

    def others(self) -> Iterator[tuple[int, ...]]:
        """The scripts that differ from this one for the first time behind its end."""
        for at in range(len(self.script), len(self.choices)):
            behind = (*self.script, *[0] * (at - len(self.script)))
            yield from ((*behind, pick) for pick in range(1, self.choices[at]))


class World(NamedTuple):
    """All ranks, none of which changes: who takes a turn is copied first."""

    searchers: tuple[Searcher, ...]
    under_way: tuple[Send, ...]  # sorted

    def key(self) -> tuple[object, ...]:
        """Equal for states that can't be told apart."""
        ranks = []
        for s in self.searchers:
            d, t, p = s.drafting, s.termination, s.problem
            ranks.append(
                (d.state, d.seq, d.out, tuple(sorted(d.stood)), tuple(d.drafts.standing), d.drafts.overtaken, tuple(d.kept),
                 t.engaged and t.parent, t.engaged, t.deficit, s.reason, s._told, s.error is None, tuple(p.items),
                 tuple(sorted(p.done)), tuple(getattr(p, "out", ())))
            )  # fmt: skip
        return (tuple(ranks), self.under_way)


def clone(searcher: Searcher, route: Route) -> Searcher:
    """A copy that shares nothing that changes."""
    other = copy.copy(searcher)
    other.problem = problem = copy.copy(searcher.problem)
    problem.items, problem.done = list(problem.items), list(problem.done)
    if isinstance(problem, Post):
        problem.out = list(problem.out)
    other.termination = copy.copy(searcher.termination)
    other.drafting = drafting = copy.copy(searcher.drafting)
    drafting.problem, drafting.terms = problem, drafting.terms._replace(pick=route)
    drafting.stood, drafting.kept = set(drafting.stood), list(drafting.kept)
    drafting.drafts = copy.copy(drafting.drafts)
    drafting.drafts.walks, drafting.drafts.standing = list(drafting.drafts.walks), list(drafting.drafts.standing)
    return other


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
) -> World:
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
        searchers[0].drafting.stood = set(tree.neighbours(0, size))
        for other in searchers[0].drafting.stood:
            searchers[other].drafting.drafts.standing.append(Draft(0, 0))
    return World(tuple(searchers), ())


def successors(world: World) -> Iterator[World]:
    """One message, or all to one rank in one order or the other; an empty turn; or one unit of work."""
    for number, (to, message) in enumerate(world.under_way):
        if number == 0 or world.under_way[number - 1] != (to, message):
            yield from turns(world, to, [message])
    for rank, searcher in enumerate(world.searchers):
        if searcher.over:
            continue
        batch = [message for to, message in world.under_way if to == rank]
        if len(batch) > 1:
            yield from turns(world, rank, batch)
            yield from turns(world, rank, batch[::-1])
        if searcher.problem.items and not searcher._ending:
            mine = clone(searcher, Route(()))
            mine.work(1)
            yield replaced(world, mine, world.under_way)
        yield from turns(world, rank, [])


def replaced(world: World, mine: Searcher, under_way: tuple[Send, ...]) -> World:
    return World((*world.searchers[: mine.rank], mine, *world.searchers[mine.rank + 1 :]), under_way)


def turns(world: World, rank: int, arrived: list[Message]) -> Iterator[World]:
    """A turn of one rank, once with each way that drafts may take from it."""
    rest = list(world.under_way)
    for message in arrived:
        rest.remove((rank, message))
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        route = Route(scripts.pop())
        mine = clone(world.searchers[rank], route)
        sends = mine.turn(0.0, arrived)
        scripts += route.others()
        if mine.error is not None and not isinstance(mine.error, Broken):
            raise mine.error
        if not mine.over and not mine._ending:
            check_turn(world.searchers[rank], mine, arrived, sends)
        yield replaced(world, mine, tuple(sorted([*rest, *sends])))


def check_turn(before: Searcher, after: Searcher, arrived: list[Message], sends: list[Send]) -> None:
    """Who sleeps is silent; who has enough serves what stands; no walk stays."""
    kinds = {message.kind for _, message in sends}
    assert all(to != after.rank for to, _ in sends), f"rank {after.rank} tells itself {sends}"
    assert after.problem.items or after.drafting.state is not State.BUSY, f"rank {after.rank} is busy with nothing"
    if not arrived and before.drafting.state is State.ASLEEP:
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


def explore_walks(first: World, *, most_drafts: int, most_states: int = 200_000) -> tuple[int, int]:
    """As `tests.explore.explore`: (states, ends); AssertionError on a broken law, or on a state without a way out."""

    def look(world: World) -> bool:
        check_law(world.searchers, world.under_way)
        return all(searcher.over for searcher in world.searchers)

    def bounded(world: World) -> Iterator[World | None]:
        for new in successors(world):
            yield new if all(searcher.drafting.seq <= most_drafts for searcher in new.searchers) else None

    found = reach([first], bounded, key=World.key, look=look, most_states=most_states)
    return found.states, found.ends
