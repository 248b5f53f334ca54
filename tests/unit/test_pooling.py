"""Intervals, chunks, dealing, speeds; what a simulated pool reaches; who may begin what on its ranks."""

import itertools
from collections.abc import Sequence
from functools import partial
from types import MethodType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.cli.simulate.tasks import MapRun, SimulatedPool, bound_s, counter_s, task_costs
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.mpi.pool.arguments import name_of
from lb_mpi.pooling.beginning import REASONS, TABLE, Act, PoolState, Wish, act
from lb_mpi.pooling.deal import deal
from lb_mpi.pooling.intervals import EPOCHS, MOST, Interval, drop_back, drop_front, pack, synchronizes, unpack
from lb_mpi.pooling.learning import KEPT, LONG_S, Memory, are_equal, correlation
from lb_mpi.pooling.stealer import LONGEST_S, SHORTEST_S, Pace, share
from lb_mpi.virtual import Network

UNEQUAL = [0.8, 0.4, 0.2, 0.2]


@given(st.integers(0, EPOCHS - 1), st.integers(0, MOST), st.integers(0, MOST), st.data())
def test_an_interval_is_packed_into_a_word(epoch, one, other, data):
    lo, hi = sorted((one, other))
    word = pack(epoch, lo, hi)
    assert 0 <= word < 1 << 64
    assert unpack(word) == Interval(epoch, lo, hi)
    n = data.draw(st.integers(0, hi - lo))
    assert unpack(drop_front(word, n)) == Interval(epoch, lo + n, hi)
    assert unpack(drop_back(word, n)) == Interval(epoch, lo, hi - n)


def test_all_meet_before_the_numbers_of_maps_are_used_again():
    assert [number for number in range(1, 1000) if synchronizes(number)] == [256, 512, 768]


@given(st.integers(1, 300), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_a_share_ends_soonest(n, mine, theirs):
    taken = share(n, mine, theirs)
    ends = [max(k / mine, (n - k + 0.5) / theirs) for k in range(n + 1)]
    assert ends[taken] == pytest.approx(min(ends))


def lengths(pace: Pace, owned: int, task_s: float, chunks: int = 1000) -> list[int]:
    found = []
    while owned and len(found) < chunks:
        found.append(n := pace.n(owned))
        pace.observe(n, n * task_s)
        owned -= n
    return found


def test_chunks_grow_and_get_shorter_towards_the_end():
    assert lengths(Pace(), 64, 1e-3) == [1, 2, 4, 8, 8, 8, 8, 8, 5, 4, 2, 2, 1, 1, 1, 1]
    assert lengths(Pace(), 6, 1e-3) == [1] * 6
    assert set(lengths(Pace(), 6000, LONGEST_S)) == {1}
    assert lengths(Pace(), 16, 1e-6) == [1, 4, 11]
    many = lengths(Pace(), 100_000, 10e-6)
    assert max(many) * 10e-6 <= LONGEST_S * 1.001
    assert sum(n * 10e-6 < 0.99 * SHORTEST_S for n in many) <= 8  # the first ones, which grow, and the last one


def test_a_lost_time_slice_halves_a_chunk_at_most():
    pace = Pace()
    lengths(pace, 10_000, 10e-6, 20)
    assert pace.n(120) == 100
    pace.observe(50, 1.0)
    assert pace.n(120) == 50
    pace.observe(3, 3 * 10e-6)  # the last tasks of an interval
    assert pace.n(120) in (99, 100)
    pace.observe(1, 0.0)
    assert pace.n(10_000) > 400
    fixed = Pace(7)
    fixed.observe(7, 100 * SHORTEST_S)
    assert (fixed.n(100), fixed.n(3)) == (7, 3)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), st.integers(0, 60), st.booleans(), st.integers(0, 99))
def test_each_task_is_dealt_once(speeds, n, known, seed):
    costs = np.random.default_rng(seed).exponential(size=n)
    order, bounds = deal(np.arange(100, 100 + n), speeds, costs if known else None)
    assert sorted(order.tolist()) == list(range(100, 100 + n))
    assert (bounds[0], bounds[-1], len(bounds)) == (0, n, len(speeds) + 1)
    ends = [costs[order[lo:hi] - 100].sum() / s for lo, hi, s in zip(bounds, bounds[1:], speeds, strict=False)]
    if known:
        assert all((np.diff(costs[order[lo:hi] - 100]) <= 0).all() for lo, hi in itertools.pairwise(bounds))
        assert max(ends) <= 2 * bound_s(costs, np.array(speeds)) + costs.max(initial=0.0) / min(speeds)
    else:
        assert order.tolist() == list(range(100, 100 + n))
        counts = np.diff(bounds)
        assert (counts / speeds).max(initial=0.0) <= ((counts + 1) / speeds).min() * (1 + 1e-6)  # the last one ends soonest


