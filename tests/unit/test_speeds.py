"""What is known of the ranks: speeds, and how sure they are; what that gains in rounds of few tasks."""

from collections.abc import Sequence

import numpy as np
import pytest

from lb_mpi import knowledge
from lb_mpi.cli.simulate.tasks import SimulatedPool
from lb_mpi.knowledge import KnownSpeeds, RankKnowledge, RankSpeed, SpeedSources, Timing, n_numbers
from lb_mpi.pooling import plan
from lb_mpi.pooling.learning import LONG_S, Memory, timings_of
from lb_mpi.pooling.plan import ChunkRun, MapPlan
from tests.protocol.few_tasks import MACHINES, list_s, ratios
from tests.protocol.mutate import rejects

UNEQUAL = [1.0, 0.5, 0.25, 0.1]


def timing(seconds: Sequence[float]) -> Timing:
    one = Timing()
    for each in seconds:
        one = one.added(each)
    return one


def ran(speeds: Sequence[float], n: Sequence[int], *, spread: float = 0.0, seed: int = 0) -> dict[int, Timing]:
    """Timings of ranks that have run n[r] tasks of 0.1 s at speed 1, or of different ones with that mean."""
    rng = np.random.default_rng(seed)
    return {
        rank: timing((0.1 / speed * rng.lognormal(-0.5 * spread**2, spread, k)).tolist())
        for rank, (speed, k) in enumerate(zip(speeds, n, strict=True))
        if k
    }


def off(known: RankKnowledge, speeds: Sequence[float]) -> float:
    """How far the known speeds are off the true ones, as a factor - 1."""
    logs = np.log(known.speeds) - np.log(speeds)
    return float(np.exp(np.ptp(logs)) - 1.0)


def check_equal_tasks() -> None:
    """One task of each rank tells its speed, and after a few all is known; ranks that change are known at once."""
    known = RankKnowledge(4)
    known.observe("f", ran(UNEQUAL, [1] * 4))
    assert off(known, UNEQUAL) < 3.0
    for _ in range(3):
        known.observe("f", ran(UNEQUAL, [1] * 4))
    assert off(known, UNEQUAL) < 0.2
    for _ in range(10):
        known.observe("f", ran(UNEQUAL, [2] * 4))
    for _ in range(2):
        known.observe("f", ran(UNEQUAL[::-1], [2] * 4))
    assert off(known, UNEQUAL[::-1]) < 0.5


def check_memory_of_tasks() -> None:
    """A few tasks that differ do not make forget many; many small calls tell as much as a large one."""
    known = RankKnowledge(4)
    known.observe("f", ran(UNEQUAL, [400] * 4, spread=0.7))
    assert off(known, UNEQUAL) < 0.5
    before = known.speeds
    for seed in range(3):
        known.observe("f", ran(UNEQUAL, [1] * 4, spread=0.7, seed=seed))
    assert off(known, before) < 0.25
    small, large = RankKnowledge(4), RankKnowledge(4)
    for seed in range(16):
        small.observe("f", ran(UNEQUAL, [1] * 4, spread=0.2, seed=seed))
    large.observe("f", ran(UNEQUAL, [16] * 4, spread=0.2))
    for one, other in zip(small.ranks, large.ranks, strict=True):
        assert one.n == pytest.approx(other.n, rel=0.6)


def check_priors() -> None:
    """What was believed weakly, or before, yields to a clear measurement, not to a single task among different ones."""
    known = RankKnowledge(4)
    known.believe([0.1, 1.0, 1.0, 1.0])
    assert known.speeds == pytest.approx([0.1, 1.0, 1.0, 1.0])
    for _ in range(2):
        known.observe("f", ran(UNEQUAL, [8] * 4, spread=0.1))
    assert off(known, UNEQUAL) < 0.4
    alike = RankKnowledge(4)
    for seed in range(30):
        alike.observe("f", ran([1.0] * 4, [1] * 4, spread=0.5, seed=seed))
        assert max(alike.hopes) < 2.0 * min(alike.hopes), "an equal rank would get no task"


def check_one_rank_alone() -> None:
    """Its tasks may have been long; and who rests for long may have become faster."""
    known = RankKnowledge(2)
    for _ in range(3):
        known.observe("f", ran([1.0, 0.5], [3, 3]))
    known.observe("f", ran([0.6], [3]))
    assert off(known, [1.0, 0.5]) < 0.5
    for _ in range(4):
        known.observe("f", ran([0.05], [3]))
    assert known.speeds[0] < known.hopes[1], "a rank that alone gets all tasks, and has become slow, goes on so for ever"
    known = RankKnowledge(2)
    known.observe("f", ran([1.0, 0.1], [3, 3]))
    hope = known.hopes[1]
    for _ in range(100):
        known.observe("f", ran([1.0], [10]))
    assert known.hopes[1] > 2.0 * hope
    assert known.speeds[1] == pytest.approx(0.1, rel=0.5)


