"""A program for launch/run whose rank 1 stops before MPI begins."""

import os
import signal

from lb_mpi.launching.rank import number

if number(os.environ) == "1":
    os.kill(os.getpid(), signal.SIGSTOP)

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
