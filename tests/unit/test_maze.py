"""The maze search without MPI: mazes and their files, exact marks under any interleaving, paths, the idealised search."""

import pathlib
import random
import struct

import numpy as np
import pytest
from scipy import ndimage

from apps import maze_kernel
from apps.lockstep import Comparison, LockstepResult, lockstep
from apps.maze_search import (
    BLOCKED,
    FREE,
    MARKED,
    WALL,
    MazeResult,
    MazeSearch,
    check_path,
    compile_kernels,
    random_maze,
    read_maze,
    trace_path,
    way_back,
)
from apps.trace import path
from lb_mpi.mpi.search.search import Turn
from lb_mpi.searching.drafting import Kind, Message, State
from tests.pile import Pile

PART = struct.Struct("<qbb")  # a part of one record, as `split` packs it: position, cursor, upper
PAPER = pathlib.Path(__file__).parents[1] / "data" / "maze16.txt"


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_kernels()


def component(cells):
    """The cells that can be reached from the entry, by another algorithm."""
    labels, _ = ndimage.label(cells == FREE, structure=np.ones((3, 3)))
    return labels == labels[1, 1]


def counted(search):
    """n of each record on the stack, bottom to top, the slow way."""
    top = int(search._stack.ends[maze_kernel.TOP])
    return [
        sum(
            search._maze.cells[search._stack.position[i] + search._maze.offsets[d]] == FREE
            for d in range(search._stack.cursor[i], search._stack.upper[i] + 1)
        )
        for i in range(top + 1)
    ]


def interleave(searches, rng, quantum=50, check=False, start=True):
    """Run in any order: each turn a random rank works, or takes a part from a random one; returns the parts moved."""
    if start:
        searches[0].start()
    moved = 0
    while not any(search.found for search in searches) and any(search.load() for search in searches):
        search = rng.choice(searches)
        if check:
            check_measures(search)
        if search.load() > 0:
            search.work(rng.randint(1, quantum))
        else:
            part = rng.choice(searches).split()
            if part is not None:
                search.absorb(part)
                moved += 1
    return moved


def check_measures(search):
    load, n = search.load(), counted(search)
    open_levels = [i for i, n_i in enumerate(n) if n_i > 0]
    assert load == (len(n) - 1 - open_levels[0] + n[open_levels[0]] / 8 if open_levels else 0.0)
    assert not open_levels or open_levels[-1] == len(n) - 1  # exhausted tops are popped
    wide = [i for i, n_i in enumerate(n) if n_i >= 2]
    assert not wide or wide[0] >= search._stack.ends[maze_kernel.WIDE]


def test_finds_the_exit_of_the_papers_maze():
    cells = read_maze(PAPER)
    search = MazeSearch(cells, 0)
    assert search.load() == 0.0
    search.start()
    assert search.load() == 0.125
    assert search.work(1) == 1
    assert cells[1, 1] >= MARKED
    assert search.work(1000) == 66
    assert search.found
    assert search.work(1000) == 0
    assert search.result() == MazeResult(67, search.exit, 0)
    check_path(cells, trace_path([search], search.exit))


def test_entry_that_is_the_exit_is_found_at_once():
    cells = random_maze(1, 0.5, 0)
    search = MazeSearch(cells, 0)
    search.start()
    assert search.work(10) == 1
    assert search.found
    assert trace_path([search], search.exit).tolist() == [search.entry]
    check_path(cells, [search.entry])


@pytest.mark.parametrize("seed", range(40))
def test_each_reachable_cell_is_marked_once_under_any_interleaving(seed):
    rng = random.Random(seed)
    dim, free = rng.randint(3, 60), rng.choice([0.4, 0.55, 0.7, 1.0])
    cells = random_maze(dim, free, seed, walled=True)
    blocked, expected = cells == BLOCKED, component(cells)
    ranks = rng.randint(1, 6)
    searches = [MazeSearch(cells, rank, rng.choice(["alternate", "half", "one"])) for rank in range(ranks)]
    interleave(searches, rng, quantum=rng.choice([1, 5, 50]), check=seed < 10)
    assert not any(search.found for search in searches)
    assert np.array_equal(cells >= MARKED, expected)
    assert sum(search.result().visited for search in searches) == expected.sum()  # none twice
    assert np.array_equal(cells == BLOCKED, blocked)


