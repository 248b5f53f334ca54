"""Walking drafts: their table row by row, every state of small searches, seeded simulations, and known-wrong variants."""

from collections.abc import Sequence

import pytest

from lb_mpi.cli.simulate import search as simulate
from lb_mpi.errors import SearchError
from lb_mpi.searching import drafting, walking
from lb_mpi.searching.drafting import PATIENCE, TABLE, Drafting, Kind, Message, ProtocolError, Row, State, draw
from lb_mpi.searching.guard import Options
from lb_mpi.searching.walking import REACH, Draft, Drafts, Walking, WalkTerms
from tests.pile import Heap, Pile, Post
from tests.protocol.explore import large
from tests.protocol.explore_search import explore, explore_walks, first_walks, first_world
from tests.protocol.law import simulated
from tests.protocol.mutants import SCHOLTEN_MUTANTS, WALK_MUTANTS
from tests.protocol.mutate import rejects
from tests.protocol.test_protocol import run

SIZE, ME = 16, 5  # neighbours 4 (its parent), 7, 1, 13; no children


def make(
    items: int = 0, *, threshold: float = 1.0, rank: int = ME, once: bool = False, pile: type[Pile] = Heap
) -> Walking:
    heap = pile(100)
    walk = Walking(rank, SIZE, heap, WalkTerms(threshold, lambda n: n - 1, once=once))
    if items:
        heap.items = list(range(items))
        walk.start()
    return walk


def walked(source: int, seq: int = 1, left: int = REACH) -> Message:
    return Message(Kind.DRAFTING, source, seq, left)


def work(*items: int, seq: int = 0, sender: int = 4) -> Message:
    return Message(Kind.WORK, ME, seq, sender, payload=b"".join(item.to_bytes(4, "little") for item in items))


def idle() -> Walking:
    """A rank that has run dry, and whose walk is out."""
    walk = make(1)
    walk.problem.items.clear()
    assert walk.settle(0.0) == [(15, walked(ME))]
    assert walk.state is State.WALKING
    return walk


class Weighed(Heap):
    """Remembers by which weights it was last divided."""

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        self.weights = list(weights)
        return super().shares(weights)


def test_shares_are_in_proportion_to_speeds():
    walk = make(9, rank=8, pile=Weighed)  # its children 9, 10 and 12, the last one with two more below it
    walk.worked(100, 0.5)
    walk.worked(0, 0.5)  # a slow rank rests between its quanta: 100 units a second
    walk.receive(walked(2)._replace(load=300.0), 0.0)
    walk.receive(walked(3)._replace(load=1.0), 0.0)
    assert [to for to, _ in walk.settle(0.0)] == [2, 3, 12, 10, 9]
    assert walk.problem.weights == [16, 48, 1, 16 * 4, 16 * 2, 16]
    walk = make(9, pile=Weighed)  # has not worked yet
    walk.receive(walked(2)._replace(load=300.0), 0.0)
    assert [to for to, _ in walk.settle(0.0)] == [2]
    assert walk.problem.weights == [16, 16]


def test_a_speed_follows_the_last_quanta():
    walk = make(1)
    for _ in range(100):
        walk.worked(10, 1.0)
    assert walk.speed == pytest.approx(10.0)
    for _ in range(30):
        walk.worked(20, 1.0)
    assert 19.0 < walk.speed < 20.0


def test_a_draft_names_the_speed_of_its_source_wherever_it_goes():
    walk = make(1)
    walk.worked(10, 2.0)
    walk.problem.items.clear()
    assert walk.settle(0.0) == [(15, walked(ME)._replace(load=5.0))]
    assert {message.load for _, message in walk.receive(walked(ME, left=0), 0.0)} == {5.0}
    walk.receive(walked(9, 3, 2)._replace(load=7.0), 0.0)
    assert walk.settle(0.0) == [(15, walked(9, 3, 1)._replace(load=7.0))]
    busy = make(1)
    busy.receive(Message(Kind.STAND, 7, load=8.0), 0.0)
    assert busy.drafts.standing == [Draft(7, 0, speed=8.0)]