@pytest.mark.parametrize("costs", [None, np.array([1.0, 0.5, 0.0, 1.0, 1.0])])
@pytest.mark.parametrize("given", [[1e308] * 4, [5e-324] * 4, [5e-324, 1e308, 1.0, 1e-200]])
def test_speeds_that_are_huge_or_tiny(given, costs):
    speeds = RankKnowledge(4, given).speeds
    order, bounds = deal(np.arange(5), speeds, costs)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    assert (bounds[0], bounds[-1]) == (0, 5)
    assert all(0 <= share(n, one, other) <= n for n in (1, MOST) for one in speeds for other in speeds)


def test_many_small_tasks_of_known_cost_fill_the_ranks_up():
    for costs in (task_costs("lognormal", 5000, 1e-3, seed=1), np.zeros(5000), np.ones(5000)):
        order, bounds = deal(np.arange(5000), UNEQUAL, costs)
        assert sorted(order.tolist()) == list(range(5000))
        shares = [costs[order[lo:hi]] for lo, hi in itertools.pairwise(bounds)]
        assert all((np.diff(share) <= 0).all() for share in shares)
        ends = [share.sum() / speed for share, speed in zip(shares, UNEQUAL, strict=True)]
        assert max(ends) <= 1.01 * bound_s(costs, np.array(UNEQUAL)) + 0.01 * costs.max()


def test_costs_are_remembered_of_the_same_items():
    memory, costs = Memory(), task_costs("lognormal", 50, 1e-2, seed=1)
    assert memory.predict("f", lambda: b"a", 50) is None
    memory.observe("f", b"a", costs)
    assert memory.predict("f", lambda: b"a", 50) is costs
    assert memory.predict("f", lambda: b"b", 50) is None
    assert memory.predict("f", lambda: b"a", 49) is None
    assert memory.predict("g", lambda: b"a", 50) is None


def test_costs_of_other_items_are_used_where_they_have_predicted_before():
    memory, costs = Memory(), task_costs("lognormal", 50, 1e-2, seed=1)
    memory.observe("f", b"a", costs)
    memory.observe("f", b"b", 1.1 * costs)
    found = memory.predict("f", lambda: b"c", 50)
    assert found.tolist() == (1.1 * costs).tolist()
    memory.observe("f", b"c", task_costs("lognormal", 50, 1e-2, seed=2))
    assert memory.predict("f", lambda: b"d", 50) is None
    memory.observe("f", b"c", task_costs("lognormal", 40, 1e-2, seed=2))
    assert memory.predict("f", lambda: b"c", 40) is not None


def test_costs_of_the_same_items_that_change_are_not_used():
    memory = Memory()
    for seed in range(2):
        memory.observe("f", b"a", task_costs("lognormal", 50, 1e-2, seed=seed))
    assert memory.predict("f", lambda: b"a", 50) is None


def test_costs_that_are_short_or_of_many_functions_are_not_remembered():
    memory = Memory()
    memory.observe("f", b"a", np.full(50, 0.9 * LONG_S))
    assert memory.predict("f", lambda: b"a", 50) is None
    memory.observe("f", b"", np.zeros(0))
    assert memory.predict("f", lambda: b"", 0) is None
    for name in range(KEPT + 1):
        memory.observe(name, b"a", np.full(50, 1.0))
    assert memory.predict(0, lambda: b"a", 50) is None
    assert memory.predict(1, lambda: b"a", 50) is not None


def test_costs_that_hardly_differ_are_equal():
    assert are_equal(np.array([1.0, 1.4, 0.5]), [3, 1, 1])
    assert not are_equal(np.array([1.0, 2.0]), [9, 1])  # one task of twice the usual length
    assert are_equal(np.array([2.0, 2.0]), [9, 1])


def test_a_correlation_is_1_for_lines_and_0_for_constants():
    one = np.array([1.0, 2.0, 4.0])
    assert correlation(one, 3.0 * one + 1.0) == pytest.approx(1.0)
    assert correlation(one, -one) == pytest.approx(-1.0)
    assert correlation(one, np.ones(3)) == correlation(np.zeros(3), np.zeros(3)) == 0.0


def test_the_second_map_of_the_same_items_is_near_the_bound():
    speeds = np.resize([1.0, 0.5, 0.25, 0.25], 64)
    pool, costs = SimulatedPool([64], speeds, seed=0), task_costs("lognormal", 2560, 20e-3, seed=0)
    first, second, third = (pool.map(costs, items=b"the same").ratio for _ in range(3))
    assert second < min(1.10, first)
    assert third < 1.05


def test_slow_ranks_leave_the_last_tasks():
    speeds, found = np.resize([1.0, 0.5, 0.25, 0.25], 64), []
    for seed in range(4):
        costs = task_costs("lognormal", 2560, 20e-3, seed=seed)
        pool = SimulatedPool([64], speeds, speeds_known=True, seed=seed)
        found.append((pool.map(costs).ratio, counter_s(costs, speeds) / bound_s(costs, speeds)))
    ours, counter = np.mean(found, axis=0).tolist()
    assert ours < 0.95 * counter


