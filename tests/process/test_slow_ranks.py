"""launch/run --hang-s: slow ranks are not taken for hung; what tells the one from the other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lb_mpi import signs
from lb_mpi.launching.host import MOVED_BYTES, SHARE, Quiet, Rank, Used, _used
from tests.process.lab import ROOT
from tests.process.mishaps import DONE, needs_mpiexec, run
from tests.process.started import started


@needs_mpiexec
@pytest.mark.parametrize("what", ["sleep-outside", "read-outside", "compute-outside"])
def test_a_rank_that_is_slow_does_not_hang(tmp_path: Path, mark: dict[str, str], what: str) -> None:
    code, out, err = run(what, tmp_path, mark, "--hang-s", "2")
    assert (code, out) == (0, DONE.replace("start 2", "start 1")), err
    assert "hangs" not in err


def seen(turns: int, phase: str = "search") -> signs.Seen:
    return signs.Seen(turns, 0, 0, os.getpid(), 0, phase)


def test_who_turns_computes_or_may_wait_goes_on() -> None:
    progress = Quiet(0.0)
    assert progress.quiet_s(1.0, seen(1), Used(0.0)) == 0.0
    assert progress.quiet_s(5.0, seen(1), Used(0.0)) == 4.0
    assert progress.quiet_s(6.0, seen(2), Used(0.0)) == 0.0
    assert progress.quiet_s(16.0, seen(2), Used(9 * SHARE)) == 10.0  # a little, as threads of an MPI do
    assert progress.quiet_s(17.0, seen(2), Used(12 * SHARE)) == 0.0
    assert progress.quiet_s(18.0, seen(2), Used(12 * SHARE, True)) == 1.0
    assert progress.quiet_s(90.0, seen(2, ""), Used(12 * SHARE)) == 0.0  # nothing of ours: it may wait
    assert progress.quiet_s(95.0, seen(2, ""), Used(12 * SHARE, True)) == 5.0  # but not stopped
    assert progress.quiet_s(99.0, seen(2), Used(12 * SHARE, gone=True)) == 0.0
    read = Used(12 * SHARE, moved_bytes=MOVED_BYTES)
    assert progress.quiet_s(104.0, seen(2), read._replace(moved_bytes=99)) == 5.0  # an eventfd of an MPI
    assert progress.quiet_s(105.0, seen(2), read) == 0.0
    assert progress.quiet_s(115.0, seen(2), read) == 10.0
    assert progress.quiet_s(116.0, seen(2), read._replace(on_disk=True)) == 0.0


def test_who_gives_its_stack_has_not_gone_on(tmp_path: Path) -> None:
    file = os.memfd_create(signs.NAME)
    os.ftruncate(file, signs.BYTES)
    program = """
import time
from lb_mpi import signs
def deep(n):
    if n:
        deep(n - 1)
    print(flush=True)
    time.sleep(60)
signs.attend()
deep(90)
"""
    (tmp_path / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": str(ROOT), signs.VARIABLE: f"/proc/{os.getpid()}/fd/{file}"}
    with started(["sh", "-c", '"$@"; true', "sh", sys.executable, str(tmp_path / "program.py")], env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rank = Rank("0", process.pid, file)
        before = rank._used().moved_bytes
        assert len(rank.stack(wake=False)) > MOVED_BYTES
        assert abs(rank._used().moved_bytes - before) < MOVED_BYTES
        os.kill(rank._seen().stack_pid, signal.SIGKILL)


def test_what_a_program_reads_and_writes_is_seen() -> None:
    with started(["cat"], stdin=subprocess.PIPE) as process:
        before = _used(os.getpid())
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("x" * MOVED_BYTES)
        process.stdin.flush()
        process.stdout.read(MOVED_BYTES)
        assert _used(os.getpid()).moved_bytes >= before.moved_bytes + MOVED_BYTES
        process.stdin.close()
