"""The ranks' part of `benchmarks.scale`; run by it, under mpiexec.  Prints one JSON object on rank 0.

All work waits (`time.sleep`) instead of computing: an emulation of tasks, nodes, rows and vertices that need no core, so
that many more ranks than cores can work at the same time.  A slow rank waits longer.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import lb_mpi
from benchmarks.scale import (
    CALLS,
    EXCHANGES,
    MAPS,
    ROW_S,
    Case,
    nodes_s,
    quantum_s,
    rank_speeds,
    row_draws,
    stretch,
    task_draws,
    vertices,
)
from lb_mpi.graph import Floats, mesh, most_square_mesh
from lb_mpi.mpi.common.collective import barrier

COMM = MPI.COMM_WORLD
SPEEDS = rank_speeds(COMM.size)
SPEED = float(SPEEDS[COMM.rank])
SAVED_BYTES = 8_000_000  # of all ranks


def wait_task(seconds: float) -> float:
    """Wait as long as a task takes on this rank."""
    time.sleep(seconds / SPEED)
    return seconds


def wait_rows(rows: Floats) -> Floats:
    """Wait as long as some rows take on this rank."""
    time.sleep(float(rows.sum()) / SPEED)
    return rows


def slowest(seconds: float) -> float:
    """Return the greatest of the ranks' numbers; collective."""
    return float(COMM.allreduce(seconds, MPI.MAX))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, from when its last rank has begun it to when its last rank has ended it, and its result.

    Collective.  All clocks are those of one machine.  The last ranks leave a barrier up to 60 ms after the first ones.
    """
    barrier(COMM)
    began = time.perf_counter()
    result = run()
    ended = time.perf_counter()
    return slowest(ended) - slowest(began), result


def pool() -> list[float]:
    """Seconds of each map."""
    seconds = []
    with lb_mpi.Pool(COMM) as pool:
        for seed in MAPS.values():
            items = task_draws(COMM.size, seed).tolist()
            took, results = timed(lambda items=items: pool.map(wait_task, items))  # type: ignore[misc]
            assert results is None or results == items
            seconds.append(took)
    return seconds


def search(route: str) -> list[float]:
    """Seconds of the search; messages of the busiest rank; seconds of the call before and after the search."""
    from lb_mpi.searching.uts import PUBLISHED, TREES, UnbalancedTreeSearch  # here, since it imports numba

    class WaitingTreeSearch(UnbalancedTreeSearch):
        """A tree search whose nodes take `node_s` seconds each, all of them asleep but for the counting."""

        def __init__(self, node_s: float) -> None:
            super().__init__(TREES[Case.TREE])
            self._node_s = node_s

        def work(self, units: int) -> int:
            """Count nodes, and wait as long as they take on this rank."""
            until = time.perf_counter()
            done = super().work(units)
            until += done * self._node_s
            if (rest_s := until - time.perf_counter()) > 0.0:
                time.sleep(rest_s)
            return done

    node_s = nodes_s(COMM.size)
    quantum = max(1, round(quantum_s(COMM.size) * SPEED / node_s))
    warm = WaitingTreeSearch(0.0)
    warm.start()
    warm.work(10)  # so that the compiled code is in memory before the clock starts
    problem = WaitingTreeSearch(node_s / SPEED)
    took, result = timed(lambda: lb_mpi.search(COMM, problem, threshold=Case.THRESHOLD, route=route, quantum=quantum))
    assert result.value == PUBLISHED[Case.TREE]
    return [result.seconds, max(rank.messages for rank in result.ranks), took - result.seconds]


def rows(**options: Any) -> list[float]:
    """Seconds of each call."""
    seconds = []
    with lb_mpi.Balancer(COMM, **options) as balancer:
        for call in range(CALLS):
            mine = stretch(COMM.size) * ROW_S * row_draws(COMM.size)(call)[COMM.rank]
            took, results = timed(lambda mine=mine: balancer.map_rows(wait_rows, mine))  # type: ignore[misc]
            assert (results == mine).all()
            seconds.append(took)
    return seconds


def graph() -> list[float]:
    """Seconds to distribute a mesh; of a step in which each rank waits for its vertices and exchanges; of an exchange."""
    mesh, vertex_s = vertices(COMM.size)
    took, plan = timed(lambda: lb_mpi.distribute(COMM, mesh, speeds=SPEEDS))
    with plan:
        values = np.ones(len(plan.vertices))
        plan.exchange(values)

        def step() -> None:
            time.sleep(len(plan.vertices) * vertex_s / SPEED)
            plan.exchange(values)

        steps = [timed(step)[0] for _ in range(EXCHANGES)]
        exchanges = [timed(lambda: plan.exchange(values))[0] for _ in range(EXCHANGES)]
    return [took, float(np.median(steps)), float(np.median(exchanges))]


def save() -> list[float]:
    """Seconds of a save, of a load on as many ranks, and of a load on half of them."""
    with tempfile.TemporaryDirectory() as made:
        folder = COMM.bcast(made)
        n = SAVED_BYTES // 8 // COMM.size
        mine = np.arange(n) + n * COMM.rank
        saving = timed(lambda: lb_mpi.save(COMM, folder, 1, rows=mine))[0]
        loading, loaded = timed(lambda: lb_mpi.load(COMM, folder))
        assert (loaded[1]["rows"] == mine).all()
        half = MPI.Intracomm(COMM.Split(COMM.rank % 2, COMM.rank))
        again = 0.0
        if COMM.rank % 2 == 0:
            began = time.perf_counter()
            loaded = lb_mpi.load(half, folder)
            again = time.perf_counter() - began
            assert loaded is not None
            assert half.allreduce(int(loaded[1]["rows"].sum())) == n * COMM.size * (n * COMM.size - 1) // 2
        barrier(COMM)
        half.Free()
        return [saving, loading, slowest(again)]


CASES: dict[str, Callable[[], list[float]]] = {
    "pool": pool,
    "ring": lambda: search("ring"),
    "walks": lambda: search("random"),
    "rows": lambda: rows(scheme="direct"),
    "neighbours": lambda: rows(graph=mesh(*most_square_mesh(COMM.size)), scheme="fos"),
    "graph": graph,
    "save": save,
}


def memory_mb() -> float:
    """Memory of this process in MB; what it shares with others counts in equal parts (PSS)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1]) / 1e3
    raise RuntimeError("/proc/self/smaps_rollup: expected a line Pss")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the cases, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_ranks", description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--began", type=float, required=True, help="time.time() when mpiexec was started")
    options = parser.parse_args(argv)
    start_s = slowest(time.time() - options.began)
    answer: dict[str, Any] = {"start_s": start_s, "cases": {}}
    for name in options.cases:
        cpu_s = sum(os.times()[:2])
        answer["cases"][name] = {"seconds": CASES[name]()}
        answer["cases"][name]["cpu_s"] = COMM.allreduce(sum(os.times()[:2]) - cpu_s)
    answer["memory_mb"] = COMM.allreduce(memory_mb()) / COMM.size
    answer["end"] = time.time()
    if COMM.rank == 0:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
