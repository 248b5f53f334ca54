"""Marks between machines: the ranks are dealt to two machines that share nothing but messages."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from apps.maze import find_path
from apps.maze_marks import MarkExchange, machine_number
from apps.maze_shared import shared_bytes
from lb_mpi.mpi.waiting import barrier
from lb_mpi.problems.maze import MARKED, MazeSearch, check_path, random_maze

COMM = MPI.COMM_WORLD
pytestmark = pytest.mark.mpi


def reachable(dim: int, seed: int) -> int:
    cells = random_maze(dim, 0.7, seed, True)
    search = MazeSearch(cells, 0)
    search.start()
    while search.load() > 0.0:
        search.work(100_000)
    return search.result().visited


@pytest.mark.parametrize("walled", [True, False])
@pytest.mark.parametrize("machines", [1, 2, 3])
def test_all_machines_have_all_marks_in_the_end(machines: int, walled: bool) -> None:
    dim, seed = 300, 5
    machine = MPI.Intracomm(COMM.Split(COMM.rank % machines, COMM.rank))
    with shared_bytes(COMM, machine, (dim + 2, dim + 2)) as cells:
        if machine.rank == 0:
            random_maze(dim, 0.7, seed, walled, out=cells)
        barrier(COMM)
        problem = MazeSearch(cells, COMM.rank, log=machines > 1, order=machine_number(COMM, machine))
        marks = MarkExchange(COMM, machine, problem)
        assert marks.n_machines == min(machines, COMM.size)
        result = lb_mpi.search(COMM, problem, quantum=200, on_turn=marks.exchange)
        marks.finish()
        marks.close()
        marked = COMM.allgather(int(np.count_nonzero(cells >= MARKED)))
        assert len(set(marked)) == 1
        assert result.value.visited >= marked[0]
        path = find_path(COMM, machine, cells, result.value)
        if walled:
            assert marked[0] == reachable(dim, seed)
            assert not result.found
        else:
            assert result.found
            if COMM.rank == 0:
                check_path(cells, path)
    machine.Free()


class Listener:
    """Who marks nothing but what it is given, and keeps what it hears."""

    log_is_full = False

    def __init__(self, marks: list[int]) -> None:
        self.marks, self.heard = np.array(marks, np.int64), np.empty(0, np.int64)

    def take_marks(self) -> np.ndarray:
        taken, self.marks = self.marks, self.marks[:0]
        return taken

    def put_marks(self, marks: np.ndarray) -> None:
        self.heard = np.concatenate([self.heard, marks])


def test_marks_of_mazes_of_more_than_32_bits_arrive_whole() -> None:
    machine = MPI.Intracomm(COMM.Split(COMM.rank, 0))  # each rank is a machine
    marks = [[rank, 2**32 + rank, 2**40 + rank] for rank in range(COMM.size)]
    listener = Listener(marks[COMM.rank])
    exchange = MarkExchange(COMM, machine, listener)
    exchange.finish()
    exchange.close()
    machine.Free()
    expected = [mark for rank in range(COMM.size) for mark in marks[rank] if rank != COMM.rank]
    assert sorted(listener.heard) == sorted(expected)


def test_an_error_of_on_turn_reaches_all_ranks() -> None:
    def on_turn() -> None:
        raise RuntimeError("no marks")

    problem = MazeSearch(random_maze(20, 0.9, 0, True), COMM.rank)
    with pytest.raises(lb_mpi.SearchError, match="no marks"):
        lb_mpi.search(COMM, problem, on_turn=on_turn if COMM.rank == COMM.size - 1 else None)
