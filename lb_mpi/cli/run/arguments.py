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


class Parser(argparse.ArgumentParser):
    """A parser that prints on rank 0 only; its errors about an unknown option or word name the one that resembles it."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; without the arguments that it needs, print the help and exit with code 2."""
        if args is not None and not args and any(one.required or one.nargs == argparse.REMAINDER for one in self._actions):
            self.print_help(sys.stderr)
            self.exit(2)
        return super().parse_known_args(args, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        if speaks():
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
