"""Heat on an unstructured graph, explicitly in time: a partition by speeds, and vertices that move when these change.

mpiexec -n 4 python -m apps.heat mesh:200x300 --speeds 0.8,0.4,0.2,0.2
mpiexec -n 4 python -m apps.heat mesh:200x300 --speeds 0.8,0.4,0.2,0.2 --balance block
mpiexec -n 4 python -m apps.heat mesh:150x200 --speeds 0.8,0.4,0.2,0.2 --speed-changes 0:3:8:0.33 --rebalance
mpiexec -n 8 python -m apps.heat FILE.graph --machine machine.json --json
mpiexec -n 4 python -m apps.heat mesh:200x300 --save saves --save-every 10

Vertices are small bodies; heat flows along edges, in proportion to their weights.  In every step a body also radiates, by
the fourth power of its temperature, which is integrated in --work substeps and takes most of the time.  The rank that owns a
vertex computes it; neighbours' temperatures come in a halo exchange.  The last field is the same to the last bit on any
number of ranks with any distribution, for a vertex adds up its neighbours in the order of their numbers in the graph.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import lb_mpi
from apps.command import add_changes, all_speeds, app, as_slow, compile_once, run
from apps.saved_steps import SavedSteps, add_save_options
from apps.speeds import seconds_for
from lb_mpi.checks import integer
from lb_mpi.cli.run.options import add_seed, add_slow_ranks
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.kernels import njit
from lb_mpi.machine import read_machine
from lb_mpi.metrics import imbalance
from lb_mpi.mpi.common.collective import agree, barrier
from lb_mpi.mpi.graph.distribute import METHODS
from lb_mpi.mpi.graph.halo import HaloPlan
from lb_mpi.mpi.graph.rebalance import load_kernels
from lb_mpi.saving.rows import Arrays
from lb_mpi.table import counted

AIR, HOTTEST = 0.25, 1.0  # temperatures
LEFT = 0.01  # imbalance that a rebalancing leaves: vertices are small, and one move lasts for many steps
RADIATION = 0.01  # of the fourth power of a temperature, in a step
BLOCK_SUBSTEPS = 200_000  # about a millisecond: an emulated slow machine is slow all the time, not quick and then asleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    parser.add_argument(
        "graph",
        nargs="?",
        default="mesh:200x300",
        metavar="GRAPH",
        help="a METIS or Matrix Market file, or mesh:RxC, torus:RxC, ... (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=50, help="number of time steps (default: %(default)s)")
    parser.add_argument("--work", type=int, default=200, help="substeps of radiation in each step (default: %(default)s)")
    group = parser.add_argument_group("balancing")
    group.add_argument(
        "--balance",
        choices=METHODS,
        default="static",
        help="static: parts by speed, with few cut edges; slabs: contiguous parts by speed; for comparison: "
        "multilevel-spectral: as static, by the method of a course; block, random: equal blocks or random parts "
        "(default: static)",
    )
    group.add_argument("--effort", choices=("fast", "good", "best"), default="good",
        help="effort of the partition (default: %(default)s)")
    add_seed(group, "the partition")
    group.add_argument("--machine", metavar="FILE",
        help="use the speeds in this file of `info --measure -o` (default: measure them)")
    group.add_argument("--rebalance", action="store_true",
        help="move vertices between neighbouring ranks during the run, where it saves time")
    add_slow_ranks(group)
    add_changes(group)
    add_save_options(parser)


def tasks(graph: Graph, work: int) -> Graph:
    """The same graph, in which a vertex weighs what its step costs: a substep takes about as long as an edge."""
    return Graph(graph.indptr, graph.indices, graph.weights, (graph.degrees + work).astype(float))


@njit(cache=True)
def step(
    heat: Floats, after: Floats, indptr: Ints, indices: Ints, weights: Floats, dt: float, work: int, first: int, end: int
) -> None:
    """One step of the owned vertices first..end-1: `heat` (n + ghosts,) of now, `after` of which these are written.

    Every vertex is computed by the same operations in the same order, whatever vertices are computed together.
    """
    for v in range(first, end):
        here = heat[v]
        flow = 0.0
        for e in range(indptr[v], indptr[v + 1]):
            flow += weights[e] * (heat[indices[e]] - here)
        here += dt * flow
        for _ in range(work):
            square = here * here
            here += (RADIATION / work) * (AIR**4 - square * square)
        after[v] = here


def initial(vertices: Ints) -> Floats:
    """(n,) temperatures that depend on the vertex alone: one in a hundred is hot, the others are nearly as cold as air."""
    bits = scramble(vertices.astype(np.uint64))
    spread = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.where(bits % np.uint64(100) == 0, HOTTEST, AIR * (1.0 + 0.1 * spread))


def scramble(bits: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A one-to-one mapping of 64 bits in which every bit depends on all (the finaliser of splitmix64)."""
    mixed = bits + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def checksum(comm: MPI.Comm, vertices: Ints, heat: Floats) -> str:
    """Of all temperatures to the last bit: the sum mod 2^64 of hashes of (vertex, temperature), in whatever order."""
    hashes = scramble(heat.view(np.uint64) ^ scramble(vertices.astype(np.uint64)))
    total = np.zeros(1, dtype=np.uint64)
    comm.Allreduce(hashes.sum(dtype=np.uint64, keepdims=True), total)
    return f"{int(total[0]):016x}"


