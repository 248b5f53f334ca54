"""python -m lb_mpi: the table of commands, and nothing else.

Each is a module of lb_mpi.commands with `add_arguments(parser)`, `run(options)`, which returns a dictionary that is ready
for JSON, and `summary(answer)`, the same as lines for people.  Exit codes: 0; 2 for a mistake of the user's and 1 for what
has failed, in one line; 130 for Ctrl-C; 141 when nobody reads the output.  Whatever else is raised is a bug, and keeps its
traceback.
"""

from __future__ import annotations

import sys

from lb_mpi.commands.dispatch import dispatch

COMMANDS = {
    "allocate": "how many tasks each of some unequal nodes should run",
    "partition": "which tasks of a graph go to which of some nodes",
    "arrange": "which node sits where on a process graph",
    "info": "versions, MPI, hosts, ranks; with --measure, speeds and costs of messages",
    "simulate diffusion": "without MPI: neighbours level their loads, step by step",
    "simulate lockstep": "without MPI: idealised search of a maze, communication is free",
    "simulate search": "without MPI: an unbalanced tree search on a virtual clock, message by message",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return dispatch(COMMANDS, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
