"""python -m lb_mpi, or lb_mpi: see lb_mpi/cli/commands.py."""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str] | None = None, prog: str = "python -m lb_mpi") -> int:
    """Run one command; return the exit code."""
    from lb_mpi.cli import commands  # late: after `script`, Ctrl-C in an import leaves no traceback

    return commands.main(sys.argv[1:] if arguments is None else arguments, prog)


def script(prog: str = "lb_mpi") -> int:
    """Run the installed command `lb_mpi`, which, unlike `python -m lb_mpi`, imports nothing from the current folder."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main(prog=prog)


if __name__ == "__main__":
    sys.exit(script("python -m lb_mpi"))
