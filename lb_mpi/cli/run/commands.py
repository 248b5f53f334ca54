"""The commands that watch or slow down a program, by name: `python lb_mpi/cli/run NAME ARGUMENTS`.

This works on any host that sees the folder, whether or not lb_mpi is installed there.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

# The functions of the commands that no user calls.
INTERNAL = {"host": "run.host.main", "rank": "run.rank.main", "switch": "cluster.network.switch"}


def main(name: str, arguments: Sequence[str], prog: str) -> int:
    """Run the command `name`, called `prog` in its messages; return its exit code."""
    if name in INTERNAL:
        module, _, function = INTERNAL[name].rpartition(".")
        code: int = getattr(importlib.import_module(f"lb_mpi.cli.{module}"), function)(arguments)
    else:
        table = importlib.import_module("lb_mpi.cli.commands")
        code = table.execute(table.COMMANDS[name], arguments, prog)
    return code


def argv(python: str, name: str, *arguments: str) -> list[str]:
    """Return the command line that starts the command `name` with the interpreter `python`.

    PYTHONPATH and installed packages are meant for the program, so its wrappers ignore them (-I, -S).
    """
    return [python, "-I", "-S", str(Path(__file__).resolve().parent), name, *arguments]
