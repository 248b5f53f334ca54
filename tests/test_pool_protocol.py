"""The protocol of the pool: the law in every state of small ones, seeded simulations, and known-wrong variants."""

from __future__ import annotations

import inspect
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lb_mpi.errors import ProtocolError
from lb_mpi.pooling import chunks, collect, intervals, worker
from lb_mpi.pooling.intervals import Interval, pack
from lb_mpi.pooling.simulate import Pool
from lb_mpi.pooling.worker import Kind, Message, Swap, Worker
from lb_mpi.pooling.world import Network, World
from tests import pool_law
from tests.pool_law import CheckedWorld, Exploration, Small, check_world
from tests.pool_mutants import MUTANTS

PAIR, THREE, APART, PAIR_AND_ONE = [[0, 1]], [[0, 1, 2]], [[0], [1]], [[0], [1, 2]]
SMALL = [
    Small([[0]], [[3], [2]]),
    Small(PAIR, [[3, 0]]),
    Small(PAIR, [[2, 2]]),
    Small(PAIR, [[5, 1]], chunksize=2),
    Small(PAIR, [[0, 4]], speeds={0: 1.0, 1: 3.0}),
    Small(THREE, [[2, 1, 0]]),
    Small(PAIR, [[2, 0], [1, 1]], abandons=1),
    Small(APART, [[3, 0]]),
    Small(APART, [[2, 1]], speeds={0: 3.0, 1: 1.0}),
    Small(APART, [[1, 0], [0, 0]], abandons=1),
    Small(PAIR_AND_ONE, [[2, 0, 0]]),
    Small(PAIR_AND_ONE, [[0, 1, 0]]),
]


@pytest.mark.parametrize("number", range(len(SMALL)))
def test_the_law_holds_in_every_reachable_state(number: int) -> None:
    states, ends = Exploration(SMALL[number]).explore(progress=len(SMALL[number].hosts) == 1)
    assert states > 20
    assert ends > 0


def slept_through(monkeypatch: pytest.MonkeyPatch, first: int) -> Exploration:
    """Three maps, numbered in words modulo 2."""
    for module in (worker, intervals, pool_law):
        monkeypatch.setattr(module, "EPOCHS", 2)
    return Exploration(Small(PAIR, [[1, 0]] * 3, first=first))


def test_nobody_sleeps_until_its_word_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept_through(monkeypatch, 1).explore()[1] > 0


def test_who_does_not_meet_steals_of_another_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_law, "meets", lambda _epoch: False)
    with pytest.raises(AssertionError):
        slept_through(monkeypatch, 1).explore()


