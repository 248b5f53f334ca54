"""Search a maze on all ranks, depth first, balanced by drafting: any path from corner to corner.

mpiexec -n 4 python -m apps.maze --dim 4096 --free 0.7 --seed 1
mpiexec -n 4 python -m apps.maze --dim 4096 --walled --speeds 0.8,0.4,0.2,0.2 --json
mpiexec -n 2 python -m apps.maze maze16.txt

The maze and the marks of visited cells are one array in a shared-memory window on each machine; machines tell each other
what has been marked, while they search.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from apps.command import Parser, add_search_options, compile_once, figures, lines, run, search
from apps.maze_marks import MarkExchange, machine_number
from apps.maze_shared import shared_bytes
from lb_mpi.mpi.collective import agree
from lb_mpi.mpi.recorder import map_of, records
from lb_mpi.mpi.waiting import barrier
from lb_mpi.problems.maze import (
    MARKED,
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
from lb_mpi.recording.known import MAP

PROG = "python -m apps.maze"


def parser() -> Parser:
    """Make the command line."""
    parser = Parser(prog=PROG, description="Search a maze on all ranks, depth first, balanced by drafting.")
    maze = parser.add_argument_group("maze", "from a file, or random")
    maze.add_argument("file", nargs="?", help="rows of 0 (free) and 1 (blocked) within a wall of 2")
    maze.add_argument("--dim", type=int, default=1024, help="random: rows and columns (default: %(default)s)")
    maze.add_argument("--free", type=float, default=0.7, help="random: chance of a free cell (default: %(default)s)")
    maze.add_argument("--seed", type=int, default=0, help="random: of the maze (default: %(default)s)")
    maze.add_argument(
        "--walled", action="store_true", help="wall the exit in, so that all reachable cells are searched"
    )
    add_search_options(parser, threshold=0.125, split_rules=("alternate", "half", "one"))
    return parser


def main(comm: MPI.Intracomm) -> tuple[dict[str, Any], list[str]]:
    """Make the maze, search it, verify what was found."""
    options = parser().parse_args()
    maze = agree(comm, lambda: read(comm, options))
    dim = agree(comm, lambda: check_maze_parameters(options.dim, options.free, options.seed, options.walled))
    if options.file:
        dim = comm.bcast(None if maze is None else len(maze) - 2)
    compile_once(comm, compile_kernels)
    machine = MPI.Intracomm(comm.Split_type(MPI.COMM_TYPE_SHARED))
    if options.file and machine.size < comm.size:
        maze = comm.bcast(maze)
    with shared_bytes(comm, machine, (dim + 2, dim + 2)) as cells:
        if machine.rank == 0:
            if maze is None:
                random_maze(dim, options.free, options.seed, options.walled, out=cells)
            else:
                cells[:] = maze
        barrier(comm)
        order, several = machine_number(comm, machine), machine.size < comm.size
        keeper = machine.rank == 0
        picture = MAP if records() else 0

        def make() -> MazeSearch:
            return MazeSearch(cells, comm.rank, options.split_rule, log=several, order=order, keeper=keeper, picture=picture)

        problem = agree(comm, make)
        marks = MarkExchange(comm, machine, problem)
        result = search(comm, problem, options, "cells", marks.exchange if marks.n_machines > 1 else None)
        marks.finish()
        map_of(problem.visited())
        n_machines = marks.n_machines
        marks.close()
        done: MazeResult = result.value
        path = find_path(comm, machine, cells, done)
        marked = agree(comm, lambda: verify(cells, path) if comm.rank == 0 else 0)
    machine.Free()
    answer = {
        "dim": dim,
        "machines": n_machines,
        "found": result.found,
        "path_length": len(path),
        "visited": done.visited,
        "visited_twice": done.visited - marked,
        **figures(result),
    }
    return answer, [
        f"path of {len(path):,} cells found" if result.found else "no path: every reachable cell was searched",
        f"{done.visited:,} cells visited, {answer['visited_twice']:,} of them twice",
        *lines(result),
    ]


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
        if comm.rank in leaders[1:]:
            comm.Send(cells, 0)
        machines = [cells]
        if comm.rank == 0:
            machines = [cells, *(np.empty_like(cells) for _ in leaders[1:])]
            for leader, others in zip(leaders[1:], machines[1:], strict=True):
                comm.Recv(others, leader)
        found = agree(comm, lambda: way_back(join(machines), done.found_at)[::-1] if comm.rank == 0 else path, patient=True)
        path = np.ascontiguousarray(found)
    length = comm.bcast(len(path))
    return path if comm.rank == 0 else np.empty(length, np.int64)


def verify(cells: npt.NDArray[np.uint8], path: npt.NDArray[np.int64]) -> int:
    """Check the path, if there is one, and count the cells marked by anybody."""
    if len(path):
        check_path(cells, path)
    return int(np.count_nonzero(cells >= MARKED))


if __name__ == "__main__":
    run(main, PROG)
