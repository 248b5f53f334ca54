"""The bound that ranks share: its table, its law in every state and at each step, and known-wrong variants."""

import math
from fractions import Fraction

import numpy as np
import pytest

import lb_mpi
from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching.bound import Bound, Sharing, neighbours
from lb_mpi.searching.drafting import Kind, Message, ProtocolError
from lb_mpi.searching.guard import Options
from lb_mpi.searching.searcher import Searcher
from tests.pile import Pile, value_of
from tests.protocol.explore_search import explore, first_world
from tests.protocol.law import check_simulation, simulated
from tests.protocol.mutants import BOUND_MUTANTS
from tests.protocol.mutate import rejects


@pytest.mark.parametrize(
    ("sense", "values", "bests"), [("min", [3, 5, 3, 2], [3, 3, 3, 2]), ("max", [3, 2, 5], [3, 3, 5])]
)
def test_the_best_value_only_improves(sense, values, bests):
    bound = lb_mpi.Bound(sense)
    assert bound.best == (math.inf if sense == "min" else -math.inf)
    for value, best in zip(values, bests, strict=True):
        before = bound.best
        assert bound.update(np.int16(value)) == (best != before)
        assert bound.best == best
        assert type(bound.best) is float


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(2, 3), Fraction(2**60 + 1), Fraction(-(2**60) - 1)])
@pytest.mark.parametrize("sense", ["min", "max"])
def test_a_rounded_value_is_no_better_than_the_value(sense, value):
    bound = Bound(sense)
    assert bound.update(value)
    assert value <= bound.best < value + 256 if sense == "min" else value - 256 < bound.best <= value


@pytest.mark.parametrize("sense", ["min", "max"])
def test_of_fractions_with_the_same_float_the_first_is_kept(sense):
    bound = Bound(sense)
    assert bound.update(Fraction(1, 3) + Fraction(1, 10**20))
    assert not bound.update(Fraction(1, 3) + Fraction(2, 10**20))
    assert not bound.update(Fraction(1, 3) + Fraction(1, 10**20))


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, np.int64(2**60 + 1), 10**30])
def test_an_integer_that_no_float_holds_is_refused(value):
    """Otherwise a better value than the best would be taken for the same one."""
    bound = Bound("max")
    words = rf"bound.update: value = .*{value}.*: expected an integer that a float holds exactly"
    with pytest.raises(ValueError, match=words):
        bound.update(value)
    assert bound.best == -math.inf
    assert bound.update(2**53)
    assert bound.update(2**60)
    assert bound.best == 2**60


@pytest.mark.parametrize("size", [1, 2, 9, 10, 74, 1000])
def test_neighbours_make_a_tree(size):
    pairs = {(rank, other) for rank in range(size) for other in neighbours(rank, size)}
    assert pairs == {(other, rank) for rank, other in pairs}
    assert len(pairs) == 2 * (size - 1)
    reached = [0]
    for rank in reached:
        reached += [other for other in neighbours(rank, size) if other > rank]
    assert sorted(reached) == list(range(size))


def best_of(value: float, source: int) -> Message:
    return Message(Kind.BOUND, source, load=value)


def test_a_better_value_is_sent_to_those_that_do_not_know_it():
    sharing = Sharing(1, 20, Bound("min"))  # neighbours: 0 and 9 to 16
    assert sharing.send() == []
    sharing.bound.update(5.0)
    assert sharing.send() == [(rank, best_of(5.0, 1)) for rank in (0, *range(9, 17))]
    assert sharing.send() == []
    sharing.receive(best_of(7.0, 9))  # was under way when 9 was sent 5
    assert sharing.send() == []
    sharing.receive(best_of(3.0, 12))
    assert sharing.bound.best == 3.0
    assert sharing.send() == [(rank, best_of(3.0, 1)) for rank in (0, 9, 10, 11, 13, 14, 15, 16)]
    sharing.receive(best_of(3.0, 0))
    sharing.bound.update(4.0)
    assert (sharing.bound.best, sharing.send()) == (3.0, [])
    with pytest.raises(ProtocolError, match="rank 1, a neighbour of"):
        sharing.receive(best_of(1.0, 2))


