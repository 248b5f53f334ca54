"""The process between mpiexec and the program of a rank: it reports how the rank ended, and makes a page for its signs.

`python lb_mpi/launching rank PROGRAM [ARGUMENTS]`.  Only a parent learns how a process ended, and MPICH's says neither
rank nor host.  The signals that this process gets go to the program, which dies with it; it ends as the program does, but
with exit code 1 when the program has ended with 0 after MPI had begun, and without MPI_Finalize.

What it has to say goes to host.py of its host, by datagrams to a socket whose address is the mark of the run: at the start
its number, with the file that the program's signs are in (`lb_mpi.signs`), and at an end that nobody asked for, which.
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
SEND_S = 5.0  # for host.py to hear of an end


def address(mark: str) -> str:
    """Of the socket of a run's host.py: an abstract one, which leaves no file and is the host's own (or namespace's)."""
    return f"\0lb_mpi-{mark}"


def number(variables: Mapping[str, str]) -> str:
    """This rank, as mpiexec has told it."""
    return next((variables[name] for name in NUMBER if variables.get(name)), "?")


def tell(what: Begin | End, variables: Mapping[str, str], *files: int, wait_s: float | None = SEND_S) -> bool:
    """Tell host.py, and give it `files`; False when it isn't there, or doesn't hear within `wait_s` (None: for ever)."""
    mark = variables.get(limit.MARK, "").rpartition(":")[2]
    given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(wait_s)
        out.connect(address(mark))
        out.sendmsg([told(what).encode()], given)
        return True
    return False


def page(variables: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """Make the page for the program's signs: its file, and the variable that tells where it is; none when nobody listens."""
    file = os.memfd_create(signs.NAME)  # leaves nothing behind; host.py still has it when this process is gone
    os.ftruncate(file, signs.BYTES)
    # Many ranks start at once, and one that has not told would look as if it hung.
    if not tell(Begin(number(variables)), variables, file, wait_s=None):
        return file, {}
    return file, {signs.VARIABLE: f"/proc/{os.getpid()}/fd/{file}"}


def finalized(file: int) -> bool:
    """Return whether the program, which has ended, came to its regular end, as the page `file` says, or never to MPI."""
    seen = signs.read(os.pread(file, signs.BYTES, 0))
    return seen.at_end or not seen.mpi_pid


def python_path(variables: Mapping[str, str]) -> str:
    """Return PYTHONPATH for the program, with site/sitecustomize.py in it, which takes its folder out again."""
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
    if code == signs.SAVED or (failed and not asked):  # mpiexec ends the others when one is gone
        tell(End(number(os.environ), socket.gethostname(), code), os.environ)
    end_as(code or int(failed))
