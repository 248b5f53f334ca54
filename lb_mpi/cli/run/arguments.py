"""A command line: without arguments it prints its help, and it suggests what a misspelt option or word may have meant."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lb_mpi.checks import meant
from lb_mpi.cli.run.rank import number


def speaks() -> bool:
    """Return True on rank 0, according to the launcher's variables: MPI isn't initialised yet."""
    return number(os.environ) in ("0", "?")


NO_READER = 141


def say(text: str, code: int = 0) -> int:
    """Print the text; return the exit code, which differs if the reader has left or the disk is full."""
    try:
        print(text, end="", flush=True)  # a closed one gets nothing
    except OSError as error:
        with open(os.devnull, "w") as nothing:  # the interpreter flushes once more at its exit
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return NO_READER
        print(f"lb_mpi: error: standard output: {error.strerror}", file=sys.stderr)
        return 1
    return code


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
            self.exit(2)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._strict:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        if speaks() and message and file is sys.stdout:
            if code := say(message):
                self.exit(code)
        elif speaks():
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error; exit."""
        super().error(message + self.hint(message))

    def hint(self, message: str) -> str:
        """Return "; did you mean ...?" for an error about an unknown option or word, if one resembles it."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            return meant(found[1], re.findall(r"[^\s',]+", found[2]))
        if found := re.search(r"unrecognized arguments:.*?(--[^\s=]+)", message):
            return meant(found[1], re.findall(r"--[a-z-]+", self.format_help()))
        return ""


def explained(error: object, arguments: Sequence[str] = ()) -> str:
    """Return the text of an error; if it is about an option among the arguments, or its file, it begins with the option."""
    text, of_file = str(error), isinstance(error, OSError) and error.filename is not None
    if isinstance(error, OSError) and of_file:
        text = f"{error.filename}: {error.strerror}"
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        option, equals, value = argument.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if option.startswith("-") and name:
            if text.startswith(f"{value if equals else following}:"):
                return f"{option} {text}"
            if not of_file and re.match(rf"{re.escape(name)}\b", text):
                return f"{option}{text[len(name) :]}"
    return text