def check_costs() -> None:
    """Where costs are known, a few tasks tell more."""
    known, unknown = RankKnowledge(4), RankKnowledge(4)
    known.observe("f", ran(UNEQUAL, [1] * 4), with_costs=True)
    unknown.observe("f", ran(UNEQUAL, [1] * 4))
    assert off(known, UNEQUAL) < 0.6 < off(unknown, UNEQUAL)


def check_short_tasks() -> None:
    """Microseconds tell nothing: the first task of a rank finds cold caches."""
    known = RankKnowledge(2)
    known.observe("f", {0: Timing().added(1e-6), 1: Timing().added(1e-4)})
    assert off(known, [1.0, 1.0]) < 0.1


def check_plan() -> None:
    """A map's chunks are learned from by their tasks' own seconds, in parts of a map, too."""
    known, memory = RankKnowledge(2), Memory()
    one = MapPlan.of("f", 8, None, (), known, memory, lambda: b"a")
    assert one.bounds == [0, 4, 8]
    one.learn([ChunkRun(k, k + 1, 0.1, 0) for k in range(6)] + [ChunkRun(6, 7, 0.5, 1)], known, memory)
    assert known.speeds[1] < 0.4
    assert memory.predict("f", lambda: b"a", 8) is None
    again = MapPlan.of("f", 2, None, (), known, memory, lambda: b"a")
    assert again.bounds == [0, 2, 2]  # the slow rank begins none


def second_door(first: Sequence[float], second: Sequence[float], n: int, maps: int = 4) -> list[float]:
    """Time / best list schedule of the maps of a pool on ranks of which an earlier one has known the speeds `first`."""
    size = len(first)
    before = SimulatedPool([size], first)
    for _ in range(5):
        before.map(np.full(n, 0.05))
    pool = SimulatedPool([size], second)
    pool.knowledge.believe(*(before.knowledge.learned() or ((), ())))
    return [pool.map(np.full(n, 0.05)).seconds / list_s(np.full(n, 0.05), np.array(second)) for _ in range(maps)]


def check_next_door() -> None:
    """The next pool knows the speeds from its first map on; if they have changed, it is overruled in a few maps."""
    assert second_door(UNEQUAL, UNEQUAL, 4, 1)[0] < 1.15
    assert max(second_door(UNEQUAL[::-1], UNEQUAL, 4, 7)[5:]) < 1.1, "the others must try a task"
    assert max(second_door(UNEQUAL[::-1], UNEQUAL, 16)[1:]) < 1.1
    known = RankKnowledge(4)
    known.believe([0.01, 1.0, 1.0, 1.0])
    known.observe("f", ran([1.0] * 4, [4] * 4, spread=0.05))
    assert off(known, [1.0] * 4) < 0.3, "one clear measurement is enough"
    known = RankKnowledge(4)
    assert known.learned() is None
    known.observe("f", ran([*UNEQUAL[:3], 1.0], [8, 8, 8, 0]))
    found = known.learned()
    assert found is not None
    assert not found.complete
    assert found.unsure[3] == 1.0
    assert known.ranks[0].unsure == 1.0
    other = RankKnowledge(4)
    other.believe(*found)
    assert other.speeds == pytest.approx(known.speeds)
    assert other.hopes[3] > other.speeds[3] * 1.2
    assert RankKnowledge(4, UNEQUAL).learned() is None


def check_sources() -> None:
    """The newest door that has learned something is asked; another emulated speed is another machine."""
    found: list[KnownSpeeds | None] = [None, KnownSpeeds((1.0, 0.5), (0.1, 0.1)), None]
    sources = SpeedSources()
    assert sources.newest() == (0, None)
    for door in range(3):
        assert not sources.open(1.0)
        sources.add(lambda door=door: found[door])
    assert sources.newest() == (2, found[1])
    found[2] = KnownSpeeds((1.0, 0.1), (0.1, 0.1))
    assert sources.newest() == (3, found[2]), "a door that is open learns"
    assert sources.open(0.5)
    assert not sources.open(0.5)
    sources.forget()
    assert sources.newest() == (0, None)
    for _ in range(2 * knowledge.DOORS):
        sources.add(lambda: None)
    assert sources.newest() == (0, None)


CHECKS = [
    check_equal_tasks, check_memory_of_tasks, check_priors, check_one_rank_alone, check_costs, check_short_tasks, check_plan,
    check_next_door, check_sources,
]  # fmt: skip

