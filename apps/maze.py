"""Search a maze on all ranks, depth first, balanced by drafting: any path from corner to corner.

mpiexec -n 4 python -m apps.maze --dim 4096 --free 0.7 --seed 1
mpiexec -n 4 python -m apps.maze --dim 4096 --walled --speeds 0.8,0.4,0.2,0.2 --json
mpiexec -n 2 python -m apps.maze maze16.txt
mpiexec -n 4 python -m apps.maze maze16.txt --trace states
python -m apps.maze maze16.txt --lockstep 4

The maze and the marks of visited cells are one array in a shared-memory window on each machine.  On several machines the
maze is cut into tiles: each belongs to one rank, which receives the ways that lead into it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from apps import trace
from apps.command import add_search_options, app, compile_once, figures, lines, run, search
from apps.lockstep import compare_on
from apps.maze_kernel import FREE, MARKED, SENT
from apps.maze_search import (
    MazeResult,
    MazeSearch,
    check_maze_parameters,
    check_path,
    compile_kernels,
    join,
    random_maze,
    read_maze,
    way_back,
)
from apps.maze_tiles import TiledMazeSearch, usual_tile
from apps.maze_tiles import compile_kernels as compile_tile_kernels
from lb_mpi.checks import integer
from lb_mpi.cli.run.options import add_seed
from lb_mpi.mpi.common.collective import agree, barrier
from lb_mpi.mpi.common.shared import SharedBytes
from lb_mpi.table import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    maze = parser.add_argument_group("maze", "from a file, or random")
    maze.add_argument("file", nargs="?", help="rows of 0 (free) and 1 (blocked) within a wall of 2")
    maze.add_argument("--dim", type=int, default=1024, help="random maze: number of rows and columns (default: %(default)s)")
    maze.add_argument("--free", type=float, default=0.7,
        help="random maze: probability that a cell is free (default: %(default)s)")
    add_seed(maze, "a random maze")
    maze.add_argument(
        "--walled", action="store_true", help="wall the exit in, so that all reachable cells are searched"
    )
    maze.add_argument(
        "--tile",
        type=int,
        metavar="CELLS",
        help="divide the maze into tiles of CELLS x CELLS, each of which belongs to one rank; 0: all ranks mark one "
        "array in shared memory, which is possible on one machine only (default: 0 on one machine; on several, by the "
        "size of the maze)",
    )
    parser.add_argument("--lockstep", type=int, metavar="N",
        help="run the idealised search of the paper on N ranks, without MPI: in a step, each rank visits a cell, and "
        "communication takes no time; use it with --split-rule one or half (default: half) and --threshold")
    parser.add_argument("--trace", nargs="?", const="messages", choices=("messages", "states"),
        help="print a line for each DRAFTING, REJECT, ADMISSION and split, on few ranks as in the paper; states: also "
        "for each change of a rank's state")
    add_search_options(parser, threshold=0.125, split_rules=("alternate", "half", "one"))


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Make the maze, search it, verify what was found."""
    maze = agree(comm, lambda: read(comm, options))
    dim = agree(comm, lambda: check_maze_parameters(options.dim, options.free, options.seed, options.walled))
    if options.lockstep is not None:
        return agree(comm, lambda: lock_step(options, maze) if comm.rank == 0 else ({}, []))
    if options.file:
        dim = comm.bcast(None if maze is None else len(maze) - 2)
    machine = MPI.Intracomm(comm.Split_type(MPI.COMM_TYPE_SHARED))
    n_machines = comm.allreduce(int(machine.rank == 0))
    tile = agree(comm, lambda: check_tile(options.tile, dim, n_machines))
    compile_once(comm, compile_tile_kernels if tile else compile_kernels)
    if options.file and machine.size < comm.size:
        maze = comm.bcast(maze)
    with shared_cells(comm, machine, dim) as cells:
        if machine.rank == 0:
            if maze is None:
                random_maze(dim, options.free, options.seed, options.walled, out=cells)
            else:
                cells[:] = maze
        barrier(comm)
        keeper = machine.rank == 0

        def make() -> MazeSearch | TiledMazeSearch:
            if tile:
                return TiledMazeSearch(cells, comm.rank, comm.size, tile=tile, keeper=keeper)
            return MazeSearch(cells, comm.rank, options.split_rule, keeper=keeper)

        problem = agree(comm, make)
        result = search(comm, problem, options, trace=bool(options.trace))
        done: MazeResult = result.value
        barrier(comm)  # nobody marks any more
        marked = comm.allreduce(int(np.count_nonzero((cells >= MARKED) & (cells < SENT))) if keeper else 0)
        path = find_path(comm, machine, cells, done)
        agree(comm, lambda: check_path(cells, path) if len(path) and comm.rank == 0 else None)
    machine.Free()
    story = trace.lines(comm, result.trace, states=options.trace == "states") if options.trace else []
    answer = {
        "dim": dim,
        "machines": n_machines,
        "found": result.found,
        "path_length": len(path),
        "visited": done.visited,
        "visited_twice": done.visited - marked,
        **figures(result),
        **({"trace": story} if options.trace else {}),
    }
    return answer, [
        *story,
        f"path of {len(path):,} cells found" if result.found else "no path: every reachable cell was searched",
        f"{counted(done.visited, 'cell')} visited, {answer['visited_twice']:,} of them twice",
        *lines(result),
    ]


