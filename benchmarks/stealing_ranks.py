"""The ranks' part of `benchmarks.stealing`; run by it, under mpiexec.

With --executor the peer: `python -m mpi4py.futures -m benchmarks.stealing_ranks --executor`, a master and two workers, the
690 subtrees of T1 at depth 4 as tasks, in chunks of 16.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time

from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

import lb_mpi
from apps.command import compile_once
from lb_mpi.cli.uts import (
    PUBLISHED,
    TREES,
    TreeCount,
    UnbalancedTreeSearch,
    child_counter,
    compile_kernels,
    root_state,
)
from lb_mpi.mpi.common.collective import barrier

COMM = MPI.COMM_WORLD
DEPTH, N_TASKS = 4, 690


def subtrees() -> list[bytes]:
    """The nodes of T1 at depth 4, each packed as `UnbalancedTreeSearch.split` does."""
    tree = TREES["T1"]
    count_children = child_counter(tree)
    level = [root_state(tree)]
    for depth in range(DEPTH):
        level = [
            hashlib.sha1(state + number.to_bytes(4)).digest()
            for state in level
            for number in range(count_children(depth, int.from_bytes(state[16:]) & 0x7FFFFFFF))
        ]
    assert len(level) == N_TASKS
    return [b"".join(state[i : i + 4][::-1] for i in range(0, 20, 4)) + DEPTH.to_bytes(4, "little") for state in level]


def count(subtree: bytes) -> TreeCount:
    """One task: count a subtree, with the same kernel."""
    problem = UnbalancedTreeSearch(TREES["T1"])
    problem.absorb(subtree)
    while problem.work(10_000):
        pass
    return problem.result()


def by_executor() -> dict[str, float]:
    """Count the subtrees by the workers of mpi4py's own pool."""
    compile_kernels()
    tasks = subtrees()
    with MPIPoolExecutor(max_workers=2) as executor:
        list(executor.map(count, tasks, chunksize=16))  # the workers start, import and load the kernel
        began = time.perf_counter()
        counts = list(executor.map(count, tasks, chunksize=16))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "nodes": sum(each.nodes for each in counts)}


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
    problem = UnbalancedTreeSearch(TREES["T1L"])
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
    result = search(UnbalancedTreeSearch(TREES["T1L"]))
    assert result.value == PUBLISHED["T1L"]
    return result.seconds


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tasks", action="store_true")
    parser.add_argument("--executor", action="store_true")
    options = parser.parse_args()
    if options.executor:
        print(json.dumps(by_executor()))
        return
    compile_once(COMM, compile_kernels)
    if options.tasks:
        search(Subtrees(TREES["T1"]))  # warm
        result = search(Subtrees(TREES["T1"]))
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
