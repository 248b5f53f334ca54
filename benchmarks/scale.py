"""Compare many real ranks with the simulator.  python -m benchmarks.scale --real

Each case runs on 64, 128 and 256 real ranks of this machine, whose work waits (sleeps) instead of computing, as an emulation
of ranks that have a core each.  Speeds are 1, 0.5, 0.25, 0.25, and so on.  For each case the table has the time divided by
its lower bound, the prediction of the simulator for the same number, and predicted / measured.

    pool      three maps of 40 heavy-tailed tasks per rank: of items never seen, of others by ranks of known speeds, and of
              the same ones again
    ring      a tree search with drafts on the paper's ring
    walks     the same with drafts that walk over random ranks
    rows      calls of map_rows with random costs of rows, by the root's plan: the first, and the median of the later half
    neighbours  the same, by plans that neighbours make
    graph     steps on a mesh that was distributed by speed: each rank waits for its vertices, and exchanges its halo
    save      lb_mpi.save, and lb_mpi.load on as many ranks and on half of them: seconds only

The ranks share the cores for everything but waiting: starting, messages, polls.  The simulator knows that each turn needs a
core for a while, and that a waiting rank sleeps between its polls.  On more than 64 ranks all work is longer in proportion,
and the ring is left out unless it is requested: its tokens pass all ranks, each of which sleeps for up to 0.2 ms times the
number of ranks per core.

Also printed: seconds from mpiexec to the first message, seconds from the last one to the end, memory per rank (shared memory
counts once), CPU seconds per rank.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import command, known, percent
from lb_mpi.cli.simulate import search as searches
from lb_mpi.cli.simulate.rows import Cluster, Costs, row_costs
from lb_mpi.cli.simulate.tasks import SimulatedPool, bound_s, task_costs
from lb_mpi.distributing.allocation import allocate
from lb_mpi.graph import Floats, Graph, mesh, most_square_mesh
from lb_mpi.mpi.common.waiting import N_CORES, longest_nap_s
from lb_mpi.searching.guard import Options
from lb_mpi.virtual import Network
from tools.environment import here
from tools.others import Watch

RANKS = (64, 128, 256)
SPEEDS = (1.0, 0.5, 0.25, 0.25)
LIMIT_S = 900.0
WITHIN = 0.10  # of the prediction
TURN_S = 0.15e-3  # of a core: half of what a task of the pool takes, which has two turns; the caches are cold

TASKS, TASK_S, SPREAD = 40, 20e-3, 1.0  # a rank; mean seconds; of the logarithms
MAPS = {"1": 0, "2, other items": 1, "3, the same items": 1}  # the seed of each
SEARCH_S = 6.0  # of a search without waiting for others
ROWS, ROW_S, CALLS = 20, 10e-3, 8  # a rank; mean seconds
VERTICES, STEP_S, EXCHANGES = 100, 0.1, 10  # a rank; of a step without exchange


class Case:
    """The parameters of the search."""

    TREE, THRESHOLD = "T1", 16.0


def rank_speeds(size: int) -> Floats:
    """(size,) speeds."""
    return np.resize(np.array(SPEEDS), size)


def network(size: int) -> Network:
    """Return the links of ranks that share the cores: a message waits until its receiver has ended its nap."""
    return Network((20e-6, longest_nap_s(size)), n_cores=N_CORES, turn_s=TURN_S)


def stretch(size: int) -> float:
    """Return the factor of all times: each task, poll and message costs CPU time, of which all ranks share a few cores."""
    return max(1.0, size / RANKS[0])


def quantum_s(size: int) -> float:
    """Seconds of a search between two polls, so that polls don't fill the cores."""
    return max(5e-3, 2 * longest_nap_s(size))


def task_draws(size: int, seed: int) -> Floats:
    """(TASKS * size,) seconds of the tasks of a map."""
    return task_costs("lognormal", TASKS * size, stretch(size) * TASK_S, spread=SPREAD, seed=seed)


def nodes_s(size: int) -> float:
    """Seconds of a node at speed 1."""
    from lb_mpi.searching.uts import PUBLISHED  # here, since it imports numba, for which 256 ranks may lack memory

    return stretch(size) * SEARCH_S * float(rank_speeds(size).sum()) / PUBLISHED[Case.TREE].nodes


def row_draws(size: int) -> Costs:
    """Costs of the rows of each rank, with a mean of 1."""
    return row_costs("lognormal", size, ROWS, spread=SPREAD)


def vertices(size: int) -> tuple[Graph, float]:
    """Return a mesh, and the seconds of a vertex at speed 1."""
    n = VERTICES * size
    return mesh(*most_square_mesh(n)), stretch(size) * STEP_S * float(rank_speeds(size).sum()) / n


