"""launch/run --restarts and --hang-s on real mpiexec: what dies or hangs is named, the run goes on, and nothing is left."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lb_mpi import signs
from lb_mpi.launching import limit, start, watch
from lb_mpi.launching.host import MOVED_BYTES, SHARE, Quiet, Rank, Used, _used
from lb_mpi.launching.program import children
from lb_mpi.record import launches
from tests.process.lab import ROOT, Lab, gone, mpi_library, script, until
from tests.process.started import started
from tools.environment import here

needs_mpiexec = pytest.mark.skipif(not shutil.which("mpiexec", path=Path(sys.executable).parent), reason="no mpiexec")
HOST = socket.gethostname()
DONE = f"start 2, 3 ranks: {sum(range(12))}\n"


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables for launch/run, after which no process of it is left, and no file in its TMPDIR."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    mark, env = limit.marked({**here().variables(), "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)})
    yield env
    left = limit.bearers(mark)
    limit.end(mark)
    assert left == set()
    assert list(scratch.iterdir()) == []


def argv(what: str, folder: Path, *options: str) -> list[str]:
    # mpi4py aborts the job when a program raises; without it, MPI_Finalize waits for the other ranks
    plain = [] if what.startswith("interrupted") else ["-m", "mpi4py"]
    program = [sys.executable, *plain, str(ROOT / "tests" / "process" / "misfortune.py"), what, str(folder)]
    return [sys.executable, str(ROOT / "launch" / "run"), "-n", "3", *options, "--", *program]


def run(what: str, folder: Path, env: dict[str, str], *options: str) -> tuple[int, str, str]:
    with started(argv(what, folder, *options), cwd=ROOT, env=env) as process:
        out, err = process.communicate(timeout=90)
    return process.returncode, out, err


@needs_mpiexec
def test_a_run_whose_rank_0_is_killed_goes_on(tmp_path: Path, mark: dict[str, str]) -> None:
    record = tmp_path / "record"
    code, out, err = run("kill-root", tmp_path, mark, "--restarts", "3", "--record", str(record), "--progress")
    assert (code, out) == (0, DONE) or "BAD TERMINATION" in out, err  # which MPICH's mpiexec prints there
    assert out.endswith(DONE)
    assert f"run: rank 0 on host {HOST} was killed by signal 9 (Killed)\n" in err
    assert "run: restart 1 of 3, after " in err
    assert " s, from save 1\n" in err
    told = launches.parse((record / launches.FILE).read_text())
    assert [(it.what, it.start) for it in told] == [
        (launches.START, 0), (launches.DEATH, 0), (launches.RESTART, 1), (launches.START, 1), (launches.END, 1)
    ]  # fmt: skip
    assert (told[1].rank, told[-1].words) == (0, "exit code 0")
    assert len(list((record / launches.folder_of(1)).glob("rank*.lbrec"))) == 3


@needs_mpiexec
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("kill-unsaved", "no restart: nothing was saved since the last start"),
        ("raise", "no restart: the program has failed by itself"),
    ],
)
def test_what_would_be_the_same_again_ends(tmp_path: Path, mark: dict[str, str], what: str, why: str) -> None:
    code, _, err = run(what, tmp_path, mark, "--restarts", "3")
    assert code not in (0, 75, limit.HUNG), err
    assert "sitecustomize" not in err  # Python says it there when that of launch/run fails
    assert f"run: {why}\n" in err
    assert (tmp_path / "starts").read_text() == "*"


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


@needs_mpiexec
@pytest.mark.parametrize(
    ("what", "number"), [("wait", signal.SIGTERM), ("wait", signal.SIGUSR1), ("wait-together", signal.SIGTERM)]
)
def test_a_program_that_can_saves_before_it_is_ended(
    tmp_path: Path, mark: dict[str, str], what: str, number: signal.Signals
) -> None:
    with started(argv(what, tmp_path, "--restarts", "3"), cwd=ROOT, env=mark) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert (tmp_path / "saved").exists()
    assert "run: saved (1) and stopped: the same command goes on from there\n" in err
    assert (tmp_path / "starts").read_text() == "*"


@needs_mpiexec
def test_a_program_that_cannot_save_goes_on_after_the_signal_that_asks_for_it(tmp_path: Path, mark: dict[str, str]) -> None:
    with started(argv("linger", tmp_path), cwd=ROOT, env=mark) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        said: list[str] = []
        while not said or "goes on" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert out == f"start 1, 3 ranks: {sum(range(12))}\n"
    assert said[-1] == "run: SIGUSR1: the program goes on, since it can't save at a signal (lb_mpi.asked_to_stop)\n"


@needs_mpiexec
def test_nothing_is_left_of_an_mpiexec_that_is_killed(tmp_path: Path, mark: dict[str, str]) -> None:
    with started(argv("linger", tmp_path), cwd=ROOT, env=mark) as process:
        until((tmp_path / "ready").exists)
        for pid in children(process.pid):
            name = Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
            if Path(name).name in ("mpiexec", "mpiexec.hydra", "prterun"):
                os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "run: mpiexec died by signal 9\n" in err


# --- hosts that are programs of the test: no MPI ---------------------------------------------------------------------

# Rank 1 is on host two, which dies in the first start, and is back after the second.
DYING = """
import os, sys, time
from pathlib import Path
from lb_mpi import signs
folder, rank = Path(sys.argv[1]), int(os.environ["PMI_RANK"])
starts = folder / "starts"
if rank == 0:
    with starts.open("a") as out:
        out.write("*")
    signs.saved(len(starts.read_text()))
    time.sleep(1.0)  # by then launch/run has asked
    number = len(starts.read_text())
    if number == 1:
        (folder / "dead" / "two").touch()
        os.kill(int((folder / "pids" / "two").read_text()), 9)
        time.sleep(60)
    if number == 2:
        (folder / "dead" / "two").unlink()
        os.kill(os.getpid(), 11)
    print("done")
