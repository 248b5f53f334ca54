"""python -m lb_mpi, or lb_mpi: the table of commands.

run, cluster and throttle are those of launch/ (see lb_mpi/cli/run); pool and profile run a user's program.  Each other one
is a `Command` in a module of lb_mpi.cli: it returns a dictionary (or a list of them) ready for JSON, and describes it
in lines for people.  Exit codes: 0; 2 for a mistake of the user and 1 for a failure, in one line; 130 for Ctrl-C; 141 if the
reader of the output has left.  Any other exception is a bug, and keeps its traceback.  Under mpiexec, rank 0 alone runs a
command, except for info, pool and profile.

Only the commands that start programs, or run them, handle Ctrl-C.  The system ends the others at once: an exception would
come as a traceback from an import, or, in a compiled loop that returns arrays, as a SystemError or a crash of numba.
"""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from lb_mpi import __version__
from lb_mpi.cli.dispatch import PROG, Entry, dispatch
from lb_mpi.cli.run import commands as started
from lb_mpi.cli.run.arguments import say, speaks

COMMANDS = {
    "use": {
        "run": Entry("check the hosts, start a program on them, and watch the run"),
        "profile": Entry("run any mpi4py program; report how long each rank computed or waited, and for which rank"),
        "report": Entry("turn the record of a run (run --record, LB_MPI_RECORD) into an HTML page, with its "
            "predicted times with other settings", "records", "record -o page.html"),
        "pool": Entry("run a script on rank 0 alone; all other ranks work on the tasks of its lb_mpi.Pool() or Executor()"),
        "info": Entry("print versions, MPI, hosts and ranks; with --measure, also speeds and the cost of messages", "info",
            "--measure", ranks=True, before="mpiexec -n 4 "),
        "slurm-script": Entry("print a batch script for Slurm that starts a program with run, and continues it", "slurm",
            "> job.sbatch"),
        "warmup": Entry("compile the kernels now, after the installation, so that the first run need not do it", "info"),
    },
    "try without a cluster": {
        "throttle": Entry("run a program as if on a slower machine"),
        "cluster": Entry("create virtual hosts on this machine, each with a name, an address and a speed"),
        "simulate": Entry("simulate a search, rows, tasks or a graph on thousands of virtual ranks, without MPI", "simulate",
            "tasks --hosts 8,8 --speeds 1,2"),
    },
    "graphs": {
        "partition": Entry("assign the vertices of a graph to unequal parts, with few cut edges", "graphs",
            "mesh:20x20 -k 3 --targets 2,1,1 -o mesh.part"),
        "allocate": Entry("compute how many tasks each of some unequal nodes should run", "graphs",
            "--tasks 1000 --time 1,2,4"),
        "balance": Entry("level the times of the ranks of a graph by diffusion, step by step; draw what moves", "balance",
            "mesh:2x2 --scheme sos --tolerance 0.01"),
        "arrange": Entry("assign nodes to the vertices of a process graph, so that diffusion converges fast", "graphs",
            "--graph mesh:4x4 --hosts hosts.txt"),
    },
}


def main(arguments: list[str] | None = None, prog: str = PROG) -> int:
    """Run one command; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] == "help":
        given = [*given[1:2], "--help"]
    if list(given) in (["--version"], ["-V"]):
        return say(f"lb_mpi {__version__}\n") if speaks() else 0
    if given and given[0] in started.FOR_PEOPLE:
        return started.main(given[0], given[1:], f"{prog} {given[0]}")
    if given and given[0] in ("pool", "profile"):
        from lb_mpi.cli import programs

        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run = programs.run_pool if given[0] == "pool" else programs.run_profile
        return run(given[1:], f"{prog} {given[0]}")
    return dispatch(COMMANDS, given, prog)


def script() -> int:
    """Run the installed command `lb_mpi`, which, unlike `python -m lb_mpi`, imports nothing from the current folder."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main(prog="lb_mpi")


if __name__ == "__main__":
    sys.exit(main())
