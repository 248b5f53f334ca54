"""The commands of this room, by name; each is started from its folder, too: `python lb_mpi/launching NAME ARGUMENTS`.

That works on any host that sees the folder, whether lb_mpi is installed there or not.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

FOR_PEOPLE = {"run": "start", "cluster": "cluster", "throttle": "slow"}  # the modules that have them
INTERNAL = {"host": "host", "rank": "rank", "switch": "delay", "keeper": "unprivileged"}


def main(name: str, arguments: Sequence[str], prog: str) -> int:
    """Run the command `name`, which calls itself `prog`; return its exit code."""
    module = importlib.import_module(f"lb_mpi.launching.{(FOR_PEOPLE | INTERNAL)[name]}")
    code: int = module.main(arguments, prog)
    return code


def argv(python: str, name: str, *arguments: str) -> list[str]:
    """Return the command line that starts the command `name` with the interpreter `python`.

    Variables like PYTHONPATH and the packages installed are for the program, not for what stands before it (-I, -S);
    only `run` may need them, to arrange hosts.
    """
    alone = [] if name == "run" else ["-I", "-S"]
    return [python, *alone, str(Path(__file__).resolve().parent), name, *arguments]
