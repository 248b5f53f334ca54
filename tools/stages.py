"""Stages of ./launch/test: a stage is a command; its exit code and the reports of its pytests say whether it passed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from lb_mpi.cli.run import processes
from tools.counts import Counts, count
from tools.environment import ONE_THREAD, ROOT, Environment, interpreter

IDLE = 0.0
LIMIT_S = 300.0  # a test that takes so long has hung
KERNELS = "apps.kernels"
SET_UP = "set-up"
WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")  # whose import takes 0.4 s of CPU: for stages without drawn examples
ONE_MPI = re.compile(r"^pytestmark = .*one_mpi", re.MULTILINE)  # in files with nothing for the other MPI
SIZES = "LB_MPI_TEST_SIZES"  # see tests/mpi/conftest.py
# Ranks of MPICH that wait for each other sleep: many on a few cores took most of their time in turns to look.
PATIENT = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "50"}


class Outcome(NamedTuple):
    """How a stage ended; `problem`: what is wrong beyond failed tests, if anything."""

    counts: Counts
    problem: str
    output: str

    @property
    def good(self) -> bool:
        """True when nothing is wrong."""
        return not (self.problem or self.counts.failed)


class Stage(NamedTuple):
    """A line of the table: a command, and what its exit code and the files that it has left in its folder mean."""

    name: str
    n_cores: float  # that it keeps busy; IDLE: what others leave
    argv: Callable[[Path], list[str]]
    variables: dict[str, str]
    outcome_of: Callable[[Path, int], Outcome]
    after: tuple[str, ...] = ()  # the names of stages that must have ended before


def ended_after(seconds: float, *, ends: bool = True) -> list[str]:
    """Return the options of pytest by which a test that takes so long prints where it hangs, and ends the process."""
    return ["-o", f"faulthandler_timeout={seconds:g}", "-o", f"faulthandler_exit_on_timeout={str(ends).lower()}"]


def check(environment: Environment, *command: str) -> Stage:
    """Make a stage that has no tests, `python -m COMMAND`: a static check, or what is to be done before the tests."""

    def outcome_of(folder: Path, code: int) -> Outcome:
        problem = "hung" if code == processes.HUNG else f"exit code {code}" if code else ""
        return Outcome(Counts(failed=int(code != 0)), problem, _text(folder / "log"))

    argv = [str(environment.python), "-m", *command]
    n_cores = {KERNELS: 1.0, "ruff": 0.1}.get(command[0], IDLE)  # most stages wait for the kernels; ruff ends at once
    return Stage(command[0], n_cores, lambda _: argv, environment.variables(), outcome_of)


def set_up(environment: Environment) -> Stage:
    """Make a stage that sets up an environment, when another one has compiled what it imports."""
    command = check(environment, SET_UP)
    argv = [interpreter(), str(ROOT / "launch" / "test"), "--set-up-only"]
    variables = {**environment.variables(), "MPI": environment.mpi}
    return command._replace(n_cores=0.5, argv=lambda _: argv, variables=variables, after=(KERNELS,))  # many wait for it


def serial(
    environment: Environment,
    name: str,
    arguments: list[str],
    limit_s: float = LIMIT_S,
    *,
    n_cores: float = 1.0,
    may_be_empty: bool = False,
) -> Stage:
    """Make a stage of tests in one process."""

    def argv(folder: Path) -> list[str]:
        pytest = [str(environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *ended_after(limit_s)]
        return [*pytest, f"--junitxml={folder / 'report.xml'}", *arguments]

    def outcome_of(folder: Path, code: int) -> Outcome:
        return Outcome(*count([folder / "report.xml"], code, may_be_empty=may_be_empty), _text(folder / "log"))

    return Stage(name, n_cores, argv, {**environment.variables(), **ONE_THREAD}, outcome_of, (KERNELS,))


def parallel(
    environment: Environment,
    n: int,
    arguments: list[str],
    variables: Mapping[str, str],
    *,
    may_be_empty: bool,
) -> Stage:
    """Make the stage of the MPI tests on `n` ranks, with some `variables` more."""

    def argv(folder: Path) -> list[str]:
        rank = [str(environment.python), "-m", "mpi4py", "-m", "tools.rank", str(folder), "-q"]
        return environment.job(n, [*rank, *arguments])[0]

    def outcome_of(folder: Path, code: int) -> Outcome:
        counts, problem = count([folder / f"{rank}.xml" for rank in range(n)], code, may_be_empty=may_be_empty)
        logs = [folder / f"{rank}.log" for rank in range(n)] if problem or counts.failed else [folder / "0.log"]
        titled = [(f"rank {path.stem}", path) for path in logs if path.exists()] + [("mpiexec", folder / "log")]
        texts = [(title, _text(path)) for title, path in titled]
        return Outcome(counts, problem, "\n".join(f"--- {title} ---\n{text}" for title, text in texts if text))

    name = f"mpi tests, {n} rank{'s' if n > 1 else ''}"
    n_cores = 0.5 if n == 1 else 2  # one rank waits for the disk and for the clock, most of the time
    variables = {**environment.job(n, [])[1], **PATIENT, **variables}
    return Stage(name, n_cores, argv, variables, outcome_of, (KERNELS,))


def _text(log: Path) -> str:
    return log.read_text(errors="replace").strip("\0 \n").replace("\0", "")
