"""One way to run every command: its arguments, its answer for machines or for people, its exit code; and the arguments
that several commands accept: a graph, numbers that are drawn or listed."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import json
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from lb_mpi.checks import comma_list, meant, number, show
from lb_mpi.cli.run.arguments import Parser, explained, say, speaks
from lb_mpi.cli.run.rank import number as number_of
from lb_mpi.errors import Error
from lb_mpi.files import write_whole

if TYPE_CHECKING:
    import numpy as np

    from lb_mpi.graph import Floats

PROG = "python -m lb_mpi"
GRAPH = (
    "mesh:RxC, torus:RxC, hypercube:D, cube:N (a hypercube of any size), ring:N or complete:N; or the neighbours of vertex "
    "1, of vertex 2, ..., separated by slashes, such as 2/1,3/2; or a METIS (.graph) or Matrix Market file"
)
FAILED, MISTAKE = 1, 2
EXIT_CODES = (
    "0; 1: a failure; 2: a mistake in the command line; 75: saved and stopped, to be continued; 124: a rank hung; 127: the "
    "program was not found; 130: Ctrl-C; 141: nobody reads the output; else that of the program"
)
STDOUT = "-"
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
    before: str = ""  # the start of the call's command line


def dispatch(table: Mapping[str, Mapping[str, Entry]], arguments: Sequence[str], prog: str = PROG) -> int:
    """Run the command named by the first argument; return the exit code.  `table` : entries by group and name."""
    entries = {name: entry for group in table.values() for name, entry in group.items()}
    name = arguments[0] if arguments else ""
    asked, complaint = io.StringIO(), io.StringIO()  # argparse ignores failed writes
    warnings.formatwarning = lambda message, *_, **__: f"{prog} {name}: warning: {message}\n"  # without our source
    try:
        with contextlib.redirect_stdout(asked), contextlib.redirect_stderr(complaint):
            if name not in entries:
                _choose(table, arguments, prog)
            command, options = _parse(f"{prog} {name}", name, entries[name], arguments[1:])
        if not (speaks() or entries[name].ranks):
            print(f"{prog}: {name} runs in one process: rank 0 does it, not rank {number_of(os.environ)}", file=sys.stderr)
            return 0
        answer = command.run(options)
        if not answer:
            return 0
        text = json.dumps(answer) if options.json else "\n".join(command.describe(answer))
    except SystemExit as leaving:  # argparse has printed
        if isinstance(leaving.code, str):  # of other code
            raise
        sys.stderr.write(complaint.getvalue())
        return say(asked.getvalue(), code=leaving.code or 0)
    except Error as error:
        return _complain(error, FAILED, f"{prog} {name}")
    except (ValueError, OSError) as error:
        return _complain(explained(error, arguments[1:]), MISTAKE, f"{prog} {name}")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return _complain(error, FAILED, f"{prog} {name}")
    if STDOUT in vars(options).values():  # which a file has
        print(text, file=sys.stderr)
        return 0
    return say(text + "\n")


def output(path: str) -> str:
    """Return the path of a file to be written, the type of an option; OSError if it can't be; -: standard output."""
    folder = os.path.dirname(path) or "."
    if path != STDOUT and (os.path.isdir(path) or not os.path.isdir(folder)):
        number = errno.EISDIR if os.path.isdir(path) else errno.ENOENT
        raise OSError(number, os.strerror(number), path)
    if path != STDOUT and not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
    return path


def deliver(path: str, text: str) -> None:
    """Write a file of `output`; OSError."""
    if path == STDOUT:
        say(text)
    else:
        write_whole(path, text)


def written(path: str | None) -> list[str]:
    """Return a line about a file of `output` that was written; none without."""
    return [f"{path} ({os.path.getsize(path) / 1e3:,.1f} kB)"] if path is not None and path != STDOUT else []


def _choose(table: Mapping[str, Mapping[str, Entry]], arguments: Sequence[str], prog: str) -> NoReturn:
    """Print the list of commands, and exit."""
    names = [name for group in table.values() for name in group]
    width = max(map(len, names))
    columns = max(shutil.get_terminal_size().columns - 2, 40)

    def line(name: str, text: str) -> str:
        return textwrap.fill(f"  {name:<{width}}  {text}", columns, subsequent_indent=" " * (width + 4))

    groups = [
        "\n".join([f"{title}:", *(line(name, entry.text) for name, entry in group.items())])
        for title, group in table.items()
    ]
    parser = Parser(prog=prog, usage="%(prog)s COMMAND ... | help COMMAND | --version",
        description="Dynamic load balancing for mpi4py programs.",
        epilog="commands, each with --help:\n\n" + "\n\n".join([*groups, line("exit codes", EXIT_CODES)]),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        parser.exit()
    parser.error(f"COMMAND = {arguments[0]!r}: expected {', '.join(names)}{meant(arguments[0], names)}")


def _parse(prog: str, name: str, entry: Entry, arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    command: Command = importlib.import_module(f"lb_mpi.cli.{entry.module}").COMMANDS[name]
    description = f"{entry.text[0].upper()}{entry.text[1:]}."
    parser = Parser(prog=prog, description=description, epilog=f"example: {entry.before}{prog} {entry.example}")
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return command, parser.parse_args(arguments)


def _complain(error: object, code: int, prog: str = PROG) -> int:
    if speaks():
        print(f"{prog}: error: {error}", file=sys.stderr)
    return code


def mistake(error: object, prog: str) -> int:
    """Print on rank 0 the error in a call of `prog`; return the exit code."""
    return _complain(explained(error), MISTAKE, prog)


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
