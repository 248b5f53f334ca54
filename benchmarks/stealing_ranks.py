"""The ranks' part of `benchmarks.stealing`; run by it, under mpiexec."""

from __future__ import annotations

import argparse
import json
import time

from mpi4py import MPI

import lb_mpi
from apps.command import compile_once
from benchmarks.stealing_pool import subtrees
from lb_mpi.mpi.collective import barrier
from lb_mpi.problems.uts import PUBLISHED, TREES, UnbalancedTreeSearch, compile_kernels

COMM = MPI.COMM_WORLD


class Subtrees(UnbalancedTreeSearch):
    """The search that begins with the 690 tasks of the pool instead of the root."""

    def start(self) -> None:
        """Take them all in hand."""
        self.absorb(b"".join(subtrees()))


def search(problem: UnbalancedTreeSearch) -> lb_mpi.SearchResult:
    """Search on all ranks, as apps.uts does."""
    return lb_mpi.search(COMM, problem, threshold=16.0)


def copies() -> float:
    """Every rank counts the whole of T1L by itself; returns the seconds of the slower one."""
    problem = UnbalancedTreeSearch(TREES["T1L"], "alternate")
    barrier(COMM)
    began = time.perf_counter()
    problem.start()
    while problem.work(10_000):
        pass
    seconds = time.perf_counter() - began
    assert problem.result() == PUBLISHED["T1L"]
    barrier(COMM)
    return float(COMM.allreduce(seconds, MPI.MAX))


def together() -> float:
    """All ranks count it together; returns the seconds until the last knows that it is over."""
    result = search(UnbalancedTreeSearch(TREES["T1L"], "alternate"))
    assert result.value == PUBLISHED["T1L"]
    return result.seconds


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tasks", action="store_true")
    options = parser.parse_args()
    compile_once(COMM, compile_kernels)
    if options.tasks:
        search(Subtrees(TREES["T1"], "alternate"))  # warm
        result = search(Subtrees(TREES["T1"], "alternate"))
        answer = {"seconds": result.seconds, "nodes": result.value.nodes}
    else:
        pairs = [(together(), copies()) for _ in range(options.repeat)]
        answer = {
            "together": [pair[0] for pair in pairs],
            "copies": [pair[1] for pair in pairs],
        }
    if COMM.rank == 0:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
