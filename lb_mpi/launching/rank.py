"""What stands between mpiexec and a program on each rank, to tell which rank was killed, where and by which signal.

`python lb_mpi/launching rank PROGRAM [ARGUMENTS]`.  Only a parent learns how a process ended, and MPICH's says neither
rank nor host.  The signals that this process gets go to the program, which dies with it; it ends as the program does.

What it has to say goes to host.py of its host, by a datagram to a socket whose address is the mark of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from lb_mpi.launching import limit
from lb_mpi.launching.program import FORWARDED, become, end_as

NUMBER = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")


def address(mark: str) -> str:
    """Of the socket of a run's host.py: an abstract one, which leaves no file and is the host's own (or namespace's)."""
    return f"\0lb_mpi-{mark}"


def report(number: int, variables: Mapping[str, str]) -> None:
    """Tell host.py which rank died by signal `number`; nobody is told when it isn't there."""
    rank = next((variables[name] for name in NUMBER if variables.get(name)), "?")
    mark = variables.get(limit.MARK, "").rpartition(":")[2]
    told = json.dumps({"rank": rank, "host": socket.gethostname(), "signal": number}).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(told, address(mark))


def main(argv: Sequence[str], _prog: str) -> NoReturn:
    """Run `argv` and end as it ends."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    parent, child = os.getpid(), os.fork()
    if child == 0:
        become(argv, os.environ, mask, parent)
    asked = False
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        number = signal.sigwait(FORWARDED | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            asked = True
            with contextlib.suppress(OSError):
                os.killpg(child, number)
    code = os.waitstatus_to_exitcode(ended[1])
    if code < 0 and not asked:  # mpiexec ends the others when one is gone
        report(-code, os.environ)
    end_as(code)
