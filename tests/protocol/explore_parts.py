"""Parts of a search alone, in every reachable state: the termination on the ring, and the cut of a save."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.saves import Cut, Open, SaveJob, Write
from lb_mpi.searching.termination import Safra, Token
from tests.protocol.explore import ANY, Exploration, State, put
from tests.protocol.explore_search import NoPause, cut_key
from tests.protocol.law import check_ewd998

Arrivals = Iterable[tuple[int, Message]]


class Alone:
    """An actor with a termination, and nothing else; its job is to be active: it sends WORK, or turns passive."""

    job = "work"

    def __init__(self, termination: Safra) -> None:
        self.termination, self.active = termination, True

    @property
    def over(self) -> bool:
        return bool(self.termination.over)

    def turn(self, _now: float, arrived: Arrivals) -> list[Send]:
        """Receive, or settle."""
        one = self.termination
        for _, message in arrived:
            is_work = not one.receive(message, 0.0)
            assert is_work == (message.kind is Kind.WORK), f"{message} is for the termination"
            self.active = self.active or is_work
        if arrived:
            return []
        return [(to, message._replace(source=0)) for to, message in one.settle(self.active, 0.0)]  # all tokens are alike

    def done(self, _job: str, to: int | None) -> list[Send]:
        if to is None:
            self.active = False
            return []
        self.termination.sent()
        return [(to, Message(Kind.WORK, 0))]  # the token does not know who sent it

    def key(self) -> Hashable:
        one = self.termination
        return self.active, one.count, one.black, one.token, one.over


class Ends(Exploration):
    """A termination alone, where any message may overtake any other; `rest`: WORK that may still be sent.

    At the start any rank has work, and an active one may send WORK to anybody.
    """

    batches = False

    def key_of(self, actor: Alone) -> Hashable:
        return actor.key()

    def wire(self, source: int, destination: int, message: Message) -> tuple[int, int]:
        return ANY, destination

    def is_end(self, state: State) -> bool:
        return bool(state.actors[0].over)

    def run(self, state: State, rank: int, job: str) -> Iterator[tuple[int | None, State]]:
        if state.actors[rank].active:
            yield None, state
            for other in range(len(state.actors)) if state.rest else ():
                if other != rank:
                    yield other, state._replace(rest=state.rest - 1)

    def law(self, state: State) -> None:
        ranks, active = [each.termination for each in state.actors], [each.active for each in state.actors]
        flying = [(to, message) for (_, to), wire in state.wires.items() for message in wire]
        n_work = sum(message.kind is Kind.WORK for _, message in flying)
        if ranks[0].over:
            assert not any(active), "over, but a rank is active"
            assert not n_work, "over, but work is under way"
            return
        tokens = [(rank, each.token) for rank, each in enumerate(ranks) if each.token is not None]
        tokens += [(to, Token(one.seq, bool(one.pid))) for to, one in flying if one.kind is Kind.TOKEN]
        assert len(tokens) == 1, f"{len(tokens)} tokens"
        counts, colours = [each.count for each in ranks], [each.black for each in ranks]
        check_ewd998(*tokens[0], n_work, counts, colours, [not one for one in active])


def explore_tokens(*, size: int, most_work: int) -> int:
    """EWD998's invariant, and that `over` is true only when nothing is active or under way; the number of states."""
    actors = tuple(Alone(Safra(rank, range(size), NoPause())) for rank in range(size))
    return Ends().reach(State(actors, {}, most_work)).states


class OnCut:
    """An actor with a cut, and pieces of work that are all alike: its job is one of a save, or to send WORK."""

    over = False

    def __init__(self, rank: int, above: tuple[int | None, ...]) -> None:
        self.cut, self.held = Cut(rank, len(above)), 1
        self.cut.above, self.cut.below = above[rank], [other for other, one in enumerate(above) if one == rank]

    @property
    def job(self) -> SaveJob | str | None:
        return self.cut.job or (None if self.cut.paused or not self.held else "give")

    def turn(self, _now: float, arrived: Arrivals) -> list[Send]:
        sends: list[Send] = []
        for _, message in arrived:
            if message.kind is Kind.WORK:
                self.held, self.cut.under_way = self.held + 1, self.cut.under_way - 1
            else:
                sends += self.cut.receive(message)
        return [*sends, *self.settle()]

    def done(self, job: SaveJob | str, outcome: Any) -> list[Send]:
        if job != "give":
            return [*self.cut.done(job, outcome, 0.0), *self.settle()]
        self.held, self.cut.under_way = self.held - 1, self.cut.under_way + 1
        return [(outcome, Message(Kind.WORK, 0)), *self.settle()]

    def settle(self) -> list[Send]:
        return self.cut.settle(lambda: bytes([self.held]))

    def begin(self) -> list[Send]:
        return [*self.cut.begin(), *self.settle()]


class Around(NamedTuple):
    """The state beside ranks and messages."""

    left: int  # WORK that may still be sent
    written: tuple[int | None, ...]  # what each rank has written for the save at hand


class Cuts(Exploration):
    """The cut alone, where anything may overtake WORK; a rank may fail to write."""

    batches = False

    def __init__(self, most_saves: int) -> None:
        super().__init__()
        self.most_saves = most_saves

    def key_of(self, actor: OnCut) -> Hashable:
        return cut_key(actor.cut), actor.held

    def wire(self, source: int, destination: int, message: Message) -> tuple[int, int]:
        return ANY if message.kind is Kind.WORK else source, destination

    def is_end(self, state: State) -> bool:
        return state.actors[0].cut.number == self.most_saves and not any(one.cut.paused for one in state.actors)

    def run(self, state: State, rank: int, job: SaveJob | str) -> Iterator[tuple[Any, State]]:
        """A job may be done or fail; the law of what it does."""
        actors, (left, written) = state.actors, state.rest
        if isinstance(job, str):
            for other in range(len(actors)) if left else ():
                if other != rank:
                    yield other, state._replace(rest=Around(left - 1, written))
        elif isinstance(job, Open):
            yield from ((well, state) for well in (True, False))
        elif isinstance(job, Write):
            assert all(one.cut.paused for one in actors), "a rank goes on while states are taken"
            assert job.state == bytes([actors[rank].held]), "the state of another time"
            yield (0, 0), state._replace(rest=Around(left, put(written, rank, actors[rank].held)))
            yield None, state._replace(rest=Around(left, put(written, rank, None)))
        else:
            if job.receipts is not None:
                assert [receipt.rank for receipt in job.receipts] == list(range(len(actors))), "not all have written"
                held, saved = sum(one.held for one in actors), sum(one or 0 for one in written)
                work = sum(message.kind is Kind.WORK for wire in state.wires.values() for message in wire)
                assert saved == held + work, "not all is saved"
            yield None, state

    def more(self, state: State) -> Iterator[State]:
        """It is time for a save."""
        root = state.actors[0].cut
        if root.state is root.state.RUNNING and root.number < self.most_saves:
            new = state._replace(rest=Around(state.rest.left, (None,) * len(state.actors)))
            yield from self.act(new, 0, lambda actor, _: actor.begin(), "begin")


def explore_cut(*, above: tuple[int | None, ...], most_work: int, most_saves: int = 2) -> int:
    """The cut on ranks in a tree (`above` of each): its law in every state; returns the number of states."""
    actors = tuple(OnCut(rank, above) for rank in range(len(above)))
    return Cuts(most_saves).reach(State(actors, {}, Around(most_work, (None,) * len(above)))).states
