"""The ranks' part of `benchmarks.grain`; run by it, under mpiexec.

Rank 0 prints a JSON object: seconds of a step by length, way and round.  A step of length s is work of s seconds at speed 1
for each rank.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

import lb_mpi
from benchmarks.grain import LIST_S, ONE_MORE, task_list, timed
from benchmarks.measuring import spin
from lb_mpi.checks import comma_list
from lb_mpi.graph import Floats
from lb_mpi.mpi.common.collective import barrier

COMM = MPI.COMM_WORLD
ROWS, COLUMNS = 60, 4  # of each rank
LEARN = 8  # calls of map_rows, and warm steps of the other ways, before the clock starts
BLOCK_S, STEPS = 0.15, (3, 60)  # seconds of steps that a round has of each way, and the least and the most steps
SIDE = 64  # vertices on a side of the mesh
NODE_S = 20e-6  # of a node of the search
EARLY_S = 1e-4  # a sleep may end so much too late

Seconds = dict[str, list[float]]
Way = Callable[[], object]


def in_turn(
    comm: MPI.Intracomm, ways: Mapping[str, Way], rounds: int, steps: int = 1, warm: int = 0
) -> dict[str, list[float]]:
    """Seconds of a step on the slowest rank, by way and round; collective.

    In each round, each way does `warm` steps, waits for all ranks, and does `steps` steps by the clock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            for _ in range(warm):
                step()
            barrier(comm)
            began = time.perf_counter()
            for _ in range(steps):
                step()
            seconds[name].append(comm.allreduce((time.perf_counter() - began) / steps, MPI.MAX))
    return seconds


def steps_of(ideal_s: float) -> int:
    """Number of steps in a round."""
    return min(max(round(BLOCK_S / max(ideal_s, 1e-9)), STEPS[0]), STEPS[1])


def wait(seconds: float) -> None:
    """Wait so long, asleep but for the end."""
    until = time.perf_counter() + seconds
    if seconds > EARLY_S:
        time.sleep(seconds - EARLY_S)
    while time.perf_counter() < until:
        pass


def rows(options: argparse.Namespace, length_s: float) -> Seconds:
    """Rows of equal work: the same number on each rank, and for a plain loop also dealt by speed."""
    speeds = comma_list("--speeds", options.speeds, COMM.size)
    emulated = 1.0 if options.hosts_are_slow else speeds[COMM.rank]
    work = wait if options.waits else spin
    share = speeds[COMM.rank] * COMM.size / sum(speeds)
    equal, dealt = (np.full((n, COLUMNS), length_s / ROWS) for n in (ROWS, round(ROWS * share)))

    def function(rows: Floats) -> Floats:
        if length_s:
            work(float(rows[:, 0].sum()) / emulated)
        return 2.0 * rows

    def loop(rows: Floats) -> None:
        function(rows)
        COMM.Barrier()

    with lb_mpi.Balancer(COMM) as balancer:
        ways: dict[str, Way] = {
            "map_rows": lambda: balancer.map_rows(function, equal),
            "equal rows": lambda: loop(equal),
            "rows by speed": lambda: loop(dealt),
        }
        if len(set(speeds)) == 1:
            del ways["rows by speed"]
        in_turn(COMM, ways, 1, LEARN)
        return in_turn(COMM, ways, options.repeat, steps_of(length_s * COMM.size / sum(speeds)), warm=1)


def stencil(options: argparse.Namespace, length_s: float) -> Seconds:
    """A step of a stencil: the program's own exchange of edges, then rows of equal work, with what is above and below."""
    near = [rank for rank in (COMM.rank - 1, COMM.rank + 1) if 0 <= rank < COMM.size]
    field, edges = np.ones((ROWS, SIDE)), {rank: np.ones(SIDE) for rank in (COMM.rank - 1, COMM.rank + 1)}

    def function(rows: Floats, above: Floats, below: Floats) -> Floats:
        spin(length_s * len(rows) / ROWS)
        return 0.5 * rows + 0.25 * (above + below)

    def around() -> tuple[Floats, Floats, Floats]:
        requests = [COMM.Irecv(edges[rank], rank) for rank in near]
        requests += [COMM.Isend(field[0] if rank < COMM.rank else field[-1], rank) for rank in near]
        MPI.Request.Waitall(requests)
        above, below = edges[COMM.rank - 1][None], edges[COMM.rank + 1][None]
        return field, np.concatenate((above, field[:-1])), np.concatenate((field[1:], below))

    with lb_mpi.Balancer(COMM) as balancer:
        ways: dict[str, Way] = {
            "map_rows": lambda: balancer.map_rows(function, *around()),
            "equal rows": lambda: function(*around()),
        }
        in_turn(COMM, ways, 1, LEARN)
        return in_turn(COMM, ways, options.repeat, steps_of(length_s), warm=1)


