"""The stages of ./launch/test: ruff, mypy, serial tests, then the MPI tests on 1, 2, 3, 4 and 8 ranks.

Each runs in the project's environment under a time limit of its own, and is judged by its exit code and by the reports
(JUnit XML) that every pytest writes, never by what it prints.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from lb_mpi.launching import limit
from tools.environment import ROOT, Environment, SetupError, prepare, wanted

RANKS = (1, 2, 3, 4, 8)
CHECK_LIMIT_S = 300.0
SERIAL_LIMIT_S = 1200.0
MPI_LIMIT_S = 300.0
NO_TEST = 5  # pytest's exit code when nothing was selected


class Counts(NamedTuple):
    """Tests by how they ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        """Write the closing line."""
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


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
    """A line of the table."""

    name: str
    run: Callable[[Path], Outcome]  # is given an empty folder


def count(reports: Sequence[Path], exit_code: int, *, may_be_empty: bool = False) -> tuple[Counts, str]:
    """Count the tests of one pytest run from its ranks' JUnit reports, given in rank order; and say what else is wrong.

    A test that failed on any rank has failed; how the others ended is told by the lowest rank that left a report.
    A run that went wrong counts as one failure at least.
    """
    failed: set[tuple[str, str]] = set()
    ended: dict[tuple[str, str], bool] = {}  # True: passed, False: skipped
    missing = []
    for rank, report in enumerate(reports):
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except (FileNotFoundError, ElementTree.ParseError):
            missing.append(str(rank))
            continue
        first = len(missing) == rank
        for case in cases:
            name = case.get("classname", ""), case.get("name", "")
            if case.find("failure") is not None or case.find("error") is not None:
                failed.add(name)
            elif first:
                ended[name] = case.find("skipped") is None
    rest = [passed for name, passed in ended.items() if name not in failed]
    problem = ""
    if exit_code == limit.HUNG:
        problem = "hung"
    elif missing:
        problem = f"exit code {exit_code}, no report" + (f" of rank {', '.join(missing)}" if len(reports) > 1 else "")
    elif not failed and True not in rest and not may_be_empty:
        problem = "no test ran"
    elif exit_code and not failed and not (may_be_empty and exit_code == NO_TEST):
        problem = f"exit code {exit_code}"
    return Counts(sum(rest), len(failed) or int(problem != ""), len(rest) - sum(rest)), problem


def check(environment: Environment, *command: str) -> Stage:
    """Make a stage of a static check, `python -m COMMAND`."""

    def run(folder: Path) -> Outcome:
        log = folder / "log"
        with log.open("wb") as output:
            argv = [str(environment.python), "-m", *command]
            code = limit.run(
                argv, CHECK_LIMIT_S, env=environment.variables(), cwd=ROOT, stdout=output, stderr=output
            )
        problem = "hung" if code == limit.HUNG else f"exit code {code}" if code else ""
        return Outcome(Counts(failed=int(code != 0)), problem, log.read_text(errors="replace"))

    return Stage(command[0], run)


def serial(environment: Environment, arguments: list[str], limit_s: float, *, may_be_empty: bool) -> Stage:
    """Make the stage of all tests that need no mpiexec."""

    def run(folder: Path) -> Outcome:
        log, report = folder / "log", folder / "report.xml"
        dump = f"faulthandler_timeout={limit_s / 2:g}"  # shows where a test hangs
        argv = [str(environment.python), "-m", "pytest", "-q", f"--junitxml={report}", "-o", dump, *arguments]
        with log.open("wb") as output:
            code = limit.run(argv, limit_s, env=environment.variables(), cwd=ROOT, stdout=output, stderr=output)
        return Outcome(*count([report], code, may_be_empty=may_be_empty), log.read_text(errors="replace"))

    return Stage("serial tests", run)


def parallel(environment: Environment, n: int, arguments: list[str], limit_s: float, *, may_be_empty: bool) -> Stage:
    """Make the stage of the MPI tests on `n` ranks."""

    def run(folder: Path) -> Outcome:
        log = folder / "mpiexec.log"
        rank = [str(environment.python), "-m", "mpi4py", "-m", "tools.rank", str(folder), str(limit_s), "-q"]
        with log.open("wb") as output:
            code = environment.mpiexec(n, [*rank, *arguments], limit_s, stdout=output, stderr=output)
        reports = [folder / f"{rank}.xml" for rank in range(n)]
        counts, problem = count(reports, code, may_be_empty=may_be_empty)
        logs = [folder / f"{rank}.log" for rank in range(n)] if problem or counts.failed else [folder / "0.log"]
        titled = [(f"rank {path.stem}", path) for path in logs if path.exists()] + [("mpiexec", log)]
        texts = [(title, path.read_text(errors="replace").strip("\0 \n").replace("\0", "")) for title, path in titled]
        return Outcome(counts, problem, "\n".join(f"--- {title} ---\n{text}" for title, text in texts if text))

    return Stage(f"mpi tests, {n} rank{'s' if n > 1 else ''}", run)