def runs(hosts: Sequence[int], n: int, task_s: float, *, maps: int = 1, seeds: int = 12, **known: bool) -> list[MapRun]:
    """The last maps of some pools with heavy-tailed tasks."""
    speeds = UNEQUAL if sum(hosts) == 4 else None
    found = []
    for seed in range(seeds):
        pool = SimulatedPool(hosts, speeds, speeds_known=known.get("speeds_known", False), seed=seed)
        for k in range(maps):
            costs = task_costs("lognormal", n, task_s, seed=1000 * seed + k)
            run = pool.map(costs, costs_known=known.get("costs_known", False))
        found.append(run)
    return found


def reached(found: Sequence[MapRun]) -> float:
    """Bound / time, the mean."""
    return float(np.mean([run.bound_s / run.seconds for run in found]))


def test_unequal_ranks_reach_the_bound():
    assert reached(runs([4], 2000, 1e-3, seeds=4)) > 0.95
    assert reached(runs([4], 100, 10e-3, speeds_known=True)) > 0.88
    assert reached(runs([4], 100, 10e-3, costs_known=True, maps=3)) > 0.97
    assert reached(runs([4], 100, 10e-3, speeds_known=True, costs_known=True)) > 0.99
    assert reached(runs([2, 2], 2000, 1e-3, seeds=4)) > 0.95


def test_many_ranks_do_what_a_counter_does_and_more_when_costs_are_known():
    found = runs([64], 1600, 10e-3, seeds=2)
    assert reached(found) > 0.95 * np.mean([run.bound_s / run.counter_s for run in found])
    assert reached(found) > 1.2 * np.mean([run.bound_s / run.dealt_s for run in found])
    assert reached(runs([64], 1600, 10e-3, seeds=1, costs_known=True)) > 0.98


def test_hosts_far_apart_come_near_the_bound():
    network = Network((2e-6, 2e-6), (1e-3, 1e-3))
    costs = task_costs("lognormal", 1200, 10e-3, spread=0.5, seed=1)
    assert SimulatedPool([4, 4, 4], network=network).map(costs).ratio < 1.10


def test_the_bound_and_the_counter():
    costs, speeds = np.array([3.0, 1.0, 1.0, 1.0]), np.array([2.0, 1.0])
    assert bound_s(costs, speeds) == 2.0
    assert bound_s(np.array([30.0, 1.0]), speeds) == 15.0
    assert counter_s(costs, speeds) == 2.0  # 0: 3, then 1; 1: 1, then 1
    assert counter_s(np.array([]), speeds) == bound_s(np.array([]), speeds) == 0.0


def test_one_seed_gives_one_run():
    assert runs([2, 2], 50, 1e-3, seeds=2) == runs([2, 2], 50, 1e-3, seeds=2)


def test_the_command_prints_the_bound_beside_the_time(command):
    line = "simulate tasks --hosts 2,1,1 --speeds 4,2,1,1"
    answer = command(line, "--json").json
    assert answer["ranks"] == len(answer["speeds"]) == 4
    assert (sum(answer["tasks"]), answer["steals"] > 0) == (100, True)
    assert answer["bound_s"] <= answer["seconds"] < answer["dealt_s"]
    assert "with an ideal shared counter" in command(line).out
    assert "1.000 of the bound" in command("simulate tasks --tasks 0").out


def test_the_table_has_an_answer_to_each_wish_and_a_reason_for_each_refusal_of_a_map_or_a_task():
    assert {state: len(row) for state, row in TABLE.items()} == dict.fromkeys(PoolState, len(Wish))
    assert [act(state, wish) for state in PoolState for wish in Wish] == [one for state in PoolState for one in TABLE[state]]
    assert {state for state in PoolState if Act.REFUSE in TABLE[state][: Wish.CLOSE.value]} == set(REASONS)


def test_a_thread_completes_maps_waits_for_tasks_not_its_own_and_only_closes_after_a_failure():
    found = {one: {state for state in PoolState if one in TABLE[state]} for one in (Act.COMPLETE, Act.WAIT)}
    assert found == {Act.COMPLETE: {PoolState.MAP}, Act.WAIT: {PoolState.TASKS, PoolState.ENDING}}
    assert TABLE[PoolState.UNUSABLE] == (Act.RAISE, Act.RAISE, Act.GO)


def test_what_is_called_is_the_function_also_of_a_partial_one_or_one_that_calls_another():
    """An executor had all partial functions, and all classes, for one function: a task that waited for another one hung."""
    functions = [abs, len, partial(map, abs), partial(map, len), int, str, Network, MethodType(partial(abs), 1)]
    assert len({*map(name_of, functions)}) == len(functions)
    assert name_of(partial(partial(max, 1), 2)) == name_of(max, 3)
    assert name_of(partial(map, abs), [1]) == name_of(map, abs, [2])
