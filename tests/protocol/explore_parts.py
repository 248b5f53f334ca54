"""Parts of a search alone, in every reachable state: both terminations, and the cut of a save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.guard import Options
from lb_mpi.searching.saves import Cut, Open, SaveJob, Write
from lb_mpi.searching.searcher import Searcher
from lb_mpi.searching.termination import Scholten, Termination, Token
from tests.pile import Pile
from tests.protocol.explore import Exploration, State, put
from tests.protocol.explore_search import NoPause, cut_key
from tests.protocol.law import check_ewd998
from tests.protocol.walk_law import check_engagement


class Ends(Exploration):
    """A termination alone, where any message may overtake any other; `rest`: (by rank, whether it is active; WORK so far).

    An active rank may send WORK to anybody, `most_work` in all, or turn passive at any time, so at the start any have work.
    """

    ordered = batches = False

    def __init__(self, most_work: int) -> None:
        self.most_work = most_work

    def is_end(self, state: State) -> bool:
        return state.actors[0].over

    def work(self, rank: int) -> Message:
        return Message(Kind.WORK, rank)

    def settle(self, state: State, rank: int, active: bool) -> State:
        raise NotImplementedError

    def receive(self, termination: Any, message: Message) -> list[Send] | None:
        raise NotImplementedError

    def successors(self, state: State) -> Iterator[State]:
        (active, sent), size = state.rest, len(state.actors)
        for rank in range(size):
            if active[rank]:
                yield state._replace(rest=(put(active, rank, False), sent))
                for other in range(size) if sent < self.most_work else ():
                    if other != rank:
                        new = state._replace(rest=(active, sent + 1))
                        give = [(other, self.work(rank))]
                        yield self.act(new, rank, lambda each: each.sent() or give, other)  # noqa: B023
            yield self.settle(state, rank, active[rank])
        for rank, [(_, message)], wires in self.deliveries(state):
            works = active[rank] or message.kind is Kind.WORK
            new = state._replace(wires=wires, rest=(put(active, rank, works), sent))
            yield self.act(new, rank, lambda each: self.receive(each, message) or [], message)  # noqa: B023

    def explored(self, ranks: Sequence[Any]) -> tuple[int, int]:
        """(states, ends); AssertionError on a broken law, or when it can't end."""
        return self.reach(State(tuple(ranks), {}, ((True,) * len(ranks), 0)))[:2]


class Tokens(Ends):
    """Safra's token."""

    def key_of(self, actor: Termination) -> Hashable:
        return actor.count, actor.black, actor.token, actor.over

    def work(self, rank: int) -> Message:
        return Message(Kind.WORK, 0)  # whoever has sent it

    def settle(self, state: State, rank: int, active: bool) -> State:
        def do(termination: Termination) -> list[Send]:
            token, to = termination.settle(active, 0.0), (rank + 1) % len(state.actors)
            return [] if token is None else [(to, Message(Kind.TOKEN, 0, token.total, int(token.black)))]

        return self.act(state, rank, do, ("settle", active))

    def receive(self, termination: Termination, message: Message) -> None:
        if message.kind is Kind.WORK:
            termination.received()
        else:
            termination.arrive(Token(message.seq, bool(message.pid)), 0.0)

    def law(self, state: State) -> None:
        ranks, (active, _) = state.actors, state.rest
        flying = [(to, message) for (_, to), wire in state.wires.items() for message in wire]
        n_work = sum(message.kind is Kind.WORK for _, message in flying)
        if ranks[0].over:
            assert not any(active), "over, but a rank is active"
            assert not n_work, "over, but work is under way"
            return
        places = [(rank, each.token) for rank, each in enumerate(ranks) if each.token is not None]
        places += [(to, Token(one.seq, bool(one.pid))) for to, one in flying if one.kind is Kind.TOKEN]
        assert len(places) == 1, f"{len(places)} tokens"
        counts, colours = [each.count for each in ranks], [each.black for each in ranks]
        check_ewd998(*places[0], n_work, counts, colours, [not one for one in active])


def explore_tokens(searcher_class: type[Searcher], *, size: int, most_work: int) -> int:
    """EWD998's invariant, and that `over` is true only when nothing is active or under way; the number of states."""
    ranks = [searcher_class(rank, range(size), Pile(1), Options()).termination for rank in range(size)]
    for termination in ranks:
        termination.pause = NoPause()
    return Tokens(most_work).explored(ranks)[0]