MUTANTS = [
    # a memory of calls, not of tasks
    (knowledge, "RankSpeed.measured", "if self.n else 0.0, one / noise", "if self.n else 0.0, 1.0"),
    (knowledge, "RankSpeed.measured", "min(MEMORY, before + n)", "min(2.0, before + n)"),
    # what was known never yields
    (knowledge, "updated", "                    extra[rank], changed = more, True", "                    pass"),
    (knowledge, "RankSpeed.known", "spread = max(spread * self.unsure, 1e-12 * self.unsure)", "spread = 1e-3 * self.unsure"),
    # each measurement is believed
    (knowledge, "RankSpeed.noise", "return (CLOCK + variation) / self.n", "return 0.0 * variation"),
    (knowledge, "updated", " + (COLD_S / timing.seconds) ** 2", ""),
    (knowledge, "CLEAR", "3.0", "0.5"),
    # one rank alone
    (knowledge, "updated", "weight = 1.0 / (tasks.variance + LENGTH)", "weight = 0.0"),
    (knowledge, "RankKnowledge.observe", "old.rested + tasks", "old.rested"),
    # a prior from another door that never yields, or is believed where nothing is known
    (knowledge, "RankSpeed.faded", "FADE * (self.prior - log)", "(self.prior - log)"),
    (knowledge, "RankSpeed.measured", "if extra and self.unsure else", "if False else"),
    (knowledge, "RankKnowledge.learned", "min(1.0, max(WEAK, variance / spread))", "WEAK"),
    (knowledge, "RankKnowledge.learned", "min(1.0, max(WEAK, variance / spread))", "1.0"),
    (knowledge, "SpeedSources.newest", " if known is not None", ""),
    (knowledge, "SpeedSources.add", "appendleft", "append"),
    # costs, and plans
    (knowledge, "VARIATION_OF_COSTS", "0.01", "0.25"),
    (plan, "MapPlan.of", "shares(len(tasks), knowledge.hopes)", "shares(len(tasks), [1.0] * len(knowledge.ranks))"),
]  # fmt: skip


def find_fault() -> None:
    for check in CHECKS:
        check()


test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, right=True)


@pytest.mark.parametrize("name", MACHINES)
def test_the_first_map_of_a_second_pool_takes_little_more_than_its_bound(name):
    for factor in (1, 2, 4):
        (first,) = second_door(MACHINES[name], MACHINES[name], factor * len(MACHINES[name]), 1)
        assert first < 1.15, (factor, first)


def test_given_speeds_are_kept():
    known = RankKnowledge(4, [4.0, 2.0, 1.0, 1.0])
    known.observe("f", ran(UNEQUAL, [100] * 4))
    assert known.speeds == pytest.approx([1.0, 0.5, 0.25, 0.25])
    assert known.hopes == known.speeds


@pytest.mark.parametrize("least", [5e-324, 1e-308, 1e-12, 1.0])
def test_seconds_and_costs_of_any_size(least):
    for seconds in ([least, 1e3], [1e3, least], [1e300, 1e3], [0.0, 1.0]):
        known = RankKnowledge(2)
        for costs in ([least, 1.0], [1e300, least], [1e300, 1e-300], [0.0, 0.0]):
            by, times = np.arange(2), np.array(seconds)
            with np.errstate(over="ignore"):
                known.observe("f", timings_of(np.array(costs), 2, times, by, 2), with_costs=True)
            known.observe("f", {0: Timing().added(seconds[0]), 1: Timing().added(min(seconds[1], 1e150))})
        for speeds in (known.speeds, known.hopes):
            assert np.isfinite(speeds).all()
            assert np.isfinite(1.0 / np.array(speeds)).all()
        found = known.estimate(range(2), {})
        assert found is None or (np.isfinite(list(found.speeds.values())).all() and found.variation >= 0.0)


def test_what_is_known_travels_as_numbers():
    known, other = RankKnowledge(3), RankKnowledge(3)
    known.observe("f", ran(UNEQUAL[:3], [2, 1, 0]))
    numbers = known.numbers()
    assert len(numbers) == n_numbers(3)
    other.adopt(np.array(numbers).tolist())
    assert (other.speeds, other.hopes, other.tasks) == (known.speeds, known.hopes, known.tasks)
    assert all(isinstance(one, RankSpeed) for one in other.ranks)


def test_functions_are_forgotten_and_short_tasks_have_a_length():
    known = RankKnowledge(1)
    for name in range(knowledge.KEPT + 1):
        known.observe(name, {0: Timing().added(LONG_S)})
    known.begin(0)
    assert known.tasks == knowledge.UNKNOWN
    known.begin(1)
    assert known.tasks.log_s == pytest.approx(np.log(LONG_S))


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("name", ["1 .1 .1 .1", "1 1 .5 .5 .25 .25 .1 .1"])
def test_rounds_of_few_tasks_take_little_more_than_the_best_list_schedule(name, changed):
    for factor, spread, most in ((1, 0.01, 1.12 if changed else 1.06), (2, 0.01, 1.08), (2, 0.5, 1.35 if changed else 1.2)):
        n = factor * len(MACHINES[name])
        found = ratios(MACHINES[name], n, spread, n_rounds=30, seeds=1, changed=changed)
        assert max(found) < most, (factor, spread, found)
