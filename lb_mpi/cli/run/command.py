"""One `Command` for each command of `python -m lb_mpi NAME` and each app, and `execute`, which runs any of them.

A command adds its arguments to a `Parser`, and returns an `Output`, an exit code, or the user's
program to be called.  A mistake in the command line is one line and exit code 2; so is a failure, with code 1.
Any other exception is a bug, and keeps its traceback.  Only the standard library is imported here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from lb_mpi.checks import meant
from lb_mpi.cli.run.processes import HUNG, silence
from lb_mpi.cli.run.rank import number
from lb_mpi.errors import Error, Stopped

FAILED, MISTAKE, NOT_FOUND, INTERRUPTED, NO_READER = 1, 2, 127, 130, 141
EXIT_CODES = {
    0: "success",
    FAILED: "a failure",
    MISTAKE: "a mistake in the command line",
    os.EX_TEMPFAIL: "saved and stopped, to be continued",
    HUNG: "a rank hung",
    NOT_FOUND: "the program was not found",
    INTERRUPTED: "Ctrl-C",
    NO_READER: "nobody reads the output",
}
STDOUT = "-"
DEATH_S = 0.5  # MPI fails where another rank has just died: `run` shall learn of that first


class Output(NamedTuple):
    """The figures that a command has found, and the same for people."""

    figures: Any  # ready for JSON
    lines: Sequence[str]  # for people


class Mistake(ValueError):
    """A mistake with an exit code of its own, or one that only this rank may have seen, and prints."""

    def __init__(self, text: str, code: int = MISTAKE, *, anywhere: bool = False) -> None:
        super().__init__(text)
        self.code, self.anywhere = code, anywhere


class NoMPI(ValueError):
    """mpi4py, or an MPI library for it, is missing."""


class Formatter(argparse.HelpFormatter):
    """The layout of the help, with the defaults of options; a number is N if it is an integer, and X otherwise."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        known = default is False or default in (None, "", argparse.SUPPRESS) or "default" in text
        return text if known else f"{text} (default: %(default){'g' if isinstance(default, float) else 's'})"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return {int: "N", float: "X"}.get(action.type, action.dest.upper())  # type: ignore[call-overload, no-any-return]