else:
    while not starts.exists() or len(starts.read_text()) < 3:
        time.sleep(0.05)
"""


def test_a_host_that_dies_is_left_out_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    lab = Lab(tmp_path, mpi_library())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(watch, "ASK_S", 0.1)
    program = [sys.executable, "-c", DYING, str(tmp_path)]
    code = start.main(lab.arguments("one two", "--restarts", "5", "--", *program), "run")
    out, err = capfd.readouterr()
    assert (code, out) == (0, "done\n"), err
    lines = err.splitlines()
    for said in (
        "run: host two is gone: the connection ended (exit code -9)",
        "run: left out: host two: ssh: connect to host two port 22: No route to host (exit code 1). "
        "See whether it is on, and in reach: `ssh two`",
        "run: 1 rank instead of 2: there are no more slots",
        "run: one (1 rank)",
        f"run: rank 0 on host {HOST} was killed by signal 11 (Segmentation fault)",
    ):
        assert lines.count(said) == 1, said
    assert lines.count("run: one (1 rank), two (1 rank)") == 2
    assert [line.rpartition(", ")[2] for line in lines if "restart " in line] == ["from save 1", "from save 2"]
    assert all(gone(int(path.read_text())) for path in lab.pids.iterdir())


# What stands for launch/run in a batch job: notes what it's given, saves at SIGTERM, and ends with the exit code given.
BATCH = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), sys.exit({code})))
hosts = pathlib.Path(sys.argv[sys.argv.index("--hosts") + 1]).read_text()
pathlib.Path("given").write_text(hosts + " ".join(sys.argv[-3:]))
pathlib.Path("ready").touch()
time.sleep(60)
"""


@pytest.mark.parametrize(("code", "requeued"), [(75, ["requeue 17"]), (143, [])])
def test_a_batch_job_that_has_saved_is_queued_again(tmp_path: Path, code: int, requeued: list[str]) -> None:
    for folder in (".venv/bin", "launch", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    script(tmp_path / "launch" / "run", BATCH.format(code=code))
    told = 'import sys\nwith open("told", "a") as out:\n    out.write(" ".join(sys.argv[1:]) + "\\n")'
    script(tmp_path / "bin" / "scontrol", f"{told}\nif sys.argv[1] == 'show': print('n1', 'n2', sep='\\n')")
    script(tmp_path / "bin" / "sinfo", "import sys\nprint('big,speed_0.4,gpu' if '--nodes=n2' in sys.argv else '(null)')")
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path / "bin")}
    env |= {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "17"}
    env |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "8"}
    with started(["bash", str(ROOT / "launch" / "slurm.sbatch"), "--", "my program", "x"], env=env) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    assert (tmp_path / "told").read_text().splitlines() == ["show hostnames n[1-2]", *requeued]
    assert (tmp_path / "given").read_text() == "n1 slots=8\nn2 slots=8 speed=0.4\n-- my program x"
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["scontrol", "sinfo"]  # the host list is gone


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--restarts", "-1"], "--restarts -1: expected 0 or more"),
        (["--hang-s", "nan"], "--hang-s nan: expected 0 or more"),
        (["--grace-s", "-0.5"], "--grace-s -0.5: expected 0 or more"),
        (["-n", "0"], "-n 0: expected 1 to"),
    ],
)
def test_mistakes(options: list[str], says: str) -> None:
    command = [sys.executable, str(ROOT / "launch" / "run"), *options, "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr


# --- who goes on -----------------------------------------------------------------------------------------------------


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
