"""What handling a block takes is what a rank does beside computing and resting."""

import time

import pytest

pytest.importorskip("mpi4py", reason="lb_mpi.mpi needs it")

from lb_mpi.mpi.stopwatch import Stopwatch


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
        watch.block(1)
        began = time.perf_counter()
        watch.call(spin, (1e-3,))
        watch.occupy(time.perf_counter() - began)
        before = time.perf_counter()
        while watch.rest():
            spin(1e-3)  # its messages
            now = time.perf_counter()
            watch.rested(now - before)
            before = now
    measured = watch.tell()
    assert measured.blocks == 3
    assert measured.computing_s > 0.8 * 3 * 5e-3  # it rests four times as long as it computes
    assert measured.handling_s < 0.3 * measured.computing_s / 3
    assert measured.occupied_s - measured.computing_s == pytest.approx(3 * measured.handling_s)
    watch.end()
