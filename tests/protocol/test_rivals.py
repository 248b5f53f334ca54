"""The rivals of our stealing count exactly, lose no work and end, whatever the size, the speeds and the order of messages.

So what the table of `benchmarks.rivals` says of them is true of what was implemented; and they behave as their papers say.
"""

import random
from typing import Any

import pytest

from benchmarks.rivals import WAYS, CyclicToken, Lifelines, Rival, Windowed, run
from lb_mpi.cli.uts import Tree
from lb_mpi.errors import Error
from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.simulate import Simulation
from lb_mpi.virtual import Network
from tests.counting import plain_count

RIVALS = ("glb", "ctws", "a2ws")
TREES = [Tree("geometric", "fixed", depth=5, branching=4, seed=3), Tree("binomial", branching=50, q=0.12, m=8, seed=5)]
COUNTS = [plain_count(tree) for tree in TREES]


class Law:
    """At each event: WORK under way and who holds work are known to the termination."""

    def __init__(self) -> None:
        self.events = 0

    def __call__(self, simulation: Simulation) -> None:
        self.events += 1
        assert self.events < 200_000, "it never ends"
        if self.events % 16:
            return
        ranks: list[Any] = simulation.searchers
        flying = [message for _, _, message in simulation.under_way.values()]
        debts = sum(message.kind is Kind.WORK for message in flying)
        debts += sum(message.pid for message in flying if message.kind is Kind.ACK)
        debts += sum(sum(rank.termination.owed.values()) for rank in ranks)
        debts += sum(rank.termination.engaged for rank in ranks[1:])
        if not any(rank.over for rank in ranks):
            assert sum(rank.termination.deficit for rank in ranks) == debts
            for rank in ranks:
                assert rank.termination.engaged or not (rank.holds_work or rank.kept)


def sweep(way: str, n: int, **parameters: Any) -> None:
    for seed in range(n):
        rng = random.Random(seed)
        which, ranks = rng.randrange(2), rng.choice([1, 2, 3, 4, 5, 8, 13, 16])
        speeds = rng.choice([[1.0], [1.0, 0.5, 0.25, 0.25], [0.1, 1.0]])
        network = rng.choice([Network(), Network((1e-6, 1e-4))])
        quantum_s = rng.choice([2e-6, 10e-6])
        found = run(
            way, TREES[which], ranks, speeds, seed, network=network, quantum_s=quantum_s, check=Law(), **parameters
        )
        assert found.value == COUNTS[which], (way, seed)
        assert found.efficiency <= 1.0 + 1e-9
        assert sum(found.units) == found.value.nodes


@pytest.mark.parametrize("way", RIVALS)
def test_they_count_exactly_and_end(way: str) -> None:
    sweep(way, 16)


class Loses(Lifelines):
    """Forgets work that came while it had some."""

    def refill(self) -> None:
        super().refill()
        self.kept.clear()


class GivesTwice(CyclicToken):
    """Leaves in the window what was taken."""

    def touch(self, message: Message, now: float) -> list[Send]:
        window = list(self.window)
        sends = super().touch(message, now)
        self.window = window
        return sends


class EndsEarly(CyclicToken):
    """Forgets that its window is work."""

    @property
    def holds_work(self) -> bool:
        return self.load > 0.0

    def refill(self) -> None:
        Rival.refill(self)
        if not self.window and self.load > self.threshold:
            Windowed.refill(self)


@pytest.mark.parametrize(("way", "wrong"), [("glb", Loses), ("ctws", GivesTwice), ("ctws", EndsEarly)])
def test_known_wrong_ones_are_caught(way: str, wrong: type[Rival]) -> None:
    with pytest.raises((AssertionError, Error)):
        sweep(way, 16, rank_class=wrong)


TREE = Tree("geometric", "fixed", depth=7, branching=4, seed=19)


def test_lifelines_keep_the_sleepers_silent() -> None:
    """GLB: far fewer requests than a thief makes that asks again and again; nobody asks once all work is away."""
    found = run("glb", TREE, 32, [1.0])
    assert found.efficiency > 0.6
    assert found.drafts / 32 < 40


def test_one_thief_at_a_time_is_enough_for_few_ranks_only() -> None:
    """CTWS: few failed steals, good on some ranks; a token that sees all ranks in turn is late on many."""
    few, many = run("ctws", TREE, 4, [1.0]), run("ctws", TREE, 64, [1.0])
    assert few.efficiency > 0.9
    assert many.efficiency < 0.6 * few.efficiency


def test_the_fast_take_more() -> None:
    """A2WS: each rank does about its share of the work by its speed."""
    speeds = [1.0, 0.5, 0.25, 0.25]
    found = run("a2ws", TREE, 8, speeds)
    assert found.efficiency > 0.85
    for rank, units in enumerate(found.units):
        assert 0.6 < units / sum(found.units) * 4.0 / speeds[rank % 4] < 1.6


def test_the_table_has_a_line_for_each_way() -> None:
    assert set(WAYS) == {"walking", "ring", *RIVALS}
