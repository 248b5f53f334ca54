"""The command `pool`: a script that rank 0 runs alone, while all other ranks work on the tasks of its lb_mpi.Pool()."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lb_mpi.commands.dispatch import MISTAKE, speaks
from lb_mpi.errors import Error


def main(arguments: Sequence[str], prog: str) -> int:
    """Run the script; what it raises, SystemExit too, ends rank 0 as it would end python."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"mpiexec -n 4 {prog} [-m] SCRIPT [ARGUMENTS ...]",
        description="Run a script on rank 0 alone; all other ranks work on the tasks of its lb_mpi.Pool().",
        epilog="What the script does by itself belongs behind `if __name__ == '__main__':`, since ranks that are sent a "
        "function of the script run the script, too, but not that.",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as with python -m")
    parser.add_argument("script", metavar="SCRIPT", help="a file of Python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="are the script's sys.argv[1:]")
    options = parser.parse_args(arguments)
    try:
        from lb_mpi.mpi.pool import script as pool_script
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        return complain(f"no MPI: {error}", prog)
    try:
        script = pool_script.open_script(options.script, module=options.module)
    except (ValueError, OSError, SyntaxError, Error) as error:
        return complain(str(error), prog)
    pool_script.run_script(script, [options.script, *options.arguments])
    return 0


def complain(text: str, prog: str) -> int:
    """Say on rank 0 what is wrong; the exit code."""
    if speaks():
        print(f"{prog}: error: {text}", file=sys.stderr)
    return MISTAKE
