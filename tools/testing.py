"""./launch/test: ruff, mypy, serial tests, then the MPI tests on several numbers of ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lb_mpi.cli.run import processes
from tools.environment import FOLDERS, ROOT, Environment, SetupError, prepare, wanted
from tools.schedule import run_all
from tools.stages import (
    IDLE,
    KERNELS,
    LIMIT_S,
    ONE_MPI,
    SET_UP,
    SIZES,
    WITHOUT_HYPOTHESIS,
    Stage,
    check,
    parallel,
    serial,
    set_up,
)

RANKS = (1, 2, 3, 6)
USUAL = (1, 3)  # ranks of those tests that are not marked `every_size`
OTHER_RANKS = (3,)  # with --other-mpi
COMPUTING = ("unit", "protocol")  # the rooms of tests/ whose tests only compute
QUEUED = 4  # times as long, for tests that get the cores that others leave idle
N_SHARES = 5  # of their files; each share is a stage, of which the last ones run side by side until the end
N_EARLY = 2  # of the shares: they have no test that calls a kernel, and fill the cores while kernels are compiled
CALLING_KERNELS = ("maze_tiles", "rebalancing", "rivals")  # the files of tests/protocol with such tests
WAITING = "process"  # the room whose tests start programs, and wait for them: each file is a stage
WAITING_CORES = 0.35  # that such a file keeps busy
WITHOUT_KERNELS = (  # files of that room whose programs call no kernel: they start while kernels are compiled
    *("cluster", "hung_ranks", "launch", "processes", "restarts", "run", "starting", "throttle"),
)
LONGEST = ("cluster", "hung_ranks", "documents", "run")  # files of that room that start first


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
    only.add_argument("--mpi-only", action="store_true", help="run only the MPI tests")
    only.add_argument(
        "--other-mpi", action="store_true", help="run only what depends on MPI; the rest was run with the other MPI"
    )
    only.add_argument(
        "--both", action="store_true", help="all with MPICH, and what touches MPI with Open MPI, too, side by side"
    )
    only.add_argument("--set-up-only", action="store_true", help="set up the environment, and run nothing")
    parser.add_argument(
        "--ranks", type=_ranks, metavar="N,N,...",
            help="numbers of ranks of all MPI tests (default: 1 and 3; 1,2,3,6 where it matters)"
    )
    options, rest = parser.parse_known_args(arguments)
    if options.both and rest:
        parser.error(f"--both {' '.join(rest)}: expected no choice of tests")
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
    serial_places = [text for text in places if not _is_mpi(text)]
    checks, of_mpi, of_one = list[Stage](), list[Stage](), list[Stage]()
    if not options.mpi_only and not rest:
        checks = [check(environment, KERNELS)]
        if not options.other_mpi:
            checks += [check(environment, "ruff", "check", "."), check(environment, "mypy")]
        of_one = without_mpiexec(environment, options)
    elif not options.mpi_only and (serial_places or not places):
        arguments = [*(serial_places or ["tests", "--ignore=tests/mpi"]), *others]
        of_one = [serial(environment, "serial tests", arguments, may_be_empty=True)]
    if mpi_places:
        sizes: tuple[int, ...] = options.ranks or (OTHER_RANKS if options.other_mpi else RANKS)
        usual: tuple[int, ...] = OTHER_RANKS if options.other_mpi else USUAL
        variables = {} if rest or options.ranks else {SIZES: ",".join(map(str, usual))}
        arguments = [*mpi_places, *_not_again(options), *others]
        for n in sorted(sizes, reverse=True):  # the longest first, and the others fill the gaps
            of_mpi.append(parallel(environment, n, arguments, variables, may_be_empty=bool(rest)))
    return checks + of_mpi + of_one  # beside the MPI tests there is room for tests that wait


def without_mpiexec(environment: Environment, options: argparse.Namespace) -> list[Stage]:
    """Return stages of all other tests.  With --other-mpi: of those that start MPI, and aren't marked `one_mpi`."""
    stages = []
    for file in sorted(files_of(WAITING), key=lambda file: _name(file) not in LONGEST):
        if options.other_mpi and ONE_MPI.search(file.read_text()):
            continue
        place = f"{WAITING}/{file.name}"
        arguments = [f"tests/{place}", *WITHOUT_HYPOTHESIS, *_not_again(options)]
        # All tests of a file may be skipped: the machine may lack sshd or another Python, or the user may not be root.
        stage = serial(environment, place, arguments, n_cores=WAITING_CORES, may_be_empty=True)
        stages.append(stage._replace(after=()) if _name(file) in WITHOUT_KERNELS else stage)
    if not options.other_mpi:
        early = [file for file in files_of("protocol") if _name(file) not in CALLING_KERNELS]
        late = [file for file in files_of(*COMPUTING) if file not in early]
        shares: list[tuple[list[Path], tuple[str, ...]]] = [(early[k::N_EARLY], ()) for k in range(N_EARLY)]
        shares += [(late[k :: N_SHARES - N_EARLY], (KERNELS,)) for k in range(N_SHARES - N_EARLY)]
        for number, (files, after) in enumerate(shares, 1):
            arguments = [str(file.relative_to(ROOT)) for file in files]
            stage = serial(environment, f"serial tests, {number} of {N_SHARES}", arguments, QUEUED * LIMIT_S, n_cores=IDLE)
            stages.append(stage._replace(after=after))
    return stages


