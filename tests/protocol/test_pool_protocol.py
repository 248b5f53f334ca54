"""The protocol of the pool: the law in every state of small ones, seeded simulations, and known-wrong variants."""

import random

import numpy as np
import pytest

from lb_mpi.cli.simulate.tasks import SimulatedPool
from lb_mpi.errors import ProtocolError
from lb_mpi.knowledge import RankKnowledge, Timing
from lb_mpi.pooling import account, intervals, stealer
from lb_mpi.pooling.intervals import Interval, pack
from lb_mpi.pooling.stealer import BeginMap, EndMap, Stealer, StealKind, StealMessage, Swap
from lb_mpi.virtual import Network
from tests.protocol import pool_law
from tests.protocol.explore import for_each_seed
from tests.protocol.mutate import rejects
from tests.protocol.pool_law import CheckedPool, Maps, Small, check_pool
from tests.protocol.pool_mutants import MUTANTS

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
]


@pytest.mark.parametrize("small", SMALL, ids=range(len(SMALL)))
def test_the_law_holds_in_every_reachable_state(small):
    assert Maps(small).explore() > 20


def slept_through(monkeypatch: pytest.MonkeyPatch, first: int) -> Maps:
    """Three maps, numbered in words modulo 2."""
    for module in (stealer, intervals, pool_law):
        monkeypatch.setattr(module, "EPOCHS", 2)
    return Maps(Small(PAIR, [[1, 0]] * 3, first=first))


def test_the_number_of_a_map_may_wrap_around_if_all_ranks_synchronize(monkeypatch):
    slept_through(monkeypatch, 1).explore()


def test_a_rank_that_does_not_synchronize_steals_tasks_of_another_map(monkeypatch):
    monkeypatch.setattr(pool_law, "synchronizes", lambda _epoch: False)
    with pytest.raises(AssertionError):
        slept_through(monkeypatch, 1).explore()


def play(
    seed: int,
    *,
    sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 9),
    pool_class: type[SimulatedPool] = CheckedPool,
) -> int:
    """Some maps under the law: random hosts, speeds, costs, errors, delays log-uniform over three decades; the steals."""
    rng = random.Random(seed)
    size = rng.choice(sizes)
    ends = sorted({*rng.sample(range(1, size), rng.randint(0, min(7, size - 1))), size})
    hosts = np.diff([0, *ends]).tolist()
    swap_s = rng.choice([0.0, 1e-6, 1e-4])
    pool = pool_class(
        hosts, [2.0 ** rng.uniform(-4, 0) for _ in range(size)], speeds_known=rng.random() < 0.3,
        network=Network((1e-6, 1e-3)), swap_s=swap_s, poll_s=1e-5, batch_s=2e-3,
        first_epoch=rng.choice([1, 254]), seed=seed,
    )  # fmt: skip
    steals = 0
    for _ in range(4):
        n = rng.choice([0, 1, size, 5 * size, rng.randint(0, 10 * size)])
        costs = rng.choice([1e-6, 1e-4, 1e-2]) * np.array([rng.lognormvariate(0.0, 1.0) for _ in range(n)])
        raising = [rng.randrange(n)] if n and rng.random() < 0.3 else []
        number, steps = pool.epoch, 0

        def check(pool: SimulatedPool, number: int = number) -> None:
            nonlocal steps
            steps += 1
            if steps % size == 0 or pool.over:
                check_pool(pool, number)
            assert steps < 300_000, "no end in sight"

        run = pool.map(costs, costs_known=rng.random() < 0.3, raising=raising, on_step=check)
        assert run.raised == bool(raising)
        assert run.raised or sum(run.tasks) == n
        assert run.seconds >= (0.0 if run.raised else run.bound_s * (1 - 1e-9))
        steals += run.steals
    return steals


def test_simulated_maps_keep_the_law_at_each_step():
    for_each_seed(range(20), play)


@pytest.mark.parametrize(("size", "seed"), [(16, 1), (33, 1)])
def test_many_ranks_keep_the_law_and_steal(size, seed):
    assert play(seed, sizes=(size,)) > 0