def time_step(comm: MPI.Comm, plan: HaloPlan) -> float:
    """The longest step that is stable for certain: half of 1 / the greatest sum of a vertex's conductances."""
    n = len(plan.vertices)
    sums = np.bincount(np.repeat(np.arange(n), np.diff(plan.indptr)), plan.weights, n)
    greatest = comm.allreduce(float(sums.max(initial=0.0)), MPI.MAX)
    return 0.5 / greatest if greatest > 0.0 else 0.0


def saved_options(comm: MPI.Intracomm, graph: Graph | None, work: int) -> dict[str, Any]:
    """What a saved run has to have in common with this one; the graph by its content, wherever its file lies now."""
    words = None
    if graph is not None:
        words = f"{len(graph.indptr) - 1} vertices, {len(graph.indices) // 2} edges, CRC {graph_crc(graph):08x}"
    return {"app": "heat", "graph": comm.bcast(words), "work": work}


def graph_crc(graph: Graph) -> int:
    """CRC-32 of the arrays of a graph."""
    crc = 0
    for array in (graph.indptr, graph.indices, graph.weights):
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return crc


def simulate(
    plan: HaloPlan, dt: float, steps: SavedSteps, work: int, speed: float | Callable[[], float], *, rebalance: bool = False
) -> tuple[Floats, float]:
    """The heat: (n_local,) temperatures after the last step, and the CPU seconds of computing."""
    n = len(plan.vertices)
    heat, after = np.zeros((2, n + len(plan.ghosts)))
    heat[:n] = initial(plan.vertices) if steps.arrays is None else steps.arrays["heat"]
    slow = lb_mpi.throttle(speed)
    block = max(1, BLOCK_SUBSTEPS // work)

    def temperatures() -> Arrays:
        return {"heat": heat[:n], "index": plan.vertices}

    for _ in steps(temperatures):
        plan.exchange(heat)
        for first in range(0, n, block):
            with slow:
                step(heat, after, plan.indptr, plan.indices, plan.weights, dt, work, first, min(first + block, n))
        heat, after = after, heat
        if rebalance:
            (moved,) = plan.rebalance(heat[:n], imbalance=LEFT)
            if len(moved) + len(plan.ghosts) != len(heat) or moved.base is not heat:
                n = len(moved)
                heat, after = np.zeros((2, n + len(plan.ghosts)))
                heat[:n] = moved
    return heat[:n], slow.cpu_s


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Deal out the graph, simulate, and say how the time was spent."""
    speeds = all_speeds(comm, options)
    speed = speeds[comm.rank]
    for name, least in (("steps", 1), ("work", 1), ("seed", 0)):
        integer(f"--{name}", getattr(options, name), least)
    machine = agree(comm, lambda: read_machine(options.machine) if options.machine and comm.rank == 0 else None)
    graph = agree(comm, lambda: as_graph(options.graph) if comm.rank == 0 else None)
    compile_once(comm, lambda: compile_kernels(rebalance=options.rebalance))
    barrier(comm)
    began = time.perf_counter()
    plan = lb_mpi.distribute(
        comm,
        tasks(graph, options.work) if graph is not None else None,
        method=options.balance,
        machine=machine,
        effort=options.effort,
        seed=options.seed,
        emulated_speed=speed.now,
    )
    setup_s = time.perf_counter() - began
    with plan:
        how: dict[str, Any] = {"index": plan.vertices, "options": saved_options(comm, graph, options.work)}
        steps = SavedSteps(comm, options.save, options.save_every, options.steps, **how)
        dt = time_step(comm, plan)
        barrier(comm)
        speed.start()
        began = time.perf_counter()
        heat, cpu_s = simulate(plan, dt, steps, options.work, speed.now, rebalance=options.rebalance)
        barrier(comm)
        seconds = time.perf_counter() - began
        total = checksum(comm, plan.vertices, heat)
        speeds = as_slow(comm, speeds)
        everyone = comm.gather((cpu_s, len(plan.vertices)))
        moves = [one for one in plan.history if one.acted]
        counts = None if plan.allocation is None else plan.allocation.counts.tolist()
    if everyone is None:
        return {}, []
    cpu = np.array([cpu_s for cpu_s, _ in everyone])
    answer = {
        "graph": options.graph,
        "steps": options.steps,
        "first_step": steps.first,
        "work": options.work,
        "balance": options.balance,
        "ranks": comm.size,
        "allocated": counts,
        "vertices": [n for _, n in everyone],
        "rebalanced": len(moves),
        "vertices_moved": sum(one.vertices_moved for one in moves),
        "rebalancing_seconds": sum(one.seconds for one in plan.history),
        "setup_seconds": setup_s,
        "seconds": seconds,
        "lower_bound_seconds": seconds_for(float(cpu.sum()), speeds),
        "cpu_seconds": cpu.sum(),
        "imbalance": imbalance(cpu, [one.usual for one in speeds]),
        "cut": plan.cut,
        "halo_bytes": plan.halo_bytes,
        "checksum": total,
    }
    return answer, [
        *steps.words,
        f"{seconds:.3f} s; lower bound {answer['lower_bound_seconds']:.3f} s (CPU seconds of work / sum of speeds)",
        f"{setup_s:.3f} s before that to measure, to partition, and to deal out",
        *([f"allocated, by speed: {' '.join(map(str, counts))}"] if counts else []),
        f"vertices by rank: {' '.join(map(str, answer['vertices']))}; imbalance {answer['imbalance']:.1%}",
        *([_moves(answer)] if options.rebalance else []),
        f"edges cut: weight {plan.cut:g}; halo: {plan.halo_bytes:,} bytes in an exchange",
        f"checksum {total}",
    ]


def _moves(answer: dict[str, Any]) -> str:
    """Say how often vertices have moved."""
    n, moved, seconds = answer["rebalanced"], answer["vertices_moved"], answer["rebalancing_seconds"]
    moves = f"{counted(n, 'rebalancing')} moved {counted(moved, 'vertex', 'vertices')}"
    return f"{moves}; all calls took {seconds:.3f} s on rank 0, with waiting"


def compile_kernels(*, rebalance: bool = False) -> None:
    """Compile the step, and what a rebalancing needs (or load it from the cache)."""
    none = np.zeros(0, dtype=np.int64)
    step(np.zeros(1), np.zeros(1), np.zeros(2, dtype=np.int64), none, np.zeros(0), 0.0, 1, 0, 1)
    if rebalance:
        load_kernels()


COMMAND = app("heat", "heat on an unstructured graph, whose vertices are distributed over the ranks", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
