"""Parts of a search alone, in every reachable state: Safra's token, and the cut of a save."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from lb_mpi.searching.drafting import Send
from lb_mpi.searching.guard import Options
from lb_mpi.searching.saves import Cut
from lb_mpi.searching.searcher import Searcher
from lb_mpi.searching.termination import Termination, Token
from tests.pile import Pile
from tests.protocol.explore import Exploration, State, put
from tests.protocol.explore_search import NoPause, cut_key
from tests.protocol.law import check_ewd998


class Net(NamedTuple):
    """Ranks that may send WORK to anybody at any time, which anything may overtake."""

    work: tuple[int, ...]  # WORK under way to each rank
    sent: int  # WORK so far
    held: tuple[int, ...]  # the pieces of work that each rank has; of the token: 1, the rank is active
    written: tuple[int | None, ...] = ()  # what each rank has written for the save at hand

    def gave(self, rank: int, other: int) -> Net:
        work, held = put(self.work, other, self.work[other] + 1), put(self.held, rank, self.held[rank] - 1)
        return self._replace(work=work, held=held, sent=self.sent + 1)

    def got(self, rank: int) -> Net:
        return self._replace(
            work=put(self.work, rank, self.work[rank] - 1), held=put(self.held, rank, self.held[rank] + 1)
        )


class Tokens(Exploration):
    """Safra's token: an active rank may send WORK, `most_work` in all, or turn passive at any time."""

    batches = False

    batches = False

    def __init__(self, most_work: int) -> None:
        self.most_work = most_work

    def key_of(self, actor: Termination) -> Hashable:
        return actor.count, actor.black, actor.token, actor.over

    def is_end(self, state: State) -> bool:
        return state.actors[0].over

    def law(self, state: State) -> None:
        ranks, net = state.actors, state.rest
        if ranks[0].over:
            assert not any(net.held), "over, but a rank is active"
            assert not any(net.work), "over, but work is under way"
            return
        places = [(rank, each.token) for rank, each in enumerate(ranks) if each.token is not None]
        places += [(to, token) for (_, to), wire in state.wires.items() for token in wire]
        assert len(places) == 1, f"{len(places)} tokens"
        counts, colours = [each.count for each in ranks], [each.black for each in ranks]
        check_ewd998(*places[0], sum(net.work), counts, colours, [not active for active in net.held])

    def successors(self, state: State) -> Iterator[State]:
        net, size = state.rest, len(state.actors)

        def step(rank: int, then: Net, do: Callable[[Termination], Token | None]) -> State:
            def act(termination: Termination) -> list[tuple[int, Token]]:
                token = do(termination)
                return [] if token is None else [((rank + 1) % size, token)]

            return self.act(state._replace(rest=then), rank, act)

        for rank in range(size):
            if net.held[rank]:
                yield state._replace(rest=net._replace(held=put(net.held, rank, 0)))
                for other in range(size) if net.sent < self.most_work else ():
                    if other != rank:
                        then = net.gave(rank, other)._replace(held=net.held)
                        yield step(rank, then, lambda termination: termination.sent())
            if net.work[rank]:
                then = net.got(rank)._replace(held=put(net.held, rank, 1))
                yield step(rank, then, lambda termination: termination.received())
            yield step(rank, net, lambda termination: termination.settle(bool(net.held[rank]), 0.0))  # noqa: B023
        for rank, [(_, token)], wires in self.deliveries(state):
            yield self.act(state._replace(wires=wires), rank, lambda each: each.arrive(token, 0.0) or [])  # noqa: B023


def explore_tokens(searcher_class: type[Searcher], *, size: int, most_work: int) -> int:
    """EWD998's invariant, and that `over` is true only when nothing is active or under way; the number of states."""
    ranks = tuple(searcher_class(rank, range(size), Pile(1), Options()).termination for rank in range(size))
    for termination in ranks:
        termination.pause = NoPause()
    return Tokens(most_work).reach(State(ranks, {}, Net((0,) * size, 0, (1,) * size))).states


class Cuts(Exploration):
    """The cut alone; a rank may fail to write."""

    batches = False

    def __init__(self, most_work: int, most_saves: int) -> None:
        self.most_work, self.most_saves = most_work, most_saves

    def key_of(self, actor: Cut) -> Hashable:
        return cut_key(actor)

    def law(self, state: State) -> None:
        """It is held where states are written, and committed."""

    def is_end(self, state: State) -> bool:
        return state.actors[0].number == self.most_saves and not any(cut.paused for cut in state.actors)

    def successors(self, state: State) -> Iterator[State]:
        cuts, net, root = state.actors, state.rest, state.actors[0]

        def step(rank: int, do: Callable[[Cut], list[Send] | None], then: Net = net) -> State:
            return self.act(state._replace(rest=then), rank, lambda cut: [*(do(cut) or []), *cut.settle()])

        def count(n: int) -> Callable[[Cut], None]:
            return lambda cut: setattr(cut, "under_way", cut.under_way + n)

        for rank, cut in enumerate(cuts):
            if not cut.paused and net.sent < self.most_work and net.held[rank]:
                yield from (step(rank, count(1), net.gave(rank, other)) for other in range(len(cuts)) if other != rank)
            if net.work[rank]:
                yield step(rank, count(-1), net.got(rank))
            for well in (True, False) if cut.to_write else ():
                assert all(one.paused for one in cuts), "a rank goes on while states are taken"
                receipt, written = (bytes([rank]), net.held[rank]) if well else (None, None)
                then = net._replace(written=put(net.written, rank, written))
                yield step(rank, lambda cut: cut.wrote(receipt), then)  # noqa: B023
        for rank, [(_, message)], wires in self.deliveries(state):
            new = state._replace(wires=wires)
            yield self.act(new, rank, lambda cut: [*cut.receive(message), *cut.settle()])  # noqa: B023
        if root.state is root.state.RUNNING and root.number < self.most_saves:
            yield step(0, lambda cut: cut.begin(), net._replace(written=(None,) * len(cuts)))
        for well in (True, False) if root.to_open else ():
            yield step(0, lambda cut: cut.opened(well, 0.0))  # noqa: B023
        if root.to_commit:
            if root.receipts is not None:
                assert sorted(root.receipts) == list(range(len(cuts))), "not all have written"
                assert sum(one or 0 for one in net.written) == sum(net.held) + sum(net.work), "not all is saved"
            yield step(0, lambda cut: cut.ended(0.0))


def explore_cut(cut_class: type[Cut], *, above: tuple[int | None, ...], most_work: int, most_saves: int = 2) -> int:
    """The cut on ranks in a tree (`above` of each): its law in every state; returns the number of states."""
    size = len(above)
    cuts = tuple(cut_class(rank, size) for rank in range(size))
    for rank, cut in enumerate(cuts):
        cut.above, cut.below = above[rank], [other for other in range(size) if above[other] == rank]
    first = State(cuts, {}, Net((0,) * size, 0, (1,) * size, (None,) * size))
    return Cuts(most_work, most_saves).reach(first).states