def begun(others: list[list[int]], number: int = 1, lo: int = 0, hi: int = 0) -> Stealer:
    """Rank 0, alone on its host, in a map; its word is filled."""
    one = Stealer(0, [0], others, words={0: 0}, timings={}, knowledge=RankKnowledge(1))
    begin(one, number, lo, hi)
    return one


def begin(one: Stealer, number: int, lo: int = 0, hi: int = 0) -> None:
    assert one.turn(0.0, [(0, BeginMap(number, lo, hi))]) == []
    swap(one)


def swap(one: Stealer) -> None:
    """Let the stealer do the swap that it proposes."""
    assert isinstance(one.job, Swap)
    one.words = {one.job.rank: one.job.new}
    assert one.done(one.job, True) == []


def check_gives() -> None:
    """Two hosts give something, one after the other was no longer waited for."""
    one = begun([[1], [2]])
    asked = [*one.turn(0.0, []), *one.turn(1.0, [])]
    assert sorted(asked) == [(rank, StealMessage(StealKind.ASK, 1, speed=1.0)) for rank in (1, 2)]
    gives = [(1, StealMessage(StealKind.GIVE, 1, 3, 4)), (2, StealMessage(StealKind.GIVE, 1, 7, 8))]
    for first in (3, 7):
        assert one.turn(1.0, gives) == []
        assert one.job == Interval(1, first, first + 1)
        assert one.done(one.job, 1.0) == []
        gives = []
    assert one.turn(2.0, []) == []  # all hosts were asked: a pause
    ((rank, _ask),) = one.turn(3.0, [])
    assert one.turn(3.0, [(rank, StealMessage(StealKind.GIVE, 1, 5, 6)), (0, EndMap())]) == []  # a GIVE of an ended map
    begin(one, 2)
    one.turn(4.0, [])
    assert one.job is None


def check_asking() -> None:
    """All hosts have nothing: each is asked once, then there is a pause, which grows to its longest."""
    one = begun([[1], [2], [3]])
    now, pauses = 0.0, []
    for _ in range(8):
        asked, answer = [], []
        for _ in range(3):
            ((rank, _ask),) = one.turn(now, answer)
            asked.append(rank)
            answer = [(rank, StealMessage(StealKind.GIVE, 1))]
        assert sorted(asked) == [1, 2, 3]
        assert one.turn(now, answer) == []
        assert one.job is None
        pauses.append(one.wake_at - now)
        now = one.wake_at
    assert pauses == pytest.approx([0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 10e-3, 10e-3, 10e-3])


def check_leaving() -> None:
    """A slow rank leaves the last task to a fast one, and takes it when it has waited."""
    number, fast = 3, Timing(3, 20, 0.2, 2e-3)
    timings = {0: Timing(), 1: fast}
    words = {0: 0, 1: pack(number, 30, 30)}
    knowledge = RankKnowledge(2)
    one = Stealer(0, [0, 1], words=words, timings=timings, knowledge=knowledge)

    def swap() -> None:
        assert isinstance(one.job, Swap)
        words[one.job.rank] = one.job.new
        assert one.done(one.job, True) == []

    def run(now: float, seconds: float) -> None:
        one.turn(now, [])
        swap()
        one.turn(now, [])
        assert isinstance(one.job, Interval)
        assert one.done(one.job, seconds) == []

    one.turn(0.0, [(0, BeginMap(number, 0, 8))])
    swap()
    for k in range(4):  # ten times as slow, and much is left
        words[1] = pack(number, 30, 90)
        run(0.1 * k, 0.1)
    assert timings[0] == Timing(number, 4, pytest.approx(0.4), pytest.approx(0.04))
    words[0], words[1] = pack(number, 4, 5), pack(number, 30, 30)
    assert one.turn(0.4, []) == []
    assert one.job is None
    assert 0.4 < one.wake_at < 0.6
    until = one.wake_at
    one.turn(until, [])
    assert one.job == Swap(0, pack(number, 4, 5), pack(number, 5, 5))
    # a rank of the usual speed takes it at once; so does this one where the other's times are of another map
    words[0], timings[1] = pack(number, 5, 6), fast._replace(epoch=number - 1)
    one._tail._decided = False
    one.turn(0.6, [])
    assert one.job == Swap(0, pack(number, 5, 6), pack(number, 6, 6))
    timings[1] = Timing(number, 4, 0.4, 0.04)
    one._tail._decided = False
    one.turn(0.6, [])
    assert one.job == Swap(0, pack(number, 5, 6), pack(number, 6, 6))
    # after a chunk it decides anew
    timings[1] = fast
    run(0.7, 0.1)
    words[0] = pack(number, 6, 7)
    assert one.turn(0.8, []) == []
    assert one.job is None