def test_each_standing_draft_is_overtaken_by_so_many_walks_and_no_more():
    drafts, answered = Drafts(), []
    for turn in range(4 * PATIENCE):
        drafts.walks = [Draft(9, 1 + turn)]
        if turn == PATIENCE:  # the walks before overtake nobody
            drafts.standing = [Draft(7, 0), Draft(1, 0)]
        answered += [draft.source for draft in drafts.serve(1)]
    assert answered[PATIENCE : 3 * PATIENCE + 2] == [*[9] * PATIENCE, 7, *[9] * PATIENCE, 1]
    assert (drafts.walks, drafts.standing) == ([], [])


@pytest.mark.parametrize("rank", range(SIZE))
def test_a_walk_goes_to_any_rank_but_this_one_and_its_source(rank):
    walk = make(rank=rank)
    for source in range(SIZE):
        picked = set()
        for k in range(SIZE):
            walk.terms = walk.terms._replace(pick=lambda n, k=k: k % n)
            picked.add(walk._next(source))
        assert picked == set(range(SIZE)) - {rank, source}


def test_a_rank_that_gets_its_share_once_never_drafts():
    walk = make(1, once=True)
    walk.problem.items.clear()
    assert (walk.settle(0.0), walk.state) == ([], State.ASLEEP)


@pytest.mark.parametrize(("state", "message"), [
    (State.ASLEEP, walked(ME)),
    (State.WALKING, walked(ME, 2)),
    (State.WALKING, work(7, seq=2)),
    (State.WALKING, work(7, sender=7)),
    (State.WALKING, work(7)._replace(source=7)),
    (State.BUSY, Message(Kind.STAND, 6)),
    (State.BUSY, Message(Kind.REJECT, 9, 1)),
    (State.BUSY, Message(Kind.NOWORK, ME, 1)),
    (State.BUSY, Message(Kind.TOKEN, 4)),
])  # fmt: skip
def test_a_message_outside_the_table_is_a_protocol_error(state, message):
    walk = idle()
    walk.state = state
    walk.out = state is not State.ASLEEP
    with pytest.raises(ProtocolError, match=f"rank 5 in {state.name}"):
        walk.receive(message, 0.0)


@pytest.mark.parametrize(("size", "limit", "most_drafts", "options", "states"), [
    (1, 7, 1, {}, 9),
    (2, 7, 2, {}, 1300),
    (2, 7, 3, {"reach": 8}, 1700),
    (3, 3, 1, {"reach": 2}, 1000),
    pytest.param(3, 4, 1, {}, 7000, marks=large),
    (4, 2, 2, {}, 180),
    *[(size, 4, 1, {"spread": True}, 1) for size in (2, 3)],  # any rank may have work at the start
    (2, 4, 2, {"late": True}, 800),  # a late standing draft feeds a busy rank
    (2, 6, 2, {"pile": Pile}, 1),  # without shares
    (2, 7, 1, {"pile": Post}, 900),  # work that belongs to somebody gets there
    (3, 4, 1, {"pile": Post}, 1000),
    (3, 4, 1, {"pile": Post, "spread": True}, 100),
])  # fmt: skip
def test_the_law_holds_in_every_reachable_state(size, limit, most_drafts, options, states):
    assert explore_walks(first_walks(size, limit, **options), most_drafts=most_drafts) >= states


def test_an_answer_ends_it_in_every_reachable_state():
    for wanted in (1, 2, 5):
        explore_walks(first_walks(2, 5, wanted=wanted), most_drafts=2)


