"""`run`: start a program on all hosts, watch it, and start it again; and what all commands share.

    start.py       the options; for each start: reach the hosts, start mpiexec, wait for its end
      mpiexec.py       its command line, for MPICH and Open MPI
      watch.py         the connections to the hosts: what each has, who is alive, what ranks report
      hangs.py         (pure) states of ranks -> which hang
      restarting.py    (pure) how a run has ended -> whether it starts again, on which hosts
    host.py        on each host: passes on what its ranks report; ends all that is left of the run (processes.py)
      rank.py          around each rank: reports its start and its end
      site/            in each rank: guards the start of MPI
    lines.py       what rank.py tells host.py, and host.py tells watch.py

A rank itself reports in a page of memory (`lb_mpi.signs`), which host.py reads.  These files need Python alone: they run
on hosts and with interpreters on which nothing has been checked yet.  So they read /proc, without psutil.

Other commands use command.py (a `Command`, and how it is executed), options.py, hosts.py (hostfiles) and processes.py.

`python lb_mpi/cli/run NAME ARGUMENTS` works on any host that sees the folder, whether or not lb_mpi is installed there.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path

INTERNAL = {"host": "run.host.main", "rank": "run.rank.main", "switch": "cluster.network.switch"}  # that no user calls


def main(name: str, arguments: Sequence[str], prog: str) -> int:
    """Run the command `name`, called `prog` in its messages; return its exit code."""
    if name not in INTERNAL:
        table = importlib.import_module("lb_mpi.cli.commands")
        return int(table.execute(table.COMMANDS[name], arguments, prog))
    module, _, function = INTERNAL[name].rpartition(".")
    return int(getattr(importlib.import_module(f"lb_mpi.cli.{module}"), function)(arguments))


def argv(python: str, name: str, *arguments: str) -> list[str]:
    """Return the command line that starts the command `name` with the interpreter `python`.

    PYTHONPATH and installed packages are meant for the program, so its wrappers ignore them (-I, -S).
    """
    return [python, "-I", "-S", str(Path(__file__).resolve().parent), name, *arguments]
