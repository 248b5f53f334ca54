"""Saves of a search: every state of small ones, death at any event of simulated ones, and known-wrong variants."""

import math
import random
import struct

import pytest

from lb_mpi.cli.simulate import search as simulate
from lb_mpi.errors import SearchError
from lb_mpi.searching.drafting import Kind, Message
from lb_mpi.searching.guard import Options
from lb_mpi.searching.saves import Open, do, pack_parts, share
from lb_mpi.searching.searcher import Reason, Searcher, Work
from lb_mpi.virtual import Network
from tests.pile import Broken, Pile
from tests.protocol.disk import Died, Disk, MemoryStore, check_saved
from tests.protocol.explore import State
from tests.protocol.explore_parts import explore_cut
from tests.protocol.explore_search import explore, first_world
from tests.protocol.law import check_simulation, simulated
from tests.protocol.mutants import CUT_MUTANTS
from tests.protocol.mutate import rejects


def explored(
    size: int, limit: int, *, drafts: int, saves: int = 1, broken_rank: int = -1, limited: bool = False, **options: object
) -> tuple[int, set[tuple[bytes, ...]]]:
    """States seen, and all that was ever saved."""
    saved: set[tuple[bytes, ...]] = set()

    def visit(world: State) -> None:
        for states in world.rest.committed.values():
            if states not in saved:
                check_saved(states, limit)
                saved.add(states)

    first = first_world(size, limit, saves=True, **options)
    for each in first.actors if broken_rank >= 0 else ():
        each.problem.broken = options["broken"] if each.rank == broken_rank else ""
    seen = explore(first, most_drafts=drafts, most_saves=saves, most_states=20_000, limited=limited, visit=visit)
    return seen, saved


@pytest.mark.parametrize(
    ("size", "limit", "drafts", "saves", "states", "distinct"),
    [(1, 5, 1, 2, 50, 5), (2, 4, 1, 1, 3_000, 8), (2, 2, 1, 2, 1_000, 3)],
)
def test_every_save_is_a_consistent_cut_in_every_reachable_state(size, limit, drafts, saves, states, distinct):
    seen, saved = explored(size, limit, drafts=drafts, saves=saves)
    assert seen >= states
    assert len(saved) >= distinct
    for one in saved:
        for ranks in (1, 2, 3):
            assert finish(one, ranks, limit) == list(range(1, limit + 1))


@pytest.mark.parametrize(("size", "limit", "options"), [
    *[(2, 4, {"broken": method}) for method in ("save", "split", "work")], (2, 4, {"wanted": 3}),
    (2, 3, {"saves": 0, "limited": True}), (2, 2, {"limited": True}),
])  # fmt: skip
def test_a_failure_an_answer_or_the_time_ends_a_search_that_is_saved_in_every_reachable_state(size, limit, options):
    explored(size, limit, drafts=1, **options)


@pytest.mark.parametrize("above", [(None, 0, 0), (None, 0, 1)], ids=["star", "chain"])
def test_the_cut_alone_holds_in_every_reachable_state(above):
    assert explore_cut(above=above, most_work=2) > 9_000


def finish(states: tuple[bytes, ...], ranks: int, limit: int, seed: int = 0) -> list[int]:
    """What a search on so many ranks finds that goes on from there."""
    piles = [Pile(limit) for _ in range(ranks)]
    options = Options(threshold=1.0, seed=seed, save_every_s=math.inf)
    found = simulate.search(piles, states=states, seed=seed, options=options)
    return sorted(found.value)


def live(disk: Disk, size: int, seed: int, limit: int, *, dies_at: int = 10**9) -> list[int]:
    """One run that goes on from what is on the disk, and dies at an event; the result when it comes to its end."""
    states, base = disk.newest, max(disk.committed, default=0)
    rng = random.Random(seed)
    full = rng.random() < 0.1  # of one rank, for this run
    stores = [MemoryStore(disk, rank, size=size, base=base, full=full and rank == size - 1) for rank in range(size)]
    events, every_s = 0, 10 ** rng.uniform(-4, -2.5)

    def check(simulation: simulate.Simulation) -> None:
        nonlocal events
        events += 1
        if events >= dies_at:
            raise Died
        check_simulation(simulation, work=events % 20 == 0)
        if disk.newest is not None and events % 10 == 0:
            check_saved(disk.newest, limit)
        assert simulation.searchers[0].saves.number <= simulation.now / every_s, "saved too often"
        assert events < 4_000, "no end in sight"

    options = Options(threshold=1.0, seed=seed, save_every_s=every_s, route=rng.choice(["ring", "random"]))
    piles = [Pile(limit) for _ in range(size)]
    return sorted(simulated(piles, seed, check, options=options, stores=stores, states=states).value)


def lives(seed: int, limit: int = 60) -> int:
    """Runs that die at random events, each with ranks as it comes, until one comes to its end; the number of deaths."""
    rng = random.Random(seed)
    disk, deaths = Disk(), 0
    while True:
        dies_at = rng.choice([rng.randrange(1, 40), rng.randrange(1, 400), rng.randrange(1, 2000)]) if deaths < 8 else 10**9
        try:
            result = live(disk, rng.choice([1, 2, 3, 4, 9, 12]), rng.getrandbits(30), limit, dies_at=dies_at)
        except Died:
            deaths += 1
            continue
        assert result == list(range(1, limit + 1)), f"seed {seed}: {result}"
        return deaths


def test_however_often_it_dies_the_result_is_exact():
    assert sum(lives(seed) for seed in range(30)) > 25


