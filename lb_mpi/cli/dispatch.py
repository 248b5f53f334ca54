"""One way to run every command: its arguments, its answer for machines or for people, its exit code; and the arguments
that several commands accept: a graph, numbers that are drawn or listed."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from lb_mpi.checks import comma_list, meant, number, show
from lb_mpi.cli.run.arguments import Parser, explained, speaks
from lb_mpi.cli.run.rank import number as number_of
from lb_mpi.errors import Error

if TYPE_CHECKING:
    import numpy as np

    from lb_mpi.graph import Floats

PROG = "python -m lb_mpi"
GRAPH = (
    "mesh:RxC, torus:RxC, hypercube:D, cube:N (a hypercube of any size), ring:N or complete:N; or the neighbours of vertex "
    "1, of vertex 2, ..., separated by slashes, such as 2/1,3/2; or a METIS (.graph) or Matrix Market file"
)
FAILED, MISTAKE, NO_READER = 1, 2, 141
PATIENCE_S = 1.0  # before the first line of progress


class Command(NamedTuple):
    """A command: its options, its answer, and the answer as lines for people."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Any]  # ready for JSON; None if another rank prints it; ValueError, OSError
    describe: Callable[[Any], list[str]]


class Entry(NamedTuple):
    """A command in the table of all commands."""

    text: str  # a line of help
    module: str = ""  # of lb_mpi.cli, with the command in its COMMANDS; "": it has its own way to run
    example: str = ""  # the arguments of a call
    ranks: bool = False  # all of mpiexec's run it; otherwise rank 0 alone


def dispatch(table: Mapping[str, Mapping[str, Entry]], arguments: Sequence[str]) -> int:
    """Run the command named by the first argument; return the exit code.  `table` : entries by group and name."""
    entries = {name: entry for group in table.values() for name, entry in group.items()}
    name = arguments[0] if arguments else ""
    asked, complaint = io.StringIO(), io.StringIO()  # argparse ignores failed writes
    warnings.formatwarning = lambda message, *_, **__: f"{PROG}: warning: {message}\n"  # without a line of our source
    try:
        with contextlib.redirect_stdout(asked), contextlib.redirect_stderr(complaint):
            if name not in entries:
                _choose(table, arguments)
            command, options = _parse(name, entries[name], arguments[1:])
        if not (speaks() or entries[name].ranks):
            print(f"{PROG}: {name} runs in one process: rank 0 does it, not rank {number_of(os.environ)}", file=sys.stderr)
            return 0
        answer = command.run(options)
        if not answer:
            return 0
        text = json.dumps(answer) if options.json else "\n".join(command.describe(answer))
    except SystemExit as leaving:  # argparse has printed
        sys.stderr.write(complaint.getvalue())
        return say(asked.getvalue(), code=int(leaving.code or 0))
    except Error as error:
        return _complain(error, FAILED)
    except (ValueError, OSError) as error:
        return _complain(explained(error, arguments[1:]), MISTAKE)
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return _complain(error, FAILED)
    return say(text + "\n")


def _choose(table: Mapping[str, Mapping[str, Entry]], arguments: Sequence[str]) -> NoReturn:
    """Print the list of commands, and exit."""
    names = [name for group in table.values() for name in group]
    width = max(map(len, names))
    groups = [
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {entry.text}" for name, entry in group.items())])
        for title, group in table.items()
    ]
    parser = Parser(prog=PROG, usage="%(prog)s COMMAND ... | --version",
        description="Dynamic load balancing for mpi4py programs.",
        epilog="commands, each with --help:\n\n" + "\n\n".join(groups),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    if not arguments or {"-h", "--help"} & set(arguments):
        parser.print_help()
        parser.exit()
    parser.error(f"COMMAND = {arguments[0]!r}: expected {', '.join(names)}{meant(arguments[0], names)}")


def _parse(name: str, entry: Entry, arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    command: Command = importlib.import_module(f"lb_mpi.cli.{entry.module}").COMMANDS[name]
    prog, description = f"{PROG} {name}", f"{entry.text[0].upper()}{entry.text[1:]}."
    parser = Parser(prog=prog, description=description, epilog=f"example: {prog} {entry.example}")
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return command, parser.parse_args(arguments)


def _complain(error: object, code: int, prog: str = PROG) -> int:
    print(f"{prog}: error: {error}", file=sys.stderr)
    return code


def say(text: str, code: int = 0) -> int:
    """Print the text; return the exit code, which differs if the reader has left or the disk is full."""
    try:
        print(text, end="", flush=True)  # a closed one gets nothing
    except OSError as error:
        with open(os.devnull, "w") as nothing:  # the interpreter flushes once more at its exit
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return NO_READER
        return _complain(OSError(error.errno, error.strerror, "standard output"), FAILED)
    return code


def mistake(error: object, prog: str) -> int:
    """Print on rank 0 the error in a call of `prog`; return the exit code."""
    return _complain(explained(error), MISTAKE, prog) if speaks() else MISTAKE


def draw(name: str, text: str, n: int, rng: np.random.Generator) -> Floats:
    """Return (n,) numbers drawn from "uniform:LOW:HIGH", or exactly n listed ones; ValueError, naming `name`."""
    kind, *bounds = text.split(":")
    if kind != "uniform":
        import numpy as np

        return np.array(comma_list(name, text))
    if len(bounds) != 2:
        raise ValueError(f"{name} = {show(text)}: expected uniform:LOW:HIGH, or numbers with commas between them")
    low, high = (number(name, comma_list(name, bound, 1)[0], least=0.0) for bound in bounds)
    if low > high:
        raise ValueError(f"{name} = {show(text)}: expected uniform:LOW:HIGH with LOW <= HIGH")
    return rng.uniform(low, high, n)


def add_route(group: argparse._ActionsContainer) -> None:
    """Add --route of a search."""
    from lb_mpi.searching.guard import MOST_ON_RING

    group.add_argument("--route", choices=("ring", "random"),
        help="which ranks a rank without work asks: all round the ring, as in the paper, or random ones (default: the "
        f"ring on up to {MOST_ON_RING} ranks of one host)")
