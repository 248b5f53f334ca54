"""Many ranks that wait on one host leave it most of its cores."""

import os
import signal

import pytest

from lb_mpi.handlers import deferred
from lb_mpi.mpi.common import waiting
from lb_mpi.mpi.common.waiting import LONGEST_S, N_RANKS_HERE, POLL_S, POLLING, Nap, longest_nap_s


@pytest.fixture(autouse=True)
def _no_mpiexec(monkeypatch):
    for name in N_RANKS_HERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "N_CORES", 2)


@pytest.mark.parametrize("n_ranks", [None, "", "many", "1", "2", "4"])
def test_a_few_ranks_take_short_naps(monkeypatch, n_ranks):
    if n_ranks is not None:
        monkeypatch.setenv(N_RANKS_HERE[0], n_ranks)
    assert longest_nap_s() == LONGEST_S


@pytest.mark.parametrize("name", N_RANKS_HERE)
@pytest.mark.parametrize("n_ranks", [8, 64, 256])
def test_polling_never_fills_the_cores(monkeypatch, name, n_ranks):
    monkeypatch.setenv(name, str(n_ranks))
    nap = Nap()
    assert n_ranks * POLL_S / nap.longest_s <= 2 * POLLING * (1 + 1e-12)


def test_two_threads_that_end_the_same_clocks_close_their_file_once(monkeypatch):
    clocks, closed, close = waiting.Clocks(), list[int](), os.close
    clocks.begin()

    def meanwhile(file: int) -> None:
        closed.append(file)
        if len(closed) == 1:
            clocks.end()  # as the other thread does
        close(file)

    monkeypatch.setattr(os, "close", meanwhile)
    clocks.end()
    assert len(closed) == 1


@pytest.mark.parametrize("path", ["/dev/null", "/nowhere"])
def test_a_system_that_does_not_report_queueing_is_measured_without(monkeypatch, path):
    opened = os.open
    monkeypatch.setattr(os, "open", lambda _path, flags: opened(path, flags))
    clocks = waiting.Clocks()
    clocks.begin()
    assert clocks.read().queued_s is None
    clocks.end()


def test_signals_that_were_deferred_all_arrive_also_if_the_handler_of_one_raises():
    """The others were lost: a SIGTERM, at which a run is to save, after a Ctrl-C."""
    arrived, numbers = list[int](), (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def handle(number, _frame):
        arrived.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    def defer():
        with deferred():
            for number in numbers:
                signal.raise_signal(number)
            assert not arrived

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        with pytest.raises(KeyboardInterrupt):
            defer()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert sorted(arrived) == sorted(numbers)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*numbers}
