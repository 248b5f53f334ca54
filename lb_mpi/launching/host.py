"""The side of launch/run that is on each host: `python lb_mpi/launching host MARK`, in the folder that the program is to
run in.

    it says                          after
    lb_mpi {...}                     the start: what the host has (lb_mpi.mpi.facts), or {"error": ...}
    lb_mpi alive                     each line of its input
    lb_mpi killed {...}              a rank on this host has died by a signal (rank.py tells it so)

When its input ends, or nothing has come for LOST_S, the program is over, or its host is cut off from the others: whatever
bears MARK on this host is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence

from lb_mpi.launching import limit, rank

LOST_S = 20.0


def facts() -> str:
    """Return a JSON object in one line."""
    argv = [sys.executable, "-m", "lb_mpi.mpi.facts"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0 and done.stdout.startswith("{"):
        return done.stdout.splitlines()[-1]
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return json.dumps({"error": f"{sys.executable}: {said[-1]}"})


def say(text: str) -> None:
    """Tell the other side; what others print here may stand between."""
    os.write(1, f"lb_mpi {text}\n".encode())


def serve(deaths: socket.socket) -> None:
    """Answer until the other side is gone, and pass on what ranks have told to `deaths`."""
    while ready := select.select([0, deaths.fileno()], [], [], LOST_S)[0]:
        if deaths.fileno() in ready:
            say(f"killed {deaths.recv(4096).decode()}")
        if 0 in ready:
            lines = os.read(0, 4096).count(b"\n")
            if not lines:
                return
            for _ in range(lines):
                say("alive")


def main(arguments: Sequence[str], _prog: str) -> int:
    """Answer, then end what is left."""
    (mark,) = arguments
    with limit.interruptible(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaths:
        try:
            with contextlib.suppress(OSError):  # two names of one host: the other process listens
                deaths.bind(rank.address(mark))
            say(facts())
            serve(deaths)
        except BrokenPipeError:
            pass
        finally:
            limit.end(mark)
    return 0
