"""What handling a block takes is what a rank does beside computing and resting."""

import math
import time

import pytest

pytest.importorskip("mpi4py", reason="lb_mpi.mpi needs it")

from lb_mpi.mpi.common import waiting
from lb_mpi.mpi.rows.computing import Stopwatch
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch):
    moved = Clock(monkeypatch)
    monkeypatch.setattr(waiting, "BESIDE_S", math.inf)  # the system's report is never read
    return moved


def test_looking_at_messages_while_it_rests_is_no_handling_of_blocks(clock):
    """It was: the slower a rank, the more often it looked, the longer its blocks became, and so on."""
    watch = Stopwatch(0.2)
    watch.begin()
    watch.call(clock.compute, (1e-4,))  # the first call tells nothing
    first = watch.collect()
    for _ in range(3):
        began = time.perf_counter()
        watch.call(clock.compute, (10e-3,))
        before = time.perf_counter()
        watch.worked(before - began)
        while rest_s := watch.slow.due():
            time.sleep(rest_s)
            clock.compute(20e-3)  # its messages
            now = time.perf_counter()
            watch.rested(now - before)
            before = now
    measured = watch.collect()
    assert (measured.handled, measured.handled_cpu_s) == (2, pytest.approx(0.0))
    assert first.computing_s + measured.computing_s == pytest.approx(clock.wall)  # also its rests
    watch.end()


def test_time_with_messages_is_no_time_with_rows(clock):
    """A rank that had lent most of its rows seemed slow, since its messages counted as work on the few that it kept."""
    watch = Stopwatch(1.0)
    watch.begin()
    watch.worked(20e-3)  # its loans
    watch.measured.rows_s += 5e-3
    watch.worked(5e-3)
    watch.rested(10e-3)
    assert watch.collect().overhead_s == pytest.approx(20e-3)
    watch.end()


def test_only_what_goes_with_each_block_is_handling(clock):
    """Loans were put down to the few blocks of a slow rank, which became fewer and longer, and so on."""
    watch = Stopwatch(1.0)
    watch.begin()
    for messages, calls in ((False, 1), (False, 1), (True, 1), (False, 3), (False, 1)):  # the first call tells nothing
        clock.compute(1e-3)
        if messages:
            clock.compute(0.1)
            watch.handled()
        for k in range(calls):
            watch.call(clock.compute, (1e-3,), first=k == 0)
    measured = watch.collect()
    assert measured.handled == 2  # not the first that is measured, nor the one after messages
    assert measured.handling_s == pytest.approx(1e-3)
    watch.end()
