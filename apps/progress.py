"""How an app shows how it goes: --progress, the same as that of launch/run."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from mpi4py import MPI

from lb_mpi.cli.run.limit import stat as stat_of
from lb_mpi.cli.run.progress import SHOWN, followed, scratch
from lb_mpi.mpi.common.collective import agree
from lb_mpi.mpi.common.recorder import VARIABLE

PATIENCE_S = 3.0  # before there is something to see, unless it was asked for


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Add --progress and --no-progress."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show the progress: on a terminal a line that changes, elsewhere a new line every ten seconds "
        f"(default: on one machine after {PATIENCE_S:g} s, unless --json is given)",
    )


@contextlib.contextmanager
def shown(comm: MPI.Intracomm, asked: argparse.Namespace) -> Iterator[None]:
    """Collective: show how the run goes while the block runs, if the options ask for it.

    It is read from records.  Where nobody wants to keep them they go to a folder that is removed afterwards: one of
    temporary files on one machine, of several the folder from which it was started.
    OSError on all ranks when that can't be made.
    """
    one_machine = on_one_machine(comm)
    usual = one_machine and not asked.json and SHOWN not in os.environ
    if not (usual if asked.progress is None else asked.progress):
        yield
        return
    with contextlib.ExitStack() as stack:

        def folder() -> str | None:
            if comm.rank or os.environ.get(VARIABLE):
                return os.environ.get(VARIABLE)
            return stack.enter_context(scratch(None if one_machine else os.getcwd()))

        found = comm.bcast(agree(comm, folder))
        if not os.environ.get(VARIABLE):
            os.environ[VARIABLE] = found
            stack.callback(os.environ.pop, VARIABLE)
        if comm.rank == 0:
            stack.enter_context(followed(found, after_s=0.0 if asked.progress else PATIENCE_S, terminal=terminal()))
        yield


def on_one_machine(comm: MPI.Intracomm) -> bool:
    """Collective: whether all ranks share memory."""
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
    size = machine.size
    machine.Free()
    return bool(comm.allreduce(size == comm.size, MPI.LAND))


def terminal() -> str | None:
    """The path of the terminal that a person looks at, None when there is none.

    A rank's stderr is a pipe (or a pseudo-terminal) to mpiexec, so where /proc is there, mpiexec is looked up among the
    ancestors, and its stderr counts.
    """
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError):
        while pid > 1:
            process, about = Path("/proc") / str(pid), stat_of(pid)
            if about.name.startswith(("mpiexec", "mpirun", "prterun", "prun")):
                mode = os.stat(process / "fd" / "2")
                is_one = stat.S_ISCHR(mode.st_mode) and mode.st_rdev != os.stat(os.devnull).st_rdev
                return os.readlink(process / "fd" / "2") if is_one else None
            pid = about.parent
    return os.ttyname(sys.stderr.fileno()) if sys.stderr.isatty() else None
