"""The idealised search, where no printed number (test_papers.py) nor second implementation (test_papers_second.py) tells."""

import numpy as np
import pytest
from scipy import ndimage

from apps.lockstep import Comparison, LockstepResult, lockstep
from apps.maze_search import FREE, MARKED, MazeSearch, random_maze
from apps.trace import path
from lb_mpi.graph import ring_order
from lb_mpi.mpi.search.search import Turn
from lb_mpi.searching.drafting import Kind, Message, State
from tests.pile import Pile


def test_no_work_takes_no_step():
    problem = Pile(0)
    problem.start = lambda: None
    nothing = lockstep([problem, Pile(0)], [0, 1])
    assert nothing == LockstepResult(0, 0, False)
    assert Comparison(3, nothing, nothing).efficiency == 1 / 3


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_walled_maze_is_searched_through_in_no_less_than_its_share(ranks, seed):
    cells = random_maze(40, 0.7, seed, walled=True)
    labels, _ = ndimage.label(cells == FREE, structure=np.ones((3, 3)))
    size = int((labels == labels[1, 1]).sum())
    searches = [MazeSearch(cells, rank, "half") for rank in range(ranks)]
    result = lockstep(searches, ring_order(ranks))
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


def test_the_states_between_two_turns_are_those_of_the_table():
    def way(before, after, *kinds):
        return path(before, Turn(0.0, after, [(0, Message(kind, 2)) for kind in kinds], []))

    assert way(State.READY_FOR_ACCEPT, State.WAIT_FOR_ADMISSION) == [
        State.READY_FOR_ACCEPT, State.BUSY, State.WAIT_FOR_ADMISSION
    ]  # fmt: skip
    assert way(State.WAIT_FOR_ADMISSION, State.BUSY, Kind.REJECT) == [State.WAIT_FOR_ADMISSION, State.BUSY]
    assert State.READY_FOR_SPLIT in way(State.WAIT_FOR_ADMISSION, State.BUSY, Kind.ADMISSION)
    assert way(State.BUSY, State.WAIT_FOR_ACK) == [State.BUSY, State.IDLE, State.WAIT_FOR_ACK]
