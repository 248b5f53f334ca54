"""What handling a block takes is what a rank does beside computing and resting."""

import time

import pytest

pytest.importorskip("mpi4py", reason="lb_mpi.mpi needs it")

from lb_mpi.mpi.rows.lending import Stopwatch


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_looking_at_messages_while_it_rests_is_no_handling_of_blocks() -> None:
    """It was: the slower a rank, the more often it looked, the longer its blocks became, and so on."""
    watch = Stopwatch(0.2)
    watch.begin()
    watch.call(spin, (1e-4,))  # the first call tells nothing
    watch.tell()
    for _ in range(3):
        began = time.perf_counter()
        watch.call(spin, (10e-3,))
        before = time.perf_counter()
        watch.worked(before - began)
        while rest_s := watch.slow.due():
            time.sleep(rest_s)
            spin(20e-3)  # its messages
            now = time.perf_counter()
            watch.rested(now - before)
            before = now
    measured = watch.tell()
    assert measured.handled == 2
    assert measured.handled_cpu_s < 2 * 10e-3
    assert watch.computing_s > 0.8 * 3 * 50e-3  # it rests four times as long as it computes
    watch.end()


def test_only_what_goes_with_each_block_is_handling() -> None:
    """Loans were put down to the few blocks of a slow rank, which became fewer and longer, and so on."""
    watch = Stopwatch(1.0)
    watch.begin()
    for messages, calls in ((False, 1), (False, 1), (True, 1), (False, 3), (False, 1)):  # the first call tells nothing
        spin(1e-3)
        if messages:
            spin(0.1)
            watch.disturbed()
        for k in range(calls):
            watch.call(spin, (1e-3,), first=k == 0)
    measured = watch.tell()
    assert measured.handled == 2  # not the first that is measured, nor the one after messages
    assert 2e-3 <= measured.handled_cpu_s < 0.1
    assert measured.handling_s == pytest.approx(measured.handled_cpu_s / 2 * measured.called_s / measured.ticks)
    watch.end()