def run_all(stages: Iterable[Stage], *, verbose: bool) -> bool:
    """Run the stages, with a line for each and the totals at the end; return whether all is well.

    After a hang the MPI stages that are left would hang as well, each until its limit: they are not run.
    """
    good, hung = True, False
    totals = Counts()
    for stage in stages:
        print(f"{stage.name:<20}", end="", flush=True)
        if hung and stage.name.startswith("mpi"):
            print("         not run after a hang", flush=True)
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder:
            outcome = stage.run(Path(folder))
        counts = outcome.counts
        told = [f"{time.monotonic() - started:7.1f} s ", "passed" if outcome.good else "FAILED", outcome.problem]
        if sum(counts) > bool(outcome.problem):
            told.append(f" {counts.passed} of {sum(counts)} tests" + f", {counts.skipped} skipped" * bool(counts.skipped))
        print(*filter(None, told), flush=True)
        if outcome.output and (verbose or not outcome.good):
            print(outcome.output, flush=True)
        good, hung = good and outcome.good, hung or outcome.problem == "hung"
        totals = Counts(*(total + one for total, one in zip(totals, counts, strict=True)))
    if not good or totals.passed or totals.failed:
        print(totals, flush=True)
        return good
    print("no test ran\n0 passed, 1 failed", flush=True)
    return False


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line: our options, and the rest for pytest."""
    parser = argparse.ArgumentParser(
        prog="launch/test",
        usage="[MPI=openmpi] %(prog)s [options] [pytest arguments]",
        description="Set up an environment of its own, then check the code and run all tests; the last line tells the "
        "totals. The variable MPI chooses mpich (default) or openmpi. Other arguments go to pytest (-k EXPR, files).",
        allow_abbrev=False,
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--serial-only", action="store_true", help="leave the MPI tests out")
    only.add_argument("--mpi-only", action="store_true", help="leave all but the MPI tests out")
    parser.add_argument("--ranks", type=_ranks, default=RANKS, metavar="N,N,...", help="of the MPI tests: 1,2,3,4,8")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help=f"for each stage ({SERIAL_LIMIT_S:g} serial, {MPI_LIMIT_S:g} MPI)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what passing stages print, too")
    options, rest = parser.parse_known_args(arguments)
    if options.limit is not None and not 0 < options.limit < float("inf"):
        parser.error(f"--limit {options.limit}: expected seconds above 0")
    return options, rest


def _ranks(text: str) -> tuple[int, ...]:
    ranks = tuple(int(part) for part in text.split(","))
    if min(ranks) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected numbers of ranks like 1,2,4")
    return ranks


def choose(environment: Environment, options: argparse.Namespace, rest: list[str]) -> list[Stage]:
    """Choose the stages; files named on the command line go to the stage that they belong to."""
    places = [text for text in rest if not text.startswith("-") and (ROOT / text.partition("::")[0]).exists()]
    others = [text for text in rest if text not in places]
    mpi_places = [text for text in places if _is_mpi(text)] if places else ["tests/mpi"]
    serial_places = [text for text in places if not _is_mpi(text)] if places else ["tests"]
    stages = []
    if not options.mpi_only:
        if not rest:
            stages += [check(environment, "ruff", "check", "."), check(environment, "mypy")]
        if serial_places:
            arguments = [*serial_places, "--ignore=tests/mpi", *others]
            stages.append(serial(environment, arguments, options.limit or SERIAL_LIMIT_S, may_be_empty=bool(rest)))
    if not options.serial_only and mpi_places:
        limit_s = options.limit or MPI_LIMIT_S
        stages += [
            parallel(environment, n, [*mpi_places, *others], limit_s, may_be_empty=bool(rest)) for n in options.ranks
        ]
    return stages


def _is_mpi(place: str) -> bool:
    return (ROOT / place.partition("::")[0]).resolve().is_relative_to(ROOT / "tests" / "mpi")


def main() -> int:
    """./launch/test."""
    options, rest = parse()
    with limit.interruptible():
        try:
            environment = wanted()
            prepare(environment)
        except SetupError as error:
            print(error, file=sys.stderr)
            return error.code
        return 0 if run_all(choose(environment, options, rest), verbose=options.verbose) else 1
