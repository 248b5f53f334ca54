"""launch/run --hang-s: ranks that hang or leave are named, slow ones are not; and what tells the one from the other."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lb_mpi import signs
from lb_mpi.launching import limit
from lb_mpi.launching.host import MOVED_BYTES, SHARE, Quiet, Rank, Used, _used
from tests.process.lab import ROOT
from tests.process.mishaps import DONE, HOST, needs_mpiexec, run
from tests.process.started import started


@needs_mpiexec
def test_a_rank_that_is_stopped_is_named_with_its_stack_and_the_run_goes_on(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    code, out, err = run("stop", tmp_path, mark, "--restarts", "1", "--hang-s", "1")
    assert code == 0, err
    assert out.endswith(DONE)
    assert re.search(
        f"^run: rank 2 on host {HOST} hangs: stopped for [1-9] s, in a map of lb_mpi.Pool$", err, re.MULTILINE
    )
    assert "run: Python stack of rank 2:\n" in err
    assert "in task\n" in err
    assert "rank 0 on" not in err
    assert "restart 1 of 1" in err


@needs_mpiexec
@pytest.mark.parametrize(("what", "rank"), [("leave", "2"), ("leave-together", "[012]")])
def test_a_rank_that_leaves_without_finalizing_mpi_is_named_and_has_failed(
    tmp_path: Path, mark: dict[str, str], what: str, rank: str
) -> None:
    code, _, err = run(what, tmp_path, mark, "--restarts", "1")
    assert code not in (0, limit.HUNG), err
    assert re.search(f"^run: rank {rank} on host {HOST} ended with exit code 0, but without MPI_Finalize ", err, re.M)
    assert "run: no restart: the program has failed by itself\n" in err


@needs_mpiexec
@pytest.mark.parametrize(
    ("what", "how", "line"),
    [
        ("wait-outside", "neither computing nor answering", "in main"),
        ("receive-outside", "in a blocking call of MPI", "in main"),
        ("end", "at the end of its program", ""),
        ("interrupted-load", "at the end of its program", ""),
        ("interrupted-save", "at the end of its program", ""),
        ("interrupted-pool", "at the end of its program", ""),
    ],
)
def test_a_rank_for_which_all_others_wait_is_named_with_its_stack_and_the_run_goes_on(
    tmp_path: Path, mark: dict[str, str], what: str, how: str, line: str
) -> None:
    code, out, err = run(what, tmp_path, mark, "--restarts", "1", "--hang-s", "4")
    assert code == 0, err
    assert out.endswith(DONE)
    words = f"^run: rank 2 on host {HOST} hangs: {how} for [0-9]+ s, while the other ranks wait in "
    assert re.search(words, err, re.MULTILINE), err
    assert line in err.partition("run: Python stack of rank 2:\n")[2]
    assert "rank 0 on" not in err
    assert "restart 1 of 1" in err


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