@pytest.mark.parametrize("broken", ["work", "load", "split", "absorb"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_failure_ends_it_in_every_reachable_state(size, broken):
    explore_walks(first_walks(size, 7 if size < 3 else 2, broken=broken), most_drafts=1)


def event_of(rank: int, message: Message) -> str:
    if message.kind is not Kind.DRAFTING:
        return message.kind.name
    return "own DRAFTING" if message.source == rank else "another's DRAFTING"


@pytest.mark.parametrize(("route", "protocol"), [("ring", Drafting), ("random", Walking)])
def test_every_step_is_in_the_table_and_every_row_of_it_is_seen(monkeypatch, route, protocol):
    steps: set[tuple[str, str, str]] = set()
    receive = protocol.receive

    def noted(self: Drafting | Walking, message: Message, now: float) -> list:
        before, event = self.state.name, event_of(self.rank, message)
        if route == "ring" and event == "own DRAFTING":
            event += ", none" if message.pid < 0 else ", pid"
        sends = receive(self, message, now)
        steps.add((before, event, self.state.name))
        return sends

    monkeypatch.setattr(protocol, "receive", noted)
    if route == "ring":
        explore(first_world(3, 4), most_drafts=1)
        explore(first_world(2, 5), most_drafts=2)
    else:
        explore_walks(first_walks(2, 4, late=True), most_drafts=1)
        explore_walks(first_walks(3, 3), most_drafts=1)
        explore_walks(first_walks(2, 4, pile=Post), most_drafts=1)
    rows = [row for row in TABLE if row.route == route and not row.event.startswith("(")]

    def fits(row: Row, step: tuple[str, str, str]) -> bool:
        state, event, then = step
        here = row.state in (state, "any") or (row.state == "any but BUSY" and state != "BUSY")
        return here and row.event == event and then == (state if row.then == "same" else row.then)

    assert [step for step in steps if not any(fits(row, step) for row in rows)] == []
    assert [row for row in rows if not any(fits(row, step) for step in steps)] == []


def test_docstrings_show_the_table():
    for module, route in ((drafting, "ring"), (walking, "random")):
        assert draw(route) in module.__doc__
        names = {name for row in TABLE if row.route == route for name in (row.state, row.then)}
        assert {name for name in names if name not in ("any", "any but BUSY", "same")} <= set(State.__members__)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 33])
def test_simulated_searches_keep_the_law_at_each_step(size):
    for seed in range(3 if size < 10 else 1):
        run(size, seed, limit=200, route="random")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 33])
@pytest.mark.parametrize("holds", [True, False])
def test_simulated_searches_whose_work_belongs_to_ranks(size, holds):
    for seed in range(3 if size < 10 else 1):
        piles = [Post(300) for _ in range(size)]
        for rank, pile in enumerate(piles):
            pile.rank, pile.size, pile.holds = rank, size, holds
        result = simulated(piles, seed, options=Options(threshold=1.0, seed=seed))
        assert sorted(result.value) == list(range(1, 301)), f"seed {seed}"


def test_the_result_of_outgoing_is_checked():
    pile = Post(9)
    pile.size = 2
    for wrong, says in (
        ([(1, b"")], "names rank 1: expected another one of 0 to 0"),
        ([(0, "x")], r"expected a list of \(rank, bytes\)"),
        (None, "expected a list"),
    ):
        pile.outgoing = lambda wrong=wrong: wrong
        with pytest.raises(SearchError, match=says):
            simulate.search([pile])
    with pytest.raises(ValueError, match="route = 'ring': expected 'random'"):
        simulate.search([Post(3)], options=Options(route="ring"))
    pile.incoming = None
    with pytest.raises(TypeError, match=r"expected incoming\(payload\), as it has outgoing\(\)"):
        simulate.search([pile])


def test_the_number_of_ranks_chooses_the_route_and_an_option_forces_it():
    assert [Options().route_on(size) for size in (1, 32, 33)] == ["ring", "ring", "random"]
    assert Options().route_on(2, n_hosts=2) == "random"
    assert {Options(route=route).route_on(size) == route for size in (1, 33) for route in ("ring", "random")} == {True}
    with pytest.raises(ValueError, match="route = 'line': expected one of ring, random"):
        Options(route="line").checked()


def find_fault() -> None:
    """What is wrong with it: small explorations first."""

    def explored(size: int, limit: int, most_drafts: int, **kind: object) -> None:
        explore_walks(first_walks(size, limit, **kind), most_drafts=most_drafts, most_states=20_000)

    for seed in range(4):
        run(5, seed, limit=60, route="random")
    explored(2, 4, 1, late=True)
    explored(4, 2, 1, spread=True, wanted=2)
    explored(2, 3, 2, late=True)
    explored(2, 5, 2)
    explored(2, 7, 1, pile=Post)
    explored(3, 4, 1, pile=Post, spread=True)
    explored(3, 3, 1)
    explored(3, 4, 1, spread=True)
    explored(3, 4, 1, late=True)


test_known_wrong_variants_are_caught = rejects(find_fault, [*WALK_MUTANTS, *SCHOLTEN_MUTANTS])