def test_a_bound_where_there_is_none_is_a_protocol_error():
    rank = Searcher(1, range(2), Pile(3), Options())
    rank.turn(0.0, [(0, best_of(1.0, 0))])
    assert isinstance(rank.error, ProtocolError)


@pytest.mark.parametrize(
    ("sense", "size", "limit", "most_drafts", "wanted", "states"),
    [("min", 1, 5, 1, 0, 5), ("max", 2, 5, 2, 0, 700), ("max", 3, 3, 1, 0, 2500), ("min", 2, 4, 2, 3, 1)],
)
def test_the_law_holds_in_every_reachable_state(sense, size, limit, most_drafts, wanted, states):
    first = first_world(size, limit, wanted=wanted, bound=lambda: Bound(sense))
    assert explore(first, most_drafts=most_drafts) >= states


def run(size: int, seed: int, *, wanted: int = 0) -> int:
    """One simulation under the law; return how many BOUND messages there were."""
    sense = ("min", "max")[seed % 2]
    bounds, seen = [Bound(sense) for _ in range(size)], set[int]()

    def check(simulation: simulate.Simulation) -> None:
        check_simulation(simulation, work=False)
        seen.update(number for number, (*_, message) in simulation.under_way.items() if message.kind is Kind.BOUND)
        assert simulation.now < 2.0, "no end in sight"

    piles = [Pile(200, wanted=wanted, bound=each) for each in bounds]
    result = simulated(piles, seed, check, bounds=bounds, options=Options(threshold=1.0, seed=seed))
    values = [value_of(item) for item in result.value]
    best = min(values) if sense == "min" else max(values)
    assert [each.best for each in bounds] == [best] * size, f"best {best}, in the end {[each.best for each in bounds]}"
    assert wanted or sorted(result.value) == list(range(1, 201))
    return len(seen)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 12, 33])
def test_simulated_searches_keep_the_law_at_each_step(size):
    for seed in range(12 if size < 5 else 4 if size < 30 else 1):
        n_sent = run(size, seed, wanted=3 * seed if seed > 8 else 0)
        n_values = len({value_of(item) for item in range(1, 201)})
        assert (n_sent > 0) == (size > 1), seed
        assert n_sent <= 2 * (size - 1) * n_values, seed


def test_a_bound_from_before_the_search_reaches_all_ranks():
    for size in (2, 5):
        bounds = [Bound("min") for _ in range(size)]
        bounds[-1].update(-3.0)
        simulate.search([Pile(200) for _ in range(size)], bounds=bounds)
        assert {bound.best for bound in bounds} == {-3.0}


def test_a_search_without_a_bound_is_the_same_as_ever():
    sent: list[list[object]] = [[], []]
    for seen, bounds in zip(sent, ([Bound("min"), Bound("min")], None), strict=True):
        check = lambda simulation, seen=seen: seen.append(tuple(simulation.under_way.values()))  # noqa: E731
        simulate.search([Pile(50), Pile(50)], bounds=bounds, check=check)
    assert sent[0] == sent[1], "an unused bound sends nothing"


def find_fault() -> None:
    """What is wrong with it."""
    test_a_better_value_is_sent_to_those_that_do_not_know_it()
    for seed in range(8):  # in some the smallest value ends the search, before all know it
        run((2, 3, 9, 12)[seed // 2], seed, wanted=71 if seed % 4 == 2 else 0)
    for sense, size, limit in (("min", 2, 5), ("max", 2, 5), ("max", 3, 3)):
        explore(first_world(size, limit, bound=lambda: Bound(sense)), most_drafts=1)  # noqa: B023


test_known_wrong_variants_are_caught = rejects(find_fault, BOUND_MUTANTS)
