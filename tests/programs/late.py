"""A program for launch/run that is late: `python tests/programs/late.py HOW`.

stopped: rank 1 stops before MPI begins.  asleep: all ranks wait, as in MPI_Init, but without computing meanwhile.
"""

import os
import signal
import sys
import time

from lb_mpi.cli.run.rank import number

if sys.argv[1] == "stopped" and number(os.environ) == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
if sys.argv[1] == "asleep":
    time.sleep(600)

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
