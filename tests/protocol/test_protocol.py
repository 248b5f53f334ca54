"""The whole search protocol: every state of small searches, seeded simulations of larger ones, and known-wrong mutants."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching import searcher
from lb_mpi.searching.drafting import Kind, Message
from lb_mpi.searching.guard import Options
from lb_mpi.searching.searcher import Reason
from tests.pile import Broken, Pile
from tests.protocol.explore import large
from tests.protocol.explore_parts import explore_tokens
from tests.protocol.explore_search import explore, first_world
from tests.protocol.law import check_simulation, simulated
from tests.protocol.mutants import MUTANTS
from tests.protocol.mutate import rejects


@pytest.mark.parametrize(("size", "limit", "most_drafts", "threshold", "states"), [
    (1, 7, 1, 0.5, 9), (2, 7, 2, 0.5, 700), (2, 7, 2, 1.0, 600), (2, 4, 4, 0.5, 600), (3, 5, 1, 0.5, 1000),
    pytest.param(3, 4, 2, 0.5, 20_000, marks=large), (4, 2, 1, 0.5, 6000),
])  # fmt: skip
def test_the_law_holds_in_every_reachable_state(size, limit, most_drafts, threshold, states):
    found = explore(first_world(size, limit, threshold=threshold), most_drafts=most_drafts)
    assert found >= states, "the bound cuts off what is to be seen"


# Four ranks, because a token that drops the colour it carries does no harm on three.
@pytest.mark.parametrize(("size", "most_work"), [(4, 2), pytest.param(3, 3, marks=large)])
def test_safras_invariant_holds_in_every_reachable_state(size, most_work):
    assert explore_tokens(size=size, most_work=most_work) > 20_000


def test_an_answer_ends_it_in_every_reachable_state():
    for wanted in range(1, 6):
        explore(first_world(2, 5, wanted=wanted, threshold=1.0), most_drafts=2)


@pytest.mark.parametrize("broken", ["work", "load", "split", "absorb"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_failure_ends_it_in_every_reachable_state(size, broken):
    explore(first_world(size, 7 if size < 3 else 4, broken=broken), most_drafts=2 if size < 3 else 1)


def test_its_time_may_be_over_in_every_reachable_state():
    for size, more in ((3, {}), (2, {"wanted": 2}), (2, {"broken": "work"})):
        explore(first_world(size, 4, **more), most_drafts=1, limited=True)


@pytest.mark.parametrize("route", ["ring", "random"])
def test_a_search_whose_time_is_over_ends_everywhere_with_what_it_has(route):
    whole = simulate.search([Pile(3000) for _ in range(4)], unit_s=20e-6, options=Options(threshold=1.0, route=route))
    ends = []
    for limit_s in (0.2 * whole.virtual_seconds, 0.5 * whole.virtual_seconds, 10.0 * whole.virtual_seconds):
        seen: list[simulate.Simulation] = []
        options = Options(threshold=1.0, route=route, limit_s=limit_s)
        result = simulate.search([Pile(3000) for _ in range(4)], unit_s=20e-6, options=options, check=seen.append)
        assert len({each.reason for each in seen[-1].searchers}) == 1
        assert len(result.value) == len(set(result.value))
        ends.append((result.reason, len(result.value)))
    assert [reason for reason, _ in ends] == [Reason.TIMED_OUT, Reason.TIMED_OUT, Reason.EXHAUSTED]
    assert 0 < ends[0][1] < ends[1][1] < ends[2][1] == 3000


def test_an_idle_root_wakes_when_the_time_is_over():
    assert searcher.Searcher(0, range(1), Pile(5), Options(limit_s=3.0, route="random")).wake_at <= 3.0
    root = searcher.Searcher(0, range(40), Pile(5), Options(limit_s=3.0))
    root.problem.items.clear()
    root.turn(0.0, [])
    assert root.job is None
    assert root.wake_at == 3.0


def test_messages_behind_one_that_fails_are_processed():
    rank = searcher.Searcher(1, range(3), Pile(5, broken="absorb"), Options())
    draft = rank.turn(0.0, [])[0][1]
    rank.turn(0.0, [(0, draft._replace(pid=2, load=3.0))])
    work, stop = Message(Kind.WORK, 1, 1, payload=bytes(4)), Message(Kind.STOP, 0, pid=Reason.EXHAUSTED)
    assert rank.turn(0.0, [(2, work), (0, stop)]) == []
    assert isinstance(rank.error, Broken)
    assert rank.over


def run(size: int, seed: int, *, limit: int, wanted: int = 0, **options: object) -> None:
    """One simulation under the law."""
    steps = itertools.count()

    def check(simulation: simulate.Simulation) -> None:
        check_simulation(simulation, work=next(steps) % 10 == 0)
        assert simulation.now < 2.0, "no end in sight"

    chosen = Options(**{"threshold": 1.0, "seed": seed, "route": "ring", **options})
    result = simulated([Pile(limit, wanted=wanted) for _ in range(size)], seed, check, options=chosen)
    assert result.reason is (Reason.FOUND if wanted else Reason.EXHAUSTED)
    assert wanted in result.value if wanted else sorted(result.value) == list(range(1, limit + 1))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16, 33])
def test_simulated_searches_keep_the_law_at_each_step(size):
    for seed in range(6 if size < 10 else 2 if size < 30 else 1):
        run(size, seed, limit=300 if size < 10 else 600)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 200), st.floats(0.0, 20.0), st.booleans(), st.data())
def test_searches_of_any_options_and_size_keep_the_law(size, seed, limit, threshold, balance, data):
    wanted = data.draw(st.integers(0, limit))
    run(size, seed, limit=limit, threshold=threshold, balance=balance, wanted=wanted)


def find_fault() -> None:
    """What is wrong with it: what is found in a moment first, then exhaustive exploration."""

    def explored(size: int, limit: int, most_drafts: int, wanted: int = 0) -> None:
        explore(first_world(size, limit, wanted=wanted, threshold=1.0 if size == 2 else 0.5), most_drafts=most_drafts)

    explore_tokens(size=2, most_work=2)
    explored(2, 5, 2, wanted=2)
    for broken in ("work", "absorb"):
        explore(first_world(2, 5, broken=broken), most_drafts=1)
    for seed in range(6):
        run(3 + seed % 3, seed, limit=120)
    explored(3, 4, 1)
    explore_tokens(size=3, most_work=2)
    explore_tokens(size=4, most_work=2)


test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, right=False)
