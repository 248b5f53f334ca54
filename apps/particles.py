"""Particles in the cells of a mesh, which a wandering vortex gathers: cells move to the ranks that have time for them.

mpiexec -n 4 python -m apps.particles --rebalance
mpiexec -n 4 python -m apps.particles --speeds 0.8,0.4,0.2,0.2 --rebalance
mpiexec -n 4 python -m apps.particles --shape 60x80 --particles 400000 --speed-changes 0:3:8:0.33 --rebalance --json

A particle belongs to the rank that owns its cell.  In a step it goes less than a cell's width; those that leave their cell
are sent to the owners of the eight cells around it.  The centre of the vortex goes round the mesh, and
the crowd follows it: so the numbers of particles drift, and with them the work of the cells.  The particles are the same to
the last bit at the end, on any number of ranks, with and without rebalancing.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import lb_mpi
from apps.command import add_changes, all_speeds, app, as_slow, compile_once, run, shape_of
from apps.heat import checksum, scramble
from apps.speeds import Varying, seconds_for
from lb_mpi.checks import integer
from lb_mpi.cli.run.options import add_slow_ranks
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.kernels import njit
from lb_mpi.mpi.common.collective import agree, barrier
from lb_mpi.mpi.graph.halo import HaloPlan
from lb_mpi.mpi.graph.rebalance import load_kernels
from lb_mpi.table import counted

NUMBER, ROW, COLUMN = range(3)  # columns of the particles
BLOCK_SUBSTEPS = 50_000  # about a millisecond: an emulated slow machine is slow all the time, not quick and then asleep
TAG, NAP_S = 1, 5e-5  # of messages with particles; seconds between two probes for them
WORK_OF_CELL = 0.5  # in particles: what a cell costs that has none


class Times(NamedTuple):
    """The time and the work of a simulation on one rank."""

    cpu_s: float  # of moving particles
    imbalance: float  # mean over the steps, of the numbers of particles; the same on all ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    parser.add_argument("--shape", type=shape_of, default=(40, 60), metavar="RxC", help="cells (default: 40x60)")
    parser.add_argument("--particles", type=int, default=100_000, metavar="N", help="number of particles (default: 100000)")
    parser.add_argument("--steps", type=int, default=60, help="number of time steps (default: %(default)s)")
    parser.add_argument("--work", type=int, default=30, help="substeps of each step (default: %(default)s)")
    group = parser.add_argument_group("balancing")
    group.add_argument("--rebalance", action="store_true",
        help="move cells between neighbouring ranks during the run, where it saves time")
    add_slow_ranks(group)
    add_changes(group)


def cells(shape: tuple[int, int]) -> Graph:
    """The graph of all cells; each has the eight around it as neighbours."""
    rows, columns = shape
    numbers = np.arange(rows * columns).reshape(rows, columns)
    pairs = [
        (numbers[:, :-1], numbers[:, 1:]),
        (numbers[:-1], numbers[1:]),
        (numbers[:-1, :-1], numbers[1:, 1:]),
        (numbers[:-1, 1:], numbers[1:, :-1]),
    ]
    tails, heads = (np.concatenate([pair[end].ravel() for pair in pairs]) for end in (0, 1))
    return Graph.from_edges(rows * columns, tails, heads)


def initial(n: int, shape: tuple[int, int]) -> Floats:
    """(n, 3) number, row and column of all particles, evenly at random, depending on their numbers alone."""
    numbers = np.arange(n)
    bits = scramble(np.stack([2 * numbers, 2 * numbers + 1], axis=1).astype(np.uint64))
    positions = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 * shape
    return np.column_stack([numbers.astype(np.float64), positions])


def cells_of(particles: Floats, columns: int) -> Ints:
    """(n,) the cells of (n, 3) particles."""
    return particles[:, ROW].astype(np.int64) * columns + particles[:, COLUMN].astype(np.int64)


@njit(cache=True)
def advect(particles: Floats, rows: int, columns: int, centre_row: float, centre_column: float, work: int) -> None:
    """Move (n, 3) particles by one step: half a cell at most, in substeps, around the centre and towards it."""
    for k in range(len(particles)):
        row, column = particles[k, 1], particles[k, 2]
        for _ in range(work):
            down, right = row - centre_row, column - centre_column
            far = 1.0 + (down * down + right * right) ** 0.5
            row += 0.5 / work * (0.6 * right - 0.8 * down) / far
            column += 0.5 / work * (-0.6 * down - 0.8 * right) / far
            row = min(max(row, 0.0), rows - 1e-6)
            column = min(max(column, 0.0), columns - 1e-6)
        particles[k, 1], particles[k, 2] = row, column


def centre(step: int, shape: tuple[int, int]) -> tuple[float, float]:
    """The centre of the vortex."""
    turn = 0.03 * step
    return shape[0] * (0.5 + 0.3 * np.cos(turn)), shape[1] * (0.5 + 0.3 * np.sin(turn))


def sort(particles: Floats, vertices: Ints, columns: int) -> tuple[Floats, Ints]:
    """Sort the particles by cell and number; return them, and (n_local + 1,) where those of each owned cell begin."""
    found = cells_of(particles, columns)
    order = np.lexsort((particles[:, NUMBER], found))
    return particles[order], np.searchsorted(found[order], np.append(vertices, np.iinfo(np.int64).max))


class Owners(NamedTuple):
    """The owners of the cells on and around this rank."""

    of_cell: Ints  # (rows * columns,) those of its own cells and of its ghosts; others don't matter
    others: list[int]  # that own its ghosts, and so have ghosts of it

    @classmethod
    def now(cls, plan: HaloPlan, rank: int, n_cells: int) -> Owners:
        """Collective: ask the neighbours."""
        of_ghosts = plan.exchange(np.full(len(plan.vertices), rank))[len(plan.vertices) :]
        of_cell = np.full(n_cells, rank)
        of_cell[plan.ghosts] = of_ghosts
        return cls(of_cell, np.unique(of_ghosts).tolist())


def exchange(comm: MPI.Intracomm, plan: HaloPlan, owners: Owners, particles: Floats, columns: int) -> Floats:
    """Send the particles that have left this rank's cells to the owners of their new ones; return those in its cells now."""
    owner = owners.of_cell[cells_of(particles, columns)]
    leaving = [np.ascontiguousarray(particles[owner == other]) for other in owners.others]
    requests = [comm.Isend(sent, other, TAG) for sent, other in zip(leaving, owners.others, strict=True)]
    found, status = [particles[owner == comm.rank]], MPI.Status()
    with plan.waiting():
        for other in owners.others:
            while not comm.Iprobe(other, TAG, status):
                time.sleep(NAP_S)  # unlike in Probe, this core is free for other ranks
            arrived = np.empty((status.Get_count(MPI.DOUBLE) // 3, 3))
            comm.Recv(arrived, other, TAG)
            found.append(arrived)
        MPI.Request.Waitall(requests)
    return np.concatenate(found)


def simulate(
    comm: MPI.Intracomm, plan: HaloPlan, particles: Floats, shape: tuple[int, int], steps: int, work: int, speed: Varying,
    *, rebalance: bool,
) -> tuple[Floats, Times]:  # fmt: skip
    """Move this rank's particles; return those that it has in the end, and what it took."""
    slow = lb_mpi.throttle(speed.now)
    block = max(1, BLOCK_SUBSTEPS // work)
    particles, first = sort(particles, plan.vertices, shape[1])
    owners = Owners.now(plan, comm.rank, shape[0] * shape[1])
    n_particles = [len(particles)]
    for step in range(steps):
        for begins in range(0, len(particles), block):
            with slow:
                advect(particles[begins : begins + block], *shape, *centre(step, shape), work)
        particles, first = sort(exchange(comm, plan, owners, particles, shape[1]), plan.vertices, shape[1])
        if rebalance:
            by_cell = [particles[a:b] for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)]
            costs = WORK_OF_CELL + np.diff(first)
            (by_cell,) = plan.rebalance(by_cell, costs=costs, pack=np.ndarray.tobytes, unpack=unpack)
            if plan.last is not None and plan.last.acted:
                particles, first = sort(np.concatenate([*by_cell, np.zeros((0, 3))]), plan.vertices, shape[1])
                owners = Owners.now(plan, comm.rank, shape[0] * shape[1])
        n_particles.append(len(particles))
    speeds = np.array(comm.allgather(speed.usual))
    times = np.array(comm.allgather(n_particles[:-1])) / speeds[:, None]
    mean = times.T @ speeds / speeds.sum()
    return particles, Times(slow.cpu_s, float((times.max(axis=0) / mean).mean() - 1.0))


def unpack(data: bytes) -> Floats:
    """The particles of a cell."""
    return np.frombuffer(data).reshape(-1, 3)


def compile_kernels(*, rebalance: bool = False) -> None:
    """Compile the step, and what a rebalancing needs (or load it from the cache)."""
    advect(np.zeros((0, 3)), 1, 1, 0.0, 0.0, 1)
    if rebalance:
        load_kernels()


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Simulate, and say how the time was spent."""
    speeds = all_speeds(comm, options)
    speed = speeds[comm.rank]
    shape = options.shape
    for name, value in (("rows", shape[0]), ("columns", shape[1])):
        integer(name, value, 1)
    for name in ("particles", "steps", "work"):
        integer(f"--{name}", getattr(options, name), 1)
    graph = agree(comm, lambda: cells(shape) if comm.rank == 0 else None)
    compile_once(comm, lambda: compile_kernels(rebalance=options.rebalance))
    with lb_mpi.distribute(comm, graph, emulated_speed=speed.now) as plan:
        everything = initial(options.particles, shape)  # on each rank, and then only its own
        mine = everything[np.isin(cells_of(everything, shape[1]), plan.vertices)]
        del everything
        barrier(comm)
        speed.start()
        began = time.perf_counter()
        particles, times = simulate(
            comm, plan, mine, shape, options.steps, options.work, speed, rebalance=options.rebalance
        )
        barrier(comm)
        seconds = time.perf_counter() - began
        moves = [one for one in plan.history if one.acted]
    numbers = particles[:, NUMBER].astype(np.int64)
    sums = [checksum(comm, numbers, np.ascontiguousarray(particles[:, column])) for column in (ROW, COLUMN)]
    everyone = comm.gather((times.cpu_s, len(particles)))
    speeds = as_slow(comm, speeds)
    if everyone is None:
        return {}, []
    cpu_s = sum(cpu for cpu, _ in everyone)
    bound_s = seconds_for(cpu_s, speeds)
    answer = {
        "shape": list(shape),
        "steps": options.steps,
        "work": options.work,
        "ranks": comm.size,
        "particles": [n for _, n in everyone],
        "seconds": seconds,
        "lower_bound_seconds": bound_s,
        "cpu_seconds": cpu_s,
        "imbalance": times.imbalance,
        "rebalanced": len(moves),
        "cells_moved": sum(one.vertices_moved for one in moves),
        "checksum": "".join(sums),
    }
    return answer, [
        f"{seconds:.3f} s; lower bound {bound_s:.3f} s (CPU seconds of work / sum of speeds)",
        f"particles by rank at the end: {' '.join(map(str, answer['particles']))}; mean imbalance {times.imbalance:.1%}",
        f"{counted(len(moves), 'rebalancing')} moved {counted(answer['cells_moved'], 'cell')}"
        if options.rebalance
        else "no rebalancing",
        f"checksum {answer['checksum']}",
    ]


COMMAND = app("particles", "particles in the cells of a mesh, whose numbers drift", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
