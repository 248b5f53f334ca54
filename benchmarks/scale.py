"""Compare many real ranks with the simulator.  mpiexec -n 64 python -m benchmarks.scale [CASE ...]

All work waits (`time.sleep`) instead of computing, as an emulation of ranks that have a core each.  Speeds are 1, 0.5, 0.25,
0.25, and so on: a slow rank waits longer.  For each case the table has the time divided by its lower bound, the prediction
of the simulator for the same number, and predicted / measured.

    pool      three maps of 40 heavy-tailed tasks per rank: of items never seen, of others by ranks of known speeds, and of
              the same ones again
    ring      a tree search with drafts on the paper's ring
    walks     the same with drafts that walk over random ranks
    rows      calls of map_rows with random costs of rows, by the root's plan: the first, and the median of the later half
    neighbours  the same, by plans that neighbours make
    graph     steps on a mesh that was distributed by speed: each rank waits for its vertices, and exchanges its halo
    save      lb_mpi.save, and lb_mpi.load: seconds only

The ranks share the cores for everything but waiting: messages, polls.  The simulator knows that each turn needs a core for
a while, and that a waiting rank sleeps between its polls.  On more than 64 ranks all work is longer in proportion, and the
ring is left out unless it is requested: its tokens pass all ranks, each of which sleeps for up to 0.2 ms times the number of
ranks per core.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import lb_mpi
from benchmarks.measuring import command
from lb_mpi.cli.simulate import search as searches
from lb_mpi.cli.simulate.rows import Cluster, row_costs
from lb_mpi.cli.simulate.tasks import SimulatedPool, bound_s, task_costs
from lb_mpi.distributing.allocation import allocate
from lb_mpi.graph import Floats, mesh, most_square_mesh
from lb_mpi.mpi.common.collective import barrier
from lb_mpi.mpi.common.waiting import N_CORES, longest_nap_s
from lb_mpi.searching.guard import Options
from lb_mpi.virtual import Network

COMM = MPI.COMM_WORLD
SIZE = COMM.size
FEW = 64  # ranks, whose polls the cores can bear
SPEEDS = np.resize([1.0, 0.5, 0.25, 0.25], SIZE)
SPEED = float(SPEEDS[COMM.rank])
STRETCH = max(1.0, SIZE / FEW)  # of all times: each task, poll and message needs a core, of which all ranks share a few
TURN_S = 0.15e-3  # of a core: half of what a task of the pool takes, which has two turns; the caches are cold
NETWORK = Network((20e-6, longest_nap_s(SIZE)), n_cores=N_CORES, turn_s=TURN_S)  # a message waits for its receiver's nap
WITHIN = 0.10  # of the prediction

TASKS, TASK_S, SPREAD = 40, 20e-3 * STRETCH, 1.0  # a rank; mean seconds; of the logarithms
MAPS = {"1": 0, "2, other items": 1, "3, the same items": 1}  # the seed of each
TREE, THRESHOLD, SEARCH_S = "T1", 16.0, 6.0 * STRETCH  # seconds without waiting for others
QUANTUM_S = max(5e-3, 2 * longest_nap_s(SIZE))  # of a search between two polls, so that polls don't fill the cores
ROWS, ROW_S, CALLS = 20, 10e-3 * STRETCH, 8  # a rank; mean seconds
VERTICES, STEP_S, STEPS = 100, 0.1 * STRETCH, 10  # a rank; of a step without exchange
SAVED_BYTES = 8_000_000  # of all ranks


class Line(NamedTuple):
    """One line of the table: times divided by the bound, or seconds of which nothing is predicted."""

    case: str
    measured: float
    predicted: float | None = None

    def __str__(self) -> str:
        """Write it."""
        if self.predicted is None:
            return f"{self.case:28} {self.measured:10.3f} s"
        ratio = self.predicted / self.measured
        near = "yes" if abs(ratio - 1.0) <= WITHIN else "no"
        return f"{self.case:28} {self.measured:10.3f} {self.predicted:10.3f} {ratio:10.3f} {near}"


Lines = Callable[[], list[Line]]  # of a case that was measured: predicts, on one rank


def wait_task(seconds: float) -> float:
    """Wait as long as a task takes on this rank."""
    time.sleep(seconds / SPEED)
    return seconds


def wait_rows(rows: Floats) -> Floats:
    """Wait as long as some rows take on this rank."""
    time.sleep(float(rows.sum()) / SPEED)
    return rows


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, from when its last rank has begun it to when its last rank has ended it, and its result.

    Collective.  All clocks are those of one machine.  The last ranks leave a barrier up to 60 ms after the first ones.
    """
    barrier(COMM)
    began = time.perf_counter()
    result = run()
    ended = time.perf_counter()
    return COMM.allreduce(ended, MPI.MAX) - COMM.allreduce(began, MPI.MAX), result