@pytest.mark.parametrize("reason", [Reason.STOPPED, Reason.TIMED_OUT])
def test_a_search_that_is_asked_to_stop_or_whose_time_is_over_saves_first(reason):
    for seed in range(12):
        stop(seed, reason)


def stop(seed: int, reason: Reason = Reason.STOPPED) -> None:
    """One run that is asked to stop, or whose time is over; and what is saved then."""
    disk = Disk()
    simulation = simulate.Simulation(
        [Pile(300) for _ in range(4)],
        network=Network((1e-6, 1e-3)),
        unit_s=20e-6,
        quantum_s=60e-6,
        seed=seed,
        stores=[MemoryStore(disk, rank, size=4) for rank in range(4)],
        options=Options(threshold=1.0, seed=seed, save_every_s=math.inf, route="random" if seed % 2 else "ring"),
    )
    for _ in range(20 + seed):
        simulation.step()
    root = simulation.searchers[0]
    if reason is Reason.STOPPED:
        root.saves.stop()
    else:
        root.limit_at = simulation.now
    for _ in range(6_000):
        if not simulation.step():
            break
        if not simulation.searchers[0].over:
            check_simulation(simulation)
    assert {each.reason for each in simulation.searchers} == {reason}
    assert disk.newest is not None, "nothing is saved"
    assert finish(disk.newest, 3, 300) == list(range(1, 301))


def test_parts_that_a_rank_keeps_are_saved_and_worked_off():
    """A rank that has parts of work beside what it has in hand: of walks, and of an earlier run."""
    options = Options(threshold=1.0, save_every_s=math.inf, route="random")
    rank = Searcher(1, range(2), Pile(60), options)
    rank.problem.items = [5]
    rank.drafting.start()
    rank.drafting.kept, rank.saves.kept = [struct.pack("<2i", 7, 8)], [struct.pack("<i", 9)]
    state = rank._state()
    alone = Searcher(0, range(1), Pile(60), options, None, share([state], 0, 1))
    for _ in range(200):
        alone.turn(0.0, [])
        if alone.job is not None:
            alone.done(alone.job, alone.problem.work(3))
    assert alone.reason is Reason.EXHAUSTED
    assert {5, 7, 8, 9} <= set(alone.problem.done)
    assert len(alone.problem.done) == len(set(alone.problem.done))


def test_a_rank_whose_problem_cannot_be_saved_writes_nothing():
    """It says so, and that it has failed."""
    rank = Searcher(1, range(2), Pile(60, broken="save"), Options(save_every_s=math.inf))
    rank.turn(0.0, [(0, Message(Kind.PAUSE, 0, 1))])
    said = [(message.kind, message.pid) for _, message in rank.turn(0.0, [(0, Message(Kind.WRITE, 0, 1))])]
    assert said == [(Kind.WRITTEN, 0), (Kind.FINISH, Reason.FAILED)]
    assert rank.job is None


def test_work_goes_on_between_saves_on_a_disk_that_is_slower_than_they_are_frequent():
    rank = Searcher(0, range(1), Pile(60), Options(threshold=1.0, save_every_s=1.0))
    now, jobs = 0.0, []
    while not rank.over:
        rank.turn(now, [])
        if (job := rank.job) is not None:
            jobs.append(type(job))
            work = isinstance(job, Work)
            now += 0.3 if work else 5.0
            rank.done(job, rank.problem.work(1) if work else do(job, MemoryStore(Disk(), 0, size=1, full=True)))
        assert len(jobs) < 200, "no end in sight"
    assert jobs[:10] == [*[Work] * 4, Open, *[Work] * 4, Open]


def test_a_rank_that_cannot_write_keeps_nobody_from_going_on():
    disk = Disk()
    disk.committed[0] = tuple(Pile(100).save() for _ in range(3))
    stores = [MemoryStore(disk, rank, size=3, full=rank == 2) for rank in range(3)]
    piles = [Pile(100) for _ in range(3)]
    options = Options(threshold=1.0, save_every_s=1e-4)
    result = simulate.search(piles, network=Network((1e-5, 1e-5)), unit_s=20e-6, options=options, stores=stores)
    assert sorted(result.value) == list(range(1, 101))
    assert list(disk.committed) == [0]


def test_the_result_of_save_is_checked():
    pile = Pile(100)
    pile.save = lambda: "text"
    options = Options(threshold=1.0, save_every_s=1e-4)
    with pytest.raises(SearchError, match="save"):
        simulate.search([pile], options=options, stores=[MemoryStore(Disk(), 0, size=1)], unit_s=20e-6)
    for broken in ("save", "resume"):
        states, stores = [pack_parts([Pile(5).save()])] if broken == "resume" else None, [MemoryStore(Disk(), 0, size=1)]
        with pytest.raises(Broken, match=broken):
            simulate.search([Pile(100, broken=broken)], options=options, stores=stores, states=states, unit_s=20e-6)


def find_fault() -> None:
    """What is wrong with it."""
    test_a_rank_whose_problem_cannot_be_saved_writes_nothing()
    test_parts_that_a_rank_keeps_are_saved_and_worked_off()
    explore_cut(above=(None, 0, 1), most_work=1)
    for seed in range(12):
        lives(seed)
    stop(0)
    stop(0, Reason.TIMED_OUT)
    explored(2, 3, drafts=1)
    explored(2, 3, drafts=1, broken="save", broken_rank=1)


test_known_wrong_variants_are_caught = rejects(find_fault, CUT_MUTANTS, KeyError)
