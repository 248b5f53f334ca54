"""When to balance, and what is known of rows and ranks."""

import hashlib
import math
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.balancing.decider import fit
from lb_mpi.balancing.deciding import Trigger, smooth
from lb_mpi.balancing.knowledge import RowCosts, blocks
from lb_mpi.emulate import StoppedTime
from lb_mpi.mpi.common.waiting import Clocks, Reading, own_s, without_core_s

NAN = math.nan


def test_auto_weighs_the_saving_against_the_cost():
    trigger = Trigger("auto", tolerance=0.05)
    trigger.cost_s = 0.3
    assert not trigger.decide(NAN, NAN, NAN).act
    assert trigger.decide(0.5, now_s=1.5, balanced_s=1.0).act
    assert not trigger.decide(0.2, now_s=1.2, balanced_s=1.0).act
    assert not trigger.decide(0.04, now_s=104.0, balanced_s=100.0).act
    assert trigger.decide(0.2, now_s=1.2, balanced_s=1.0).act  # for the second time
    assert not trigger.decide(0.5, now_s=1.5, balanced_s=1.0, moving_s=0.3).act
    often = Trigger("auto", every=2)
    often.cost_s = 0.3
    assert [often.decide(0.2, 1.2, 1.0).act for _ in range(4)] == [False, True, False, True]


def test_a_word_of_numpy_is_that_word():
    """Or ranks would be said to give different arguments."""
    assert repr(Trigger(np.str_("always")).when) == repr("always")


def test_savings_that_did_not_come_true_are_not_expected_again():
    trigger = Trigger("auto")
    trigger.cost_s = 0.05
    decisions = []
    for _ in range(40):
        decisions.append(trigger.decide(0.3, now_s=1.3, balanced_s=1.0).act)
        if decisions[-1]:
            trigger.come_true(now_s=1.3)
    assert decisions[0]
    assert sum(decisions[20:]) <= 6
    assert trigger.decide(9.0, now_s=10.0, balanced_s=1.0).act


def test_savings_that_came_true_are_expected_again():
    trigger = Trigger("auto")
    for _ in range(50):  # costs move on while they are balanced: half of the saving comes true
        assert trigger.decide(0.3, now_s=1.3, balanced_s=1.0).act
        trigger.come_true(now_s=1.15)
    assert 0.4 < trigger.trust < 0.6


def losses(calls: int) -> list[int]:
    """The calls without balance in each of six changes that last for so many calls; balancing costs ten of them."""
    trigger, found = Trigger("auto"), []
    trigger.cost_s = 10.0
    for _ in range(6):
        lost, acted = 0, False
        for _ in range(calls):
            if acted:
                trigger.come_true(now_s=1.0)
            acted |= trigger.decide(0.0 if acted else 1.0, now_s=1.0 if acted else 2.0, balanced_s=1.0).act
            lost += not acted
        found.append(lost)
    return found


def test_changes_that_have_lasted_are_balanced_earlier():
    lasting, brief = losses(100), losses(15)
    assert lasting[0] == brief[0] == 10
    assert 2 <= lasting[-1] <= 4
    assert brief[-1] >= 9


def test_always_acts_and_a_bound_acts_above_it():
    assert Trigger("always").decide(0.0, 1.0, 1.0).act
    assert not Trigger("always").decide(NAN, NAN, NAN).act
    bound = Trigger(0.2)
    bound.cost_s = 1e9
    assert bound.decide(0.21, 1.21, 1.0).act
    assert not bound.decide(0.2, 1.2, 1.0).act
    assert "bound" in bound.decide(0.1, 1.1, 1.0).reason.words


def test_the_time_of_a_call_is_cpu_time_and_what_it_waits_by_itself():
    def own(wall_s: float, cpu_s: float, gave_up: int, queued_s: float | None, others_s: float = 0.0) -> float:
        before = Reading(1.0, 1.0, 7, None if queued_s is None else 2.0, 3.0, StoppedTime(2, 1.0))
        queued_s = None if queued_s is None else 2.0 + queued_s
        after = Reading(2.0 + wall_s, 1.0 + cpu_s, 10 + gave_up, queued_s, 3.0 + others_s, StoppedTime(5, 2.0))
        return own_s(before, after)  # three stops, in all one second

    assert own(5.0, 1.0, 0, 0.0) == 1.0  # others had the core, whoever they are
    assert own(5.0, 1.0, 0, None) == 1.0
    assert own(5.0, 0.5, 1, 1.0) == 4.0  # slept for 3.5 s, then queued
    assert own(5.0, 3.0, 1, 2.5) == 3.0  # clocks that don't quite agree
    assert own(5.0, 1.0, 1, 2.5, others_s=2.0) == 4.5  # a thread had a core for 2 of those 2.5 s
    assert [own(5.0, cpu_s, 3, None) for cpu_s in (0.5, 1.5)] == [5.0, 1.5]  # a system that doesn't tell
    rng = np.random.default_rng(0)
    for _ in range(200):  # never less than the CPU time, never more than the clock on the wall
        wall_s = rng.exponential()
        cpu_s, queued_s = wall_s * rng.dirichlet(np.ones(3))[:2]
        for gave_up in (0, 1):
            assert cpu_s - 1e-9 <= own(wall_s, cpu_s, gave_up, queued_s) <= wall_s + 1e-9


def test_clocks_are_those_of_the_thread_that_begins():
    """Python gives the number of a thread that has ended to the next one; its clocks cannot be read any longer."""
    clocks, read = Clocks(), list[Reading]()

    def poll() -> None:
        clocks.begin()
        read.append(clocks.read())

    for _ in range(5):
        thread = threading.Thread(target=poll)
        thread.start()
        thread.join()
    clocks.end()
    assert len(read) == 5


