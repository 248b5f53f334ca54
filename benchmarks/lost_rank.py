"""Show how a killed rank looks to the others, with Open MPI's recovery (ULFM).  python -m benchmarks.lost_rank

Four ranks, of which the last is killed after 0.1 s; the others are in one of these situations.  Then rank 0 revokes the
communicator, and the others, which wait for rank 0, shrink it and add up their ranks (0 + 1 + 2 = 3).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from tools.environment import ROOT, wanted

LIMIT_S = 2.0  # of a wait that ends in no error
VICTIM = 3


def wait(done: Callable[[], object]) -> str:
    """Poll until it is done; return how that ended."""
    began = time.perf_counter()
    try:
        while not done():
            if time.perf_counter() - began > LIMIT_S:
                return "nothing happens"
            time.sleep(1e-3)
    except MPI.Exception as error:
        return str(MPI.Get_error_string(error.Get_error_class()).partition(":")[0])
    return "done"


def situations(comm: MPI.Intracomm) -> dict[str, Callable[[], str]]:
    """Return what a surviving rank does, by name."""
    small, large = np.zeros(8, np.uint8), np.zeros(1 << 22, np.uint8)

    def send(data: np.ndarray) -> str:
        time.sleep(0.3)  # until it is dead
        request = comm.Isend(data, VICTIM, 4)
        return wait(request.Test)

    def swap() -> str:
        host = MPI.Intracomm(comm.Split_type(MPI.COMM_TYPE_SHARED))
        window = MPI.Win.Allocate_shared(8, 8, comm=host)
        window.Lock_all(MPI.MODE_NOCHECK)
        host.Barrier()
        if comm.rank == VICTIM:
            die()
        time.sleep(0.3)
        mine, expected, found = np.array([comm.rank + 1]), np.zeros(1, np.int64), np.zeros(1, np.int64)
        window.Compare_and_swap(mine, expected, found, VICTIM, 0)
        window.Flush(VICTIM)
        window.Unlock_all()
        return f"done, found {int(found[0])}"

    return {
        "receives from it": lambda: wait(comm.Irecv(small, VICTIM, 1).Test),
        "receives from any": lambda: wait(comm.Irecv(small, MPI.ANY_SOURCE, 1).Test),
        "probes any": lambda: wait(lambda: comm.Iprobe(MPI.ANY_SOURCE, 1)),
        "probes a living rank": lambda: wait(lambda: comm.Iprobe((comm.rank + 1) % VICTIM, 1)),
        "is in a barrier": lambda: wait(comm.Ibarrier().Test),
        "sends it a small message": lambda: send(small),
        "sends it a large message": lambda: send(large),
        "swaps its words in shared memory": swap,
    }


def die() -> None:
    """Be killed, some time later."""
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def be_rank(name: str) -> None:
    """Play a situation on this rank; the survivors print what they see."""
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    run, began = situations(comm)[name], time.perf_counter()
    if comm.rank == VICTIM and not name.startswith("swaps"):
        die()
    seen, seconds = run(), time.perf_counter() - began
    if comm.rank == 0:
        comm.Revoke()
    then = wait(comm.Irecv(np.zeros(8, np.uint8), 0 if comm.rank else 1, 99).Test)
    rest = comm.Shrink()
    total = rest.allreduce(comm.rank)
    print(f"{name}: {seen} after {seconds:.2f} s; {then}; the sum of {rest.size} ranks is {total}", flush=True)


def main() -> None:
    """Play all situations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_rank", description=__doc__.partition("\n")[0])
    parser.add_argument("--situation", help="(used by the benchmark) play it on these ranks")
    options = parser.parse_args()
    if options.situation:
        be_rank(options.situation)
        return
    environment = wanted({**os.environ, "MPI": "openmpi"})
    for name in situations(MPI.COMM_WORLD):
        argv = [str(environment.python), "-m", "benchmarks.lost_rank", "--situation", name]
        command, variables = environment.job(4, argv)
        command[1:1] = ["--with-ft", "ulfm"]
        ended = subprocess.run(
            command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60.0, check=False
        )
        print("\n".join(sorted(line for line in ended.stdout.splitlines() if line.startswith(name))), flush=True)
        if ended.returncode:
            sys.exit(f"{name}: exit code {ended.returncode}: {ended.stderr}")


if __name__ == "__main__":
    main()