def pool() -> Lines:
    """Map tasks."""
    drawn = [task_costs("lognormal", TASKS * SIZE, TASK_S, spread=SPREAD, seed=seed) for seed in MAPS.values()]
    seconds = []
    with lb_mpi.Pool(COMM) as pool:
        for costs in drawn:
            items = costs.tolist()
            took, results = timed(lambda items=items: pool.map(wait_task, items))  # type: ignore[misc]
            assert results is None or results == items
            seconds.append(took)

    def lines() -> list[Line]:
        simulated = SimulatedPool([SIZE], SPEEDS, network=NETWORK, poll_s=longest_nap_s(SIZE) / 2)
        return [
            Line(f"pool, map {name}", took / bound_s(costs, SPEEDS), simulated.map(costs, items=bytes([seed])).ratio)
            for (name, seed), took, costs in zip(MAPS.items(), seconds, drawn, strict=True)
        ]

    return lines


def search(name: str, route: str) -> Lines:
    """Search a tree; also the seconds of the call before and after the search."""
    # Here, since it imports numba, for which 256 ranks may lack memory.
    from lb_mpi.searching.uts import PUBLISHED, TREES, UnbalancedTreeSearch

    class WaitingTreeSearch(UnbalancedTreeSearch):
        """A tree search whose nodes take `node_s` seconds each, all of them asleep but for the counting."""

        def __init__(self, node_s: float) -> None:
            super().__init__(TREES[TREE])
            self._node_s = node_s

        def work(self, units: int) -> int:
            """Count nodes, and wait as long as they take on this rank."""
            until = time.perf_counter()
            done = super().work(units)
            until += done * self._node_s
            if (rest_s := until - time.perf_counter()) > 0.0:
                time.sleep(rest_s)
            return done

    node_s = SEARCH_S * float(SPEEDS.sum()) / PUBLISHED[TREE].nodes
    quantum = max(1, round(QUANTUM_S * SPEED / node_s))
    warm = WaitingTreeSearch(0.0)
    warm.start()
    warm.work(10)  # so that the compiled code is in memory before the clock starts
    problem = WaitingTreeSearch(node_s / SPEED)
    took, result = timed(lambda: lb_mpi.search(COMM, problem, threshold=THRESHOLD, route=route, quantum=quantum))
    assert result.value == PUBLISHED[TREE]

    def lines() -> list[Line]:
        simulated = searches.search(
            [UnbalancedTreeSearch(TREES[TREE]) for _ in range(SIZE)], speeds=SPEEDS, network=NETWORK, unit_s=node_s,
            quantum_s=QUANTUM_S, options=Options(threshold=THRESHOLD, route=route),
        )  # fmt: skip
        beside = Line(f"search, {name}, begin and end", took - result.seconds)
        return [Line(f"search, {name}", result.seconds / SEARCH_S, simulated.virtual_seconds / SEARCH_S), beside]

    return lines


