"""Wrong launchers: N processes are started, and each of them believes to be the only rank.

`srun` without PMI, and the mpiexec of another MPI, start N processes that MPI joins to nothing: each runs the whole program.
What the launcher says in the environment then exceeds the size of MPI.COMM_WORLD.  The MPI library's own launcher is always
right: mpiexec -n 1 is, also within a step of Slurm, and so is a program that a rank has started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpi4py import MPI

from lb_mpi.mpi.common.facts import library
from lb_mpi.status import write_error


class _Launcher(NamedTuple):
    size: str  # the variable with the number of processes
    rank: str
    name: str


_MPICH = _Launcher("PMI_SIZE", "PMI_RANK", "a launcher for MPICH or Intel MPI")
_OPEN_MPI = _Launcher("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "a launcher for Open MPI")
_SLURM = _Launcher("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun")


def mismatch(variables: Mapping[str, str], mpi: str) -> str | None:
    """Return what is wrong with the launcher of a process that `mpi` ("MPICH 5.0.2") takes for its only rank, or None.

    None also on the processes that leave it to number 0, and in an interactive shell of `srun --pty`.
    """
    own, other = (_OPEN_MPI, _MPICH) if mpi.startswith("Open MPI") else (_MPICH, _OPEN_MPI)
    if own.size in variables:
        return None
    for launcher in (other, _SLURM):
        text = variables.get(launcher.size, "")
        if text.isdecimal() and int(text) > 1:
            if variables.get(launcher.rank, "0") != "0" or (launcher is _SLURM and "SLURM_PTY_PORT" in variables):
                return None
            or_else = f", or srun --mpi={'pmix' if own is _OPEN_MPI else 'pmi2'}" if _SLURM.size in variables else ""
            return (
                f"{launcher.size} = {text}, but MPI.COMM_WORLD has 1 rank: {launcher.name} has started {text} processes, "
                f"and each runs the whole program alone, since {mpi}, the library of mpi4py, does not join them: expected "
                f"its own mpiexec{or_else}, or python -m lb_mpi run -n {text} -- python PROGRAM"
            )
    return None


_checked = False


def check_launcher(comm: MPI.Intracomm, variables: Mapping[str, str]) -> None:
    """Write a line to stderr, once in a process, if a wrong launcher has started it.  On MPI.COMM_SELF one rank is right."""
    global _checked
    if _checked or MPI.COMM_WORLD.size > 1 or MPI.Comm.Compare(comm, MPI.COMM_SELF) == MPI.IDENT:
        return
    _checked = True
    text = mismatch(variables, library(MPI.Get_library_version()))
    if text is not None and MPI.Comm.Get_parent() == MPI.COMM_NULL:
        write_error(f"lb_mpi: {text}\n")
