"""The idealised search: the paper's figures, and the model's rules on small problems of its own."""

import pathlib

import numpy as np
import pytest
from scipy import ndimage

from apps.lockstep import Comparison, LockstepResult, compare, lockstep
from apps.maze_search import FREE, MARKED, MazeSearch, check_path, random_maze, read_maze, trace_path
from apps.trace import path
from lb_mpi.mpi.search.search import Turn
from lb_mpi.searching.drafting import Kind, Message, State

PAPER = pathlib.Path(__file__).parents[1] / "data" / "maze16.txt"
RINGS = {1: [0], 2: [0, 1], 4: [0, 1, 3, 2], 8: [0, 1, 3, 2, 6, 7, 5, 4]}


class Pile:
    """A pile of units, of which any part can be given away; logs who gives."""

    def __init__(self, units=0, log=None, rank=0, indivisible=False):
        self.units, self.log, self.rank, self.indivisible = units, log, rank, indivisible
        self.at_start = units

    def start(self):
        self.units = self.at_start

    def work(self, units):
        done = min(units, self.units)
        self.units -= done
        return done

    def load(self):
        return float(self.units)

    def split(self):
        if self.indivisible or self.units < 2:
            return None
        part = self.units // 2
        self.units -= part
        if self.log is not None:
            self.log.append(self.rank)
        return bytes([part])

    def absorb(self, payload):
        self.units = payload[0]

    @property
    def found(self):
        return False


def on_the_papers_maze(ranks):
    cells = read_maze(PAPER)
    original = cells.copy()
    searches = [MazeSearch(cells, rank, "half") for rank in range(ranks)]
    result = lockstep(searches, RINGS[ranks])
    check_path(original, trace_path(searches, searches[0].exit))
    return result


def test_one_rank_takes_the_steps_of_the_paper():
    assert on_the_papers_maze(1) == LockstepResult(67, 0, True)


def test_two_ranks_take_the_steps_and_balances_of_the_paper():
    assert on_the_papers_maze(2) == LockstepResult(47, 10, True)


def test_the_maze_as_printed_takes_a_step_and_a_balance_less():
    cells = read_maze(PAPER.with_name("maze16_as_printed.txt"))

    def make(ranks):
        shared = cells.copy()
        return [MazeSearch(shared, rank, "half") for rank in range(ranks)]

    found = compare(make, 2)
    assert found == Comparison(2, LockstepResult(66, 0, True), LockstepResult(46, 9, True))
    assert (found.speedup, found.efficiency) == (66 / 46, 66 / 92)
    assert compare(make, 1).speedup == 1.0


def test_speed_up_where_there_is_nothing_to_do():
    assert compare(lambda ranks: [Pile(0) for _ in range(ranks)], 3).efficiency == 1 / 3


def test_four_ranks_take_less_than_the_published_33_steps():
    """The published 33 steps with 13 balances can't be had from this model."""
    result = on_the_papers_maze(4)
    assert result.found
    assert result.steps < 33


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_walled_maze_is_searched_through_in_no_less_than_its_share(ranks, seed):
    cells = random_maze(40, 0.7, seed, walled=True)
    labels, _ = ndimage.label(cells == FREE, structure=np.ones((3, 3)))
    size = int((labels == labels[1, 1]).sum())
    searches = [MazeSearch(cells, rank, "half") for rank in range(ranks)]
    result = lockstep(searches, RINGS[ranks])
    assert not result.found
    assert (cells >= MARKED).sum() == sum(search.result().visited for search in searches) == size
    assert size / ranks <= result.steps <= size
    assert ranks > 1 or result == LockstepResult(size, 0, False)


def test_steps_are_free_of_what_is_popped(monkeypatch):
    """The bound on one call of work() doesn't change the model."""
    cells = random_maze(40, 0.7, 1, walled=True)
    size = lockstep([MazeSearch(cells, 0)], [0]).steps
    monkeypatch.setattr("apps.maze_search.LOOKS", 2)
    cells = random_maze(40, 0.7, 1, walled=True)
    assert lockstep([MazeSearch(cells, 0)], [0]).steps in (size, size + 1)  # the last, empty one: load claimed too much
    assert (cells >= MARKED).sum() == size


def test_thieves_take_from_the_fullest_and_ties_go_round_the_ring():
    log = []
    problems = [Pile(8, log, 0), *(Pile(0, log, rank) for rank in range(1, 4))]
    assert lockstep(problems, [0, 1, 3, 2], max_steps=1) == LockstepResult(1, 3, False)
    # 1 takes 4 of 0's 8; then 0 and 1 have 4 each: after 2 on the ring comes 0; then 1 has 4, the most.
    assert log == [0, 0, 1]
    assert [problem.units for problem in problems] == [1, 1, 1, 1]

    log.clear()
    problems = [Pile(8, log, 0), *(Pile(0, log, rank) for rank in range(1, 4))]
    lockstep(problems, [0, 2, 1, 3], max_steps=1)
    assert log == [0, 1, 0]  # after 2 on this ring comes 1; then 0 has the most


def test_a_load_at_the_threshold_is_left_alone():
    assert lockstep([Pile(4), Pile()], [0, 1], threshold=4.0) == LockstepResult(4, 0, False)
    assert lockstep([Pile(4), Pile()], [0, 1], threshold=3.0) == LockstepResult(2, 1, False)


def test_a_rank_that_cannot_split_is_passed_over():
    problems = [Pile(9, indivisible=True), Pile(), Pile()]
    assert lockstep(problems, [0, 1, 2]) == LockstepResult(9, 0, False)


def test_no_work_takes_no_step():
    assert lockstep([Pile(0), Pile(0)], [0, 1]) == LockstepResult(0, 0, False)


def test_the_states_between_two_turns_are_those_of_the_table():
    def way(before, after, *kinds):
        return path(before, Turn(0.0, after, [(0, Message(kind, 2)) for kind in kinds], []))

    assert way(State.READY_FOR_ACCEPT, State.WAIT_FOR_ADMISSION) == [
        State.READY_FOR_ACCEPT, State.BUSY, State.WAIT_FOR_ADMISSION
    ]  # fmt: skip
    assert way(State.WAIT_FOR_ADMISSION, State.BUSY, Kind.REJECT) == [State.WAIT_FOR_ADMISSION, State.BUSY]
    assert State.READY_FOR_SPLIT in way(State.WAIT_FOR_ADMISSION, State.BUSY, Kind.ADMISSION)
    assert way(State.BUSY, State.WAIT_FOR_ACK) == [State.BUSY, State.IDLE, State.WAIT_FOR_ACK]