def _not_again(options: argparse.Namespace) -> list[str]:
    """Return the argument of pytest that leaves out, on the other MPI, what is the same there."""
    return ["-m", "not one_mpi"] if options.other_mpi else []


def _name(file: Path) -> str:
    return file.stem.removeprefix("test_")


def choose_both(options: argparse.Namespace) -> list[Stage]:
    """Choose all stages with MPICH, and those that touch MPI with Open MPI, which is set up beside the first of them.

    The stages on MPICH have compiled the kernels.  A stage never runs beside itself: it may use names of this machine.
    """
    stages = choose(Environment("mpich", ROOT / FOLDERS["mpich"]), options, [])
    other = Environment("openmpi", ROOT / FOLDERS["openmpi"])
    again = choose(other, argparse.Namespace(**{**vars(options), "other_mpi": True}), [])
    names = {stage.name for stage in stages}
    more = [
        stage._replace(name=f"{stage.name}, {other.mpi}", after=(*stage.after, SET_UP, *{stage.name} & names))
        for stage in again
        if stage.name != KERNELS
    ]
    return [stages[0], set_up(other), *sorted([*stages[1:], *more], key=_kind)]


def _kind(stage: Stage) -> int:
    """Order stages: checks, MPI tests (one stage at a time), programs that wait beside them, and what only computes."""
    kinds: tuple[tuple[str, ...], ...] = (("ruff", "mypy"), ("mpi tests",), (WAITING,), ("serial tests",))
    return next(number for number, names in enumerate(kinds) if stage.name.startswith(names))


def files_of(*rooms: str) -> list[Path]:
    """Return the files with tests in some folders of tests/."""
    return sorted(file for room in rooms for file in (ROOT / "tests" / room).glob("test_*.py"))


def _is_mpi(place: str) -> bool:
    return (ROOT / place.partition("::")[0]).resolve().is_relative_to(ROOT / "tests" / "mpi")


def main() -> int:
    """./launch/test."""
    options, rest = parse()
    with processes.interruptible():
        try:
            environment = wanted({"MPI": "mpich"} if options.both else os.environ)
            prepare(environment)
        except SetupError as error:
            print(error, file=sys.stderr)
            return error.code
        if options.set_up_only:
            return 0
        stages = choose_both(options) if options.both else choose(environment, options, rest)
        good = run_all(stages)
    return 0 if good else 1
