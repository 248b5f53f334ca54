"""launch/run --hang-s: ranks that hang or leave are named with their stacks, and the run goes on; slow ones are not."""

import os
import re
import subprocess

import pytest

from lb_mpi import signs
from lb_mpi.cli.run import processes
from lb_mpi.cli.run.host import MOVED_BYTES, SHARE, QuietTimes, Used, _used
from tests.process.mishaps import DONE, HOST, run
from tests.process.started import needs_mpiexec, started

AWAITED = "for [0-9]+ s, while the other ranks wait in "
BLOCKED = "outside of lb_mpi, computing or blocked in MPI, for [0-9]+ s, "


@needs_mpiexec
@pytest.mark.parametrize(("what", "hang_s", "reported", "line"), [  # what is said of rank 1, and a line of its stack
    ("stop", "1", ["hangs: stopped for [0-9]+ s, in a map of lb_mpi.Pool$"], "in task\n"),
    ("receive-outside", "2", [f"hangs: {BLOCKED}"], "in main"),
    pytest.param(
        "wait-outside", "4", [f"hangs: neither computing nor answering {AWAITED}"], "in main", marks=pytest.mark.one_mpi
    ),
    ("end", "4", [f"hangs: at the end of its program {AWAITED}"], ""),
    ("interrupted", "4", [f"hangs: at the end of its program {AWAITED}"], ""),
])  # fmt: skip
def test_a_rank_that_hangs_is_named_with_its_stack_and_the_run_goes_on(tmp_path, run_env, what, hang_s, reported, line):
    code, out, err = run(what, tmp_path, run_env, "--restarts", "1", "--hang-s", hang_s)
    assert code == 0, err
    assert out.endswith(DONE)
    for words in reported:
        assert len(re.findall(f"^run: rank 1 on host {HOST} {words}", err, re.MULTILINE)) == 1, err
    assert line in err.partition("run: Python stack of rank 1:\n")[2]
    assert "rank 0 on" not in err
    assert "no Python stack" not in err
    assert "restart 1 of 1" in err


@needs_mpiexec
@pytest.mark.parametrize(("what", "rank"), [("leave", "1"), ("leave-together", "[01]")])
def test_a_rank_that_leaves_without_finalizing_mpi_is_named_and_has_failed(tmp_path, run_env, what, rank):
    code, _, err = run(what, tmp_path, run_env, "--restarts", "1")
    assert code not in (0, processes.HUNG), err
    assert re.search(f"^run: rank {rank} on host {HOST} ended with exit code 0, but without MPI_Finalize ", err, re.M)
    assert "run: no restart: the program has failed\n" in err


# --- slow ranks, which are not taken for hung ----------------------------------------------------------------------


@needs_mpiexec
@pytest.mark.parametrize(
    "what", ["sleep-inside", *[pytest.param(f"{what}-outside", marks=pytest.mark.one_mpi) for what in ("read", "compute")]]
)
def test_a_rank_that_is_slow_does_not_hang(tmp_path, run_env, what):
    code, out, err = run(what, tmp_path, run_env, "--hang-s", "2")
    assert (code, out) == (0, DONE.replace("start 2", "start 1")), err
    assert "hangs" not in err


def seen(turns):
    return signs.Seen(turns, 0, 0, os.getpid(), 0, "search")


def test_a_rank_that_takes_turns_or_computes_makes_progress():
    quiet = QuietTimes(0.0)

    def idle_s(now, turns, used):
        times = quiet.times(now, seen(turns), used)
        assert times["away_s"] == (now if turns == 1 else now - 6.0) - (turns == 1)  # from the second and the first turn on
        assert times["stopped_s"] == (times["idle_s"] if used.stopped else 0.0)
        return times["idle_s"]

    assert idle_s(1.0, 1, Used(0.0)) == 0.0
    assert idle_s(5.0, 1, Used(0.0)) == 4.0
    assert idle_s(6.0, 2, Used(0.0)) == 0.0
    assert idle_s(16.0, 2, Used(9 * SHARE)) == 10.0  # a little, as threads of an MPI do
    assert idle_s(17.0, 2, Used(12 * SHARE)) == 0.0
    assert idle_s(18.0, 2, Used(12 * SHARE, True)) == 0.0  # from here on it is stopped
    assert idle_s(23.0, 2, Used(12 * SHARE, True)) == 5.0
    assert idle_s(99.0, 2, Used(12 * SHARE, gone=True)) == 0.0
    read = Used(12 * SHARE, moved_bytes=MOVED_BYTES)
    assert idle_s(104.0, 2, read._replace(moved_bytes=99)) == 5.0  # an eventfd of an MPI
    assert idle_s(105.0, 2, read) == 0.0
    assert idle_s(115.0, 2, read) == 10.0
    assert idle_s(116.0, 2, read._replace(on_disk=True)) == 0.0


def test_a_call_that_begins_is_progress():
    before = signs.read(bytes(signs._page.bytes)).turns
    with signs.phase("a search"):
        assert signs.read(bytes(signs._page.bytes)).turns > before


def test_bytes_read_and_written_are_progress():
    with started(["cat"], stdin=subprocess.PIPE) as process:
        before = _used(os.getpid())
        process.stdin.write("x" * MOVED_BYTES)
        process.stdin.flush()
        process.stdout.read(MOVED_BYTES)
        assert _used(os.getpid()).moved_bytes >= before.moved_bytes + MOVED_BYTES
        process.stdin.close()
