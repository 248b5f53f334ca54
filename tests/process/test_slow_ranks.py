"""launch/run --hang-s: slow ranks are not taken for hung; what tells the one from the other."""

import os
import subprocess

import pytest

from lb_mpi import signs
from lb_mpi.cli.run.host import MOVED_BYTES, SHARE, Idle, Used, _used
from tests.process.mishaps import DONE, run
from tests.process.started import needs_mpiexec, started


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
    idle = Idle(0.0)

    def idle_s(now, turns, used):
        away_s, idle_s = idle.away_and_idle_s(now, seen(turns), used)
        assert away_s == (now if turns == 1 else now - 6.0) - (turns == 1)  # from the second and the first turn on
        return idle_s

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
