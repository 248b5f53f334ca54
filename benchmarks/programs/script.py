"""What all programs have in common: their command line, and the line that tells of a run.

    mpiexec -n 4 python -m benchmarks.programs.NAME before
    mpiexec -n 4 launch/throttle --speeds 0.4,0.2,0.1,0.1 python -m benchmarks.programs.NAME after
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

import lb_mpi

Program = Callable[[MPI.Intracomm], Any]  # the result on rank 0, as JSON can hold it


def spin(seconds: float) -> None:
    """Use so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def main(before: Program, after: Program) -> None:
    """Run one of the two on all ranks; rank 0 prints its result, seconds and CPU seconds as a line of JSON.

    The clock starts when all ranks have imported what they need, and ends when rank 0 has the result.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs.NAME",
        description=inspect.getdoc(inspect.getmodule(before)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("which", choices=("before", "after"))
    program = {"before": before, "after": after}[parser.parse_args().which]
    comm = MPI.COMM_WORLD
    for name in lb_mpi.__all__:  # imported when first used
        getattr(lb_mpi, name)
    comm.Barrier()
    began, cpu_s = time.perf_counter(), time.process_time()
    result = program(comm)
    if comm.rank == 0:
        took = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s}
        print(json.dumps({**took, "result": result}), flush=True)
