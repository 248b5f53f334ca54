"""The process between mpiexec and the program of a rank: it reports the rank's end, and makes the page for its signs.

`python lb_mpi/launching rank PROGRAM [ARGUMENTS]`.  Only a parent learns how a process ended, and MPICH's names neither rank
nor host.  This process forwards its signals to the program, which dies with it.  It ends as the program does, but with exit
code 1 if the program called MPI_Init, skipped MPI_Finalize, and ended with 0.

Its reports go to host.py on the same host, as datagrams to a socket whose address is the mark of the run: at the start the
rank and the file of the program's signs (`lb_mpi.signs`), later its end, unless it was asked to end.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lb_mpi import signs
from lb_mpi.launching import limit
from lb_mpi.launching.heard import Begin, End, told
from lb_mpi.launching.program import FORWARDED, become, end_as

NUMBER = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")
SEND_S = 5.0  # for host.py to receive the report of an end


def address(mark: str) -> str:
    """Return the address of host.py's socket: an abstract one, without a file, private to the host (or namespace)."""
    return f"\0lb_mpi-{mark}"


def number(variables: Mapping[str, str]) -> str:
    """Return this rank, from mpiexec's variables."""
    return next((variables[name] for name in NUMBER if variables.get(name)), "?")


def tell(what: Begin | End, variables: Mapping[str, str], *files: int, wait_s: float | None = SEND_S) -> bool:
    """Send a report and `files` to host.py; False if it is absent, or can't receive within `wait_s` (None: no limit)."""
    mark = variables.get(limit.MARK, "").rpartition(":")[2]
    given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(wait_s)
        out.connect(address(mark))
        out.sendmsg([told(what).encode()], given)
        return True
    return False


def page(variables: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """Make the page for the program's signs: its file, and the variable that names it; none if nobody listens."""
    file = os.memfd_create(signs.NAME)  # leaves nothing behind; host.py keeps it open after this process has ended
    os.ftruncate(file, signs.BYTES)
    # Many ranks start at once, and a rank that could not report its start would look as if it hung.
    if not tell(Begin(number(variables)), variables, file, wait_s=None):
        return file, {}
    return file, {signs.VARIABLE: f"/proc/{os.getpid()}/fd/{file}"}


def finalized(file: int) -> bool:
    """Return whether the program ended regularly, according to the page `file`, or never initialised MPI."""
    seen = signs.read(os.pread(file, signs.BYTES, 0))
    return seen.at_end or not seen.mpi_pid


def python_path(variables: Mapping[str, str]) -> str:
    """Return PYTHONPATH for the program, with the folder of site/sitecustomize.py, which removes it again."""
    return os.pathsep.join([str(Path(__file__).resolve().parent / "site"), *filter(None, [variables.get("PYTHONPATH")])])


def main(argv: Sequence[str], _prog: str) -> NoReturn:
    """Run `argv` and end as it ends."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    file, variables = page(os.environ)
    env = {**os.environ, **variables, "PYTHONPATH": python_path(os.environ)}
    parent, child = os.getpid(), os.fork()
    if child == 0:
        become(argv, env, mask, parent)
    asked = False
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        came = signal.sigwait(FORWARDED | {signal.SIGCHLD})
        if came != signal.SIGCHLD:
            asked = True
            with contextlib.suppress(OSError):
                os.killpg(child, came)
    code = os.waitstatus_to_exitcode(ended[1])
    failed = code != 0 or not finalized(file)
    if code == signs.SAVED or (failed and not asked):  # mpiexec ends the others when one has ended
        tell(End(number(os.environ), socket.gethostname(), code), os.environ)
    end_as(code or int(failed))