@pytest.mark.parametrize("seed", range(40))
def test_path_is_valid_whoever_gave_to_whom(seed):
    rng = random.Random(seed)
    cells = random_maze(rng.randint(5, 60), 0.8, seed)
    original = cells.copy()
    searches = [MazeSearch(cells, rank) for rank in range(rng.randint(2, 6))]
    reachable = component(cells)[-2, -2]
    interleave(searches, rng, quantum=rng.choice([1, 3, 10]))
    assert any(search.found for search in searches) == reachable
    if reachable:
        check_path(original, trace_path(searches, searches[0].exit))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_search_goes_on_from_what_was_saved(ranks):
    for seed in range(6):
        cells = random_maze(40, 0.7, seed, walled=True)
        marks = cells.copy()
        searches = [MazeSearch(marks, rank, keeper=rank == 0) for rank in range(4)]
        searches[0].start()
        for turn in range(30 * (seed + 1)):
            rank = turn % 4
            searches[rank].work(1 + seed)
            if searches[(rank + 1) % 4].load() == 0 and (part := searches[rank].split()):
                searches[(rank + 1) % 4].absorb(part)
        states = [search.save() for search in searches]
        again = random_maze(40, 0.7, seed, walled=True)
        after = [MazeSearch(again, rank, keeper=rank == 0) for rank in range(ranks)]
        for rank, search in enumerate(after):
            search.resume(states, range(rank, 4, ranks))
        before = sum(search.result().visited for search in after)
        assert before == sum(search.result().visited for search in searches)
        marked = np.count_nonzero(again >= MARKED)
        interleave(after, random.Random(seed), start=False)
        expected = component(cells)
        assert np.array_equal(again >= MARKED, expected)
        assert sum(search.result().visited for search in after) - before == expected.sum() - marked
        for cell in np.flatnonzero(again >= MARKED)[:: 1 + seed * 10]:
            assert way_back(again, int(cell))[-1] == after[0].entry


def test_marks_that_lead_round_are_no_harm():
    cells = random_maze(5, 1.0, 0)
    search = MazeSearch(cells, 0)
    search.start()
    while not search.found:
        search.work(1)
    # Three ranks at the same time: each has entered the cell from which the next one came.
    cells[5, 5], cells[5, 4], cells[4, 5] = MARKED + 0, MARKED + 5, MARKED + 2
    path = trace_path([search], search.exit)
    check_path(random_maze(5, 1.0, 0), path)


def test_an_answer_that_was_saved_is_found_again():
    cells = random_maze(12, 1.0, 0)
    search = MazeSearch(cells, 0)
    search.start()
    before = search.save()
    while not search.found:
        search.work(5)
    again = random_maze(12, 1.0, 0)
    after = MazeSearch(again, 0)
    after.resume([search.save()], range(1))
    assert after.found
    check_path(again, trace_path([after], after.exit))
    fresh = MazeSearch(random_maze(12, 1.0, 0), 0)
    fresh.resume([before], range(1))
    assert not fresh.found
    assert fresh.load() > 0


def test_the_only_branch_is_kept():
    search = MazeSearch(random_maze(5, 1.0, 0), 0, "half")
    search.start()
    assert search.split() is None
    search.work(1)
    assert search.load() == 3 / 8
    given = [PART.unpack(search.split())[1:] for _ in range(2)]
    assert (given, search.split(), search.load()) == ([(7, 7), (6, 6)], None, 1 / 8)


def test_alternate_gives_every_second_open_record_but_not_the_top():
    cells = random_maze(6, 1.0, 0)
    victim, thief = MazeSearch(cells, 0), MazeSearch(cells, 1)
    victim.start()
    victim.work(5)  # along the first row: all five records have ways down
    before = counted(victim)
    thief.absorb(victim.split())
    top = int(victim._stack.ends[maze_kernel.TOP])
    open_records = [level for level in range(top, -1, -1) if before[level]]
    given = sorted(open_records[1::2])
    after = counted(victim)
    assert [level for level in range(top + 1) if before[level] and not after[level]] == given
    assert thief._stack.position[: len(given)].tolist() == [int(victim._stack.position[level]) for level in given]
    assert counted(thief) == [before[level] for level in given]


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 1500])
def test_a_drawn_maze_has_walls_and_depends_on_its_seed(dim):
    cells = random_maze(dim, 0.6, 7)
    check = np.concatenate([cells[0], cells[-1], cells[:, 0], cells[:, -1]])
    assert (check == WALL).all()
    assert np.isin(cells[1:-1, 1:-1], (FREE, BLOCKED)).all()
    assert cells[1, 1] == cells[-2, -2] == FREE
    assert np.array_equal(cells, random_maze(dim, 0.6, 7))
    assert dim < 3 or (random_maze(dim, 1.0, 7, walled=True) == BLOCKED).sum() == 3  # around the exit
    if dim >= 50:
        assert (cells[1:-1, 1:-1] == FREE).mean() == pytest.approx(0.6, abs=0.05)
        assert not np.array_equal(cells, random_maze(dim, 0.6, 8))
        out = np.full((dim + 2, dim + 2), 9, np.uint8)
        assert random_maze(dim, 0.6, 7, out=out) is out
        assert np.array_equal(cells, out)


def test_reads_other_line_ends(tmp_path):
    path = tmp_path / "maze.txt"
    path.write_bytes(b"222\r\n202\r\n222")
    assert read_maze(path).tolist() == [[2, 2, 2], [2, 0, 2], [2, 2, 2]]


def test_no_work_takes_no_step():
    problem = Pile(0)
    problem.start = lambda: None
    nothing = lockstep([problem, Pile(0)], [0, 1])
    assert nothing == LockstepResult(0, 0, False)
    assert Comparison(3, nothing, nothing).efficiency == 1 / 3


def test_steps_are_free_of_what_is_popped(monkeypatch):
    """The bound on one call of work() doesn't change the model."""
    cells = random_maze(40, 0.7, 1, walled=True)
    size = lockstep([MazeSearch(cells, 0)], [0]).steps
    monkeypatch.setattr("apps.maze_search.BUDGET", 2)
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