def calls(options: argparse.Namespace, _: float) -> Seconds:
    """Calls of map_rows whose function does nothing, beside what MPI has."""
    rows, one, other = np.ones((ROWS, COLUMNS)), np.ones(8), np.ones(8)
    with lb_mpi.Balancer(COMM) as balancer:
        ways: dict[str, Way] = {
            "map_rows": lambda: balancer.map_rows(np.copy, rows),
            "barrier": COMM.Barrier,
            "allreduce": lambda: COMM.Allreduce(one, other),
        }
        return in_turn(COMM, ways, options.repeat, 100, warm=LEARN)


def exchange(options: argparse.Namespace, length_s: float) -> Seconds:
    """A step of work, and the exchange of a mesh's values with the ranks above and below."""
    near = [rank for rank in (COMM.rank - 1, COMM.rank + 1) if 0 <= rank < COMM.size]
    with lb_mpi.distribute(COMM, f"mesh:{SIDE * COMM.size}x{SIDE}", method="block") as plan:
        values = np.ones(len(plan.vertices))
        edges = {rank: values[:SIDE] if rank < COMM.rank else values[-SIDE:] for rank in near}
        ghosts = {rank: np.empty(SIDE) for rank in near}

        def by_hand() -> None:
            spin(length_s)
            requests = [COMM.Irecv(ghosts[rank], rank) for rank in near]
            requests += [COMM.Isend(edges[rank], rank) for rank in near]
            MPI.Request.Waitall(requests)

        def planned() -> None:
            spin(length_s)
            plan.exchange(values)

        ways: dict[str, Way] = {"plan.exchange": planned, "Irecv, Isend, Waitall": by_hand}
        return in_turn(COMM, ways, options.repeat, steps_of(length_s), warm=LEARN)


class Pile(lb_mpi.Problem):
    """Nodes without children, all of them on rank 0 at first."""

    found = False

    def __init__(self, n: int) -> None:
        """Make a rank's part of a search of n nodes."""
        self.n, self.left, self.seen = n, 0, 0

    def start(self) -> None:
        """Begin with all nodes."""
        self.left = self.n

    def work(self, units: int) -> int:
        """Visit some."""
        done = min(units, self.left)
        spin(done * NODE_S)
        self.left, self.seen = self.left - done, self.seen + done
        return done

    def load(self) -> float:
        """Number of nodes left."""
        return float(self.left)

    def split(self) -> bytes | None:
        """Give half of them away."""
        given = self.left // 2
        self.left -= given
        return given.to_bytes(8, "little") if given else None

    def absorb(self, payload: bytes) -> None:
        """Receive some."""
        self.left = int.from_bytes(payload, "little")

    def result(self) -> int:
        """Number of nodes seen."""
        return self.seen

    def merge(self, one: int, other: int) -> int:
        """Add them up."""
        return one + other


def search(options: argparse.Namespace, length_s: float) -> Seconds:
    """A step is a whole search, in which rank 0 has all work at first."""
    each = round(length_s / NODE_S)

    def together() -> None:
        assert lb_mpi.search(COMM, Pile(each * COMM.size)).value == each * COMM.size

    def dealt() -> None:
        spin(each * NODE_S)
        COMM.allreduce(each)

    ways: dict[str, Way] = {"search": together, "equal parts": dealt}
    return in_turn(COMM, ways, options.repeat, steps_of(length_s), warm=1)


# --- tasks: each way runs function(item) for all items, and has the results on rank 0 ------------------------------------
#
# It is called on all ranks of its communicator as run(comm, items, maps), is warmed with the first items, and returns the
# seconds of all maps on rank 0, None elsewhere.

Timed = Callable[[MPI.Intracomm, Sequence[float], int], float | None]
WARM = 2  # items
SIGMA = 1.0  # of the logarithm of heavy-tailed costs: in a thousand, the largest is some 14 times the mean


def pool(comm: MPI.Intracomm, items: Sequence[float], maps: int) -> float | None:
    """lb_mpi.Pool, of which only the root goes on: the function has to travel, as with the others."""
    with lb_mpi.Pool(comm, root=0) as pool:
        if pool is None:
            return None
        pool.map(spin, items[:WARM])
        return timed(lambda: pool.map(spin, items), maps)


def executor(kind: Callable[..., Any], chunksize: int) -> Timed:
    """lb_mpi.Executor, or mpi4py's MPICommExecutor, of which rank 0 only manages."""

    def run(comm: MPI.Intracomm, items: Sequence[float], maps: int) -> float | None:
        executor: Any
        with kind(comm) as executor:
            return None if executor is None else timed_map(executor, items, maps, chunksize)

    return run


def timed_map(executor: Any, items: Sequence[float], maps: int, chunksize: int) -> float:
    """Seconds of an executor's maps."""
    list(executor.map(spin, items[:WARM], chunksize=1))
    return timed(lambda: list(executor.map(spin, items, chunksize=chunksize)), maps)


def submitted(comm: MPI.Intracomm, items: Sequence[float], maps: int) -> float | None:
    """lb_mpi.Executor, each item by `submit`."""
    with lb_mpi.Executor(comm) as executor:
        if executor is None:
            return None
        list(executor.map(spin, items[:WARM]))
        return timed(lambda: [future.result() for future in [executor.submit(spin, item) for item in items]], maps)


