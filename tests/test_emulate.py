"""The throttle and the quantum, on a clock that the test moves."""

import contextlib
import math
import time

import pytest

import lb_mpi
from lb_mpi.searching.quantum import Quantum


class Clock:
    """Wall-clock and CPU time that pass only when told, or when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.cpu = 0.0
        self.naps: list[float] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(time, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.wall += seconds

    def compute(self, seconds: float, *, lost: float = 0.0) -> None:
        self.cpu += seconds
        self.wall += seconds + lost


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("speed", [0.1, 0.25, 0.8, 1.0])
def test_rests_in_proportion_and_in_slices(clock: Clock, speed: float) -> None:
    slow = lb_mpi.throttle(speed)
    for _ in range(20):
        with slow:
            clock.compute(3e-3)
    assert clock.wall == pytest.approx(20 * 3e-3 / speed)
    assert slow.cpu_s == pytest.approx(20 * 3e-3)
    assert max(clock.naps, default=0.0) <= 0.5e-3


def test_time_lost_to_others_counts_as_rest(clock: Clock) -> None:
    slow = lb_mpi.throttle(0.5)
    for _ in range(10):
        with slow:
            clock.compute(2e-3, lost=1e-3)
    assert clock.wall == pytest.approx(10 * 4e-3)


def test_idle_time_is_not_saved_up(clock: Clock) -> None:
    slow = lb_mpi.throttle(0.5)
    clock.sleep(10.0)
    began = clock.wall
    for _ in range(10):
        with slow:
            clock.compute(10e-3)
    assert clock.wall - began >= 10 * 20e-3 - 5e-3 - 1e-12


def test_nothing_rests_after_an_error(clock: Clock) -> None:
    with contextlib.suppress(KeyError), lb_mpi.throttle(0.1):
        clock.compute(1.0)
        raise KeyError
    assert clock.naps == []


@pytest.mark.parametrize("speed", [0, -0.5, 1.01, math.nan, math.inf, "fast", None])
def test_bad_speeds(speed: object) -> None:
    with pytest.raises(ValueError, match=r"speed = .*expected a finite number above 0 and at most 1"):
        lb_mpi.throttle(speed)


def test_the_quantum_grows_until_polling_is_cheap() -> None:
    quantum = Quantum()
    for _ in range(200):
        quantum.observe(quantum.units, work_s=quantum.units * 1e-6, poll_s=10e-6)
    assert 10e-6 / (10e-6 + quantum.units * 1e-6) < 0.02
    assert quantum.units * 1e-6 < 2e-3


def test_the_quantum_is_one_unit_when_units_are_long() -> None:
    quantum = Quantum()
    for _ in range(20):
        quantum.observe(quantum.units, work_s=quantum.units * 0.5, poll_s=10e-6)
    assert quantum.units == 1


def test_one_slow_poll_does_not_stretch_the_quantum() -> None:
    quantum = Quantum()
    for number in range(300):
        quantum.observe(quantum.units, work_s=quantum.units * 1e-6, poll_s=10e-3 if number % 10 == 9 else 10e-6)
    assert quantum.units * 1e-6 < 2e-3


@pytest.mark.parametrize("fixed", [0, -1, 1.5])
def test_bad_quantum(fixed: object) -> None:
    with pytest.raises(ValueError, match=r"quantum = .*expected an integer >= 1"):
        Quantum(fixed)


def test_fixed_quantum() -> None:
    quantum = Quantum(7)
    quantum.observe(7, work_s=1.0, poll_s=1.0)
    assert quantum.units == 7
