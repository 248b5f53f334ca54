"""Programs that die or hang (misfortune.py), run by launch/run on real mpiexec."""

import socket
import sys

from tests.process.lab import ROOT
from tests.process.started import LIMIT_S, started

HOST = socket.gethostname()
N = 2  # ranks, the last of which meets its fate, but for kill-root
DONE = f"start 2, {N} ranks: {sum(range(4 * N))}\n"


def argv(what, folder, *options):
    # mpi4py aborts the job when a program raises; without it, MPI_Finalize waits for the other ranks
    plain = [] if what == "interrupted" else ["-m", "mpi4py"]
    program = [sys.executable, *plain, str(ROOT / "tests" / "process" / "misfortune.py"), what, str(folder)]
    return [sys.executable, str(ROOT / "launch" / "run"), "-n", str(N), *options, "--", *program]


def run(what, folder, env, *options):
    with started(argv(what, folder, *options), cwd=ROOT, env=env) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err
