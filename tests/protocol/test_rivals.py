"""The rival of our stealing counts exactly, loses no work and ends, whatever the size, the speeds and the order of messages.

So what the table of `benchmarks.rivals` says of it is true of what was implemented; and it behaves as its paper says.
"""

import random
from typing import Any

import pytest

from benchmarks.rivals import WAYS, Lifelines, run
from lb_mpi.cli.simulate.search import Simulation
from lb_mpi.errors import Error
from lb_mpi.searching.drafting import Send
from lb_mpi.searching.uts import Tree
from lb_mpi.virtual import Network
from tests.counting import plain_count

TREES = [Tree("geometric", "fixed", depth=5, branching=4, seed=3), Tree("binomial", branching=50, q=0.12, m=8, seed=5)]
COUNTS = [plain_count(tree) for tree in TREES]


class Ends:
    """A search that ends some time."""

    def __init__(self) -> None:
        self.events = 0

    def __call__(self, _simulation: Simulation) -> None:
        self.events += 1
        assert self.events < 200_000, "it never ends"


def sweep(**parameters: Any) -> None:
    for seed in range(16):
        rng = random.Random(seed)
        which, ranks = rng.randrange(2), rng.choice([1, 2, 3, 4, 5, 8, 13, 16])
        speeds = rng.choice([[1.0], [1.0, 0.5, 0.25, 0.25], [0.1, 1.0]])
        network = rng.choice([Network(), Network((1e-6, 1e-4))])
        quantum_s = rng.choice([2e-6, 10e-6])
        found = run(
            "glb", TREES[which], ranks, speeds, seed, network=network, quantum_s=quantum_s, check=Ends(), **parameters
        )
        assert found.value == COUNTS[which], seed
        assert found.efficiency <= 1.0 + 1e-9
        assert sum(found.units) == found.value.nodes


def test_it_counts_exactly_and_ends():
    sweep()


class Loses(Lifelines):
    """Forgets work that came while it had some."""

    def refill(self) -> None:
        super().refill()
        self.kept.clear()


class EndsEarly(Lifelines):
    """Forgets to count the work that it sends."""

    def _give(self, to: int, part: bytes, seq: int, by_lifeline: bool) -> Send:
        deficit = self.termination.deficit
        send = super()._give(to, part, seq, by_lifeline)
        self.termination.deficit = deficit
        return send


@pytest.mark.parametrize("wrong", [Loses, EndsEarly])
def test_known_wrong_ones_are_caught(wrong):
    with pytest.raises((AssertionError, Error)):
        sweep(rank_class=wrong)


TREE = Tree("geometric", "fixed", depth=7, branching=4, seed=19)


def test_lifelines_keep_the_sleepers_silent():
    """GLB: far fewer requests than a thief makes that asks again and again; nobody asks once all work is away."""
    found = run("glb", TREE, 32, [1.0])
    assert found.efficiency > 0.6
    assert found.drafts / 32 < 40


def test_the_table_has_a_line_for_each_way():
    assert set(WAYS) == {"walking", "ring", "glb"}
