"""The maze by tiles: exact on any ranks, whatever is given to whom and whenever it dies; known-wrong variants are caught."""

import random
from typing import Any

import numpy as np
import pytest

from apps import maze_tiles
from apps.maze_kernel import SENT, STAY, tiles_of
from apps.maze_search import FREE, MARKED, MazeSearch, check_path, join, random_maze, way_back
from apps.maze_search import compile_kernels as compile_maze_kernels
from apps.maze_tiles import HEAD, MOVED, WAYS, TiledMazeSearch, compile_kernels, usual_tile
from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching.guard import Options
from lb_mpi.searching.saves import pack_parts, unpack_parts
from lb_mpi.searching.searcher import Reason
from lb_mpi.virtual import Network
from tests.protocol.disk import Died, Disk, MemoryStore
from tests.protocol.law import simulated
from tests.protocol.maze_mutants import MUTANTS
from tests.protocol.mutate import rejects
from tests.unit.test_maze import component


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_kernels()
    compile_maze_kernels()


def own_marks(cells: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (cells >= MARKED) & (cells < SENT)


def maze_of(seed: int, walled: bool = True) -> np.ndarray[Any, Any]:
    chance = random.Random(seed)
    return random_maze(chance.randint(3, 60), chance.choice([0.55, 0.7, 1.0]), seed, walled=walled)


def run(
    seed: int, *, walled: bool = True, disk: Disk | None = None, dies_at: int = 10**9
) -> tuple[simulate.SimulatedSearch, list[Any], np.ndarray[Any, Any]]:
    """One search on simulated ranks, which goes on from what the disk has; its result, the problems, and the cells to find.

    Ranks have arrays of their own, or one.  The law is looked at now and then.
    """
    chance = random.Random(seed if disk is None else seed * 1000 + dies_at)
    cells = maze_of(seed, walled)
    expected = component(cells)
    size = chance.choice([1, 2, 3, 4, 9])
    shared = chance.random() < 0.3
    arrays = [cells if shared else cells.copy() for _ in range(size)]
    keeps = [rank == 0 or not shared for rank in range(size)]
    tile = chance.choice([4, 7, 16])
    problems = [TiledMazeSearch(arrays[rank], rank, size, tile=tile, keeper=keeps[rank]) for rank in range(size)]
    events = 0

    def check(simulation: simulate.Simulation) -> None:
        nonlocal events
        events += 1
        assert events < 3_000, "no end in sight"
        if events >= dies_at:
            raise Died
        if events % 20 == 0 and not shared:
            times = np.sum([own_marks(array) for array in arrays], axis=0)
            assert disk is not None or times.max() <= 1, "a cell is marked by two"

    stores = states = None
    if disk is not None:
        states, base = disk.newest, max(disk.committed, default=0)
        stores = [MemoryStore(disk, rank, size=size, base=base) for rank in range(size)]
    options = Options(threshold=chance.choice([0.125, 1.0, 4.0]), seed=seed, save_every_s=None if disk is None else 3e-4)
    more = {"unit_s": 2e-6, "quantum_s": chance.choice([60e-6, 1e-3]), "stores": stores, "states": states}
    return simulated(problems, seed, check, options=options, **more), problems, expected


def check_exact(seed: int) -> None:
    result, problems, expected = run(seed)
    assert result.reason is Reason.EXHAUSTED
    assert np.array_equal(np.any([own_marks(each.cells) for each in problems], axis=0), expected)
    assert result.value.visited == expected.sum(), "a cell is lost, or was visited twice"


def check_saved(seed: int) -> int:
    """Runs that die, until one comes to its end; the number of deaths."""
    chance, disk, deaths = random.Random(seed), Disk(), 0
    while True:
        dies_at = chance.choice([chance.randrange(5, 60), chance.randrange(5, 400)]) if deaths < 6 else 10**9
        try:
            result, problems, expected = run(seed, disk=disk, dies_at=dies_at)
        except Died:
            deaths += 1
            continue
        assert np.array_equal(np.any([own_marks(each.cells) for each in problems], axis=0), expected)
        assert result.value.visited == expected.sum(), f"seed {seed}"
        return deaths


def test_a_search_that_had_not_begun_begins():
    """A save from before the first cell was marked."""
    states = [TiledMazeSearch(maze_of(1), 0, 1, tile=4).save()]
    again = [TiledMazeSearch(maze_of(1), rank, 2, tile=4) for rank in range(2)]
    for rank, one in enumerate(again):
        one.resume(states, [0] if rank == 0 else [])
    assert again[0].load() or again[0].outgoing()
    assert not again[1].load()


def test_the_later_of_two_notices_counts():
    """A tile went from rank 0 to 1, and from there to 2; what 1 tells comes last."""
    one = TiledMazeSearch(maze_of(1), 0, 3, tile=4)
    notice = np.array([0, 2, 0, 1], np.int64)
    one.incoming(HEAD.pack(0, 2, MOVED) + notice[:2].tobytes())
    one.incoming(HEAD.pack(0, 1, MOVED) + notice[2:].tobytes())
    one.start()  # the entry is in tile 0
    assert [to for to, _ in one.outgoing()] == [2]
    assert [one._owners.give(5), one._owners.give(5)] == [1, 2]


def test_ways_go_along_with_their_tile():
    """With a tile go all ways into it; those that come while another rank has it are kept, and there when it is back."""
    one, other = (TiledMazeSearch(random_maze(30, 1.0, 0), rank, 2, tile=4) for rank in range(2))
    cells = np.flatnonzero(one.cells.reshape(-1) == FREE)
    tiles = tiles_of(one._tiles, 16 * cells)
    tile = int(next(each for each in tiles if one._owners.owner[each] == 0))
    into = (16 * cells[tiles == tile] + STAY)[:3]
    for way in into[:2]:
        one.incoming(HEAD.pack(0, 1, WAYS) + way.tobytes())
    other.absorb(one._give([tile]))
    assert sorted(np.concatenate(other._pending[tile])) == sorted(into[:2])
    one.incoming(HEAD.pack(0, 1, WAYS) + into[2].tobytes())
    one.absorb(other._give([tile]))
    assert sorted(np.concatenate(one._pending[tile])) == sorted(into)


@pytest.mark.parametrize("seed", range(40))
def test_each_reachable_cell_is_visited_once(seed):
    check_exact(seed)


@pytest.mark.parametrize("seed", range(30))
def test_a_path_is_found_over_all_that_ranks_know(seed):
    result, problems, expected = run(seed, walled=False)
    reachable = bool(expected[-2, -2])
    assert (result.reason is Reason.FOUND) == reachable
    if reachable:
        arrays = {each.cells.ctypes.data: np.where(each.cells == SENT, FREE, each.cells) for each in problems}
        path = way_back(join(list(arrays.values())), result.value.found_at)[::-1]
        check_path(problems[0].cells, path)


def test_whenever_it_dies_the_result_is_exact():
    assert sum(check_saved(seed) for seed in range(25)) > 25


def test_both_kinds_of_search_resume_from_each_others_saves():
    disk = Disk()
    with pytest.raises(Died):
        run(103, disk=disk, dies_at=100)
    states = [unpack_parts(state)[0] for state in disk.newest]
    cells = maze_of(103)
    expected = component(cells)
    one = MazeSearch(cells, 0)
    one.resume(states, range(len(states)))
    assert 0 < one.result().visited < expected.sum()
    one.work(300)
    states = [one.save()]
    again = [TiledMazeSearch(maze_of(103), rank, 2, tile=5) for rank in range(2)]
    disk.committed[10**6] = tuple(pack_parts([state]) for state in states)
    stores = [MemoryStore(disk, rank, size=2, base=10**6) for rank in range(2)]
    result = simulate.search(again, unit_s=2e-6, options=Options(save_every_s=1.0), states=disk.newest, stores=stores)
    assert result.value.visited == expected.sum()


def test_simulated_machines_share_the_work():
    cells = random_maze(1024, 0.7, 0, walled=True)
    problems = [TiledMazeSearch(cells.copy(), rank, 3, tile=64) for rank in range(3)]
    result = simulate.search(problems, speeds=[0.8, 0.4, 0.2], network=Network((1e-4, 1e-4)), unit_s=40e-9, quantum_s=2e-4)
    assert result.value.visited == component(cells).sum()
    assert result.units[0] > result.units[1] > result.units[2]


def test_tiles_depend_on_the_maze():
    assert [usual_tile(dim) for dim in (1, 1000, 4096, 8192, 12000, 100_000)] == [64, 64, 256, 512, 512, 512]


def find_fault() -> None:
    test_a_search_that_had_not_begun_begins()
    test_the_later_of_two_notices_counts()
    test_ways_go_along_with_their_tile()
    for seeds, lives in ((range(10), range(5)), (range(10, 40), range(5, 15))):
        for seed in seeds:
            check_exact(seed)
        for seed in lives:
            check_saved(seed)


test_known_wrong_variants_are_caught = rejects(find_fault, [(maze_tiles, *one) for one in MUTANTS], Exception, right=False)