class Engagements(Ends):
    """The tree of Dijkstra and Scholten."""

    def key_of(self, actor: Scholten) -> Hashable:
        return actor.parent if actor.engaged else -1, actor.deficit, actor.over, tuple(sorted(actor.owed.items()))

    def settle(self, state: State, rank: int, active: bool) -> State:
        def do(termination: Scholten) -> list[Send]:
            sends: list[Send] = termination.settle(active)
            assert active or not termination.owed, f"rank {rank} has no work, and owes {termination.owed}"
            return sends

        return self.act(state, rank, do, ("settle", active))

    def receive(self, termination: Scholten, message: Message) -> list[Send] | None:
        work = message.kind is Kind.WORK
        return termination.received(message.source) if work else termination.acknowledged(message.pid)

    def law(self, state: State) -> None:
        flying = [(to, message) for (_, to), wire in state.wires.items() for message in wire]
        assert all(message.kind in (Kind.WORK, Kind.ACK) for _, message in flying)
        work = Counter(message.source for _, message in flying if message.kind is Kind.WORK)
        acks: Counter[int] = Counter()
        for to, message in flying:
            acks[to] += message.pid if message.kind is Kind.ACK else 0
        check_engagement(state.actors, work, acks, state.rest[0])


def explore_engagement(scholten: type, *, size: int, most_work: int) -> tuple[int, int]:
    """(states, ends) of the tree alone."""
    return Engagements(most_work).explored([scholten(rank, size) for rank in range(size)])


class Net(NamedTuple):
    """Ranks that may send WORK to anybody at any time, which anything may overtake; and what they have saved."""

    work: tuple[int, ...]  # WORK under way to each rank
    sent: int  # WORK so far
    held: tuple[int, ...]  # the pieces of work that each rank has
    written: tuple[int | None, ...] = ()  # what each rank has written for the save at hand

    def gave(self, rank: int, other: int) -> Net:
        work, held = put(self.work, other, self.work[other] + 1), put(self.held, rank, self.held[rank] - 1)
        return self._replace(work=work, held=held, sent=self.sent + 1)

    def got(self, rank: int) -> Net:
        return self._replace(
            work=put(self.work, rank, self.work[rank] - 1), held=put(self.held, rank, self.held[rank] + 1)
        )


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

        def step(
            rank: int, event: Hashable, do: Callable[[Cut], list[Send] | None], then: Net = net, new: State = state
        ) -> State:
            def settled(cut: Cut) -> list[Send]:
                return [*(do(cut) or []), *cut.settle(lambda: bytes([then.held[rank]]))]

            return self.act(new._replace(rest=then), rank, settled, (event, then.held[rank]))

        def count(n: int) -> Callable[[Cut], None]:
            return lambda cut: setattr(cut, "under_way", cut.under_way + n)

        for rank, cut in enumerate(cuts):
            if not cut.paused and net.sent < self.most_work and net.held[rank]:
                others = [other for other in range(len(cuts)) if other != rank]
                yield from (step(rank, "gave", count(1), net.gave(rank, other)) for other in others)
            if net.work[rank]:
                yield step(rank, "got", count(-1), net.got(rank))
            for result, then in self.results(state, rank, cut.job) if cut.job is not None else ():
                yield step(rank, ("done", result), lambda cut: cut.done(cut.job, result, 0.0, 0.0), then)  # noqa: B023
        for rank, [(_, message)], wires in self.deliveries(state):
            yield step(rank, message, lambda cut: cut.receive(message), new=state._replace(wires=wires))  # noqa: B023
        if root.state is root.state.RUNNING and root.number < self.most_saves:
            yield step(0, "begin", lambda cut: cut.begin(), net._replace(written=(None,) * len(cuts)))

    def results(self, state: State, rank: int, job: SaveJob) -> Iterator[tuple[object, Net]]:
        """A job may be done or fail; the law of what it does."""
        cuts, net = state.actors, state.rest
        if isinstance(job, Open):
            yield from ((well, net) for well in (True, False))
        elif isinstance(job, Write):
            assert all(one.paused for one in cuts), "a rank goes on while states are taken"
            assert job.state == bytes([net.held[rank]]), "the state of another time"
            yield (0, 0), net._replace(written=put(net.written, rank, net.held[rank]))
            yield None, net._replace(written=put(net.written, rank, None))
        else:
            if job.receipts is not None:
                assert [receipt.rank for receipt in job.receipts] == list(range(len(cuts))), "not all have written"
                assert sum(one or 0 for one in net.written) == sum(net.held) + sum(net.work), "not all is saved"
            yield None, net


def explore_cut(cut_class: type[Cut], *, above: tuple[int | None, ...], most_work: int, most_saves: int = 2) -> int:
    """The cut on ranks in a tree (`above` of each): its law in every state; returns the number of states."""
    size = len(above)
    cuts = tuple(cut_class(rank, size) for rank in range(size))
    for rank, cut in enumerate(cuts):
        cut.above, cut.below = above[rank], [other for other in range(size) if above[other] == rank]
    first = State(cuts, {}, Net((0,) * size, 0, (1,) * size, (None,) * size))
    return Cuts(most_work, most_saves).reach(first).states
