"""The peer of `benchmarks.stealing`: mpiexec -n 3 python -m mpi4py.futures -m benchmarks.stealing_pool

A master and two workers, the 690 subtrees of T1 at depth 4 as tasks, in chunks of 16.
"""

from __future__ import annotations

import hashlib
import json
import time

from mpi4py.futures import MPIPoolExecutor

from lb_mpi.problems.uts import TREES, TreeCount, UnbalancedTreeSearch, compile_kernels
from lb_mpi.problems.uts_tree import child_counter, root_state

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


def main() -> None:
    """Print one JSON object."""
    compile_kernels()
    tasks = subtrees()
    with MPIPoolExecutor(max_workers=2) as executor:
        list(executor.map(count, tasks, chunksize=16))  # the workers start, import and load the kernel
        began = time.perf_counter()
        counts = list(executor.map(count, tasks, chunksize=16))
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "nodes": sum(each.nodes for each in counts)}))


if __name__ == "__main__":
    main()
