"""Kernels: one cache for all environments of a user; compilation, shown while others get answers."""

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import event

import lb_mpi
from lb_mpi import compiling, kernels
from lb_mpi.compiling import Compilation, compilation
from lb_mpi.errors import Stopped
from lb_mpi.kernels import held_interrupts, njit
from lb_mpi.mpi.common.failure import hook
from lb_mpi.status import StatusLine

PROGRAM = """
from lb_mpi.partitioning.compiled import make_heap
make_heap(3)
print("make_heap", sum(make_heap.stats.cache_hits.values()), sum(make_heap.stats.cache_misses.values()))
"""


def run(packages: Path, cache: Path) -> list[str]:
    """Hits and misses of a kernel of the lb_mpi in `packages`."""
    shared = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env = {**shared, "PYTHONPATH": str(packages), "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=cache, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1:]


def test_a_kernel_is_compiled_once_for_all_environments_of_a_user(tmp_path):
    source = Path(lb_mpi.__file__).parent
    one, other = (tmp_path / name / "site-packages" for name in ("one", "other"))
    for packages in (one, other):
        shutil.copytree(source, packages / "lb_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    assert run(one, tmp_path) == ["0", "1"]
    assert run(other, tmp_path) == ["1", "0"]
    assert [*(tmp_path / "lb_mpi" / lb_mpi.__version__ / "partitioning").glob("compiled.make_heap-*.nbi")]
    assert not [*tmp_path.glob("*/site-packages/**/*.nbi")]
    changed = other / "lb_mpi" / "rebalancing" / "choose.py"  # in another folder: kernels inline parts of each other
    changed.write_text(changed.read_text() + "\n")
    assert run(other, tmp_path) == ["0", "1"]


def test_kernels_that_are_not_compiled_do_not_warn_of_overflows():
    program = "from lb_mpi.partitioning.compiled import next_random, random_state\nprint(next_random(random_state(1), 1000))"
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("225\n", "")


def add(a: int, b: int) -> int:
    return a + b


def test_a_kernel_is_compiled_without_a_cache_where_none_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "PACKAGE", Path(__file__).parent)
    monkeypatch.setattr(compilation, "has_cache", True)
    (tmp_path / "file").touch()
    for folders, has_cache in (([tmp_path / "file", tmp_path / "cache"], True), ([tmp_path / "file"], False)):
        monkeypatch.setattr(kernels, "cache_folders", lambda folders=folders: folders)
        kernel: Any = njit(cache=True)(add)
        assert kernel(1, 2) == 3
        assert compilation.has_cache == has_cache
        assert bool([*tmp_path.rglob("test_kernels.add-*.nbi")]) == (tmp_path / "cache" in folders)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_the_compilation_of_a_kernel_of_the_program_is_not_announced():
    before = compilation.n_done
    numba.njit(lambda x: x + 1)(1)
    assert compilation.n_done == before
    njit()(lambda x: x + 1)(1)
    assert compilation.n_done == before + 1


class Press(event.Listener):
    """Presses Ctrl-C when numba begins the first pass of a compilation."""

    n = 0

    def on_start(self, event: Any) -> None:
        self.n += 1
        if self.n == 1:
            signal.raise_signal(signal.SIGINT)

    def on_end(self, event: Any) -> None:
        pass


def test_ctrl_c_ends_a_compilation_at_once():
    """A kernel may take ten seconds to compile; only one that runs must not be interrupted."""

    @njit()
    def add(a: int, b: int) -> int:
        return a + b

    kernel: Any = add
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with event.install_listener("numba:run_pass", press := Press()):
            with pytest.raises(KeyboardInterrupt), held_interrupts():
                kernel(1, 2)
            assert (press.n, kernel.signatures, compilation.active) == (1, [], False)
    finally:
        signal.signal(signal.SIGINT, before)


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