def rows(name: str, **options: Any) -> Lines:
    """Lend rows."""
    costs = row_costs("lognormal", SIZE, ROWS, spread=SPREAD)  # with a mean of 1
    seconds = []
    with lb_mpi.Balancer(COMM, **options) as balancer:
        for call in range(CALLS):
            mine = ROW_S * costs(call)[COMM.rank]
            took, results = timed(lambda mine=mine: balancer.map_rows(wait_rows, mine))  # type: ignore[misc]
            assert (results == mine).all()
            seconds.append(took)

    def lines() -> list[Line]:
        cluster = Cluster(mesh(*most_square_mesh(SIZE)), SPEEDS / ROW_S, network=NETWORK, scheme=options["scheme"])
        calls = [cluster.call(costs(call)) for call in range(CALLS)]
        both = [(took / call.bound_s, call.seconds / call.bound_s) for took, call in zip(seconds, calls, strict=True)]
        later = map(statistics.median, zip(*both[CALLS // 2 :], strict=True))
        return [Line(f"rows, {name}, call 1", *both[0]), Line(f"rows, {name}, later", *later)]

    return lines


def graph() -> Lines:
    """Distribute a mesh; in a step, each rank waits for its vertices and exchanges."""
    tasks = mesh(*most_square_mesh(VERTICES * SIZE))
    vertex_s = STEP_S * float(SPEEDS.sum()) / tasks.n  # at speed 1
    with lb_mpi.distribute(COMM, tasks, speeds=SPEEDS) as plan:
        values = np.ones(len(plan.vertices))
        plan.exchange(values)

        def step() -> None:
            time.sleep(len(plan.vertices) * vertex_s / SPEED)
            plan.exchange(values)

        step_s = statistics.median(timed(step)[0] for _ in range(STEPS))
    turns_s = 2 * TURN_S * SIZE / N_CORES  # all ranks send and receive at about the same time
    return lambda: [Line("graph, step", step_s / STEP_S, (allocate(tasks.n, vertex_s / SPEEDS).makespan + turns_s) / STEP_S)]


def save() -> Lines:
    """Save, and load on as many ranks."""
    with tempfile.TemporaryDirectory() as made:
        folder = COMM.bcast(made)
        n = SAVED_BYTES // 8 // SIZE
        mine = np.arange(n) + n * COMM.rank
        saving, _ = timed(lambda: lb_mpi.save(COMM, folder, 1, rows=mine))
        loading, loaded = timed(lambda: lb_mpi.load(COMM, folder))
        assert (loaded[1]["rows"] == mine).all()
        barrier(COMM)
    return lambda: [Line("save", saving), Line("load", loading)]


CASES: dict[str, Callable[[], Lines]] = {
    "pool": pool,
    "ring": lambda: search("ring", "ring"),
    "walks": lambda: search("walks", "random"),
    "rows": lambda: rows("root's plan", scheme="direct"),
    "neighbours": lambda: rows("neighbours", graph=mesh(*most_square_mesh(SIZE)), scheme="fos"),
    "graph": graph,
    "save": save,
}


def main() -> None:
    """Measure, predict, print."""
    parser = command("scale", __doc__)
    usual = [name for name in CASES if name != "ring" or SIZE <= FEW]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (default: all)")
    options = parser.parse_args()
    if unknown := {*options.cases} - {*CASES}:
        parser.error(f"{min(unknown)}: expected one of {', '.join(CASES)}")
    measured = [CASES[name]() for name in options.cases or usual]
    if COMM.rank == 0:
        found = [line for lines in measured for line in lines()]
        if options.json:
            print(json.dumps({"ranks": SIZE, "lines": [line._asdict() for line in found]}))
        else:
            print(f"{f'case, {SIZE} ranks':28} {'measured':>10} {'predicted':>10} {'ratio':>10} within {WITHIN:.0%}")
            print(*found, sep="\n")
    barrier(COMM)  # sleeping, while rank 0 predicts


if __name__ == "__main__":
    main()
