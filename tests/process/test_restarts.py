"""launch/run --restarts on real mpiexec: what dies is named, the run goes on, and nothing is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lb_mpi.cli import run as commands
from lb_mpi.cli.run import processes, watch
from lb_mpi.cli.run.host import children
from lb_mpi.record.record import read
from tests.process.lab import ROOT, Lab, gone, mpi_library, script, until
from tests.process.mishaps import DONE, HOST, argv, run
from tests.process.started import LIMIT_S, needs_mpiexec, started


@needs_mpiexec
def test_a_run_whose_rank_0_is_killed_goes_on(tmp_path, run_env):
    record = tmp_path / "record"
    code, out, err = run("kill-root", tmp_path, run_env, "--restarts", "3", "--record", str(record), "--progress")
    assert (code, out) == (0, DONE) or "BAD TERMINATION" in out, err  # which MPICH's mpiexec prints there
    assert out.endswith(DONE)
    assert f"run: rank 0 on host {HOST} was killed by signal 9 (Killed)\n" in err
    assert "run: restart 1 of 3, after " in err
    assert " s, from save 1\n" in err
    ranks = [read(path.read_bytes()) for path in sorted(record.iterdir())]  # of the second start alone
    assert [(one.about.rank, one.ended) for one in ranks] == [(0, True), (1, True)]


@needs_mpiexec
def test_a_rank_whose_watching_process_is_killed_is_started_again(tmp_path, run_env):
    code, out, err = run("watcher", tmp_path, run_env, "--restarts", "1")
    assert (code, out.endswith(DONE)) == (0, True), err


@needs_mpiexec
@pytest.mark.parametrize(("what", "why", "starts"), [
    ("kill-unsaved", "no restart: it died as the last time, and nothing was saved in between", "**"),
    ("raise", "no restart: the program has failed", "*"),
])  # fmt: skip
def test_a_failure_that_would_repeat_ends_the_run(tmp_path, run_env, what, why, starts):
    code, _, err = run(what, tmp_path, run_env, "--restarts", "3")
    assert code not in (0, 75, processes.HUNG), err
    assert "sitecustomize" not in err  # Python says it there when that of launch/run fails
    assert f"run: {why}\n" in err
    assert (tmp_path / "starts").read_text() == starts


@needs_mpiexec
@pytest.mark.parametrize(("what", "number", "save"), [
    ("wait", signal.SIGTERM, 1),
    ("wait-together-raise", signal.SIGUSR1, 1),
    pytest.param("wait-together-exit", signal.SIGTERM, 1, marks=pytest.mark.one_mpi),
    pytest.param("wait-together-break", signal.SIGTERM, 2, marks=pytest.mark.one_mpi),
])  # fmt: skip
def test_a_program_that_can_saves_before_it_is_ended(tmp_path, run_env, what, number, save):
    with started(argv(what, tmp_path, "--restarts", "3"), cwd=ROOT, env=run_env) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75, err
    assert (tmp_path / "saved").exists()
    assert f"run: saved ({save}) and stopped: the same command continues from there\n" in err
    assert (tmp_path / "starts").read_text() == "*"


@needs_mpiexec
@pytest.mark.one_mpi
def test_a_program_that_cannot_save_goes_on_after_the_signal_that_asks_for_it(tmp_path, run_env):
    with started(argv("linger", tmp_path), cwd=ROOT, env=run_env) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(signal.SIGUSR1)
        said = []
        while not said or "the program continues" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert out == DONE.replace("start 2", "start 1")
    assert said[-1] == "run: SIGUSR1: the program continues, since it cannot save at a signal (lb_mpi.asked_to_stop)\n"


@needs_mpiexec
def test_nothing_is_left_of_an_mpiexec_that_is_killed(tmp_path, run_env):
    with started(argv("linger", tmp_path), cwd=ROOT, env=run_env) as process:
        until((tmp_path / "ready").exists)
        for pid in children(process.pid):
            name = Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
            if Path(name).name in ("mpiexec", "mpiexec.hydra", "prterun"):
                os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert "run: mpiexec died by signal 9\n" in err


# --- hosts that are programs of the test: no MPI ---------------------------------------------------------------------

# Rank 1 is on host two, which dies in the first start, and is back after the second.  This machine has just saved, and is
# too busy to say so at once: its host.py, a child of launch/run, is stopped for a while.
DYING = """
import os, signal, sys, time
from pathlib import Path
from lb_mpi import signs
from lb_mpi.cli.run.host import children
from lb_mpi.cli.run.processes import stat
folder, rank = Path(sys.argv[1]), int(os.environ["PMI_RANK"])
starts = folder / "starts"
if rank == 0:
    with starts.open("a") as out:
        out.write("*")
    number = len(starts.read_text())
    if number == 1:
        two, run = int((folder / "pids" / "two").read_text()), stat(stat(os.getppid()).parent).parent
        words = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\\0") for pid in children(run)}
        (here,) = [pid for pid in words if "host" in words[pid] and pid != two]
        os.kill(here, signal.SIGSTOP)
        signs.saved(1)
        (folder / "dead" / "two").touch()
        os.kill(two, 9)
        time.sleep(1.5)
        os.kill(here, signal.SIGCONT)
        time.sleep(60)
    signs.saved(number)
    if number == 2:
        (folder / "dead" / "two").unlink()
        os.kill(os.getpid(), 11)
    print("done")