def check_collector() -> None:
    """Each result is taken once, and of this map only."""
    results = account.Collector(7, 4)
    assert results.add(7, 1, 3)
    assert not results.add(6, 0, 1)
    for lo, hi in ((0, 2), (1, 3), (3, 5), (3, 3), (-1, 1)):
        with pytest.raises(ProtocolError, match=f"results of tasks {lo}"):
            results.add(7, lo, hi)
    assert results.missing == 2


CHECKS = (check_gives, check_asking, check_leaving, check_collector)


@pytest.mark.parametrize("check", CHECKS)
def test_a_worker_follows_its_table_and_results_are_taken_once(check):
    check()


def find_fault() -> None:
    """What is wrong with it: every state of small pools, and simulations."""
    for check in CHECKS:
        check()
    for number in (1, 2, 3, 4, 7, 8, 6):
        Maps(SMALL[number]).explore(most_states=20_000)
        play(number)
    for seed in range(10, 16):
        play(seed)
    for number in (5, 10):
        Maps(SMALL[number]).explore(most_states=20_000)


test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, Exception, right=False)


def test_a_swap_that_does_not_compare_is_caught(monkeypatch):
    monkeypatch.setattr(Maps, "compare", lambda _self, _word, _swap: True)
    with pytest.raises(AssertionError):
        Maps(SMALL[2]).explore()

    class Blind(CheckedPool):
        def compare_and_swap(self, swap: Swap) -> bool:
            self.words[swap.rank] = swap.new
            return True

    with pytest.raises((AssertionError, ProtocolError)):
        _ = [play(seed, pool_class=Blind) for seed in range(20)]


def test_messages_outside_the_table_are_protocol_errors():
    one = begun([[2]], hi=1)
    with pytest.raises(ProtocolError, match="is done, the chunk is None"):
        one.done(Interval(1, 0, 1), 1.0)
    with pytest.raises(ProtocolError, match=r"GIVE of 3\.\.4 from rank 2, which was not asked"):
        one.turn(0.0, [(2, StealMessage(StealKind.GIVE, 1, 3, 5))])
    with pytest.raises(ProtocolError, match="from rank 1"):
        one.turn(0.0, [(1, StealMessage(9, 1))])
    one.turn(0.0, [])
    swap(one)
    assert one.job == Interval(1, 0, 1)
    with pytest.raises(ProtocolError, match=r"begin of 0\.\.1 with chunk"):
        one.turn(0.0, [(0, BeginMap(2, 0, 1))])


def test_each_map_has_its_own_steals_and_chunks():
    one = begun([[1]])
    assert one.turn(0.0, []) == [(1, StealMessage(StealKind.ASK, 1, speed=1.0))]
    one.turn(0.0, [(1, StealMessage(StealKind.GIVE, 1, 0, 1))])
    assert (one.job, one.steals) == (Interval(1, 0, 1), [(1, 1)])
    one.done(Interval(1, 0, 1), 1.0)
    one.turn(0.0, [(0, EndMap())])
    begin(one, 2)
    assert one.steals == []
    one.turn(0.0, [(0, EndMap()), (0, BeginMap(3, 0, 9, chunksize=3))])
    swap(one)
    assert one.turn(0.0, []) == []
    swap(one)
    assert one.job == Interval(3, 0, 3)


def test_messages_of_another_map_are_answered_with_nothing_or_dropped():
    one = begun([[1]], 300)
    one._hosts.ready_at = 1.0  # it asks nobody by itself
    for number in (44, 299, 301):  # 44 looks like 300 in a word
        arrived = [(1, StealMessage(StealKind.ASK, number, speed=1.0)), (1, StealMessage(StealKind.GIVE, number, 0, 9))]
        assert one.turn(0.0, arrived) == [(1, StealMessage(StealKind.GIVE, number, 0, 0))]
    assert one.job is None
