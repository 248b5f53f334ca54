"""The commands that run a user's program: `pool`, a script that rank 0 runs alone, while all other ranks work on the
tasks of its lb_mpi.Pool() or Executor(); `profile`, any mpi4py program, split into computing and waiting."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lb_mpi.checks import comma_list, number, show
from lb_mpi.cli.dispatch import FAILED, STDOUT, deliver, mistake, output, written
from lb_mpi.cli.profile.profile import Profile, table
from lb_mpi.cli.run.arguments import Parser
from lb_mpi.errors import Error


def run_pool(arguments: Sequence[str], prog: str) -> int:
    """Run the script; its exceptions, including SystemExit, end rank 0 as they would end python."""
    parser = Parser(prog=prog,
        usage=f"mpiexec -n 4 {prog} [--as NAME,NAME,...] [-m] SCRIPT [ARGUMENTS ...]",
        description="Run a script on rank 0 alone; all other ranks work on the tasks of its lb_mpi.Pool() or "
        "lb_mpi.Executor().",
        epilog=f"example: mpiexec -n 4 {prog} --as joblib script.py. Put the main part of the script under "
        "`if __name__ == '__main__':`. A rank that receives a function of the script imports the script, "
        "and must not run its main part.")
    parser.add_argument("--as", dest="names", metavar="NAME,NAME,...", default="", help="replace the pools and executors "
        "that the script imports from concurrent.futures, joblib, mpi4py.futures, multiprocessing or schwimmbad, so that it "
        "needs no change")
    options = _parse(parser, "SCRIPT", arguments)
    try:
        from lb_mpi.adapters import names as pool_names
        from lb_mpi.mpi.pool import script as pool_script
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library found by mpi4py
        return mistake(f"no MPI: {error}", prog)
    try:
        sys.argv = [options.program, *options.arguments]  # before the record begins, which has it
        replaced = [name for name in options.names.split(",") if name]
        script = pool_script.open_script(
            options.program, module=options.module, prepare=lambda: pool_names.replace(replaced)
        )
    except (ValueError, OSError, SyntaxError, ImportError, Error) as error:
        return mistake(_explained(error, "SCRIPT", options, prog), prog)
    try:
        pool_script.run_script(script, sys.argv)
    except SystemExit as leaving:
        if leaving.code:
            raise
    if script.ran_alone:
        how = "expected lb_mpi.Pool() or lb_mpi.Executor(), or --as NAME for the pool that it uses"
        print(f"{prog}: no other rank has run a task of {options.program}: {how}", file=sys.stderr)
    return 0


def run_profile(arguments: Sequence[str], prog: str) -> int:
    """Run the program; its exceptions, including SystemExit, end this rank as they would end python."""
    parser = Parser(prog=prog,
        usage=f"mpiexec -n 4 {prog} [--speeds F,F,...] [--fail-below N] [-o FILE] [-m] PROGRAM [ARGUMENTS ...]",
        description="Run a program that uses mpi4py, and report how long each rank computed, and how long it waited, "
        "and for which rank. The table goes to standard error; the output of the program is unchanged. Ctrl-C ends the "
        "program with the profile of what was seen.",
        epilog=f"example: mpiexec -n 4 {prog} program.py. One-sided communication, MPI file access, and calls of MPI from "
        "other languages are not measured. If the program uses one of the first two, the table has a note.")
    parser.add_argument("--speeds", metavar="F,F,...", help="relative speeds of the ranks; default: those of throttle; "
        "measured, if there are several hosts; else equal")
    parser.add_argument("--fail-below", dest="least", type=float, metavar="N", help="exit with code 1 if the parallel "
        "efficiency is below N percent")
    parser.add_argument("-o", dest="output", metavar="FILE", help="also write the profile to FILE, as one JSON object; -: "
        "standard output")
    options = _parse(parser, "PROGRAM", arguments)
    try:
        from lb_mpi.cli.profile.script import ProfiledProgram
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library found by mpi4py
        return mistake(f"no MPI: {error}", prog)
    try:
        speeds = None if options.speeds is None else comma_list("--speeds", options.speeds)
        least = None if options.least is None else 0.01 * number("--fail-below", options.least, least=0.0, most=100.0)
        argv = [options.program, *options.arguments]
        program = ProfiledProgram(argv, module=options.module, speeds=speeds, check=lambda: output(options.output or STDOUT))
    except (ValueError, OSError, SyntaxError, Error) as error:
        return mistake(_explained(error, "PROGRAM", options, prog), prog)

    def show(profile: Profile | None) -> bool:
        """Print the profile, and write it; return whether the efficiency is too low."""
        if profile is None:  # another rank has it
            return False
        lines = table(profile)
        if below := least is not None and profile.parallel_efficiency < least:
            lines.append(f"parallel efficiency {profile.parallel_efficiency:.1%}: below {least:.1%}")
        if options.output is not None:
            deliver(options.output, json.dumps(profile.to_json()) + "\n")
            lines += written(options.output)
        with contextlib.suppress(OSError):
            print("\n".join(lines), file=sys.stderr, flush=True)
        return below

    profile, raised = program.run(show)
    try:
        below = show(profile)
    except OSError as error:  # a full disk
        return mistake(error, prog)
    if isinstance(raised, SystemExit) and raised.code:
        raise raised
    if raised is not None and not isinstance(raised, SystemExit):
        sys.excepthook(type(raised), raised, raised.__traceback__)
        return FAILED
    return FAILED if below else 0


def _parse(parser: argparse.ArgumentParser, program: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Add the program, called `program`, and its arguments; parse."""
    parser.add_argument("-m", dest="module", action="store_true",
        help=f"{program} is the name of a module, as with python -m")
    parser.add_argument("program", metavar=program, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS",
        help=f"the {program.lower()}'s sys.argv[1:]")
    return parser.parse_args(arguments)


def _explained(error: Exception, name: str, options: argparse.Namespace, prog: str) -> object:
    """Return the error; if the program can't be read, a text instead: perhaps it is a command, with the file after it."""
    program: str = options.program
    if not (isinstance(error, OSError) and error.filename and Path(error.filename) == Path(program)):
        return error
    file = "" if program.endswith(".py") else next((word for word in options.arguments if word.endswith(".py")), "")
    how = f", as in `{prog.split()[-1]} {file}`" if file else ""
    return f"{name} = {show(program)}:{'' if file else f' {error.strerror}:'} expected a Python file{how}"
