"""A start that hangs: the law in all small courses of one, known-wrong variants, and stuck ranks on real mpiexec."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lb_mpi.cli.commands import COMMANDS
from lb_mpi.cli.run import commands, hangs, limit, start
from lb_mpi.cli.run.lines import RankState
from tests.process.lab import ROOT, script
from tests.process.started import needs_mpiexec
from tests.protocol.mutate import mutated
from tools.environment import here

HOSTS = ("a", "b", "c")
STEP_S = 10.0
LIMIT_S = 40.0
N_LOOKS = 12  # STEP_S apart
NEVER = 99
# At which look a rank is there, and says something.
LIVES = [(0, NEVER), (3, NEVER), (6, NEVER), (NEVER, NEVER), (0, 1), (0, 6), (6, 7)]


def check_lives(module: Any, lives: tuple[tuple[int, int], ...], hang_s: float) -> str:
    """Check at each look that the law allows and asks for all that is said; return who is named first."""
    one = module.FirstSigns(HOSTS, hang_s)
    limit_s = max(hang_s, 30.0)
    for look in range(N_LOOKS):
        now = look * STEP_S
        states = [
            RankState(str(rank), HOSTS[rank], spoke=look >= speaks)
            for rank, (came, speaks) in enumerate(lives)
            if look >= came
        ]
        missing = [str(rank) for rank, (came, _) in enumerate(lives) if look < came]
        last_s = max((came * STEP_S for came, _ in lives if came <= look), default=0.0)
        spoken = any(speaks <= look for _, speaks in lives)
        found = one.stuck(now, states)
        assert [each.rank for each in found] == (
            missing if hang_s and not spoken and now - last_s >= limit_s else []
        ), (lives, look)
        for each in found:
            assert each.host == HOSTS[int(each.rank)]
            assert each.seconds == now - last_s
        if found:
            return found[0].rank
    return ""


def check_all(module: Any) -> list[str]:
    """All lives of three ranks."""
    settings = itertools.product(itertools.product(LIVES, repeat=3), (LIMIT_S, 5.0, 0.0))
    return [check_lives(module, *setting) for setting in settings]


def test_all_lives_of_three_ranks_keep_the_law():
    said = check_all(hangs)
    assert len(said) == len(LIVES) ** 3 * 3
    assert set(said) == {"", "0", "1", "2"}


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


MUTANTS = [
    ("FirstSigns.stuck", "any(state.spoke for state in states)", "all(state.spoke for state in states)"),
    ("FirstSigns.stuck", "any(state.spoke for state in states)", "states and states[0].spoke"),
    ("FirstSigns.stuck", " or any(state.spoke for state in states):", ":"),
    ("FirstSigns.__init__", "max(hang_s, START_S) if hang_s else float(\"inf\")", "max(hang_s, START_S)"),
    ("FirstSigns.__init__", "max(hang_s, START_S) if hang_s", "hang_s if hang_s"),
    ("FirstSigns.__init__", "max(hang_s, START_S) if hang_s", "START_S if hang_s"),
    ("FirstSigns.stuck", "missing_s < self._limit_s", "False"),
    ("FirstSigns.stuck", "missing_s < self._limit_s", "missing_s <= self._limit_s"),
    ("FirstSigns.stuck", "now - self._begun_s", "now"),
    ("FirstSigns.stuck", "len(states), now\n", "len(states), 0.0\n"),
    ("FirstSigns.stuck", "self._n_begun, self._begun_s = len(states), now", "self._begun_s = now"),
    ("FirstSigns.stuck", "if rank not in begun]", "if rank in begun]"),
    ("FirstSigns.stuck", "Hang(*one, missing_s", "Hang(*one[::-1], missing_s"),
    ("FirstSigns.stuck", "Hang(*one, missing_s", "Hang(*one, now"),
]


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_known_wrong_variants_are_caught(number):
    with mutated(hangs, *MUTANTS[number]), pytest.raises((AssertionError, TypeError)):
        check_all(hangs)


# --- on real mpiexec -------------------------------------------------------------------------------------------------

# Rank 1 is stopped where rank.py would begin.
STOPPED = """
import os, signal, sys
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1" and "rank" in sys.argv:
    os.kill(os.getpid(), signal.SIGSTOP)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """launch/run of tests/programs/late.py, in this process; no process of it is left."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(hangs, "START_S", 4.0)
    mark, env = limit.marked({**here().variables(), "PYTHONPATH": str(ROOT)})
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def call(how: str, *options: str, python: str = sys.executable) -> tuple[int, str, str]:
        program = [python, str(ROOT / "tests" / "programs" / "late.py"), how]
        code = commands.main("run", ["-n", "3", *options, "--", *program], "run")
        return code, *capfd.readouterr()

    yield call
    assert limit.bearers(mark) - {os.getpid()} == set()


def test_a_folder_of_records_that_someone_still_writes_to_changes_no_exit_code(tmp_path, monkeypatch):
    class Job:
        def __init__(self, _options, _program, record):
            self.record = Path(record)

        def start(self, _before):
            def too_early(path, **_):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

            (self.record / "0").touch()
            monkeypatch.setattr(os, "rmdir", too_early)
            return 75

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "MpiJob", Job)
    monkeypatch.setattr(start, "followed", lambda _: contextlib.nullcontext())
    assert start.run(COMMANDS["run"].parser("run").parse_args(["--progress", "true"]), ["true"]) == 75
    assert [*tmp_path.glob("*/*")] == []


def named(err: str) -> list[str]:
    return re.findall(r"^run: (rank \d) on host .* hangs: (?:stopped|neither .*?) for \d+ s(.*)$", err, re.MULTILINE)


@needs_mpiexec
def test_a_rank_that_is_stopped_before_mpi_begins_is_named(run):
    code, _, err = run("stopped", "--hang-s", "1")
    assert code == limit.HUNG, err
    assert named(err) == [("rank 1", "")], err


@needs_mpiexec
def test_a_rank_that_is_stopped_before_its_program_is_named(run, tmp_path):
    python = script(tmp_path / "python-stopped", STOPPED)
    code, _, err = run("asleep", "--hang-s", "5", "--restarts", "2", python=python)
    assert code == limit.HUNG, err
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
    (SLURM | {"SLURM_PROCID": "1"}, [], ""),  # number 0 says so
    (SLURM | {"SLURM_PTY_PORT": "7"}, [], ""),  # a shell within a step
    (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, [], ""),
    (SLURM, ["self"], ""),
    ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, [], ""),  # in a batch script
    ({}, [], ""),
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
