"""The table of commands of `python -m lb_mpi`, or `lb_mpi`.

Only the commands that start programs, or run them, handle Ctrl-C.  The system ends the others at once: an exception would
come as a traceback from an import, or, in a compiled loop that returns arrays, as a SystemError or a crash of numba.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence

from lb_mpi import __version__
from lb_mpi.checks import meant
from lb_mpi.cli.run.command import EXIT_CODES, Command, Parser, execute, late, say, speaks

USE, TRY, GRAPHS = "use", "try without a cluster", "graphs"
COMMANDS = {one.name: one for one in (
    Command("run", USE, "check the hosts, start a program on them, and watch the run", "{} -n 4 -- python program.py",
        late("run.start.add_arguments"), late("run.start.main"), answers=False, ranks=True),
    Command("profile", USE, "run any mpi4py program; report how long each rank computed or waited, and for which rank",
        "mpiexec -n 4 {} program.py", late("programs.add_profile"), late("programs.profile"), answers=False, ranks=True),
    Command("report", USE, "turn the record of a run (run --record, LB_MPI_RECORD) into an HTML page, with its predicted "
        "times with other settings", "{} record -o page.html", late("records.add_arguments"), late("records.report")),
    Command("pool", USE, "run a script on rank 0 alone; all other ranks work on the tasks of its lb_mpi.Pool() or "
        "Executor()", "mpiexec -n 4 {} --as joblib script.py", late("programs.add_pool"), late("programs.pool"),
        answers=False, ranks=True),
    Command("info", USE, "print versions, MPI, hosts and ranks; with --measure, also speeds and the cost of messages",
        "mpiexec -n 4 {} --measure", late("info.add_arguments"), late("info.info"), ranks=True),
    Command("slurm-script", USE, "print a batch script for Slurm that starts a program with run, and continues it",
        "{} > job.sbatch", lambda _: None, late("info.slurm_script")),
    Command("warmup", USE, "compile the kernels now, after the installation, so that the first run need not do it",
        "{}", lambda _: None, late("info.warmup")),
    Command("throttle", TRY, "run a program as if on a slower machine", "{} --speed 0.4 python program.py",
        late("throttle.add_arguments"), late("throttle.main"), answers=False, ranks=True),
    Command("cluster", TRY, "create virtual hosts on this machine, each with a name, an address and a speed",
        "{0} up --hosts 3 --speeds 0.8,0.4,0.2; {0} run -- python program.py; {0} down",
        late("cluster.cluster.add_arguments"), late("cluster.cluster.main"), answers=False, ranks=True,
        n_own=late("cluster.cluster.n_own")),
    Command("simulate", TRY, "simulate a search, rows or tasks on thousands of virtual ranks, without MPI",
        "{} tasks --hosts 8,8 --speeds 1,2", late("simulate.command.add_arguments"), late("simulate.command.simulate")),
    Command("partition", GRAPHS, "assign the vertices of a graph to unequal parts, with few cut edges",
        "{} mesh:20x20 -k 3 --targets 2,1,1 -o mesh.part", late("graphs.add_partition"), late("graphs.partition_graph")),
    Command("allocate", GRAPHS, "compute how many tasks each of some unequal nodes should run",
        "{} --tasks 1000 --time 1,2,4", late("graphs.add_allocate"), late("graphs.allocate_tasks")),
    Command("balance", GRAPHS, "level the times of the ranks of a graph by diffusion, step by step",
        "{} mesh:2x2 --scheme sos --tolerance 0.01", late("balance.add_arguments"), late("balance.level")),
    Command("arrange", GRAPHS, "assign nodes to the vertices of a process graph, so that diffusion converges fast",
        "{} --graph mesh:4x4 --hosts hosts.txt", late("graphs.add_arrange"), late("graphs.arrange_nodes")),
)}  # fmt: skip


def main(arguments: Sequence[str], prog: str) -> int:
    """Run the command named by the first argument, or show which there are; return the exit code."""
    name, *rest = arguments or ["--help"]
    if name == "help":
        name, *rest = [*rest[:1], "--help"]
    if name in ("--version", "-V"):
        return say(f"lb_mpi {__version__}\n") if speaks() else 0
    if name in COMMANDS:
        return execute(COMMANDS[name], rest, f"{prog} {name}")
    try:
        parser = _list_of_commands(prog)
        if name in ("-h", "--help"):
            parser.print_help()
            return 0
        parser.error(f"COMMAND = {name!r}: expected {', '.join(COMMANDS)}{meant(name, [*COMMANDS])}")
    except SystemExit as leaving:  # argparse has printed
        return int(leaving.code or 0)


def _list_of_commands(prog: str) -> Parser:
    """Return a parser whose help is the list of commands and exit codes."""
    columns = max(shutil.get_terminal_size().columns - 2, 40)

    def table(title: str, rows: dict[str, str]) -> str:
        width = max(map(len, [*COMMANDS]))
        lines = [f"  {name:<{width}}  {text}" for name, text in rows.items()]
        return "\n".join([f"{title}:", *(textwrap.fill(one, columns, subsequent_indent=" " * (width + 4)) for one in lines)])

    groups = [
        table(title, {one.name: one.text for one in COMMANDS.values() if one.group == title}) for title in (USE, TRY, GRAPHS)
    ]
    codes = table("exit codes (run, throttle: the program's, if any)", {f"{k}": v for k, v in EXIT_CODES.items()})
    return Parser(prog=prog, usage="%(prog)s COMMAND ... | help COMMAND | --version",
        description="Dynamic load balancing for mpi4py programs.",
        epilog="commands, each with --help:\n\n" + "\n\n".join([*groups, codes]),
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