@contextlib.contextmanager
def shared_cells(comm: MPI.Intracomm, machine: MPI.Intracomm, dim: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Collective: a (dim + 2, dim + 2) array on each machine, which its ranks share; freed, unless the block raises."""
    shared = SharedBytes(comm, machine, (dim + 2) ** 2)
    yield shared.array.reshape(dim + 2, dim + 2)
    shared.close()


def lock_step(options: argparse.Namespace, maze: npt.NDArray[np.uint8] | None) -> tuple[dict[str, Any], list[str]]:
    """Search a maze in lock step, on one rank and on --lockstep N."""
    n = integer("--lockstep", options.lockstep, 1)
    rule = "half" if options.split_rule == "alternate" else options.split_rule
    cells = random_maze(options.dim, options.free, options.seed, options.walled) if maze is None else maze
    found = compare_on(cells, n, rule, options.threshold)
    answer = {
        "dim": len(cells) - 2,
        "ranks": n,
        "found": found.together.found,
        "steps_on_one_rank": found.alone.steps,
        "steps": found.together.steps,
        "balances": found.together.balances,
        "speedup": found.speedup,
        "efficiency": found.efficiency,
    }
    return answer, [
        "path found" if found.together.found else "no path: every reachable cell was searched",
        f"L1 = {found.alone.steps} steps on one rank",
        f"L{n} = {found.together.steps} steps on {counted(n, 'rank')}, with {counted(found.together.balances, 'balance')}",
        f"S = L1 / L{n} = {found.speedup:.3f}, E = S / {n} = {found.efficiency:.3f}",
    ]


def check_tile(tile: int | None, dim: int, n_machines: int) -> int:
    """Return the cells a side of a tile, 0 for none; ValueError for none on several machines."""
    if tile is None:
        return 0 if n_machines == 1 else usual_tile(dim)
    if tile == 0 and n_machines > 1:
        raise ValueError(f"--tile 0: expected tiles on {n_machines} machines, which can't mark one array")
    return integer("--tile", tile, 0) and integer("--tile", tile, 4)


def read(comm: MPI.Intracomm, options: argparse.Namespace) -> npt.NDArray[np.uint8] | None:
    """On rank 0, the maze of the file; None without one."""
    if not options.file:
        return None
    if options.walled:
        raise ValueError("--walled: expected a random maze, not one from a file")
    return read_maze(options.file) if comm.rank == 0 else None


def find_path(
    comm: MPI.Intracomm, machine: MPI.Intracomm, cells: npt.NDArray[np.uint8], done: MazeResult
) -> npt.NDArray[np.int64]:
    """Collective: on rank 0 the path from entry to exit as flat indices, shape (n,); empty when there is none.

    Each machine knows by which way its own ranks have entered a cell: rank 0 puts together what all know.
    """
    path = np.empty(0, np.int64)
    if done.found_at >= 0:
        leaders = sorted(set(comm.allgather(machine.bcast(comm.rank))))
        if machine.rank == 0:
            cells[cells == SENT] = FREE
        if comm.rank in leaders[1:]:
            comm.Send(cells, 0)
        machines = [cells]
        if comm.rank == 0:
            machines = [cells, *(np.empty_like(cells) for _ in leaders[1:])]
            for leader, others in zip(leaders[1:], machines[1:], strict=True):
                comm.Recv(others, leader)
        found = agree(comm, lambda: way_back(join(machines), done.found_at)[::-1] if comm.rank == 0 else path)
        path = np.ascontiguousarray(found)
    length = comm.bcast(len(path))
    return path if comm.rank == 0 else np.empty(length, np.int64)


COMMAND = app("maze", "search a maze on all ranks, depth first, balanced by drafting", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
