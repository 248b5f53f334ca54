"""Compilation of kernels: shown in a line, while other ranks get answers."""

import io
import sys
import threading

import pytest

from lb_mpi import compiling
from lb_mpi.compiling import Compilation
from lb_mpi.errors import Stopped
from lb_mpi.mpi.common.failure import hook
from lb_mpi.status import StatusLine


@pytest.fixture
def calls(monkeypatch):
    """Released by each call that is made meanwhile, which comes at once."""
    made = threading.Semaphore(0)
    monkeypatch.setattr(compiling, "EVERY_S", 1e-3)
    monkeypatch.setattr(compiling, "meanwhile", [made.release])
    return made


def test_while_a_kernel_and_those_that_it_calls_are_compiled_others_are_answered(calls):
    one = Compilation()
    for _ in range(2):
        one.begin("outer")
        one.begin("inner")
        one.end()
        assert one.active
        assert calls.acquire(timeout=60.0)
        one.end()
        assert not one.active
    assert one.n_done == 4


def test_a_long_compilation_is_shown(calls, monkeypatch, capsys):
    one = Compilation()
    one.begin("quick")
    assert calls.acquire(timeout=60.0)
    one.end()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(compiling, "SHOWN_S", 0.0)
    one.begin("refine")
    for _ in range(3):  # the line is written after a call
        assert calls.acquire(timeout=60.0)
    one.end()
    err = capsys.readouterr().err
    assert err.startswith("lb_mpi: compiling kernels (first run only): 1 done, ")
    assert err.endswith(" s, now refine\n")
    assert err.count("\n") == 1
    other = Compilation()
    other.has_cache = False
    other._show(1.0)
    assert "compiling kernels (in each run: no folder for their cache" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["closed before Python began", "closed by the program"])
def test_what_is_written_to_a_closed_standard_error_is_lost_and_nothing_else(how, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None if "before" in how else (closed := io.StringIO()))
    if sys.stderr is not None:
        closed.close()
    Compilation()._show(100.0)
    with StatusLine() as line:
        assert line.show("", last=True)
    with pytest.raises(SystemExit):
        hook(Stopped, Stopped("saved"), None)