class Parser(argparse.ArgumentParser):
    """A parser that prints on rank 0 only; its errors about an unknown option or word name the one that resembles it.

    `strict` : that of a subcommand, which refuses what it does not know, with its own usage
    """

    def __init__(self, *, strict: bool = False, **how: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **how})
        self._strict = strict

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; without the arguments that it needs, print the help and exit with code 2."""
        if args is not None and not args and any(one.required or one.nargs == argparse.REMAINDER for one in self._actions):
            self.print_help(sys.stderr)
            self.exit(MISTAKE)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._strict:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def n_passed_on(self, options: argparse.Namespace) -> int:
        """Return the number of arguments that are the program's."""
        return sum(len(getattr(options, one.dest)) for one in self._actions if one.nargs == argparse.REMAINDER)

    def _print_message(self, message: str, file: Any = None) -> None:
        if speaks() and message and file is sys.stdout:
            if code := say(message):
                self.exit(code)
        elif speaks():
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print the error in one line; exit."""
        self.exit(MISTAKE, f"{self.prog}: error: {message}{self._hint(message)} (see --help)\n")

    def _hint(self, message: str) -> str:
        """Return "; did you mean ...?" for an error about an unknown option or word, if one resembles it."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            return meant(found[1], re.findall(r"[^\s',]+", found[2]))
        if found := re.search(r"unrecognized arguments:.*?(--[^\s=]+)", message):
            return meant(found[1], re.findall(r"--[a-z-]+", self.format_help()))
        return ""


Result = Output | int | Callable[[], int] | None  # of a command: its answer, its exit code, or the user's program to call


class Command(NamedTuple):
    """A command."""

    name: str
    group: str  # in the list of commands
    text: str  # a line of help
    example: str  # a call, in which {} is the command
    arguments: Callable[[Parser], object]  # adds them
    run: Callable[[argparse.Namespace], Result]  # ValueError, OSError for a mistake; Error for a failure
    answers: bool = True  # it has an Output, also as JSON
    ranks: bool = False  # all of mpiexec's run it, and rank 0 prints; otherwise rank 0 alone
    n_own: Callable[[Sequence[str]], int] = len  # of the arguments; the rest, and unknown ones, are `options.passed_on`

    def parser(self, prog: str) -> Parser:
        """Return the parser of the command, which is called as `prog`."""
        abbreviated = self.answers  # other commands pass options on to a program
        parser = Parser(prog=prog, description=f"{self.text[0].upper()}{self.text[1:]}.", allow_abbrev=abbreviated,
            epilog=f"example: {self.example.format(prog)}")  # fmt: skip
        self.arguments(parser)
        if self.answers:
            parser.add_argument("--json", action="store_true", help="print JSON instead of text")
        return parser


def late(path: str) -> Callable[..., Any]:
    """Return the function `path` of lb_mpi.cli, whose module is imported when it is called."""
    module, _, name = path.rpartition(".")
    return lambda given: getattr(importlib.import_module(f"lb_mpi.cli.{module}"), name)(given)


def execute(command: Command, arguments: Sequence[str], prog: str) -> int:
    """Run a command, called as `prog`, with these arguments; return its exit code."""
    _open_closed_files()
    if not command.ranks and "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of many small matrices: on busy cores, more spin
    if command.answers:
        warnings.formatwarning = lambda message, *_, **__: f"{prog}: warning: {message}\n"  # without our source
    own = arguments[: command.n_own(arguments)]
    try:
        parser = command.parser(prog)
        try:
            options, unknown = parser.parse_known_args(own)
            if unknown and command.n_own is len:
                parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        except SystemExit as leaving:  # argparse has printed
            return int(leaving.code or 0)
        options.passed_on = [*unknown, *arguments[len(own) :]]
        own = own[: len(own) - parser.n_passed_on(options)]
        if not (speaks() or command.ranks):
            return _print_error(f"{prog} runs in one process: rank 0 does it, not rank {number(os.environ)}", 0)
        result = command.run(options)
    except Stopped as stopped:
        return _print_error(f"{prog}: {stopped}", os.EX_TEMPFAIL, speaks())
    except Error as error:
        return _print_error(f"{prog}: error: {error}", FAILED, speaks())
    except (ValueError, OSError) as error:
        code, anywhere = (error.code, error.anywhere) if isinstance(error, Mistake) else (MISTAKE, False)
        text = f"{prog}: error: {explained(error, own)}"
        if command.ranks and isinstance(error, OSError) and (mpi := _alone(error)) is not None:
            _print_error(text, code)
            mpi.COMM_WORLD.Abort(code)
        return _print_error(text, code, anywhere or speaks())
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return _print_error(f"{prog}: error: {error}", FAILED, speaks())
    except (KeyboardInterrupt, Exception) as error:
        if command.ranks:
            _abort(error)
        raise
    if result is None or isinstance(result, int):
        return result or 0
    if not isinstance(result, Output):
        return result()
    if not speaks():
        return 0
    text = json.dumps(result.figures) if options.json else "\n".join(result.lines)
    if STDOUT in vars(options).values():  # which a file has
        return _print_error(text, 0)
    return say(text + "\n")


def _open_closed_files() -> None:
    """Give /dev/null to the programs that are started in place of closed standard files, and to our errors."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)
    if sys.stderr is None:  # print would write to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until the end)


def _print_error(text: str, code: int, prints: bool = True) -> int:
    if prints:
        print(text, file=sys.stderr, flush=True)
    return code


def _running() -> Any:
    """Return mpi4py.MPI if MPI has begun and not ended; otherwise None."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return mpi if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None


def _alone(error: OSError) -> Any:
    """Return mpi4py.MPI if other ranks may not have this error, and would wait for this one; otherwise None."""
    failure, mpi = sys.modules.get("lb_mpi.mpi.common.failure"), _running()
    return None if mpi is None or mpi.COMM_WORLD.size == 1 or (failure and failure.is_shared(error)) else mpi


def _abort(error: BaseException) -> None:
    """End all ranks, if MPI has begun: the others would wait for this one."""
    if (mpi := _running()) is None:
        return
    if not isinstance(error, KeyboardInterrupt):
        traceback.print_exc()
        if isinstance(error, mpi.Exception):
            time.sleep(DEATH_S)
        sys.stderr.flush()
    mpi.COMM_WORLD.Abort(INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED)


def needs_mpi(module: str) -> Any:
    """Import a module that needs MPI; NoMPI if there is none."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library found by mpi4py
        raise NoMPI(f"no MPI: {str(error).splitlines()[0]}") from None


def speaks() -> bool:
    """Return True on rank 0, according to the launcher's variables: MPI isn't initialised yet."""
    return number(os.environ) in ("0", "?")


def say(text: str, code: int = 0) -> int:
    """Print the text; return the exit code, which differs if the reader has left or the disk is full."""
    try:
        print(text, end="", flush=True)  # a closed one gets nothing
    except OSError as error:
        silence(sys.stdout.fileno())  # the interpreter flushes once more at its exit
        if isinstance(error, BrokenPipeError):
            return NO_READER
        return _print_error(f"lb_mpi: error: standard output: {error.strerror}", FAILED)
    return code


def explained(error: object, arguments: Sequence[str] = ()) -> str:
    """Return the text of an error; if it is about an option among the arguments, or its file, it begins with the option."""
    text, of_file = str(error), isinstance(error, OSError) and error.filename is not None
    if isinstance(error, OSError) and of_file:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, FileNotFoundError) and error.errno:  # of getcwd
        text = "the current folder has been removed"
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        option, equals, value = argument.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if option.startswith("-") and name:
            if text.startswith(f"{value if equals else following}:"):
                return f"{option} {text}"
            if not of_file and re.match(rf"{re.escape(name)}\b", text):
                return f"{option}{text[len(name) :]}"
    return text
