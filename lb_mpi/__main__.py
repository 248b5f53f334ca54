"""python -m lb_mpi, or lb_mpi: see lb_mpi/cli/commands.py."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from lb_mpi.cli import commands
from lb_mpi.cli.commands import COMMANDS

__all__ = ["COMMANDS", "main", "script"]


def main(arguments: list[str] | None = None, prog: str = "python -m lb_mpi") -> int:
    """Run one command; return the exit code."""
    return commands.main(sys.argv[1:] if arguments is None else arguments, prog)


def script() -> int:
    """Run the installed command `lb_mpi`, which, unlike `python -m lb_mpi`, imports nothing from the current folder."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main(prog="lb_mpi")


if __name__ == "__main__":
    sys.exit(main())
