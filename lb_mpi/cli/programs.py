"""The commands that run a user's program: `pool`, a script that rank 0 runs alone, while all other ranks work on the
tasks of its lb_mpi.Pool() or Executor(); `profile`, any mpi4py program, split into computing and waiting."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lb_mpi.checks import show
from lb_mpi.cli.run.command import FAILED, MISTAKE, STDOUT, Parser, needs_mpi
from lb_mpi.cli.run.lines import printable
from lb_mpi.cli.run.options import deliver, output, written
from lb_mpi.cli.run.processes import raise_interrupts
from lb_mpi.errors import Error

if TYPE_CHECKING:
    from lb_mpi.cli.profile.profile import Profile


def add_pool(parser: Parser) -> None:
    """Add the arguments of `pool`."""
    parser.usage = "mpiexec -n 4 %(prog)s [options] SCRIPT [ARGUMENTS]"
    parser.epilog = (
        f"{parser.epilog}. Put the main part of the script under `if __name__ == '__main__':`. A rank that receives a "
        "function of the script imports the script, and must not run its main part."
    )
    parser.add_argument("--as", dest="names", metavar="NAME,NAME,...", default="", help="replace the pools and executors "
        "that the script imports from concurrent.futures, joblib, mpi4py.futures, multiprocessing or schwimmbad, so that it "
        "needs no change")
    _add_program(parser, "SCRIPT")


def pool(options: argparse.Namespace) -> Callable[[], int]:
    """Open the script; return its run, whose exceptions, including SystemExit, end rank 0 as they would end python."""
    with _opening(options, "SCRIPT", "pool"):
        names, scripts = needs_mpi("lb_mpi.adapters.names"), needs_mpi("lb_mpi.mpi.pool.script")
        sys.argv = [options.program, *options.arguments]  # before the record begins, which has it
        replaced = [name for name in options.names.split(",") if name]
        script = scripts.open_script(options.program, module=options.module, prepare=lambda: names.replace(replaced))

    def run() -> int:
        raise_interrupts()
        try:
            scripts.run_script(script, sys.argv)
        except SystemExit as leaving:
            if leaving.code:
                raise
        if script.ran_alone:
            how = "expected lb_mpi.Pool() or lb_mpi.Executor(), or --as NAME for the pool that it uses"
            print(f"pool: no other rank has run a task of {printable(options.program)}: {how}", file=sys.stderr)
        return 0

    return run


def add_profile(parser: Parser) -> None:
    """Add the arguments of `profile`."""
    parser.usage = "mpiexec -n 4 %(prog)s [options] PROGRAM [ARGUMENTS]"
    parser.description = (
        "Run a program that uses mpi4py, and report how long each rank computed, and how long it waited, and for which "
        "rank. The table goes to standard error; the output of the program is unchanged. Ctrl-C ends the program with the "
        "profile of what was seen."
    )
    parser.epilog = (
        f"{parser.epilog}. Calls of MPI from other languages are not measured. Ranks under throttle have its speeds; those "
        "of several hosts are measured."
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="also write the profile to FILE, as one JSON object; -: "
        "standard output")
    _add_program(parser, "PROGRAM")


def profile(options: argparse.Namespace) -> Callable[[], int]:
    """Open the program; return its run, whose exceptions, including SystemExit, end this rank as they would end python."""
    failures: list[int] = []

    def show(profile: Profile) -> None:
        """Print the profile, and write it."""
        lines = table(profile)
        try:
            if options.output is not None:
                deliver(options.output, json.dumps(profile.to_json()) + "\n")
                lines += written(options.output)
        except OSError as error:  # a full disk
            failures.append(MISTAKE)
            lines = [f"profile: error: {error.filename}: {error.strerror}"]
        except SystemExit as leaving:  # nor has standard output room for it
            failures.append(int(leaving.code or 0))
        with contextlib.suppress(OSError):
            print("\n".join(lines), file=sys.stderr, flush=True)

    with _opening(options, "PROGRAM", "profile"):
        table = needs_mpi("lb_mpi.cli.profile.profile").table
        program_of = needs_mpi("lb_mpi.cli.profile.script").ProfiledProgram
        argv = [options.program, *options.arguments]
        program = program_of(argv, show, module=options.module, check=lambda: output(options.output or STDOUT))

    def run() -> int:
        raised = program.run()
        if isinstance(raised, SystemExit) and raised.code:
            raise raised
        if raised is not None and not isinstance(raised, SystemExit):
            sys.excepthook(type(raised), raised, raised.__traceback__)
            return FAILED
        return max(failures, default=0)

    return run


def _add_program(parser: Parser, program: str) -> None:
    """Add the program, called `program`, and its arguments."""
    parser.add_argument("-m", dest="module", action="store_true",
        help=f"{program} is the name of a module, as with python -m")
    parser.add_argument("program", metavar=program, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS",
        help=f"the {program.lower()}'s sys.argv[1:]")


@contextlib.contextmanager
def _opening(options: argparse.Namespace, name: str, command: str) -> Iterator[None]:
    """A block in which whatever keeps the program from starting is a mistake in the command line: a ValueError.

    If the program can't be read, perhaps it is a command, with the file after it.
    """
    try:
        yield
    except OSError as error:
        program: str = options.program
        if not (error.filename and Path(error.filename) == Path(program)):
            raise
        file = "" if program.endswith(".py") else next((word for word in options.arguments if word.endswith(".py")), "")
        how, why = (f", as in `{command} {file}`", "") if file else ("", f" {error.strerror}:")
        raise ValueError(f"{name} = {show(program)}:{why} expected a Python file{how}") from None
    except (SyntaxError, ImportError, Error) as error:
        raise ValueError(str(error)) from None
