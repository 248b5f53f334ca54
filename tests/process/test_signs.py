"""Signs of a program: what it writes is what its launcher reads; without a launcher it writes for nobody."""

import os
import signal
import subprocess
import sys

import pytest

from lb_mpi import signs
from tools.environment import ROOT

pytestmark = pytest.mark.one_mpi
NOTHING = (0, 0, 0, 0, 0, "", 0, False, 0.0)


@pytest.fixture
def page(monkeypatch):
    """A launcher's file, which this process has not found yet."""
    file = os.memfd_create(signs.NAME)
    os.ftruncate(file, signs.BYTES)
    monkeypatch.setenv(signs.VARIABLE, f"/proc/{os.getpid()}/fd/{file}")
    monkeypatch.setattr(signs, "_page", signs._Page())
    monkeypatch.setattr("faulthandler.register", lambda *_, **__: None)
    return file


def seen(file):
    return signs.read(os.pread(file, signs.BYTES, 0))


def test_a_launcher_reads_what_a_program_says(page):
    assert seen(page) == NOTHING
    with signs.phase("search"):
        for _ in range(3):
            signs.turn()
        assert seen(page) == (4, 0, 0, os.getpid(), 0, "search", 0, False, 0.0)
        with signs.phase("inside"):
            assert seen(page).phase == "search"
        assert seen(page).phase == "search"
    with signs.phase("x" * 100):
        assert seen(page).phase == "x" * 64
    signs.saved(7)
    signs.saved(8)
    signs.saves_at_signal(True)
    assert seen(page)[1:] == (2, 8, os.getpid(), os.getpid(), "", 0, False, 0.0)
    signs.saves_at_signal(False)
    assert seen(page).saves_pid == 0
    signs.slept(0.25)
    signs.slept(0.5)
    assert seen(page).asleep_s == 0.75


def test_a_phase_is_shown_until_the_last_of_overlapping_blocks_ends(page):
    first, second = signs.phase("first"), signs.phase("second")  # of two threads
    first.__enter__()
    second.__enter__()
    assert seen(page).phase == "first"
    first.__exit__(None, None, None)
    assert seen(page).phase == "second"
    second.__exit__(None, None, None)
    assert seen(page).phase == ""


def test_asking_an_ending_program_for_its_stack_does_not_kill_it(page):
    at_end = "faulthandler.unregister(signs.STACK_SIGNAL)"  # as Python does at its end
    program = f"import faulthandler, os\nfrom lb_mpi import signs\nsigns.begin()\n{at_end}\n"
    program += "os.kill(os.getpid(), signs.STACK_SIGNAL)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(("last", "regular"), [
    ("", True),
    ("sys.exit(0)", True),
    ("os._exit(0)", False),
    ("signs.end(); os._exit(0)", True),  # MPI.Finalize
    ("if os.fork() == 0: sys.exit(0)\nos.wait(); os._exit(0)", False),
    ("if os.fork() == 0: signs.attend(); sys.exit(0)\nos.wait(); os._exit(0)", False),
])  # fmt: skip
def test_whether_a_program_came_to_its_end(page, last, regular):
    program = f"import os, sys\nfrom lb_mpi import signs\nsigns.begin()\nsigns.begin()\n{last}"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        assert process.wait() == 0
    assert (seen(page).mpi_pid, seen(page).at_end) == (process.pid, regular)


def test_a_program_that_never_comes_to_lb_mpi_says_only_that_it_ends(page):
    program = "from lb_mpi import signs\nsigns.attend()\nprint(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes) as process:
        process.stdout.readline()
        assert (seen(page).at_end, seen(page).stack_pid, seen(page).spoke) == (False, process.pid, False)
        process.communicate(b"\n")
    assert (seen(page).at_end, seen(page).spoke) == (True, False)


def test_two_copies_of_the_module_say_the_same_and_give_the_stack(page):
    program = """
import importlib.util, signal, sys
spec = importlib.util.spec_from_file_location("copy", "lb_mpi/signs.py")
copy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(copy)
copy.attend()
signal.raise_signal(copy.STACK_SIGNAL)
from lb_mpi import signs
signs.begin()
signal.raise_signal(signs.STACK_SIGNAL)
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
    text = os.pread(page, 9999, signs.BYTES).decode()
    assert text.count("in <module>") == 2
    assert seen(page).at_end


@pytest.mark.parametrize("path", ["", "/nosuch/file", os.devnull])
def test_signs_without_a_page_change_nothing(page, monkeypatch, path):
    monkeypatch.setenv(signs.VARIABLE, path)
    with signs.phase("search"):
        signs.turn()
    signs.saved(1)
    assert seen(page) == NOTHING


def test_the_stack_of_a_program_that_does_nothing_can_be_had(page):
    program = (
        "from lb_mpi import signs\nimport time\ndef forever():\n    print(flush=True)\n    time.sleep(60)\n"
        "with signs.phase('x'):\n    forever()"
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        assert seen(page).stack_pid == process.pid
        process.send_signal(signs.STACK_SIGNAL)
        process.send_signal(signal.SIGCONT)
        while not (text := os.pread(page, 9999, signs.BYTES)) or not text.endswith(b"<module>\n"):
            assert process.poll() is None
        process.kill()
    assert b"in forever\n" in text


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_a_process_that_the_program_starts_says_nothing(page, start):
    child = "signs.begin(); signs.saved(5); signs.phase('theirs').__enter__()"
    program = "import os, subprocess, sys\nfrom lb_mpi import signs\nsigns.begin()\nsigns.phase('ours').__enter__()\n" + {
        "fork": f"if os.fork() == 0: {child}; os._exit(0)\nos.wait()\n",
        "exec": f"subprocess.run([sys.executable, '-c', \"from lb_mpi import signs; {child}\"], check=True)\n",
    }[start]
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        assert process.wait() == 0
    found = seen(page)
    assert (found.mpi_pid, found.stack_pid, found.phase, found.n_saved) == (process.pid, process.pid, "ours", 0)
    assert found.at_end


def test_a_program_that_comes_after_another_one_has_ended_is_seen(page):
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", "from lb_mpi import signs; signs.begin()"], cwd=ROOT) as process:
            assert process.wait() == 0
        assert seen(page).mpi_pid == process.pid
