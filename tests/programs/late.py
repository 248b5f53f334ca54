"""A program for launch/run that is stuck before MPI begins: `python tests/programs/late.py HOW WHEN FOLDER`.

HOW: rank 1 is stopped, or waits for ever, or nothing happens.  WHEN: in the first start, or in the second (the first one
saves, and then its rank 0 is killed).  A start in which nothing happens prints how many there were.
"""

import os
import signal
import sys
import time
from pathlib import Path

from lb_mpi.launching.rank import number

how, when, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
starts, stuck = folder / "starts", folder / "stuck"
again = starts.exists()

if number(os.environ) == "1" and (when == "second") == again and not stuck.exists():
    stuck.touch()
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # whoever makes it go on finds it at its start
    while how == "waits":
        time.sleep(1.0)

from mpi4py import MPI  # noqa: E402 (it begins MPI)

import lb_mpi  # noqa: E402

comm = MPI.COMM_WORLD
if comm.rank == 0:
    with starts.open("a") as out:
        out.write("*")
comm.Barrier()
n_starts = len(starts.read_text())
lb_mpi.save(comm, folder / "saves", n_starts, rows=[comm.rank])
if when == "second" and not again and comm.rank == 0:
    time.sleep(1.5)  # until all know of the save
    os.kill(os.getpid(), signal.SIGKILL)
comm.Barrier()
if comm.rank == 0:
    print(f"{n_starts} starts", flush=True)
