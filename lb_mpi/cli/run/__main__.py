"""`python lb_mpi/cli/run NAME ARGUMENTS`: see __init__.py."""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command takes over: no traceback from an import
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))))

from lb_mpi.cli.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:], sys.argv[1]))
