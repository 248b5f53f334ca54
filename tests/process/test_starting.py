"""A start that hangs: which ranks are named, when; stuck ranks on real mpiexec; the wrong launcher."""

import os
import re
import socket
import subprocess
import sys

import pytest

from lb_mpi.cli import run as commands
from lb_mpi.cli.run import hangs, processes
from lb_mpi.cli.run.lines import RankState
from tests.process.lab import ROOT, script
from tests.process.started import needs_mpiexec
from tools.environment import here

HOSTS = ("a", "b", "c")
LIMIT_S = 40.0
ALL = [("0", "a"), ("1", "b"), ("2", "c")]


# A sample: the time, the ranks that are there, and those that have spoken.
@pytest.mark.parametrize(("hang_s", "samples", "seconds", "expected"), [
    (LIMIT_S, [(39.0, "", "")], 0.0, []),
    (LIMIT_S, [(40.0, "", "")], 40.0, ALL),
    (5.0, [(29.0, "", "")], 0.0, []),
    (5.0, [(30.0, "", "")], 30.0, ALL),  # at least START_S
    (0.0, [(999.0, "", "")], 0.0, []),
    (LIMIT_S, [(10.0, "0", ""), (20.0, "02", ""), (59.0, "02", "")], 0.0, []),  # from when the last one came
    (LIMIT_S, [(10.0, "0", ""), (20.0, "02", ""), (60.0, "02", "")], 40.0, ALL[1:2]),
    (LIMIT_S, [(10.0, "02", ""), (90.0, "02", "2")], 0.0, []),
])  # fmt: skip
def test_ranks_that_are_missing_for_the_limit_hang_unless_a_program_has_begun(hang_s, samples, seconds, expected):
    one = hangs.FirstSigns(HOSTS, hang_s)
    for now, there, spoke in samples:
        found = one.stuck(now, [RankState(rank, HOSTS[int(rank)], spoke=rank in spoke) for rank in there])
    assert [(each.rank, each.host, each.seconds) for each in found] == [(*rank, seconds) for rank in expected]


def test_ranks_without_known_numbers_may_do_what_they_like():
    one = hangs.FirstSigns(HOSTS, LIMIT_S)
    assert one.stuck(500.0, [RankState("?", "a")]) == []
    assert one.stuck(900.0, [RankState("?", "a")]) == []


def test_a_hang_in_the_start_is_described():
    one = hangs.FirstSigns(HOSTS[:2], LIMIT_S)
    (missing,) = one.stuck(41.0, [RankState("0", "a")]) or one.stuck(90.0, [RankState("0", "a")])
    assert str(missing) == (
        "rank 1 on host b hangs: neither computing nor answering for 49 s, in its start, before its program"
    )


# --- on real mpiexec -------------------------------------------------------------------------------------------------

# Rank 1 stops before MPI begins; or all ranks wait, as in MPI_Init, but without computing meanwhile.
LATE = """
import os, signal, sys, time
from lb_mpi.cli.run.rank import number
if sys.argv[1] == "stopped" and number(os.environ) == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
if sys.argv[1] == "asleep":
    time.sleep(600)
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""

# Rank 1 is stopped where rank.py would begin.
STOPPED = """
import os, signal, sys
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1" and "rank" in sys.argv:
    os.kill(os.getpid(), signal.SIGSTOP)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def run(monkeypatch, capfd):
    """launch/run of LATE, in this process; no process of it is left."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(hangs, "START_S", 4.0)
    run_id, env = processes.with_run_id({**here().variables(), "PYTHONPATH": str(ROOT)})
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def call(how, *options, python=sys.executable):
        code = commands.main("run", ["-n", "2", *options, "--", python, "-c", LATE, how], "run")
        return code, *capfd.readouterr()

    yield call
    assert processes.of_run(run_id) - {os.getpid()} == set()


def named(err):
    return re.findall(r"^run: (rank \d) on host .* hangs: (?:stopped|neither .*?) for \d+ s(.*)$", err, re.MULTILINE)


@needs_mpiexec
def test_a_rank_that_is_stopped_before_mpi_begins_is_named(run):
    code, _, err = run("stopped", "--hang-s", "1")
    assert code == processes.HUNG, err
    assert named(err) == [("rank 1", "")], err


@needs_mpiexec
def test_a_rank_that_is_stopped_before_its_program_is_named(run, tmp_path):
    python = script(tmp_path / "python-stopped", STOPPED)
    code, _, err = run("asleep", "--hang-s", "5", "--restarts", "2", python=python)
    assert code == processes.HUNG, err
    assert named(err) == [("rank 1", ", in its start, before its program")], err
    assert f"rank 1 on host {socket.gethostname()} hangs" in err


# --- the wrong launcher ------------------------------------------------------------------------------------------------

SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
OTHER = {"PMI_SIZE": "4", "PMI_RANK": "0"} if here().mpi == "openmpi" else {"OMPI_COMM_WORLD_SIZE": "4"}
DOORS = """
import sys
from mpi4py import MPI
import lb_mpi
own = MPI.Intracomm(MPI.COMM_SELF) if "self" in sys.argv else MPI.COMM_WORLD
for comm in own, own.Split(0, 0):
    with lb_mpi.Pool(comm) as pool, lb_mpi.Balancer(comm):
        assert pool.map(abs, [-1]) == ([1] if pool.is_root else None)
    if "self" in sys.argv:
        break
"""


@pytest.mark.parametrize(("variables", "arguments", "says"), [
    (SLURM | {"SLURM_PROCID": "0"}, [], "SLURM_STEP_NUM_TASKS = 4, but MPI.COMM_WORLD has 1 rank: srun has started 4"),
    (OTHER | {"SLURM_STEP_NUM_TASKS": "2"}, [], "= 4, but MPI.COMM_WORLD has 1 rank: a launcher for"),
    *[pytest.param(variables, words, "", marks=pytest.mark.one_mpi) for variables, words in (
        (SLURM | {"SLURM_PROCID": "1"}, []),  # number 0 says so
        (SLURM | {"SLURM_PTY_PORT": "7"}, []),  # a shell within a step
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, []),
        (SLURM, ["self"]),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, []),  # in a batch script
        ({}, []),
    )],
])  # fmt: skip
def test_a_wrong_launcher_is_named_once(variables, arguments, says):
    clean = {key: value for key, value in here().variables().items() if not key.startswith(("SLURM", "PMI", "OMPI_COMM"))}
    command = [str(here().python), "-W", "ignore", "-c", DOORS, *arguments]
    done = subprocess.run(command, env=clean | variables, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("lb_mpi:")]
    assert len(lines) == bool(says), lines
    assert says in "".join(lines)


def test_a_right_launcher_is_never_named():
    argv, variables = here().job(2, [str(here().python), "-m", "mpi4py", "-c", DOORS])
    done = subprocess.run(argv, env=variables | SLURM, capture_output=True, text=True, timeout=120, cwd=ROOT)
    argv, variables = here().job(1, [str(here().python), "-c", DOORS])
    alone = subprocess.run(argv, env=variables | SLURM, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (done.returncode, alone.returncode) == (0, 0), done.stderr + alone.stderr
    assert "lb_mpi:" not in done.stderr + alone.stderr
