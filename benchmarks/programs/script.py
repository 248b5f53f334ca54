"""Code shared by all programs: their command line, the line that reports a run, and the CPU time of their tasks.

mpiexec -n 4 python -m benchmarks.programs.NAME before
mpiexec -n 4 launch/throttle --speeds 0.4,0.2,0.1,0.1 python -m benchmarks.programs.NAME after
"""

from __future__ import annotations

import argparse
import atexit
import functools
import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mpi4py import MPI

import lb_mpi

Program = Callable[[MPI.Intracomm], Any]  # the result on rank 0, as JSON can hold it
Function = TypeVar("Function", bound=Callable[..., Any])

_tasks: list[float] = []  # CPU seconds of all tasks so far on this rank
_calls: list[tuple[float, int]] = []  # CPU seconds between the call before and this one, and number of tasks before it
_since = 0.0  # CPU seconds at which the last call ended; nan: it has not


def task(function: Function) -> Function:
    """Decorate the function that does the program's work: a call is a task, which nothing can divide."""

    @functools.wraps(function)
    def timed(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            _tasks.append(time.thread_time() - began)

    del timed.__wrapped__  # DEAP would copy it to a partial, of which pickle can't find it by its name
    return timed  # type: ignore[return-value]


def main(before: Program, after: Program) -> None:
    """Run one of the two on all ranks; rank 0 prints its result and seconds as a line of JSON.

    The clock starts when all ranks have imported what they need, and ends when rank 0 has the result.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs.NAME",
        description=inspect.getdoc(inspect.getmodule(before)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("which", choices=("before", "after"))
    parser.add_argument("--tasks", type=Path, metavar="FOLDER", help="write the CPU times of each rank's tasks there")
    options = parser.parse_args()
    program = {"before": before, "after": after}[options.which]
    comm = MPI.COMM_WORLD
    for name in lb_mpi.__all__:  # imported when first used
        getattr(lb_mpi, name)
    if options.tasks:
        watch_calls()
        atexit.register(write, options.tasks / f"{comm.rank}.json")  # some ranks end before the program does
    comm.Barrier()
    began = time.perf_counter()
    begin()
    result = program(comm)
    if comm.rank == 0:
        print(json.dumps({"seconds": time.perf_counter() - began, "result": result}), flush=True)


# --- what rank 0 does between calls of the library, and which tasks belong to a call -----------------------------------


def begin() -> None:
    """Forget what was done before the clock started."""
    global _since
    _tasks.clear()
    _since = time.thread_time()


def enter() -> None:
    """Note that a call of the library begins, unless one has."""
    global _since
    if _since == _since:
        _calls.append((time.thread_time() - _since, len(_tasks)))
    _since = float("nan")


def leave() -> None:
    """Note that it has ended."""
    global _since
    _since = time.thread_time()


def watch_calls() -> None:
    """Note each call of `Pool.map`, `Balancer.map_rows` and `search`; of an executor, the first task and the end."""

    def watched(function: Callable[..., Any], first: Callable[[], None], last: Callable[[], None]) -> Any:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            first()
            try:
                return function(*arguments, **options)
            finally:
                last()

        return call

    def nothing() -> None:
        pass

    for owner, name in ((lb_mpi.Pool, "map"), (lb_mpi.Balancer, "map_rows"), (lb_mpi, "search")):
        setattr(owner, name, watched(getattr(owner, name), enter, leave))
    for name in ("map", "submit"):
        setattr(lb_mpi.Executor, name, watched(getattr(lb_mpi.Executor, name), enter, nothing))
    lb_mpi.Executor.__exit__ = watched(lb_mpi.Executor.__exit__, nothing, leave)  # type: ignore[method-assign]


def write(path: Path) -> None:
    """Write the CPU seconds of the tasks; of rank 0 also the calls, and the CPU seconds after the last one."""
    after_s = 0.0 if _since != _since else time.thread_time() - _since
    path.write_text(json.dumps({"tasks": _tasks, "calls": _calls, "after_s": after_s}))
