"""The throttle and the quantum, on a clock that the test moves."""

import contextlib

import pytest

import lb_mpi
from apps.speeds import Change, Varying, seconds_for
from lb_mpi.emulate import THROTTLED
from lb_mpi.searching.guard import Quantum
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize("speed", [0.1, 0.25, 0.8, 1.0])
def test_rests_in_proportion_and_in_slices(clock, speed):
    slow = lb_mpi.throttle(speed)
    for _ in range(20):
        with slow:
            clock.compute(3e-3)
    assert clock.wall == pytest.approx(20 * 3e-3 / speed)
    assert slow.cpu_s == pytest.approx(20 * 3e-3)
    assert max(clock.naps, default=0.0) <= 0.5e-3


def test_speeds_inside_and_outside_are_multiplied(clock, monkeypatch):
    """Stops by launch/throttle once counted as rest, so that a slow host was never slower than that."""
    monkeypatch.setenv(THROTTLED, "0.4")
    slow = lb_mpi.throttle(0.5)
    for _ in range(10):
        with slow:
            clock.compute(2e-3, lost=3e-3)  # stopped from outside
    assert clock.wall == pytest.approx(10 * 2e-3 / (0.4 * 0.5))


@pytest.mark.parametrize("text", ["junk", "-1", "0", "1.5", "nan", ""])
def test_a_wrong_speed_in_the_environment_is_named(monkeypatch, text):
    monkeypatch.setenv(THROTTLED, text)
    with pytest.raises(ValueError, match=f"^{THROTTLED} = .*{text}.*: expected a finite number above 0 and at most 1"):
        lb_mpi.throttle(0.5)


def test_idle_time_is_not_saved_up_while_a_rank_serves_messages(clock):
    """Ranks that wait for each other in each step once had 5 ms less of each step to rest."""
    slow = lb_mpi.throttle(0.2)
    computing_s = 0.0
    for _ in range(5):
        for _ in range(4):  # it waits, and could compute
            assert slow.due() == 0.0
            clock.sleep(1e-3)
        assert slow.due() == 0.0
        began = clock.wall
        clock.compute(2e-3, lost=1e-3)  # counts as rest
        slow.charge(2e-3)
        slow.rest()
        clock.sleep(0.1e-3)  # a late wake-up is compensated where the rank goes on at once
        assert slow.due() == 0.0
        clock.compute(2e-3)
        slow.charge(2e-3)
        slow.rest()
        computing_s += clock.wall - began
    assert computing_s == pytest.approx(5 * 20e-3, rel=0.01)


def test_nothing_rests_after_an_error(clock):
    with contextlib.suppress(KeyError), lb_mpi.throttle(0.1):
        clock.compute(1.0)
        raise KeyError
    assert clock.naps == []


@pytest.mark.parametrize(("unit_s", "usual_poll_s", "tenth_poll_s", "least", "most"), [
    (1e-6, 10e-6, 10e-6, 491, 1999),  # 10 us are less than 2 % of the time
    (1e-6, 10e-6, 10e-3, 491, 1999),  # one slow poll does not stretch it
    (1e-6, 1e-3, 1e-3, 9000, 10_000),  # all are slow: messages do not wait longer
    (0.5, 10e-6, 10e-6, 1, 1),  # units are long
])  # fmt: skip
def test_the_quantum_grows_until_polling_is_cheap(unit_s, usual_poll_s, tenth_poll_s, least, most):
    quantum = Quantum()
    for number in range(300):
        poll_s = tenth_poll_s if number % 10 == 9 else usual_poll_s
        quantum.observe(quantum.units, work_s=quantum.units * unit_s, poll_s=poll_s)
    assert least <= quantum.units <= most


def test_a_fixed_quantum_stays():
    quantum = Quantum(7)
    quantum.observe(7, work_s=1.0, poll_s=1.0)
    assert quantum.units == 7


@pytest.mark.parametrize("usual", [0.6, 1.0])
def test_a_speed_that_falls_and_comes_back(clock, usual):
    speed = Varying(usual, [Change(0, 2.0, 4.0, 0.5)])
    slow = lb_mpi.throttle(speed.now)
    assert slow.speed == usual  # its time has not begun
    clock.wall = 100.0
    speed.start()
    cpu_s = []
    for until in (102.0, 104.0, 106.0):
        before = clock.cpu
        while clock.wall < until:
            with slow:
                clock.compute(1e-3)
        cpu_s.append(clock.cpu - before)
    assert cpu_s == pytest.approx([2.0 * usual, usual, 2.0 * usual], rel=0.02)
    assert slow.speed == usual
    assert seconds_for(sum(cpu_s), [speed]) == pytest.approx(6.0, rel=0.02)


def test_the_bound_takes_the_speeds_as_they_were():
    speeds = [Varying(1.0), Varying(0.6, [Change(1, 1.0, 3.0, 0.5), Change(1, 2.0, 5.0, 1.0)])]
    for work, seconds in ((0.0, 0.0), (0.8, 0.5), (1.6, 1.0), (2.9, 2.0), (4.2, 3.0), (5.8, 4.0), (16.0 + 4.2, 13.0)):
        assert seconds_for(work, speeds) == pytest.approx(seconds)
    assert seconds_for(3.2, [Varying(0.8), Varying(0.8)]) == pytest.approx(2.0)
