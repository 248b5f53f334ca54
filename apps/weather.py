"""Weather on a latitude-longitude grid: a stencil on a fixed mesh of ranks, and physics that is balanced by diffusion.

mpiexec -n 4 python -m apps.weather --speeds 0.8,0.4,0.2,0.2
mpiexec -n 4 python -m apps.weather --speeds 0.8,0.4,0.2,0.2 --balance none
mpiexec -n 8 python -m apps.weather --shape 64x128 --steps 10 --balance sos --json
mpiexec -n 4 python -m apps.weather --balance fos --bound 0.03
mpiexec -n 4 python -m apps.weather --speeds 0.8,0.4,0.2,0.2 --speed-changes 1:3:6:0.33
mpiexec -n 4 python -m apps.weather --save saves --save-every 10

Wind couples neighbouring columns of air, so every rank keeps its block of the grid, and exchanges its halo with four
neighbours.  Physics takes nearly all the time.  It happens within a column, costs more by day and most in a storm, and so it
moves: its columns are lent to where they are computed soonest.  The last field is the same to the last bit with any
balancing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import lb_mpi
from apps.command import add_changes, all_speeds, app, as_slow, compile_once, run, shape_of
from apps.saved_steps import SavedSteps, add_save_options
from apps.speeds import Varying, seconds_for
from apps.weather_physics import Climate, Floats, compile_kernels, physics, wind
from lb_mpi.checks import integer, number
from lb_mpi.cli.run.options import add_slow_ranks
from lb_mpi.diffusion.setup import AUTO, ROWS_SCHEMES
from lb_mpi.graph import Ints, most_square_mesh
from lb_mpi.metrics import imbalance
from lb_mpi.mpi.common.collective import agree, barrier
from lb_mpi.mpi.common.communicator import wait
from lb_mpi.mpi.common.recorder import running
from lb_mpi.record.events import Phase

MOST_CELLS = 10**8  # rank 0 holds all of them in the end
TOLERANCE = 0.03  # imbalance that is good enough
SETTLED = 0.15  # imbalance at which a step counts as balanced, when it's asked how soon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    parser.add_argument(
        "--shape", type=shape_of, default=(128, 256), metavar="RxC", help="latitudes x longitudes (default: 128x256)"
    )
    parser.add_argument("--levels", type=int, default=32, help="levels of the atmosphere (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="number of time steps (default: %(default)s)")
    add_slow_ranks(parser)
    add_changes(parser)
    parser.add_argument(
        "--balance", choices=("none", AUTO, *ROWS_SCHEMES), default=AUTO,
        help="none: no rows move; direct: rank 0 makes the plans; fos, sos: all ranks do, with their neighbours only, by "
        "diffusion of first or second order; auto: direct up to 512 ranks (default: %(default)s)",
    )
    parser.add_argument(
        "--bound", type=float, metavar="X", help="balance whenever the imbalance is above X, as in the paper: 0.03 is 3 %% "
        "(default: if that is expected to save more than it costs)",
    )
    add_save_options(parser)


class Block:
    """This rank's part of the grid: its cells, and the same with a halo of the neighbours'.

    Longitude comes first, so that neighbours in memory have the same hour, and cost about the same.
    """

    def __init__(self, comm: MPI.Intracomm, shape: tuple[int, int], levels: int) -> None:
        latitudes, longitudes = shape
        rows, columns = most_square_mesh(comm.size)
        integer("--levels", levels, 1, MOST_CELLS)
        if latitudes < 1 or longitudes < 1 or latitudes % rows or longitudes % columns:
            raise ValueError(
                f"shape = {latitudes}x{longitudes}: expected multiples of the {rows}x{columns} mesh of ranks"
            )
        if latitudes * longitudes * levels > MOST_CELLS:
            raise ValueError(
                f"shape = {latitudes}x{longitudes} with {levels} levels: expected at most {MOST_CELLS} cells"
            )
        self.n_lat, self.n_lon = latitudes // rows, longitudes // columns
        row, column = divmod(comm.rank, columns)
        lat, lon = row * self.n_lat, column * self.n_lon
        longitude, latitude = np.arange(lon, lon + self.n_lon), np.arange(lat, lat + self.n_lat)
        self.index: Ints = np.add.outer(longitude * latitudes, latitude).ravel()  # (lon * lat,) of columns, in the grid
        self.climate = Climate(shape, slice(lon, lon + self.n_lon), slice(lat, lat + self.n_lat))
        self.cells: Floats = self.climate.initial(levels)  # (lon, lat, levels) temperatures
        self.air = np.zeros((self.n_lon + 2, self.n_lat + 2, levels))  # the same, with a halo
        self._comm = comm
        self._west, self._east = (row * columns + (column + side) % columns for side in (-1, 1))
        self._south, self._north = (
            comm.rank + side * columns if 0 <= row + side < rows else MPI.PROC_NULL for side in (-1, 1)
        )

    @property
    def columns(self) -> Floats:
        """(lon * lat, levels) the cells."""
        return self.cells.reshape(-1, self.cells.shape[2])

    @columns.setter
    def columns(self, columns: Floats) -> None:
        self.cells = columns.reshape(self.n_lon, self.n_lat, -1)

    def exchange_halo(self) -> None:
        """Exchange the halo with the neighbours; the grid is closed from east to west, and ends at the poles."""
        air, cells = self.air, self.cells
        air[1:-1, 0], air[1:-1, -1] = cells[:, 0], cells[:, -1]  # at the poles; elsewhere the neighbours' come
        swaps = [
            (self._west, 0, cells[0], air[-1, 1:-1], self._east),
            (self._east, 1, cells[-1], air[0, 1:-1], self._west),
            (self._south, 2, cells[:, 0], air[1:-1, -1], self._north),
            (self._north, 3, cells[:, -1], air[1:-1, 0], self._south),
        ]
        arrived = [(halo, halo.copy()) for _, _, _, halo, _ in swaps]
        requests = [
            self._comm.Irecv(buffer, source, tag)
            for (_, tag, _, _, source), (_, buffer) in zip(swaps, arrived, strict=True)
        ]
        requests += [self._comm.Isend(edge.copy(), target, tag) for target, tag, edge, _, _ in swaps]
        for request in requests:
            wait(self._comm, request)
        for halo, buffer in arrived:
            halo[...] = buffer

    def fill(self) -> None:
        """Put the cells inside the halo: after it, for which the neighbours wait."""
        self.air[1:-1, 1:-1] = self.cells

    def advect(self) -> None:
        """The stencil: new cells."""
        self.cells = np.empty_like(self.cells)
        wind(self.air, self.cells)

    def checksum(self) -> str | None:
        """On rank 0: of all temperatures, longitude by longitude."""
        blocks = self._comm.gather(self.columns)
        if blocks is None:
            return None
        rows, columns = most_square_mesh(self._comm.size)
        whole = np.array(blocks).reshape(rows, columns, self.n_lon, self.n_lat, -1)
        return hashlib.sha256(np.ascontiguousarray(whole.transpose(1, 2, 0, 3, 4)).astype("<f8").tobytes()).hexdigest()


class Step(NamedTuple):
    """What one step took on one rank."""

    began: float  # time.perf_counter()
    cpu_s: float  # of wind, sun and storms, and of the physics that this rank computed for all
    rows_moved: int = 0  # on all ranks
    bytes_moved: int = 0  # on all ranks
    balancer_s: float = 0.0
    plan_steps: int = 0  # exchanges between neighbours to find the flow


def simulate(block: Block, steps: SavedSteps, speed: Varying, balancer: lb_mpi.Balancer | None) -> list[Step]:
    """The weather: all there is to see of the balancing is the line with `balancer.map_rows`."""
    slow = lb_mpi.throttle(speed.now)
    done = []
    cpu_s = 0.0

    def timed_physics(columns: Floats, sun: Floats, storm: Floats) -> Floats:
        nonlocal cpu_s
        began = time.thread_time()
        after: Floats = physics(columns, sun, storm)
        cpu_s += time.thread_time() - began
        return after

    for step in steps(lambda: {"air": block.columns}):
        cpu_s, began = 0.0, time.perf_counter()
        block.exchange_halo()
        with slow:
            block.fill()
            block.advect()
            sun, storm, columns = block.climate.sun(step), block.climate.storm(step), block.columns
        dynamics_s, slow.cpu_s = slow.cpu_s, 0.0
        if balancer is None:
            with running(steps.record, Phase.OWN), slow:
                block.columns = timed_physics(columns, sun, storm)
            slow.cpu_s = 0.0
            done.append(Step(began, dynamics_s + cpu_s))
        else:
            block.columns = balancer.map_rows(timed_physics, columns, sun, storm)
            last = balancer.last
            assert last is not None
            moved = last.rows_moved, last.bytes_moved, last.seconds
            done.append(Step(began, dynamics_s + cpu_s, *moved, last.steps))
    return done


def steps_to_settle(imbalances: Sequence[float], begins_s: Sequence[float], moment_s: float) -> int | None:
    """Count the steps that began after `moment_s` until two in a row are balanced; None: that never comes."""
    after = [one for one, begin in zip(imbalances, begins_s, strict=True) if begin >= moment_s]
    pairs = enumerate(itertools.pairwise(after))
    return next((n for n, (one, other) in pairs if max(one, other) <= SETTLED), None)


def steps_of_plans(steps: Sequence[int]) -> str:
    """Say how many exchanges between neighbours the plans needed."""
    made = [n for n in steps if n]
    return f"{len(made)} plans by diffusion; steps of each: {' '.join(map(str, made)) or '-'}"


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Simulate, and say how the time was spent."""
    speeds = all_speeds(comm, options)
    speed = speeds[comm.rank]
    integer("--steps", options.steps, 1)
    own = comm.Dup()
    block = agree(own, lambda: Block(own, options.shape, options.levels))
    in_common = {"app": "weather", "shape": list(options.shape), "levels": options.levels}
    steps = SavedSteps(own, options.save, options.save_every, options.steps, index=block.index, options=in_common)
    if steps.arrays is not None:
        block.columns = steps.arrays["air"]
    compile_once(comm, compile_kernels)
    balancer = None
    if options.balance != "none":
        when: str | float = AUTO
        tolerance = TOLERANCE
        if options.bound is not None:
            when = tolerance = agree(own, lambda: number("--bound", options.bound, above=0.0))
        balancer = lb_mpi.Balancer(comm, scheme=options.balance, when=when, tolerance=tolerance, emulated_speed=speed.now)
    barrier(own)
    speed.start()
    began = time.perf_counter()
    mine = simulate(block, steps, speed, balancer)
    barrier(own)
    seconds = time.perf_counter() - began
    if balancer is not None:
        balancer.close()
    checksum = block.checksum()
    everyone = own.gather(mine)
    speeds = as_slow(own, speeds)
    own.Free()
    if everyone is None:
        return {}, []
    cpu_s = np.array([[step.cpu_s for step in theirs] for theirs in everyone])  # (P, steps)
    begins = [step.began - began for step in mine]
    ends = [*begins[1:], seconds][: len(begins)]
    middles = [0.5 * (begin + end) for begin, end in zip(begins, ends, strict=True)]
    imbalances = [
        imbalance(work, [one.at(middle) for one in speeds]) for work, middle in zip(cpu_s.T, middles, strict=True)
    ]
    bounds_s = [work / sum(one.at(middle) for one in speeds) for work, middle in zip(cpu_s.sum(0), middles, strict=True)]
    bound_s = seconds_for(float(cpu_s.sum()), speeds)
    moments = sorted({0.0, *(moment for change in options.speed_changes for moment in change[1:3] if moment < seconds)})
    settling = [(moment, steps_to_settle(imbalances, begins, moment)) for moment in moments]
    answer = {
        "shape": list(options.shape),
        "levels": options.levels,
        "steps": options.steps,
        "first_step": steps.first,
        "balance": options.balance,
        "ranks": comm.size,
        "seconds": seconds,
        "lower_bound_seconds": bound_s,
        "cpu_seconds": cpu_s.sum(),
        "imbalance": imbalances,
        "step_seconds": [end - begin for begin, end in zip(begins, ends, strict=True)],
        "step_lower_bound_seconds": bounds_s,
        "steps_to_settle": [{"after_seconds": moment, "steps": n} for moment, n in settling],
        "rows_moved": sum(step.rows_moved for step in mine),
        "bytes_moved": sum(step.bytes_moved for step in mine),
        "diffusion_steps": [step.plan_steps for step in mine],
        "balancer_seconds": max(sum(step.balancer_s for step in theirs) for theirs in everyone),
        "checksum": checksum,
    }
    imbalances = imbalances or [0.0]  # it may have been at the end already
    return answer, [
        *steps.words,
        f"{seconds:.3f} s; lower bound {bound_s:.3f} s (CPU seconds of wind and physics at the speeds of all ranks as they "
        "were; no halo exchange, waiting, balancing)",
        *(
            f"speeds as from {moment:g} s on: "
            + ("not settled" if n is None else f"settled after {n} steps (imbalance at most {SETTLED:.0%}, twice)")
            for moment, n in settling
        ),
        f"imbalance: {imbalances[0]:.1%} in the first step, {np.median(imbalances):.1%} in the median",
        f"{answer['rows_moved']:,} columns moved, {answer['bytes_moved'] / 1e6:,.1f} MB; "
        f"{answer['balancer_seconds']:.3f} s for balancing on the busiest rank",
        *([steps_of_plans(answer["diffusion_steps"])] if options.balance in ("fos", "sos") else []),
        f"checksum {checksum}",
    ]


COMMAND = app("weather", "weather on a grid: a stencil on a fixed mesh of ranks, and balanced physics", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