def test_a_function_with_threads_does_not_queue_for_the_core_that_they_have():
    """Four threads on one core, as of numba, BLAS or OpenMP: the calling one waits for three quarters of the time."""
    data, before_all = bytes(1 << 20), os.sched_getaffinity(0)

    def compute() -> None:
        for _ in range(40):
            hashlib.sha256(data)  # without the interpreter's lock

    clocks = Clocks()
    os.sched_setaffinity(0, {min(before_all)})
    try:
        clocks.begin()
        before, cpu_s = clocks.read(), time.process_time()
        threads = [threading.Thread(target=compute) for _ in range(3)]
        for thread in threads:
            thread.start()
        compute()
        for thread in threads:
            thread.join()
        after, cpu_s = clocks.read(), time.process_time() - cpu_s
    finally:
        os.sched_setaffinity(0, before_all)
        clocks.end()
    assert after.cpu_s - before.cpu_s < 0.5 * cpu_s
    assert own_s(before, after) > 0.95 * cpu_s
    assert without_core_s(before, after) <= after.wall_s - before.wall_s - 0.95 * cpu_s


def test_a_smaller_measurement_is_believed_at_once():
    assert smooth(NAN, 3.0) == 3.0
    assert smooth(3.0, 2.0) == 2.0
    assert 2.0 < smooth(2.0, 3.0) < 3.0


@pytest.mark.parametrize("n", [0, 1, 5, 8, 100, 1001])
@pytest.mark.parametrize("least", [1, 4])
def test_blocks_cover_every_row_once_get_shorter_and_begin_elsewhere(n, least):
    begins = set()
    for turn in range(50):
        parts = blocks(np.ones(n), 8, turn, least)
        assert sorted(row for part in parts for row in range(part.start, part.stop)) == list(range(n))
        left = n
        for part in parts:
            size = part.stop - part.start
            assert min(0.75 * least, n) <= size < max(least, left // 8) + max(1, least)
            left -= size
        begins |= {parts[0].start} if parts else set()
    assert len(begins) >= min(n // (2 * least), 30)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.5, 20.0), min_size=1, max_size=300), st.integers(1, 64), st.integers(0, 99), st.floats(1.0, 50.0)
)
def test_blocks_of_unequal_rows_take_equally_long(sizes, n_parts, turn, least):
    """By rows, blocks were as long as the dearest of them: 144 ms at the end of a step of weather, where 21 were meant."""
    parts, left = blocks(sizes, n_parts, turn, least), sum(sizes)
    assert sorted(row for part in parts for row in range(part.start, part.stop)) == list(range(len(sizes)))
    for part in parts:
        taken = sum(sizes[part])
        assert taken <= max(least, left / n_parts, 1.0, *sizes[part]) + least + 1e-9
        left -= taken


def test_costs_of_single_rows_are_distinguished_in_time():
    rng = np.random.default_rng(3)
    true = rng.choice([1.0, 5.0], 64)
    costs, tick_work = RowCosts(0, 64), np.ones(1)
    errors = []
    for turn in range(60):
        for part in blocks(np.ones(64), 8, turn):
            costs.observe([(part, 0, float(true[part].sum()))], tick_work)
        errors.append(float(np.abs(costs.work(tick_work) - true).mean()))
    assert costs.known
    assert errors[-1] < 0.5 * errors[0]


@pytest.mark.parametrize("size", [6, 300])
def test_the_work_of_ticks_fits_all_ratios_that_were_seen(size):
    rng = np.random.default_rng(1)
    true = rng.uniform(0.2, 5.0, size)
    pairs = [(0, 1), (2, 1), (2, 3), (4, 3), (4, 5)]
    own, other = np.array(pairs).T
    fitted = fit(size, own, other, np.ones(len(pairs)), np.log(true[other] / true[own]))
    assert fitted[:6] / fitted[0] == pytest.approx(true[:6] / true[0], rel=0.05)
    assert np.log(fitted).mean() == pytest.approx(0.0, abs=1e-9)


def test_rows_of_one_block_are_weighed_by_what_the_same_call_has_shown_of_other_ranks():
    costs, tick_work = RowCosts(0, 10), np.ones(2)
    costs.observe([(slice(0, 5), 1, 1.25), (slice(5, 10), 0, 5.0)], tick_work)  # a tick of rank 1 is four times the work
    mixed = np.array([0, 1, 2, 3, 4, 7, 8, 9])
    _, tick_work = costs.observe([(mixed, 0, 8.0), (np.array([5, 6]), 1, 0.5)], tick_work)
    assert tick_work == pytest.approx([1.0, 4.0])
    assert costs.work(tick_work) == pytest.approx(np.ones(10))


def test_rows_that_another_rank_has_measured_show_the_ratio_of_ticks():
    costs, tick_work = RowCosts(0, 10), np.array([1.0, 1.0])
    assert costs.observe([(slice(0, 10), 0, 10.0)], tick_work)[0] == []
    lent = np.array([2, 5, 7])
    (seen,), tick_work = costs.observe([(lent, 1, 0.75)], tick_work)  # rank 1 needs a quarter of the ticks
    assert seen.other == 1
    assert math.exp(seen.log_ratio) == pytest.approx(4.0)
    assert tick_work == pytest.approx([1.0, 4.0])
    assert costs.work(np.array([1.0, 4.0])) == pytest.approx(np.ones(10))
    assert costs.observe([(lent, 1, 0.75)], np.array([1.0, 4.0]))[0] == []  # nothing new
    costs.observe([(slice(0, 10), 0, NAN)], tick_work)
    assert costs.work(np.array([1.0, 4.0])) == pytest.approx(np.ones(10))