def play(
    seed: int,
    *,
    sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 9),
    worker_class: type[Worker] = Worker,
    world_class: type[World] = CheckedWorld,
) -> int:
    """Some maps under the law: random hosts, speeds, costs, errors, delays log-uniform over three decades; the steals."""
    rng = random.Random(seed)
    size = rng.choice(sizes)
    ends = sorted({*rng.sample(range(1, size), rng.randint(0, min(7, size - 1))), size})
    hosts = np.diff([0, *ends]).tolist()
    network = Network((1e-6, 1e-3), (1e-6, 1e-3), swap_s=rng.choice([0.0, 1e-6, 1e-4]), look_s=1e-5, batch_s=2e-3)
    pool = Pool(
        hosts, [2.0 ** rng.uniform(-4, 0) for _ in range(size)], speeds_known=rng.random() < 0.3, network=network,
        first_epoch=rng.choice([1, 254]), seed=seed, worker_class=worker_class, world_class=world_class,
    )  # fmt: skip
    steals = 0
    for _ in range(4):
        n = rng.choice([0, 1, size, 5 * size, rng.randint(0, 10 * size)])
        costs = rng.choice([1e-6, 1e-4, 1e-2]) * np.array([rng.lognormvariate(0.0, 1.0) for _ in range(n)])
        raising = [rng.randrange(n)] if n and rng.random() < 0.3 else []
        number, steps = pool.epoch, 0

        def check(world: World, number: int = number) -> None:
            nonlocal steps
            steps += 1
            if steps % size == 0 or world.over:
                check_world(world, number)
            assert steps < 300_000, "no end in sight"

        run = pool.map(costs, costs_known=rng.random() < 0.3, raising=raising, on_step=check)
        assert run.raised == bool(raising)
        assert run.raised or sum(run.tasks) == n
        assert run.seconds >= (0.0 if run.raised else run.bound_s * (1 - 1e-9))
        steals += run.steals
    return steals


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_simulated_maps_keep_the_law_at_each_step(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            play(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize(("size", "seed"), [(16, 0), (33, 1), (64, 0)])
def test_many_ranks(size: int, seed: int) -> None:
    assert play(seed, sizes=(size,)) > 0


def mutant(module: types.ModuleType, before: str, after: str) -> dict[str, Any]:
    """The classes of the protocol with one change in the source of `module`; the types of its messages stay the same."""
    source = inspect.getsource(module)
    assert source.count(before) >= 1, f"no such place in {module.__name__}: {before!r}"
    changed = types.ModuleType("mutant")
    vars(changed)["__name__"] = module.__name__
    exec(compile(source.replace(before, after, 1), "mutant", "exec"), vars(changed))
    for name in ("Kind", "Message", "Swap", "Ask", "Interval", "RankTasks"):
        if name in vars(changed):
            setattr(changed, name, vars(module)[name])
    if module in (chunks, intervals):
        host = types.ModuleType("host")
        exec(compile(inspect.getsource(worker), "host", "exec"), vars(host))
        vars(host).update({name: vars(worker)[name] for name in ("Kind", "Message", "Swap", "Ask")})
        names = ("share", "Pace") if module is chunks else ("pack", "unpack", "take_front", "take_back")
        vars(host).update({name: vars(changed)[name] for name in names})
        changed = host
    return vars(changed)


def check_gives(worker_class: type[Worker]) -> None:
    """Two hosts give something, one after the other was no longer waited for."""
    one = worker_class(0, [0], [[1], [2]])
    words, speeds, asked = {0: pack(1, 0, 0)}, {0: 1.0}, []
    one.begin(1, 0, 0)
    one.swapped(Swap(0, 0, words[0]), succeeded=True)
    for now in (0.0, 1.0):
        assert one.propose(now, words, speeds) is None
        asked += one.sends()
    assert sorted(asked) == [(rank, Message(Kind.ASK, 1, speed=1.0)) for rank in (1, 2)]
    one.receive(1, Message(Kind.GIVE, 1, 3, 4))
    one.receive(2, Message(Kind.GIVE, 1, 7, 8))
    for first in (3, 7):
        assert one.propose(1.0, words, speeds) is None
        assert one.done(1.0) == Interval(1, first, first + 1)
    assert one.propose(2.0, words, speeds) is None  # all hosts were asked: a pause
    assert one.propose(3.0, words, speeds) is None
    ((rank, _ask),) = one.sends()
    one.receive(rank, Message(Kind.GIVE, 1, 5, 6))
    one.end()  # what was given is of an ended map
    one.begin(2, 0, 0)
    one.swapped(Swap(0, words[0], pack(2, 0, 0)), succeeded=True)
    assert one.propose(4.0, {0: pack(2, 0, 0)}, speeds) is None
    assert one.chunk is None


def check_asking(worker_class: type[Worker]) -> None:
    """All hosts have nothing: each is asked once, then there is a pause, which grows to its longest."""
    one = worker_class(0, [0], [[1], [2], [3]])
    words, now, pauses = {0: pack(1, 0, 0)}, 0.0, []
    one.begin(1, 0, 0)
    one.swapped(Swap(0, 0, words[0]), succeeded=True)
    for _ in range(8):
        asked = []
        for _ in range(3):
            assert one.propose(now, words, {0: 1.0}) is None
            ((rank, _ask),) = one.sends()
            asked.append(rank)
            one.receive(rank, Message(Kind.GIVE, 1))
        assert sorted(asked) == [1, 2, 3]
        assert one.propose(now, words, {0: 1.0}) is None
        assert one.sends() == []
        pauses.append(one.wake_at - now)
        now = one.wake_at
    assert pauses == pytest.approx([0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 10e-3, 10e-3, 10e-3])


def check_collector(collector_class: type[collect.Collector]) -> None:
    """Each result is taken once, and of this map only."""
    results = collector_class(7, 4)
    assert results.take(7, 1, 3)
    assert not results.take(6, 0, 1)
    for lo, hi in ((0, 2), (1, 3), (3, 5), (3, 3), (-1, 1)):
        with pytest.raises(ProtocolError, match=f"results of tasks {lo}"):
            results.take(7, lo, hi)
    assert results.missing == 2


@pytest.mark.parametrize("check", [check_gives, check_asking])
def test_what_a_worker_does(check: Callable[[type[Worker]], None]) -> None:
    check(Worker)


def test_results_are_taken_once() -> None:
    check_collector(collect.Collector)


def find_fault(
    worker_class: type[Worker], collector_class: type[collect.Collector] = collect.Collector
) -> BaseException | None:
    """What is wrong with it: every state of small pools, and simulations."""
    try:
        check_gives(worker_class)
        check_asking(worker_class)
        check_collector(collector_class)
        for number in (1, 2, 3, 4, 7, 8, 6):
            small = SMALL[number]
            Exploration(small, worker_class, collector_class).explore(
                most_states=20_000, progress=len(small.hosts) == 1
            )
            if collector_class is collect.Collector:
                play(number, worker_class=worker_class)
        for seed in range(10, 16):
            play(seed, worker_class=worker_class)
        for number in (5, 10):
            Exploration(SMALL[number], worker_class, collector_class).explore(most_states=20_000)
    except (Exception, pytest.fail.Exception) as fault:
        return fault
    return None


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_known_wrong_variants_are_caught(number: int) -> None:
    classes = mutant(*MUTANTS[number])
    assert find_fault(classes.get("Worker", Worker), classes.get("Collector", collect.Collector)), MUTANTS[number]


def test_the_real_thing_has_no_fault() -> None:
    assert find_fault(Worker) is None


def test_a_swap_that_does_not_compare_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exploration, "compare", lambda _self, _word, _swap: True)
    with pytest.raises(AssertionError):
        Exploration(SMALL[2]).explore()

    class Blind(CheckedWorld):
        def compare_and_swap(self, swap: Swap) -> bool:
            self.words[swap.rank] = swap.new
            return True

    with pytest.raises((AssertionError, ProtocolError)):
        _ = [play(seed, world_class=Blind) for seed in range(20)]


def test_what_the_table_rules_out() -> None:
    one = Worker(0, [0, 1], [[2]])
    words, speeds = {0: 0, 1: 0}, {0: 1.0, 1: 1.0}
    assert one.propose(0.0, words, speeds) is None  # no map has begun
    assert one.sends() == []
    with pytest.raises(ProtocolError, match="done without a chunk"):
        one.done(1.0)
    one.begin(1, 0, 1)
    with pytest.raises(ProtocolError, match=r"GIVE of 3\.\.4 from rank 2, which was not asked"):
        one.receive(2, Message(Kind.GIVE, 1, 3, 5))
    with pytest.raises(ProtocolError, match="from rank 1"):
        one.receive(1, Message(9, 1))  # type: ignore[arg-type]
    one.swapped(Swap(0, 0, pack(1, 0, 1)), succeeded=True)
    one.swapped(Swap(0, pack(1, 0, 1), pack(1, 1, 1)), succeeded=True)
    assert one.chunk == Interval(1, 0, 1)
    with pytest.raises(ProtocolError, match=r"begin of 0\.\.1 with chunk"):
        one.begin(2, 0, 1)


def test_messages_of_another_map_are_answered_with_nothing_or_dropped() -> None:
    one = Worker(0, [0], [[1]])
    one.begin(300, 0, 0)
    one.swapped(Swap(0, 0, pack(44, 0, 0)), succeeded=True)
    for number in (44, 299, 301):  # 44 looks like 300 in a word
        one.receive(1, Message(Kind.ASK, number, speed=1.0))
        assert one.sends() == [(1, Message(Kind.GIVE, number, 0, 0))]
        one.receive(1, Message(Kind.GIVE, number, 0, 9))
    assert one.propose(0.0, {0: pack(44, 0, 0)}, {0: 1.0}) is None
    assert one.chunk is None
