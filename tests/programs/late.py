"""A program for launch/run whose rank 1 may stop before MPI begins: `python tests/programs/late.py stopped` or `nothing`."""

import os
import signal
import sys

from lb_mpi.cli.run.rank import number

if sys.argv[1] == "stopped" and number(os.environ) == "1":
    os.kill(os.getpid(), signal.SIGSTOP)

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