def schwimmbad(comm: MPI.Intracomm, items: Sequence[float], maps: int) -> float | None:
    """Its MPIPool, of which rank 0 only manages."""
    try:
        pool = importlib.import_module("schwimmbad").MPIPool(comm)
    except SystemExit:  # how the other ranks leave it
        return None
    pool.map(spin, items[:WARM])
    seconds = timed(lambda: pool.map(spin, items), maps)
    pool.close()
    pool.workers.clear()  # it closes again at the end of the program, by messages that nobody would receive
    return seconds


TASK_WAYS: dict[str, Timed] = {
    "pool": pool,
    "Executor 1": executor(lb_mpi.Executor, 1),
    "Executor 16": executor(lb_mpi.Executor, 16),
    "Executor.submit": submitted,
    "MPICommExecutor 1": executor(MPICommExecutor, 1),
    "MPICommExecutor 16": executor(MPICommExecutor, 16),
    "schwimmbad": schwimmbad,
}


def tasks(options: argparse.Namespace, length_s: float) -> Seconds:
    """A step is a task on each rank; the ways run in an order that is drawn; the last rank is for `ONE_MORE`."""
    n, maps = task_list(options.ranks, length_s, options.few, options.list_s)
    fewer = MPI.Intracomm(COMM.Split(0 if COMM.rank < options.ranks else MPI.UNDEFINED, COMM.rank))
    seconds: Seconds = {}
    for name in random.Random(options.seed).sample(options.ways, len(options.ways)):
        comm = COMM if name.endswith(ONE_MORE) else fewer
        barrier(COMM)
        took = TASK_WAYS[name.removesuffix(ONE_MORE)](comm, [length_s] * n, maps) if comm != MPI.COMM_NULL else None
        if took is not None:
            seconds[name] = [took * options.ranks / (n * maps)]
    barrier(COMM)
    return seconds


def pool_executor(options: argparse.Namespace, length_s: float) -> Seconds:
    """Tasks of MPIPoolExecutor; started by python -m mpi4py.futures, so that rank 0 manages the others."""
    n, maps = task_list(options.ranks, length_s, options.few, options.list_s)
    with MPIPoolExecutor() as executor:
        took = timed_map(executor, [length_s] * n, maps, 1)
        return {f"MPIPoolExecutor 1{ONE_MORE}": [took * options.ranks / (n * maps)]}


def maps(options: argparse.Namespace, length_s: float) -> Seconds:
    """Time of a map of heavy-tailed tasks / its lower bound, from the second map of a pool on; on hosts of these speeds."""
    speeds = comma_list("--speeds", options.speeds, COMM.size)
    found: Seconds = {"map": [], "map, known costs": []}
    with lb_mpi.Pool(COMM) as plain, lb_mpi.Pool(COMM) as by_cost:
        for k in range(options.repeat + 1):
            drawn = np.random.default_rng(options.seed + k).lognormal(0.0, SIGMA, options.tasks)
            items = [float(cost) for cost in drawn * (length_s / drawn.mean())]
            for way, pool in zip(found, (plain, by_cost), strict=True):
                results = pool.map(spin, items, costs=None if pool is plain else items)
                if (report := pool.report()) is not None:
                    assert results == items
                    bound_s = max(sum(items) / sum(speeds), max(items) / max(speeds))
                    found[way].append(report.seconds / bound_s)
    return {way: ratios[1:] for way, ratios in found.items()}


WORKS: dict[str, Callable[[argparse.Namespace, float], Seconds]] = {
    work.__name__: work for work in (rows, stencil, calls, exchange, search, tasks, pool_executor, maps)
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure some work with steps of some lengths."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grain_ranks", description=__doc__)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--lengths", type=float, nargs="+", default=[0.0], help="seconds of work on each rank in a step")
    parser.add_argument("--speeds", default=",".join(["1"] * COMM.size))
    parser.add_argument("--waits", action="store_true", help="rows wait instead of computing")
    parser.add_argument("--hosts-are-slow", action="store_true", help="the hosts have these --speeds: do not emulate them")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of costs, and of the order of ways")
    parser.add_argument("--ways", nargs="+", default=["pool"], help="of tasks")
    parser.add_argument("--ranks", type=int, default=COMM.size, help="of the ways that need no additional one")
    parser.add_argument("--few", type=int, default=0, help="tasks of a map; 0: all of a list")
    parser.add_argument("--list-s", type=float, default=LIST_S, help="seconds of work on each rank in a list of tasks")
    parser.add_argument("--tasks", type=int, default=1000, help="of a map that is compared with its bound")
    options = parser.parse_args(argv)
    answer = [WORKS[options.work](options, length_s) for length_s in options.lengths]
    if COMM.rank == 0:
        print(json.dumps({"lengths": options.lengths, "seconds": answer}))


if __name__ == "__main__":
    main()