class Line(NamedTuple):
    """One line of the table: times divided by the bound; a save has seconds only."""

    case: str
    ranks: int
    measured: float
    predicted: float | None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted / measured."""
        return None if self.predicted is None else self.predicted / self.measured

    def __str__(self) -> str:
        """Write it."""
        if self.predicted is None or self.ratio is None:
            return f"{self.case:26} {self.ranks:6d} {self.measured:10.3f} {self.unit}"
        near = "yes" if abs(self.ratio - 1.0) <= WITHIN else "no"
        return f"{self.case:26} {self.ranks:6d} {self.measured:10.3f} {self.predicted:10.3f} {self.ratio:10.3f} {near}"


def pool(size: int, seconds: list[float]) -> list[Line]:
    """The maps."""
    speeds = rank_speeds(size)
    simulated = SimulatedPool([size], speeds, network=network(size), look_s=longest_nap_s(size) / 2)
    lines = []
    for (name, seed), took in zip(MAPS.items(), seconds, strict=True):
        costs = task_draws(size, seed)
        predicted = simulated.map(costs, items=bytes([seed])).ratio
        lines.append(Line(f"pool, map {name}", size, took / bound_s(costs, speeds), predicted))
    return lines


def search(size: int, seconds: list[float], route: str) -> list[Line]:
    """The search, by its route; messages of the busiest rank; seconds of the call beside it."""
    from lb_mpi.searching.uts import TREES, UnbalancedTreeSearch

    took, most, beside_s = seconds
    result = searches.search(
        [UnbalancedTreeSearch(TREES[Case.TREE]) for _ in range(size)],
        speeds=rank_speeds(size),
        network=network(size),
        unit_s=nodes_s(size),
        quantum_s=quantum_s(size),
        options=Options(threshold=Case.THRESHOLD, route=route),
    )
    name = {"ring": "search, ring", "random": "search, walks"}[route]
    busiest = Line(f"{name}, messages", size, most, None, f"of the busiest rank; predicted {result.most_messages}")
    alone_s = stretch(size) * SEARCH_S
    beside = Line(f"{name}, beginning and end", size, beside_s, None, "s")
    return [Line(name, size, took / alone_s, result.virtual_seconds / alone_s), busiest, beside]


def rows(size: int, seconds: list[float], name: str, **options: Any) -> list[Line]:
    """The first call, and the later half."""
    speeds = rank_speeds(size) / (stretch(size) * ROW_S)
    cluster = Cluster(mesh(*most_square_mesh(size)), speeds, network=network(size), **options)
    calls = [cluster.call(row_draws(size)(k)) for k in range(CALLS)]
    measured = [took / call.bound_s for took, call in zip(seconds, calls, strict=True)]
    predicted = [call.seconds / call.bound_s for call in calls]
    later = CALLS // 2
    return [
        Line(f"{name}, call 1", size, measured[0], predicted[0]),
        Line(f"{name}, later", size, statistics.median(measured[later:]), statistics.median(predicted[later:])),
    ]


def graph(size: int, seconds: list[float]) -> list[Line]:
    """The steps, against the allocation."""
    took, step_s, exchange_s = seconds
    (tasks, vertex_s), speeds = vertices(size), rank_speeds(size)
    turns_s = 2 * TURN_S * size / N_CORES  # all ranks send and receive at about the same time
    predicted = allocate(tasks.n, vertex_s / speeds).makespan + turns_s
    return [
        Line("graph, step", size, step_s / (stretch(size) * STEP_S), predicted / (stretch(size) * STEP_S)),
        Line("graph, distribute", size, took, None, "s"),
        Line("graph, exchange", size, exchange_s, None, "s"),
    ]


def save(size: int, seconds: list[float]) -> list[Line]:
    """Seconds."""
    names = ("save", "load", "load on half")
    return [Line(name, size, took, None, "s") for name, took in zip(names, seconds, strict=True)]


CASES = {
    "pool": pool,
    "ring": lambda size, seconds: search(size, seconds, "ring"),
    "walks": lambda size, seconds: search(size, seconds, "random"),
    "rows": lambda size, seconds: rows(size, seconds, "rows, root's plan", scheme="direct"),
    "neighbours": lambda size, seconds: rows(size, seconds, "rows, neighbours", scheme="fos"),
    "graph": graph,
    "save": save,
}


def measure(size: int, cases: list[str]) -> tuple[list[Line], float]:
    """Run the cases in one job of `size` ranks; return the lines, and what others took of the machine."""
    watch = Watch()
    answer = here().answer(size, ["-m", "benchmarks.scale_ranks", *cases, "--began", str(time.time())], LIMIT_S)
    ended_s = time.time() - answer["end"]
    others = watch.others()
    lines = [
        Line("start", size, answer["start_s"], None, "s"),
        Line("end", size, ended_s, None, "s"),
        Line("memory per rank", size, answer["memory_mb"], None, "MB"),
    ]
    for name in cases:
        case = answer["cases"][name]
        lines += CASES[name](size, case["seconds"])
        lines.append(Line(f"{name}, CPU per rank", size, case["cpu_s"] / size, None, "s"))
    return lines, others


def main() -> None:
    """Measure, print."""
    parser = command("scale", __doc__)
    parser.add_argument("--real", action="store_true", required=True, help="run on real ranks of this machine")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS), help="numbers of ranks (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=CASES, help="run only these cases (all; no ring above 64 ranks)")
    options = parser.parse_args()
    words = []
    if not options.json:
        print(f"{'case':26} {'ranks':>6} {'measured':>10} {'predicted':>10} {'ratio':>10} within {WITHIN:.0%}", flush=True)
    for size in options.ranks:
        lines, others = measure(size, options.only or [name for name in CASES if name != "ring" or size <= RANKS[0]])
        words += [{**line._asdict(), "ratio": line.ratio, "others": known(others)} for line in lines]
        if not options.json:
            print(*lines, f"others took {percent(others)}", sep="\n", flush=True)
    if options.json:
        print(json.dumps(words))


if __name__ == "__main__":
    main()
