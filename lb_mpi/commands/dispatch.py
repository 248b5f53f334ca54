"""One way to run every command: its arguments, its answer for machines or for people, its exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from lb_mpi.errors import Error

PROG = "python -m lb_mpi"
FAILED, MISTAKE, INTERRUPTED, NO_READER = 1, 2, 130, 141


class Command(Protocol):
    """A module of lb_mpi.commands."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this command."""

    def run(self, options: argparse.Namespace) -> Any:
        """Answer, ready for JSON; nothing where another rank speaks.  ValueError, OSError: a mistake of the user's."""

    def summary(self, answer: Any) -> list[str]:
        """The answer as lines for people."""


def dispatch(table: Mapping[str, Mapping[str, str]], arguments: Sequence[str]) -> int:
    """Run the command that the arguments begin with; return the exit code.  The table: groups, names, a line of help."""
    texts = {name: text for group in table.values() for name, text in group.items()}
    name = arguments[0] if arguments else ""
    asked, complaint = io.StringIO(), io.StringIO()  # argparse drops what it can't write
    try:
        with contextlib.redirect_stdout(asked), contextlib.redirect_stderr(complaint):
            if name not in texts:
                _choose(table, arguments)
            command, options = _parse(name, texts[name], arguments[1:])
        answer = command.run(options)
        if not answer:
            return 0
        text = json.dumps(answer) if options.json else "\n".join(command.summary(answer))
    except SystemExit as leaving:  # argparse has spoken
        if not speaks():
            return int(leaving.code or 0)
        sys.stderr.write(complaint.getvalue())
        return say(asked.getvalue(), code=int(leaving.code or 0))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Error as error:
        return _complain(error, FAILED)
    except (ValueError, OSError) as error:
        return _complain(error, MISTAKE)
    return say(text + "\n")


def _choose(table: Mapping[str, Mapping[str, str]], arguments: Sequence[str]) -> NoReturn:
    """Say which commands there are, and leave."""
    names = [name for group in table.values() for name in group]
    width = max(map(len, names))
    groups = [
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in group.items())])
        for title, group in table.items()
    ]
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage="%(prog)s COMMAND ... | --version",
        description="Load balancing on unequal machines.",
        epilog="commands, each with --help:\n\n" + "\n\n".join(groups),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if {"-h", "--help"} & set(arguments):
        parser.print_help()
        parser.exit()
    parser.error(f"COMMAND = {' '.join(arguments[:1])!r}: expected {', '.join(names)}")


def _parse(name: str, text: str, arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    module: Any = importlib.import_module(f"lb_mpi.commands.{name}")
    command: Command = module
    parser = argparse.ArgumentParser(prog=f"{PROG} {name}", description=f"{text[0].upper()}{text[1:]}.")
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return command, parser.parse_args(arguments)


def _complain(error: Exception, code: int) -> int:
    print(f"{PROG}: error: {error}", file=sys.stderr)
    return code


def say(text: str, code: int = 0) -> int:
    """Print the text; the exit code, another one when nobody reads it or there is no room for it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        code = NO_READER
    except OSError as error:
        code = _complain(OSError(error.errno, error.strerror, "standard output"), FAILED)
    else:
        return code
    with open(os.devnull, "w") as nothing:  # the interpreter flushes once more when it ends
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    return code


def speaks() -> bool:
    """True on rank 0, as far as the launcher has told who that is: MPI isn't started yet."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"
