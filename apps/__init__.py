"""Programs on lb_mpi: each is one `mpiexec -n N python -m apps.NAME`."""

import signal
import sys

if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # about to run an app
    # Ctrl-C ends this process on the spot, and mpiexec then ends the others, whatever they are at.  A KeyboardInterrupt
    # while numba and scipy are being imported would leave this rank waiting for the others in MPI's finalisation.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