else:
    while not starts.exists() or len(starts.read_text()) < 3:
        time.sleep(0.05)
"""


@pytest.mark.one_mpi
def test_a_host_that_dies_is_left_out_until_it_answers_again(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    lab = Lab(tmp_path, mpi_library(), monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    connect = watch.Connection

    def in_turn(name, *more):
        one = connect(name, *more)
        if name == HOST:  # the ranks, which are all here, report to the first that listens: not to that of host two
            until(lambda: one.listen() or one.facts)
        return one

    monkeypatch.setattr(watch, "Connection", in_turn)
    program = [sys.executable, "-c", DYING, str(tmp_path)]
    code = commands.main("run", lab.arguments(f"{HOST} two", "--restarts", "5", "--", *program), "run")
    out, err = capfd.readouterr()
    assert (code, out) == (0, "done\n"), err
    lines = err.splitlines()
    for said in (
        "run: host two is gone: the connection ended (exit code -9)",
        "run: left out: host two: ssh: connect to host two port 22: No route to host (exit code 1). "
        "Check with `ssh two` whether it is running and can be reached",
        "run: 1 rank instead of 2: there are no more slots",
        f"run: {HOST} (1 rank)",
        f"run: rank 0 on host {HOST} was killed by signal 11 (Segmentation fault)",
    ):
        assert lines.count(said) == 1, said
    assert lines.count(f"run: {HOST} (1 rank), two (1 rank)") == 2
    assert [line.rpartition(", ")[2] for line in lines if "restart " in line] == ["from save 1", "from save 2"]
    assert all(gone(int(path.read_text())) for path in lab.pids.iterdir())


# Stands for `python -m lb_mpi run` in a batch job: notes what it's given, saves at SIGTERM, and ends with the given code.
BATCH = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), sys.exit({code})))
hosts = pathlib.Path(sys.argv[sys.argv.index("--hosts") + 1]).read_text()
pathlib.Path("given").write_text(hosts + " ".join(sys.argv[-3:]))
pathlib.Path("ready").touch()
while True:
    time.sleep(0.1)  # a signal that comes just before a sleep waits for its end
"""


def batch(tmp_path, body, variables):
    """Write a batch job, and the commands that it calls; `body` stands for Python.  Return the job's environment."""
    for folder in (".venv/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    script(tmp_path / "bin" / "python", body)
    job = subprocess.run([sys.executable, "-m", "lb_mpi", "slurm-script"], capture_output=True, check=True)
    (tmp_path / "job.sbatch").write_bytes(job.stdout)
    note = 'import sys\nwith open("asked", "a") as out:\n    out.write(" ".join(sys.argv[1:]) + "\\n")'
    show = "if sys.argv[1] == 'show': print(*sys.argv[3].replace('n[1-2]', 'n1,n2').split(','), sep='\\n')"
    script(tmp_path / "bin" / "scontrol", f"{note}\n{show}")
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path / "bin")}
    return env | {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "17"} | variables


@pytest.mark.one_mpi
@pytest.mark.parametrize(("code", "requeued"), [(75, ["requeue 17"]), (143, [])])
def test_a_batch_job_that_has_saved_is_queued_again(tmp_path, code, requeued):
    env = batch(tmp_path, BATCH.format(code=code), {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "8(x2)"})
    with started(["bash", str(tmp_path / "job.sbatch"), "--", "my program", "x"], env=env) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (code, "")
    assert (tmp_path / "asked").read_text().splitlines() == ["show hostnames n[1-2]", *requeued]
    assert (tmp_path / "given").read_text() == "n1 slots=8\nn2 slots=8\n-- my program x"
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["python", "scontrol"]  # no host list


@pytest.mark.one_mpi
@pytest.mark.parametrize(("variables", "slots"), [
    ({"SLURM_JOB_NODELIST": "big,a,b,c", "SLURM_TASKS_PER_NODE": "12,2(x2),1"}, ["big 12", "a 2", "b 2", "c 1"]),
    (
        {
            **{"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST": "x,y", "SLURM_TASKS_PER_NODE": "8(x2)"},
            **{"SLURM_JOB_NODELIST_HET_GROUP_0": "x,y", "SLURM_TASKS_PER_NODE_HET_GROUP_0": "8(x2)"},
            **{"SLURM_JOB_NODELIST_HET_GROUP_1": "z", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "3"},
        },
        ["x 8", "y 8", "z 3"],
    ),
    ({"SLURM_JOB_NODELIST": "x,y", "SLURM_TASKS_PER_NODE": "8"}, []),
    ({"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "x", "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1"}, []),
])  # fmt: skip
def test_a_batch_job_uses_all_ranks_of_unequal_nodes(tmp_path, variables, slots):
    env = batch(tmp_path, "import sys\nprint(open(sys.argv[sys.argv.index('--hosts') + 1]).read())", variables)
    done = subprocess.run(["bash", str(tmp_path / "job.sbatch"), "--", "x"], env=env, capture_output=True, text=True)
    assert done.stdout.split("\n")[:-2] == [one.replace(" ", " slots=") for one in slots]
    assert (done.returncode == 0, "expected" in done.stderr) == (bool(slots), not slots), done.stderr
